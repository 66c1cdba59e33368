//! Follows the scheduler's requests for more or fewer replicas of a server.

use super::wishes::Wishes;
use crate::up::calls::Calls;
use gantry_proto::scheduler::{
    ServerSubscriptionRequest, scheduler_client::SchedulerClient, server_status_response::Type,
};
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

/// How long to wait before a broken subscription is opened again.
const AGAIN: Duration = Duration::from_secs(1);

/// Follows until `stop` is cancelled.
pub(crate) async fn follow(channel: Channel, wishes: Wishes, stop: CancellationToken) {
    let mut client = SchedulerClient::new(channel.clone());
    let calls = Calls::new(channel);
    while !stop.is_cancelled() {
        let request = ServerSubscriptionRequest { subscriber_name: "gantry up servers".into() };
        let followed = async {
            let mut stream = client.subscribe_server_status(request).await?.into_inner();
            while let Some(status) = stream.message().await? {
                if status.r#type() != Type::ScalingRequest {
                    continue;
                }
                let Ok(asked) = u32::try_from(status.expected_replicas) else { continue };
                if let Some((replicas, expected)) = wishes.scale(&status.server_name, asked) {
                    tracing::info!(server = %status.server_name, replicas, "scaled");
                    // The scheduler counts on them from when they are announced.
                    calls.announce(expected).await?;
                }
            }
            Ok::<(), tonic::Status>(())
        };
        tokio::select! {
            ended = followed => if let Err(error) = ended {
                tracing::debug!(%error, "requests for replicas are not followed for a moment");
            },
            () = stop.cancelled() => return,
        }
        tokio::select! {
            () = tokio::time::sleep(AGAIN) => {}
            () = stop.cancelled() => return,
        }
    }
}
