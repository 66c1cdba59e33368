//! `gantry install`: the objects that Gantry needs on a Kubernetes cluster, for kubectl.

mod rewrite;
#[cfg(test)]
mod tests;

use crate::{
    failure::Failure,
    output::{Format, document, emit, is_terminal, say},
};
use rewrite::Scope;
use serde_json::Value;

/// Made from the chart by `cargo xtask manifests`.
const OPERATOR: &str = include_str!("../../../../../deploy/manifests/gantry.yaml");
const WEBHOOK: &str = include_str!("../../../../../deploy/manifests/webhook.yaml");
const RUNTIME: &str = include_str!("../../../../../deploy/manifests/runtime.yaml");

/// The kinds that say what others are made of.
const CONFIGS: [&str; 2] = ["SeldonConfig", "ServerConfig"];

/// Print the objects that Gantry needs on a Kubernetes cluster, for kubectl.
///
/// It asks no cluster and changes none: pipe what it prints into kubectl. The kinds come first and alone, because kubectl
/// looks every kind up before it applies anything.
#[derive(Debug, clap::Args)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
#[command(after_help = "Examples:\n  \
    gantry install --crds | kubectl apply --server-side --force-conflicts -f -\n  \
    gantry install --no-crds | kubectl apply -f -\n  \
    gantry install --no-crds --runtime --image registry.example/gantry:0.1.0 | kubectl apply -f -\n  \
    gantry install --no-crds --watch-namespaces ml,shop | kubectl diff -f -")]
pub(crate) struct Args {
    /// The operator's namespace
    #[arg(long, short = 'n', default_value = "seldon-mesh", value_name = "NAMESPACE")]
    namespace: String,
    /// The image of the operator and of Gantry's own components [default: gantry and this version]
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// Look after every namespace, which is the default
    #[arg(long, conflicts_with = "watch_namespaces")]
    clusterwide: bool,
    /// Look after these namespaces and the operator's own, and have rights nowhere else; they must be there already
    #[arg(long, value_delimiter = ',', value_name = "NAMESPACE,…")]
    watch_namespaces: Vec<String>,
    /// Secrets that Seldon's agents read by themselves (config_secrets of a SeldonConfig): the operator gets the right to
    /// pass that right on. Gantry's own agents need none
    #[arg(long, value_delimiter = ',', value_name = "SECRET,…")]
    agent_secrets: Vec<String>,
    /// Print the kinds (CustomResourceDefinitions) only
    #[arg(long, conflicts_with_all = ["no_crds", "runtime", "webhook"])]
    crds: bool,
    /// Print everything but the kinds
    #[arg(long)]
    no_crds: bool,
    /// Leave out SeldonConfig and ServerConfigs: keep those that are there
    #[arg(long)]
    no_configs: bool,
    /// Leave out the ClusterRoles that let people view and edit the kinds: whoever has rights in some namespaces only
    /// cannot create them
    #[arg(long)]
    no_aggregate: bool,
    /// Also print the admission webhook, which warns of names that lead nowhere and refuses what could never be done
    #[arg(long)]
    webhook: bool,
    /// Also print a SeldonRuntime and a Server with the built-in runtime, in the operator's namespace
    #[arg(long)]
    runtime: bool,
    /// Accepted for scripts: printing is all that this command ever does
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let mut text = String::new();
    for object in objects(args)? {
        text += "---\n";
        text += &document(&object, &Format::Yaml)?;
    }
    emit(text)?;
    if is_terminal() {
        say("Nothing was applied. Pipe it into kubectl: gantry install --help has examples.");
    } else if !args.crds && !args.no_crds {
        say(
            "On a cluster without these kinds, kubectl makes them and refuses the objects of them, because it looked them \
             up before: run the same line again.",
        );
    }
    Ok(())
}

/// What is to be on the cluster.
fn objects(args: &Args) -> Result<Vec<Value>, Failure> {
    let mut objects = Vec::new();
    if !args.no_crds {
        objects.extend(gantry_api::resources().iter().map(gantry_api::crd));
    }
    if args.crds {
        return Ok(objects);
    }
    let mut rest = read(OPERATOR)?;
    if args.webhook {
        rewrite::replace(&mut rest, read(WEBHOOK)?);
    }
    if args.no_configs {
        rest.retain(|object| !CONFIGS.iter().any(|kind| object.get("kind").is_some_and(|k| k == kind)));
    }
    if args.no_aggregate {
        rest.retain(|object| !rewrite::is_for_people(object));
    }
    if args.runtime {
        rest.extend(read(RUNTIME)?);
    }
    check_namespace("--namespace", &args.namespace)?;
    for name in &args.watch_namespaces {
        check_namespace("--watch-namespaces", name)?;
    }
    for name in &args.agent_secrets {
        let problem = |problem| Failure::usage(format!("--agent-secrets {problem}"));
        name.split('.').try_for_each(gantry_api::check_name).map_err(problem)?;
    }
    rewrite::agent_secrets(&mut rest, &args.agent_secrets);
    let watched: Vec<&str> = args.watch_namespaces.iter().map(String::as_str).collect();
    let scope = if watched.is_empty() { Scope::Cluster } else { Scope::Namespaces(&watched) };
    rest = rewrite::scope(rest, &args.namespace, &scope);
    rewrite::namespace(&mut rest, &args.namespace);
    if let Some(image) = &args.image {
        if image.is_empty() || image.chars().any(|c| c.is_whitespace() || c.is_control()) {
            let shown = image.escape_debug();
            return Err(Failure::usage(format!(
                "--image \"{shown}\" is no image: write NAME:TAG or NAME@DIGEST"
            )));
        }
        rewrite::image(&mut rest, image);
    }
    objects.append(&mut rest);
    Ok(objects)
}

fn read(text: &str) -> Result<Vec<Value>, Failure> {
    let objects: Result<Vec<Value>, _> = serde_saphyr::from_multiple(text);
    let objects =
        objects.map_err(|e| Failure::failed(format!("the manifests in this program are broken: {e}")))?;
    Ok(objects.into_iter().filter(|object| !object.is_null()).collect())
}

fn check_namespace(flag: &str, name: &str) -> Result<(), Failure> {
    gantry_api::check_name(name).map_err(|problem| Failure::usage(format!("{flag} {problem}")))?;
    if name.len() > 63 {
        return Err(Failure::usage(format!(
            "{flag} {name} has {} characters, at most 63 are allowed",
            name.len()
        )));
    }
    Ok(())
}
