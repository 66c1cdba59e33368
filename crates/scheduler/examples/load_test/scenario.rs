//! Scenarios.

use crate::{
    agent, gateway,
    options::{Agent, Options, Subscriber},
    process::Scheduler,
    watch::{ask, percentile, read, states, until},
};
use futures::StreamExt as _;
use gantry_proto::scheduler::{
    LoadModelRequest, MetaData, Model, ModelSpec, model_status::ModelState, scheduler_client::SchedulerClient,
};
use std::{
    collections::BTreeMap,
    fmt,
    time::{Duration, Instant},
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use tonic::transport::Channel;

const STEP_TIMEOUT: Duration = Duration::from_mins(2);

fn model(name: String, uri: String) -> LoadModelRequest {
    let meta = MetaData { name, ..MetaData::default() };
    let spec = ModelSpec {
        uri,
        requirements: vec!["onnx".into()],
        memory_bytes: Some(1 << 20),
        ..ModelSpec::default()
    };
    LoadModelRequest { model: Some(Model { meta: Some(meta), model_spec: Some(spec), ..Model::default() }) }
}

async fn load_all(client: &SchedulerClient<Channel>, models: usize, in_flight: usize) {
    futures::stream::iter(0..models)
        .map(|i| {
            let mut client = client.clone();
            async move { client.load_model(model(format!("m{i}"), format!("s3://models/m{i}"))).await.unwrap() }
        })
        .buffer_unordered(in_flight)
        .for_each(|_| async {})
        .await;
}

async fn within<F: Future>(what: &str, future: F) -> F::Output {
    let done = tokio::time::timeout(STEP_TIMEOUT, future).await;
    done.unwrap_or_else(|_| panic!("{what} did not happen in {} s", STEP_TIMEOUT.as_secs()))
}

pub(crate) struct Measurement {
    models: usize,
    seconds: f64,
    cpu: f64,
    resident: f64,
    status: Vec<Duration>,
}

impl Measurement {
    /// Slowest status request.
    fn slowest_status(&self) -> Duration {
        self.status.iter().copied().max().unwrap_or_default()
    }

    fn cpu_for_each(&self) -> f64 {
        self.cpu / self.models as f64 * 1e6
    }
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut status = self.status.clone();
        let millis = |d: Duration| d.as_secs_f64() * 1000.0;
        write!(
            f,
            "{} models in {:.2} s: {:.0}/s, {:.2} CPU-s ({:.0} µs each), {:.0} MB; status p50 {:.1} ms, p99 {:.1} ms, most {:.1} ms",
            self.models,
            self.seconds,
            self.models as f64 / self.seconds,
            self.cpu,
            self.cpu_for_each(),
            self.resident,
            millis(percentile(&mut status, 50)),
            millis(percentile(&mut status, 99)),
            millis(percentile(&mut status, 100)),
        )
    }
}

/// Loads many models at once and waits for their final state.
pub(crate) async fn burst(options: &Options) -> Measurement {
    let dir = tempfile::tempdir().unwrap();
    let scheduler = Scheduler::start(dir.path());
    let client = SchedulerClient::connect(scheduler.clients.clone()).await.unwrap();
    let mut others = JoinSet::new();
    for speed in options.subscribers.iter().copied().filter(|s| *s != Subscriber::Fast) {
        others.spawn(read(scheduler.clients.clone(), speed));
    }
    if options.agent == Agent::Instant {
        others.spawn(agent::run(scheduler.agents.clone(), Vec::new()));
    }
    if options.gateway {
        let (routed, mut drain) = mpsc::unbounded_channel();
        others.spawn(gateway::run(scheduler.clients.clone(), routed));
        others.spawn(async move { while drain.recv().await.is_some() {} });
    }
    let expected = match options.agent {
        Agent::Instant => ModelState::ModelAvailable,
        Agent::None => ModelState::ScheduleFailed,
    };
    let (there, _) = watch::channel(0);
    let (stop, stopped) = watch::channel(false);
    let asking = tokio::spawn(ask(scheduler.clients.clone(), stopped));
    let all = tokio::spawn(until(scheduler.clients.clone(), expected, options.models, there));
    let (start, cpu) = (Instant::now(), scheduler.cpu_seconds());
    within("loading", load_all(&client, options.models, options.in_flight)).await;
    within("the end state", all).await.unwrap();
    let (seconds, cpu) = (start.elapsed().as_secs_f64(), scheduler.cpu_seconds() - cpu);
    stop.send_replace(true);
    let status = asking.await.unwrap();
    let states = states(&mut client.clone()).await;
    assert_eq!(states.len(), options.models, "every model that was acknowledged is there");
    assert!(states.values().all(|s| *s == expected), "every model is {expected:?}");
    let resident = scheduler.resident_mb();
    others.abort_all();
    Measurement { models: options.models, seconds, cpu, resident, status }
}

