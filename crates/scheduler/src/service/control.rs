//! `gantry.v1.Control`: explain, dry-run, adopt.

use super::{answer, identity, within_deadline};
use crate::{access::Caller, audit::Object, clock::Clock, convert, engine::Handle};
use gantry_core::scheduling::{Command, Explanation, Kind, Owner, PlannedChange, State, dry_run, explain};
use gantry_proto::gantry::{self as pb, control_server};
use std::sync::Arc;
use tonic::{Request, Response, Status, metadata::MetadataMap};

const MAX_PLANNED: usize = 10_000;

pub(crate) struct Control {
    pub(crate) engine: Handle,
    pub(crate) clock: Arc<dyn Clock>,
}

fn kind(name: &str) -> Result<Kind, Status> {
    match name {
        "model" => Ok(Kind::Model),
        "server" => Ok(Kind::Server),
        "pipeline" => Ok(Kind::Pipeline),
        "experiment" => Ok(Kind::Experiment),
        other => Err(Status::failed_precondition(format!(
            "unknown kind {other}: use model, server, pipeline or experiment"
        ))),
    }
}

fn not_found(kind: Kind, name: &str) -> Status {
    Status::failed_precondition(format!("{kind} {name} not found: `gantry get {kind}s` lists all"))
}

#[tonic::async_trait]
impl control_server::Control for Control {
    async fn explain(
        &self,
        request: Request<pb::ExplainRequest>,
    ) -> Result<Response<pb::Explanation>, Status> {
        let pb::ExplainRequest { kind: kind_name, name } = request.into_inner();
        let kind = kind(&kind_name)?;
        let now = self.clock.now();
        let object = name.clone();
        let explained = answer(self.engine.query(move |state| match kind {
            Kind::Model => explain::model(state, &object, now),
            Kind::Server => explain::server(state, &object, now),
            Kind::Pipeline => explain::pipeline(state, &object, now),
            Kind::Experiment => explain::experiment(state, &object, now),
            Kind::Service => None,
        }))
        .await?;
        explained.map(|e| Response::new(explanation(e))).ok_or_else(|| not_found(kind, &name))
    }

    async fn plan(&self, request: Request<pb::PlanRequest>) -> Result<Response<pb::PlanResponse>, Status> {
        let (metadata, extensions, request) = request.into_parts();
        let caller = Caller::of(&extensions)?;
        let count = planned_objects(&request);
        if count > MAX_PLANNED {
            return Err(Status::failed_precondition(format!(
                "too many objects in one dry run: {count}, at most {MAX_PLANNED}"
            )));
        }
        let commands = commands(request, &caller, &metadata, &self.engine)?;
        let now = self.clock.now();
        // One at a time, on a copy: the writer makes the copy and does nothing else.
        let _permit = self.engine.dry_runs.acquire().await;
        let state = answer(self.engine.query(State::clone)).await?;
        let run = tokio::task::spawn_blocking(move || dry_run::dry_run(state, commands, now));
        let changes = run.await.map_err(|error| Status::internal(format!("the dry run failed: {error}")))?;
        Ok(Response::new(pb::PlanResponse { changes: changes.into_iter().map(planned).collect() }))
    }

