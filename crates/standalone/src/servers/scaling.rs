//! Subscription to the scheduler's scaling requests for servers.

use super::desired_servers::DesiredServers;
use crate::scheduler_client::FileClient;
use gantry_proto::scheduler::{
    ServerSubscriptionRequest, scheduler_client::SchedulerClient, server_status_response::Type,
};
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Follows scaling requests until `stop` is cancelled.
pub(crate) async fn follow(channel: Channel, servers: DesiredServers, stop: CancellationToken) {
    stop.run_until_cancelled(async {
        loop {
            if let Err(error) = subscribe(channel.clone(), &servers).await {
                tracing::debug!(%error, "scaling subscription failed; reconnecting");
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    })
    .await;
}

async fn subscribe(channel: Channel, servers: &DesiredServers) -> Result<(), tonic::Status> {
    let mut scheduler = SchedulerClient::new(channel.clone());
    let client = FileClient::new(channel);
    let request = ServerSubscriptionRequest { subscriber_name: "gantry up servers".into() };
    let mut stream = scheduler.subscribe_server_status(request).await?.into_inner();
    while let Some(status) = stream.message().await? {
        if status.r#type() != Type::ScalingRequest {
            continue;
        }
        let Ok(requested) = u32::try_from(status.expected_replicas) else { continue };
        if let Some((replicas, announcement)) = servers.scale(&status.server_name, requested) {
            tracing::info!(server = %status.server_name, replicas, "scaled");
            // The scheduler places models on replicas from their announcement on.
            client.announce(announcement).await?;
        }
    }
    Ok(())
}
