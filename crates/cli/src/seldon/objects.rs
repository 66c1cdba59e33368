//! `load`, `unload`, `status` and `list` of models and servers.

use super::{
    args::{Control, ExperimentStatus, List, Load, Named, Status, StatusAll, Unload, UnloadAll},
    endpoints::Endpoints,
    error,
    protojson::{self, SCHEDULER},
    table::Table,
};
use crate::{
    client::{Scheduler, as_cli, collect},
    commands::wait::{self, Goal},
    error::CommandError,
    manifests::Manifests,
    object_ref::ObjectRef,
    output::{emit, emit_line},
    view::{ExperimentView, ModelView, PipelineView, ServerView},
};
use gantry_api::{Kind, Object, Parsed};
use gantry_proto::scheduler as pb;
use prost::Message;
use std::{path::Path, time::Duration};

/// Subscriber name of the original Seldon CLI.
pub(super) const SUBSCRIBER: &str = "seldon CLI";

/// A scheduler connection that prints requests and responses as configured.
pub(super) struct SchedulerSession<'a> {
    endpoints: &'a Endpoints,
    control: &'a Control,
    pub(super) scheduler: Scheduler,
}

impl<'a> SchedulerSession<'a> {
    pub(super) async fn open(endpoints: &'a Endpoints, control: &'a Control) -> Result<Self, CommandError> {
        let scheduler =
            endpoints.scheduler(control.scheduler_host.as_deref(), control.authority.as_deref()).await?;
        Ok(Self { endpoints, control, scheduler })
    }

    pub(super) fn show_request(&self, name: &str, message: &impl Message) -> Result<(), CommandError> {
        if self.control.show_request {
            emit_line(&protojson::write(SCHEDULER, name, message)?)
        } else {
            Ok(())
        }
    }

    pub(super) fn show_response(&self, name: &str, message: &impl Message) -> Result<(), CommandError> {
        if self.control.show_response {
            emit_line(&protojson::write(SCHEDULER, name, message)?)
        } else {
            Ok(())
        }
    }

    pub(super) async fn call<T>(
        &self,
        call: impl Future<Output = Result<T, tonic::Status>>,
    ) -> Result<T, CommandError> {
        let timed_out = || {
            let message = format!("the scheduler did not answer within {:?}", self.endpoints.call_timeout);
            tonic::Status::deadline_exceeded(message)
        };
        tokio::time::timeout(self.endpoints.call_timeout, call)
            .await
            .unwrap_or_else(|_| Err(timed_out()))
            .map_err(|s| error::status(&s, self.endpoints.as_seldon))
    }

    async fn load(&self, object: &Object) -> Result<(), CommandError> {
        let mut client = self.scheduler.client();
        match object {
            Object::Model(model) => {
                let request = pb::LoadModelRequest { model: Some(model.to_proto()) };
                self.show_request("LoadModelRequest", &request)?;
                let response = self.call(client.load_model(as_cli(request))).await?;
                self.show_response("LoadModelResponse", response.get_ref())
            }
            Object::Server(server) => self.notify(server.to_proto()).await,
            Object::Pipeline(pipeline) => {
                let request = pb::LoadPipelineRequest { pipeline: Some(pipeline.to_proto()) };
                self.show_request("LoadPipelineRequest", &request)?;
                let response = self.call(client.load_pipeline(as_cli(request))).await?;
                self.show_response("LoadPipelineResponse", response.get_ref())
            }
            Object::Experiment(experiment) => {
                let request = pb::StartExperimentRequest { experiment: Some(experiment.to_proto()) };
                self.show_request("StartExperimentRequest", &request)?;
                let response = self.call(client.start_experiment(as_cli(request))).await?;
                self.show_response("StartExperimentResponse", response.get_ref())
            }
            Object::RolloutPolicy(_) => Err(policy_error("apply")),
        }
    }

    async fn notify(&self, server: pb::ServerNotify) -> Result<(), CommandError> {
        let mut client = self.scheduler.client();
        let request = pb::ServerNotifyRequest { servers: vec![server], is_first_sync: false };
        self.show_request("ServerNotifyRequest", &request)?;
        let response = self.call(client.server_notify(as_cli(request))).await?;
        self.show_response("ServerNotifyResponse", response.get_ref())
    }

