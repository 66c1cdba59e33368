//! Agent: subscription to the scheduler, load and unload orders, event reports.

use crate::{
    artifact::{Artifacts, Files, Secrets, Source},
    connect::{Connect, PlaintextConnector},
    inventory::{Begin, Inventory, Key},
    model_server::{LoadError, LoadOrder, Loaded, ModelServer, Observer},
    reporter::Reporter,
    retained::RetainedFiles,
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
    /// Files of loads that failed for a transient reason.
    retained: RetainedFiles,
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
            retained: RetainedFiles::default(),
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
            () = self.reporter.resync_needed() => "a new subscription is needed".into(),
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
                let begun = self.inventory.begin(&key, model.clone());
                let autoscaling = order.autoscaling_enabled;
                self.tasks.spawn(async move { this.load(key, definition, autoscaling, begun).await });
            }
            Operation::UnloadModel => {
                self.tasks.spawn(async move { this.unload(key).await });
            }
            Operation::UnknownEvent => {
                tracing::warn!(model = %key.0, "ignoring unknown operation");
            }
        }
    }

    async fn load(&self, key: Key, definition: ModelVersion, autoscaling: bool, begun: Begin) {
        let begun = match begun {
            Begin::Other => match self.replace(&key, &definition).await {
                Ok(begun) => begun,
                Err(reason) => return self.report(&key, Event::LoadFailed, reason, None, false).await,
            },
            begun => begun,
        };
        let Begin::Load(permit) = begun else {
            // Repeated order, for example after a reconnect.
            if self.inventory.is_loaded(&key) {
                self.report(&key, Event::Loaded, String::new(), None, false).await;
            }
            return;
        };
        let started = Instant::now();
        let result = self.fetch_and_load(&key, definition, autoscaling, &permit.cancel).await;
        let (name, version) = (&key.0, key.1);
        self.parts.observer.finished(
            name,
            version,
            result.as_ref().map_err(|e| e.message.as_str()),
            started.elapsed(),
        );
        match result {
            Ok(loaded) => {
                tracing::info!(model = %name, version, engine = %loaded.engine, "model loaded");
                self.report(&key, Event::Loaded, String::new(), loaded.runtime_info, false).await;
            }
            // The unload reports instead.
            Err(_) if permit.cancel.is_cancelled() => {}
            Err(error) => {
                self.inventory.remove(&key);
                tracing::warn!(
                    model = %name, version, reason = %error, permanent = error.permanent, "failed to load model"
                );
                self.report(&key, Event::LoadFailed, error.message, None, error.permanent).await;
            }
        }
    }

    /// Unloads another content of the same name and version, then begins to load.
    async fn replace(&self, key: &Key, definition: &ModelVersion) -> Result<Begin, String> {
        tracing::info!(model = %key.0, version = key.1, "replacing another content of the same version");
        self.inventory.stop_loading(key).await;
        self.server.unload(internal_name(key)).await?;
        self.inventory.remove(key);
        Ok(self.inventory.begin(key, definition.model.clone().unwrap_or_default()))
    }

    async fn fetch_and_load(
        &self,
        key: &Key,
        definition: ModelVersion,
        autoscaling: bool,
        cancel: &CancellationToken,
    ) -> Result<Loaded, LoadError> {
        let cancelled = || LoadError::transient("the load was cancelled");
        // A queued load can be cancelled: its unload must not wait for the downloads before it.
        let _slot = tokio::select! {
            slot = self.slots.acquire() => slot.map_err(|_| LoadError::transient("the agent is stopping"))?,
            () = cancel.cancelled() => return Err(cancelled()),
        };
        let spec = definition.model.as_ref().and_then(|m| m.model_spec.clone());
        let Some(spec) = spec else { return Err(LoadError::permanent("the order has no modelSpec")) };
        // Fetching can be cancelled at any point, loading cannot.
        let files = if let Some(files) = self.retained.take(key, &spec) {
            files
        } else {
            tokio::select! {
                files = self.fetch(key, &spec) => files?,
                () = cancel.cancelled() => return Err(cancelled()),
            }
        };
        let order = LoadOrder {
            name: internal_name(key),
            directory: files.model_dir.clone(),
            root: files.root.clone(),
            parameters: spec.parameters.iter().map(|p| (p.name.clone(), p.value.clone())).collect(),
            definition,
            autoscaling,
        };
        match self.server.load(order).await {
            Ok(loaded) => {
                let kept = self.server.needs_files().then_some(files);
                self.inventory.loaded(key, loaded.memory_bytes, kept);
                Ok(loaded)
            }
            Err(error) => {
                // The retry needs no second download.
                if !error.permanent {
                    self.retained.put(key, spec, files);
                }
                Err(error)
            }
        }
    }

    async fn fetch(&self, key: &Key, spec: &scheduler::ModelSpec) -> Result<Files, LoadError> {
        let progress = self.parts.observer.fetching(&key.0, key.1);
        let limit = self.parts.fetch_time;
        match tokio::time::timeout(limit, self.parts.source.fetch(spec, &*progress)).await {
            Ok(fetched) => fetched,
            Err(_) => Err(LoadError::transient(format!("files not fetched within {} s", limit.as_secs()))),
        }
    }

    async fn unload(&self, key: Key) {
        self.inventory.stop_loading(&key).await;
        self.retained.remove(&key);
        match self.server.unload(internal_name(&key)).await {
            Ok(()) => {
                self.inventory.remove(&key);
                tracing::info!(model = %key.0, version = key.1, "model unloaded");
                self.report(&key, Event::Unloaded, String::new(), None, false).await;
            }
            Err(reason) => self.report(&key, Event::UnloadFailed, reason, None, false).await,
        }
    }

    async fn report(
        &self,
        key: &Key,
        event: Event,
        message: String,
        runtime_info: Option<scheduler::ModelRuntimeInfo>,
        permanent: bool,
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
        self.reporter.report(&report, permanent).await;
    }

    pub(crate) async fn report_scaling(&self, triggers: Vec<ModelScalingTriggerMessage>) {
        self.reporter.report_scaling(triggers).await;
    }

    /// Subscribes again, which ends a drain on the scheduler's side.
    pub(crate) fn resubscribe(&self) {
        self.reporter.resync();
    }

    /// Models that are loaded or being loaded.
    pub(crate) fn models(&self) -> usize {
        self.inventory.len()
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
