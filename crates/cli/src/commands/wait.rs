//! `gantry wait`: waits for a state of objects, by subscription rather than polling.

use crate::{
    args::Global,
    client::Scheduler,
    duration,
    error::{CommandError, Exit},
    object_ref::{self, ObjectRef},
    output::emit_line,
    view::{Readiness, Resource},
};
use gantry_api::{Kind, nearest};
use gantry_proto::scheduler::{model_status::ModelState, pipeline_version_state::PipelineStatus};
use std::{collections::BTreeMap, str::FromStr, time::Duration};
use tokio::time::Instant;

/// Wait until objects are ready, deleted or in a state.
///
/// Fails immediately, with the reason, if an object reaches a permanent failure.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  gantry wait model/iris --for=ready\n  \
    gantry wait model iris fraud --for=deleted --timeout 2m\n  gantry wait model/iris --for=ModelFailed\n  \
    gantry wait pipeline/join experiment/half")]
pub(crate) struct Args {
    /// KIND NAME…, or KIND/NAME…
    #[arg(required = true, value_name = "RESOURCE")]
    resources: Vec<String>,
    /// ready, available, deleted, condition=Ready, or a state such as ModelFailed
    #[arg(long = "for", default_value = "ready", value_name = "GOAL")]
    goal: Goal,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    Ready,
    Deleted,
    /// A state of models or pipelines.
    State(&'static str),
}

const MODEL_STATES: [ModelState; 8] = [
    ModelState::ModelProgressing,
    ModelState::ModelAvailable,
    ModelState::ModelFailed,
    ModelState::ModelTerminating,
    ModelState::ModelTerminated,
    ModelState::ModelTerminateFailed,
    ModelState::ScheduleFailed,
    ModelState::ModelScaledDown,
];
const PIPELINE_STATES: [PipelineStatus; 7] = [
    PipelineStatus::PipelineCreate,
    PipelineStatus::PipelineCreating,
    PipelineStatus::PipelineReady,
    PipelineStatus::PipelineFailed,
    PipelineStatus::PipelineTerminate,
    PipelineStatus::PipelineTerminating,
    PipelineStatus::PipelineTerminated,
];

/// The states that goals may name.
fn states() -> impl Iterator<Item = &'static str> {
    MODEL_STATES.map(|s| s.as_str_name()).into_iter().chain(PIPELINE_STATES.map(|s| s.as_str_name()))
}

impl FromStr for Goal {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let lower = text.to_ascii_lowercase();
        let lower = lower.strip_suffix("=true").unwrap_or(&lower);
        match lower {
            "ready"
            | "available"
            | "condition=ready"
            | "condition=modelready"
            | "condition=pipelineready"
            | "condition=experimentready" => return Ok(Self::Ready),
            "deleted" | "delete" => return Ok(Self::Deleted),
            _ => {}
        }
        let named = |state: &&str| {
            let name = state.to_ascii_lowercase();
            name == lower || name.strip_prefix("model") == Some(lower)
        };
        if let Some(state) = states().find(named) {
            return Ok(Self::State(state));
        }
        let goals = ["ready", "available", "deleted", "condition=Ready"];
        let hint = nearest(text, goals.into_iter().chain(states()))
            .map(|near| format!(". Did you mean {near}?"))
            .unwrap_or_default();
        let states: Vec<&str> = states().collect();
        Err(format!(
            "write ready, available, deleted, condition=Ready, or one of {}{hint}",
            states.join(", ")
        ))
    }
}

impl Goal {
    const fn as_str(&self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Deleted => "deleted",
            Self::State(state) => state,
        }
    }
}

pub(crate) async fn run(global: &Global, args: &Args) -> Result<(), CommandError> {
    let objects = object_ref::named(&args.resources)?;
    let scheduler = Scheduler::connect(global).await?;
    until(&scheduler, &objects, &args.goal, global.wait_timeout(), true).await
}

enum Progress {
    Done,
    Failed(CommandError),
    /// The current state, for the timeout message.
    Waiting(String),
}

