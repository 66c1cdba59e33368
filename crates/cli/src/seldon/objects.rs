//! Loading, unloading, telling and listing what the scheduler keeps.

use super::{
    args::{Control, List, Load, Named, Status, StatusAll, Unload, UnloadAll},
    failure,
    place::Speaker,
    protojson::{self, SCHEDULER},
    table::Table,
};
use crate::{
    client::{Scheduler, changing, collect},
    failure::Failure,
    manifests::Manifests,
    output::{emit, emit_line},
    reference::Reference,
    verbs::wait::{self, Goal},
    view::{ModelView, ServerView},
};
use gantry_api::{Kind, Object, Parsed};
use gantry_proto::scheduler as pb;
use prost::Message;
use std::path::Path;

/// Who we are to the scheduler, as the program that we stand in for.
pub(super) const SUBSCRIBER: &str = "seldon CLI";

/// A connection, and how what goes over it is shown.
pub(super) struct Line<'a> {
    speaker: &'a Speaker,
    control: &'a Control,
    pub(super) scheduler: Scheduler,
}

impl<'a> Line<'a> {
    pub(super) async fn open(speaker: &'a Speaker, control: &'a Control) -> Result<Self, Failure> {
        let scheduler =
            speaker.scheduler(control.scheduler_host.as_deref(), control.authority.as_deref()).await?;
        Ok(Self { speaker, control, scheduler })
    }

    pub(super) fn show_request(&self, name: &str, message: &impl Message) -> Result<(), Failure> {
        if self.control.show_request {
            emit_line(&protojson::write(SCHEDULER, name, message)?)
        } else {
            Ok(())
        }
    }

    pub(super) fn show_response(&self, name: &str, message: &impl Message) -> Result<(), Failure> {
        if self.control.show_response {
            emit_line(&protojson::write(SCHEDULER, name, message)?)
        } else {
            Ok(())
        }
    }

    /// The answer to a call, within the deadline.
    pub(super) async fn call<T>(
        &self,
        call: impl Future<Output = Result<T, tonic::Status>>,
    ) -> Result<T, Failure> {
        let late = || {
            let words = format!("the scheduler did not answer within {:?}", self.speaker.call);
            tonic::Status::deadline_exceeded(words)
        };
        tokio::time::timeout(self.speaker.call, call)
            .await
            .unwrap_or_else(|_| Err(late()))
            .map_err(|s| failure::status(&s, self.speaker.as_seldon))
    }

    async fn put(&self, object: &Object) -> Result<(), Failure> {
        let mut client = self.scheduler.client();
        match object {
            Object::Model(model) => {
                let request = pb::LoadModelRequest { model: Some(model.to_proto()) };
                self.show_request("LoadModelRequest", &request)?;
                let answer = self.call(client.load_model(changing(request))).await?;
                self.show_response("LoadModelResponse", answer.get_ref())
            }
            Object::Server(server) => self.notify(server.to_proto()).await,
        }
    }

    async fn notify(&self, server: pb::ServerNotify) -> Result<(), Failure> {
        let mut client = self.scheduler.client();
        let request = pb::ServerNotifyRequest { servers: vec![server], is_first_sync: false };
        self.show_request("ServerNotifyRequest", &request)?;
        let answer = self.call(client.server_notify(changing(request))).await?;
        self.show_response("ServerNotifyResponse", answer.get_ref())
    }

    async fn remove(&self, kind: Kind, name: &str) -> Result<(), Failure> {
        if kind == Kind::Server {
            return self
                .notify(pb::ServerNotify { name: name.to_owned(), shared: true, ..Default::default() })
                .await;
        }
        let mut client = self.scheduler.client();
        let model = pb::ModelReference { name: name.to_owned(), version: None };
        let request = pb::UnloadModelRequest { model: Some(model), kubernetes_meta: None };
        self.show_request("UnloadModelRequest", &request)?;
        let answer = self.call(client.unload_model(changing(request))).await?;
        self.show_response("UnloadModelResponse", answer.get_ref())
    }

    async fn model(&self, name: &str) -> Result<(), Failure> {
        let mut client = self.scheduler.client();
        let request = pb::ModelStatusRequest {
            subscriber_name: SUBSCRIBER.into(),
            model: Some(pb::ModelReference { name: name.to_owned(), version: None }),
            all_versions: false,
        };
        self.show_request("ModelStatusRequest", &request)?;
        let found =
            self.call(async { collect(client.model_status(request).await?.into_inner()).await }).await?;
        found.iter().try_for_each(|one| self.show_response("ModelStatusResponse", one))
    }

    async fn server(&self, name: &str) -> Result<(), Failure> {
        let mut client = self.scheduler.client();
        let request =
            pb::ServerStatusRequest { subscriber_name: SUBSCRIBER.into(), name: Some(name.to_owned()) };
        self.show_request("ServerStatusRequest", &request)?;
        let found =
            self.call(async { collect(client.server_status(request).await?.into_inner()).await }).await?;
        found.iter().try_for_each(|one| self.show_response("ServerStatusResponse", one))
    }

    /// Waits for a state, and says so with an empty response.
    async fn wait(&self, what: &[Reference], goal: &Goal) -> Result<(), Failure> {
        wait::until(&self.scheduler, what, goal, self.speaker.wait, wait::quiet)
            .await
            .map_err(failure::other)?;
        self.show_response("LoadModelResponse", &pb::LoadModelResponse {})
    }
}

