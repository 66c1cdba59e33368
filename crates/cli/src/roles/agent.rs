//! `gantry agent`: beside an inference server, as a process of its own.

use super::{listen, log, reach::Reach, scheduler::say, signal, threads, trace};
use crate::{args::Global, client::Address, failure::Failure, up::paths};
use gantry_agent::{Artifacts, Kind, Limits, Ports, RequestLimits, Scaling, Secrets, Settings, Surroundings};
use gantry_artifacts::{Fetcher, NetRule};
use std::{net::IpAddr, path::PathBuf, sync::Arc, time::Duration};

/// Look after an inference server: load and unload its models as the scheduler says, pass requests to it.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The server's name; POD_NAME counts too, as NAME-REPLICA.
    #[arg(long, env = "GANTRY_SERVER", value_name = "NAME")]
    pub(crate) server: Option<String>,

    /// Which replica of the server this is [default: that of POD_NAME, else 0]
    #[arg(long, value_name = "N")]
    pub(crate) replica: Option<u32>,

    /// The inference server: mlserver, triton, builtin (gantry runtime --explicit) or oip (any that speaks the protocol).
    #[arg(long, env = "SELDON_SERVER_TYPE", default_value = "mlserver", value_name = "TYPE")]
    pub(crate) server_type: Kind,

    /// Where the inference server is.
    #[arg(long, env = "SELDON_SERVER_HOST", default_value = "127.0.0.1", value_name = "HOST")]
    pub(crate) server_host: String,

    /// Its port for REST.
    #[arg(long, env = "SELDON_SERVER_HTTP_PORT", default_value_t = 8080, value_name = "PORT")]
    pub(crate) server_http_port: u16,

    /// Its port for gRPC.
    #[arg(long, env = "SELDON_SERVER_GRPC_PORT", default_value_t = 9500, value_name = "PORT")]
    pub(crate) server_grpc_port: u16,

    /// The directory that the inference server loads models from; it must see the same files [default: models in the state directory]
    #[arg(long, env = "GANTRY_MODELS_DIR", value_name = "DIR")]
    pub(crate) models_dir: Option<PathBuf>,

    /// Where the agent keeps what it fetched and what it has placed.
    #[arg(long, env = "GANTRY_STATE_DIR", value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,

    /// The scheduler's host.
    #[arg(long, env = "SELDON_SCHEDULER_HOST", default_value = "127.0.0.1", value_name = "HOST")]
    pub(crate) scheduler_host: String,

    /// The scheduler's port for agents, without TLS.
    #[arg(long, env = "SELDON_SCHEDULER_PORT", default_value_t = 9005, value_name = "PORT")]
    pub(crate) scheduler_port: u16,

    /// The scheduler's port for agents, with TLS (see --tls-ca).
    #[arg(long, env = "SELDON_SCHEDULER_TLS_PORT", default_value_t = 9055, value_name = "PORT")]
    pub(crate) scheduler_tls_port: u16,

    /// Address to listen on. Anything but loopback lets other machines in.
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    pub(crate) host: IpAddr,

    /// The name or address under which gateways reach this agent; POD_IP counts too [default: what it listens on]
    #[arg(long, env = "POD_IP", value_name = "HOST")]
    pub(crate) advertise: Option<String>,

    /// Port that takes requests over REST; 0 for any free one.
    #[arg(long, env = "SELDON_REVERSE_PROXY_HTTP_PORT", default_value_t = 9999, value_name = "PORT")]
    pub(crate) proxy_http_port: u16,

    /// Port that takes requests over gRPC; 0 for any free one.
    #[arg(long, env = "SELDON_REVERSE_PROXY_GRPC_PORT", default_value_t = 9998, value_name = "PORT")]
    pub(crate) proxy_grpc_port: u16,

    /// Port of the debug service: what is in memory, what is evicted; 0 for any free one.
    #[arg(long, env = "SELDON_DEBUG_GRPC_PORT", default_value_t = 7777, value_name = "PORT")]
    pub(crate) debug_port: u16,

    /// Port for metrics; 0 for any free one.
    #[arg(long, env = "SELDON_METRICS_PORT", default_value_t = 9006, value_name = "PORT")]
    pub(crate) metrics_port: u16,

    /// Port of /terminate, which moves the models away and returns when no request is left; 0 for any free one.
    #[arg(long, env = "SELDON_DRAINER_PORT", default_value_t = 9007, value_name = "PORT")]
    pub(crate) drainer_port: u16,

    /// Port of /ready; 0 for any free one.
    #[arg(long, env = "SELDON_READINESS_PORT", default_value_t = 9008, value_name = "PORT")]
    pub(crate) readiness_port: u16,

    /// What the server can run, separated by commas [default: what its type can run]
    #[arg(long, env = "SELDON_SERVER_CAPABILITIES", value_name = "LIST", value_delimiter = ',')]
    pub(crate) capabilities: Option<Vec<String>>,

    /// Memory for models in bytes; three quarters of the machine's by default.
    #[arg(long, env = "MEMORY_REQUEST", value_name = "BYTES")]
    pub(crate) memory: Option<u64>,

    /// How much more than its memory the server takes, in percent: what is not in use waits on disk.
    #[arg(long, env = "SELDON_OVERCOMMIT_PERCENTAGE", default_value_t = 0, value_name = "PERCENT")]
    pub(crate) overcommit: u32,

    /// How long loading a model may take, in minutes.
    #[arg(long, env = "SELDON_MAX_LOAD_ELAPSED_TIME_MINUTES", default_value_t = 120, value_name = "MINUTES", value_parser = clap::value_parser!(u64).range(1..=10_080))]
    pub(crate) load_time: u64,

    /// How long unloading a model may take, in minutes.
    #[arg(long, env = "SELDON_MAX_UNLOAD_ELAPSED_TIME_MINUTES", default_value_t = 15, value_name = "MINUTES", value_parser = clap::value_parser!(u64).range(1..=10_080))]
    pub(crate) unload_time: u64,

    /// How often loading is tried again when the server cannot be reached.
    #[arg(long, env = "SELDON_MAX_LOAD_RETRY_COUNT", default_value_t = 5, value_name = "N")]
    pub(crate) load_retries: u32,

    /// How often unloading is tried again.
    #[arg(long, env = "SELDON_MAX_UNLOAD_RETRY_COUNT", default_value_t = 1, value_name = "N")]
    pub(crate) unload_retries: u32,

    /// How long requests under way may keep a model from being unloaded, in seconds.
    #[arg(long, env = "SELDON_UNLOAD_GRACE_PERIOD_SECONDS", default_value_t = 2, value_name = "SECONDS")]
    pub(crate) unload_grace: u64,

    /// How long the inference server may take until it is there, in minutes.
    #[arg(
        long,
        env = "SELDON_MAX_TIME_READY_SUB_SERVICE_BEFORE_START_MINUTES",
        default_value_t = 15,
        value_name = "MINUTES"
    )]
    pub(crate) server_patience: u64,

    /// How often the inference server is asked whether it is there, in seconds.
    #[arg(long, env = "SELDON_PERIOD_READY_SUB_SERVICE_SECONDS", default_value_t = 5, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) check_period: u64,

    /// Requests of a model under way from which on there should be one more replica.
    #[arg(long, env = "SELDON_MODEL_INFERENCE_LAG_THRESHOLD", default_value_t = 30, value_name = "N")]
    pub(crate) lag_threshold: u32,

    /// Seconds without a request after which a model should have one replica less.
    #[arg(
        long,
        env = "SELDON_MODEL_INACTIVE_SECONDS_THRESHOLD",
        default_value_t = 600,
        value_name = "SECONDS"
    )]
    pub(crate) inactive_threshold: u64,

    /// How often that is looked at, in seconds.
    #[arg(long, env = "SELDON_SCALING_STATS_PERIOD_SECONDS", default_value_t = 20, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) scaling_period: u64,

    /// Where explainers reach the models that they explain.
    #[arg(long, env = "SELDON_ENVOY_HOST", default_value = "127.0.0.1", value_name = "HOST")]
    pub(crate) inference_host: String,

    /// The port there.
    #[arg(long, env = "SELDON_ENVOY_PORT", default_value_t = 9000, value_name = "PORT")]
    pub(crate) inference_port: u16,

    /// Worker processes of MLServer, each with a copy of every model.
    #[arg(long, env = "MLSERVER_PARALLEL_WORKERS", value_name = "N")]
    pub(crate) parallel_workers: Option<u32>,

    /// Models that are fetched and loaded at the same time.
    #[arg(long, default_value_t = 8, value_name = "N")]
    pub(crate) parallel_loads: usize,

    /// Largest request body in bytes.
    #[arg(long, default_value_t = 64 << 20, value_name = "BYTES")]
    pub(crate) max_body: usize,

    /// How long a request may take, in seconds, with the time that its model needs to come into memory.
    #[arg(long, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) request_timeout: u64,

    /// Requests that may be under way at once; more are answered with 429.
    #[arg(long, default_value_t = 4096, value_name = "N")]
    pub(crate) max_in_flight: usize,

    /// How long moving the models away, and then the last requests, may take at the end, in seconds.
    #[arg(long, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) drain_time: u64,

    /// Directory with a file for each secret that a Model's secretName can name.
    #[arg(long, env = "GANTRY_SECRETS_DIR", value_name = "DIR")]
    pub(crate) secrets_dir: Option<PathBuf>,

    /// Private network (CIDR) or host that artifacts may be fetched from; may be repeated.
    #[arg(long, value_name = "NETWORK")]
    pub(crate) allow_net: Vec<NetRule>,

    /// Bytes of fetched artifacts that are kept.
    #[arg(long, default_value_t = 20 << 30, value_name = "BYTES")]
    pub(crate) cache_limit: u64,

    #[command(flatten)]
    /// What is logged, and how.
    pub(crate) log: log::LogArgs,

    #[command(flatten)]
    /// Who is told how long things took.
    pub(crate) trace: trace::TraceArgs,
}