/// Every combination of agent, subscribers and concurrency.
pub(crate) async fn matrix(options: &Options) {
    use Subscriber::{Fast, Never, Slow};
    for agent in [Agent::None, Agent::Instant] {
        for in_flight in [1, 8, 64] {
            for readers in [vec![Fast], vec![Fast, Slow], vec![Fast, Never, Never]] {
                let run = Options { in_flight, agent, subscribers: readers.clone(), ..options.clone() };
                let mut slowest: Option<Measurement> = None;
                for _ in 0..options.rounds {
                    let measurement = burst(&run).await;
                    if slowest.as_ref().is_none_or(|s| s.slowest_status() < measurement.slowest_status()) {
                        slowest = Some(measurement);
                    }
                }
                let slowest = slowest.map(|f| f.to_string()).unwrap_or_default();
                println!(
                    "agent {agent:?}, {in_flight} in flight, readers {readers:?}: {} of {} runs reach the final state; the one \
                     with the slowest status: {slowest}",
                    options.rounds, options.rounds
                );
            }
        }
    }
    for _ in 0..options.rounds {
        let _ = restart(options).await;
    }
}

/// Ten bursts of 1,000 models as one measurement: CPU time has a resolution of 10 ms, and one burst takes 80 ms.
async fn few(options: &Options) -> Measurement {
    let options = Options { models: 1_000, ..options.clone() };
    let mut all = burst(&options).await;
    for _ in 1..10 {
        let one = burst(&options).await;
        all.models += one.models;
        all.seconds += one.seconds;
        all.cpu += one.cpu;
        all.resident = all.resident.max(one.resident);
        all.status.extend(one.status);
    }
    all
}

/// Cost per model with few and with many models.
pub(crate) async fn growth(options: &Options) {
    let few = few(options).await;
    let many = burst(&Options { models: 50_000, ..options.clone() }).await;
    println!("{few}");
    println!("{many}");
    println!(
        "a model among 50,000 costs {:.2} times one among 1,000",
        many.cpu_for_each() / few.cpu_for_each()
    );
}

/// Single changes among many models, until a gateway has the route. Returns the p99.
pub(crate) async fn change(options: &Options) -> Duration {
    let dir = tempfile::tempdir().unwrap();
    let scheduler = Scheduler::start(dir.path());
    let mut client = SchedulerClient::connect(scheduler.clients.clone()).await.unwrap();
    let (routed, mut routes) = mpsc::unbounded_channel();
    let mut others = JoinSet::new();
    others.spawn(agent::run(scheduler.agents.clone(), Vec::new()));
    others.spawn(gateway::run(scheduler.clients.clone(), routed));
    let (there, _) = watch::channel(0);
    let all =
        tokio::spawn(until(scheduler.clients.clone(), ModelState::ModelAvailable, options.models, there));
    load_all(&client, options.models, options.in_flight).await;
    within("the end state", all).await.unwrap();
    let mut acknowledged = Vec::new();
    let mut took = Vec::new();
    for i in 0..options.changes {
        while routes.try_recv().is_ok() {}
        let name = format!("m{}", i * 7919 % options.models);
        let start = Instant::now();
        client.load_model(model(name.clone(), format!("s3://models/{name}/{i}"))).await.unwrap();
        acknowledged.push(start.elapsed());
        let at = within("a route", async {
            loop {
                let (model, version, at) = routes.recv().await.expect("the gateway follows");
                if model == name && version > 1 {
                    return at;
                }
            }
        })
        .await;
        took.push(at.duration_since(start));
    }
    let millis = |d: Duration| d.as_secs_f64() * 1000.0;
    for (what, values) in [("acknowledged", &mut acknowledged), ("routed", &mut took)] {
        eprintln!(
            "{} changes among {} models {what}: p50 {:.2} ms, p99 {:.2} ms, most {:.2} ms",
            options.changes,
            options.models,
            millis(percentile(values, 50)),
            millis(percentile(values, 99)),
            millis(percentile(values, 100)),
        );
    }
    others.abort_all();
    percentile(&mut took, 99)
}

