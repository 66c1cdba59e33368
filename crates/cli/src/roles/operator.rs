//! `gantry operator`: Gantry on Kubernetes.

use super::{listen, log, scheduler::say, signal, threads};
use crate::{
    args::Global,
    client,
    failure::{Exit, Failure},
    kubeconfig,
    up::{
        admin::{self, Admin},
        servers::Report,
    },
};
use gantry_operator::{
    Election, Operator, Scope, Settings,
    admission::{Names, SHORTEST, Webhook},
    cluster::Leadership,
    schedulers::Network,
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

/// Look after Models, Servers and SeldonRuntimes of a Kubernetes cluster.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The operator's own namespace, where SeldonConfigs and ServerConfigs are looked up. Without --clusterwide it is
    /// the only one that is looked after [default: the pod's, then that of the kubeconfig]
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,

    /// Look after every namespace.
    #[arg(long)]
    pub(crate) clusterwide: bool,

    /// Look after these namespaces (and its own) only; with --clusterwide.
    #[arg(long, value_delimiter = ',', value_name = "NAMESPACE,…", requires = "clusterwide")]
    pub(crate) watch_namespaces: Vec<String>,

    /// Of several operators, let one act and the others stand by, by a Lease in its own namespace.
    #[arg(long)]
    pub(crate) leader_elect: bool,

    /// Make Deployments of Servers, instead of StatefulSets.
    #[arg(long)]
    pub(crate) use_deployments_for_servers: bool,

    /// Where schedulers are; {namespace} stands for the namespace. Without it, one scheduler is everybody's
    /// [default: seldon-scheduler.{namespace}:9004, or :9044 with TLS]
    #[arg(long, env = "GANTRY_SCHEDULER_ADDRESS", value_name = "HOST:PORT")]
    pub(crate) scheduler_address: Option<String>,

    /// The image of Gantry's own components, where a configuration names none.
    #[arg(long, env = "GANTRY_IMAGE", value_name = "IMAGE")]
    pub(crate) image: Option<String>,

    /// The kubeconfig, when it is not the pod's service account; KUBECONFIG counts too.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Port for metrics, health (/livez, /readyz) and logs; 0 for any free one.
    #[arg(long, default_value_t = 4000, value_name = "PORT")]
    pub(crate) admin_port: u16,

    /// Address of that port. It has no TLS: anything but loopback lets other machines read metrics and logs.
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    pub(crate) admin_host: IpAddr,

    #[command(flatten)]
    /// Questions that the API server asks while objects are written.
    pub(crate) webhook: WebhookArgs,

    #[command(flatten)]
    /// What is logged, and how.
    pub(crate) log: log::LogArgs,
}

/// Admission, which nothing depends on.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Admission webhook")]
pub(crate) struct WebhookArgs {
    /// Answer the API server while objects are written: refuse what could never be done, warn of names that lead nowhere.
    #[arg(long)]
    webhook: bool,

    /// Port for it; 0 for any free one.
    #[arg(long, default_value_t = 9443, value_name = "PORT", requires = "webhook")]
    webhook_port: u16,

    /// Address of that port.
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS", requires = "webhook")]
    webhook_host: IpAddr,

    /// The ValidatingWebhookConfiguration that leads to it, and whose caBundle is kept.
    #[arg(long, default_value = "gantry-webhook", value_name = "NAME", requires = "webhook")]
    webhook_configuration: String,

    /// The Secret of the operator's namespace with its certificate, which is made and renewed by the operator.
    #[arg(long, default_value = "gantry-webhook", value_name = "NAME", requires = "webhook")]
    webhook_secret: String,

    /// How long its certificate is good for; it is renewed after two thirds of that.
    #[arg(
        long,
        default_value = "90d",
        value_name = "TIME",
        value_parser = crate::duration::parse,
        requires = "webhook"
    )]
    webhook_certificate_lifetime: Duration,
}

/// Runs until Ctrl-C or SIGTERM, or until another operator leads.
pub(crate) fn run(global: &Global, args: &Args) -> Result<(), Failure> {
    let lines = log::start(&args.log, None, Some(tracing::Level::INFO)).map_err(Failure::usage)?;
    threads::live(live(global, args, lines))
}

