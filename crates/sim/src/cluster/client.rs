//! Clients of the scheduler API: one request at a time per model.

use super::{
    ground_truth::{GroundTruth, Response},
    scheduler::CLIENTS,
};
use crate::{
    net::{Host, Net},
    scenario::DesiredModel,
    trace::Trace,
};
use gantry_proto::scheduler::{
    self as pb, LoadModelRequest, ModelReference, ServerNotify, ServerNotifyRequest, UnloadModelRequest,
    scheduler_client::SchedulerClient,
};
use std::time::Duration;
use tokio::sync::mpsc;
use tonic::{Code, Request, Status, transport::Channel, transport::Endpoint};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Load(DesiredModel),
    Unload,
    /// Has to be rejected; the number selects the defect.
    InvalidLoad(u32),
    /// Repeats the latest request until its outcome is certain.
    Confirm,
    /// Sends the desired state again, to a scheduler that lost it.
    Resend,
}

/// Access to the scheduler from one host.
#[derive(Clone)]
pub(crate) struct SchedulerApi {
    pub(crate) net: Net,
    pub(crate) trace: Trace,
    pub(crate) truth: GroundTruth,
    pub(crate) host: Host,
}

impl SchedulerApi {
    pub(crate) async fn connect(&self) -> Result<SchedulerClient<Channel>, Status> {
        self.channel().await.map(SchedulerClient::new)
    }

    pub(crate) async fn channel(&self) -> Result<Channel, Status> {
        let dialer = self.net.dialer(&self.host, &"scheduler".into(), CLIENTS);
        let endpoint = Endpoint::from_static("http://scheduler")
            .connect_timeout(REQUEST_TIMEOUT)
            .http2_keep_alive_interval(REQUEST_TIMEOUT)
            .keep_alive_timeout(REQUEST_TIMEOUT)
            .keep_alive_while_idle(true);
        endpoint.connect_with_connector(dialer).await.map_err(|e| Status::unavailable(e.to_string()))
    }

    pub(crate) async fn announce(self, server: String, replicas: u32, shared: bool) {
        let servers = vec![ServerNotify {
            name: server.clone(),
            expected_replicas: replicas,
            shared,
            ..ServerNotify::default()
        }];
        let response = async {
            let mut client = self.connect().await?;
            client.server_notify(with_timeout(ServerNotifyRequest { servers, is_first_sync: false })).await
        };
        let code = response.await.map_or_else(|status| status.code(), |_| Code::Ok);
        self.trace.note(&self.host, format_args!("announces {server} with {replicas} replicas: {code:?}"));
    }
}

pub(super) fn with_timeout<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(REQUEST_TIMEOUT);
    request
}

/// Executes the operations on one model in order.
pub(crate) async fn run(
    api: SchedulerApi,
    model: String,
    mut operations: mpsc::UnboundedReceiver<Operation>,
) {
    while let Some(operation) = operations.recv().await {
        match operation {
            Operation::Load(desired) => drop(api.send(&model, Some(desired)).await),
            Operation::Unload => drop(api.send(&model, None).await),
            Operation::InvalidLoad(kind) => api.invalid_load(&model, kind).await,
            Operation::Confirm => api.confirm(&model).await,
            Operation::Resend => api.resend(&model).await,
        }
    }
}

impl SchedulerApi {
    async fn send(&self, model: &str, wanted: Option<DesiredModel>) -> Response {
        let state_losses = {
            let mut truth = self.truth.lock();
            truth.models.entry(model.to_owned()).or_default().request(wanted.clone());
            truth.state_losses
        };
        let what = wanted.as_ref().map_or_else(|| "unload".to_owned(), |a| format!("load {}", a.uri()));
        let response = async {
            // A connection per request: cancelling a request closes it.
            let mut client = self.connect().await?;
            match wanted {
                Some(desired) => client.load_model(with_timeout(load(model, &desired))).await.map(drop),
                None => client.unload_model(with_timeout(unload(model))).await.map(drop),
            }
        };
        let response: Result<(), Status> = response.await;
        let code = response.as_ref().map_or_else(Status::code, |()| Code::Ok);
        self.trace.note(&self.host, format_args!("{what} as {model}: {code:?}"));
        let response = self.outcome(code, state_losses);
        if let Some(truth) = self.truth.lock().models.get_mut(model) {
            truth.possible.respond(response);
        }
        response
    }