/// Kills and restarts the scheduler with many models loaded. Returns the time to the first route, and until every
/// model is available.
pub(crate) async fn restart(options: &Options) -> (Duration, Duration) {
    let dir = tempfile::tempdir().unwrap();
    let scheduler = Scheduler::start(dir.path());
    let client = SchedulerClient::connect(scheduler.clients.clone()).await.unwrap();
    let agent = tokio::spawn(agent::run(scheduler.agents.clone(), Vec::new()));
    let (there, _) = watch::channel(0);
    let all =
        tokio::spawn(until(scheduler.clients.clone(), ModelState::ModelAvailable, options.models, there));
    load_all(&client, options.models, options.in_flight).await;
    within("the end state", all).await.unwrap();
    scheduler.kill();
    agent.abort();
    let start = Instant::now();
    let scheduler = Scheduler::start(dir.path());
    eprintln!("listens again after {:.0} ms", start.elapsed().as_secs_f64() * 1000.0);
    let (routed, mut routes) = mpsc::unbounded_channel();
    let mut others = JoinSet::new();
    others.spawn(gateway::run(scheduler.clients.clone(), routed));
    let (_, _, first) = within("a route", routes.recv()).await.expect("the gateway follows");
    eprintln!("first route after {:.0} ms", first.duration_since(start).as_secs_f64() * 1000.0);
    let loaded = (0..options.models).map(|i| (format!("m{i}"), 1)).collect();
    let joined = Instant::now();
    others.spawn(agent::run(scheduler.agents.clone(), loaded));
    let (there, _) = watch::channel(0);
    let all = until(scheduler.clients.clone(), ModelState::ModelAvailable, options.models, there);
    within("every model is available", all).await;
    let took = start.elapsed();
    eprintln!(
        "all {} available {:.0} ms after the start, {:.0} ms after the agent joined",
        options.models,
        took.as_secs_f64() * 1000.0,
        joined.elapsed().as_secs_f64() * 1000.0
    );
    let mut client = SchedulerClient::connect(scheduler.clients.clone()).await.unwrap();
    let states: BTreeMap<_, _> = states(&mut client).await;
    assert_eq!(states.len(), options.models);
    assert!(states.values().all(|s| *s == ModelState::ModelAvailable), "every model is available");
    others.abort_all();
    (first.duration_since(start), took)
}

/// All values for `cargo xtask bench scheduler`, as one line of JSON.
pub(crate) async fn summary(options: &Options) {
    let few = few(options).await;
    let burst_of = burst(options).await;
    let many = burst(&Options { models: 50_000, ..options.clone() }).await;
    eprintln!("{few}\n{burst_of}\n{many}");
    let routed = change(options).await;
    let (first_route, all) = restart(options).await;
    let millis = |d: Duration| d.as_secs_f64() * 1000.0;
    println!(
        "{{\"models_per_second\":{},\"cpu_seconds\":{},\"resident_mb\":{},\"slowest_status_ms\":{},\"growth\":{},\
         \"routed_p99_ms\":{},\"first_route_ms\":{},\"all_available_ms\":{}}}",
        burst_of.models as f64 / burst_of.seconds,
        burst_of.cpu,
        burst_of.resident,
        millis(burst_of.slowest_status()),
        many.cpu_for_each() / few.cpu_for_each(),
        millis(routed),
        millis(first_route),
        millis(all),
    );
}
