//! Subscribes, carries out orders, reports.

use crate::{
    artifact::{Artifacts, Secrets, Source},
    connect::{Connect, Plain},
    inventory::{Inventory, Key, Ticket},
    link::Link,
    server::{LoadOrder, Loaded, ModelServer, Observer},
};
use gantry_artifacts::Fetcher;
use gantry_proto::{
    agent::{
        AgentDrainRequest, AgentSubscribeRequest, ModelEventMessage, ModelOperationMessage,
        ModelScalingTriggerMessage, ModelVersion, ReplicaConfig, agent_service_client::AgentServiceClient,
        model_event_message::Event, model_operation_message::Operation,
    },
    scheduler,
};
use std::{sync::Arc, time::Duration};
use tokio::{sync::Semaphore, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// The wait before the first attempt to connect again; it doubles up to the longest.
const FIRST_WAIT: Duration = Duration::from_millis(50);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Which replica this agent looks after, and what it offers.
#[derive(Clone, Debug)]
pub struct Config {
    /// The server's name.
    pub server: String,
    /// The replica's index, from 0.
    pub replica: u32,
    /// The scheduler's agent service, as `http://host:port`.
    pub scheduler: String,
    /// What the server can run.
    pub capabilities: Vec<String>,
    /// Memory for models.
    pub memory_bytes: u64,
    /// How much more than its memory it promises, in percent.
    pub over_commit: u32,
    /// Where the server takes requests.
    pub host: String,
    /// Its port for REST.
    pub http_port: u16,
    /// Its port for gRPC.
    pub grpc_port: u16,
}

/// What an agent works with.
pub struct Parts {
    /// The way to the scheduler.
    pub connect: Arc<dyn Connect>,
    /// Where models' files come from.
    pub source: Arc<dyn Source>,
    /// Who watches.
    pub observer: Arc<dyn Observer>,
    /// How many artifacts are fetched and models loaded at the same time.
    pub parallel: usize,
    /// How long the files of one model may take to arrive.
    pub fetch_time: Duration,
}

impl Parts {
    /// These parts, with the usual limits.
    pub fn new(connect: Arc<dyn Connect>, source: Arc<dyn Source>, observer: Arc<dyn Observer>) -> Self {
        Self { connect, source, observer, parallel: 8, fetch_time: Duration::from_hours(2) }
    }
}

/// One replica's agent.
pub struct Agent {
    config: Config,
    server: Arc<dyn ModelServer>,
    parts: Parts,
    inventory: Inventory,
    link: Link,
    slots: Semaphore,
    tasks: TaskTracker,
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Agent {
    /// An agent for a server, which reaches the scheduler at `config.scheduler` without TLS.
    pub fn new(
        config: Config,
        server: Arc<dyn ModelServer>,
        fetcher: Fetcher,
        secrets: Secrets,
        observer: Arc<dyn Observer>,
    ) -> Arc<Self> {
        let connect = Arc::new(Plain::new(config.scheduler.clone()));
        Self::assemble(
            config,
            server,
            Parts::new(connect, Arc::new(Artifacts { fetcher, secrets }), observer),
        )
    }

    /// An agent for a server, made of these parts.
    pub fn assemble(config: Config, server: Arc<dyn ModelServer>, parts: Parts) -> Arc<Self> {
        let slots = Semaphore::new(parts.parallel.max(1));
        Arc::new(Self {
            config,
            server,
            parts,
            inventory: Inventory::default(),
            link: Link::default(),
            slots,
            tasks: TaskTracker::new(),
        })
    }

    /// Works until `stop` is cancelled; reconnects for as long as it takes.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut wait = FIRST_WAIT;
        while !stop.is_cancelled() {
            let before = Instant::now();
            let reason = tokio::select! {
                reason = self.session() => reason,
                () = stop.cancelled() => break,
            };
            self.link.ended();
            if before.elapsed() > LONGEST_WAIT {
                wait = FIRST_WAIT;
            }
            tracing::warn!(server = %self.config.server, replica = self.config.replica, %reason, "not connected to the scheduler");
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = stop.cancelled() => break,
            }
            wait = (wait * 2).min(LONGEST_WAIT);
        }
        self.link.ended();
        self.tasks.close();
    }

    /// Whether the scheduler has taken this agent's subscription.
    pub fn is_subscribed(&self) -> bool {
        self.link.is_subscribed()
    }

    /// Whether a scheduler has ever taken this agent's subscription.
    pub fn has_joined(&self) -> bool {
        self.link.has_joined()
    }

    /// One subscription, from its beginning to its end; says why it ended. It lasts no longer than the server does:
    /// a replica that cannot answer is better lost than believed.
    async fn session(self: &Arc<Self>) -> String {
        if let Some(held) = self.server.settle().await {
            self.inventory.adopt(held);
        }
        tokio::select! {
            reason = self.server.lost() => reason,
            () = self.link.broken() => "a report was lost".into(),
            ended = self.follow() => ended.err().unwrap_or_else(|| "the scheduler ended the stream".into()),
        }
    }

    async fn follow(self: &Arc<Self>) -> Result<(), String> {
        let said = |status: tonic::Status| status.message().to_owned();
        let channel = self.parts.connect.connect().await?;
        let mut client = AgentServiceClient::new(channel);
        self.link.connected(client.clone());
        // No deadline: some schedulers say nothing before their first order. Pings find out whether it lives.
        let answer = client.subscribe(self.subscription()).await.map_err(said)?;
        self.link.subscribed(answer.metadata());
        let mut orders = answer.into_inner();
        while let Some(order) = orders.message().await.map_err(said)? {
            self.obey(order);
        }
        Ok(())
    }

    fn subscription(&self) -> AgentSubscribeRequest {
        let config = &self.config;
        AgentSubscribeRequest {
            server_name: config.server.clone(),
            shared: true,
            replica_idx: config.replica,
            replica_config: Some(ReplicaConfig {
                inference_svc: config.host.clone(),
                inference_http_port: i32::from(config.http_port),
                inference_grpc_port: i32::from(config.grpc_port),
                memory_bytes: config.memory_bytes,
                capabilities: config.capabilities.clone(),
                over_commit_percentage: config.over_commit,
            }),
            loaded_models: self.inventory.report(),
            available_memory_bytes: self.memory_free(),
        }
    }

    /// Memory that is not promised to a model yet.
    pub fn memory_free(&self) -> u64 {
        let promised = (self.config.memory_bytes / 100).saturating_mul(u64::from(self.config.over_commit));
        self.config.memory_bytes.saturating_add(promised).saturating_sub(self.inventory.memory())
    }

    /// Starts the work on an order; orders for different models do not wait for each other.
    fn obey(self: &Arc<Self>, order: ModelOperationMessage) {
        let operation = order.operation();
        let Some(definition) = order.model_version else { return };
        let Some(model) = definition.model.as_ref() else { return };
        let Some(name) = model.meta.as_ref().map(|m| m.name.clone()) else { return };
        let key: Key = (name, definition.version);
        let this = self.clone();
        match operation {
            Operation::LoadModel => {
                let ticket = self.inventory.begin(&key, model.clone());
                let autoscaling = order.autoscaling_enabled;
                self.tasks.spawn(async move { this.load(key, definition, autoscaling, ticket).await });
            }
            Operation::UnloadModel => {
                self.tasks.spawn(async move { this.unload(key).await });
            }
            Operation::UnknownEvent => {
                tracing::warn!(model = %key.0, "an order of an unknown kind is passed over");
            }
        }
    }

    async fn load(&self, key: Key, definition: ModelVersion, autoscaling: bool, ticket: Option<Ticket>) {
        let Some(ticket) = ticket else {
            // The order came again, after a break in the connection perhaps.
            if self.inventory.is_loaded(&key) {
                self.report(&key, Event::Loaded, String::new(), None).await;
            }
            return;
        };
        let started = Instant::now();
        let result = self.fetch_and_load(&key, definition, autoscaling, &ticket.cancel).await;
        let (name, version) = (&key.0, key.1);
        self.parts.observer.finished(
            name,
            version,
            result.as_ref().map_err(String::as_str),
            started.elapsed(),
        );
        match result {
            Ok(loaded) => {
                tracing::info!(model = %name, version, engine = %loaded.engine, "model loaded");
                self.report(&key, Event::Loaded, String::new(), loaded.runtime_info).await;
            }
            // Whoever cancelled reports the unloading instead.
            Err(_) if ticket.cancel.is_cancelled() => {}
            Err(reason) => {
                self.inventory.remove(&key);
                tracing::warn!(model = %name, version, %reason, "model not loaded");
                self.report(&key, Event::LoadFailed, reason, None).await;
            }
        }
    }

    async fn fetch_and_load(
        &self,
        key: &Key,
        definition: ModelVersion,
        autoscaling: bool,
        cancel: &CancellationToken,
    ) -> Result<Loaded, String> {
        let _slot = self.slots.acquire().await.map_err(|_| "the agent is stopping".to_owned())?;
        let spec = definition.model.as_ref().and_then(|m| m.model_spec.clone());
        let Some(spec) = spec else { return Err("the order has no modelSpec".into()) };
        let progress = self.parts.observer.fetching(&key.0, key.1);
        let fetching =
            tokio::time::timeout(self.parts.fetch_time, self.parts.source.fetch(&spec, &*progress));
        // Fetching can be broken off at any point; loading cannot, so it is not begun in vain.
        let files = tokio::select! {
            files = fetching => files.map_err(|_| {
                format!("its files did not arrive within {} s", self.parts.fetch_time.as_secs())
            })??,
            () = cancel.cancelled() => return Err("it is not wanted any more".into()),
        };
        let order = LoadOrder {
            name: internal_name(key),
            directory: files.model_dir.clone(),
            root: files.root.clone(),
            parameters: spec.parameters.iter().map(|p| (p.name.clone(), p.value.clone())).collect(),
            definition,
            autoscaling,
        };
        let loaded = self.server.load(order).await?;
        let kept = self.server.needs_files().then_some(files);
        self.inventory.loaded(key, loaded.memory_bytes, kept);
        Ok(loaded)
    }

    async fn unload(&self, key: Key) {
        self.inventory.stop_loading(&key).await;
        match self.server.unload(internal_name(&key)).await {
            Ok(()) => {
                self.inventory.remove(&key);
                tracing::info!(model = %key.0, version = key.1, "model unloaded");
                self.report(&key, Event::Unloaded, String::new(), None).await;
            }
            Err(reason) => self.report(&key, Event::UnloadFailed, reason, None).await,
        }
    }

    async fn report(
        &self,
        key: &Key,
        event: Event,
        message: String,
        runtime_info: Option<scheduler::ModelRuntimeInfo>,
    ) {
        let report = ModelEventMessage {
            server_name: self.config.server.clone(),
            replica_idx: self.config.replica,
            model_name: key.0.clone(),
            model_version: key.1,
            event: event as i32,
            message,
            available_memory_bytes: self.memory_free(),
            runtime_info,
        };
        self.link.report(&report).await;
    }

    /// Tells the scheduler which models have too much or too little to do.
    pub(crate) async fn tell_load(&self, triggers: Vec<ModelScalingTriggerMessage>) {
        self.link.tell_load(triggers).await;
    }

    /// Asks the scheduler to move this replica's models elsewhere; returns when it has, or why it has not.
    pub async fn drain(&self, limit: Duration) -> Result<(), String> {
        let (server_name, replica_idx) = (self.config.server.clone(), self.config.replica);
        self.link
            .drain(AgentDrainRequest { server_name, replica_idx }, limit, || self.inventory.is_empty())
            .await
    }
}

/// The name under which a server knows a model version.
fn internal_name((model, version): &Key) -> String {
    format!("{model}_{version}")
}
