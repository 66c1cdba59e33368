//! Subscribes, carries out orders, reports.

use crate::{
    artifact::{self, Secrets},
    inventory::{Inventory, Key, Ticket},
    server::{LoadOrder, Loaded, ModelServer, Observer},
};
use gantry_artifacts::Fetcher;
use gantry_proto::{
    agent::{
        AgentSubscribeRequest, ModelEventMessage, ModelOperationMessage, ReplicaConfig,
        agent_service_client::AgentServiceClient, model_event_message::Event,
        model_operation_message::Operation,
    },
    scheduler,
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::Semaphore;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::transport::{Channel, Endpoint};

/// Artifacts that are fetched and models that are loaded at the same time.
const PARALLEL: usize = 8;
/// The wait before the first attempt to connect again; it doubles up to the longest.
const FIRST_WAIT: Duration = Duration::from_millis(50);
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// How long a report may take, and how often it is tried while the connection lasts.
const REPORT_TIME: Duration = Duration::from_secs(10);
const REPORT_TRIES: u32 = 3;

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

/// One replica's agent.
pub struct Agent {
    config: Config,
    server: Arc<dyn ModelServer>,
    fetcher: Fetcher,
    secrets: Secrets,
    observer: Arc<dyn Observer>,
    inventory: Inventory,
    slots: Semaphore,
    tasks: TaskTracker,
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Agent {
    /// An agent for a server.
    pub fn new(
        config: Config,
        server: Arc<dyn ModelServer>,
        fetcher: Fetcher,
        secrets: Secrets,
        observer: Arc<dyn Observer>,
    ) -> Arc<Self> {
        Arc::new(Self {
            config,
            server,
            fetcher,
            secrets,
            observer,
            inventory: Inventory::default(),
            slots: Semaphore::new(PARALLEL),
            tasks: TaskTracker::new(),
        })
    }

    /// Works until `stop` is cancelled; reconnects for as long as it takes.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut wait = FIRST_WAIT;
        while !stop.is_cancelled() {
            let before = Instant::now();
            let ended = tokio::select! {
                ended = self.clone().follow() => ended,
                () = stop.cancelled() => break,
            };
            if before.elapsed() > LONGEST_WAIT {
                wait = FIRST_WAIT;
            }
            let reason =
                ended.map_or_else(|e| e.message().to_owned(), |()| "the scheduler ended the stream".into());
            tracing::warn!(server = %self.config.server, replica = self.config.replica, %reason, "not connected to the scheduler");
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = stop.cancelled() => break,
            }
            wait = (wait * 2).min(LONGEST_WAIT);
        }
        self.tasks.close();
    }

    /// One subscription, from its beginning to its end.
    async fn follow(self: Arc<Self>) -> Result<(), tonic::Status> {
        let unreachable = |e: tonic::transport::Error| tonic::Status::unavailable(e.to_string());
        let channel = Endpoint::from_shared(self.config.scheduler.clone())
            .map_err(unreachable)?
            .connect_timeout(Duration::from_secs(5))
            .http2_keep_alive_interval(Duration::from_secs(30))
            .keep_alive_timeout(Duration::from_secs(5))
            .keep_alive_while_idle(true)
            .connect()
            .await
            .map_err(unreachable)?;
        let mut client = AgentServiceClient::new(channel);
        let mut orders = client.subscribe(self.subscription()).await?.into_inner();
        while let Some(order) = orders.message().await? {
            self.obey(order, &client);
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

    fn memory_free(&self) -> u64 {
        let promised = (self.config.memory_bytes / 100).saturating_mul(u64::from(self.config.over_commit));
        self.config.memory_bytes.saturating_add(promised).saturating_sub(self.inventory.memory())
    }

    /// Starts the work on an order; orders for different models do not wait for each other.
    fn obey(self: &Arc<Self>, order: ModelOperationMessage, client: &AgentServiceClient<Channel>) {
        let operation = order.operation();
        let Some(version) = order.model_version else { return };
        let Some(model) = version.model else { return };
        let Some(name) = model.meta.as_ref().map(|m| m.name.clone()) else { return };
        let key: Key = (name, version.version);
        let (this, client) = (self.clone(), client.clone());
        match operation {
            Operation::LoadModel => {
                let ticket = self.inventory.begin(&key, model.clone());
                self.tasks.spawn(async move { this.load(key, model, ticket, client).await });
            }
            Operation::UnloadModel => {
                self.tasks.spawn(async move { this.unload(key, client).await });
            }
            Operation::UnknownEvent => {
                tracing::warn!(model = %key.0, "an order of an unknown kind is passed over");
            }
        }
    }

    async fn load(
        &self,
        key: Key,
        model: scheduler::Model,
        ticket: Option<Ticket>,
        client: AgentServiceClient<Channel>,
    ) {
        let Some(ticket) = ticket else {
            // The order came again, after a break in the connection perhaps.
            if self.inventory.is_loaded(&key) {
                self.report(&key, Event::Loaded, String::new(), client).await;
            }
            return;
        };
        let started = Instant::now();
        let result = self.fetch_and_load(&key, &model, &ticket.cancel).await;
        let (name, version) = (&key.0, key.1);
        self.observer.finished(name, version, result.as_ref().map_err(String::as_str), started.elapsed());
        match result {
            Ok(loaded) => {
                tracing::info!(model = %name, version, engine = %loaded.engine, "model loaded");
                self.report(&key, Event::Loaded, String::new(), client).await;
            }
            // Whoever cancelled reports the unloading instead.
            Err(_) if ticket.cancel.is_cancelled() => {}
            Err(reason) => {
                self.inventory.remove(&key);
                self.report(&key, Event::LoadFailed, reason, client).await;
            }
        }
    }

    async fn fetch_and_load(
        &self,
        key: &Key,
        model: &scheduler::Model,
        cancel: &CancellationToken,
    ) -> Result<Loaded, String> {
        let _slot = self.slots.acquire().await.map_err(|_| "the agent is stopping".to_owned())?;
        let Some(spec) = &model.model_spec else { return Err("the order has no modelSpec".into()) };
        let progress = self.observer.fetching(&key.0, key.1);
        // Fetching can be broken off at any point; loading cannot, so it is not begun in vain.
        let files = tokio::select! {
            files = artifact::fetch(&self.fetcher, &self.secrets, spec, &*progress) => files?,
            () = cancel.cancelled() => return Err("it is not wanted any more".into()),
        };
        let order = LoadOrder {
            name: internal_name(key),
            directory: files.model_dir(),
            parameters: spec.parameters.iter().map(|p| (p.name.clone(), p.value.clone())).collect(),
        };
        let loaded = self.server.load(order).await?;
        self.inventory.loaded(key, loaded.memory_bytes, files);
        Ok(loaded)
    }

    async fn unload(&self, key: Key, client: AgentServiceClient<Channel>) {
        self.inventory.stop_loading(&key).await;
        match self.server.unload(internal_name(&key)).await {
            Ok(()) => {
                self.inventory.remove(&key);
                tracing::info!(model = %key.0, version = key.1, "model unloaded");
                self.report(&key, Event::Unloaded, String::new(), client).await;
            }
            Err(reason) => self.report(&key, Event::UnloadFailed, reason, client).await,
        }
    }

    /// Tells the scheduler. If that cannot be done, the connection is broken, and the next subscription tells.
    async fn report(
        &self,
        key: &Key,
        event: Event,
        message: String,
        mut client: AgentServiceClient<Channel>,
    ) {
        let report = ModelEventMessage {
            server_name: self.config.server.clone(),
            replica_idx: self.config.replica,
            model_name: key.0.clone(),
            model_version: key.1,
            event: event as i32,
            message,
            available_memory_bytes: self.memory_free(),
            runtime_info: None,
        };
        for _ in 0..REPORT_TRIES {
            let mut request = tonic::Request::new(report.clone());
            request.set_timeout(REPORT_TIME);
            match client.agent_event(request).await {
                Ok(_) => return,
                Err(error) => {
                    tracing::warn!(model = %key.0, version = key.1, %error, "the scheduler could not be told");
                    tokio::time::sleep(FIRST_WAIT).await;
                }
            }
        }
    }
}

/// The name under which a server knows a model version.
fn internal_name((model, version): &Key) -> String {
    format!("{model}_{version}")
}
