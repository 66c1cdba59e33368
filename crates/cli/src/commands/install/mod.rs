//! `gantry install`: prints the Kubernetes manifests of Gantry.

mod kserve;
mod rewrite;
#[cfg(test)]
mod tests;

use crate::{
    error::CommandError,
    output::{Format, document, emit, is_terminal, print_stderr},
};
use rewrite::Scope;
use serde_json::Value;

/// Generated from the chart by `cargo xtask manifests`.
const OPERATOR: &str = include_str!("../../../../../deploy/manifests/gantry.yaml");
const WEBHOOK: &str = include_str!("../../../../../deploy/manifests/webhook.yaml");
const RUNTIME: &str = include_str!("../../../../../deploy/manifests/runtime.yaml");

const CONFIG_KINDS: [&str; 2] = ["SeldonConfig", "ServerConfig"];

/// Print the Kubernetes manifests of Gantry, for kubectl.
///
/// Does not contact a cluster: pipe the output into kubectl. Apply the CRDs first and separately, because kubectl resolves
/// every kind before it applies anything.
#[derive(Debug, clap::Args)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
#[command(after_help = "Examples:\n  \
    gantry install --crds | kubectl apply --server-side --force-conflicts -f -\n  \
    gantry install --no-crds | kubectl apply -f -\n  \
    gantry install --crds --inference-services | kubectl apply --server-side -f -\n  \
    gantry install --no-crds --inference-services --runtime | kubectl apply -f -\n  \
    gantry install --no-crds --runtime --image registry.example/gantry:0.1.0 | kubectl apply -f -\n  \
    gantry install --no-crds --watch-namespaces ml,shop | kubectl diff -f -")]
pub(crate) struct Args {
    /// Namespace of the operator
    #[arg(long, short = 'n', default_value = "seldon-mesh", value_name = "NAMESPACE")]
    namespace: String,
    /// Image of the operator and of Gantry's components [default: gantry and this version]
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// Watch all namespaces (default)
    #[arg(long, conflicts_with = "watch_namespaces")]
    clusterwide: bool,
    /// Watch only these existing namespaces and the operator's own, with RBAC permissions in no other
    #[arg(long, value_delimiter = ',', value_name = "NAMESPACE,…")]
    watch_namespaces: Vec<String>,
    /// Secrets that agents may read in their namespace: those in secretName of Models, and config_secrets of a
    /// SeldonConfig for Seldon's agents; '*' is all of them. Without any, secretName is a key of the Secret gantry-storage
    #[arg(long, value_delimiter = ',', value_name = "SECRET,…")]
    agent_secrets: Vec<String>,
    /// Print the CRDs only
    #[arg(long, conflicts_with_all = ["no_crds", "runtime", "webhook"])]
    crds: bool,
    /// Print everything except the CRDs
    #[arg(long)]
    no_crds: bool,
    /// Omit SeldonConfig and ServerConfigs, to keep existing ones
    #[arg(long)]
    no_configs: bool,
    /// Omit the aggregated ClusterRoles for users, which require cluster-wide permissions to create
    #[arg(long)]
    no_aggregate: bool,
    /// Include the admission webhook, which rejects invalid objects and warns about unresolved references
    #[arg(long)]
    webhook: bool,
    /// Reconcile the kinds of KServe too, with runtimes for ONNX and tree models, MLServer and Triton
    #[arg(long)]
    inference_services: bool,
    /// Omit the CRDs of KServe: it is installed and has its own
    #[arg(long, requires = "inference_services")]
    no_kserve_crds: bool,
    /// Include a SeldonRuntime and a Server with the built-in runtime, in the operator's namespace
    #[arg(long)]
    runtime: bool,
    /// Accepted for compatibility: this command only prints
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), CommandError> {
    let mut text = String::new();
    for object in objects(args)? {
        text += "---\n";
        text += &document(&object, &Format::Yaml)?;
    }
    emit(text)?;
    if is_terminal() {
        print_stderr(
            "Nothing was applied. Pipe the output into kubectl; see gantry install --help for examples.",
        );
    } else if !args.crds && !args.no_crds {
        print_stderr(
            "On a cluster without these CRDs, kubectl creates them but rejects their objects, because it resolves kinds \
             first: run the command again.",
        );
    }
    Ok(())
}

