//! Subscription to the scheduler's routes, with acknowledgements.

use super::StoredRoutes;
use crate::Routes;
use futures::{StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use gantry_proto::gantry::{
    Removal, RouteAcknowledgement, RouteEvent, WatchRoutesRequest, route_event::Event,
    routing_client::RoutingClient,
};
use gantry_transport::{Backoff, BoxError};
use std::{collections::BTreeMap, time::Duration};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};

const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// Removed targets in one acknowledgement.
const MAX_UNDRAINED: usize = 256;

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
    subscribe_routes_with(move || Box::pin(connect(endpoint.clone())), subscriber, routes, None, shutdown)
        .await;
}

async fn connect(endpoint: Endpoint) -> Result<Channel, BoxError> {
    Ok(endpoint.connect().await?)
}

/// [`subscribe_routes`] over a custom connector. `connect` must time out by itself. With `stored`, applied routes are
/// written to disk.
pub async fn subscribe_routes_with(
    connect: impl Fn() -> BoxFuture<'static, Result<Channel, BoxError>>,
    subscriber: String,
    routes: Routes,
    stored: Option<StoredRoutes>,
    shutdown: CancellationToken,
) {
    let mut backoff = Backoff::new(BACKOFF_MIN, BACKOFF_MAX);
    // Draining requests outlive a connection, and a scheduler.
    let mut progress = Progress::after(stored);
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
            () = async { loop { progress.drain_and_store().await } } => {}
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
            () = progress.drain_and_store() => {}
            sent = acknowledger.done(), if acknowledger.is_busy() => sent?,
        }
        acknowledger.acknowledge(progress.acknowledgement());
    }
}

/// Applied events, and undrained removals, of the scheduler's current start.
#[derive(Default)]
struct Progress {
    state_id: u64,
    epoch: u64,
    synced: bool,
    applied: u64,
    /// Removed targets with requests in flight, by number, each with the event that removed it.
    undrained: BTreeMap<u64, (u64, Removal)>,
    last_number: u64,
    /// Resolves to the number of a target without requests.
    draining: FuturesUnordered<BoxFuture<'static, u64>>,
    stored: Option<StoredRoutes>,
}

impl Progress {
    /// Continues from the routes on disk.
    fn after(stored: Option<StoredRoutes>) -> Self {
        let (state_id, epoch) = stored.as_ref().map(StoredRoutes::state).unwrap_or_default();
        Self { state_id, epoch, stored, ..Self::default() }
    }

    fn apply(&mut self, routes: &Routes, event: RouteEvent) {
        let RouteEvent { state_id, epoch, sequence, .. } = event;
        if state_id == self.state_id && epoch < self.epoch {
            return;
        }
        if (state_id, epoch) != (self.state_id, self.epoch) {
            // Removals of an earlier start precede every event of this one.
            self.undrained.values_mut().for_each(|(event, _)| *event = 0);
            (self.state_id, self.epoch) = (state_id, epoch);
            self.synced = false;
        }
        if matches!(event.event, Some(Event::Reset(_))) {
            self.synced = false;
        }
        // A removal found by a resync may belong to any event since the last acknowledgement.
        let is_synced_event = matches!(event.event, Some(Event::Synced(_)));
        let key = if is_synced_event { 0 } else { sequence };
        self.synced |= is_synced_event;
        if let Some(stored) = &mut self.stored {
            stored.record(&event);
        }
        let removed = routes.apply(event);
        // Events before Synced are a replay and are not acknowledged one by one.
        if self.synced {
            self.applied = sequence;
        }
        for (removal, drained) in removed.undrained() {
            self.last_number += 1;
            let number = self.last_number;
            self.undrained.insert(number, (key, removal));
            self.draining.push(Box::pin(async move {
                drained.await;
                number
            }));
        }
    }

    /// Resolves when one more removed target is drained; writes routes to disk meanwhile.
    async fn drain_and_store(&mut self) {
        let store = async {
            match &mut self.stored {
                Some(stored) => stored.write_when_due().await,
                None => std::future::pending().await,
            }
        };
        let number = tokio::select! {
            Some(number) = self.draining.next() => number,
            () = store => return,
        };
        self.undrained.remove(&number);
    }

