//! `gantry wait`: until models and servers are as they should be. It subscribes; it does not poll.

use crate::{
    args::Global,
    client::Scheduler,
    duration,
    failure::{Exit, Failure},
    output::emit_line,
    reference::{self, Reference},
    view::{ModelView, Readiness, ServerView},
};
use gantry_api::{Kind, nearest};
use gantry_proto::scheduler::model_status::ModelState;
use std::{collections::BTreeMap, str::FromStr, time::Duration};
use tokio::time::Instant;

/// Wait until models or servers are ready, deleted or in a state.
///
/// A model that failed for good ends the wait at once, with its reason.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  gantry wait model/iris --for=ready\n  \
    gantry wait model iris fraud --for=deleted --timeout 2m\n  gantry wait model/iris --for=ModelFailed")]
pub(crate) struct Args {
    /// KIND NAME…, or KIND/NAME…
    #[arg(required = true, value_name = "WHAT")]
    what: Vec<String>,
    /// ready, available, deleted, condition=Ready, or a state such as ModelFailed
    #[arg(long = "for", default_value = "ready", value_name = "GOAL")]
    goal: Goal,
}

/// What is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    Ready,
    Deleted,
    State(ModelState),
}

/// States that a model can be in.
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
        let plain = text.to_ascii_lowercase();
        let plain = plain.strip_suffix("=true").unwrap_or(&plain);
        match plain {
            "ready" | "available" | "condition=ready" | "condition=modelready" => return Ok(Self::Ready),
            "deleted" | "delete" => return Ok(Self::Deleted),
            _ => {}
        }
        let named = |state: &ModelState| {
            let name = state.as_str_name().to_ascii_lowercase();
            name == plain || name.strip_prefix("model") == Some(plain)
        };
        if let Some(state) = STATES.into_iter().find(named) {
            return Ok(Self::State(state));
        }
        let words = ["ready", "available", "deleted", "condition=Ready"];
        let states = STATES.map(|s| s.as_str_name());
        let meant = nearest(text, words.into_iter().chain(states))
            .map(|w| format!(". Did you mean {w}?"))
            .unwrap_or_default();
        Err(format!(
            "write ready, available, deleted, condition=Ready, or one of {}{meant}",
            states.join(", ")
        ))
    }
}

impl Goal {
    fn words(&self) -> String {
        match self {
            Self::Ready => "ready".into(),
            Self::Deleted => "deleted".into(),
            Self::State(state) => state.as_str_name().into(),
        }
    }
}

pub(crate) async fn run(global: &Global, args: &Args) -> Result<(), Failure> {
    let what = reference::named(&args.what)?;
    let scheduler = Scheduler::connect(global).await?;
    until(&scheduler, &what, &args.goal, global.wait_timeout(), announce).await
}

/// Prints what reached its goal.
pub(crate) fn announce(one: &Reference, goal: &Goal) -> Result<(), Failure> {
    emit_line(&format!("{one} {}", goal.words()))
}

/// Keeps quiet, where the goal has been announced already or is not what was asked for.
#[allow(clippy::unnecessary_wraps, reason = "stands where `announce` may stand")]
pub(crate) const fn quiet(_: &Reference, _: &Goal) -> Result<(), Failure> {
    Ok(())
}

/// What is done about an object that reached its goal.
type Reached = fn(&Reference, &Goal) -> Result<(), Failure>;

/// How far one object is.
enum Progress {
    Done,
    Failed(Failure),
    /// Where it is, in words.
    Waiting(String),
}