    async fn unload(&self, kind: Kind, name: &str) -> Result<(), CommandError> {
        let mut client = self.scheduler.client();
        let name = name.to_owned();
        match kind {
            Kind::Server => self.notify(pb::ServerNotify { name, shared: true, ..Default::default() }).await,
            Kind::Model => {
                let model = pb::ModelReference { name, version: None };
                let request = pb::UnloadModelRequest { model: Some(model), kubernetes_meta: None };
                self.show_request("UnloadModelRequest", &request)?;
                let response = self.call(client.unload_model(as_cli(request))).await?;
                self.show_response("UnloadModelResponse", response.get_ref())
            }
            Kind::Pipeline => {
                let request = pb::UnloadPipelineRequest { name };
                self.show_request("UnloadPipelineRequest", &request)?;
                let response = self.call(client.unload_pipeline(as_cli(request))).await?;
                self.show_response("UnloadPipelineResponse", response.get_ref())
            }
            Kind::Experiment => {
                let request = pb::StopExperimentRequest { name };
                self.show_request("StopExperimentRequest", &request)?;
                let response = self.call(client.stop_experiment(as_cli(request))).await?;
                self.show_response("StopExperimentResponse", response.get_ref())
            }
            Kind::RolloutPolicy => Err(policy_error("delete")),
        }
    }

    async fn print(&self, object: &ObjectRef) -> Result<(), CommandError> {
        let name = object.name.as_str();
        match object.kind {
            Kind::Model => self.print_model(name).await,
            Kind::Server => self.print_server(name).await,
            Kind::Pipeline => self.print_pipeline(name).await,
            Kind::Experiment => self.print_experiment(name).await,
            Kind::RolloutPolicy => Err(policy_error("get")),
        }
    }

    async fn print_pipeline(&self, name: &str) -> Result<(), CommandError> {
        let mut client = self.scheduler.client();
        let request = pb::PipelineStatusRequest {
            subscriber_name: SUBSCRIBER.into(),
            name: Some(name.to_owned()),
            all_versions: false,
        };
        self.show_request("PipelineStatusRequest", &request)?;
        let found =
            self.call(async { collect(client.pipeline_status(request).await?.into_inner()).await }).await?;
        found.iter().try_for_each(|status| self.show_response("PipelineStatusResponse", status))
    }

    async fn print_experiment(&self, name: &str) -> Result<(), CommandError> {
        let mut client = self.scheduler.client();
        let request =
            pb::ExperimentStatusRequest { subscriber_name: SUBSCRIBER.into(), name: Some(name.to_owned()) };
        self.show_request("ExperimentStatusRequest", &request)?;
        let found =
            self.call(async { collect(client.experiment_status(request).await?.into_inner()).await }).await?;
        found.iter().try_for_each(|status| self.show_response("ExperimentStatusResponse", status))
    }

    async fn print_model(&self, name: &str) -> Result<(), CommandError> {
        let mut client = self.scheduler.client();
        let request = pb::ModelStatusRequest {
            subscriber_name: SUBSCRIBER.into(),
            model: Some(pb::ModelReference { name: name.to_owned(), version: None }),
            all_versions: false,
        };
        self.show_request("ModelStatusRequest", &request)?;
        let found =
            self.call(async { collect(client.model_status(request).await?.into_inner()).await }).await?;
        found.iter().try_for_each(|status| self.show_response("ModelStatusResponse", status))
    }

    async fn print_server(&self, name: &str) -> Result<(), CommandError> {
        let mut client = self.scheduler.client();
        let request =
            pb::ServerStatusRequest { subscriber_name: SUBSCRIBER.into(), name: Some(name.to_owned()) };
        self.show_request("ServerStatusRequest", &request)?;
        let found =
            self.call(async { collect(client.server_status(request).await?.into_inner()).await }).await?;
        found.iter().try_for_each(|status| self.show_response("ServerStatusResponse", status))
    }

