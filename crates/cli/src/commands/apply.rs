//! `gantry apply`: creates or updates the objects of manifests.

use super::{
    diff::Plan,
    wait::{self, Goal},
};
use crate::{
    args::Global,
    client::{Scheduler, block_on},
    error::{CommandError, Exit},
    manifests::Manifests,
    object_ref::ObjectRef,
    output::{Style, emit, emit_line, print_stderr},
    view::{ModelView, ServerView},
};
use futures::{StreamExt as _, stream};
use gantry_api::{Kind, Model, Object, Parsed, Server};
use gantry_proto::scheduler::{self as pb, model_status::ModelState};
use std::{collections::BTreeMap, path::PathBuf};

/// Concurrent requests.
const CONCURRENCY: usize = 32;
/// Up to this many objects, current state is fetched per object instead of listing everything.
const FETCH_EACH_MAX: usize = 8;

/// Create or update models and servers from manifests.
///
/// All files are validated first; if any is invalid, nothing is applied.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  gantry apply -f iris.yaml --wait\n  gantry apply -f models/ -R --dry-run\n  \
    cat iris.yaml | gantry apply -f -"
)]
pub(crate) struct Args {
    /// A manifest, a directory of manifests, or - for stdin; may be repeated
    #[arg(short = 'f', long = "filename", required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Include subdirectories
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Show the changes, including scheduling decisions, without applying them
    #[arg(long)]
    dry_run: bool,
    /// Wait until all objects are ready, at most --timeout
    #[arg(short, long)]
    wait: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Created,
    Configured,
    Unchanged,
}

impl Change {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Configured => "configured",
            Self::Unchanged => "unchanged",
        }
    }
}

pub(crate) fn run(global: &Global, args: &Args) -> Result<(), CommandError> {
    let objects = Manifests::read(&args.files, args.recursive)?.checked("Nothing was applied.")?;
    if objects.is_empty() {
        return Err(CommandError::usage("the manifests contain no objects: nothing was applied"));
    }
    block_on(apply(global, args, objects))
}

async fn apply(global: &Global, args: &Args, objects: Vec<Parsed>) -> Result<(), CommandError> {
    let applier = Applier { global, args, scheduler: Scheduler::connect(global).await? };
    if args.dry_run
        && let Some(plan) = Plan::fetch(&applier.scheduler, &objects).await?
    {
        emit(plan.table(true).render(Style::stdout()))?;
        return if plan.refused() { Err(CommandError::silent(Exit::Refused)) } else { Ok(()) };
    }
    let current = CurrentState::fetch(&applier.scheduler, &objects).await?;
    let total = objects.len();
    let mut applied = Vec::new();
    let mut refused = None;
    let (servers, models): (Vec<_>, Vec<_>) =
        objects.into_iter().partition(|p| p.object.kind() == Kind::Server);
    // Servers first, so that models can be placed immediately.
    for batch in [servers, models] {
        let mut results =
            stream::iter(batch).map(|parsed| applier.apply(parsed, &current)).buffered(CONCURRENCY);
        while let Some((parsed, result)) = results.next().await {
            let object = object_ref(&parsed);
            match result {
                Ok(change) => {
                    let suffix = if args.dry_run { " (dry run)" } else { "" };
                    emit_line(&format!("{object} {}{suffix}", change.as_str()))?;
                    applied.push(object);
                }
                // The scheduler is unreachable for the other objects too.
                Err(error) if matches!(error.exit, Exit::Unavailable | Exit::Timeout) => return Err(error),
                Err(error) => {
                    print_stderr(&format!("{}:{}: {object} was refused: {error}", parsed.file, parsed.line));
                    refused.get_or_insert(error.exit);
                }
            }
        }
    }
    if let Some(exit) = refused {
        print_stderr(&format!("{} of {total} applied.", applied.len()));
        return Err(CommandError::silent(exit));
    }
    if args.wait && !args.dry_run {
        wait::until(&applier.scheduler, &applied, &Goal::Ready, global.wait_timeout(), true).await?;
    }
    Ok(())
}

