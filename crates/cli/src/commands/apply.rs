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
    view::{ModelView, Readiness, Resource},
};
use futures::{StreamExt as _, stream};
use gantry_api::{Kind, Object, Parsed};
use gantry_proto::scheduler as pb;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

/// Concurrent requests.
const CONCURRENCY: usize = 32;
/// Up to this many objects, current state is fetched per object instead of listing everything.
const FETCH_EACH_MAX: usize = 8;

/// Create or update models, servers, pipelines, experiments and rollout policies from manifests.
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
    let manifests = Manifests::read(&args.files, args.recursive)?.with_resolved_policies();
    let objects = manifests.checked("Nothing was applied.")?;
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
    let mut batches: BTreeMap<Kind, Vec<Parsed>> = BTreeMap::new();
    for parsed in objects {
        batches.entry(parsed.object.kind()).or_default().push(parsed);
    }
    // Servers first, so that models can be placed immediately, and policies, which govern their updates; then what
    // needs models.
    for batch in batches.into_values() {
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
struct CurrentState(BTreeMap<ObjectRef, Resource>);

impl CurrentState {
    async fn fetch(scheduler: &Scheduler, objects: &[Parsed]) -> Result<Self, CommandError> {
        let mut found = Vec::new();
        if objects.len() > FETCH_EACH_MAX {
            let kinds: BTreeSet<Kind> = objects.iter().map(|p| p.object.kind()).collect();
            for kind in kinds {
                found.extend(scheduler.resources(kind, false).await?);
            }
        } else {
            for parsed in objects {
                found.extend(scheduler.resource(&object_ref(parsed), false).await?);
            }
        }
        Ok(Self(found.into_iter().map(|resource| (resource.object_ref(), resource)).collect()))
    }
}

struct Applier<'a> {
    global: &'a Global,
    args: &'a Args,
    scheduler: Scheduler,
}

impl Applier<'_> {
    async fn apply(&self, parsed: Parsed, current: &CurrentState) -> (Parsed, Result<Change, CommandError>) {
        let object = object_ref(&parsed);
        let result = self.apply_object(&object, &parsed.object, current.0.get(&object)).await;
        (parsed, result)
    }

    async fn apply_object(
        &self,
        object: &ObjectRef,
        desired: &Object,
        before: Option<&Resource>,
    ) -> Result<Change, CommandError> {
        let change = match before.filter(|found| !found.is_deleted()) {
            None => Change::Created,
            Some(now) if is_same(now, desired) => Change::Unchanged,
            Some(_) => Change::Configured,
        };
        if self.args.dry_run {
            return Ok(change);
        }
        // The scheduler refuses the name until nothing is left of a deleted model or pipeline.
        let blocked = matches!(object.kind, Kind::Model | Kind::Pipeline);
        if blocked && before.is_some_and(|found| found.is_deleted() && !found.is_terminated()) {
            print_stderr(&format!("waiting for the deletion of {object}"));
            let (one, timeout) = (std::slice::from_ref(object), self.global.wait_timeout());
            wait::until(&self.scheduler, one, &Goal::Deleted, timeout, false).await?;
        }
        self.scheduler.apply(desired).await?;
        let had_failed = before.is_some_and(|found| found.readiness() == Readiness::Failed);
        if change == Change::Unchanged && had_failed {
            print_stderr(&format!("{object} had failed; retrying"));
        }
        Ok(change)
    }
}

/// Whether an object has the desired definition.
fn is_same(now: &Resource, desired: &Object) -> bool {
    match (now, desired) {
        (Resource::Model(now), Object::Model(desired)) => ModelView::latest(now)
            .is_some_and(|v| comparable(&v.definition) == comparable(&desired.to_proto())),
        (Resource::Server(now), Object::Server(desired)) => {
            let desired = desired.to_proto();
            // The status does not contain the bounds, so a manifest with bounds may always change them.
            let bounded = desired.min_replicas > 0 || desired.max_replicas > 0;
            now.expected.unsigned_abs() == desired.expected_replicas && !bounded
        }
        (Resource::Pipeline(now), Object::Pipeline(desired)) => now.latest().is_some_and(|version| {
            let now = pb::Pipeline { uid: String::new(), version: 0, ..version.definition.clone() };
            now == desired.to_proto()
        }),
        (Resource::Experiment(now), Object::Experiment(desired)) => now.definition == desired.to_proto(),
        (Resource::RolloutPolicy(now), Object::RolloutPolicy(desired)) => {
            now.spec.as_deref() == Some(&desired.spec)
                && (&now.models, &now.pipelines) == (&desired.models, &desired.pipelines)
        }
        _ => false,
    }
}

/// The definition without fields that the server adds after loading.
fn comparable(model: &pb::Model) -> pb::Model {
    let mut model = model.clone();
    // Statuses do not contain credentials.
    gantry_proto::redact(&mut model);
    if let Some(spec) = &mut model.model_spec {
        spec.model_runtime_info = None;
    }
    model
}
