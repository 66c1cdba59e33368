//! `gantry kserve-agent`: the sidecar of an InferenceService's pod, with the flags of KServe's agent.

use crate::error::CommandError;
use gantry_agent::{
    RequestLimits,
    kserve::{BatcherSettings, LogMode, LoggerSettings, Probe, Settings, start},
};
use gantry_standalone::{
    bootstrap::{
        args::RequestArgs,
        log::{self, LogArgs},
        signal, tokio_runtime,
    },
    console::print,
};
use std::{
    io::ErrorKind,
    net::{IpAddr, SocketAddr},
    path::Path,
    time::Duration,
};

/// Where the operator mounts the certificates of sinks.
const CA_DIR: &str = "/etc/tls/logger";
/// Bytes of all events that wait for the sink.
const EVENT_MEMORY: usize = 64 << 20;
const EVENT_QUEUE: usize = 1000;
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(10);

/// Run beside the model server of an InferenceService: log requests and responses as CloudEvents, and batch requests.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Address to listen on; anything but loopback is reachable from other machines.
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    host: IpAddr,

    /// Port for requests, REST and gRPC; 0 picks a free one.
    #[arg(long, default_value_t = 9081, value_name = "PORT")]
    port: u16,

    /// Port for metrics; 0 picks a free one.
    #[arg(long, default_value_t = 9082, value_name = "PORT")]
    metrics_port: u16,

    /// Port of the model server on this machine.
    #[arg(long, default_value_t = 8080, value_name = "PORT")]
    component_port: u16,

    /// Readiness probe of the model server, as the JSON of a pod's probe [default: always ready]
    #[arg(long, env = "SERVING_READINESS_PROBE", value_name = "JSON")]
    readiness_probe: Option<String>,

    /// Sink of events, http or https. Without it nothing is logged.
    #[arg(long, value_name = "URL")]
    log_url: Option<String>,

    /// What is logged: all, request or response.
    #[arg(long, default_value = "all", value_name = "MODE")]
    log_mode: LogMode,

    /// Source of events [default: the host name, which is that of the pod]
    #[arg(long, env = "HOSTNAME", value_name = "URI")]
    source_uri: Option<String>,

    /// Name of the InferenceService in events.
    #[arg(long, default_value = "", value_name = "NAME")]
    inference_service: String,

    /// Namespace in events.
    #[arg(long, default_value = "", value_name = "NAMESPACE")]
    namespace: String,

    /// Endpoint in events.
    #[arg(long, default_value = "", value_name = "NAME")]
    endpoint: String,

    /// Component in events: predictor, transformer or explainer.
    #[arg(long, default_value = "", value_name = "NAME")]
    component: String,

    /// Comma-separated request headers that events have as metadata.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    metadata_headers: Vec<String>,

    /// Annotation of every event; repeatable.
    #[arg(long, value_name = "NAME=VALUE", value_parser = annotation)]
    metadata_annotations: Vec<(String, String)>,

    /// Concurrent deliveries of events.
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    workers: u16,

    /// File in /etc/tls/logger with certificates of the sink, trusted besides the public ones.
    #[arg(long, default_value = "service-ca.crt", value_name = "FILE")]
    logger_ca_cert_file: String,

    /// Batch V1 requests (:predict).
    #[arg(long)]
    enable_batcher: bool,

    /// Instances of a batch.
    #[arg(long, default_value_t = 32, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_batchsize: u32,

    /// Milliseconds that the first request of a batch waits for others.
    #[arg(long, default_value_t = 5000, value_name = "MS", value_parser = clap::value_parser!(u32).range(1..))]
    max_latency: u32,

    /// Timeout of a batch in seconds [default: that of a request]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    batch_timeout: Option<u64>,

    /// Seconds that requests are accepted after SIGTERM, until the pod is removed from its Service.
    #[arg(long, default_value_t = 5, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=3600))]
    shutdown_linger: u64,

    #[command(flatten)]
    requests: RequestArgs,

    #[command(flatten)]
    log: LogArgs,
}

/// Runs until Ctrl-C or SIGTERM.
pub(crate) fn run(args: &Args) -> Result<(), CommandError> {
    log::start(&args.log, None)?;
    tokio_runtime::block_on(serve(args))
}

async fn serve(args: &Args) -> Result<(), CommandError> {
    let stop = signal::shutdown_token();
    let running = start(settings(args)?).await.map_err(CommandError::failed)?;
    print(&format!("gantry kserve-agent {}", env!("CARGO_PKG_VERSION")));
    print(&format!(
        "  requests    http://{:<24} to 127.0.0.1:{}",
        running.address.to_string(),
        args.component_port
    ));
    print(&format!("  metrics     http://{:<24} /metrics", running.metrics.to_string()));
    print("Ready. Ctrl-C drains and stops.");
    stop.cancelled().await;
    print("Draining: finishing in-flight requests. Ctrl-C again stops at once.");
    tokio::select! {
        () = running.stop() => {}
        () = signal::terminated() => {}
    }
    Ok(())
}

