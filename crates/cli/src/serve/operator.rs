//! `gantry operator`: the Kubernetes controllers.

use crate::{args::Global, client, duration, error::CommandError, kubeconfig};
use gantry_operator::{
    Election, NAMESPACES_PER_CLIENT, Operator, Scope, Settings,
    admission::{MIN_CERTIFICATE_LIFETIME, Webhook, WebhookResources},
    certificates::{CertificateSettings, IssuedClients, MIN_LIFETIME},
    cluster::WriteFence,
    external_metrics::ExternalMetrics,
    schedulers::{SchedulerConnector as _, ServiceConnector},
};
use gantry_standalone::{
    bootstrap::{
        admin_server::{self, AdminServer},
        kafka, listen,
        log::{self, LogArgs, LogBuffer},
        signal, tokio_runtime,
    },
    console::print,
};
use jiff::Timestamp;
use prometheus_client::registry::Registry;
use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};
use tokio_util::sync::CancellationToken;

/// Reconcile Models, Servers and SeldonRuntimes of a Kubernetes cluster.
#[allow(clippy::struct_excessive_bools, reason = "each is a flag")]
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Namespace of the operator, its SeldonConfigs and ServerConfigs. Without --clusterwide it is the only watched one
    /// [default: namespace of the pod, then of the kubeconfig]
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,

    /// Watch all namespaces.
    #[arg(long)]
    pub(crate) clusterwide: bool,

    /// Watch only these namespaces and the operator's own; with --clusterwide.
    #[arg(long, value_delimiter = ',', value_name = "NAMESPACE,…", requires = "clusterwide")]
    pub(crate) watch_namespaces: Vec<String>,

    /// Leader election among several operators, with a Lease in the operator's namespace.
    #[arg(long)]
    pub(crate) leader_elect: bool,

    /// Create Deployments for Servers instead of StatefulSets.
    #[arg(long)]
    pub(crate) use_deployments_for_servers: bool,

    /// Address of the schedulers, or a comma-separated list with standbys; without the placeholder {namespace}, all
    /// namespaces share one scheduler [default: seldon-scheduler.{namespace}:9004, or :9044 with TLS]
    #[arg(long, env = "GANTRY_SCHEDULER_ADDRESS", value_name = "HOST:PORT")]
    pub(crate) scheduler_address: Option<String>,

    /// Image of Gantry's components, unless a SeldonConfig sets one.
    #[arg(long, env = "GANTRY_IMAGE", value_name = "IMAGE")]
    pub(crate) image: Option<String>,

    /// Secrets that agents may read in their namespace, for the secretName of Models; '*' is all of them. The operator
    /// needs the same permission to grant it.
    #[arg(long, value_delimiter = ',', value_name = "SECRET,…")]
    pub(crate) agent_secrets: Vec<String>,

    /// Reconcile InferenceServices of KServe, too. Needs the CRDs of serving.kserve.io, and permission to list
    /// ClusterServingRuntimes. Services of KServe's own controller are left alone.
    #[arg(long)]
    pub(crate) inference_services: bool,

    /// Reconcile Algorithms, too. Needs the CRD of ai.alien6.io.
    #[arg(long)]
    pub(crate) algorithms: bool,

    /// Kubeconfig file (also read from KUBECONFIG) [default: service account of the pod]
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Port for metrics, health (/livez, /readyz) and logs; 0 picks a free one.
    #[arg(long, default_value_t = 4000, value_name = "PORT")]
    pub(crate) admin_port: u16,

    /// Address of the admin port. It has no TLS: anything but loopback exposes metrics.
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    pub(crate) admin_host: IpAddr,

    #[command(flatten)]
    pub(crate) certificates: CertificateArgs,

    #[command(flatten)]
    pub(crate) webhook: WebhookArgs,

    #[command(flatten)]
    pub(crate) external_metrics: ExternalMetricsArgs,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Certificates of the control plane")]
pub(crate) struct CertificateArgs {
    /// Issue and renew certificates for schedulers, gateways and agents: their connections use mutual TLS with roles.
    /// Without effect if --tls-ca brings certificates, or if --scheduler-address is one scheduler for all namespaces.
    #[arg(long)]
    issue_certificates: bool,

