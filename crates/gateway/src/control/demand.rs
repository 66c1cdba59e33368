//! Telling the scheduler what is asked of models.

use crate::Routes;
use gantry_proto::gantry::{DemandReport, ModelDemand, routing_client::RoutingClient};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Code, transport::Channel};

/// How often demand is told. Scaling decides over longer times; a model that is to wake is told of at once.
const PERIOD: Duration = Duration::from_secs(1);
/// While nobody listens, a request that waits for a model must not make us ask without a pause.
const PAUSE: Duration = Duration::from_millis(50);
const DEADLINE: Duration = Duration::from_secs(5);

/// Tells the scheduler behind `channel` what is asked of models, under the name given to
/// [`follow`](super::follow), until `shutdown` is cancelled.
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
            () = tokio::time::sleep(PERIOD) => {}
            () = routes.wanted() => {}
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
        request.set_timeout(DEADLINE);
        match client.report_demand(request).await {
            Ok(_) => {}
            // A scheduler that does not want to know is none that scales.
            Err(status) if status.code() == Code::Unimplemented => return,
            Err(status) => {
                tracing::debug!(%status, "the scheduler could not be told what is asked of models");
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(PAUSE) => {}
        }
    }
}