fn object_ref(parsed: &Parsed) -> ObjectRef {
    ObjectRef { kind: parsed.object.kind(), name: parsed.object.name().to_owned() }
}

/// State before the change.
struct CurrentState {
    models: BTreeMap<String, ModelView>,
    servers: BTreeMap<String, ServerView>,
}

impl CurrentState {
    async fn fetch(scheduler: &Scheduler, objects: &[Parsed]) -> Result<Self, CommandError> {
        let (models, servers) = if objects.len() > FETCH_EACH_MAX {
            (scheduler.models(false).await?, scheduler.servers().await?)
        } else {
            let (mut models, mut servers) = (Vec::new(), Vec::new());
            for parsed in objects {
                let name = parsed.object.name();
                match parsed.object.kind() {
                    Kind::Model => models.extend(scheduler.model(name, false).await?),
                    Kind::Server => servers.extend(scheduler.server(name).await?),
                }
            }
            (models, servers)
        };
        Ok(Self {
            models: models.into_iter().map(|m| (m.model_name.clone(), m.into())).collect(),
            servers: servers.into_iter().map(|s| (s.server_name.clone(), s.into())).collect(),
        })
    }
}

struct Applier<'a> {
    global: &'a Global,
    args: &'a Args,
    scheduler: Scheduler,
}

impl Applier<'_> {
    async fn apply(&self, parsed: Parsed, current: &CurrentState) -> (Parsed, Result<Change, CommandError>) {
        let result = match &parsed.object {
            Object::Model(model) => {
                self.model(&object_ref(&parsed), model, current.models.get(parsed.object.name())).await
            }
            Object::Server(server) => self.server(server, current.servers.get(parsed.object.name())).await,
        };
        (parsed, result)
    }

    async fn model(
        &self,
        object: &ObjectRef,
        model: &Model,
        before: Option<&ModelView>,
    ) -> Result<Change, CommandError> {
        let desired = model.to_proto();
        let current = before.filter(|m| !m.deleted).and_then(ModelView::latest);
        let change = match current {
            None => Change::Created,
            Some(version) if comparable(&version.definition) == comparable(&desired) => Change::Unchanged,
            Some(_) => Change::Configured,
        };
        if self.args.dry_run {
            return Ok(change);
        }
        if before.is_some_and(|m| m.deleted && !m.is_terminated()) {
            // The scheduler refuses the name until the deleted model is unloaded.
            print_stderr(&format!("waiting for the deletion of {object}"));
            let (one, timeout) = (std::slice::from_ref(object), self.global.wait_timeout());
            wait::until(&self.scheduler, one, &Goal::Deleted, timeout, false).await?;
        }
        self.scheduler.load(desired).await?;
        let had_failed = current.is_some_and(|v| v.state == ModelState::ModelFailed);
        if change == Change::Unchanged && had_failed {
            print_stderr(&format!("{object} had failed; retrying"));
        }
        Ok(change)
    }

    async fn server(&self, server: &Server, before: Option<&ServerView>) -> Result<Change, CommandError> {
        let desired = server.to_proto();
        // The status does not contain the bounds, so a manifest with bounds may always change them.
        let bounded = desired.min_replicas > 0 || desired.max_replicas > 0;
        let change = match before.filter(|s| !s.is_terminated()) {
            None => Change::Created,
            Some(now) if now.expected.unsigned_abs() == desired.expected_replicas && !bounded => {
                Change::Unchanged
            }
            Some(_) => Change::Configured,
        };
        if !self.args.dry_run {
            self.scheduler.notify_server(desired).await?;
        }
        Ok(change)
    }
}

/// The definition without fields that the server adds after loading.
fn comparable(model: &pb::Model) -> pb::Model {
    let mut model = model.clone();
    if let Some(spec) = &mut model.model_spec {
        spec.model_runtime_info = None;
    }
    model
}