    /// `drained` counts events before the first undrained one. It is for schedulers that do not read the list, and for a
    /// list that would be too long.
    fn acknowledgement(&self) -> Option<RouteAcknowledgement> {
        let first = self.undrained.values().map(|(event, _)| event.saturating_sub(1)).min();
        let lists_undrained = self.undrained.len() <= MAX_UNDRAINED;
        let listed = self.undrained.values().filter(|_| lists_undrained);
        self.synced.then(|| RouteAcknowledgement {
            subscriber: String::new(),
            state_id: self.state_id,
            epoch: self.epoch,
            applied: self.applied,
            drained: first.unwrap_or(self.applied).min(self.applied),
            undrained: listed.map(|(_, removal)| removal.clone()).collect(),
            lists_undrained,
        })
    }
}

/// Sends acknowledgements, one call at a time; later changes are coalesced into the next call.
struct Acknowledger {
    client: RoutingClient<Channel>,
    subscriber: String,
    sent: Option<RouteAcknowledgement>,
    latest: Option<RouteAcknowledgement>,
    in_flight: Option<BoxFuture<'static, Result<(), tonic::Status>>>,
}

impl Acknowledger {
    fn new(channel: Channel, subscriber: &str) -> Self {
        let client = RoutingClient::new(channel);
        Self { client, subscriber: subscriber.to_owned(), sent: None, latest: None, in_flight: None }
    }