    async fn adopt(&self, request: Request<pb::AdoptRequest>) -> Result<Response<pb::AdoptResponse>, Status> {
        let (metadata, extensions, pb::AdoptRequest { kind: kind_name, name }) = request.into_parts();
        let caller = Caller::of(&extensions)?;
        let by = identity::owner(&caller, &metadata, None)?;
        if by == Owner::Gateway {
            return Err(Status::failed_precondition(
                "`owner` is reserved for gateways: adopt needs a named owner",
            ));
        }
        let kind = kind(&kind_name)?;
        caller.change().add(Object::of_kind(kind, &name));
        let name: Arc<str> = name.into();
        let owner = |owner: Option<&Owner>| owner.map(ToString::to_string).unwrap_or_default();
        let (previous, command) = match kind {
            Kind::Model => {
                let view = self.engine.read_model.model(&name).ok_or_else(|| not_found(kind, &name))?;
                (owner(view.model.owner.as_ref()), Command::AdoptModel { name: name.clone(), by: by.clone() })
            }
            Kind::Pipeline => {
                let view = self.engine.read_model.pipeline(&name).ok_or_else(|| not_found(kind, &name))?;
                let command = Command::AdoptPipeline { name: name.clone(), by: by.clone() };
                (owner(view.pipeline.owner.as_ref()), command)
            }
            Kind::Experiment => {
                let view = self.engine.read_model.experiment(&name).ok_or_else(|| not_found(kind, &name))?;
                let command = Command::AdoptExperiment { name: name.clone(), by: by.clone() };
                (owner(view.experiment.owner.as_ref()), command)
            }
            Kind::Service => return Err(not_found(kind, &name)),
            Kind::Server => {
                let view = self.engine.read_model.server(&name).ok_or_else(|| not_found(kind, &name))?;
                let command = Command::AdoptServer { name: name.clone(), by: by.clone() };
                (view.status.manager.clone(), command)
            }
        };
        within_deadline(self.engine.command(command)).await?;
        tracing::info!(%kind, %name, %previous, owner = %by, "ownership transferred");
        Ok(Response::new(pb::AdoptResponse { previous }))
    }
}

fn planned_objects(request: &pb::PlanRequest) -> usize {
    let pb::PlanRequest {
        models,
        servers,
        unload,
        pipelines,
        experiments,
        unload_pipelines,
        stop_experiments,
    } = request;
    let named = unload.len() + unload_pipelines.len() + stop_experiments.len();
    models.len() + servers.len() + pipelines.len() + experiments.len() + named
}

/// In the order in which the objects need each other.
fn commands(
    request: pb::PlanRequest,
    caller: &Caller,
    metadata: &MetadataMap,
    engine: &Handle,
) -> Result<Vec<Command>, Status> {
    let mut commands = Vec::with_capacity(planned_objects(&request));
    for server in request.servers {
        let by = identity::owner(caller, metadata, server.kubernetes_meta.as_ref())?;
        commands.push(convert::upsert_server(server, by)?);
    }
    for model in request.models {
        let kubernetes = model.meta.as_ref().and_then(|m| m.kubernetes_meta.as_ref());
        let by = identity::owner(caller, metadata, kubernetes)?;
        let definition = Box::new(convert::definition(model)?.definition);
        commands.push(Command::LoadModel { definition, by });
    }
    for pipeline in request.pipelines {
        let by = identity::owner(caller, metadata, pipeline.kubernetes_meta.as_ref())?;
        let definition = Box::new(convert::pipeline(pipeline)?.definition);
        commands.push(Command::LoadPipeline { definition, uid: engine.new_uid(), by });
    }
    for experiment in request.experiments {
        let by = identity::owner(caller, metadata, experiment.kubernetes_meta.as_ref())?;
        let definition = Box::new(convert::experiment(experiment)?.definition);
        commands.push(Command::StartExperiment { definition, by });
    }
    let by = identity::owner(caller, metadata, None)?;
    let names = |names: Vec<String>| names.into_iter().map(Arc::from);
    let stop = |name| Command::StopExperiment { name, by: by.clone() };
    commands.extend(names(request.stop_experiments).map(stop));
    let unload = |name| Command::UnloadPipeline { name, by: by.clone() };
    commands.extend(names(request.unload_pipelines).map(unload));
    let unload = |name| Command::UnloadModel { name, by: by.clone() };
    commands.extend(names(request.unload).map(unload));
    Ok(commands)
}

fn explanation(explained: Explanation) -> pb::Explanation {
    let facts = explained.facts.into_iter();
    pb::Explanation {
        headline: explained.headline,
        reason: explained.reason.to_string(),
        facts: facts.map(|f| pb::Fact { label: f.label.to_owned(), lines: f.lines }).collect(),
        next: explained.next,
    }
}

fn planned(change: PlannedChange) -> pb::PlannedChange {
    pb::PlannedChange {
        kind: change.kind.to_string(),
        name: change.name.to_string(),
        action: change.action as i32,
        from_version: change.from_version.unwrap_or(0),
        to_version: change.to_version.unwrap_or(0),
        effects: change.effects,
        placed: change.placed,
    }
}
