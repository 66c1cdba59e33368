//! `gantry check`: whether a Kubernetes cluster is as Gantry needs it, step by step.

mod api;
mod installed;
mod kinds;
mod migrate;
mod objects;
mod pre;
mod report;
#[cfg(test)]
mod tests;
mod workloads;

use crate::{
    args::Global,
    client::block_on,
    failure::{Exit, Failure},
};
use api::Api;
use report::Report;
use std::{path::PathBuf, time::Duration};

/// Check a Kubernetes cluster step by step, with a hint for everything that is wrong.
///
/// It reads, and changes nothing. Steps that only inform do not count as wrong.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  gantry check --pre\n  gantry check\n  gantry check --migrate -n seldon-mesh\n\n\
    Exit codes: 0 all is well, 1 something is wrong."
)]
pub(crate) struct Args {
    /// Before installing: the API server, your rights, what is there already
    #[arg(long, conflicts_with = "migrate")]
    pre: bool,
    /// Before moving from Seldon Core v2: what it left, what would change, and the steps
    #[arg(long)]
    migrate: bool,
    /// The operator's namespace
    #[arg(long, short = 'n', default_value = "seldon-mesh", value_name = "NAMESPACE")]
    namespace: String,
    /// The kubeconfig; KUBECONFIG counts too
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

pub(crate) fn run(global: &Global, args: &Args) -> Result<(), Failure> {
    let limit = global.call_timeout();
    let report = block_on(async {
        let mut report = Report::printing();
        match Api::connect(args.kubeconfig.as_deref(), limit).await {
            Ok(api) => look(&api, args, limit.min(Duration::from_secs(4)), &mut report).await,
            Err(why) => report.wrong(
                "a cluster is configured",
                &why,
                "name one with --kubeconfig or KUBECONFIG, or run it in a pod",
            ),
        }
        Ok(report)
    })?;
    match report.wrongs() {
        0 => Ok(()),
        1 => Err(Failure::failed("One step is wrong.")),
        n => Err(Failure::new(Exit::Failed, format!("{n} steps are wrong."))),
    }
}

/// The steps that were asked for. `patience` is how long a second look waits for a change.
async fn look(api: &Api, args: &Args, patience: Duration, report: &mut Report) {
    if !pre::reach(api, report).await {
        return;
    }
    if args.pre {
        pre::run(api, &args.namespace, report).await;
    } else if args.migrate {
        migrate::run(api, &args.namespace, report).await;
    } else {
        installed::run(api, &args.namespace, patience, report).await;
    }
}