    /// Secret of the operator's namespace with the certificate authorities. No other part may read it.
    #[arg(long, default_value = "gantry-certificates", value_name = "NAME")]
    certificate_secret: String,

    /// Lifetime of a certificate; it is renewed after two thirds. Its authority lives eight times as long.
    #[arg(long, default_value = "14d", value_name = "TIME", value_parser = duration::parse)]
    certificate_lifetime: Duration,
}

impl CertificateArgs {
    /// `None` without `--issue-certificates`, and where others issue them.
    fn settings(
        &self,
        brings_own: bool,
        is_shared: bool,
    ) -> Result<Option<CertificateSettings>, CommandError> {
        if !self.issue_certificates {
            return Ok(None);
        }
        if brings_own || is_shared {
            let why =
                if brings_own { "--tls-ca is set" } else { "--scheduler-address is one scheduler for all" };
            tracing::info!("no certificates are issued: {why}");
            return Ok(None);
        }
        if self.certificate_lifetime < MIN_LIFETIME {
            let shortest = duration::format(MIN_LIFETIME);
            return Err(CommandError::usage(format!(
                "--certificate-lifetime is shorter than {shortest}: a certificate could expire before its successor is distributed"
            )));
        }
        Ok(Some(CertificateSettings {
            secret: self.certificate_secret.clone(),
            lifetime: self.certificate_lifetime,
            clients: IssuedClients::default(),
        }))
    }
}

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Admission webhook")]
pub(crate) struct WebhookArgs {
    /// Serve a validating admission webhook: it rejects invalid objects and warns of dangling references.
    #[arg(long)]
    webhook: bool,

    /// Port of the webhook; 0 picks a free one.
    #[arg(long, default_value_t = 9443, value_name = "PORT", requires = "webhook")]
    webhook_port: u16,

    /// Address of the webhook.
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS", requires = "webhook")]
    webhook_host: IpAddr,

    /// ValidatingWebhookConfiguration whose caBundle the operator maintains.
    #[arg(long, default_value = "gantry-webhook", value_name = "NAME", requires = "webhook")]
    webhook_configuration: String,

    /// Secret with the webhook's certificate, created and renewed by the operator.
    #[arg(long, default_value = "gantry-webhook", value_name = "NAME", requires = "webhook")]
    webhook_secret: String,

    /// Lifetime of the webhook's certificate; it is renewed after two thirds.
    #[arg(
        long,
        default_value = "90d",
        value_name = "TIME",
        value_parser = duration::parse,
        requires = "webhook"
    )]
    webhook_certificate_lifetime: Duration,
}

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "External metrics")]
pub(crate) struct ExternalMetricsArgs {
    /// Serve external.metrics.k8s.io: the latency of Algorithms, for their autoscalers. Needs --algorithms, and an APIService
    /// that names the Service of the operator.
    #[arg(long, requires = "algorithms")]
    external_metrics: bool,

    /// Port of the external metrics; 0 picks a free one.
    #[arg(long, default_value_t = 9444, value_name = "PORT", requires = "external_metrics")]
    external_metrics_port: u16,

    /// Address of the external metrics.
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS", requires = "external_metrics")]
    external_metrics_host: IpAddr,

    /// Service in the operator's namespace that the APIService names.
    #[arg(
        long,
        default_value = "gantry-external-metrics",
        value_name = "NAME",
        requires = "external_metrics"
    )]
    external_metrics_service: String,

    /// Secret with the certificate of the external metrics, created and renewed by the operator.
    #[arg(
        long,
        default_value = "gantry-external-metrics",
        value_name = "NAME",
        requires = "external_metrics"
    )]
    external_metrics_secret: String,

    /// Lifetime of that certificate; it is renewed after two thirds.
    #[arg(
        long,
        default_value = "90d",
        value_name = "TIME",
        value_parser = duration::parse,
        requires = "external_metrics"
    )]
    external_metrics_certificate_lifetime: Duration,

    /// Address of this pod: the leader points the EndpointSlice of the Service to it.
    #[arg(long, env = "POD_IP", value_name = "ADDRESS", hide_env_values = true)]
    pod_ip: Option<IpAddr>,
}

