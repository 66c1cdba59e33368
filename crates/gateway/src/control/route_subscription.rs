//! Subscription to the scheduler's routes, with acknowledgements.

use crate::Routes;
use futures::{StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use gantry_proto::gantry::{
    RouteAcknowledgement, RouteEvent, WatchRoutesRequest, route_event::Event, routing_client::RoutingClient,
};
use gantry_transport::{Backoff, BoxError};
use std::{collections::BTreeMap, time::Duration};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};

const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// Applies the routes of the scheduler at `endpoint` until `shutdown` is cancelled.
///
/// Routes stay in place while the scheduler is unreachable. Applied and drained changes are acknowledged under the
/// name `subscriber`.
pub async fn subscribe_routes(
    endpoint: Endpoint,
    subscriber: String,
    routes: Routes,
    shutdown: CancellationToken,
) {
    let endpoint = endpoint
        .connect_timeout(Duration::from_secs(2))
        .http2_keep_alive_interval(Duration::from_secs(10))
        .keep_alive_timeout(Duration::from_secs(10))
        .keep_alive_while_idle(true);
    subscribe_routes_with(move || Box::pin(connect(endpoint.clone())), subscriber, routes, shutdown).await;
}

async fn connect(endpoint: Endpoint) -> Result<Channel, BoxError> {
    Ok(endpoint.connect().await?)
}

/// [`subscribe_routes`] over a custom connector. `connect` must time out by itself.
pub async fn subscribe_routes_with(
    connect: impl Fn() -> BoxFuture<'static, Result<Channel, BoxError>>,
    subscriber: String,
    routes: Routes,
    shutdown: CancellationToken,
) {
    let mut backoff = Backoff::new(BACKOFF_MIN, BACKOFF_MAX);
    // Draining requests outlive a connection, and a scheduler.
    let mut progress = Progress::default();
    // Repeated identical errors are logged once at warn level.
    let mut last_error = None;
    loop {
        let session = subscribe_once(&connect, &subscriber, &routes, &mut progress, &mut backoff);
        let error = tokio::select! {
            () = shutdown.cancelled() => return,
            ended = session => ended.err(),
        };
        if let Some(error) = error.map(|e| e.to_string()) {
            let was_connected = backoff.is_reset();
            if was_connected || last_error.as_ref() != Some(&error) {
                tracing::warn!(%error, "lost the route stream; keeping the last known routes");
            } else {
                tracing::debug!(%error, "route stream still unavailable");
            }
            last_error = Some(error);
        } else {
            tracing::info!("route stream closed by the scheduler");
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(backoff.next_delay()) => {}
        }
    }
}

async fn subscribe_once(
    connect: &impl Fn() -> BoxFuture<'static, Result<Channel, BoxError>>,
    subscriber: &str,
    routes: &Routes,
    progress: &mut Progress,
    backoff: &mut Backoff,
) -> Result<(), BoxError> {
    let channel = connect().await?;
    let mut client = RoutingClient::new(channel.clone());
    let request = WatchRoutesRequest { subscriber: subscriber.to_owned() };
    let mut events = client.watch_routes(request).await?.into_inner();
    progress.synced = false;
    let mut acknowledger = Acknowledger::new(channel, subscriber);
    loop {
        tokio::select! {
            event = events.message() => {
                let Some(event) = event? else { return Ok(()) };
                backoff.reset();
                progress.apply(routes, event);
            }
            () = progress.drain(), if progress.is_draining() => {}
            sent = acknowledger.done(), if acknowledger.is_busy() => sent?,
        }
        acknowledger.acknowledge(progress.acknowledgement());
    }
}

/// Applied and drained events of the current epoch.
#[derive(Default)]
struct Progress {
    epoch: u64,
    synced: bool,
    applied: u64,
    /// Undrained removals per event.
    open: BTreeMap<u64, usize>,
    /// Resolves to (epoch, sequence) of an event whose removals are drained.
    draining: FuturesUnordered<BoxFuture<'static, (u64, u64)>>,
}

impl Progress {
    fn apply(&mut self, routes: &Routes, event: RouteEvent) {
        let (epoch, sequence) = (event.epoch, event.sequence);
        if epoch < self.epoch {
            return;
        }
        if epoch > self.epoch {
            // Removals of an earlier scheduler precede every event of this one.
            let older = std::mem::take(&mut self.open).into_values().sum();
            if older > 0 {
                self.open.insert(0, older);
            }
            self.epoch = epoch;
            self.synced = false;
        }
        if matches!(event.event, Some(Event::Reset(_))) {
            self.synced = false;
        }
        // A removal found by a resync may belong to any event since the last acknowledgement.
        let is_synced_event = matches!(event.event, Some(Event::Synced(_)));
        let key = if is_synced_event { 0 } else { sequence };
        self.synced |= is_synced_event;
        let removed = routes.apply(event);
        // Events before Synced are a replay and are not acknowledged one by one.
        if self.synced {
            self.applied = sequence;
        }
        if !removed.is_drained() {
            *self.open.entry(key).or_default() += 1;
            self.draining.push(Box::pin(async move {
                removed.drained().await;
                (epoch, key)
            }));
        }
    }

