//! A replica: a simulated inference server and the real agent.

use super::{
    inference::{AgentBackend, InferenceServer, NoFiles},
    scheduler::AGENTS,
};
use crate::{
    net::{Host, Net},
    rng,
    trace::Trace,
};
use fastrand::Rng;
use futures::future::BoxFuture;
use gantry_agent::{Agent, Config, Connect, NoopObserver, Parts, scheduler_endpoint};
use std::{sync::Arc, time::Duration};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

const DRAIN_TIMEOUT: Duration = Duration::from_mins(1);

struct SchedulerDialer {
    net: Net,
    from: Host,
    to: Host,
}

impl Connect for SchedulerDialer {
    fn connect(&self) -> BoxFuture<'_, Result<Channel, String>> {
        Box::pin(async {
            let dialer = self.net.dialer(&self.from, &self.to, AGENTS);
            let endpoint = scheduler_endpoint("http://scheduler")?;
            endpoint.connect_with_connector(dialer).await.map_err(|e| e.to_string())
        })
    }
}

struct Process {
    agent: Arc<Agent>,
    stop: CancellationToken,
    task: JoinHandle<()>,
    dead: CancellationToken,
}

pub(crate) struct Replica {
    pub(crate) server: InferenceServer,
    pub(crate) index: u32,
    pub(crate) host: Host,
    net: Net,
    trace: Trace,
    rng: Rng,
    agent: Option<Process>,
}

impl Replica {
    pub(crate) fn new(server: InferenceServer, index: u32, net: Net, trace: Trace, seed: u64) -> Self {
        let host = server.host.clone();
        let rng = rng::seeded(seed, &host);
        Self { server, index, host, net, trace, rng, agent: None }
    }

    pub(crate) fn has_agent(&self) -> bool {
        self.agent.is_some()
    }

    /// Starts server and agent, unless they run.
    pub(crate) fn start(&mut self) {
        if !self.server.is_up() {
            self.server.start();
        }
        if self.agent.is_some() {
            return;
        }
        self.trace.note(&self.host, "agent starts");
        self.net.revive(&self.host);
        let dead = CancellationToken::new();
        let backend = AgentBackend {
            server: self.server.clone(),
            dead: dead.clone(),
            detection_delay: Duration::from_millis(self.rng.u64(10..=3000)),
        };
        let dialer =
            SchedulerDialer { net: self.net.clone(), from: self.host.clone(), to: "scheduler".into() };
        let config = Config {
            server: self.server.scenario.name.clone(),
            replica: self.index,
            scheduler: "http://scheduler".into(),
            capabilities: self.server.scenario.capabilities.clone(),
            memory_bytes: self.server.scenario.memory,
            over_commit: 0,
            host: self.host.to_string(),
            http_port: 80,
            grpc_port: 81,
        };
        let parts = Parts::new(Arc::new(dialer), Arc::new(NoFiles), Arc::new(NoopObserver));
        let agent = Agent::from_parts(config, Arc::new(backend), parts);
        let stop = CancellationToken::new();
        let task = tokio::spawn(agent.clone().run(stop.clone()));
        self.agent = Some(Process { agent, stop, task, dead });
    }

    pub(crate) fn kill_agent(&mut self, silent: bool) {
        if let Some(process) = self.agent.take() {
            self.trace.note(&self.host, "agent crashes");
            process.dead.cancel();
            process.task.abort();
            self.net.kill(&self.host, silent);
        }
    }

    pub(crate) fn kill(&mut self, silent: bool) {
        self.kill_agent(silent);
        self.server.crash();
    }

    /// Shuts down the agent, then the server.
    pub(crate) fn stop(&mut self) {
        if let Some(process) = self.agent.take() {
            self.trace.note(&self.host, "agent stops");
            process.stop.cancel();
            process.dead.cancel();
        }
        self.server.crash();
    }

    /// Requests that all models move to other replicas.
    pub(crate) fn drain(&self) -> impl Future<Output = Result<(), String>> + 'static {
        let agent = self.agent.as_ref().map(|p| p.agent.clone());
        async move {
            match agent {
                Some(agent) => agent.drain(DRAIN_TIMEOUT).await,
                None => Err("the agent is not running".into()),
            }
        }
    }
}