async fn live(global: &Global, args: &Args, lines: log::Lines) -> Result<(), Failure> {
    let stop = signal::stopping();
    let (kube, own) = cluster(args).await?;
    let namespace = args.namespace.clone().filter(|n| !n.is_empty()).unwrap_or(own);
    let settings = Settings {
        scope: scope(args, &namespace),
        namespace: namespace.clone(),
        use_deployments: args.use_deployments_for_servers,
        seed: u64::from(std::process::id()),
        image: args.image.clone().unwrap_or_else(|| Settings::default().image),
        ..Settings::default()
    };
    let tls = client::control_plane_tls(global)?;
    let network = Network::new(args.scheduler_address.clone(), tls);
    let leadership = if args.leader_elect { Leadership::none() } else { Leadership::alone() };
    let clock: gantry_operator::Clock = Arc::new(Timestamp::now);
    let scope = settings.scope.clone();
    let operator =
        Operator::new(kube.clone(), settings, Arc::new(network), leadership.clone(), Arc::clone(&clock));
    let election = args
        .leader_elect
        .then(|| Election::new(kube, &namespace, identity(), leadership, operator.metrics(), clock));

    let (admin_port, admin_at) =
        listen::bind("the admin endpoint", args.admin_host, args.admin_port, "--admin-port").await?;
    let mut registry = Registry::default();
    operator.metrics().register(&mut registry);
    let health = operator.health();
    let page = Admin {
        registry,
        lines,
        stuck: Box::new(|| None),
        not_ready: Box::new(move || health.not_ready()),
        top: Box::new(|| serde_json::json!({})),
        servers: Report::default(),
    };
    let stop_admin = CancellationToken::new();
    let webhook_at = webhook(&args.webhook, &operator, &namespace, stop_admin.clone()).await?;
    tokio::spawn(admin::serve(page, admin_port, stop_admin.clone()));
    say(&format!("gantry operator {} · {}", env!("CARGO_PKG_VERSION"), shown(&scope, &namespace)));
    say("");
    say(&format!("  admin       http://{:<24} metrics, health", admin_at.to_string()));
    if let Some(at) = webhook_at {
        say(&format!("  webhook     https://{:<23} for the API server", at.to_string()));
    }
    say("");
    let ended = operator.run(election, stop).await;
    stop_admin.cancel();
    ended.map_err(|e| Failure::new(Exit::Failed, format!("the operator {e}")))
}

/// Begins to answer the API server, if that is asked for; says where.
async fn webhook(
    args: &WebhookArgs,
    operator: &Operator,
    namespace: &str,
    stop: CancellationToken,
) -> Result<Option<SocketAddr>, Failure> {
    if !args.webhook {
        return Ok(None);
    }
    let lifetime = args.webhook_certificate_lifetime;
    if lifetime < SHORTEST {
        let shortest = crate::duration::words(SHORTEST);
        return Err(Failure::usage(format!(
            "--webhook-certificate-lifetime is shorter than {shortest}: a certificate would end before the next is known"
        )));
    }
    let (port, at) =
        listen::bind("the webhook", args.webhook_host, args.webhook_port, "--webhook-port").await?;
    let names = Names {
        namespace: namespace.to_owned(),
        secret: args.webhook_secret.clone(),
        configuration: args.webhook_configuration.clone(),
    };
    let serving = operator.webhook(Webhook { names, lifetime }, port, stop).map_err(Failure::failed)?;
    tokio::spawn(serving);
    Ok(Some(at))
}

/// The API server, and the namespace that the configuration for it names.
async fn cluster(args: &Args) -> Result<(kube::Client, String), Failure> {
    let wrong = |e: &dyn std::fmt::Display| {
        Failure::unavailable(format!(
            "no Kubernetes cluster is configured: {e}. Name one with --kubeconfig or KUBECONFIG, or run in a pod"
        ))
    };
    let config = kubeconfig::read(args.kubeconfig.as_deref()).await.map_err(|e| wrong(&e))?;
    let namespace = config.default_namespace.clone();
    let client = gantry_operator::connect(config, &identity()).map_err(|e| wrong(&e))?;
    Ok((client, namespace))
}

fn scope(args: &Args, own: &str) -> Scope {
    if args.clusterwide && args.watch_namespaces.is_empty() {
        return Scope::Cluster;
    }
    let named = args.watch_namespaces.iter().map(|n| n.trim().to_owned()).filter(|n| !n.is_empty());
    Scope::Namespaces(named.chain([own.to_owned()]).collect::<BTreeSet<_>>())
}

fn shown(scope: &Scope, own: &str) -> String {
    match scope {
        Scope::Cluster => format!("every namespace, configurations from {own}"),
        Scope::Namespaces(names) => {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            format!("namespaces {}, configurations from {own}", names.join(", "))
        }
    }
}

/// A name that no other operator has: the pod's, or the machine's and the process's.
fn identity() -> String {
    let pod = std::env::var("POD_NAME").ok().filter(|p| !p.is_empty());
    let machine = || std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = pod.unwrap_or_else(|| machine().trim().to_owned());
    let since = Timestamp::now().as_millisecond();
    format!("{name}_{}_{since}", std::process::id())
}
