//! Following the scheduler's routes.

use crate::Routes;
use futures::{StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use gantry_core::mutant;
use gantry_proto::gantry::{
    RouteAcknowledgement, RouteEvent, WatchRoutesRequest, route_event::Event, routing_client::RoutingClient,
};
use std::{collections::BTreeMap, time::Duration};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};

/// The first pause before connecting again, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Keeps the routes as the scheduler at `endpoint` says, until `shutdown` is cancelled.
///
/// While the scheduler is away the last known routes stay. What was applied, and what has no request in flight any
/// more, is told back under the name `subscriber`.
pub async fn follow(endpoint: Endpoint, subscriber: String, routes: Routes, shutdown: CancellationToken) {
    let endpoint = endpoint
        .connect_timeout(Duration::from_secs(2))
        .http2_keep_alive_interval(Duration::from_secs(10))
        .keep_alive_timeout(Duration::from_secs(10))
        .keep_alive_while_idle(true);
    follow_over(move || Box::pin(connected(endpoint.clone())), subscriber, routes, shutdown).await;
}

async fn connected(endpoint: Endpoint) -> Result<Channel, BoxError> {
    Ok(endpoint.connect().await?)
}

/// The same over connections of the caller's making: each call of `connect` opens one, within a time of its own.
pub async fn follow_over(
    connect: impl Fn() -> BoxFuture<'static, Result<Channel, BoxError>>,
    subscriber: String,
    routes: Routes,
    shutdown: CancellationToken,
) {
    let mut pause = PAUSES.0;
    // What is still in flight outlives a connection, and even a scheduler.
    let mut progress = Progress::default();
    // The same trouble is worth one line, however often it is met.
    let mut told = None;
    loop {
        let before = pause;
        let following = follow_once(&connect, &subscriber, &routes, &mut progress, &mut pause);
        let error = tokio::select! {
            () = shutdown.cancelled() => return,
            ended = following => ended.err(),
        };
        if let Some(error) = error.map(|e| e.to_string()) {
            let had_a_word_with_it = pause < before || before == PAUSES.0;
            if had_a_word_with_it || told.as_ref() != Some(&error) {
                tracing::warn!(%error, "the scheduler is away: the last known routes stay");
            } else {
                tracing::debug!(%error, "the scheduler is still away");
            }
            told = Some(error);
        } else {
            tracing::info!("the scheduler ended the stream of routes");
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        pause = (pause * 2).min(PAUSES.1);
    }
}

async fn follow_once(
    connect: &impl Fn() -> BoxFuture<'static, Result<Channel, BoxError>>,
    subscriber: &str,
    routes: &Routes,
    progress: &mut Progress,
    pause: &mut Duration,
) -> Result<(), BoxError> {
    let channel = connect().await?;
    let mut client = RoutingClient::new(channel.clone());
    let request = WatchRoutesRequest { subscriber: subscriber.to_owned() };
    let mut events = client.watch_routes(request).await?.into_inner();
    progress.synced = false;
    let mut telling = Telling::new(channel, subscriber);
    loop {
        tokio::select! {
            event = events.message() => {
                let Some(event) = event? else { return Ok(()) };
                *pause = PAUSES.0;
                progress.apply(routes, event);
            }
            () = progress.drain(), if progress.is_draining() => {}
            told = telling.done(), if telling.is_busy() => told?,
        }
        telling.tell(progress.acknowledgement());
    }
}

/// How far this gateway is with the events of the scheduler.
#[derive(Default)]
struct Progress {
    epoch: u64,
    synced: bool,
    applied: u64,
    /// How many removals of each event still have requests in flight.
    open: BTreeMap<u64, usize>,
    /// Ends with the epoch and number of an event whose removals have run dry.
    draining: FuturesUnordered<BoxFuture<'static, (u64, u64)>>,
}

impl Progress {
    fn apply(&mut self, routes: &Routes, event: RouteEvent) {
        let (epoch, sequence) = (event.epoch, event.sequence);
        if epoch < self.epoch {
            return;
        }
        if epoch > self.epoch {
            // What an older scheduler took away stands before everything that this one says.
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
        // What a new beginning takes away may have been taken away by any change since the last word.
        let is_beginning = matches!(event.event, Some(Event::Synced(_)));
        let key = if is_beginning && !mutant::is("drains_by_the_last_number") { 0 } else { sequence };
        self.synced |= is_beginning;
        let removed = routes.apply(event);
        // Until Synced nothing is applied, and the numbers before it are those of old changes.
        if self.synced {
            self.applied = sequence;
        }
        if !removed.is_drained() && !mutant::is("does_not_wait_for_requests") {
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

    /// Waits until the removals of one more event have run dry.
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

    /// What to tell the scheduler: everything before the first event that is not drained is.
    fn acknowledgement(&self) -> Option<(u64, u64, u64)> {
        let drained = self.open.keys().next().map_or(self.applied, |first| first.saturating_sub(1));
        self.synced.then_some((self.epoch, self.applied, drained.min(self.applied)))
    }
}

/// One call at a time: what changes meanwhile is told by the next.
struct Telling {
    client: RoutingClient<Channel>,
    subscriber: String,
    told: Option<(u64, u64, u64)>,
    wanted: Option<(u64, u64, u64)>,
    busy: Option<BoxFuture<'static, Result<(), tonic::Status>>>,
}

impl Telling {
    fn new(channel: Channel, subscriber: &str) -> Self {
        let client = RoutingClient::new(channel);
        Self { client, subscriber: subscriber.to_owned(), told: None, wanted: None, busy: None }
    }

    fn tell(&mut self, wanted: Option<(u64, u64, u64)>) {
        self.wanted = wanted;
        let Some((epoch, applied, drained)) = wanted.filter(|_| self.busy.is_none() && wanted != self.told)
        else {
            return;
        };
        self.told = wanted;
        let mut client = self.client.clone();
        let acknowledgement =
            RouteAcknowledgement { subscriber: self.subscriber.clone(), epoch, applied, drained };
        self.busy = Some(Box::pin(async move {
            let mut request = tonic::Request::new(acknowledgement);
            request.set_timeout(Duration::from_secs(10));
            match client.acknowledge_routes(request).await {
                Ok(_) => Ok(()),
                // A scheduler that does not want to know is none that waits for it.
                Err(status) if status.code() == tonic::Code::Unimplemented => Ok(()),
                Err(status) => Err(status),
            }
        }));
    }

    const fn is_busy(&self) -> bool {
        self.busy.is_some()
    }

    async fn done(&mut self) -> Result<(), tonic::Status> {
        let Some(busy) = &mut self.busy else {
            return std::future::pending().await;
        };
        let told = busy.await;
        self.busy = None;
        self.tell(self.wanted);
        told
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
    async fn what_a_new_beginning_takes_away_holds_up_everything_before_it() {
        let (routes, mut progress) = (Routes::default(), Progress::default());
        for (sequence, what) in [(0, Event::Reset(Reset {})), (3, route()), (3, Event::Synced(Synced {}))] {
            progress.apply(&routes, event(sequence, what));
        }
        assert_eq!(progress.acknowledgement(), Some((1, 3, 3)));
        let request = routes.visit("m", 0).unwrap();
        // Change 5 took the model away while nobody heard it; when we hear again, change 7 is the last.
        for (sequence, what) in [(0, Event::Reset(Reset {})), (7, Event::Synced(Synced {}))] {
            progress.apply(&routes, event(sequence, what));
        }
        assert_eq!(progress.acknowledgement(), Some((1, 7, 0)));
        drop(request);
        progress.drain().await;
        assert_eq!(progress.acknowledgement(), Some((1, 7, 7)));
    }
}