    /// Waits, then prints the status; an empty response for models and servers.
    async fn wait(&self, object: &ObjectRef, goal: &Goal, seconds: Option<u64>) -> Result<(), CommandError> {
        let limit = seconds.map_or(self.endpoints.wait_timeout, Duration::from_secs);
        let one = std::slice::from_ref(object);
        wait::until(&self.scheduler, one, goal, limit, false).await.map_err(error::other)?;
        match object.kind {
            Kind::Model | Kind::Server => self.show_response("LoadModelResponse", &pb::LoadModelResponse {}),
            Kind::Pipeline | Kind::Experiment | Kind::RolloutPolicy => self.print(object).await,
        }
    }
}

/// Seldon has no such kind.
fn policy_error(command: &str) -> CommandError {
    CommandError::usage(format!("a RolloutPolicy is not a kind of the Seldon CLI: use gantry {command}"))
}

/// The objects of a manifest; with `kind`, all of that kind.
fn read(file: &Path, kind: Option<Kind>) -> Result<Vec<Parsed>, CommandError> {
    let manifests = Manifests::read(&[file.to_owned()], false).map_err(error::other)?;
    if !manifests.problems.is_empty() {
        let lines: Vec<String> = manifests.problems.iter().map(ToString::to_string).collect();
        // Scripts match the first line; location and remedy follow.
        let unknown = manifests.problems.iter().find(|p| p.message.starts_with("is not a field of"));
        return Err(match unknown {
            Some(problem) => {
                let field = problem.path.rsplit('.').next().unwrap_or(&problem.path);
                error::usage(format!("json: unknown field \"{field}\"\n{}", lines.join("\n")))
            }
            None => error::usage(lines.join("\n")),
        });
    }
    if manifests.objects.is_empty() {
        return Err(error::usage(format!("{} contains no objects", file.display())));
    }
    if let Some(kind) = kind
        && let Some(other) = manifests.objects.iter().find(|p| p.object.kind() != kind)
    {
        let (file, line) = (&other.file, other.line);
        return Err(error::usage(format!(
            "{file}:{line}: kind is {}, but this command accepts {}: use `load -f` for mixed files",
            other.object.kind().name(),
            kind.name()
        )));
    }
    Ok(manifests.objects)
}

/// `load -f`, `model load -f`, `pipeline load -f`, `experiment start -f`, `server load -f`.
pub(super) async fn load(endpoints: &Endpoints, args: &Load, kind: Option<Kind>) -> Result<(), CommandError> {
    let mut objects = read(&args.file, kind)?;
    objects.sort_by_key(|p| p.object.kind());
    let session = SchedulerSession::open(endpoints, &args.change.control).await?;
    for parsed in &objects {
        session.load(&parsed.object).await?;
    }
    Ok(())
}

/// `model unload`, `pipeline unload`, `experiment stop`, `server unload`.
pub(super) async fn unload(endpoints: &Endpoints, args: &Unload, kind: Kind) -> Result<(), CommandError> {
    let names = match (&args.name, &args.file) {
        (Some(name), _) => vec![name.clone()],
        (None, Some(file)) => read(file, Some(kind))?.iter().map(|p| p.object.name().to_owned()).collect(),
        (None, None) => Vec::new(),
    };
    let session = SchedulerSession::open(endpoints, &args.change.control).await?;
    for name in names {
        session.unload(kind, &name).await?;
    }
    Ok(())
}

/// `unload -f`.
pub(super) async fn unload_all(endpoints: &Endpoints, args: &UnloadAll) -> Result<(), CommandError> {
    let mut objects = read(&args.file, None)?;
    // The reverse of load.
    objects.sort_by_key(|p| std::cmp::Reverse(p.object.kind()));
    let session = SchedulerSession::open(endpoints, &args.change.control).await?;
    for parsed in &objects {
        session.unload(parsed.object.kind(), parsed.object.name()).await?;
    }
    Ok(())
}

/// `status -f`.
pub(super) async fn status_all(endpoints: &Endpoints, args: &StatusAll) -> Result<(), CommandError> {
    let objects = read(&args.file, None)?;
    let session = SchedulerSession::open(endpoints, &args.control).await?;
    for parsed in &objects {
        let object = ObjectRef { kind: parsed.object.kind(), name: parsed.object.name().to_owned() };
        if args.wait {
            session.wait(&object, &Goal::Ready, args.timeout_secs).await?;
        } else {
            session.print(&object).await?;
        }
    }
    Ok(())
}

