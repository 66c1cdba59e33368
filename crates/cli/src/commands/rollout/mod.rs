//! `gantry rollout`: the rollouts of models, pipelines and InferenceServices under a policy.

mod document;
mod simulate;
mod text;

use super::status::redraw;
use crate::{
    args::Global,
    client::{RolledOut, Scheduler, block_on},
    error::{CommandError, Exit},
    object_ref::{self, ObjectRef},
    output::{PLACEHOLDER, Style, Table, Tone, emit, emit_line, is_terminal, print_stderr},
};
use clap::{Subcommand, ValueEnum};
use gantry_api::{Kind, RolloutPolicy};
use gantry_proto::gantry::{RolloutStatus, steer_rollout_request::Action};
use serde_json::Value;
use std::time::Duration;

/// Changes within this window are drawn once.
const REDRAW_DEBOUNCE: Duration = Duration::from_millis(100);

/// Watch and steer the rollouts of new versions under a RolloutPolicy.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  gantry rollout status iris\n  gantry rollout watch iris\n  \
    gantry rollout promote iris --full\n  gantry rollout simulate -f careful.yaml --success 0.97 --rate 50")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List all rollouts
    List {
        #[command(flatten)]
        output: Output,
    },
    /// Show the weights, the evidence, and why a rollout holds
    Status {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        output: Output,
    },
    /// Follow a rollout (redraws on a terminal, otherwise prints one line per change)
    Watch {
        #[command(flatten)]
        target: Target,
    },
    /// Continue with the next step without waiting for evidence
    Promote {
        #[command(flatten)]
        target: Target,
        /// Send all requests to the new version at once, without further steps
        #[arg(long)]
        full: bool,
    },
    /// Hold the weights; evidence of harm still rolls back
    Pause {
        #[command(flatten)]
        target: Target,
    },
    /// Continue a paused rollout
    Resume {
        #[command(flatten)]
        target: Target,
    },
    /// Roll back to the old version
    Abort {
        #[command(flatten)]
        target: Target,
    },
    /// Roll out a version again that was rolled back
    Retry {
        #[command(flatten)]
        target: Target,
    },
    /// Return to the version before the last promotion
    Undo {
        #[command(flatten)]
        target: Target,
    },
    /// List the past rollouts of an object, newest first
    History {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        output: Output,
    },
    Simulate(simulate::Args),
}

#[derive(Debug, clap::Args)]
struct Target {
    /// Name of a model, pipeline or InferenceService, or model/NAME, pipeline/NAME or isvc/NAMESPACE/NAME
    #[arg(value_name = "NAME")]
    name: String,
}

/// What a command names.
#[derive(Debug)]
enum Wanted {
    /// Without a kind.
    Name(String),
    /// A model or a pipeline.
    Object(ObjectRef),
    /// A name, or `namespace/name`.
    Service(String),
}

impl Wanted {
    fn is(&self, object: &RolledOut) -> bool {
        let is_service = |name: &str, wanted: &str| {
            name == wanted || name.rsplit_once('/').is_some_and(|(_, name)| name == wanted)
        };
        match (self, object) {
            (Self::Name(wanted) | Self::Service(wanted), RolledOut::Service(name)) => {
                is_service(name, wanted)
            }
            (Self::Name(wanted), RolledOut::Object(object)) => object.name == *wanted,
            (Self::Object(wanted), RolledOut::Object(object)) => object == wanted,
            // Without pods of its own it is a model of the scheduler.
            (Self::Service(wanted), RolledOut::Object(object)) => {
                object.kind == Kind::Model && object.name == *wanted
            }
            (Self::Object(_), RolledOut::Service(_)) => false,
        }
    }
}

impl Target {
    fn wanted(&self) -> Result<Wanted, CommandError> {
        let Some((kind, name)) = self.name.split_once('/') else {
            return Ok(Wanted::Name(self.name.clone()));
        };
        if ["isvc", "inferenceservice", "inferenceservices"].contains(&kind) && !name.is_empty() {
            return Ok(Wanted::Service(name.to_owned()));
        }
        let objects = object_ref::named(std::slice::from_ref(&self.name))?;
        let is_supported = |object: &ObjectRef| matches!(object.kind, Kind::Model | Kind::Pipeline);
        let object = objects.into_iter().find(is_supported);
        object.map(Wanted::Object).ok_or_else(|| {
            let shown = self.name.escape_debug();
            CommandError::usage(format!(
                "{shown} has no rollouts: name a model, a pipeline or an InferenceService"
            ))
        })
    }