/// Runs until Ctrl-C, SIGTERM or loss of leadership.
pub(crate) fn run(global: &Global, args: &Args) -> Result<(), CommandError> {
    let logs = log::start(&args.log, None)?;
    tokio_runtime::block_on(serve(global, args, logs))
}

async fn serve(global: &Global, args: &Args, logs: LogBuffer) -> Result<(), CommandError> {
    let stop = signal::shutdown_token();
    let (config, own) = cluster(args).await?;
    let identity = identity();
    let client = || gantry_operator::connect(config.clone(), &identity).map_err(|e| not_configured(&e));
    let kube = client()?;
    let namespace = args.namespace.clone().filter(|n| !n.is_empty()).unwrap_or(own);
    let tls = client::control_plane_tls(global)?;
    let brings_own = tls.is_some();
    let network = ServiceConnector::new(args.scheduler_address.clone(), tls);
    let issued = args.certificates.settings(brings_own, network.serves_all())?;
    let settings = Settings {
        issues_certificates: issued.is_some(),
        scope: scope(args, &namespace),
        namespace: namespace.clone(),
        use_deployments: args.use_deployments_for_servers,
        agent_secrets: args.agent_secrets.clone(),
        inference_services: args.inference_services,
        algorithms: args.algorithms,
        seed: u64::from(std::process::id()),
        image: args.image.clone().unwrap_or_else(|| Settings::default().image),
        has_kafka_client: kafka::HAS_CLIENT,
        ..Settings::default()
    };
    let network = match &issued {
        Some(issued) => network.with_issued(issued.clients.clone()),
        None => network,
    };
    let fence = if args.leader_elect { WriteFence::closed() } else { WriteFence::always_open() };
    let clock: gantry_operator::Clock = Arc::new(Timestamp::now);
    let scope = settings.scope.clone();
    let scopes = scope.watched(&namespace).len();
    let watch_clients =
        (0..scopes.div_ceil(NAMESPACES_PER_CLIENT)).map(|_| client()).collect::<Result<_, _>>()?;
    let operator = Operator::new(kube, settings, Arc::new(network), fence.clone(), Arc::clone(&clock))
        .with_watch_clients(watch_clients);
    let operator = match issued {
        Some(issued) => operator.with_certificates(issued),
        None => operator,
    };
    let election = if args.leader_elect {
        // Renewals do not wait behind other requests.
        Some(Election::new(client()?, &namespace, identity.clone(), fence, operator.metrics(), clock))
    } else {
        None
    };

    let (admin_listener, admin_address) =
        listen::bind("the admin server", args.admin_host, args.admin_port, "--admin-port").await?;
    let mut registry = Registry::default();
    operator.metrics().register(&mut registry);
    let health = operator.health();
    let admin =
        AdminServer { not_ready: Box::new(move || health.not_ready()), ..AdminServer::new(registry, logs) };
    let stop_admin = CancellationToken::new();
    let webhook_address = webhook(&args.webhook, &operator, &namespace, stop_admin.clone()).await?;
    let metrics_address =
        external_metrics(&args.external_metrics, &operator, &namespace, stop_admin.clone()).await?;
    tokio::spawn(admin_server::serve(admin, admin_listener, stop_admin.clone()));
    print(&format!("gantry operator {} · {}", env!("CARGO_PKG_VERSION"), describe(&scope, &namespace)));
    print("");
    print(&format!("  admin       http://{:<24} metrics, health", admin_address.to_string()));
    if let Some(at) = webhook_address {
        print(&format!("  webhook     https://{:<23} for the API server", at.to_string()));
    }
    if let Some(at) = metrics_address {
        print(&format!("  metrics     https://{:<23} external metrics, for the API server", at.to_string()));
    }
    print("");
    let ended = operator.run(election, stop).await;
    stop_admin.cancel();
    ended.map_err(|e| CommandError::failed(format!("the operator {e}")))
}

