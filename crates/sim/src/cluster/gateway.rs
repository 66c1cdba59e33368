//! The control loop and routes of a real gateway, with requests that check them.

use super::{
    ground_truth::GroundTruth,
    inference::{InferenceServer, Key, Presence},
    scheduler::CLIENTS,
};
use crate::{
    net::{Host, Net},
    rng,
    trace::Trace,
};
use fastrand::Rng;
use gantry_gateway::{Routes, control};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::Endpoint;

/// Concurrent requests per gateway.
const REQUESTS_IN_FLIGHT: u64 = 3;

/// Checks the target of each request.
#[derive(Clone)]
pub(crate) struct Checker {
    pub(crate) servers: Arc<BTreeMap<(String, u32), InferenceServer>>,
    pub(crate) models: Arc<Vec<String>>,
    pub(crate) truth: GroundTruth,
    pub(crate) trace: Trace,
    /// No request may be rejected in a scenario without faults.
    pub(crate) fault_free: bool,
}

pub(crate) struct Process {
    pub(crate) routes: Routes,
    stop: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
}

impl Process {
    pub(crate) fn start(net: &Net, host: &Host, checker: &Checker, seed: u64) -> Self {
        checker.trace.note(host, "starts");
        net.revive(host);
        let (routes, stop) = (Routes::default(), CancellationToken::new());
        let dialer = net.dialer(host, &"scheduler".into(), CLIENTS);
        let connect = move || {
            let dialer = dialer.clone();
            let connecting = async move { Ok(endpoint().connect_with_connector(dialer).await?) };
            Box::pin(connecting) as futures::future::BoxFuture<'static, _>
        };
        let subscription =
            control::subscribe_routes_with(connect, host.to_string(), routes.clone(), None, stop.clone());
        let mut tasks = vec![tokio::spawn(subscription)];
        for client in 0..REQUESTS_IN_FLIGHT {
            let rng = rng::seeded(seed, &format!("{host}/{client}"));
            tasks.push(tokio::spawn(send_requests(host.clone(), routes.clone(), checker.clone(), rng)));
        }
        Self { routes, stop, tasks }
    }

    /// Sends a request that stays in flight for `lasts` milliseconds.
    pub(crate) fn slow_request(&mut self, checker: &Checker, host: &Host, model: String, lasts: u64) {
        let (host, routes, checker) = (host.clone(), self.routes.clone(), checker.clone());
        self.tasks.push(tokio::spawn(async move {
            let duration = Duration::from_millis(lasts);
            send_request(&host, &routes, &checker, model, lasts, duration).await;
        }));
    }

    pub(crate) fn kill(self) {
        self.stop.cancel();
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Timeouts and keep-alive as in the gateway.
fn endpoint() -> Endpoint {
    Endpoint::from_static("http://scheduler")
        .connect_timeout(Duration::from_secs(2))
        .http2_keep_alive_interval(Duration::from_secs(10))
        .keep_alive_timeout(Duration::from_secs(10))
        .keep_alive_while_idle(true)
}

/// Sends requests in a loop.
async fn send_requests(host: Host, routes: Routes, checker: Checker, mut rng: Rng) {
    loop {
        tokio::time::sleep(Duration::from_millis(rng.u64(50..=4000))).await;
        let Some(model) = rng.choice(checker.models.iter()).cloned() else { return };
        let (ticket, duration) = (rng.u64(..), Duration::from_millis(rng.u64(1..=1500)));
        send_request(&host, &routes, &checker, model, ticket, duration).await;
    }
}

async fn send_request(
    host: &Host,
    routes: &Routes,
    checker: &Checker,
    model: String,
    ticket: u64,
    duration: Duration,
) {
    let now = checker.trace.millis();
    let request = match routes.start_test_request(&model, ticket) {
        Ok(request) => request,
        Err(reason) => return checker.rejected(host, routes, &model, &reason, now),
    };
    let (server, replica) = request.replica();
    let (target, key) = ((server.to_owned(), replica), (request.model().to_owned(), request.version()));
    checker.check_target(host, &target, &key, "is sent to a replica without it", now);
    // Otherwise the request fails at once.
    let is_loaded = |server: &InferenceServer| server.presence(&key) == Presence::Loaded;
    let Some(server) = checker.servers.get(&target).filter(|server| is_loaded(server)) else { return };
    let starts = server.crashes();
    tokio::time::sleep(duration).await;
    // A crash of the server fails its requests.
    if starts == server.crashes() {
        checker.check_target(host, &target, &key, "was in flight when it was unloaded", now);
    }
    drop(request);
}

impl Checker {
    /// The target of a request has the version loaded until the request ends.
    fn check_target(&self, gateway: &Host, target: &(String, u32), key: &Key, what: &str, since: u64) {
        let Some(server) = self.servers.get(target) else {
            self.trace.violate("routes_only_to_loaded_replicas", format!("{target:?} is not a replica"));
            return;
        };
        if server.presence(key) != Presence::Absent || self.truth.is_expired(gateway, since) {
            return;
        }
        let (model, version) = key;
        let what = format!("{gateway}: a request of {model} version {version} {what} ({})", server.host);
        self.trace.violate("routes_only_to_loaded_replicas", what);
    }

    /// Without faults, an available model stays served.
    fn rejected(&self, gateway: &Host, routes: &Routes, model: &str, reason: &str, now: u64) {
        if !self.fault_free || !routes.is_synced() {
            return;
        }
        let truth = self.truth.lock();
        // A candidate that is deleted leaves the routes just before its experiment does.
        let mut experiments = truth.experiments.values().flat_map(|possible| possible.0.iter().flatten());
        if experiments.any(|e| e.candidates.first().is_some_and(|(default, _)| default == model)) {
            return;
        }
        let since = truth.models.get(model).and_then(|m| m.available_since);
        if let Some(since) = since.filter(|_| !truth.outages_allowed) {
            drop(truth);
            let what = format!(
                "{gateway}: a request of {model} is rejected ({reason}) at {now} ms, although it is available since {since} ms"
            );
            self.trace.violate("available_models_stay_served", what);
        }
    }
}