    /// What a response code reveals. `state_losses` is the number before the request.
    pub(super) fn outcome(&self, code: Code, state_losses: u64) -> Response {
        let truth = self.truth.lock();
        // A failed write is rolled back, unless the scheduler crashes first.
        let rolled_back = code == Code::ResourceExhausted && !truth.scheduler_crashes;
        // A response of a scheduler that lost its state since.
        let lost = truth.state_losses != state_losses;
        match code {
            _ if lost => Response::Unknown,
            Code::Ok => Response::Acknowledged,
            _ if rolled_back => Response::Rejected,
            Code::FailedPrecondition | Code::InvalidArgument | Code::NotFound => Response::Rejected,
            _ => Response::Unknown,
        }
    }

    async fn invalid_load(&self, model: &str, kind: u32) {
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
        let response = async {
            let mut client = self.connect().await?;
            client.load_model(with_timeout(LoadModelRequest { model: Some(message) })).await
        };
        let code = response.await.map_or_else(|status| status.code(), |_| Code::Ok);
        self.trace.note(&self.host, format_args!("invalid load {kind} as {model}: {code:?}"));
        if code == Code::Ok {
            self.trace.violate(
                "invalid_requests_are_rejected",
                format!("invalid load {kind} as {model} was acknowledged"),
            );
        }
    }

    async fn resend(&self, model: &str) {
        let wanted = {
            let truth = self.truth.lock();
            truth.models.get(model).and_then(|truth| truth.possible.latest())
        };
        if wanted.is_some() {
            self.send(model, wanted).await;
        }
    }

    async fn confirm(&self, model: &str) {
        loop {
            let wanted = {
                let mut truth = self.truth.lock();
                let truth = truth.models.entry(model.to_owned()).or_default();
                if truth.possible.0.len() < 2 {
                    return;
                }
                truth.possible.latest()
            };
            let is_unload = wanted.is_none();
            match self.send(model, wanted).await {
                Response::Acknowledged => return,
                // Unloading an unknown model is rejected: it is absent.
                Response::Rejected if is_unload => {
                    if let Some(truth) = self.truth.lock().models.get_mut(model) {
                        truth.possible.0 = vec![None];
                    }
                    return;
                }
                Response::Rejected | Response::Unknown => tokio::time::sleep(Duration::from_secs(1)).await,
            }
        }
    }
}

fn load(model: &str, desired: &DesiredModel) -> LoadModelRequest {
    let spec = pb::ModelSpec {
        uri: desired.uri(),
        requirements: vec![desired.requirement.clone()],
        memory_bytes: Some(desired.memory),
        server: desired.server.clone(),
        ..Default::default()
    };
    let deployment =
        pb::DeploymentSpec { replicas: desired.replicas, min_replicas: desired.min, ..Default::default() };
    let model = pb::Model {
        meta: Some(pb::MetaData { name: model.into(), ..Default::default() }),
        model_spec: Some(spec),
        deployment_spec: Some(deployment),
        ..Default::default()
    };
    LoadModelRequest { model: Some(model) }
}

/// Whether a definition is the one that was desired for.
pub(crate) fn is_desired(definition: &pb::Model, desired: &DesiredModel) -> bool {
    let wanted = load("", desired).model.unwrap_or_default();
    definition.model_spec == wanted.model_spec && definition.deployment_spec == wanted.deployment_spec
}

fn unload(model: &str) -> UnloadModelRequest {
    UnloadModelRequest {
        model: Some(ModelReference { name: model.into(), version: None }),
        kubernetes_meta: None,
    }
}