    /// The rollout of the object, or why there is none.
    async fn find(&self, scheduler: &Scheduler) -> Result<(RolledOut, RolloutStatus), CommandError> {
        let wanted = self.wanted()?;
        let rollouts = scheduler.rollouts().await?.into_iter();
        let rollouts = rollouts.map(|rollout| (RolledOut::of(&rollout), rollout));
        let mut found: Vec<_> = rollouts.filter(|(object, _)| wanted.is(object)).collect();
        if found.len() > 1 {
            let names: Vec<String> = found.iter().map(|(object, _)| object.to_string()).collect();
            let (name, names) = (&self.name, names.join(" or "));
            return Err(CommandError::usage(format!(
                "{name} names several objects with rollouts: write {names}"
            )));
        }
        match found.pop() {
            Some(found) => Ok(found),
            None => Err(no_rollout(scheduler, wanted).await?),
        }
    }
}

/// Why an object has no rollout.
async fn no_rollout(scheduler: &Scheduler, wanted: Wanted) -> Result<CommandError, CommandError> {
    let of_kind = |kind, name: &str| ObjectRef { kind, name: name.to_owned() };
    let (first, second) = match wanted {
        Wanted::Object(named) => (named, None),
        Wanted::Name(name) => (of_kind(Kind::Model, &name), Some(of_kind(Kind::Pipeline, &name))),
        // The scheduler knows services in pods of their own by their rollouts only.
        Wanted::Service(name) if name.contains('/') => return Ok(without_policy(&RolledOut::Service(name))),
        Wanted::Service(name) => (of_kind(Kind::Model, &name), None),
    };
    for object in std::iter::once(&first).chain(&second) {
        let resource = scheduler.resource(object, false).await?;
        if resource.is_some_and(|resource| !resource.is_deleted()) {
            return Ok(without_policy(&RolledOut::Object(object.clone())));
        }
    }
    Ok(scheduler.not_found(&first).await)
}

#[derive(Debug, clap::Args)]
struct Output {
    /// Output format
    #[arg(short = 'o', long = "output", value_enum, default_value_t = Form::Text, value_name = "FORMAT")]
    form: Form,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// Readable text
    Text,
    /// JSON
    Json,
}

pub(crate) fn run(global: &Global, args: &Args) -> Result<(), CommandError> {
    if let Command::Simulate(args) = &args.command {
        return simulate::run(args);
    }
    block_on(async {
        let scheduler = Scheduler::connect(global).await?;
        match &args.command {
            Command::Simulate(_) => Ok(()),
            Command::List { output } => list(&scheduler, output.form).await,
            Command::Status { target, output } => status(&scheduler, target, output.form).await,
            Command::Watch { target } => watch(&scheduler, target).await,
            Command::History { target, output } => history(&scheduler, target, output.form).await,
            Command::Promote { target, full: false } => steer(&scheduler, target, Action::Promote).await,
            Command::Promote { target, full: true } => steer(&scheduler, target, Action::PromoteFull).await,
            Command::Pause { target } => steer(&scheduler, target, Action::Pause).await,
            Command::Resume { target } => steer(&scheduler, target, Action::Resume).await,
            Command::Abort { target } => steer(&scheduler, target, Action::Abort).await,
            Command::Retry { target } => steer(&scheduler, target, Action::Retry).await,
            Command::Undo { target } => steer(&scheduler, target, Action::Undo).await,
        }
    })
}

async fn list(scheduler: &Scheduler, form: Form) -> Result<(), CommandError> {
    let rollouts = scheduler.rollouts().await?;
    if form == Form::Json {
        let list: Value = rollouts.iter().map(document::rollout).collect();
        return emit(format!("{list:#}\n"));
    }
    if rollouts.is_empty() {
        print_stderr("No rollouts: apply a RolloutPolicy.");
        return Ok(());
    }
    emit(table(&rollouts).render(Style::stdout()))
}