/// Runs until Ctrl-C or SIGTERM.
pub(crate) fn run(global: &Global, args: &Args) -> Result<(), Failure> {
    log::start(&args.log, None, Some(tracing::Level::INFO)).map_err(Failure::usage)?;
    threads::live(live(global, args))
}

async fn live(global: &Global, args: &Args) -> Result<(), Failure> {
    let stop = signal::stopping();
    let (server, replica) = identity(args)?;
    let state_dir = paths::state_dir(args.state_dir.as_deref())?;
    let tls = global.tls.lasting_client()?;
    let port = if tls.is_some() { args.scheduler_tls_port } else { args.scheduler_port };
    let scheduler = Address::parse(&format!("{}:{port}", args.scheduler_host), port, "--scheduler-host")?;
    let how = if tls.is_some() { "gRPC with TLS" } else { "gRPC" };
    let reach = Reach::new(&scheduler, tls)?;
    let models_dir = args.models_dir.clone().unwrap_or_else(|| state_dir.join("models"));

    let mut fetch = gantry_artifacts::Config::new(state_dir.join("artifacts"));
    fetch.cache_limit = args.cache_limit;
    fetch.allow.clone_from(&args.allow_net);
    fetch.allow_loopback = true;
    let fetcher = Fetcher::new(fetch).map_err(|e| Failure::failed(e.to_string()))?;
    let at = |port: u16| format!("{}:{port}", args.server_host);
    let seconds = Duration::from_secs;
    let advertised = || listen::loopback(args.host).to_string();
    let tracer = args.trace.start("gantry-agent")?;
    let settings = Settings {
        tracer: tracer.clone(),
        server: server.clone(),
        replica,
        kind: args.server_type,
        server_http: at(args.server_http_port),
        server_grpc: at(args.server_grpc_port),
        listen: args.host,
        ports: Ports {
            http: args.proxy_http_port,
            grpc: args.proxy_grpc_port,
            debug: args.debug_port,
            metrics: args.metrics_port,
            drainer: args.drainer_port,
            readiness: args.readiness_port,
        },
        advertised: args.advertise.clone().filter(|a| !a.is_empty()).unwrap_or_else(advertised),
        capabilities: capabilities(args),
        memory_bytes: args.memory.unwrap_or_else(paths::memory_for_models),
        over_commit: args.overcommit,
        models_dir: models_dir.clone(),
        records_dir: state_dir.join("placed"),
        surroundings: Surroundings {
            inference: format!("{}:{}", args.inference_host, args.inference_port),
            ssl_verify_path: None,
            parallel_workers: args.parallel_workers,
        },
        limits: Limits {
            load: seconds(args.load_time * 60),
            unload: seconds(args.unload_time * 60),
            load_retries: args.load_retries,
            unload_retries: args.unload_retries,
            grace: seconds(args.unload_grace),
            check: seconds(args.check_period),
        },
        requests: RequestLimits {
            max_body: args.max_body,
            timeout: seconds(args.request_timeout),
            max_in_flight: args.max_in_flight,
            ..RequestLimits::default()
        },
        scaling: Scaling {
            in_flight: args.lag_threshold,
            idle: seconds(args.inactive_threshold),
            period: seconds(args.scaling_period),
        },
        server_patience: seconds(args.server_patience.saturating_mul(60)),
        drain_time: seconds(args.drain_time),
        parallel: args.parallel_loads,
        connect: Arc::new(reach),
        source: Arc::new(Artifacts { fetcher, secrets: Secrets { directory: args.secrets_dir.clone() } }),
    };

    say(&format!("gantry agent {} · {server}-{replica}", env!("CARGO_PKG_VERSION")));
    say(&format!(
        "Waiting for {} at {}; models in {}",
        args.server_type.name(),
        settings.server_grpc,
        paths::shown(&models_dir)
    ));
    let running = tokio::select! {
        started = gantry_agent::start(settings) => started.map_err(Failure::failed)?,
        () = stop.cancelled() => return Ok(()),
    };
    let at = running.addresses;
    say("");
    say(&format!("  inference   http://{:<24} REST", at.http.to_string()));
    say(&format!("  inference   {:<31} gRPC", at.grpc.to_string()));
    say(&format!("  scheduler   {:<31} {how}", scheduler.to_string()));
    say(&format!("  metrics     http://{:<24} /metrics", at.metrics.to_string()));
    say(&format!("  ready       http://{:<24} /ready", at.readiness.to_string()));
    say(&format!("  drain       http://{:<24} /terminate", at.drainer.to_string()));
    say(&format!("  debug       {:<31} gRPC", at.debug.to_string()));
    say("");
    say("Ready. Ctrl-C drains and stops.");
    stop.cancelled().await;
    say("Draining: models are moved away, requests under way are finished. Ctrl-C again stops at once.");
    tokio::select! {
        () = running.stop() => {}
        () = signal::asked_to_stop() => {}
    }
    trace::close(&tracer).await;
    Ok(())
}

