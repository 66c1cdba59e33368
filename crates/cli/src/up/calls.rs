//! What the files ask of the scheduler, in the name of the file.

use crate::client::{collect, managed, refusal};
use gantry_api::{Kind, Object};
use gantry_proto::{
    gantry::{AdoptRequest, control_client::ControlClient},
    scheduler::{
        LoadModelRequest, ModelReference, ModelStatusRequest, ServerNotify, ServerNotifyRequest,
        ServerStatusRequest, UnloadModelRequest, scheduler_client::SchedulerClient,
    },
};
use std::time::Duration;
use tonic::{Code, Request, Status, transport::Channel};

/// How a manager that is a file begins; its path follows.
pub(crate) const FILE: &str = "file:";
/// Who we are to the scheduler.
const SUBSCRIBER: &str = "gantry up";
/// How long the scheduler may take for one call.
const DEADLINE: Duration = Duration::from_secs(30);

/// The calls, each with a deadline and a manager.
#[derive(Clone, Debug)]
pub(crate) struct Calls {
    scheduler: SchedulerClient<Channel>,
    control: ControlClient<Channel>,
}

impl Calls {
    pub(crate) fn new(channel: Channel) -> Self {
        Self { scheduler: SchedulerClient::new(channel.clone()), control: ControlClient::new(channel) }
    }

    /// Asks for an object.
    pub(crate) async fn put(&self, object: &Object, manager: &str) -> Result<(), Status> {
        let refused = match self.try_put(object, manager).await {
            Err(error) if refusal(&error).is_some() => error,
            other => return other,
        };
        // Files are followed by one process: what belongs to another file belonged to an earlier run of this one, before
        // the object moved from there to here.
        let (kind, name) = (object.kind(), object.name());
        let owner = self.owner(kind, name).await.unwrap_or_default();
        if !owner.starts_with(FILE) {
            return Err(refused);
        }
        let adopt = AdoptRequest { kind: kind.name().to_lowercase(), name: name.to_owned() };
        self.control.clone().adopt(timed(adopt, manager)).await?;
        self.try_put(object, manager).await
    }

    async fn try_put(&self, object: &Object, manager: &str) -> Result<(), Status> {
        match object {
            Object::Model(model) => {
                let request = LoadModelRequest { model: Some(model.to_proto()) };
                self.scheduler.clone().load_model(timed(request, manager)).await.map(drop)
            }
            Object::Server(server) => self.notify(server.to_proto(), manager).await,
        }
    }

    /// Asks for an object no more, unless it is somebody else's by now.
    pub(crate) async fn remove(&self, kind: Kind, name: &str, root: &str) -> Result<(), Status> {
        let owner = self.owner(kind, name).await.filter(|o| o.starts_with(FILE));
        let manager = owner.as_deref().unwrap_or(root);
        let removed = match kind {
            Kind::Model => {
                let model = Some(ModelReference { name: name.to_owned(), version: None });
                let request = UnloadModelRequest { model, kubernetes_meta: None };
                self.scheduler.clone().unload_model(timed(request, manager)).await.map(drop)
            }
            Kind::Server => {
                let going = ServerNotify { name: name.to_owned(), shared: true, ..ServerNotify::default() };
                self.notify(going, manager).await
            }
        };
        match removed {
            // It is gone already, or it is not ours to remove: both are what is wanted.
            Err(error) if error.code() == Code::FailedPrecondition => Ok(()),
            other => other,
        }
    }

    /// Announces a server whose size changed, in the name of whoever manages it.
    pub(crate) async fn announce(&self, server: ServerNotify) -> Result<(), Status> {
        let owner = self.owner(Kind::Server, &server.name).await.filter(|o| !o.is_empty());
        self.notify(server, owner.as_deref().unwrap_or("owner")).await
    }

    async fn notify(&self, server: ServerNotify, manager: &str) -> Result<(), Status> {
        let request = ServerNotifyRequest { servers: vec![server], is_first_sync: false };
        self.scheduler.clone().server_notify(timed(request, manager)).await.map(drop)
    }

    /// Who manages an object; nobody, when it is not known.
    async fn owner(&self, kind: Kind, name: &str) -> Option<String> {
        let mut scheduler = self.scheduler.clone();
        let subscriber_name = SUBSCRIBER.to_owned();
        let asking = async {
            Ok::<_, Status>(match kind {
                Kind::Model => {
                    let model = Some(ModelReference { name: name.to_owned(), version: None });
                    let request = ModelStatusRequest { subscriber_name, model, all_versions: false };
                    let found = collect(scheduler.model_status(request).await?.into_inner()).await?;
                    found.into_iter().next().filter(|m| !m.deleted).map(|m| m.manager)
                }
                Kind::Server => {
                    let request = ServerStatusRequest { subscriber_name, name: Some(name.to_owned()) };
                    let found = collect(scheduler.server_status(request).await?.into_inner()).await?;
                    found.into_iter().next().map(|s| s.manager)
                }
            })
        };
        tokio::time::timeout(DEADLINE, asking).await.ok()?.ok()?
    }
}

fn timed<T>(message: T, manager: &str) -> Request<T> {
    let mut request = managed(message, manager);
    request.set_timeout(DEADLINE);
    request
}