    fn is_draining(&self) -> bool {
        !self.draining.is_empty()
    }

    /// Waits until the removals of one more event are drained.
    async fn drain(&mut self) {
        let Some((epoch, sequence)) = self.draining.next().await else {
            return;
        };
        let key = if epoch == self.epoch { sequence } else { 0 };
        if let Some(open) = self.open.get_mut(&key) {
            *open -= 1;
            if *open == 0 {
                self.open.remove(&key);
            }
        }
    }

    /// (epoch, applied, drained): everything before the first undrained event counts as drained.
    fn acknowledgement(&self) -> Option<(u64, u64, u64)> {
        let drained = self.open.keys().next().map_or(self.applied, |first| first.saturating_sub(1));
        self.synced.then_some((self.epoch, self.applied, drained.min(self.applied)))
    }
}

/// Sends acknowledgements, one call at a time; later changes are coalesced into the next call.
struct Acknowledger {
    client: RoutingClient<Channel>,
    subscriber: String,
    sent: Option<(u64, u64, u64)>,
    latest: Option<(u64, u64, u64)>,
    in_flight: Option<BoxFuture<'static, Result<(), tonic::Status>>>,
}

impl Acknowledger {
    fn new(channel: Channel, subscriber: &str) -> Self {
        let client = RoutingClient::new(channel);
        Self { client, subscriber: subscriber.to_owned(), sent: None, latest: None, in_flight: None }
    }

    fn acknowledge(&mut self, latest: Option<(u64, u64, u64)>) {
        self.latest = latest;
        let Some((epoch, applied, drained)) =
            latest.filter(|_| self.in_flight.is_none() && latest != self.sent)
        else {
            return;
        };
        self.sent = latest;
        let mut client = self.client.clone();
        let acknowledgement =
            RouteAcknowledgement { subscriber: self.subscriber.clone(), epoch, applied, drained };
        self.in_flight = Some(Box::pin(async move {
            let mut request = tonic::Request::new(acknowledgement);
            request.set_timeout(Duration::from_secs(10));
            match client.acknowledge_routes(request).await {
                Ok(_) => Ok(()),
                // This scheduler does not wait for acknowledgements.
                Err(status) if status.code() == tonic::Code::Unimplemented => Ok(()),
                Err(status) => Err(status),
            }
        }));
    }

    const fn is_busy(&self) -> bool {
        self.in_flight.is_some()
    }

    async fn done(&mut self) -> Result<(), tonic::Status> {
        let Some(call) = &mut self.in_flight else {
            return std::future::pending().await;
        };
        let sent = call.await;
        self.in_flight = None;
        self.acknowledge(self.latest);
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_proto::gantry::{Endpoint, Reset, Route, RouteVersion, Synced};

    fn event(sequence: u64, event: Event) -> RouteEvent {
        RouteEvent { epoch: 1, sequence, event: Some(event) }
    }

    fn route() -> Event {
        let endpoints = vec![Endpoint { server: "a".into(), host: "h".into(), ..Endpoint::default() }];
        let versions = vec![RouteVersion { version: 1, weight: 1, endpoints }];
        Event::Upsert(Route { model: "m".into(), versions, ..Route::default() })
    }

    #[tokio::test]
    async fn removals_of_a_resync_block_drained_of_all_earlier_events() {
        let (routes, mut progress) = (Routes::default(), Progress::default());
        for (sequence, kind) in [(0, Event::Reset(Reset {})), (3, route()), (3, Event::Synced(Synced {}))] {
            progress.apply(&routes, event(sequence, kind));
        }
        assert_eq!(progress.acknowledgement(), Some((1, 3, 3)));
        let request = routes.start_test_request("m", 0).unwrap();
        // Event 5 removed the model while disconnected; after the resync event 7 is the latest.
        for (sequence, kind) in [(0, Event::Reset(Reset {})), (7, Event::Synced(Synced {}))] {
            progress.apply(&routes, event(sequence, kind));
        }
        assert_eq!(progress.acknowledgement(), Some((1, 7, 0)));
        drop(request);
        progress.drain().await;
        assert_eq!(progress.acknowledgement(), Some((1, 7, 7)));
    }
}