fn capabilities(args: &Args) -> Vec<String> {
    let given = args.capabilities.iter().flatten().map(|c| c.trim().to_owned()).filter(|c| !c.is_empty());
    let given: Vec<String> = given.collect();
    if given.is_empty() {
        args.server_type.capabilities().iter().map(|c| (*c).to_owned()).collect()
    } else {
        given
    }
}

/// Which replica of which server this is: the flags', or the pod's.
fn identity(args: &Args) -> Result<(String, u32), Failure> {
    let pod = std::env::var("POD_NAME").ok().filter(|p| !p.is_empty());
    identify(args.server.as_deref(), args.replica, pod.as_deref()).map_err(Failure::usage)
}

fn identify(server: Option<&str>, replica: Option<u32>, pod: Option<&str>) -> Result<(String, u32), String> {
    let numbered = |pod: &str| {
        let (name, index) = pod.rsplit_once('-')?;
        Some((name.to_owned(), index.parse::<u32>().ok()?)).filter(|(name, _)| !name.is_empty())
    };
    let Some(server) = server else {
        let Some(pod) = pod else {
            return Err("which server is this? Name it with --server, or set POD_NAME".into());
        };
        return match numbered(pod) {
            Some((name, index)) => Ok((name, replica.unwrap_or(index))),
            None => Err(format!(
                "POD_NAME \"{}\" is not NAME-REPLICA: name the server with --server (GANTRY_SERVER), as for the pods \
                 of a Deployment",
                pod.escape_debug()
            )),
        };
    };
    let of_pod = |pod: &str| match numbered(pod) {
        Some((name, index)) if name == server => index,
        _ => deployed(pod).unwrap_or(0),
    };
    Ok((server.to_owned(), replica.or_else(|| pod.map(of_pod)).unwrap_or(0)))
}

