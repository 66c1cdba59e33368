//! `gantry apply`: create or change what manifests describe.

use super::{
    diff::Plan,
    wait::{self, Goal},
};
use crate::{
    args::Global,
    client::{Scheduler, block_on},
    failure::{Exit, Failure},
    manifests::Manifests,
    output::{Style, emit, emit_line, say},
    reference::Reference,
    view::{ModelView, ServerView},
};
use futures::{StreamExt as _, stream};
use gantry_api::{Kind, Model, Object, Parsed, Server};
use gantry_proto::scheduler::{self as pb, model_status::ModelState};
use std::{collections::BTreeMap, path::PathBuf};

/// Objects that are under way at once.
const AT_ONCE: usize = 32;
/// So many objects are asked for one by one.
const FEW: usize = 8;

/// Create or change models and servers from manifests.
///
/// Every file is checked before anything is sent: a problem in one of them, and nothing is applied.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  gantry apply -f iris.yaml --wait\n  gantry apply -f models/ -R --dry-run\n  \
    cat iris.yaml | gantry apply -f -"
)]
pub(crate) struct Args {
    /// A manifest, a directory of manifests, or - for stdin; may be repeated
    #[arg(short = 'f', long = "filename", required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Look into the directories of directories too
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Say what would happen, also what scheduling would do, and do nothing
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
    let objects = Manifests::read(&args.files, args.recursive)?.checked("Nothing was applied.")?;
    if objects.is_empty() {
        return Err(Failure::usage("there is no object in what was given: nothing was applied"));
    }
    block_on(apply(global, args, objects))
}

async fn apply(global: &Global, args: &Args, objects: Vec<Parsed>) -> Result<(), Failure> {
    let job = Job { global, args, scheduler: Scheduler::connect(global).await? };
    if args.dry_run
        && let Some(plan) = Plan::make(&job.scheduler, &objects).await?
    {
        emit(plan.table(true).render(Style::stdout()))?;
        return if plan.refused() { Err(Failure::said(Exit::Refused)) } else { Ok(()) };
    }
    let known = Known::look(&job.scheduler, &objects).await?;
    let total = objects.len();
    let mut applied = Vec::new();
    let mut refused = None;
    let (servers, models): (Vec<_>, Vec<_>) =
        objects.into_iter().partition(|p| p.object.kind() == Kind::Server);
    // Servers first: a model is placed at once when there is a server for it.
    for batch in [servers, models] {
        let mut results = stream::iter(batch).map(|parsed| job.one(parsed, &known)).buffered(AT_ONCE);
        while let Some((parsed, result)) = results.next().await {
            let what = reference_of(&parsed);
            match result {
                Ok(change) => {
                    let suffix = if args.dry_run { " (dry run)" } else { "" };
                    emit_line(&format!("{what} {}{suffix}", change.word()))?;
                    applied.push(what);
                }
                // Who cannot be reached now will not be reached for the next object either.
                Err(failure) if matches!(failure.exit, Exit::Unavailable | Exit::Timeout) => {
                    return Err(failure);
                }
                Err(failure) => {
                    say(&format!("{}:{}: {what} was refused: {failure}", parsed.file, parsed.line));
                    refused.get_or_insert(failure.exit);
                }
            }
        }
    }
    if let Some(exit) = refused {
        say(&format!("{} of {total} applied.", applied.len()));
        return Err(Failure::said(exit));
    }
    if args.wait && !args.dry_run {
        wait::until(&job.scheduler, &applied, &Goal::Ready, global.wait_timeout(), wait::announce).await?;
    }
    Ok(())
}

fn reference_of(parsed: &Parsed) -> Reference {
    Reference { kind: parsed.object.kind(), name: parsed.object.name().to_owned() }
}

/// What the scheduler knew before anything was applied.
#[derive(Default)]
struct Known {
    models: BTreeMap<String, ModelView>,
    servers: BTreeMap<String, ServerView>,
}

impl Known {
    /// Asks for the objects one by one when they are few, for everything when they are many.
    async fn look(scheduler: &Scheduler, objects: &[Parsed]) -> Result<Self, Failure> {
        let mut known = Self::default();
        let (models, servers) = if objects.len() > FEW {
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
        known.models.extend(models.into_iter().map(|m| (m.model_name.clone(), m.into())));
        known.servers.extend(servers.into_iter().map(|s| (s.server_name.clone(), s.into())));
        Ok(known)
    }
}

/// What applying needs for every object.
struct Job<'a> {
    global: &'a Global,
    args: &'a Args,
    scheduler: Scheduler,
}

impl Job<'_> {
    async fn one(&self, parsed: Parsed, known: &Known) -> (Parsed, Result<Change, Failure>) {
        let result = match &parsed.object {
            Object::Model(model) => {
                self.model(&reference_of(&parsed), model, known.models.get(parsed.object.name())).await
            }
            Object::Server(server) => self.server(server, known.servers.get(parsed.object.name())).await,
        };
        (parsed, result)
    }

    async fn model(
        &self,
        what: &Reference,
        model: &Model,
        before: Option<&ModelView>,
    ) -> Result<Change, Failure> {
        let wanted = model.to_proto();
        let current = before.filter(|m| !m.deleted).and_then(ModelView::latest);
        let change = match current {
            None => Change::Created,
            Some(version) if comparable(&version.definition) == comparable(&wanted) => Change::Unchanged,
            Some(_) => Change::Configured,
        };
        if self.args.dry_run {
            return Ok(change);
        }
        if before.is_some_and(|m| m.deleted && !m.is_gone()) {
            // The name is free once the deleted model has been unloaded.
            say(&format!("{what} is still being deleted; waiting for that"));
            let (one, timeout) = (std::slice::from_ref(what), self.global.wait_timeout());
            wait::until(&self.scheduler, one, &Goal::Deleted, timeout, wait::quiet).await?;
        }
        self.scheduler.load(wanted).await?;
        let had_failed = current.is_some_and(|v| v.state == ModelState::ModelFailed);
        if change == Change::Unchanged && had_failed {
            say(&format!("{what} had failed; it is tried again"));
        }
        Ok(change)
    }

    async fn server(&self, server: &Server, before: Option<&ServerView>) -> Result<Change, Failure> {
        let wanted = server.to_proto();
        // The scheduler does not tell the bounds, so a manifest that sets some may always change them.
        let bounded = wanted.min_replicas > 0 || wanted.max_replicas > 0;
        let change = match before.filter(|s| !s.is_gone()) {
            None => Change::Created,
            Some(now) if now.expected.unsigned_abs() == wanted.expected_replicas && !bounded => {
                Change::Unchanged
            }
            Some(_) => Change::Configured,
        };
        if !self.args.dry_run {
            self.scheduler.expect(wanted).await?;
        }
        Ok(change)
    }
}

/// A definition without what is learned after it was asked for.
fn comparable(model: &pb::Model) -> pb::Model {
    let mut model = model.clone();
    if let Some(spec) = &mut model.model_spec {
        spec.model_runtime_info = None;
    }
    model
}
