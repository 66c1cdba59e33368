//! Starts the components in order, prints their progress, and stops them in order.

use crate::{
    Args,
    applied_sources::AppliedSources,
    bootstrap::{
        access::Access,
        admin_dashboard::AdminDashboard,
        admin_server::{self, AdminServer, stuck_reason},
        auth::with_credential,
        listen::bind,
        log::{self, LogBuffer},
        notifications::Notifier,
        paths, signal, trace,
    },
    builtin_server::{self, BuiltinServer},
    console::Console,
    curl_example,
    error::{CommandError, Exit},
    manifest_watcher::{Applied, ChangeEvent, ManifestWatcher},
    onnx_worker, python_models,
    scheduler_client::FileClient,
    servers::{self, DesiredServers, Report, Supervisor},
    sources::{DesiredState, Sources},
    stats,
    status_stream::{Key, Outcome, StatusStream},
};
use gantry_agent::{Agent, Parts, PlaintextConnector};
use gantry_api::{INFERENCE_SERVICE, Kind, Object};
use gantry_gateway::{Gateway, control};
use gantry_proto::scheduler::scheduler_client::SchedulerClient;
use gantry_runtime::Runtime;
use gantry_store::Store;
use prometheus_client::registry::Registry;
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::{
    Code,
    transport::{Channel, Endpoint},
};

/// Server name of the built-in runtime.
const BUILTIN: &str = "builtin";
const ROUTES_TIMEOUT: Duration = Duration::from_secs(10);
/// After this the endpoints are printed even if models are still loading.
const READY_TIMEOUT: Duration = Duration::from_secs(10);
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(35);

/// The running components and the means to stop them.
struct Stack {
    console: Arc<Console>,
    runtime: Arc<Runtime>,
    scheduler: gantry_scheduler::Running,
    access: Access,
    channel: Channel,
    routes: gantry_gateway::Routes,
    inference: SocketAddr,
    admin: SocketAddr,
    /// Name and address of each TLS listener.
    tls_listeners: Vec<(&'static str, SocketAddr)>,
    tracer: gantry_trace::Tracer,
    auth_required: bool,
    ready: Arc<AtomicBool>,
    gateway: JoinHandle<()>,
    stop_gateway: CancellationToken,
    stop_rest: CancellationToken,
    desired_servers: DesiredServers,
    supervisor: JoinHandle<()>,
    stop_supervisor: CancellationToken,
}

/// Runs until a termination signal.
pub(crate) async fn run(args: &Args, sources: Sources, desired: DesiredState) -> Result<(), CommandError> {
    let started = Instant::now();
    // Installed first: a signal during the start shuts down gracefully too.
    let stop = signal::shutdown_token();
    let state_dir = paths::state_dir(args.state_dir.as_deref())?;
    let store = Store::open(&state_dir).map_err(|e| failed(&e))?;
    let logs = log::start(&args.log, Some(&state_dir.join("gantry.log")))?;
    let console = Console::new();
    console.print(&format!("gantry {} · state in {}", env!("CARGO_PKG_VERSION"), paths::display(&state_dir)));
    console.print("");
    console.print_unserved(&desired.unserved);
    let stack = Stack::start(args, store, &state_dir, logs, console, &desired).await?;
    let outcome = stack.serve(args, sources, desired, &state_dir, started, &stop).await;
    stack.shut_down().await;
    outcome
}

fn failed(error: &dyn std::fmt::Display) -> CommandError {
    CommandError::failed(error.to_string())
}

const fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Model => "model",
        Kind::Server => "server",
        Kind::Pipeline => "pipeline",
        Kind::Experiment => "experiment",
        Kind::RolloutPolicy => "rolloutpolicy",
    }
}

/// The address for clients of a listener that may be bound to all addresses.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(crate::bootstrap::listen::loopback(address.ip()));
    }
    address
}