/// What Kubernetes makes the last five letters of a pod's name from, where it has to make one up.
const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// The number of a pod that has none: a Deployment's. It stays the same for as long as the pod does, no two pods of one
/// ReplicaSet have the same, and it is improbable that one of another ReplicaSet has it.
fn deployed(pod: &str) -> Option<u32> {
    let (set, made_up) = pod.rsplit_once('-').filter(|(_, made_up)| made_up.len() == 5)?;
    let mut number = 0;
    for byte in made_up.bytes() {
        let digit = LETTERS.iter().position(|letter| *letter == byte)?;
        number = number * LETTERS.len() + digit;
    }
    // As many blocks of such numbers as fit, and a ReplicaSet falls into one of them.
    let block = LETTERS.len().pow(5);
    let blocks = i32::MAX as usize / block;
    let set = set.bytes().fold(0, |sum: usize, byte| (sum * 31 + usize::from(byte)) % blocks);
    u32::try_from(set * block + number).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_a_server_and_a_replica() {
        for (server, replica, pod, expected) in [
            (None, None, Some("mlserver-0"), Ok(("mlserver", 0))),
            (None, None, Some("ml-server-12"), Ok(("ml-server", 12))),
            (None, Some(3), Some("mlserver-0"), Ok(("mlserver", 3))),
            (Some("other"), None, Some("mlserver-7"), Ok(("other", 0))),
            (Some("mlserver"), None, Some("mlserver-7"), Ok(("mlserver", 7))),
            (Some("mlserver"), Some(2), Some("mlserver-7"), Ok(("mlserver", 2))),
            (Some("mlserver"), Some(2), Some("mlserver-5d9f7c6b8-x2v9k"), Ok(("mlserver", 2))),
            (None, None, Some("mlserver-5d9f7c6b8-x2v9k"), Err("GANTRY_SERVER")),
            (None, None, None, Err("--server")),
            (None, None, Some("mlserver"), Err("NAME-REPLICA")),
            (None, None, Some("mlserver-7b9c"), Err("NAME-REPLICA")),
            (None, None, Some("-1"), Err("NAME-REPLICA")),
        ] {
            match (identify(server, replica, pod), expected) {
                (Ok((name, index)), Ok((right, number))) => {
                    assert_eq!((name.as_str(), index), (right, number));
                }
                (Err(message), Err(says)) => assert!(message.contains(says), "{message}"),
                (got, expected) => panic!("{pod:?}: {got:?}, not {expected:?}"),
            }
        }
    }

    #[test]
    fn pods_of_a_deployment_have_numbers_of_their_own() {
        let number = |pod: &str| identify(Some("mlserver"), None, Some(pod)).unwrap().1;
        let (one, other) = ("mlserver-5d9f7c6b8-x2v9k", "mlserver-5d9f7c6b8-x2v9l");
        assert_eq!(number(one), number(one), "a container that is started again is the same replica");
        assert_ne!(number(one), number(other));
        assert_ne!(number(one), number("mlserver-66d4f9c5c7-x2v9k"), "another ReplicaSet");
        // Letters that look like a number are none.
        assert_ne!(number("mlserver-5d9f7c6b8-24567"), 24567);
        let highest = number("mlserver-5d9f7c6b8-99999");
        assert!(i32::try_from(highest).is_ok(), "{highest}");
    }
}
