//! Pipelines in `seldon.mlops.scheduler.Scheduler`.

use super::{Stream, identity, subscribe, within_deadline};
use crate::{access::Caller, audit::Object, convert, engine::Handle, status};
use gantry_core::scheduling::Command;
use gantry_proto::{chainer, scheduler as pb};
use std::sync::Arc;
use tonic::{Request, Response, Status};

pub(super) async fn load(
    engine: &Handle,
    request: Request<pb::LoadPipelineRequest>,
) -> Result<Response<pb::LoadPipelineResponse>, Status> {
    let (metadata, extensions, request) = request.into_parts();
    let caller = Caller::of(&extensions)?;
    let Some(pipeline) = request.pipeline else {
        return Err(Status::failed_precondition("pipeline is missing from the request"));
    };
    let kubernetes = pipeline.kubernetes_meta.as_ref();
    caller.change().add(Object::new("pipeline", &pipeline.name).in_kubernetes(kubernetes));
    let by = identity::loading_owner(&caller, &metadata, kubernetes)?;
    let mut encoded = convert::pipeline(pipeline)?;
    encoded.definition.replaces = identity::replaced_generation(&metadata);
    let name = encoded.definition.name.clone();
    within_deadline(engine.load_pipeline(encoded, by)).await?;
    tracing::info!(pipeline = %name, "pipeline accepted");
    Ok(Response::new(pb::LoadPipelineResponse {}))
}

pub(super) async fn unload(
    engine: &Handle,
    request: Request<pb::UnloadPipelineRequest>,
) -> Result<Response<pb::UnloadPipelineResponse>, Status> {
    let (metadata, extensions, pb::UnloadPipelineRequest { name }) = request.into_parts();
    let caller = Caller::of(&extensions)?;
    caller.change().add(Object::new("pipeline", &name));
    let by = identity::deleting_owner(&caller, &metadata)?;
    within_deadline(engine.command(Command::UnloadPipeline { name: name.as_str().into(), by })).await?;
    tracing::info!(pipeline = %name, "pipeline unload requested");
    Ok(Response::new(pb::UnloadPipelineResponse {}))
}

pub(super) fn status(
    engine: &Handle,
    request: pb::PipelineStatusRequest,
) -> Result<Response<Stream<pb::PipelineStatusResponse>>, Status> {
    let pb::PipelineStatusRequest { name, all_versions, .. } = request;
    let names = match name {
        None => engine.read_model.pipelines(),
        Some(name) if engine.read_model.pipeline(&name).is_some() => vec![name.into()],
        Some(name) => return Err(Status::failed_precondition(format!("pipeline {name} not found"))),
    };
    Ok(subscribe::snapshot(engine, names, move |engine, name| {
        engine.read_model.pipeline(name).map(|v| status::pipeline(name, &v, all_versions))
    }))
}

pub(super) fn subscribe(engine: &Handle) -> Response<Stream<pb::PipelineStatusResponse>> {
    let describe = |engine: &Handle, name: &Arc<str>| {
        engine.read_model.pipeline(name).map(|v| status::pipeline(name, &v, false)).into_iter().collect()
    };
    subscribe::subscribe(engine, "pipeline", &engine.pipelines, |e| e.read_model.pipelines(), describe)
}

/// A gateway's report whether it can execute a version. Acknowledged routes report everything else.
pub(super) async fn report(
    engine: &Handle,
    message: chainer::PipelineUpdateStatusMessage,
) -> Result<Response<chainer::PipelineUpdateStatusResponse>, Status> {
    if let Some(update) = message.update {
        let failure = (!message.success).then_some(message.reason);
        let (name, uid) = (update.pipeline.into(), update.uid.into());
        within_deadline(engine.command(Command::PipelineReported { name, uid, failure })).await?;
    }
    Ok(Response::new(chainer::PipelineUpdateStatusResponse {}))
}
