//! Starts the parts in order, shows how far they are, and stops them in order.

use super::{
    Args,
    admin::{self, Admin},
    calls::Calls,
    example,
    follow::{Applied, Follower, News},
    local::{Builtin, CAPABILITIES},
    paths,
    record::Record,
    screen::Screen,
    servers::{self, Report, Supervisor, Wishes},
    sources::{Asked, Sources},
    statuses::{Fate, Statuses},
    usage,
};
use crate::{
    failure::{Exit, Failure},
    roles::{listen::bind, log, scheduler::stuck, signal, trace},
};
use gantry_agent::{Agent, Artifacts, Parts, Plain, Secrets, Source};
use gantry_artifacts::Fetcher;
use gantry_gateway::{Gateway, control};
use gantry_proto::scheduler::scheduler_client::SchedulerClient;
use gantry_runtime::Runtime;
use gantry_store::Store;
use prometheus_client::registry::Registry;
use std::{
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;
use tonic::{
    Code,
    transport::{Channel, Endpoint},
};

/// The name of the server that is the built-in runtime.
const BUILTIN: &str = "builtin";
/// After this the endpoints are shown, even if a model is still on its way.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the parts have to end in good order.
const GOODBYE: Duration = Duration::from_secs(35);

/// Everything that runs, and how to stop it.
struct House {
    screen: Arc<Screen>,
    runtime: Arc<Runtime>,
    scheduler: gantry_scheduler::Running,
    channel: Channel,
    inference: SocketAddr,
    admin: SocketAddr,
    /// What listens with TLS, and where.
    secure: Vec<(&'static str, SocketAddr)>,
    tracer: gantry_trace::Tracer,
    ready: Arc<AtomicBool>,
    gateway: JoinHandle<()>,
    stop_gateway: CancellationToken,
    stop_rest: CancellationToken,
    wishes: Wishes,
    servers: JoinHandle<()>,
    stop_servers: CancellationToken,
}

/// Runs until Ctrl-C.
pub(crate) async fn live(args: &Args, sources: Sources, first: Asked) -> Result<(), Failure> {
    let started = Instant::now();
    // From the first moment on, Ctrl-C means: end in good order.
    let stop = CancellationToken::new();
    let asked = stop.clone();
    tokio::spawn(async move {
        signal::asked_to_stop().await;
        asked.cancel();
    });
    let state_dir = paths::state_dir(args.state_dir.as_deref())?;
    let store = Store::open(&state_dir).map_err(|e| Failure::new(Exit::Failed, e.to_string()))?;
    let log_file = state_dir.join("gantry.log");
    let lines = log::start(&args.log, Some(&log_file), None).map_err(Failure::usage)?;
    let screen = Screen::new();
    screen.say(&format!("gantry {} · state in {}", env!("CARGO_PKG_VERSION"), paths::shown(&state_dir)));
    screen.say("");
    let house = open(args, store, &state_dir, lines, screen, &first).await?;
    let outcome = house.serve(args, sources, first, &state_dir, started, &stop).await;
    house.close().await;
    outcome
}

async fn open(
    args: &Args,
    store: Store,
    state_dir: &Path,
    lines: log::Lines,
    screen: Arc<Screen>,
    first: &Asked,
) -> Result<House, Failure> {
    let failed = |e: &dyn std::fmt::Display| Failure::new(Exit::Failed, e.to_string());
    // Inference is for others; the control plane is for this machine, unless a flag says otherwise.
    let tracer = args.trace.start("gantry-gateway")?;
    let tls = args.listen.tls()?;
    let own = args.listen.plaintext_of_up(args.host);
    let at = |port: u16| SocketAddr::new(own, port);
    // Every port is taken before anything is said to work.
    let gateway = Gateway::bind(gantry_gateway::Config {
        listen: SocketAddr::new(args.host, args.inference_port),
        max_body: args.max_body,
        max_in_flight: args.max_in_flight,
        request_timeout: Duration::from_secs(args.request_timeout),
        tracer: tracer.clone(),
        ..gantry_gateway::Config::default()
    })
    .map_err(|e| failed(&e))?;
    let admin_listener = TcpListener::bind(at(args.admin_port)).await.map_err(|e| {
        let choose = "choose another with --admin-port, 0 for any free one";
        failed(&format!("the admin endpoint cannot listen on {}: {e}; {choose}", at(args.admin_port)))
    })?;
    let admin_at = admin_listener.local_addr().map_err(|e| failed(&e))?;
    let (clients, agents) = (at(args.scheduler_port), at(args.agent_port));
    let mut scheduler = gantry_scheduler::start(gantry_scheduler::Config::new(store), clients, agents)
        .await
        .map_err(|e| failed(&e))?;
    let mut secure = Vec::new();
    if let Some(tls) = tls {
        let (listen, host) = (&args.listen, args.host);
        let (clients, clients_at) =
            bind("the scheduler", host, listen.scheduler_mtls_port, "--scheduler-mtls-port").await?;
        let (agents, agents_at) =
            bind("the scheduler's agent service", host, listen.agent_mtls_port, "--agent-mtls-port").await?;
        scheduler
            .serve_clients(gantry_tls::incoming(clients, Some(tls.clone())))
            .and_then(|()| scheduler.serve_agents(gantry_tls::incoming(agents, Some(tls))))
            .map_err(|e| failed(&e))?;
        secure = vec![("scheduler", clients_at), ("agents", agents_at)];
    }
    let endpoint =
        Endpoint::from_shared(format!("http://{}", reachable(scheduler.clients))).map_err(|e| failed(&e))?;
    let channel = endpoint.connect().await.map_err(|e| failed(&e))?;

    let limits = gantry_oip::Limits { body: args.max_body, ..gantry_oip::Limits::default() };
    let mut runtime_config = gantry_runtime::Config { limits, ..gantry_runtime::Config::default() };
    runtime_config.tracer = tracer.of_part("gantry-runtime");
    runtime_config.apart = crate::roles::network::apart();
    runtime_config.threads = args.threads.unwrap_or(runtime_config.threads);
    let runtime = Arc::new(Runtime::new(runtime_config).map_err(|e| failed(&e))?);

    let mut registry = Registry::default();
    gateway.register_metrics(&mut registry);
    scheduler.scheduler().register_metrics(&mut registry);
    tracer.register_metrics(&mut registry);
    gateway.register_local(BUILTIN, 0, runtime.clone());
    gateway.set_control(Arc::new(control::SchedulerControl::new(channel.clone())));
    let routes = gateway.routes();
    let inference = gateway.local_addr();
    let stop_gateway = CancellationToken::new();
    let stop_rest = CancellationToken::new();
    // The same in every life: the scheduler waits for gateways that it knew, and this one is back at once.
    let gateway_name = "up".to_owned();
    tokio::spawn(control::report_demand(
        channel.clone(),
        gateway_name.clone(),
        routes.clone(),
        stop_rest.clone(),
    ));
    tokio::spawn(control::follow(endpoint, gateway_name, routes.clone(), stop_rest.clone()));
    let gateway = {
        let stop = stop_gateway.clone();
        tokio::spawn(async move {
            if let Err(error) = gateway.serve(stop).await {
                tracing::error!(%error, "the gateway failed");
            }
        })
    };
    // The gateway follows before the first model is loaded, so that no model counts as available without it.
    let synced = async {
        while !routes.is_synced() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let late = || failed(&"the gateway did not get its routes from the scheduler within 10 s");
    tokio::time::timeout(PATIENCE, synced).await.map_err(|_| late())?;

    let mut fetch = gantry_artifacts::Config::new(state_dir.join("artifacts"));
    fetch.cache_limit = args.cache_limit;
    fetch.allow.clone_from(&args.allow_net);
    fetch.allow_loopback = true;
    let fetcher = Fetcher::new(fetch).map_err(|e| failed(&e))?;
    let source: Arc<dyn Source> =
        Arc::new(Artifacts { fetcher, secrets: Secrets { directory: args.secrets_dir.clone() } });
    let connect = Arc::new(Plain::new(format!("http://{}", reachable(scheduler.agents))));
    let agent = Agent::assemble(
        gantry_agent::Config {
            server: BUILTIN.into(),
            replica: 0,
            scheduler: format!("http://{}", reachable(scheduler.agents)),
            capabilities: CAPABILITIES.map(str::to_owned).into(),
            memory_bytes: args.memory.unwrap_or_else(paths::memory_for_models),
            over_commit: 0,
            host: inference.ip().to_string(),
            http_port: inference.port(),
            grpc_port: inference.port(),
        },
        Arc::new(Builtin(runtime.clone())),
        Parts::new(connect.clone(), source.clone(), screen.clone()),
    );
    tokio::spawn(agent.run(stop_rest.clone()));

    let wishes = Wishes::new();
    // Before the supervisor looks: what nobody wants is stopped.
    wishes.set(&first.recipes);
    let report = Report::default();
    let beside =
        servers::agents(connect, source, reachable(inference).to_string(), tracer.of_part("gantry-agent"));
    let stop_servers = CancellationToken::new();
    let supervisor = Supervisor::new(state_dir, &wishes, beside, report.clone());
    let servers = tokio::spawn(supervisor.run(stop_servers.clone()));
    tokio::spawn(servers::follow_scaling(channel.clone(), wishes.clone(), stop_rest.clone()));

    let ready = Arc::new(AtomicBool::new(false));
    let is_ready = ready.clone();
    let follows = routes.clone();
    let statistics = runtime.clone();
    let writer = scheduler.scheduler().clone();
    let admin = Admin {
        registry,
        lines,
        stuck: Box::new(move || stuck(writer.progress())),
        not_ready: Box::new(move || {
            let mut missing = Vec::new();
            if !follows.is_synced() {
                missing.push("the gateway has no routes yet".to_owned());
            }
            if !is_ready.load(Ordering::Relaxed) {
                missing.push("the models of this start are not settled yet".to_owned());
            }
            missing
        }),
        top: Box::new(usage::report(statistics)),
        servers: report,
    };
    tokio::spawn(admin::serve(admin, admin_listener, stop_rest.clone()));
    Ok(House {
        screen,
        runtime,
        scheduler,
        channel,
        inference,
        admin: admin_at,
        secure,
        tracer,
        ready,
        gateway,
        stop_gateway,
        stop_rest,
        wishes,
        servers,
        stop_servers,
    })
}

/// Where to reach what listens on every address.
fn reachable(address: SocketAddr) -> SocketAddr {
    let mut address = address;
    if address.ip().is_unspecified() {
        address.set_ip(if address.is_ipv4() {
            [127, 0, 0, 1].into()
        } else {
            std::net::Ipv6Addr::LOCALHOST.into()
        });
    }
    address
}

impl House {
    async fn serve(
        &self,
        args: &Args,
        sources: Sources,
        first: Asked,
        state_dir: &Path,
        started: Instant,
        stop: &CancellationToken,
    ) -> Result<(), Failure> {
        let failed = |e: tonic::Status| match e.code() {
            Code::DeadlineExceeded | Code::Cancelled => {
                let place = paths::shown(state_dir);
                let message =
                    format!("the scheduler did not take the models in time: is the disk of {place} stalled?");
                Failure::new(Exit::Timeout, message)
            }
            _ => Failure::new(Exit::Failed, e.message().to_owned()),
        };
        let mut client = SchedulerClient::new(self.channel.clone());
        let mut statuses = Statuses::open(&mut client).await.map_err(failed)?;
        let watched: Vec<String> = args.paths.iter().map(|p| p.display().to_string()).collect();
        let calls = Calls::new(self.channel.clone());
        let mut follower = Follower::new(sources, calls, self.wishes.clone(), Record::open(state_dir));
        let applied = follower.apply(&first).await.map_err(failed)?;
        self.show_foreign(&applied);
        let mut stop = std::pin::pin!(stop.cancelled());
        let settled = self.settle(&mut statuses, &first);
        tokio::select! {
            () = settled => {}
            () = &mut stop => return Ok(()),
        }
        self.ready.store(true, Ordering::Relaxed);
        self.show_endpoints(&statuses, &first).await;
        let watches = !args.no_watch && !watched.is_empty();
        let watching = if watches { format!(" Watching {}.", watched.join(", ")) } else { String::new() };
        self.screen.say(&format!(
            "Ready in {:.2} s.{watching} Ctrl-C stops; what is loaded stays for the next start.",
            started.elapsed().as_secs_f64()
        ));
        let (sender, mut news) = tokio::sync::mpsc::channel(16);
        if watches {
            tokio::spawn(follower.follow(sender.clone()));
        }
        loop {
            tokio::select! {
                () = &mut stop => return Ok(()),
                Some(news) = news.recv() => self.show_news(&news),
                changed = statuses.next() => match changed {
                    Some(model) => self.show_row(&statuses, &model, 0),
                    None => return Err(Failure::new(Exit::Failed, "the scheduler ended unexpectedly; the log says why")),
                },
            }
        }
    }

    /// Shows each model as it becomes ready or fails, until all have.
    async fn settle(&self, statuses: &mut Statuses, first: &Asked) {
        let wanted = first.objects.keys().filter(|(kind, _)| *kind == gantry_api::Kind::Model).count();
        let width = first.objects.keys().map(|(_, name)| name.len()).max().unwrap_or(0).max(8);
        let deadline = tokio::time::Instant::now() + PATIENCE;
        let mut shown = std::collections::BTreeMap::new();
        loop {
            let complete = statuses.known.len() >= wanted && statuses.settled();
            if complete && (wanted > 0 || !statuses.known.is_empty()) {
                return;
            }
            // Nothing was asked for and nothing is known: give the first status a moment to arrive.
            let patience = if wanted == 0 && statuses.known.is_empty() {
                tokio::time::Instant::now() + Duration::from_millis(100)
            } else {
                deadline
            };
            let Ok(Some(model)) = tokio::time::timeout_at(patience, statuses.next()).await else { return };
            let fate = statuses.known.get(&model).cloned();
            // Before the servers of this start have joined, nothing can be placed: that is not worth a line.
            let starting = !first.recipes.is_empty();
            let premature = matches!(&fate, Some(Fate::Failed { code, .. }) if match code.as_str() {
                "NoServer" | "Silent" => true,
                "NoCapability" | "UnknownServer" => starting,
                _ => false,
            });
            if premature {
                statuses.known.insert(model.clone(), Fate::Pending);
            } else if shown.insert(model.clone(), fate.clone()) != Some(fate) {
                self.show_row(statuses, &model, width);
            }
        }
    }

    fn show_row(&self, statuses: &Statuses, model: &str, width: usize) {
        match statuses.known.get(model) {
            Some(Fate::Ready) => {
                let outcome = self.screen.outcome(model);
                let platform = outcome.as_ref().map_or("", |o| o.platform.as_str());
                let took = outcome.as_ref().map_or(0, |o| o.took.as_millis());
                self.screen.say(&format!("  {model:width$}   {platform:8}   ready   {took:>4} ms"));
            }
            Some(Fate::Failed { reason, .. }) => {
                self.screen.say(&format!("  {model:width$}   not ready: {reason}"));
            }
            Some(Fate::Pending) | None => {}
        }
    }

    async fn show_endpoints(&self, statuses: &Statuses, first: &Asked) {
        let inference = reachable(self.inference);
        let say = |line: &str| self.screen.say(line);
        for (model, fate) in &statuses.known {
            if *fate == Fate::Pending {
                say(&format!("  {model:8}   still loading"));
            }
        }
        say("");
        say(&format!(
            "  inference   http://{:<24} REST and gRPC, Open Inference Protocol",
            inference.to_string()
        ));
        say(&format!("  scheduler   {:<31} gRPC", reachable(self.scheduler.clients).to_string()));
        for (what, address) in &self.secure {
            say(&format!("  {what:<11} {:<31} gRPC with TLS", address.to_string()));
        }
        say(&format!("  admin       http://{:<24} metrics, health", reachable(self.admin).to_string()));
        for (server, recipe) in &first.recipes {
            say(&format!("  {server:<11} {} × {}", recipe.replicas, recipe.command.join(" ")));
        }
        say("");
        let ready = |name: &&String| statuses.known.get(*name) == Some(&Fate::Ready);
        let with_example = first.examples.keys().find(ready);
        if let Some(model) = with_example.or_else(|| statuses.known.keys().find(ready)) {
            let version = self.screen.outcome(model).map_or(1, |o| o.version);
            let data = first.examples.get(model).map(String::as_str);
            let line = example::curl(&self.runtime, model, version, &inference.to_string(), data).await;
            if let Some(line) = line {
                say(&format!("  {line}"));
                say("");
            }
        }
    }

    /// What was not taken, because it belongs to somebody else.
    fn show_foreign(&self, applied: &Applied) {
        for words in &applied.foreign {
            self.screen.complain(words);
        }
    }

    fn show_news(&self, news: &News) {
        match news {
            News::Applied(applied) => {
                for line in &applied.changed {
                    self.screen.say(&format!("  {line}"));
                }
                self.show_foreign(applied);
            }
            News::Broken(problems) => {
                for line in problems.lines() {
                    self.screen.complain(&line);
                }
                self.screen.complain("Nothing was changed: what was good before still serves.");
            }
        }
    }

    /// Lets requests finish, then stops the rest. A second Ctrl-C does not wait.
    async fn close(self) {
        self.screen.say("Stopping: requests under way are finished first. Ctrl-C again stops at once.");
        self.ready.store(false, Ordering::Relaxed);
        let goodbye = async {
            self.stop_gateway.cancel();
            let _ = self.gateway.await;
            self.stop_servers.cancel();
            let _ = self.servers.await;
            self.stop_rest.cancel();
            drop(self.channel);
            self.scheduler.stop().await;
            trace::close(&self.tracer).await;
        };
        tokio::select! {
            _ = tokio::time::timeout(GOODBYE, goodbye) => {}
            () = signal::asked_to_stop() => {}
        }
    }
}