fn settings(args: &Args) -> Result<Settings, CommandError> {
    let probe = args.readiness_probe.as_deref().filter(|probe| !probe.is_empty());
    let probe = probe.map(|probe| Probe::parse(probe, args.component_port)).transpose();
    let timeout = Duration::from_secs(args.requests.request_timeout);
    Ok(Settings {
        listen: SocketAddr::new(args.host, args.port),
        metrics: SocketAddr::new(args.host, args.metrics_port),
        component: format!("127.0.0.1:{}", args.component_port),
        probe: probe.map_err(CommandError::usage)?.flatten(),
        logger: args
            .log_url
            .as_deref()
            .filter(|url| !url.is_empty())
            .map(|url| logger(args, url))
            .transpose()?,
        batcher: args.enable_batcher.then(|| BatcherSettings {
            max_size: usize::try_from(args.max_batchsize).unwrap_or(usize::MAX),
            max_latency: Duration::from_millis(args.max_latency.into()),
            timeout: args.batch_timeout.map_or(timeout, Duration::from_secs),
        }),
        requests: RequestLimits {
            max_body: args.requests.max_body,
            timeout,
            max_in_flight: args.requests.max_in_flight,
            ..RequestLimits::default()
        },
        linger: Duration::from_secs(args.shutdown_linger),
    })
}

fn logger(args: &Args, url: &str) -> Result<LoggerSettings, CommandError> {
    let path = Path::new(CA_DIR).join(&args.logger_ca_cert_file);
    let ca = match std::fs::read(&path) {
        Ok(ca) => Some(ca),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(CommandError::failed(format!("{}: {error}", path.display()))),
    };
    let source = args.source_uri.clone().filter(|source| !source.is_empty());
    Ok(LoggerSettings {
        url: url.to_owned(),
        ca,
        mode: args.log_mode,
        source: source.unwrap_or_else(|| format!("http://localhost:{}/", args.port)),
        inference_service: args.inference_service.clone(),
        namespace: args.namespace.clone(),
        component: args.component.clone(),
        endpoint: args.endpoint.clone(),
        metadata_headers: args.metadata_headers.clone(),
        annotations: args.metadata_annotations.clone(),
        workers: args.workers.into(),
        queue: EVENT_QUEUE,
        memory: EVENT_MEMORY,
        timeout: DELIVERY_TIMEOUT,
    })
}

fn annotation(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser as _;

    fn parse(args: &[&str]) -> Result<Args, String> {
        let command =
            Cli::try_parse_from(["gantry", "kserve-agent"].iter().chain(args)).map_err(|e| e.to_string())?;
        match command.command {
            Command::KserveAgent(args) => Ok(args),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn arguments_of_the_operator_are_accepted() {
        let args = parse(&[
            "--host=0.0.0.0",
            "--enable-batcher",
            "--max-batchsize",
            "8",
            "--max-latency",
            "700",
            "--batch-timeout",
            "20",
            "--log-url",
            "http://sink",
            "--log-mode",
            "request",
            "--inference-service",
            "iris",
            "--namespace",
            "ml",
            "--endpoint",
            "",
            "--component",
            "predictor",
            "--metadata-headers",
            "X-Tenant,X-User",
            "--metadata-annotations",
            "team=blue, green",
            "--metadata-annotations",
            "a=b=c",
            "--logger-ca-cert-file",
            "ca.crt",
            "--component-port",
            "5000",
            "--request-timeout",
            "30",
        ])
        .unwrap();
        let settings = settings(&args).unwrap();
        assert_eq!(settings.component, "127.0.0.1:5000");
        let batcher = settings.batcher.unwrap();
        assert_eq!(
            (batcher.max_size, batcher.max_latency.as_millis(), batcher.timeout.as_secs()),
            (8, 700, 20)
        );
        let logger = settings.logger.unwrap();
        assert_eq!((logger.mode, logger.metadata_headers.len()), (LogMode::Request, 2));
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(logger.annotations, [pair("team", "blue, green"), pair("a", "b=c")]);
        assert_eq!(settings.requests.timeout.as_secs(), 30);
    }

    #[test]
    fn wrong_values_are_refused() {
        for args in [
            ["--log-mode=some"],
            ["--max-batchsize=0"],
            ["--max-latency=0"],
            ["--metadata-annotations=x"],
            ["--workers=0"],
        ] {
            assert!(parse(&args).is_err(), "{args:?}");
        }
        assert!(settings(&parse(&["--readiness-probe={"]).unwrap()).is_err());
    }
}
