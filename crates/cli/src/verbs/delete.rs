//! `gantry delete`: take models and servers away.

use super::wait::{self, Goal};
use crate::{
    args::Global,
    client::{Scheduler, block_on},
    failure::{Exit, Failure},
    manifests::Manifests,
    output::{emit_line, say},
    reference::{self, Reference},
    view::ServerView,
};
use gantry_api::Kind;
use std::path::PathBuf;

/// Delete models and servers.
///
/// Requests that are under way are answered before a model is unloaded.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  gantry delete model iris fraud\n  gantry delete model/iris --wait\n  \
    gantry delete -f models/")]
pub(crate) struct Args {
    /// KIND NAME…, or KIND/NAME…
    #[arg(value_name = "WHAT", required_unless_present = "files", conflicts_with = "files")]
    what: Vec<String>,
    /// Delete what a manifest or a directory of manifests describes, or - for stdin; may be repeated
    #[arg(short = 'f', long = "filename", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Look into the directories of directories too
    #[arg(short = 'R', long, requires = "files")]
    recursive: bool,
    /// Wait until they are gone, for at most --timeout
    #[arg(short, long)]
    wait: bool,
    /// Be content when there is nothing to delete
    #[arg(long)]
    ignore_not_found: bool,
}

pub(crate) fn run(global: &Global, args: &Args) -> Result<(), Failure> {
    let mut what = if args.files.is_empty() {
        reference::named(&args.what)?
    } else {
        Manifests::read(&args.files, args.recursive)?
            .checked("Nothing was deleted.")?
            .iter()
            .map(|p| Reference { kind: p.object.kind(), name: p.object.name().to_owned() })
            .collect()
    };
    // Models first, in the reverse of the order in which they are applied.
    what.sort_by_key(|r| std::cmp::Reverse(r.kind));
    block_on(delete(global, args, what))
}

async fn delete(global: &Global, args: &Args, what: Vec<Reference>) -> Result<(), Failure> {
    let scheduler = Scheduler::connect(global).await?;
    let mut deleted = Vec::new();
    let mut missing = false;
    for one in what {
        if exists(&scheduler, &one).await? {
            scheduler.delete(&one).await?;
            emit_line(&format!("{one} deleted"))?;
            deleted.push(one);
        } else if !args.ignore_not_found {
            say(&scheduler.unknown(&one).await);
            missing = true;
        }
    }
    if args.wait {
        wait::until(&scheduler, &deleted, &Goal::Deleted, global.wait_timeout(), wait::quiet).await?;
    }
    if missing { Err(Failure::said(Exit::NotFound)) } else { Ok(()) }
}

async fn exists(scheduler: &Scheduler, what: &Reference) -> Result<bool, Failure> {
    Ok(match what.kind {
        Kind::Model => scheduler.model(&what.name, false).await?.is_some_and(|m| !m.deleted),
        Kind::Server => {
            scheduler.server(&what.name).await?.is_some_and(|s| !ServerView::from(s).is_leaving())
        }
    })
}