fn objects(args: &Args) -> Result<Vec<Value>, CommandError> {
    let mut objects = Vec::new();
    if !args.no_crds {
        // Those of KServe are applied on request: KServe may have installed its own.
        let has_kserve = args.inference_services && !args.no_kserve_crds;
        let is_printed = |folder: &str| folder == "crds" || (has_kserve && folder == "crds-kserve");
        let printed = gantry_api::resources().into_iter().filter(|resource| is_printed(resource.folder()));
        objects.extend(printed.map(|resource| gantry_api::crd(&resource)));
    }
    if args.crds {
        return Ok(objects);
    }
    let mut rest = read(OPERATOR)?;
    if args.webhook {
        rewrite::replace(&mut rest, read(WEBHOOK)?);
    }
    if args.no_configs {
        rest.retain(|object| !CONFIG_KINDS.iter().any(|kind| object.get("kind").is_some_and(|k| k == kind)));
    }
    if args.no_aggregate {
        rest.retain(|object| !rewrite::is_aggregated_role(object));
    }
    if args.runtime {
        rest.extend(read(RUNTIME)?);
    }
    check_namespace("--namespace", &args.namespace)?;
    for name in &args.watch_namespaces {
        check_namespace("--watch-namespaces", name)?;
    }
    for name in args.agent_secrets.iter().filter(|name| *name != "*") {
        let problem = |problem| CommandError::usage(format!("--agent-secrets {problem}"));
        name.split('.').try_for_each(gantry_api::check_name).map_err(problem)?;
    }
    rewrite::agent_secrets(&mut rest, &args.agent_secrets);
    if args.inference_services {
        kserve::add_to(&mut rest);
        for text in kserve::RUNTIMES {
            rest.extend(read(text)?);
        }
    }
    let cluster_role = (args.inference_services && !args.watch_namespaces.is_empty())
        .then(|| kserve::cluster_role(&rest))
        .into_iter()
        .flatten();
    let cluster_role: Vec<Value> = cluster_role.collect();
    let watched: Vec<&str> = args.watch_namespaces.iter().map(String::as_str).collect();
    let scope = if watched.is_empty() { Scope::Cluster } else { Scope::Namespaces(&watched) };
    rest = rewrite::scope(rest, &args.namespace, &scope);
    rest.extend(cluster_role);
    rewrite::namespace(&mut rest, &args.namespace);
    if let Some(image) = &args.image {
        if image.is_empty() || image.chars().any(|c| c.is_whitespace() || c.is_control()) {
            let shown = image.escape_debug();
            return Err(CommandError::usage(format!(
                "--image \"{shown}\" is not an image: write NAME:TAG or NAME@DIGEST"
            )));
        }
        rewrite::image(&mut rest, image);
    }
    objects.append(&mut rest);
    Ok(objects)
}

fn read(text: &str) -> Result<Vec<Value>, CommandError> {
    let objects: Result<Vec<Value>, _> = serde_saphyr::from_multiple(text);
    let objects = objects.map_err(|e| CommandError::failed(format!("invalid embedded manifests: {e}")))?;
    Ok(objects.into_iter().filter(|object| !object.is_null()).collect())
}

fn check_namespace(flag: &str, name: &str) -> Result<(), CommandError> {
    gantry_api::check_name(name).map_err(|problem| CommandError::usage(format!("{flag} {problem}")))?;
    if name.len() > 63 {
        return Err(CommandError::usage(format!(
            "{flag} {name} has {} characters, at most 63 are allowed",
            name.len()
        )));
    }
    Ok(())
}
