//! OIP model repository client.

use super::warm_up::WarmUp;
use crate::{connect::deepest, model_server::LoadError};
use futures::future::BoxFuture;
use gantry_proto::inference::{
    ModelMetadataRequest, ModelReadyRequest, RepositoryIndexRequest, RepositoryModelLoadRequest,
    RepositoryModelUnloadRequest, ServerLiveRequest,
    grpc_inference_service_client::GrpcInferenceServiceClient,
};
use std::{collections::BTreeSet, time::Duration};
use tonic::{
    Code, Request, Status,
    transport::{Channel, Endpoint},
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Up to hundreds of thousands of models.
const MAX_INDEX_BYTES: usize = 256 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Unreachable or timed out: can be retried.
    Unreachable(String),
    /// The server's error message.
    Rejected(String),
    /// The server cannot do it at present, and gives this reason.
    Overloaded(String),
}

impl Failure {
    pub(crate) fn message(&self) -> &str {
        match self {
            Self::Unreachable(message) | Self::Rejected(message) | Self::Overloaded(message) => message,
        }
    }

    /// The same failure, with a prefix that states the step.
    fn of_step(self, step: &str) -> Self {
        match self {
            Self::Unreachable(message) => Self::Unreachable(format!("{step}: {message}")),
            Self::Rejected(message) => Self::Rejected(format!("{step}: {message}")),
            Self::Overloaded(message) => Self::Overloaded(format!("{step}: {message}")),
        }
    }
}

impl From<Failure> for LoadError {
    fn from(failure: Failure) -> Self {
        let permanent = matches!(failure, Failure::Rejected(_));
        let (Failure::Unreachable(message) | Failure::Rejected(message) | Failure::Overloaded(message)) =
            failure;
        Self { message, permanent }
    }
}

/// The server's model repository. Every call has a deadline.
pub(crate) trait Repository: Send + Sync + 'static {
    fn ready(&self) -> BoxFuture<'_, bool>;

    /// Ready models; `None` if the server has no index.
    fn index(&self) -> BoxFuture<'_, Result<Option<BTreeSet<String>>, Failure>>;

    fn serves<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<bool, Failure>>;

    fn load<'a>(&'a self, name: &'a str, limit: Duration) -> BoxFuture<'a, Result<(), Failure>>;

    /// Sends one inference to a loaded model. Fails when the answer shows that the model cannot serve.
    fn warm_up<'a>(&'a self, _name: &'a str, _limit: Duration) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async { Ok(()) })
    }

    /// Idempotent.
    fn unload<'a>(&'a self, name: &'a str, limit: Duration) -> BoxFuture<'a, Result<(), Failure>>;
}

#[derive(Clone, Debug)]
pub(crate) struct Oip {
    client: GrpcInferenceServiceClient<Channel>,
}

impl Oip {
    /// Connects lazily to `host:port`.
    pub(crate) fn new(address: &str) -> Result<Self, String> {
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|_| format!("\"{}\" is not an address", address.escape_debug()))?
            .connect_timeout(CONNECT_TIMEOUT);
        let client = GrpcInferenceServiceClient::new(endpoint.connect_lazy());
        Ok(Self { client: client.max_decoding_message_size(MAX_INDEX_BYTES) })
    }
}

fn within<T>(message: T, limit: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(limit);
    request
}

fn failure(status: &Status, limit: Duration) -> Failure {
    // `Unavailable` may concern a model; connection errors have a source.
    let broken = std::error::Error::source(status).map(deepest);
    match (status.code(), broken) {
        (Code::Cancelled | Code::DeadlineExceeded, _) => {
            Failure::Unreachable(format!("the inference server did not respond within {} s", limit.as_secs()))
        }
        (_, Some(cause)) => Failure::Unreachable(format!("the inference server is unreachable: {cause}")),
        (code, None) => {
            let message = Some(status.message()).filter(|text| !text.is_empty());
            let message = message.map_or_else(|| format!("{code:?}"), str::to_owned);
            match code {
                Code::Unavailable | Code::ResourceExhausted | Code::Aborted => Failure::Overloaded(message),
                _ => Failure::Rejected(message),
            }
        }
    }
}

fn is_unknown(status: &Status) -> bool {
    let text = status.message().to_ascii_lowercase();
    status.code() == Code::NotFound || text.contains("not found") || text.contains("unknown model")
}

impl Repository for Oip {
    fn ready(&self) -> BoxFuture<'_, bool> {
        Box::pin(async {
            // Liveness: some servers are not ready while one model is not.
            let response = self.client.clone().server_live(within(ServerLiveRequest {}, CALL_TIMEOUT)).await;
            response.is_ok_and(|answer| answer.get_ref().live)
        })
    }

    fn index(&self) -> BoxFuture<'_, Result<Option<BTreeSet<String>>, Failure>> {
        Box::pin(async {
            let limit = CALL_TIMEOUT * 6;
            let request = RepositoryIndexRequest { ready: true, ..Default::default() };
            match self.client.clone().repository_index(within(request, limit)).await {
                Ok(answer) => {
                    let models = answer.into_inner().models.into_iter();
                    Ok(Some(models.filter(|m| m.state == "READY").map(|m| m.name).collect()))
                }
                Err(status) if status.code() == Code::Unimplemented => Ok(None),
                Err(status) => Err(failure(&status, limit)),
            }
        })
    }

    fn serves<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<bool, Failure>> {
        Box::pin(async {
            let request = ModelReadyRequest { name: name.to_owned(), version: String::new() };
            match self.client.clone().model_ready(within(request, CALL_TIMEOUT)).await {
                Ok(answer) => Ok(answer.get_ref().ready),
                Err(status) if is_unknown(&status) => Ok(false),
                Err(status) => Err(failure(&status, CALL_TIMEOUT)),
            }
        })
    }

    fn load<'a>(&'a self, name: &'a str, limit: Duration) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let request = RepositoryModelLoadRequest { model_name: name.to_owned(), ..Default::default() };
            let response = self.client.clone().repository_model_load(within(request, limit)).await;
            response.map(drop).map_err(|status| failure(&status, limit))
        })
    }

    fn warm_up<'a>(&'a self, name: &'a str, limit: Duration) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let request = ModelMetadataRequest { name: name.to_owned(), version: String::new() };
            let metadata = match self.client.clone().model_metadata(within(request, CALL_TIMEOUT)).await {
                Ok(metadata) => metadata.into_inner(),
                Err(status) => {
                    tracing::debug!(model = %name, error = status.message(), "no warm-up: no metadata");
                    return Ok(());
                }
            };
            let Some(warm_up) = WarmUp::new(name, metadata) else { return Ok(()) };
            let sent = self.client.clone().model_infer(within(warm_up.request.clone(), limit)).await;
            match sent {
                Err(status) if warm_up.shows_failure(&status) => {
                    Err(failure(&status, limit).of_step("the warm-up request with zeros failed"))
                }
                _ => Ok(()),
            }
        })
    }

    fn unload<'a>(&'a self, name: &'a str, limit: Duration) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let request = RepositoryModelUnloadRequest { model_name: name.to_owned(), ..Default::default() };
            match self.client.clone().repository_model_unload(within(request, limit)).await {
                Err(status) if !is_unknown(&status) => Err(failure(&status, limit)),
                _ => Ok(()),
            }
        })
    }
}