/// Starts the webhook, if enabled; returns its address.
async fn webhook(
    args: &WebhookArgs,
    operator: &Operator,
    namespace: &str,
    stop: CancellationToken,
) -> Result<Option<SocketAddr>, CommandError> {
    if !args.webhook {
        return Ok(None);
    }
    let lifetime = args.webhook_certificate_lifetime;
    check_lifetime("--webhook-certificate-lifetime", lifetime)?;
    let (port, at) =
        listen::bind("the webhook", args.webhook_host, args.webhook_port, "--webhook-port").await?;
    let resources = WebhookResources {
        namespace: namespace.to_owned(),
        secret: args.webhook_secret.clone(),
        configuration: args.webhook_configuration.clone(),
    };
    let serving =
        operator.webhook(Webhook { resources, lifetime }, port, stop).map_err(CommandError::failed)?;
    tokio::spawn(serving);
    Ok(Some(at))
}

/// Starts the API of external metrics, if enabled; returns its address.
async fn external_metrics(
    args: &ExternalMetricsArgs,
    operator: &Operator,
    namespace: &str,
    stop: CancellationToken,
) -> Result<Option<SocketAddr>, CommandError> {
    if !args.external_metrics {
        return Ok(None);
    }
    let lifetime = args.external_metrics_certificate_lifetime;
    check_lifetime("--external-metrics-certificate-lifetime", lifetime)?;
    let (host, port) = (args.external_metrics_host, args.external_metrics_port);
    let (port, at) = listen::bind("the external metrics", host, port, "--external-metrics-port").await?;
    let settings = ExternalMetrics {
        namespace: namespace.to_owned(),
        service: args.external_metrics_service.clone(),
        secret: args.external_metrics_secret.clone(),
        lifetime,
        pod_ip: args.pod_ip,
    };
    tokio::spawn(operator.external_metrics(&settings, port, stop).map_err(CommandError::failed)?);
    Ok(Some(at))
}

fn check_lifetime(flag: &str, lifetime: Duration) -> Result<(), CommandError> {
    if lifetime >= MIN_CERTIFICATE_LIFETIME {
        return Ok(());
    }
    let shortest = duration::format(MIN_CERTIFICATE_LIFETIME);
    Err(CommandError::usage(format!(
        "{flag} is shorter than {shortest}: the certificate could expire before its successor is distributed"
    )))
}

/// The configuration of API server clients, and the default namespace.
async fn cluster(args: &Args) -> Result<(kube::Config, String), CommandError> {
    let config = kubeconfig::read(args.kubeconfig.as_deref()).await.map_err(|e| not_configured(&e))?;
    let namespace = config.default_namespace.clone();
    Ok((config, namespace))
}

fn not_configured(error: &dyn std::fmt::Display) -> CommandError {
    CommandError::unavailable(format!(
        "no Kubernetes cluster is configured: {error}. Set --kubeconfig or KUBECONFIG, or run in a pod"
    ))
}

fn scope(args: &Args, own: &str) -> Scope {
    if args.clusterwide && args.watch_namespaces.is_empty() {
        return Scope::Cluster;
    }
    let named = args.watch_namespaces.iter().map(|n| n.trim().to_owned()).filter(|n| !n.is_empty());
    Scope::Namespaces(named.chain([own.to_owned()]).collect::<BTreeSet<_>>())
}

fn describe(scope: &Scope, own: &str) -> String {
    match scope {
        Scope::Cluster => format!("all namespaces, configurations from {own}"),
        Scope::Namespaces(names) => {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            format!("namespaces {}, configurations from {own}", names.join(", "))
        }
    }
}

/// Unique per process: name of the pod or host, process ID and start time.
fn identity() -> String {
    let pod = std::env::var("POD_NAME").ok().filter(|p| !p.is_empty());
    let host = || std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = pod.unwrap_or_else(|| host().trim().to_owned());
    let since = Timestamp::now().as_millisecond();
    format!("{name}_{}_{since}", std::process::id())
}