impl Stack {
    async fn start(
        args: &Args,
        store: Store,
        state_dir: &Path,
        logs: LogBuffer,
        console: Arc<Console>,
        desired: &DesiredState,
    ) -> Result<Self, CommandError> {
        let tracer = args.trace.start("gantry-gateway")?;
        let tls = args.listen.tls()?;
        let control_host = args.listen.standalone_plaintext_host(args.host);
        // All ports are bound before any component reports success.
        let gateway = Gateway::bind(gantry_gateway::Config {
            listen: SocketAddr::new(args.host, args.inference_port),
            max_body: args.requests.max_body,
            max_in_flight: args.requests.max_in_flight,
            max_memory: args.request_memory.bytes(),
            request_timeout: Duration::from_secs(args.requests.request_timeout),
            auth: args.auth.open(args.host)?,
            allow_repository_changes: args.allow_repository_changes,
            ingress_domain: args.ingress_domain.clone(),
            keep_pipeline_payloads: args.keep_pipeline_payloads,
            tracer: tracer.clone(),
            ..gantry_gateway::Config::default()
        })
        .map_err(|e| failed(&e))?;
        let (admin_listener, admin) =
            bind("the admin server", control_host, args.admin_port, "--admin-port").await?;
        let access = args.access.start()?;
        let mut scheduler = gantry_scheduler::start_audited(
            gantry_scheduler::Config::new(store),
            access.guard().clone(),
            SocketAddr::new(control_host, args.scheduler_port),
            SocketAddr::new(control_host, args.agent_port),
        )
        .await
        .map_err(|e| failed(&e))?;
        let mut tls_listeners = Vec::new();
        if let Some(tls) = tls {
            let listen = &args.listen;
            let (clients, clients_at) =
                bind("the scheduler", args.host, listen.scheduler_mtls_port, "--scheduler-mtls-port").await?;
            let (agents, agents_at) =
                bind("the scheduler's agent API", args.host, listen.agent_mtls_port, "--agent-mtls-port")
                    .await?;
            let trust = access.trust(Some(&tls));
            scheduler
                .serve_clients(trust, gantry_tls::incoming(clients, Some(tls.clone())))
                .and_then(|()| scheduler.serve_agents(trust, gantry_tls::incoming(agents, Some(tls))))
                .map_err(|e| failed(&e))?;
            tls_listeners = vec![("scheduler", clients_at), ("agents", agents_at)];
        }
        let endpoint = Endpoint::from_shared(format!("http://{}", reachable(scheduler.clients)))
            .map_err(|e| failed(&e))?;
        let channel = endpoint.connect().await.map_err(|e| failed(&e))?;

        let limits = gantry_oip::Limits { body: args.requests.max_body, ..gantry_oip::Limits::default() };
        let mut runtime_config = gantry_runtime::Config { limits, ..gantry_runtime::Config::default() };
        runtime_config.tracer = tracer.of_part("gantry-runtime");
        runtime_config.onnx_worker = onnx_worker::command();
        runtime_config.python = args.allow_python.then(python_models::environments).transpose()?;
        runtime_config.threads = args.threads.unwrap_or(runtime_config.threads);
        let runtime = Arc::new(Runtime::new(runtime_config).map_err(|e| failed(&e))?);

        let mut registry = Registry::default();
        gateway.register_metrics(&mut registry);
        scheduler.scheduler().register_metrics(&mut registry);
        access.register_metrics(&mut registry);
        let notifier = Notifier::new(&args.artifacts.allow_net, true)?;
        notifier.register_metrics(&mut registry);
        tracer.register_metrics(&mut registry);
        gateway.register_local(BUILTIN, 0, runtime.clone());
        gateway.set_control(Arc::new(control::SchedulerControl::new(channel.clone())));
        let routes = gateway.routes();
        let inference = gateway.local_addr();
        let stop_gateway = CancellationToken::new();
        let consumers = args.kafka.start(&gateway, &mut registry, &stop_gateway)?;
        let stop_rest = CancellationToken::new();
        notifier.start(scheduler.scheduler(), stop_rest.clone());
        // Constant across restarts: the scheduler waits for known gateways, and this one reconnects at once.
        let gateway_name = "up".to_owned();
        tokio::spawn(control::report_demand(
            channel.clone(),
            gateway_name.clone(),
            routes.clone(),
            stop_rest.clone(),
        ));
        tokio::spawn(control::report_traffic(
            channel.clone(),
            gateway_name.clone(),
            routes.clone(),
            stop_rest.clone(),
        ));
        tokio::spawn(control::subscribe_routes(endpoint, gateway_name, routes.clone(), stop_rest.clone()));
        if admin.ip().is_loopback() {
            gateway.set_dashboard(admin);
        }
        let gateway = {
            let stop = stop_gateway.clone();
            tokio::spawn(async move {
                if let Err(error) = gateway.serve(stop).await {
                    tracing::error!(%error, "gateway failed");
                }
                if let Some(consumers) = consumers {
                    let _ = consumers.await;
                }
            })
        };
        // The gateway subscribes before the first load: no model becomes available without a route.
        let synced = async {
            while !routes.is_synced() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(ROUTES_TIMEOUT, synced).await.map_err(|_| {
            failed(&format!("the gateway received no routes from the scheduler within {ROUTES_TIMEOUT:?}"))
        })?;

        let source = args.artifacts.source(state_dir, None, None)?;
        let agent_api = format!("http://{}", reachable(scheduler.agents));
        let connect = Arc::new(PlaintextConnector::new(agent_api.clone()));
        let memory = args.memory.unwrap_or_else(paths::default_model_memory);
        let agent = Agent::from_parts(
            gantry_agent::Config {
                server: BUILTIN.into(),
                replica: 0,
                scheduler: agent_api,
                capabilities: builtin_server::capabilities(args.allow_python),
                memory_bytes: memory,
                over_commit: 0,
                host: inference.ip().to_string(),
                http_port: inference.port(),
                grpc_port: inference.port(),
            },
            Arc::new(BuiltinServer::new(runtime.clone(), memory)),
            Parts::new(connect.clone(), source.clone(), console.clone()),
        );
        tokio::spawn(agent.run(stop_rest.clone()));

        let desired_servers = DesiredServers::new();
        // Set before the supervisor starts, which stops every process that is not desired.
        desired_servers.set(&desired.launch_specs);
        let report = Report::default();
        let start_agent = servers::agents(
            connect,
            source,
            reachable(inference).to_string(),
            tracer.of_part("gantry-agent"),
        );
        let stop_supervisor = CancellationToken::new();
        let supervisor = Supervisor::new(state_dir, &desired_servers, start_agent, report.clone());
        let supervisor = tokio::spawn(supervisor.run(stop_supervisor.clone()));
        tokio::spawn(servers::follow_scaling(channel.clone(), desired_servers.clone(), stop_rest.clone()));

        let ready = Arc::new(AtomicBool::new(false));
        let (is_ready, handle) = (ready.clone(), scheduler.scheduler().clone());
        let (runs, of_stack) = (routes.clone(), routes.clone());
        let server = AdminServer {
            runs: Box::new(move |pipeline| runs.recent_runs(pipeline)),
            stuck: Box::new(move || stuck_reason(handle.liveness())),
            not_ready: Box::new(move || {
                let mut reasons = Vec::new();
                if !routes.is_synced() {
                    reasons.push("the gateway has no routes yet".to_owned());
                }
                if !is_ready.load(Ordering::Relaxed) {
                    reasons.push("models are still loading".to_owned());
                }
                reasons
            }),
            top: Box::new(stats::reporter(runtime.clone())),
            servers: report,
            dashboard: Some(AdminDashboard {
                channel: channel.clone(),
                inference,
                timeout: Duration::from_secs(args.requests.request_timeout),
                actions: args.dashboard_actions,
                auth_required: args.auth.auth_config.is_some(),
            }),
            ..AdminServer::new(registry, logs)
        };
        tokio::spawn(admin_server::serve(server, admin_listener, stop_rest.clone()));
        Ok(Self {
            console,
            runtime,
            scheduler,
            access,
            channel,
            routes: of_stack,
            inference,
            admin,
            tls_listeners,
            tracer,
            auth_required: args.auth.auth_config.is_some(),
            ready,
            gateway,
            stop_gateway,
            stop_rest,
            desired_servers,
            supervisor,
            stop_supervisor,
        })
    }

    async fn serve(
        &self,
        args: &Args,
        sources: Sources,
        desired: DesiredState,
        state_dir: &Path,
        started: Instant,
        stop: &CancellationToken,
    ) -> Result<(), CommandError> {
        let call_failed = |e: tonic::Status| match e.code() {
            Code::DeadlineExceeded | Code::Cancelled => {
                let dir = paths::display(state_dir);
                let message = format!(
                    "the scheduler did not accept the models in time: check the disk of {dir} for stalled writes"
                );
                CommandError::new(Exit::Timeout, message)
            }
            _ => CommandError::failed(e.message()),
        };
        let watched: Vec<String> = args.paths.iter().map(|p| p.display().to_string()).collect();
        let mut watcher = ManifestWatcher::new(
            sources,
            FileClient::new(self.channel.clone()),
            self.desired_servers.clone(),
            self.routes.clone(),
            AppliedSources::open(state_dir),
        );
        let applied = watcher.apply(&desired).await.map_err(call_failed)?;
        for line in applied.changed.iter().filter(|line| line.ends_with(" removed")) {
            self.console.print(&format!("  {line}"));
        }
        self.print_foreign(&applied);
        // Opened after the changes: what they removed is not reported as ready.
        let mut client = SchedulerClient::new(self.channel.clone());
        let mut statuses = StatusStream::open(&mut client).await.map_err(call_failed)?;
        let mut stop = std::pin::pin!(stop.cancelled());
        tokio::select! {
            () = self.wait_until_settled(&mut statuses, &desired) => {}
            () = &mut stop => return Ok(()),
        }
        self.ready.store(true, Ordering::Relaxed);
        self.print_endpoints(&statuses, &desired).await;
        let watches = !args.no_watch && !watched.is_empty();
        let watching = if watches { format!(" Watching {}.", watched.join(", ")) } else { String::new() };
        let mut is_settled = statuses.is_settled();
        self.console.print(&format!(
            "{}{watching} Ctrl-C stops; loaded models are kept for the next start.",
            statuses.summary(started.elapsed())
        ));
        let (sender, mut events) = tokio::sync::mpsc::channel(16);
        if watches {
            tokio::spawn(watcher.watch(sender.clone()));
        }
        loop {
            tokio::select! {
                () = &mut stop => return Ok(()),
                Some(event) = events.recv() => self.print_change(&event),
                changed = statuses.next() => match changed {
                    Some(key) => {
                        self.print_status(&mut statuses, &key, 0);
                        if !is_settled && statuses.is_settled() {
                            is_settled = true;
                            self.console.print(&statuses.summary(started.elapsed()));
                        }
                    }
                    None => return Err(CommandError::failed("the scheduler stopped unexpectedly; see the log")),
                },
            }
        }
    }

    /// Prints each object as it becomes ready or fails, until all have.
    async fn wait_until_settled(&self, statuses: &mut StatusStream, desired: &DesiredState) {
        let width = statuses.expected.iter().map(|key| key.1.len()).max().unwrap_or(0).max(8);
        let deadline = tokio::time::Instant::now() + READY_TIMEOUT;
        let mut printed = BTreeMap::new();
        // Pipelines and experiments are printed below the models. Placement fails until the servers have connected: such failures are printed only if they stay.
        let mut premature = BTreeMap::new();
        let servers_start = !desired.launch_specs.is_empty();
        while !statuses.is_settled() {
            let Ok(Some(key)) = tokio::time::timeout_at(deadline, statuses.next()).await else { break };
            premature.remove(&key);
            let outcome = statuses.outcomes.get(&key).cloned();
            let is_premature = matches!(&outcome, Some(Outcome::Failed { code, .. }) if match code.as_str() {
                "NoServer" | "Silent" => true,
                "NoCapability" | "UnknownServer" => servers_start,
                _ => false,
            });
            if is_premature {
                let failed = statuses.outcomes.insert(key.clone(), Outcome::Pending);
                premature.extend(failed.map(|failed| (key, failed)));
            } else if key.0 == Kind::Model && printed.insert(key.clone(), outcome.clone()) != Some(outcome) {
                self.print_status(statuses, &key, width);
            }
        }
        for (key, failed) in premature {
            statuses.outcomes.insert(key.clone(), failed);
            self.print_status(statuses, &key, width);
        }
        let dependants: Vec<Key> =
            statuses.expected.iter().filter(|key| key.0 != Kind::Model).cloned().collect();
        for key in &dependants {
            if statuses.is_blocked(key) {
                let reason = statuses.seen.get(key).map_or("", |seen| seen.reason.as_str());
                let (kind, kinds) = (kind_name(key.0), statuses.kind_width());
                self.console.print(&format!("  {:width$}   {kind:kinds$}   not ready: {reason}", key.1));
            } else {
                self.print_status(statuses, key, width);
            }
        }
    }

    fn print_status(&self, statuses: &mut StatusStream, key: &Key, width: usize) {
        let (name, kinds) = (&key.1, statuses.kind_width());
        match statuses.report(key) {
            Some(Outcome::Ready) if key.0 == Kind::Model => {
                let load = self.console.last_load(name);
                let platform = load.as_ref().map_or("", |l| l.platform.as_str());
                let took = load.as_ref().map_or(0, |l| l.took.as_millis());
                self.console.print(&format!("  {name:width$}   {platform:kinds$}   ready   {took:>4} ms"));
            }
            Some(Outcome::Ready) => {
                let detail = statuses.seen.get(key).map_or("", |seen| seen.detail.as_str());
                let kind = kind_name(key.0);
                self.console.print(&format!("  {name:width$}   {kind:kinds$}   ready   {detail}"));
            }
            Some(Outcome::Failed { reason, .. }) => {
                self.console.print(&format!("  {name:width$}   not ready: {reason}"));
            }
            Some(Outcome::Pending) | None => {}
        }
    }

    async fn print_endpoints(&self, statuses: &StatusStream, desired: &DesiredState) {
        let inference = reachable(self.inference);
        let print = |line: &str| self.console.print(line);
        for (key, outcome) in &statuses.outcomes {
            let waits = *outcome == Outcome::Pending && !statuses.is_blocked(key);
            if waits && statuses.expected.contains(key) {
                print(&format!("  {:8}   still loading", key.1));
            }
        }
        print("");
        print(&format!(
            "  inference   http://{:<24} REST and gRPC, Open Inference Protocol",
            inference.to_string()
        ));
        print(&format!("  scheduler   {:<31} gRPC", reachable(self.scheduler.clients).to_string()));
        for (name, address) in &self.tls_listeners {
            print(&format!("  {name:<11} {:<31} gRPC with TLS", address.to_string()));
        }
        print(&format!(
            "  admin       http://{:<24} dashboard, metrics, health",
            reachable(self.admin).to_string()
        ));
        for object in desired.objects.values() {
            if let Object::Model(model) = object
                && model.kind == INFERENCE_SERVICE
            {
                let (name, namespace) =
                    (&model.metadata.name, model.metadata.namespace.as_deref().unwrap_or("default"));
                let url = format!("http://{inference}/serving/{namespace}/{name}");
                print(&format!("  {name:<11} {url}   InferenceService, V1 and V2"));
            }
        }
        for (namespace, name) in desired.graphs.names() {
            print(&format!("  {name:<11} http://{inference}/serving/{namespace}/{name}   InferenceGraph"));
        }
        for (server, spec) in &desired.launch_specs {
            print(&format!("  {server:<11} {} × {}", spec.replicas, spec.command.join(" ")));
        }
        print("");
        let ready =
            |name: &&String| statuses.outcomes.get(&(Kind::Model, (*name).clone())) == Some(&Outcome::Ready);
        let with_example = desired.examples.keys().find(ready);
        let models = statuses.outcomes.keys().filter(|key| key.0 == Kind::Model).map(|key| &key.1);
        if let Some(model) = with_example.or_else(|| models.into_iter().find(ready)) {
            let version = self.console.last_load(model).map_or(1, |l| l.version);
            let data = desired.examples.get(model).map(String::as_str);
            let command =
                curl_example::curl(&self.runtime, model, version, &inference.to_string(), data).await;
            if let Some(command) = command {
                print(&format!("  {}", with_credential(&command, self.auth_required)));
                print("");
            }
        }
    }

    fn print_foreign(&self, applied: &Applied) {
        for message in &applied.foreign {
            self.console.print_error(message);
        }
    }

    fn print_change(&self, event: &ChangeEvent) {
        match event {
            ChangeEvent::Applied(applied) => {
                for line in &applied.changed {
                    self.console.print(&format!("  {line}"));
                }
                self.print_foreign(applied);
            }
            ChangeEvent::Invalid(problems) => {
                for line in problems.lines() {
                    self.console.print_error(&line);
                }
                self.console.print_error("Nothing was changed; the last valid state is still served.");
            }
        }
    }

    /// Finishes in-flight requests, then stops the rest. A second signal stops at once.
    async fn shut_down(self) {
        self.console.print("Stopping: finishing in-flight requests. Ctrl-C again stops at once.");
        self.ready.store(false, Ordering::Relaxed);
        let stopped = async {
            self.stop_gateway.cancel();
            let _ = self.gateway.await;
            self.stop_supervisor.cancel();
            let _ = self.supervisor.await;
            self.stop_rest.cancel();
            drop(self.channel);
            self.scheduler.stop().await;
            self.access.finish().await;
            trace::flush(&self.tracer).await;
        };
        tokio::select! {
            _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, stopped) => {}
            () = signal::terminated() => {}
        }
    }
}
