//! A gateway that acknowledges routes and serves nothing.

use gantry_proto::gantry::{
    RouteAcknowledgement, WatchRoutesRequest, route_event::Event, routing_client::RoutingClient,
};
use std::time::Instant;
use tokio::sync::{mpsc, watch};

/// Model, routed version, time of receipt.
pub(crate) type Routed = (String, u32, Instant);

/// Watches routes until the connection ends; sends each non-empty route to `routed`.
pub(crate) async fn run(address: String, routed: mpsc::UnboundedSender<Routed>) {
    let mut client = RoutingClient::connect(address).await.unwrap();
    let request = WatchRoutesRequest { subscriber: "g".into() };
    let mut events = client.watch_routes(request).await.unwrap().into_inner();
    // One acknowledgement in flight, always of the latest change.
    let (newest, mut acknowledge) = watch::channel((0, 0));
    let acknowledging = tokio::spawn(async move {
        while acknowledge.changed().await.is_ok() {
            let (epoch, sequence) = *acknowledge.borrow_and_update();
            let message = RouteAcknowledgement {
                subscriber: "g".into(),
                epoch,
                applied: sequence,
                drained: sequence,
                ..Default::default()
            };
            if client.acknowledge_routes(message).await.is_err() {
                return;
            }
        }
    });
    let mut synced = false;
    while let Ok(Some(event)) = events.message().await {
        synced |= matches!(event.event, Some(Event::Synced(_)));
        if synced {
            newest.send_replace((event.epoch, event.sequence));
        }
        if let Some(Event::Upsert(route)) = event.event
            && let Some(version) = route.versions.iter().rfind(|v| !v.endpoints.is_empty())
        {
            let _ = routed.send((route.model, version.version, Instant::now()));
        }
    }
    drop(newest);
    let _ = acknowledging.await;
}
