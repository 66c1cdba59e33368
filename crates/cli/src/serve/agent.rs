//! `gantry agent`: the sidecar of an inference server.

use super::namespace_secrets::NamespaceSecrets;
use crate::{args::Global, error::CommandError};
use gantry_agent::{Kind, Limits, Ports, RequestLimits, Scaling, SecretStore, ServerEnvironment, Settings};
use gantry_standalone::{
    address::Addresses,
    bootstrap::{
        args::{ArtifactArgs, RequestArgs},
        listen,
        log::{self, LogArgs},
        paths,
        scheduler_channel::SchedulerChannel,
        signal, tokio_runtime,
        trace::{self, TraceArgs},
    },
    console::print,
};
use std::{net::IpAddr, path::PathBuf, sync::Arc, time::Duration};

/// Run beside an inference server: load and unload its models for the scheduler, and proxy requests to it.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Server name [default: from POD_NAME, which is NAME-REPLICA]
    #[arg(long, env = "GANTRY_SERVER", value_name = "NAME")]
    pub(crate) server: Option<String>,

    /// Replica index [default: from POD_NAME, else 0]
    #[arg(long, value_name = "N")]
    pub(crate) replica: Option<u32>,

    /// Type of the inference server: mlserver, triton, builtin (gantry runtime --explicit) or oip (any other that
    /// implements the protocol).
    #[arg(long, env = "SELDON_SERVER_TYPE", default_value = "mlserver", value_name = "TYPE")]
    pub(crate) server_type: Kind,

    /// Host of the inference server.
    #[arg(long, env = "SELDON_SERVER_HOST", default_value = "127.0.0.1", value_name = "HOST")]
    pub(crate) server_host: String,

    /// REST port of the inference server.
    #[arg(long, env = "SELDON_SERVER_HTTP_PORT", default_value_t = 8080, value_name = "PORT")]
    pub(crate) server_http_port: u16,

    /// gRPC port of the inference server.
    #[arg(long, env = "SELDON_SERVER_GRPC_PORT", default_value_t = 9500, value_name = "PORT")]
    pub(crate) server_grpc_port: u16,

    /// Model repository of the inference server, shared with it [default: models in the state directory]
    #[arg(long, env = "GANTRY_MODELS_DIR", value_name = "DIR")]
    pub(crate) models_dir: Option<PathBuf>,

    /// State directory: artifact cache and load orders.
    #[arg(long, env = "GANTRY_STATE_DIR", value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,

    /// Host of the scheduler, or a comma-separated list of HOST or HOST:PORT: the scheduler and its standbys.
    #[arg(long, env = "SELDON_SCHEDULER_HOST", default_value = "127.0.0.1", value_name = "HOST")]
    pub(crate) scheduler_host: String,

    /// Port of the scheduler's agent API without TLS.
    #[arg(long, env = "SELDON_SCHEDULER_PORT", default_value_t = 9005, value_name = "PORT")]
    pub(crate) scheduler_port: u16,

    /// Port of the scheduler's agent API with TLS (see --tls-ca).
    #[arg(long, env = "SELDON_SCHEDULER_TLS_PORT", default_value_t = 9055, value_name = "PORT")]
    pub(crate) scheduler_tls_port: u16,

    /// Address to listen on; anything but loopback is reachable from other machines.
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    pub(crate) host: IpAddr,

    /// Host name or address that gateways use for this agent [default: the address it listens on]
    #[arg(long, env = "POD_IP", value_name = "HOST")]
    pub(crate) advertise: Option<String>,

    /// Port for REST inference requests; 0 picks a free one.
    #[arg(long, env = "SELDON_REVERSE_PROXY_HTTP_PORT", default_value_t = 9999, value_name = "PORT")]
    pub(crate) proxy_http_port: u16,

    /// Port for gRPC inference requests; 0 picks a free one.
    #[arg(long, env = "SELDON_REVERSE_PROXY_GRPC_PORT", default_value_t = 9998, value_name = "PORT")]
    pub(crate) proxy_grpc_port: u16,

    /// Port of the debug service, which lists loaded and evicted models; 0 picks a free one.
    #[arg(long, env = "SELDON_DEBUG_GRPC_PORT", default_value_t = 7777, value_name = "PORT")]
    pub(crate) debug_port: u16,

    /// Port for metrics; 0 picks a free one.
    #[arg(long, env = "SELDON_METRICS_PORT", default_value_t = 9006, value_name = "PORT")]
    pub(crate) metrics_port: u16,

    /// Port of /terminate, the preStop hook of each container of a pod; 0 picks a free one.
    #[arg(long, env = "SELDON_DRAINER_PORT", default_value_t = 9007, value_name = "PORT")]
    pub(crate) drainer_port: u16,

    /// Port of /ready; 0 picks a free one.
    #[arg(long, env = "SELDON_READINESS_PORT", default_value_t = 9008, value_name = "PORT")]
    pub(crate) readiness_port: u16,

    /// Comma-separated capabilities of the server [default: those of its type]
    #[arg(long, env = "SELDON_SERVER_CAPABILITIES", value_name = "LIST", value_delimiter = ',')]
    pub(crate) capabilities: Option<Vec<String>>,

    /// Memory for models, in bytes or as 4Gi [default: three quarters of the machine's]
    #[arg(long, env = "MEMORY_REQUEST", value_name = "BYTES", value_parser = bytes)]
    pub(crate) memory: Option<u64>,

    /// Memory overcommit in percent: idle models are evicted to disk.
    #[arg(long, env = "SELDON_OVERCOMMIT_PERCENTAGE", default_value_t = 0, value_name = "PERCENT")]
    pub(crate) overcommit: u32,

    /// Model load timeout in minutes.
    #[arg(long, env = "SELDON_MAX_LOAD_ELAPSED_TIME_MINUTES", default_value_t = 120, value_name = "MINUTES", value_parser = clap::value_parser!(u64).range(1..=10_080))]
    pub(crate) load_time: u64,

    /// Model unload timeout in minutes.
    #[arg(long, env = "SELDON_MAX_UNLOAD_ELAPSED_TIME_MINUTES", default_value_t = 15, value_name = "MINUTES", value_parser = clap::value_parser!(u64).range(1..=10_080))]
    pub(crate) unload_time: u64,

    /// Load retries while the server is unreachable.
    #[arg(long, env = "SELDON_MAX_LOAD_RETRY_COUNT", default_value_t = 5, value_name = "N")]
    pub(crate) load_retries: u32,

    /// Unload retries.
    #[arg(long, env = "SELDON_MAX_UNLOAD_RETRY_COUNT", default_value_t = 1, value_name = "N")]
    pub(crate) unload_retries: u32,

    /// Seconds that in-flight requests may delay an unload.
    #[arg(long, env = "SELDON_UNLOAD_GRACE_PERIOD_SECONDS", default_value_t = 2, value_name = "SECONDS")]
    pub(crate) unload_grace: u64,

    /// Startup timeout of the inference server, in minutes.
    #[arg(
        long,
        alias = "server-patience",
        env = "SELDON_MAX_ELAPSED_TIME_READY_SUB_SERVICE_BEFORE_START_MINUTES",
        default_value_t = default_startup_timeout(),
        value_name = "MINUTES"
    )]
    pub(crate) server_startup_timeout: u64,

    /// Health check interval of the inference server, in seconds.
    #[arg(long, alias = "check-period", env = "SELDON_PERIOD_READY_SUB_SERVICE_SECONDS", default_value_t = 5, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) health_check_interval: u64,

    /// In-flight requests per model above which to scale up by one replica.
    #[arg(long, env = "SELDON_MODEL_INFERENCE_LAG_THRESHOLD", default_value_t = 30, value_name = "N")]
    pub(crate) lag_threshold: u32,

    /// Idle seconds of a model after which to scale down by one replica.
    #[arg(
        long,
        env = "SELDON_MODEL_INACTIVE_SECONDS_THRESHOLD",
        default_value_t = 600,
        value_name = "SECONDS"
    )]
    pub(crate) inactive_threshold: u64,

    /// Autoscaling evaluation interval, in seconds.
    #[arg(long, env = "SELDON_SCALING_STATS_PERIOD_SECONDS", default_value_t = 20, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) scaling_period: u64,

    /// Host of the gateway, for explainers that call their model.
    #[arg(long, env = "SELDON_ENVOY_HOST", default_value = "127.0.0.1", value_name = "HOST")]
    pub(crate) inference_host: String,

    /// Port of the gateway, for explainers.
    #[arg(long, env = "SELDON_ENVOY_PORT", default_value_t = 9000, value_name = "PORT")]
    pub(crate) inference_port: u16,

    /// MLServer worker processes; each loads every model.
    #[arg(long, env = "MLSERVER_PARALLEL_WORKERS", value_name = "N")]
    pub(crate) parallel_workers: Option<u32>,

    /// Concurrent fetches and loads.
    #[arg(long, default_value_t = 8, value_name = "N")]
    pub(crate) parallel_loads: usize,

    /// Shutdown timeout in seconds, for moving models away and again for in-flight requests.
    #[arg(long, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) drain_time: u64,

    /// Calls of /terminate within two seconds that start a drain. One call alone is the restart of one container.
    #[arg(long, env = "GANTRY_DRAIN_CALLS", default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(crate) drain_calls: u32,

    /// Timeout in seconds of the warm-up, one request with zeros after a load; 0 turns it off.
    #[arg(long, env = "GANTRY_WARM_UP_TIME", default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=3600))]
    pub(crate) warm_up_time: u64,

    /// Directory of this machine that models may be loaded from; repeatable. Without it, a storageUri cannot be a path.
    #[arg(long, env = "GANTRY_LOCAL_ROOTS", value_name = "DIR", value_delimiter = ',')]
    pub(crate) local_root: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) requests: RequestArgs,

    #[command(flatten)]
    pub(crate) artifacts: ArtifactArgs,

    /// Read Secrets that are not in --secrets-dir from the pod's namespace, through the Kubernetes API.
    #[arg(long, env = "GANTRY_KUBERNETES_SECRETS")]
    pub(crate) kubernetes_secrets: bool,

    #[command(flatten)]
    pub(crate) log: LogArgs,

    #[command(flatten)]
    pub(crate) trace: TraceArgs,
}