fn table(rollouts: &[RolloutStatus]) -> Table {
    let mut table = Table::new(&["NAME", "POLICY", "PHASE", "STABLE", "CANDIDATE", "WEIGHT", "MESSAGE"]);
    for rollout in rollouts {
        let candidate = rollout.candidate.as_ref();
        let placeholder = || PLACEHOLDER.to_owned();
        let plain = |text: String| (text, Tone::Plain);
        table.row(vec![
            plain(text::reference(rollout)),
            plain(rollout.policy.clone()),
            (text::state(rollout), text::tone(rollout)),
            plain(rollout.stable.as_ref().map_or_else(placeholder, text::version)),
            plain(candidate.map_or_else(placeholder, text::version)),
            plain(candidate.map_or_else(placeholder, |c| format!("{} %", c.weight))),
            plain(text::reason(rollout).to_owned()),
        ]);
    }
    table
}

async fn status(scheduler: &Scheduler, target: &Target, form: Form) -> Result<(), CommandError> {
    let (_, rollout) = target.find(scheduler).await?;
    match form {
        Form::Json => emit(format!("{:#}\n", document::rollout(&rollout))),
        Form::Text => {
            let objective = success_objective(scheduler, &rollout.policy).await?;
            emit(text::page(&rollout, objective, Style::stdout()))
        }
    }
}

async fn history(scheduler: &Scheduler, target: &Target, form: Form) -> Result<(), CommandError> {
    let (object, rollout) = target.find(scheduler).await?;
    match form {
        Form::Json => emit(format!("{:#}\n", document::history(&rollout))),
        Form::Text if rollout.history.is_empty() => {
            print_stderr(&format!("{object} has no past rollouts."));
            Ok(())
        }
        Form::Text => emit(text::history(&rollout).render(Style::stdout())),
    }
}

async fn watch(scheduler: &Scheduler, target: &Target) -> Result<(), CommandError> {
    let (object, first) = target.find(scheduler).await?;
    let objective = success_objective(scheduler, &first.policy).await?;
    let mut changes = scheduler.watch_rollouts().await?;
    let (terminal, style) = (is_terminal(), Style::stdout());
    let mut drawn = 0;
    let mut printed = None;
    loop {
        let mut rollout = changes.next().await?.get(&object).cloned();
        if terminal {
            let debounce = tokio::time::Instant::now() + REDRAW_DEBOUNCE;
            while let Ok(rollouts) = tokio::time::timeout_at(debounce, changes.next()).await {
                rollout = rollouts?.get(&object).cloned();
            }
        }
        let Some(rollout) = rollout else {
            return Err(without_policy(&object));
        };
        if terminal {
            drawn = redraw(&text::page(&rollout, objective, style), drawn)?;
            continue;
        }
        let decision = Some(text::decision(&rollout));
        if decision != printed {
            printed = decision;
            emit_line(&text::sentence(&rollout, objective))?;
        }
    }
}

async fn steer(scheduler: &Scheduler, target: &Target, action: Action) -> Result<(), CommandError> {
    let (object, rollout) = target.find(scheduler).await?;
    if let Err(error) = scheduler.steer_rollout(&object, action).await {
        let remedy = match error.exit {
            Exit::Refused => {
                let (sentence, name) = (text::sentence(&rollout, None), text::reference(&rollout));
                format!("\n{sentence}\nSee gantry rollout status {name}.")
            }
            _ => String::new(),
        };
        return Err(CommandError::new(error.exit, format!("{}{remedy}", error.message)));
    }
    emit_line(&format!("{} {}", object.name(), text::steered(&rollout, action)))
}

fn without_policy(object: &RolledOut) -> CommandError {
    let (kind, name) = (object.kind(), object.name());
    let name = name.rsplit_once('/').map_or(name, |(_, name)| name);
    CommandError::new(
        Exit::NotFound,
        format!(
            "{object} has no rollout policy: apply a RolloutPolicy with targetRef {{kind: {kind}, name: {name}}}"
        ),
    )
}

/// The share of good answers that the policy demands; `None` for a policy of another version.
async fn success_objective(scheduler: &Scheduler, policy: &str) -> Result<Option<f64>, CommandError> {
    let policies = scheduler.policies().await?;
    let policy = policies.iter().find(|found| found.name == policy).and_then(RolloutPolicy::from_proto);
    Ok(policy.and_then(|policy| policy.spec.to_policy().ok()).map(|policy| policy.objectives.success.get()))
}

#[cfg(test)]
mod tests;