/// `model status`, `pipeline status`.
pub(super) async fn status(endpoints: &Endpoints, args: &Status, kind: Kind) -> Result<(), CommandError> {
    let goal = args.wait.as_deref().map(str::parse::<Goal>).transpose();
    let goal = goal.map_err(|e| error::usage(format!("--wait: {e}")))?;
    let session = SchedulerSession::open(endpoints, &args.control).await?;
    let object = ObjectRef { kind, name: args.name.clone() };
    match goal {
        Some(goal) => session.wait(&object, &goal, args.timeout_secs).await,
        None => session.print(&object).await,
    }
}

/// `experiment status`.
pub(super) async fn experiment_status(
    endpoints: &Endpoints,
    args: &ExperimentStatus,
) -> Result<(), CommandError> {
    let session = SchedulerSession::open(endpoints, &args.control).await?;
    let object = ObjectRef { kind: Kind::Experiment, name: args.name.clone() };
    if args.wait {
        session.wait(&object, &Goal::Ready, args.timeout_secs).await
    } else {
        session.print(&object).await
    }
}

/// `server status`.
pub(super) async fn server_status(endpoints: &Endpoints, args: &Named) -> Result<(), CommandError> {
    SchedulerSession::open(endpoints, &args.control).await?.print_server(&args.name).await
}

/// `pipeline list`.
pub(super) async fn list_pipelines(endpoints: &Endpoints, args: &List) -> Result<(), CommandError> {
    let scheduler = endpoints.scheduler(args.scheduler_host.as_deref(), args.authority.as_deref()).await?;
    let mut table = Table::new(&["pipeline", "state", "reason"]);
    let pipelines = scheduler.pipelines(false).await.map_err(error::other)?;
    for pipeline in pipelines.into_iter().map(PipelineView::from).filter(|p| !p.is_terminated()) {
        let Some(latest) = pipeline.latest() else { continue };
        table.row([pipeline.name.as_str(), latest.status.as_str_name(), latest.reason.as_str()]);
    }
    emit(table.render())
}

/// `experiment list`.
pub(super) async fn list_experiments(endpoints: &Endpoints, args: &List) -> Result<(), CommandError> {
    let scheduler = endpoints.scheduler(args.scheduler_host.as_deref(), args.authority.as_deref()).await?;
    let mut table = Table::new(&["experiment", "active"]);
    let experiments = scheduler.experiments().await.map_err(error::other)?;
    for experiment in experiments.into_iter().map(ExperimentView::from).filter(|e| !e.deleted) {
        table.row([experiment.name.as_str(), &experiment.active.to_string()]);
    }
    emit(table.render())
}

/// `model list`.
pub(super) async fn list_models(endpoints: &Endpoints, args: &List) -> Result<(), CommandError> {
    let scheduler = endpoints.scheduler(args.scheduler_host.as_deref(), args.authority.as_deref()).await?;
    let mut table = Table::new(&["model", "state", "reason"]);
    let models = scheduler.models(false).await.map_err(error::other)?;
    for model in models.into_iter().map(ModelView::from).filter(|m| !m.is_terminated()) {
        let Some(latest) = model.latest() else { continue };
        table.row([model.name.as_str(), latest.state.as_str_name(), latest.reason.as_str()]);
    }
    emit(table.render())
}

/// `server list`.
pub(super) async fn list_servers(endpoints: &Endpoints, args: &List) -> Result<(), CommandError> {
    let scheduler = endpoints.scheduler(args.scheduler_host.as_deref(), args.authority.as_deref()).await?;
    let mut table = Table::new(&["server", "replicas", "models"]);
    let servers = scheduler.servers().await.map_err(error::other)?;
    for server in servers.into_iter().map(ServerView::from).filter(|s| !s.is_terminated()) {
        table.row([server.name.as_str(), &server.available.to_string(), &server.models.to_string()]);
    }
    emit(table.render())
}
