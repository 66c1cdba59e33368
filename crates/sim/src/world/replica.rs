//! A replica: an inference server, and the real agent beside it.

use super::{
    inference::{InferenceServer, NoFiles, Seat},
    scheduler::AGENTS,
};
use crate::{
    net::{Host, Net},
    rng::Rng,
    trace::Trace,
};
use futures::future::BoxFuture;
use gantry_agent::{Agent, Config, Connect, NoopObserver, Parts, scheduler_endpoint};
use std::{sync::Arc, time::Duration};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

/// How long draining may take.
const DRAIN_TIME: Duration = Duration::from_mins(1);

struct Way {
    net: Net,
    from: Host,
    to: Host,
}

impl Connect for Way {
    fn connect(&self) -> BoxFuture<'_, Result<Channel, String>> {
        Box::pin(async {
            let dialer = self.net.dialer(&self.from, &self.to, AGENTS);
            let endpoint = scheduler_endpoint("http://scheduler")?;
            endpoint.connect_with_connector(dialer).await.map_err(|e| e.to_string())
        })
    }
}

/// An agent that runs.
struct Process {
    agent: Arc<Agent>,
    stop: CancellationToken,
    task: JoinHandle<()>,
    dead: CancellationToken,
}

/// One replica of a server.
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
        let rng = Rng::of(seed, &host);
        Self { server, index, host, net, trace, rng, agent: None }
    }

    pub(crate) fn has_agent(&self) -> bool {
        self.agent.is_some()
    }

    /// Starts what is not running.
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
        let seat = Seat {
            server: self.server.clone(),
            dead: dead.clone(),
            noticed_after: Duration::from_millis(self.rng.between(10, 3000)),
        };
        let way = Way { net: self.net.clone(), from: self.host.clone(), to: "scheduler".into() };
        let config = Config {
            server: self.server.plan.name.clone(),
            replica: self.index,
            scheduler: "http://scheduler".into(),
            capabilities: self.server.plan.capabilities.clone(),
            memory_bytes: self.server.plan.memory,
            over_commit: 0,
            host: self.host.to_string(),
            http_port: 80,
            grpc_port: 81,
        };
        let parts = Parts::new(Arc::new(way), Arc::new(NoFiles), Arc::new(NoopObserver));
        let agent = Agent::from_parts(config, Arc::new(seat), parts);
        let stop = CancellationToken::new();
        let task = tokio::spawn(agent.clone().run(stop.clone()));
        self.agent = Some(Process { agent, stop, task, dead });
    }

    /// Only the agent dies.
    pub(crate) fn kill_agent(&mut self, silently: bool) {
        if let Some(process) = self.agent.take() {
            self.trace.note(&self.host, "agent dies");
            process.dead.cancel();
            process.task.abort();
            self.net.kill(&self.host, silently);
        }
    }

    /// The whole replica dies.
    pub(crate) fn kill(&mut self, silently: bool) {
        self.kill_agent(silently);
        self.server.die();
    }

    /// The agent ends in good order, and the server after it.
    pub(crate) fn leave(&mut self) {
        if let Some(process) = self.agent.take() {
            self.trace.note(&self.host, "agent leaves");
            process.stop.cancel();
            process.dead.cancel();
        }
        self.server.die();
    }

    /// Asks for everything to be moved away; says whether it was.
    pub(crate) fn drain(&self) -> impl Future<Output = Result<(), String>> + 'static {
        let agent = self.agent.as_ref().map(|p| p.agent.clone());
        async move {
            match agent {
                Some(agent) => agent.drain(DRAIN_TIME).await,
                None => Err("there is no agent".into()),
            }
        }
    }
}
