//! Agent: subscription to the scheduler, load and unload orders, event reports.

use crate::{
    artifact::{Artifacts, Secrets, Source},
    connect::{Connect, PlaintextConnector},
    inventory::{Inventory, Key, LoadPermit},
    model_server::{LoadOrder, Loaded, ModelServer, Observer},
    reporter::Reporter,
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
use gantry_transport::Backoff;
use std::{sync::Arc, time::Duration};
use tokio::{sync::Semaphore, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub struct Config {
    pub server: String,
    pub replica: u32,
    /// The scheduler's agent service, as `http://host:port`.
    pub scheduler: String,
    pub capabilities: Vec<String>,
    /// Memory for models.
    pub memory_bytes: u64,
    /// Additional capacity advertised to the scheduler, in percent.
    pub over_commit: u32,
    /// Advertised inference address.
    pub host: String,
    pub http_port: u16,
    pub grpc_port: u16,
}

pub struct Parts {
    pub connect: Arc<dyn Connect>,
    pub source: Arc<dyn Source>,
    pub observer: Arc<dyn Observer>,
    /// Concurrent fetches and loads.
    pub parallel: usize,
    /// Fetch timeout per model.
    pub fetch_time: Duration,
}

impl Parts {
    pub fn new(connect: Arc<dyn Connect>, source: Arc<dyn Source>, observer: Arc<dyn Observer>) -> Self {
        Self { connect, source, observer, parallel: 8, fetch_time: Duration::from_hours(2) }
    }
}

pub struct Agent {
    config: Config,
    server: Arc<dyn ModelServer>,
    parts: Parts,
    inventory: Inventory,
    reporter: Reporter,
    slots: Semaphore,
    tasks: TaskTracker,
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Agent {
    /// Connects to `config.scheduler` without TLS.
    pub fn new(
        config: Config,
        server: Arc<dyn ModelServer>,
        fetcher: Fetcher,
        secrets: Secrets,
        observer: Arc<dyn Observer>,
    ) -> Arc<Self> {
        let connect = Arc::new(PlaintextConnector::new(config.scheduler.clone()));
        Self::from_parts(
            config,
            server,
            Parts::new(connect, Arc::new(Artifacts { fetcher, secrets }), observer),
        )
    }

    pub fn from_parts(config: Config, server: Arc<dyn ModelServer>, parts: Parts) -> Arc<Self> {
        let slots = Semaphore::new(parts.parallel.max(1));
        Arc::new(Self {
            config,
            server,
            parts,
            inventory: Inventory::default(),
            reporter: Reporter::default(),
            slots,
            tasks: TaskTracker::new(),
        })
    }

    /// Runs until `stop` is cancelled, reconnecting with backoff.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut backoff = Backoff::new(BACKOFF_MIN, BACKOFF_MAX);
        while !stop.is_cancelled() {
            let started = Instant::now();
            let reason = tokio::select! {
                reason = self.session() => reason,
                () = stop.cancelled() => break,
            };
            self.reporter.disconnected();
            if started.elapsed() > BACKOFF_MAX {
                backoff.reset();
            }
            tracing::warn!(server = %self.config.server, replica = self.config.replica, %reason, "not connected to the scheduler");
            tokio::select! {
                () = tokio::time::sleep(backoff.next_delay()) => {}
                () = stop.cancelled() => break,
            }
        }
        self.reporter.disconnected();
        self.tasks.close();
    }

    /// Whether the scheduler has accepted the subscription.
    pub fn is_subscribed(&self) -> bool {
        self.reporter.is_subscribed()
    }

    /// Whether a scheduler has ever accepted a subscription.
    pub fn has_joined(&self) -> bool {
        self.reporter.has_joined()
    }

    /// One subscription; returns why it ended. It ends when the server is lost, so that an unhealthy replica
    /// disconnects.
    async fn session(self: &Arc<Self>) -> String {
        if let Some(loaded) = self.server.wait_ready().await {
            self.inventory.adopt(loaded);
        }
        tokio::select! {
            reason = self.server.wait_lost() => reason,
            () = self.reporter.resync_needed() => "a report was lost".into(),
            ended = self.receive_orders() => ended.err().unwrap_or_else(|| "the scheduler closed the stream".into()),
        }
    }

    async fn receive_orders(self: &Arc<Self>) -> Result<(), String> {
        let message = |status: tonic::Status| status.message().to_owned();
        let channel = self.parts.connect.connect().await?;
        let mut client = AgentServiceClient::new(channel);
        self.reporter.connected(client.clone());
        // No deadline: some schedulers send no headers before the first order. Keepalive detects dead connections.
        let response = client.subscribe(self.subscription()).await.map_err(message)?;
        self.reporter.subscribed(response.metadata());
        let mut orders = response.into_inner();
        while let Some(order) = orders.message().await.map_err(message)? {
            self.handle_order(order);
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

    /// Memory not assigned to a model, including over-commit.
    pub fn memory_free(&self) -> u64 {
        let promised = (self.config.memory_bytes / 100).saturating_mul(u64::from(self.config.over_commit));
        self.config.memory_bytes.saturating_add(promised).saturating_sub(self.inventory.memory())
    }

    /// Orders for different models run concurrently.
    fn handle_order(self: &Arc<Self>, order: ModelOperationMessage) {
        let operation = order.operation();
        let Some(definition) = order.model_version else { return };
        let Some(model) = definition.model.as_ref() else { return };
        let Some(name) = model.meta.as_ref().map(|m| m.name.clone()) else { return };
        let key: Key = (name, definition.version);
        let this = self.clone();
        match operation {
            Operation::LoadModel => {
                let permit = self.inventory.begin(&key, model.clone());
                let autoscaling = order.autoscaling_enabled;
                self.tasks.spawn(async move { this.load(key, definition, autoscaling, permit).await });
            }
            Operation::UnloadModel => {
                self.tasks.spawn(async move { this.unload(key).await });
            }
            Operation::UnknownEvent => {
                tracing::warn!(model = %key.0, "ignoring unknown operation");
            }
        }
    }

    async fn load(&self, key: Key, definition: ModelVersion, autoscaling: bool, permit: Option<LoadPermit>) {
        let Some(permit) = permit else {
            // Repeated order, for example after a reconnect.
            if self.inventory.is_loaded(&key) {
                self.report(&key, Event::Loaded, String::new(), None).await;
            }
            return;
        };
        let started = Instant::now();
        let result = self.fetch_and_load(&key, definition, autoscaling, &permit.cancel).await;
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
            // The unload reports instead.
            Err(_) if permit.cancel.is_cancelled() => {}
            Err(reason) => {
                self.inventory.remove(&key);
                tracing::warn!(model = %name, version, %reason, "failed to load model");
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
        // Fetching can be cancelled at any point, loading cannot.
        let files = tokio::select! {
            files = fetching => files.map_err(|_| {
                format!("files not fetched within {} s", self.parts.fetch_time.as_secs())
            })??,
            () = cancel.cancelled() => return Err("the load was cancelled".into()),
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
        self.reporter.report(&report).await;
    }

    pub(crate) async fn report_scaling(&self, triggers: Vec<ModelScalingTriggerMessage>) {
        self.reporter.report_scaling(triggers).await;
    }

    /// Asks the scheduler to move this replica's models elsewhere.
    pub async fn drain(&self, limit: Duration) -> Result<(), String> {
        let (server_name, replica_idx) = (self.config.server.clone(), self.config.replica);
        self.reporter
            .drain(AgentDrainRequest { server_name, replica_idx }, limit, || self.inventory.is_empty())
            .await
    }
}

/// The server-side name of a model version.
fn internal_name((model, version): &Key) -> String {
    format!("{model}_{version}")
}
