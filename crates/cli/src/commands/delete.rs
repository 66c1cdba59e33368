//! `gantry delete`: deletes objects.

use super::wait::{self, Goal};
use crate::{
    args::Global,
    client::{Scheduler, block_on},
    error::{CommandError, Exit},
    manifests::Manifests,
    object_ref::{self, ObjectRef},
    output::{emit_line, print_stderr},
};
use std::path::PathBuf;

/// Delete models, servers, pipelines, experiments and rollout policies.
///
/// In-flight requests complete before a model is unloaded.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  gantry delete model iris fraud\n  gantry delete model/iris --wait\n  \
    gantry delete -f models/")]
pub(crate) struct Args {
    /// KIND NAME…, or KIND/NAME…
    #[arg(value_name = "RESOURCE", required_unless_present = "files", conflicts_with = "files")]
    resources: Vec<String>,
    /// Delete the objects of a manifest, a directory of manifests, or - for stdin; may be repeated
    #[arg(short = 'f', long = "filename", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Include subdirectories
    #[arg(short = 'R', long, requires = "files")]
    recursive: bool,
    /// Wait for the deletion to complete, at most --timeout
    #[arg(short, long)]
    wait: bool,
    /// Treat missing objects as deleted
    #[arg(long)]
    ignore_not_found: bool,
}

pub(crate) fn run(global: &Global, args: &Args) -> Result<(), CommandError> {
    let mut objects: Vec<ObjectRef> = if args.files.is_empty() {
        object_ref::named(&args.resources)?
    } else {
        Manifests::read(&args.files, args.recursive)?
            .checked("Nothing was deleted.")?
            .iter()
            .map(|p| ObjectRef { kind: p.object.kind(), name: p.object.name().to_owned() })
            .collect()
    };
    // The reverse of apply: experiments, pipelines, models, rollout policies, servers.
    objects.sort_by_key(|r| std::cmp::Reverse(r.kind));
    block_on(delete(global, args, objects))
}

async fn delete(global: &Global, args: &Args, objects: Vec<ObjectRef>) -> Result<(), CommandError> {
    let scheduler = Scheduler::connect(global).await?;
    let mut deleted = Vec::new();
    let mut missing = false;
    for object in objects {
        if scheduler.resource(&object, false).await?.is_some_and(|found| !found.is_deleted()) {
            scheduler.delete(&object).await?;
            emit_line(&format!("{object} deleted"))?;
            deleted.push(object);
        } else if !args.ignore_not_found {
            print_stderr(&scheduler.not_found(&object).await.message);
            missing = true;
        }
    }
    if args.wait {
        wait::until(&scheduler, &deleted, &Goal::Deleted, global.wait_timeout(), false).await?;
    }
    if missing { Err(CommandError::silent(Exit::NotFound)) } else { Ok(()) }
}
