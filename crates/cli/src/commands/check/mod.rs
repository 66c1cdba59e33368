//! `gantry check`: verifies a Kubernetes cluster before and after installation.

mod api;
mod crds;
mod kserve;
mod migrate;
mod objects;
mod postinstall;
mod preflight;
mod report;
mod security;
#[cfg(test)]
mod tests;
mod workloads;

use crate::{args::Global, client::block_on, error::CommandError, output::count};
use api::Api;
use report::Report;
use std::{path::PathBuf, time::Duration};

/// Check a Kubernetes cluster and suggest a fix for every problem.
///
/// Read-only. Informational steps do not count as failures.
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  gantry check --pre\n  gantry check\n  gantry check --migrate -n seldon-mesh\n  \
    gantry check --security\n  gantry check --security --local\n\n\
    Exit codes: 0 no failures, 1 at least one step failed."
)]
pub(crate) struct Args {
    /// Before installation: API server, RBAC permissions, existing CRDs
    #[arg(long, conflicts_with = "migrate")]
    pre: bool,
    /// Before migration from Seldon Core v2 or KServe: existing objects, expected changes, migration steps
    #[arg(long)]
    migrate: bool,
    /// Which ports are open, to which callers, and the remedy: fails where a caller without a role may change something
    #[arg(long, conflicts_with_all = ["pre", "migrate"])]
    security: bool,
    /// With --security: the ports of this machine, such as those of gantry up, instead of a cluster
    #[arg(long, requires = "security", conflicts_with = "kubeconfig")]
    local: bool,
    /// Namespace of the operator
    #[arg(long, short = 'n', default_value = "seldon-mesh", value_name = "NAMESPACE")]
    namespace: String,
    /// Kubeconfig file (also read from KUBECONFIG)
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

pub(crate) fn run(global: &Global, args: &Args) -> Result<(), CommandError> {
    let timeout = global.call_timeout();
    let report = block_on(async {
        let mut report = Report::printing();
        if args.local {
            security::run_local(&mut report);
            return Ok(report);
        }
        match Api::connect(args.kubeconfig.as_deref(), timeout).await {
            Ok(api) => check(&api, args, timeout.min(Duration::from_secs(4)), &mut report).await,
            Err(why) => report.fail(
                "Kubernetes client configuration",
                &why,
                "set --kubeconfig or KUBECONFIG, or run in a pod",
            ),
        }
        Ok(report)
    })?;
    match report.failures() {
        0 => Ok(()),
        n => Err(CommandError::failed(format!("{} failed.", count(n, "step")))),
    }
}

/// `lease_wait` is how long to watch a stale Lease for a renewal.
async fn check(api: &Api, args: &Args, lease_wait: Duration, report: &mut Report) {
    if !preflight::check_connection(api, report).await {
        return;
    }
    if args.pre {
        preflight::run(api, &args.namespace, report).await;
    } else if args.migrate {
        migrate::run(api, &args.namespace, report).await;
    } else if args.security {
        security::run(api, &args.namespace, report).await;
    } else {
        postinstall::run(api, &args.namespace, lease_wait, report).await;
    }
}