/// Waits until all of `what` reached the goal.
pub(crate) async fn until(
    scheduler: &Scheduler,
    what: &[Reference],
    goal: &Goal,
    timeout: Duration,
    reached: Reached,
) -> Result<(), Failure> {
    let deadline = Instant::now().checked_add(timeout);
    let mut open: BTreeMap<Reference, String> = BTreeMap::new();
    // Subscribe first, then look: whatever happens in between is in the subscription.
    let mut models = scheduler.watch_models().await?;
    let mut servers = scheduler.watch_servers().await?;
    for one in what {
        let progress = match one.kind {
            Kind::Model => match scheduler.model(&one.name, false).await?.map(ModelView::from) {
                Some(model) if !(model.is_gone() && *goal == Goal::Ready) => of_model(one, &model, goal),
                _ => unknown(scheduler, one, goal).await,
            },
            Kind::Server => match scheduler.server(&one.name).await?.map(ServerView::from) {
                Some(server) => of_server(one, &server, goal),
                None => unknown(scheduler, one, goal).await,
            },
        };
        note(&mut open, one, goal, progress, reached)?;
    }
    while !open.is_empty() {
        let late = async {
            match deadline {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let (one, progress) = tokio::select! {
            biased;
            changed = models.next() => {
                let model = ModelView::from(changed?);
                let one = Reference { kind: Kind::Model, name: model.name.clone() };
                let progress = of_model(&one, &model, goal);
                (one, progress)
            }
            changed = servers.next() => {
                let server = ServerView::from(changed?);
                let one = Reference { kind: Kind::Server, name: server.name.clone() };
                let progress = of_server(&one, &server, goal);
                (one, progress)
            }
            () = late => return Err(out_of_time(&open, goal, timeout)),
        };
        if open.contains_key(&one) {
            note(&mut open, &one, goal, progress, reached)?;
        }
    }
    Ok(())
}

fn note(
    open: &mut BTreeMap<Reference, String>,
    one: &Reference,
    goal: &Goal,
    progress: Progress,
    reached: Reached,
) -> Result<(), Failure> {
    match progress {
        Progress::Done => {
            open.remove(one);
            reached(one, goal)
        }
        Progress::Failed(failure) => Err(failure),
        Progress::Waiting(state) => {
            open.insert(one.clone(), state);
            Ok(())
        }
    }
}

async fn unknown(scheduler: &Scheduler, one: &Reference, goal: &Goal) -> Progress {
    match goal {
        Goal::Deleted | Goal::State(ModelState::ModelTerminated) => Progress::Done,
        _ => Progress::Failed(Failure::new(Exit::NotFound, scheduler.unknown(one).await)),
    }
}

fn of_model(one: &Reference, model: &ModelView, goal: &Goal) -> Progress {
    let Some(version) = model.latest() else { return Progress::Waiting("nothing is known of it yet".into()) };
    let explained = |text: &str| {
        let reason = version.message();
        if reason.is_empty() { text.to_owned() } else { format!("{text}: {reason}") }
    };
    let waiting = || Progress::Waiting(explained(&format!("it is {}", version.state_word())));
    match goal {
        Goal::State(state) if *state == version.state => Progress::Done,
        Goal::Deleted if model.is_gone() => Progress::Done,
        // What failed for good does not become available by waiting.
        Goal::State(ModelState::ModelAvailable) if version.readiness() == Readiness::Failed => {
            Progress::Failed(Failure::failed(format!("{one} failed: {}", version.message())))
        }
        Goal::State(_) | Goal::Deleted => waiting(),
        Goal::Ready if model.deleted => Progress::Failed(Failure::new(
            Exit::NotFound,
            format!("{one} was deleted while it was waited for"),
        )),
        Goal::Ready => match version.readiness() {
            Readiness::Ready => Progress::Done,
            Readiness::Failed => {
                Progress::Failed(Failure::failed(format!("{one} failed: {}", version.message())))
            }
            _ => waiting(),
        },
    }
}

fn of_server(one: &Reference, server: &ServerView, goal: &Goal) -> Progress {
    match goal {
        Goal::Ready if server.readiness() == Readiness::Ready => Progress::Done,
        Goal::Deleted if server.is_gone() => Progress::Done,
        Goal::State(_) => Progress::Failed(Failure::usage(format!(
            "{one} is a server: servers have no states; wait for ready or deleted"
        ))),
        _ => Progress::Waiting(server.message()),
    }
}

fn out_of_time(open: &BTreeMap<Reference, String>, goal: &Goal, timeout: Duration) -> Failure {
    let lines: Vec<String> = open
        .iter()
        .map(|(one, state)| {
            format!("{one} is not {} after {}; {state}", goal.words(), duration::words(timeout))
        })
        .collect();
    Failure::new(Exit::Timeout, lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals() {
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