/// The objects of a manifest, all of the kind that the verb is about.
fn read(file: &Path, kind: Option<Kind>) -> Result<Vec<Parsed>, Failure> {
    let manifests = Manifests::read(&[file.to_owned()], false).map_err(failure::other)?;
    if !manifests.problems.is_empty() {
        let lines: Vec<String> = manifests.problems.iter().map(ToString::to_string).collect();
        // The first line is what scripts know; the place and the remedy follow.
        let unknown = manifests.problems.iter().find(|p| p.message.starts_with("is not a field of"));
        return Err(match unknown {
            Some(problem) => {
                let field = problem.path.rsplit('.').next().unwrap_or(&problem.path);
                failure::usage(format!("json: unknown field \"{field}\"\n{}", lines.join("\n")))
            }
            None => failure::usage(lines.join("\n")),
        });
    }
    if manifests.objects.is_empty() {
        return Err(failure::usage(format!("{} holds no object", file.display())));
    }
    if let Some(kind) = kind
        && let Some(other) = manifests.objects.iter().find(|p| p.object.kind() != kind)
    {
        let (file, line) = (&other.file, other.line);
        return Err(failure::usage(format!(
            "{file}:{line}: kind is {}, and this verb is for {}: use `load -f` for a file with both",
            other.object.kind().name(),
            kind.name()
        )));
    }
    Ok(manifests.objects)
}

/// `load -f`, `model load -f`, `server load -f`.
pub(super) async fn load(speaker: &Speaker, args: &Load, kind: Option<Kind>) -> Result<(), Failure> {
    let mut objects = read(&args.file, kind)?;
    objects.sort_by_key(|p| p.object.kind());
    let line = Line::open(speaker, &args.change.control).await?;
    for parsed in &objects {
        line.put(&parsed.object).await?;
    }
    Ok(())
}

/// `model unload`, `server unload`.
pub(super) async fn unload(speaker: &Speaker, args: &Unload, kind: Kind) -> Result<(), Failure> {
    let names = match (&args.name, &args.file) {
        (Some(name), _) => vec![name.clone()],
        (None, Some(file)) => read(file, Some(kind))?.iter().map(|p| p.object.name().to_owned()).collect(),
        (None, None) => Vec::new(),
    };
    let line = Line::open(speaker, &args.change.control).await?;
    for name in names {
        line.remove(kind, &name).await?;
    }
    Ok(())
}

/// `unload -f`.
pub(super) async fn unload_all(speaker: &Speaker, args: &UnloadAll) -> Result<(), Failure> {
    let mut objects = read(&args.file, None)?;
    // Models first: the reverse of the order in which they are loaded.
    objects.sort_by_key(|p| std::cmp::Reverse(p.object.kind()));
    let line = Line::open(speaker, &args.change.control).await?;
    for parsed in &objects {
        line.remove(parsed.object.kind(), parsed.object.name()).await?;
    }
    Ok(())
}

/// `status -f`.
pub(super) async fn status_all(speaker: &Speaker, args: &StatusAll) -> Result<(), Failure> {
    let objects = read(&args.file, None)?;
    let line = Line::open(speaker, &args.control).await?;
    for parsed in &objects {
        let (kind, name) = (parsed.object.kind(), parsed.object.name());
        if args.wait {
            line.wait(&[Reference { kind, name: name.to_owned() }], &Goal::Ready).await?;
        } else if kind == Kind::Model {
            line.model(name).await?;
        } else {
            line.server(name).await?;
        }
    }
    Ok(())
}

/// `model status`.
pub(super) async fn model_status(speaker: &Speaker, args: &Status) -> Result<(), Failure> {
    let goal = args.wait.as_deref().map(str::parse::<Goal>).transpose();
    let goal = goal.map_err(|e| failure::usage(format!("--wait: {e}")))?;
    let line = Line::open(speaker, &args.control).await?;
    match goal {
        Some(goal) => line.wait(&[Reference { kind: Kind::Model, name: args.name.clone() }], &goal).await,
        None => line.model(&args.name).await,
    }
}

/// `server status`.
pub(super) async fn server_status(speaker: &Speaker, args: &Named) -> Result<(), Failure> {
    Line::open(speaker, &args.control).await?.server(&args.name).await
}

/// `model list`.
pub(super) async fn list_models(speaker: &Speaker, args: &List) -> Result<(), Failure> {
    let scheduler = speaker.scheduler(args.scheduler_host.as_deref(), args.authority.as_deref()).await?;
    let mut table = Table::new(&["model", "state", "reason"]);
    let models = scheduler.models(false).await.map_err(failure::other)?;
    for model in models.into_iter().map(ModelView::from).filter(|m| !m.is_gone()) {
        let Some(latest) = model.latest() else { continue };
        table.row([model.name.as_str(), latest.state.as_str_name(), latest.reason.as_str()]);
    }
    emit(table.render())
}

/// `server list`.
pub(super) async fn list_servers(speaker: &Speaker, args: &List) -> Result<(), Failure> {
    let scheduler = speaker.scheduler(args.scheduler_host.as_deref(), args.authority.as_deref()).await?;
    let mut table = Table::new(&["server", "replicas", "models"]);
    let servers = scheduler.servers().await.map_err(failure::other)?;
    for server in servers.into_iter().map(ServerView::from).filter(|s| !s.is_gone()) {
        table.row([server.name.as_str(), &server.available.to_string(), &server.models.to_string()]);
    }
    emit(table.render())
}
