//! Reports request load per model to the scheduler, for autoscaling.

use crate::Routes;
use gantry_proto::gantry::{DemandReport, ModelDemand, routing_client::RoutingClient};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Code, transport::Channel};

/// Reporting interval. A request for a model that is scaled to zero triggers a report at once.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum time between reports while requests wait for a scale-up.
const MIN_INTERVAL: Duration = Duration::from_millis(50);
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Reports load over `channel` until `shutdown` is cancelled, under the subscriber name of
/// [`subscribe_routes`](super::subscribe_routes).
pub async fn report_demand(
    channel: Channel,
    subscriber: String,
    routes: Routes,
    shutdown: CancellationToken,
) {
    let mut client = RoutingClient::new(channel);
    let mut last = Instant::now();
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(REPORT_INTERVAL) => {}
            () = routes.scale_up_requested() => {}
        }
        let now = Instant::now();
        let models: Vec<ModelDemand> = routes
            .demand(now - last)
            .into_iter()
            .map(|d| ModelDemand {
                model: d.model.to_string(),
                in_flight_milli: d.in_flight_milli,
                answered: d.answered,
                waiting: d.waiting,
            })
            .collect();
        last = now;
        if models.is_empty() {
            continue;
        }
        let mut request = tonic::Request::new(DemandReport { subscriber: subscriber.clone(), models });
        request.set_timeout(CALL_TIMEOUT);
        match client.report_demand(request).await {
            Ok(_) => {}
            // This scheduler does not autoscale.
            Err(status) if status.code() == Code::Unimplemented => return,
            Err(status) => {
                tracing::debug!(%status, "failed to report demand");
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(MIN_INTERVAL) => {}
        }
    }
}
