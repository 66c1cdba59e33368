//! `gantry apply`: create or change what manifests describe.

use super::wait::{self, Goal};
use crate::{
    args::Global,
    client::{Scheduler, block_on},
    failure::{Exit, Failure},
    manifests::Manifests,
    output::{emit_line, say},
    reference::Reference,
    view::{ModelView, ServerView},
};
use gantry_api::{Model, Object, Parsed, Server};
use gantry_proto::scheduler::{self as pb, model_status::ModelState};
use std::path::PathBuf;

/// Create or change models and servers from manifests.
///
/// Every file is checked before anything is sent: a problem in one of them, and nothing is applied.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  gantry apply -f iris.yaml --wait\n  gantry apply -f models/ -R --dry-run\n  \
    cat iris.yaml | gantry apply -f -")]
pub(crate) struct Args {
    /// A manifest, a directory of manifests, or - for stdin; may be repeated
    #[arg(short = 'f', long = "filename", required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Look into the directories of directories too
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Say what would happen, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Wait until everything is ready, for at most --timeout
    #[arg(short, long)]
    wait: bool,
}

/// What applying does to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Created,
    Configured,
    Unchanged,
}

impl Change {
    const fn word(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Configured => "configured",
            Self::Unchanged => "unchanged",
        }
    }
}

pub(crate) fn run(global: &Global, args: &Args) -> Result<(), Failure> {
    let mut objects = Manifests::read(&args.files, args.recursive)?.checked("Nothing was applied.")?;
    // Servers first: a model is placed at once when there is a server for it.
    objects.sort_by_key(|p| p.object.kind());
    block_on(apply(global, args, objects))
}

async fn apply(global: &Global, args: &Args, objects: Vec<Parsed>) -> Result<(), Failure> {
    let scheduler = Scheduler::connect(global).await?;
    let mut applied = Vec::new();
    let mut failures = Vec::new();
    let total = objects.len();
    for Parsed { object, file, line } in objects {
        let what = Reference { kind: object.kind(), name: object.name().to_owned() };
        let result = match object {
            Object::Model(model) => apply_model(global, &scheduler, args, &what, &model).await,
            Object::Server(server) => apply_server(&scheduler, args, &server).await,
        };
        match result {
            Ok(change) => {
                let suffix = if args.dry_run { " (dry run)" } else { "" };
                emit_line(&format!("{what} {}{suffix}", change.word()))?;
                applied.push(what);
            }
            // Who cannot be reached now will not be reached for the next object either.
            Err(failure) if matches!(failure.exit, Exit::Unavailable | Exit::Timeout) => return Err(failure),
            Err(failure) => {
                say(&format!("{file}:{line}: {what} was refused: {failure}"));
                failures.push(failure.exit);
            }
        }
    }
    if let Some(exit) = failures.first() {
        say(&format!("{} of {total} applied.", applied.len()));
        return Err(Failure::said(*exit));
    }
    if args.wait && !args.dry_run {
        wait::until(&scheduler, &applied, &Goal::Ready, global.wait_timeout()).await?;
    }
    Ok(())
}

async fn apply_model(
    global: &Global,
    scheduler: &Scheduler,
    args: &Args,
    what: &Reference,
    model: &Model,
) -> Result<Change, Failure> {
    let wanted = model.to_proto();
    let before = scheduler.model(&what.name, false).await?.map(ModelView::from);
    let change = match before.as_ref().filter(|m| !m.deleted).and_then(ModelView::latest) {
        None => Change::Created,
        Some(version) if comparable(&version.definition) == comparable(&wanted) => Change::Unchanged,
        Some(_) => Change::Configured,
    };
    if args.dry_run {
        return Ok(change);
    }
    if before.as_ref().is_some_and(|m| m.deleted && !m.is_gone()) {
        // The name is free once the deleted model has been unloaded.
        say(&format!("{what} is still being deleted; waiting for that"));
        wait::until(scheduler, std::slice::from_ref(what), &Goal::Deleted, global.wait_timeout()).await?;
    }
    scheduler.load(wanted).await?;
    let had_failed = before
        .as_ref()
        .and_then(ModelView::latest)
        .is_some_and(|v| matches!(v.state, ModelState::ModelFailed));
    if change == Change::Unchanged && had_failed {
        say(&format!("{what} had failed; it is tried again"));
    }
    Ok(change)
}

/// A definition without what is learned after it was asked for.
fn comparable(model: &pb::Model) -> pb::Model {
    let mut model = model.clone();
    if let Some(spec) = &mut model.model_spec {
        spec.model_runtime_info = None;
    }
    model
}

async fn apply_server(scheduler: &Scheduler, args: &Args, server: &Server) -> Result<Change, Failure> {
    let wanted = server.to_proto();
    let before = scheduler.server(&wanted.name).await?.map(ServerView::from);
    // The scheduler does not tell the bounds, so a manifest that sets some may always change them.
    let bounded = wanted.min_replicas > 0 || wanted.max_replicas > 0;
    let change = match before.filter(|s| !s.is_gone()) {
        None => Change::Created,
        Some(now) if now.expected.unsigned_abs() == wanted.expected_replicas && !bounded => Change::Unchanged,
        Some(_) => Change::Configured,
    };
    if !args.dry_run {
        scheduler.expect(wanted).await?;
    }
    Ok(change)
}
