//! People who ask for models: one order at a time for each model, each with a deadline.

use super::{
    facts::{Answer, Facts},
    scheduler::CLIENTS,
};
use crate::{
    net::{Host, Net},
    plan::Asked,
    trace::Trace,
};
use gantry_proto::scheduler::{
    self as pb, LoadModelRequest, ModelReference, ServerNotify, ServerNotifyRequest, UnloadModelRequest,
    scheduler_client::SchedulerClient,
};
use std::time::Duration;
use tokio::sync::mpsc;
use tonic::{Code, Request, Status, transport::Channel, transport::Endpoint};

const DEADLINE: Duration = Duration::from_secs(10);

/// What one person is to do next.
#[derive(Clone, Debug)]
pub(crate) enum Errand {
    Load(Asked),
    Unload,
    /// Something that makes no sense: it must be refused.
    Nonsense(u32),
    /// Ask again for what was asked last until there is no doubt about it.
    MakeSure,
}

/// What everybody needs to reach the scheduler.
#[derive(Clone)]
pub(crate) struct Desk {
    pub(crate) net: Net,
    pub(crate) trace: Trace,
    pub(crate) facts: Facts,
    pub(crate) host: Host,
}

impl Desk {
    pub(crate) async fn connect(&self) -> Result<SchedulerClient<Channel>, Status> {
        let dialer = self.net.dialer(&self.host, &"scheduler".into(), CLIENTS);
        let endpoint = Endpoint::from_static("http://scheduler")
            .connect_timeout(DEADLINE)
            .http2_keep_alive_interval(DEADLINE)
            .keep_alive_timeout(DEADLINE)
            .keep_alive_while_idle(true);
        let channel = endpoint.connect_with_connector(dialer).await;
        channel.map(SchedulerClient::new).map_err(|e| Status::unavailable(e.to_string()))
    }

    /// Announces a server; nobody waits for the answer.
    pub(crate) async fn announce(self, server: String, replicas: u32, shared: bool) {
        let servers = vec![ServerNotify {
            name: server.clone(),
            expected_replicas: replicas,
            shared,
            ..ServerNotify::default()
        }];
        let answer = async {
            let mut client = self.connect().await?;
            client.server_notify(limited(ServerNotifyRequest { servers, is_first_sync: false })).await
        };
        let code = answer.await.map_or_else(|status| status.code(), |_| Code::Ok);
        self.trace.note(&self.host, format_args!("announces {server} with {replicas}: {code:?}"));
    }
}

fn limited<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(DEADLINE);
    request
}

/// Does the errands of one model in order.
pub(crate) async fn serve(desk: Desk, model: String, mut errands: mpsc::UnboundedReceiver<Errand>) {
    while let Some(errand) = errands.recv().await {
        match errand {
            Errand::Load(asked) => drop(desk.order(&model, Some(asked)).await),
            Errand::Unload => drop(desk.order(&model, None).await),
            Errand::Nonsense(kind) => desk.nonsense(&model, kind).await,
            Errand::MakeSure => desk.make_sure(&model).await,
        }
    }
}

impl Desk {
    async fn order(&self, model: &str, wanted: Option<Asked>) -> Answer {
        self.facts.lock().models.entry(model.to_owned()).or_default().ask(wanted.clone());
        let what = wanted.as_ref().map_or_else(|| "unload".to_owned(), |a| format!("load {}", a.uri()));
        let answer = async {
            // A connection for each order: what is given up is given up with its connection.
            let mut client = self.connect().await?;
            match wanted {
                Some(asked) => client.load_model(limited(load(model, &asked))).await.map(drop),
                None => client.unload_model(limited(unload(model))).await.map(drop),
            }
        };
        let answer: Result<(), Status> = answer.await;
        let code = answer.as_ref().map_or_else(Status::code, |()| Code::Ok);
        self.trace.note(&self.host, format_args!("{what} as {model}: {code:?}"));
        let answer = match code {
            Code::Ok => Answer::Done,
            Code::FailedPrecondition | Code::InvalidArgument | Code::NotFound => Answer::Refused,
            _ => Answer::Unknown,
        };
        if let Some(facts) = self.facts.lock().models.get_mut(model) {
            facts.answered(answer);
        }
        answer
    }

    async fn nonsense(&self, model: &str, kind: u32) {
        let meta = |name: &str| Some(pb::MetaData { name: name.into(), ..Default::default() });
        let spec = |uri: &str| Some(pb::ModelSpec { uri: uri.into(), ..Default::default() });
        let scaled = |replicas, min_replicas, max_replicas| {
            Some(pb::DeploymentSpec { replicas, min_replicas, max_replicas, log_payloads: false })
        };
        let message = match kind {
            0 => {
                pb::Model { meta: meta("Not A Name"), model_spec: spec("sim://good/1"), ..Default::default() }
            }
            1 => pb::Model { meta: meta(model), model_spec: spec("  "), ..Default::default() },
            2 => pb::Model { meta: meta(model), ..Default::default() },
            3 => pb::Model {
                meta: meta(model),
                model_spec: spec("sim://good/1"),
                deployment_spec: scaled(1, 3, 2),
                ..Default::default()
            },
            _ => pb::Model { model_spec: spec("sim://good/1"), ..Default::default() },
        };
        let answer = async {
            let mut client = self.connect().await?;
            client.load_model(limited(LoadModelRequest { model: Some(message) })).await
        };
        let code = answer.await.map_or_else(|status| status.code(), |_| Code::Ok);
        self.trace.note(&self.host, format_args!("nonsense {kind} as {model}: {code:?}"));
        if code == Code::Ok {
            self.trace.violate("nonsense_is_refused", format!("nonsense {kind} as {model} was acknowledged"));
        }
    }

    async fn make_sure(&self, model: &str) {
        loop {
            let wanted = {
                let mut facts = self.facts.lock();
                let facts = facts.models.entry(model.to_owned()).or_default();
                if facts.possible.len() < 2 {
                    return;
                }
                facts.possible.last().cloned().flatten()
            };
            let is_unload = wanted.is_none();
            match self.order(model, wanted).await {
                Answer::Done => return,
                // A model that is not known cannot be unloaded: then it is gone.
                Answer::Refused if is_unload => {
                    if let Some(facts) = self.facts.lock().models.get_mut(model) {
                        facts.possible = vec![None];
                    }
                    return;
                }
                Answer::Refused | Answer::Unknown => tokio::time::sleep(Duration::from_secs(1)).await,
            }
        }
    }
}

fn load(model: &str, asked: &Asked) -> LoadModelRequest {
    let spec = pb::ModelSpec {
        uri: asked.uri(),
        requirements: vec![asked.requirement.clone()],
        memory_bytes: Some(asked.memory),
        server: asked.server.clone(),
        ..Default::default()
    };
    let deployment =
        pb::DeploymentSpec { replicas: asked.replicas, min_replicas: asked.min, ..Default::default() };
    let model = pb::Model {
        meta: Some(pb::MetaData { name: model.into(), ..Default::default() }),
        model_spec: Some(spec),
        deployment_spec: Some(deployment),
        ..Default::default()
    };
    LoadModelRequest { model: Some(model) }
}

/// Whether a definition is the one that was asked for.
pub(crate) fn is_asked(definition: &pb::Model, asked: &Asked) -> bool {
    let wanted = load("", asked).model.unwrap_or_default();
    definition.model_spec == wanted.model_spec && definition.deployment_spec == wanted.deployment_spec
}

fn unload(model: &str) -> UnloadModelRequest {
    UnloadModelRequest {
        model: Some(ModelReference { name: model.into(), version: None }),
        kubernetes_meta: None,
    }
}