/// Runs until Ctrl-C or SIGTERM.
pub(crate) fn run(global: &Global, args: &Args) -> Result<(), CommandError> {
    log::start(&args.log, None)?;
    tokio_runtime::block_on(serve(global, args))
}

async fn serve(global: &Global, args: &Args) -> Result<(), CommandError> {
    let stop = signal::shutdown_token();
    let (server, replica) = identity(args)?;
    let state_dir = paths::state_dir(args.state_dir.as_deref())?;
    let tls = global.tls.reloading_client()?;
    let port = if tls.is_some() { args.scheduler_tls_port } else { args.scheduler_port };
    let address = Addresses::parse_any(&args.scheduler_host, port, "--scheduler-host")?;
    if address.tls().is_some() {
        return Err(CommandError::usage(
            "--scheduler-host takes HOST or HOST:PORT without a scheme: --tls-ca sets TLS",
        ));
    }
    let scheduler = SchedulerChannel::new(&address, tls)?;
    let protocol = scheduler.protocol();
    let models_dir = args.models_dir.clone().unwrap_or_else(|| state_dir.join("models"));
    let at = |port: u16| format!("{}:{port}", args.server_host);
    let seconds = Duration::from_secs;
    let tracer = args.trace.start("gantry-agent")?;
    let settings = Settings {
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
        advertised: args
            .advertise
            .clone()
            .filter(|a| !a.is_empty())
            .unwrap_or_else(|| listen::loopback(args.host).to_string()),
        capabilities: capabilities(args),
        memory_bytes: args.memory.unwrap_or_else(paths::default_model_memory),
        over_commit: args.overcommit,
        models_dir: models_dir.clone(),
        records_dir: state_dir.join("placed"),
        environment: ServerEnvironment {
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
            check: seconds(args.health_check_interval),
            warm_up: seconds(args.warm_up_time),
        },
        requests: RequestLimits {
            max_body: args.requests.max_body,
            timeout: seconds(args.requests.request_timeout),
            max_in_flight: args.requests.max_in_flight,
            ..RequestLimits::default()
        },
        scaling: Scaling {
            in_flight: args.lag_threshold,
            idle: seconds(args.inactive_threshold),
            period: seconds(args.scaling_period),
        },
        server_startup_timeout: seconds(args.server_startup_timeout.saturating_mul(60)),
        drain_time: seconds(args.drain_time),
        drain_calls: args.drain_calls,
        parallel: args.parallel_loads,
        connect: Arc::new(scheduler),
        source: args.artifacts.source(&state_dir, Some(args.local_root.clone()), secrets(args).await?)?,
        tracer: tracer.clone(),
    };

    print(&format!("gantry agent {} · {server}-{replica}", env!("CARGO_PKG_VERSION")));
    print(&format!(
        "Waiting for {} at {}; models in {}",
        args.server_type.name(),
        settings.server_grpc,
        paths::display(&models_dir)
    ));
    let running = tokio::select! {
        started = gantry_agent::start(settings) => started.map_err(CommandError::failed)?,
        () = stop.cancelled() => return Ok(()),
    };
    let at = running.addresses;
    print("");
    print(&format!("  inference   http://{:<24} REST", at.http.to_string()));
    print(&format!("  inference   {:<31} gRPC", at.grpc.to_string()));
    print(&format!("  scheduler   {:<31} {protocol}", address.to_string()));
    print(&format!("  metrics     http://{:<24} /metrics", at.metrics.to_string()));
    print(&format!("  ready       http://{:<24} /ready", at.readiness.to_string()));
    print(&format!("  drain       http://{:<24} /terminate", at.drainer.to_string()));
    print(&format!("  debug       {:<31} gRPC", at.debug.to_string()));
    print("");
    print("Ready. Ctrl-C drains and stops.");
    stop.cancelled().await;
    print("Draining: moving models away and finishing in-flight requests. Ctrl-C again stops at once.");
    tokio::select! {
        () = running.stop() => {}
        () = signal::terminated() => {}
    }
    trace::flush(&tracer).await;
    Ok(())
}

