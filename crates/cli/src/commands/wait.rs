//! `gantry wait`: waits for a state of models and servers, by subscription rather than polling.

use crate::{
    args::Global,
    client::Scheduler,
    duration,
    error::{CommandError, Exit},
    object_ref::{self, ObjectRef},
    output::emit_line,
    view::{ModelView, Readiness, ServerView},
};
use gantry_api::{Kind, nearest};
use gantry_proto::scheduler::model_status::ModelState;
use std::{collections::BTreeMap, str::FromStr, time::Duration};
use tokio::time::Instant;

/// Wait until models or servers are ready, deleted or in a state.
///
/// Fails immediately, with the reason, if a model reaches a permanent failure.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  gantry wait model/iris --for=ready\n  \
    gantry wait model iris fraud --for=deleted --timeout 2m\n  gantry wait model/iris --for=ModelFailed")]
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
    State(ModelState),
}

const STATES: [ModelState; 8] = [
    ModelState::ModelProgressing,
    ModelState::ModelAvailable,
    ModelState::ModelFailed,
    ModelState::ModelTerminating,
    ModelState::ModelTerminated,
    ModelState::ModelTerminateFailed,
    ModelState::ScheduleFailed,
    ModelState::ModelScaledDown,
];

impl FromStr for Goal {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let lower = text.to_ascii_lowercase();
        let lower = lower.strip_suffix("=true").unwrap_or(&lower);
        match lower {
            "ready" | "available" | "condition=ready" | "condition=modelready" => return Ok(Self::Ready),
            "deleted" | "delete" => return Ok(Self::Deleted),
            _ => {}
        }
        let named = |state: &ModelState| {
            let name = state.as_str_name().to_ascii_lowercase();
            name == lower || name.strip_prefix("model") == Some(lower)
        };
        if let Some(state) = STATES.into_iter().find(named) {
            return Ok(Self::State(state));
        }
        let goals = ["ready", "available", "deleted", "condition=Ready"];
        let states = STATES.map(|s| s.as_str_name());
        let hint = nearest(text, goals.into_iter().chain(states))
            .map(|near| format!(". Did you mean {near}?"))
            .unwrap_or_default();
        Err(format!(
            "write ready, available, deleted, condition=Ready, or one of {}{hint}",
            states.join(", ")
        ))
    }
}

impl Goal {
    fn as_str(&self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Deleted => "deleted",
            Self::State(state) => state.as_str_name(),
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
    // Subscribe before the first read, so that no change in between is missed.
    let mut models = scheduler.watch_models().await?;
    let mut servers = scheduler.watch_servers().await?;
    for object in objects {
        let progress = match object.kind {
            Kind::Model => match scheduler.model(&object.name, false).await?.map(ModelView::from) {
                Some(model) if !(model.is_terminated() && *goal == Goal::Ready) => {
                    model_progress(object, &model, goal)
                }
                _ => missing_progress(scheduler, object, goal).await,
            },
            Kind::Server => match scheduler.server(&object.name).await?.map(ServerView::from) {
                Some(server) => server_progress(object, &server, goal),
                None => missing_progress(scheduler, object, goal).await,
            },
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
        let (object, progress) = tokio::select! {
            biased;
            changed = models.next() => {
                let model = ModelView::from(changed?);
                let object = ObjectRef { kind: Kind::Model, name: model.name.clone() };
                let progress = model_progress(&object, &model, goal);
                (object, progress)
            }
            changed = servers.next() => {
                let server = ServerView::from(changed?);
                let object = ObjectRef { kind: Kind::Server, name: server.name.clone() };
                let progress = server_progress(&object, &server, goal);
                (object, progress)
            }
            () = timed_out => return Err(timeout_error(&pending, goal, timeout)),
        };
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
        Goal::Deleted | Goal::State(ModelState::ModelTerminated) => Progress::Done,
        _ => Progress::Failed(scheduler.not_found(object).await),
    }
}

fn model_progress(object: &ObjectRef, model: &ModelView, goal: &Goal) -> Progress {
    let Some(version) = model.latest() else { return Progress::Waiting("it has no version yet".into()) };
    let waiting = || {
        let reason = version.message();
        let separator = if reason.is_empty() { "" } else { ": " };
        Progress::Waiting(format!("it is {}{separator}{reason}", version.state_name()))
    };
    let failed = || Progress::Failed(CommandError::failed(format!("{object} failed: {}", version.message())));
    match goal {
        Goal::State(state) if *state == version.state => Progress::Done,
        Goal::Deleted if model.is_terminated() => Progress::Done,
        // A permanent failure does not resolve by waiting.
        Goal::State(ModelState::ModelAvailable) if version.readiness() == Readiness::Failed => failed(),
        Goal::State(_) | Goal::Deleted => waiting(),
        Goal::Ready if model.deleted => Progress::Failed(CommandError::new(
            Exit::NotFound,
            format!("{object} was deleted during the wait"),
        )),
        Goal::Ready => match version.readiness() {
            Readiness::Ready => Progress::Done,
            Readiness::Failed => failed(),
            _ => waiting(),
        },
    }
}

fn server_progress(object: &ObjectRef, server: &ServerView, goal: &Goal) -> Progress {
    match goal {
        Goal::Ready if server.readiness() == Readiness::Ready => Progress::Done,
        Goal::Deleted if server.is_terminated() => Progress::Done,
        Goal::State(_) => Progress::Failed(CommandError::usage(format!(
            "{object} is a server, which has no model states: wait for ready or deleted"
        ))),
        _ => Progress::Waiting(server.message()),
    }
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
            ("ModelFailed", Some(Goal::State(ModelState::ModelFailed))),
            ("failed", Some(Goal::State(ModelState::ModelFailed))),
            ("ScheduleFailed", Some(Goal::State(ModelState::ScheduleFailed))),
            ("ModelAvailable", Some(Goal::State(ModelState::ModelAvailable))),
            ("raedy", None),
            ("condition=Foo", None),
        ] {
            assert_eq!(text.parse().ok(), expected, "{text}");
        }
        assert!("raedy".parse::<Goal>().unwrap_err().ends_with("Did you mean ready?"));
    }
}
