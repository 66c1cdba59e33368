//! Pipelines and experiments: the commands exist; the scheduler answers `Unimplemented`.

use super::{
    args::{Control, List, Load, Unload},
    endpoints::Endpoints,
    error,
    objects::{SUBSCRIBER, SchedulerSession},
    table::Table,
};
use crate::{
    client::{as_cli, collect},
    error::CommandError,
    output::emit,
};
use gantry_api::nearest;
use gantry_proto::scheduler as pb;
use std::path::Path;

#[derive(Clone, Copy, Debug)]
pub(super) enum UnsupportedKind {
    Pipeline,
    Experiment,
}

impl UnsupportedKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Pipeline => "Pipeline",
            Self::Experiment => "Experiment",
        }
    }
}

/// `pipeline load`, `experiment start`.
pub(super) async fn load(
    endpoints: &Endpoints,
    args: &Load,
    kind: UnsupportedKind,
) -> Result<(), CommandError> {
    let names = names_in(&args.file, kind)?;
    let session = SchedulerSession::open(endpoints, &args.change.control).await?;
    if let Some(name) = names.into_iter().next() {
        // A read-only call yields the scheduler's own `Unimplemented`; the manifest cannot be converted yet.
        status_rows(&session, Some(name.clone()), kind).await?;
        return Err(error::failed(format!(
            "{} {name} was not sent: this version of the CLI does not support the kind yet",
            kind.name()
        )));
    }
    Ok(())
}

/// The object names in a manifest of a kind without a Rust type.
fn names_in(file: &Path, kind: UnsupportedKind) -> Result<Vec<String>, CommandError> {
    let at = file.display();
    let text = if file.as_os_str() == "-" {
        std::io::read_to_string(std::io::stdin().lock())
    } else {
        std::fs::read_to_string(file)
    };
    let text = text.map_err(|e| error::usage(format!("{at}: {e}")))?;
    let documents: Vec<serde_json::Value> =
        serde_saphyr::from_multiple(&text).map_err(|e| error::usage(format!("{at}: {e}")))?;
    let mut names = Vec::new();
    for document in documents {
        let field = |pointer: &str| document.pointer(pointer).and_then(|v| v.as_str()).unwrap_or_default();
        let found = field("/kind");
        if found != kind.name() {
            let hint =
                nearest(found, [kind.name()]).map(|k| format!(". Did you mean {k}?")).unwrap_or_default();
            let found = found.escape_debug();
            return Err(error::usage(format!("{at}: kind is \"{found}\", not {}{hint}", kind.name())));
        }
        names.push(field("/metadata/name").to_owned());
    }
    Ok(names)
}

/// One row per object, or the row of one object.
async fn status_rows(
    session: &SchedulerSession<'_>,
    name: Option<String>,
    kind: UnsupportedKind,
) -> Result<Vec<[String; 3]>, CommandError> {
    let mut client = session.scheduler.client();
    let subscriber_name = SUBSCRIBER.to_owned();
    match kind {
        UnsupportedKind::Pipeline => {
            let request = pb::PipelineStatusRequest { subscriber_name, name, all_versions: false };
            let found = session
                .call(async { collect(client.pipeline_status(request).await?.into_inner()).await })
                .await?;
            let row = |status: pb::PipelineStatusResponse| {
                let state = status.versions.last().and_then(|v| v.state.clone()).unwrap_or_default();
                [status.pipeline_name, state.status().as_str_name().to_owned(), state.reason]
            };
            Ok(found.into_iter().map(row).collect())
        }
        UnsupportedKind::Experiment => {
            let request = pb::ExperimentStatusRequest { subscriber_name, name };
            let found = session
                .call(async { collect(client.experiment_status(request).await?.into_inner()).await })
                .await?;
            let row = |status: pb::ExperimentStatusResponse| {
                [status.experiment_name, status.active.to_string(), String::new()]
            };
            Ok(found.into_iter().map(row).collect())
        }
    }
}

/// `pipeline unload`, `experiment stop`.
pub(super) async fn unload(
    endpoints: &Endpoints,
    args: &Unload,
    kind: UnsupportedKind,
) -> Result<(), CommandError> {
    let names = match (&args.name, &args.file) {
        (Some(name), _) => vec![name.clone()],
        (None, Some(file)) => names_in(file, kind)?,
        (None, None) => Vec::new(),
    };
    let session = SchedulerSession::open(endpoints, &args.change.control).await?;
    for name in names {
        let mut client = session.scheduler.client();
        match kind {
            UnsupportedKind::Pipeline => {
                let request = pb::UnloadPipelineRequest { name };
                session.show_request("UnloadPipelineRequest", &request)?;
                let response = session.call(client.unload_pipeline(as_cli(request))).await?;
                session.show_response("UnloadPipelineResponse", response.get_ref())?;
            }
            UnsupportedKind::Experiment => {
                let request = pb::StopExperimentRequest { name };
                session.show_request("StopExperimentRequest", &request)?;
                let response = session.call(client.stop_experiment(as_cli(request))).await?;
                session.show_response("StopExperimentResponse", response.get_ref())?;
            }
        }
    }
    Ok(())
}

/// `pipeline status`, `experiment status`.
pub(super) async fn status(
    endpoints: &Endpoints,
    control: &Control,
    name: &str,
    kind: UnsupportedKind,
) -> Result<(), CommandError> {
    let session = SchedulerSession::open(endpoints, control).await?;
    let mut client = session.scheduler.client();
    let (subscriber_name, name) = (SUBSCRIBER.to_owned(), Some(name.to_owned()));
    match kind {
        UnsupportedKind::Pipeline => {
            let request = pb::PipelineStatusRequest { subscriber_name, name, all_versions: false };
            session.show_request("PipelineStatusRequest", &request)?;
            let found = session
                .call(async { collect(client.pipeline_status(request).await?.into_inner()).await })
                .await?;
            found.iter().try_for_each(|status| session.show_response("PipelineStatusResponse", status))
        }
        UnsupportedKind::Experiment => {
            let request = pb::ExperimentStatusRequest { subscriber_name, name };
            session.show_request("ExperimentStatusRequest", &request)?;
            let found = session
                .call(async { collect(client.experiment_status(request).await?.into_inner()).await })
                .await?;
            found.iter().try_for_each(|status| session.show_response("ExperimentStatusResponse", status))
        }
    }
}

/// `pipeline list`, `experiment list`.
pub(super) async fn list(
    endpoints: &Endpoints,
    args: &List,
    kind: UnsupportedKind,
) -> Result<(), CommandError> {
    let control = Control {
        scheduler_host: args.scheduler_host.clone(),
        authority: args.authority.clone(),
        ..Control::default()
    };
    let session = SchedulerSession::open(endpoints, &control).await?;
    let rows = status_rows(&session, None, kind).await?;
    let mut table = match kind {
        UnsupportedKind::Pipeline => Table::new(&["pipeline", "state", "reason"]),
        UnsupportedKind::Experiment => Table::new(&["experiment", "active"]),
    };
    for [name, state, reason] in &rows {
        match kind {
            UnsupportedKind::Pipeline => table.row([name.as_str(), state.as_str(), reason.as_str()]),
            UnsupportedKind::Experiment => table.row([name.as_str(), state.as_str()]),
        }
    }
    emit(table.render())
}