    fn acknowledge(&mut self, latest: Option<RouteAcknowledgement>) {
        self.latest = latest;
        if self.in_flight.is_some() || self.latest == self.sent {
            return;
        }
        let Some(mut acknowledgement) = self.latest.clone() else { return };
        self.sent.clone_from(&self.latest);
        acknowledgement.subscriber.clone_from(&self.subscriber);
        let mut client = self.client.clone();
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
        let latest = self.latest.take();
        self.acknowledge(latest);
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_proto::gantry::{Endpoint, Reset, Route, RouteVersion, Synced};

    fn event(sequence: u64, event: Event) -> RouteEvent {
        RouteEvent { state_id: 9, epoch: 5, sequence, event: Some(event) }
    }

    fn route(model: &str) -> Event {
        let endpoints = vec![Endpoint { server: "a".into(), host: "h".into(), ..Endpoint::default() }];
        let versions = vec![RouteVersion { version: 1, weight: 1, endpoints }];
        Event::Upsert(Route { model: model.into(), versions, ..Route::default() })
    }

    fn removal(model: &str) -> Removal {
        Removal { model: model.into(), version: 1, server: "a".into(), replica: 0 }
    }

    /// Applied, drained, and the models of the undrained removals.
    fn acknowledged(progress: &Progress) -> (u64, u64, Vec<String>) {
        let acknowledgement = progress.acknowledgement().unwrap();
        assert!(acknowledgement.lists_undrained);
        let undrained = acknowledgement.undrained.into_iter().map(|removal| removal.model).collect();
        (acknowledgement.applied, acknowledgement.drained, undrained)
    }

    #[tokio::test]
    async fn removals_of_a_resync_block_drained_of_all_earlier_events() {
        let (routes, mut progress) = (Routes::default(), Progress::default());
        let steps = [(0, Event::Reset(Reset {})), (3, route("m")), (3, Event::Synced(Synced {}))];
        for (sequence, kind) in steps {
            progress.apply(&routes, event(sequence, kind));
        }
        assert_eq!(acknowledged(&progress), (3, 3, vec![]));
        let request = routes.start_test_request("m", 0).unwrap();
        // Event 5 removed the model while disconnected; after the resync event 7 is the latest.
        for (sequence, kind) in [(0, Event::Reset(Reset {})), (7, Event::Synced(Synced {}))] {
            progress.apply(&routes, event(sequence, kind));
        }
        assert_eq!(acknowledged(&progress), (7, 0, vec!["m".into()]));
        assert_eq!(progress.acknowledgement().unwrap().undrained, [removal("m")]);
        drop(request);
        progress.drain_and_store().await;
        assert_eq!(acknowledged(&progress), (7, 7, vec![]));
    }

    #[tokio::test]
    async fn slow_request_of_one_model_is_listed_alone() {
        let (routes, mut progress) = (Routes::default(), Progress::default());
        for (sequence, kind) in [(0, Event::Reset(Reset {})), (0, Event::Synced(Synced {}))] {
            progress.apply(&routes, event(sequence, kind));
        }
        for (sequence, model) in [(1, "slow"), (2, "fast")] {
            progress.apply(&routes, event(sequence, route(model)));
        }
        let slow = routes.start_test_request("slow", 0).unwrap();
        let fast = routes.start_test_request("fast", 0).unwrap();
        for (sequence, model) in [(3, "slow"), (4, "fast")] {
            progress.apply(&routes, event(sequence, Event::Delete(model.into())));
        }
        assert_eq!(acknowledged(&progress), (4, 2, vec!["slow".into(), "fast".into()]));
        drop(fast);
        progress.drain_and_store().await;
        assert_eq!(acknowledged(&progress), (4, 2, vec!["slow".into()]));
        drop(slow);
        progress.drain_and_store().await;
        assert_eq!(acknowledged(&progress), (4, 4, vec![]));
    }

    #[tokio::test]
    async fn long_list_of_removals_falls_back_to_the_first_event() {
        let (routes, mut progress) = (Routes::default(), Progress::default());
        for (sequence, kind) in [(0, Event::Reset(Reset {})), (0, Event::Synced(Synced {}))] {
            progress.apply(&routes, event(sequence, kind));
        }
        let mut requests = Vec::new();
        for number in 0..=MAX_UNDRAINED as u64 {
            let model = format!("m{number}");
            progress.apply(&routes, event(2 * number + 1, route(&model)));
            requests.push(routes.start_test_request(&model, 0).unwrap());
            progress.apply(&routes, event(2 * number + 2, Event::Delete(model)));
        }
        let acknowledgement = progress.acknowledgement().unwrap();
        assert!(!acknowledgement.lists_undrained && acknowledgement.undrained.is_empty());
        assert_eq!(acknowledgement.drained, 1);
        drop(requests.remove(0));
        progress.drain_and_store().await;
        assert_eq!(progress.acknowledgement().unwrap().undrained.len(), MAX_UNDRAINED);
    }

    #[tokio::test]
    async fn new_state_with_a_lower_epoch_replaces_routes_at_synced() {
        let (routes, mut progress) = (Routes::default(), Progress::default());
        let steps = [(0, Event::Reset(Reset {})), (3, route("m")), (3, Event::Synced(Synced {}))];
        for (sequence, kind) in steps {
            progress.apply(&routes, event(sequence, kind));
        }
        let _request = routes.start_test_request("m", 0).unwrap();
        let of_state = |state_id, epoch, kind| RouteEvent { state_id, epoch, sequence: 1, event: Some(kind) };
        progress.apply(&routes, of_state(9, 4, Event::Delete("m".into())));
        assert_eq!(routes.models(), ["m"], "an older epoch of the same state");
        progress.apply(&routes, of_state(10, 1, Event::Reset(Reset {})));
        progress.apply(&routes, of_state(10, 1, route("n")));
        assert_eq!(routes.models(), ["m"], "served until the new routes are complete");
        assert_eq!(progress.acknowledgement(), None);
        progress.apply(&routes, of_state(10, 1, Event::Synced(Synced {})));
        assert_eq!(routes.models(), ["n"]);
        let acknowledgement = progress.acknowledgement().unwrap();
        assert_eq!((acknowledgement.state_id, acknowledgement.epoch, acknowledgement.applied), (10, 1, 1));
        assert_eq!((acknowledgement.drained, acknowledgement.undrained), (0, vec![removal("m")]));
    }
}
