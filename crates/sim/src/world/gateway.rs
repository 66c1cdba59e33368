//! A gateway as a process: the real control loop and the real routes, and requests that are judged.

use super::{
    facts::Facts,
    inference::{Fate, InferenceServer, Key},
    scheduler::CLIENTS,
};
use crate::{
    net::{Host, Net},
    rng::Rng,
    trace::Trace,
};
use gantry_gateway::{Routes, control};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::Endpoint;

/// Requests of one gateway at a time.
const CLIENTS_EACH: u64 = 3;

/// What a request needs to be judged.
#[derive(Clone)]
pub(crate) struct Bench {
    pub(crate) servers: Arc<BTreeMap<(String, u32), InferenceServer>>,
    pub(crate) models: Arc<Vec<String>>,
    pub(crate) facts: Facts,
    pub(crate) trace: Trace,
    /// Whether nothing goes wrong in this world, so that nobody may be turned away.
    pub(crate) calm: bool,
}

/// A gateway that runs.
pub(crate) struct Process {
    pub(crate) routes: Routes,
    stop: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
}

impl Process {
    pub(crate) fn start(net: &Net, host: &Host, bench: &Bench, seed: u64) -> Self {
        bench.trace.note(host, "starts");
        net.revive(host);
        let (routes, stop) = (Routes::default(), CancellationToken::new());
        let dialer = net.dialer(host, &"scheduler".into(), CLIENTS);
        let connect = move || {
            let dialer = dialer.clone();
            let connecting = async move { Ok(endpoint().connect_with_connector(dialer).await?) };
            Box::pin(connecting) as futures::future::BoxFuture<'static, _>
        };
        let following = control::subscribe_routes_with(connect, host.to_string(), routes.clone(), stop.clone());
        let mut tasks = vec![tokio::spawn(following)];
        for client in 0..CLIENTS_EACH {
            let rng = Rng::of(seed, &format!("{host}/{client}"));
            tasks.push(tokio::spawn(ask(host.clone(), routes.clone(), bench.clone(), rng)));
        }
        Self { routes, stop, tasks }
    }

    pub(crate) fn die(self) {
        self.stop.cancel();
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// The times and pings that the gateway has over TCP.
fn endpoint() -> Endpoint {
    Endpoint::from_static("http://scheduler")
        .connect_timeout(Duration::from_secs(2))
        .http2_keep_alive_interval(Duration::from_secs(10))
        .keep_alive_timeout(Duration::from_secs(10))
        .keep_alive_while_idle(true)
}

/// Asks one model after the other, for ever.
async fn ask(host: Host, routes: Routes, bench: Bench, mut rng: Rng) {
    loop {
        tokio::time::sleep(Duration::from_millis(rng.between(50, 4000))).await;
        let Some(model) = rng.pick(&bench.models).cloned() else { return };
        let (ticket, takes) = (rng.next(), Duration::from_millis(rng.between(1, 1500)));
        let now = bench.trace.millis();
        let visit = match routes.start_test_request(&model, ticket) {
            Ok(visit) => visit,
            Err(reason) => {
                bench.turned_away(&host, &routes, &model, &reason, now);
                continue;
            }
        };
        let (server, replica) = visit.replica();
        let (place, key) = ((server.to_owned(), replica), (model, visit.version()));
        bench.judge(&host, &place, &key, "is sent to a replica that does not hold it", now);
        let life = bench.servers.get(&place).map(InferenceServer::life);
        tokio::time::sleep(takes).await;
        // A request on a server that died meanwhile was lost with it.
        if life != bench.servers.get(&place).map(InferenceServer::life) {
            continue;
        }
        bench.judge(&host, &place, &key, "was on a replica when it was unloaded there", now);
        drop(visit);
    }
}

impl Bench {
    /// A request is answered by a replica that holds the version for as long as the request lasts.
    fn judge(&self, gateway: &Host, place: &(String, u32), key: &Key, what: &str, since: u64) {
        let Some(server) = self.servers.get(place) else {
            self.trace.violate("routed_only_to_holders", format!("{place:?} is no replica of this world"));
            return;
        };
        if server.fate(key) != Fate::Absent || self.facts.is_disturbed(gateway, since) {
            return;
        }
        let (model, version) = key;
        let what = format!("{gateway}: a request of {model} version {version} {what} ({})", server.host);
        self.trace.violate("routed_only_to_holders", what);
    }

    /// In a world where nothing goes wrong, what was once available stays served.
    fn turned_away(&self, gateway: &Host, routes: &Routes, model: &str, reason: &str, now: u64) {
        if !self.calm || !routes.is_synced() {
            return;
        }
        let facts = self.facts.lock();
        let since = facts.models.get(model).and_then(|m| m.available_since);
        if let Some(since) = since.filter(|_| !facts.gaps_allowed) {
            drop(facts);
            let what = format!(
                "{gateway}: a request of {model} is turned away ({reason}); it was available since {since} ms, now {now}"
            );
            self.trace.violate("served_without_a_break", what);
        }
    }
}