fn bytes(text: &str) -> Result<u64, String> {
    gantry_api::Quantity::parse(text).map(|quantity| quantity.bytes())
}

/// In minutes; the variable is an earlier name of the one that the flag reads.
fn default_startup_timeout() -> u64 {
    let minutes = std::env::var("SELDON_MAX_TIME_READY_SUB_SERVICE_BEFORE_START_MINUTES").ok();
    minutes.and_then(|minutes| minutes.parse().ok()).unwrap_or(15)
}

async fn secrets(args: &Args) -> Result<Option<Arc<dyn SecretStore>>, CommandError> {
    if !args.kubernetes_secrets {
        return Ok(None);
    }
    let problem = |e| CommandError::unavailable(format!("--kubernetes-secrets: no Kubernetes cluster: {e}"));
    Ok(Some(Arc::new(NamespaceSecrets::connect().await.map_err(problem)?)))
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

/// Server and replica index, from flags or the pod name.
fn identity(args: &Args) -> Result<(String, u32), CommandError> {
    let pod = std::env::var("POD_NAME").ok().filter(|p| !p.is_empty());
    identify(args.server.as_deref(), args.replica, pod.as_deref()).map_err(CommandError::usage)
}

fn identify(server: Option<&str>, replica: Option<u32>, pod: Option<&str>) -> Result<(String, u32), String> {
    let numbered = |pod: &str| {
        let (name, index) = pod.rsplit_once('-')?;
        Some((name.to_owned(), index.parse::<u32>().ok()?)).filter(|(name, _)| !name.is_empty())
    };
    let Some(server) = server else {
        let Some(pod) = pod else {
            return Err("no server name: set --server or POD_NAME".into());
        };
        return match numbered(pod) {
            Some((name, index)) => Ok((name, replica.unwrap_or(index))),
            None => Err(format!(
                "POD_NAME \"{}\" is not NAME-REPLICA: set --server (GANTRY_SERVER), as for pods of a Deployment",
                pod.escape_debug()
            )),
        };
    };
    let of_pod = |pod: &str| match numbered(pod) {
        Some((name, index)) if name == server => index,
        _ => deployment_replica(pod).unwrap_or(0),
    };
    Ok((server.to_owned(), replica.or_else(|| pod.map(of_pod)).unwrap_or(0)))
}

/// Alphabet of the random suffix of pod names in Kubernetes.
const SUFFIX_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// A replica index for a pod of a Deployment, derived from its name: stable for the pod, unique within its ReplicaSet,
/// and unlikely to collide with a pod of another ReplicaSet.
fn deployment_replica(pod: &str) -> Option<u32> {
    let (replica_set, suffix) = pod.rsplit_once('-').filter(|(_, suffix)| suffix.len() == 5)?;
    let mut number = 0;
    for byte in suffix.bytes() {
        let digit = SUFFIX_ALPHABET.iter().position(|letter| *letter == byte)?;
        number = number * SUFFIX_ALPHABET.len() + digit;
    }
    // Each ReplicaSet hashes to one of the blocks that fit into an i32.
    let block = SUFFIX_ALPHABET.len().pow(5);
    let blocks = i32::MAX as usize / block;
    let index = replica_set.bytes().fold(0, |sum: usize, byte| (sum * 31 + usize::from(byte)) % blocks);
    u32::try_from(index * block + number).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_comes_from_flags_or_pod_name() {
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
                (Err(message), Err(expected)) => assert!(message.contains(expected), "{message}"),
                (got, expected) => panic!("{pod:?}: {got:?}, not {expected:?}"),
            }
        }
    }

    #[test]
    fn memory_is_a_number_of_bytes_or_an_amount() {
        assert_eq!(bytes("4000000000"), Ok(4_000_000_000));
        assert_eq!(bytes("4Gi"), Ok(4 << 30));
        assert!(bytes("4 GB").is_err() && bytes("-1").is_err() && bytes("").is_err());
    }

    #[test]
    fn pods_of_a_deployment_have_distinct_stable_indexes() {
        let number = |pod: &str| identify(Some("mlserver"), None, Some(pod)).unwrap().1;
        let (one, other) = ("mlserver-5d9f7c6b8-x2v9k", "mlserver-5d9f7c6b8-x2v9l");
        assert_eq!(number(one), number(one), "a restarted container keeps its index");
        assert_ne!(number(one), number(other));
        assert_ne!(number(one), number("mlserver-66d4f9c5c7-x2v9k"), "another ReplicaSet");
        // A numeric suffix is not an index.
        assert_ne!(number("mlserver-5d9f7c6b8-24567"), 24567);
        let highest = number("mlserver-5d9f7c6b8-99999");
        assert!(i32::try_from(highest).is_ok(), "{highest}");
    }
}
