//! Pipelines and experiments: the verbs exist, and the scheduler says itself that it has none yet.

use super::{
    args::{Control, List, Load, Unload},
    failure,
    objects::{Line, SUBSCRIBER},
    place::Speaker,
    table::Table,
};
use crate::{
    client::{changing, collect},
    failure::Failure,
    output::emit,
};
use gantry_api::nearest;
use gantry_proto::scheduler as pb;
use std::path::Path;

/// Kinds that the contract has and this version does not serve: the scheduler says so itself.
#[derive(Clone, Copy, Debug)]
pub(super) enum Later {
    Pipeline,
    Experiment,
}

impl Later {
    const fn name(self) -> &'static str {
        match self {
            Self::Pipeline => "Pipeline",
            Self::Experiment => "Experiment",
        }
    }
}

/// `pipeline load`, `experiment start`.
pub(super) async fn load(speaker: &Speaker, args: &Load, kind: Later) -> Result<(), Failure> {
    let names = names_in(&args.file, kind)?;
    let line = Line::open(speaker, &args.change.control).await?;
    if let Some(name) = names.into_iter().next() {
        // Whether the scheduler has such a thing at all is asked with a call that changes nothing: what a manifest says
        // cannot be sent yet, and half of it must not be.
        known(&line, Some(name.clone()), kind).await?;
        return Err(failure::failed(format!(
            "{} {name} was not sent: the scheduler takes it, but this version cannot say it yet",
            kind.name()
        )));
    }
    Ok(())
}

/// The names in a manifest whose kind has no type of its own yet.
fn names_in(file: &Path, kind: Later) -> Result<Vec<String>, Failure> {
    let at = file.display();
    let text = if file.as_os_str() == "-" {
        std::io::read_to_string(std::io::stdin().lock())
    } else {
        std::fs::read_to_string(file)
    };
    let text = text.map_err(|e| failure::usage(format!("{at}: {e}")))?;
    let documents: Vec<serde_json::Value> =
        serde_saphyr::from_multiple(&text).map_err(|e| failure::usage(format!("{at}: {e}")))?;
    let mut names = Vec::new();
    for document in documents {
        let word = |pointer: &str| document.pointer(pointer).and_then(|v| v.as_str()).unwrap_or_default();
        let found = word("/kind");
        if found != kind.name() {
            let meant =
                nearest(found, [kind.name()]).map(|k| format!(". Did you mean {k}?")).unwrap_or_default();
            let found = found.escape_debug();
            return Err(failure::usage(format!("{at}: kind is \"{found}\", not {}{meant}", kind.name())));
        }
        names.push(word("/metadata/name").to_owned());
    }
    Ok(names)
}

/// A row for each that is known, or for one of them.
async fn known(line: &Line<'_>, name: Option<String>, kind: Later) -> Result<Vec<[String; 3]>, Failure> {
    let mut client = line.scheduler.client();
    let subscriber_name = SUBSCRIBER.to_owned();
    match kind {
        Later::Pipeline => {
            let request = pb::PipelineStatusRequest { subscriber_name, name, all_versions: false };
            let found = line
                .call(async { collect(client.pipeline_status(request).await?.into_inner()).await })
                .await?;
            let row = |one: pb::PipelineStatusResponse| {
                let state = one.versions.last().and_then(|v| v.state.clone()).unwrap_or_default();
                [one.pipeline_name, state.status().as_str_name().to_owned(), state.reason]
            };
            Ok(found.into_iter().map(row).collect())
        }
        Later::Experiment => {
            let request = pb::ExperimentStatusRequest { subscriber_name, name };
            let found = line
                .call(async { collect(client.experiment_status(request).await?.into_inner()).await })
                .await?;
            let row = |one: pb::ExperimentStatusResponse| {
                [one.experiment_name, one.active.to_string(), String::new()]
            };
            Ok(found.into_iter().map(row).collect())
        }
    }
}

/// `pipeline unload`, `experiment stop`.
pub(super) async fn unload(speaker: &Speaker, args: &Unload, kind: Later) -> Result<(), Failure> {
    let names = match (&args.name, &args.file) {
        (Some(name), _) => vec![name.clone()],
        (None, Some(file)) => names_in(file, kind)?,
        (None, None) => Vec::new(),
    };
    let line = Line::open(speaker, &args.change.control).await?;
    for name in names {
        let mut client = line.scheduler.client();
        match kind {
            Later::Pipeline => {
                let request = pb::UnloadPipelineRequest { name };
                line.show_request("UnloadPipelineRequest", &request)?;
                let answer = line.call(client.unload_pipeline(changing(request))).await?;
                line.show_response("UnloadPipelineResponse", answer.get_ref())?;
            }
            Later::Experiment => {
                let request = pb::StopExperimentRequest { name };
                line.show_request("StopExperimentRequest", &request)?;
                let answer = line.call(client.stop_experiment(changing(request))).await?;
                line.show_response("StopExperimentResponse", answer.get_ref())?;
            }
        }
    }
    Ok(())
}

/// `pipeline status`, `experiment status`.
pub(super) async fn status(
    speaker: &Speaker,
    control: &Control,
    name: &str,
    kind: Later,
) -> Result<(), Failure> {
    let line = Line::open(speaker, control).await?;
    let mut client = line.scheduler.client();
    let (subscriber_name, name) = (SUBSCRIBER.to_owned(), Some(name.to_owned()));
    match kind {
        Later::Pipeline => {
            let request = pb::PipelineStatusRequest { subscriber_name, name, all_versions: false };
            line.show_request("PipelineStatusRequest", &request)?;
            let found = line
                .call(async { collect(client.pipeline_status(request).await?.into_inner()).await })
                .await?;
            found.iter().try_for_each(|one| line.show_response("PipelineStatusResponse", one))
        }
        Later::Experiment => {
            let request = pb::ExperimentStatusRequest { subscriber_name, name };
            line.show_request("ExperimentStatusRequest", &request)?;
            let found = line
                .call(async { collect(client.experiment_status(request).await?.into_inner()).await })
                .await?;
            found.iter().try_for_each(|one| line.show_response("ExperimentStatusResponse", one))
        }
    }
}

/// `pipeline list`, `experiment list`.
pub(super) async fn list(speaker: &Speaker, args: &List, kind: Later) -> Result<(), Failure> {
    let control = Control {
        scheduler_host: args.scheduler_host.clone(),
        authority: args.authority.clone(),
        ..Control::default()
    };
    let line = Line::open(speaker, &control).await?;
    let rows = known(&line, None, kind).await?;
    let mut table = match kind {
        Later::Pipeline => Table::new(&["pipeline", "state", "reason"]),
        Later::Experiment => Table::new(&["experiment", "active"]),
    };
    for [name, state, reason] in &rows {
        match kind {
            Later::Pipeline => table.row([name.as_str(), state.as_str(), reason.as_str()]),
            Later::Experiment => table.row([name.as_str(), state.as_str()]),
        }
    }
    emit(table.render())
}
