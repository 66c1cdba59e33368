//! Experiments in `seldon.mlops.scheduler.Scheduler`.

use super::{Stream, identity, subscribe, within_deadline};
use crate::{access::Caller, audit::Object, convert, engine::Handle, status};
use gantry_core::scheduling::Command;
use gantry_proto::scheduler as pb;
use std::sync::Arc;
use tonic::{Request, Response, Status};

pub(super) async fn start(
    engine: &Handle,
    request: Request<pb::StartExperimentRequest>,
) -> Result<Response<pb::StartExperimentResponse>, Status> {
    let (metadata, extensions, request) = request.into_parts();
    let caller = Caller::of(&extensions)?;
    let Some(experiment) = request.experiment else {
        return Err(Status::failed_precondition("experiment is missing from the request"));
    };
    let kubernetes = experiment.kubernetes_meta.as_ref();
    caller.change().add(Object::new("experiment", &experiment.name).in_kubernetes(kubernetes));
    let by = identity::loading_owner(&caller, &metadata, kubernetes)?;
    let mut encoded = convert::experiment(experiment)?;
    encoded.definition.replaces = identity::replaced_generation(&metadata);
    let name = encoded.definition.name.clone();
    within_deadline(engine.start_experiment(encoded, by)).await?;
    tracing::info!(experiment = %name, "experiment accepted");
    Ok(Response::new(pb::StartExperimentResponse {}))
}

pub(super) async fn stop(
    engine: &Handle,
    request: Request<pb::StopExperimentRequest>,
) -> Result<Response<pb::StopExperimentResponse>, Status> {
    let (metadata, extensions, pb::StopExperimentRequest { name }) = request.into_parts();
    let caller = Caller::of(&extensions)?;
    caller.change().add(Object::new("experiment", &name));
    let by = identity::deleting_owner(&caller, &metadata)?;
    within_deadline(engine.command(Command::StopExperiment { name: name.as_str().into(), by })).await?;
    tracing::info!(experiment = %name, "experiment stop requested");
    Ok(Response::new(pb::StopExperimentResponse {}))
}

pub(super) fn status(
    engine: &Handle,
    request: pb::ExperimentStatusRequest,
) -> Result<Response<Stream<pb::ExperimentStatusResponse>>, Status> {
    let names = match request.name {
        None => engine.read_model.experiments(),
        Some(name) if engine.read_model.experiment(&name).is_some() => vec![name.into()],
        Some(name) => return Err(Status::failed_precondition(format!("experiment {name} not found"))),
    };
    Ok(subscribe::snapshot(engine, names, |engine, name| {
        engine.read_model.experiment(name).map(|v| status::experiment(name, &v))
    }))
}

pub(super) fn subscribe(engine: &Handle) -> Response<Stream<pb::ExperimentStatusResponse>> {
    let describe = |engine: &Handle, name: &Arc<str>| {
        engine.read_model.experiment(name).map(|v| status::experiment(name, &v)).into_iter().collect()
    };
    subscribe::subscribe(engine, "experiment", &engine.experiments, |e| e.read_model.experiments(), describe)
}