/// Waits until all objects reached the goal; `print` reports each on stdout.
pub(crate) async fn until(
    scheduler: &Scheduler,
    objects: &[ObjectRef],
    goal: &Goal,
    timeout: Duration,
    print: bool,
) -> Result<(), CommandError> {
    let deadline = Instant::now().checked_add(timeout);
    let mut pending: BTreeMap<ObjectRef, String> = BTreeMap::new();
    let mut kinds: Vec<Kind> = objects.iter().map(|o| o.kind).collect();
    kinds.sort();
    kinds.dedup();
    // Subscribe before the first read, so that no change in between is missed.
    let mut changes = scheduler.watch(&kinds).await?;
    for object in objects {
        let progress = match scheduler.resource(object, false).await? {
            Some(found)
                if !(found.is_terminated() && *goal == Goal::Ready && object.kind != Kind::Server) =>
            {
                progress(object, &found, goal)
            }
            _ => missing_progress(scheduler, object, goal).await,
        };
        record(&mut pending, object, goal, progress, print)?;
    }
    while !pending.is_empty() {
        let timed_out = async {
            match deadline {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let changed = tokio::select! {
            biased;
            changed = changes.next() => changed?,
            () = timed_out => return Err(timeout_error(&pending, goal, timeout)),
        };
        let object = changed.object_ref();
        let progress = progress(&object, &changed, goal);
        if pending.contains_key(&object) {
            record(&mut pending, &object, goal, progress, print)?;
        }
    }
    Ok(())
}

fn record(
    pending: &mut BTreeMap<ObjectRef, String>,
    object: &ObjectRef,
    goal: &Goal,
    progress: Progress,
    print: bool,
) -> Result<(), CommandError> {
    match progress {
        Progress::Done => {
            pending.remove(object);
            if print { emit_line(&format!("{object} {}", goal.as_str())) } else { Ok(()) }
        }
        Progress::Failed(error) => Err(error),
        Progress::Waiting(state) => {
            pending.insert(object.clone(), state);
            Ok(())
        }
    }
}

async fn missing_progress(scheduler: &Scheduler, object: &ObjectRef, goal: &Goal) -> Progress {
    match goal {
        Goal::Deleted | Goal::State("ModelTerminated" | "PipelineTerminated") => Progress::Done,
        _ => Progress::Failed(scheduler.not_found(object).await),
    }
}

fn progress(object: &ObjectRef, found: &Resource, goal: &Goal) -> Progress {
    let failed = || Progress::Failed(CommandError::failed(format!("{object} failed: {}", found.message())));
    match goal {
        Goal::State(state) => match found.state() {
            Some(now) if now == *state => Progress::Done,
            // A permanent failure does not resolve by waiting.
            Some(_) if matches!(*state, "ModelAvailable" | "PipelineReady") => match found.readiness() {
                Readiness::Failed => failed(),
                _ => Progress::Waiting(waiting(found)),
            },
            Some(_) => Progress::Waiting(waiting(found)),
            None => Progress::Failed(CommandError::usage(format!(
                "{object} has no state {state}: wait for ready or deleted"
            ))),
        },
        Goal::Deleted if found.is_terminated() => Progress::Done,
        Goal::Ready if found.is_deleted() && object.kind != Kind::Server => Progress::Failed(
            CommandError::new(Exit::NotFound, format!("{object} was deleted during the wait")),
        ),
        Goal::Ready => match found.readiness() {
            Readiness::Ready => Progress::Done,
            Readiness::Failed => failed(),
            _ => Progress::Waiting(waiting(found)),
        },
        Goal::Deleted => Progress::Waiting(waiting(found)),
    }
}

/// The current state, for the timeout message.
fn waiting(found: &Resource) -> String {
    let message = found.message();
    let state = match found {
        Resource::Model(model) => match model.latest() {
            Some(version) => version.state_name(),
            None => return "it has no version yet".into(),
        },
        Resource::Pipeline(pipeline) => match pipeline.latest() {
            Some(version) => version.state_name(),
            None => return "it has no version yet".into(),
        },
        Resource::Server(_) | Resource::Experiment(_) | Resource::RolloutPolicy(_) => return message,
    };
    let separator = if message.is_empty() { "" } else { ": " };
    format!("it is {state}{separator}{message}")
}

fn timeout_error(pending: &BTreeMap<ObjectRef, String>, goal: &Goal, timeout: Duration) -> CommandError {
    let (goal, timeout) = (goal.as_str(), duration::format(timeout));
    let lines: Vec<String> = pending
        .iter()
        .map(|(object, state)| format!("{object} is not {goal} after {timeout}; {state}"))
        .collect();
    CommandError::new(Exit::Timeout, lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goal_parses_conditions_and_states() {
        for (text, expected) in [
            ("ready", Some(Goal::Ready)),
            ("Available", Some(Goal::Ready)),
            ("condition=Ready", Some(Goal::Ready)),
            ("condition=ModelReady=True", Some(Goal::Ready)),
            ("deleted", Some(Goal::Deleted)),
            ("delete", Some(Goal::Deleted)),
            ("ModelFailed", Some(Goal::State("ModelFailed"))),
            ("failed", Some(Goal::State("ModelFailed"))),
            ("ScheduleFailed", Some(Goal::State("ScheduleFailed"))),
            ("ModelAvailable", Some(Goal::State("ModelAvailable"))),
            ("PipelineReady", Some(Goal::State("PipelineReady"))),
            ("condition=ExperimentReady", Some(Goal::Ready)),
            ("raedy", None),
            ("condition=Foo", None),
        ] {
            assert_eq!(text.parse().ok(), expected, "{text}");
        }
        assert!("raedy".parse::<Goal>().unwrap_err().ends_with("Did you mean ready?"));
    }
}
