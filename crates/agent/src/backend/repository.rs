//! The repository calls of the Open Inference Protocol, over gRPC.

use crate::connect::deepest;
use futures::future::BoxFuture;
use gantry_proto::inference::{
    ModelReadyRequest, RepositoryIndexRequest, RepositoryModelLoadRequest, RepositoryModelUnloadRequest,
    ServerLiveRequest, grpc_inference_service_client::GrpcInferenceServiceClient,
};
use std::{collections::BTreeSet, time::Duration};
use tonic::{
    Code, Request, Status,
    transport::{Channel, Endpoint},
};

const CONNECT_TIME: Duration = Duration::from_secs(2);
/// How long a question may take that has its answer at hand.
const SHORT: Duration = Duration::from_secs(5);
/// Names of models are short, but there may be very many.
const LARGEST_INDEX: usize = 256 << 20;

/// Why a server did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// It could not be asked, or did not answer: asking again may help.
    Gone(String),
    /// It answered that it will not, in its own words.
    Refused(String),
}

impl Failure {
    /// The sentence for the person who asked for the model.
    pub(crate) fn words(&self) -> &str {
        match self {
            Self::Gone(words) | Self::Refused(words) => words,
        }
    }
}

/// An inference server whose models come and go. Every call ends in time.
pub(crate) trait Repository: Send + Sync + 'static {
    /// Whether the server takes calls.
    fn ready(&self) -> BoxFuture<'_, bool>;

    /// The models that it can answer for; `None` when it does not say.
    fn index(&self) -> BoxFuture<'_, Result<Option<BTreeSet<String>>, Failure>>;

    /// Whether it can answer for one model.
    fn serves<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<bool, Failure>>;

    /// Loads a model from its folder.
    fn load<'a>(&'a self, name: &'a str, limit: Duration) -> BoxFuture<'a, Result<(), Failure>>;

    /// Unloads a model; one that is not there counts as unloaded.
    fn unload<'a>(&'a self, name: &'a str, limit: Duration) -> BoxFuture<'a, Result<(), Failure>>;
}

/// A server at an address.
#[derive(Clone, Debug)]
pub(crate) struct Oip {
    client: GrpcInferenceServiceClient<Channel>,
}

impl Oip {
    /// The server whose gRPC is at `host:port`. Nothing is asked of it yet.
    pub(crate) fn new(address: &str) -> Result<Self, String> {
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|_| format!("\"{}\" is not an address", address.escape_debug()))?
            .connect_timeout(CONNECT_TIME);
        let client = GrpcInferenceServiceClient::new(endpoint.connect_lazy());
        Ok(Self { client: client.max_decoding_message_size(LARGEST_INDEX) })
    }
}

fn within<T>(message: T, limit: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(limit);
    request
}

fn failure(status: &Status, limit: Duration) -> Failure {
    // "Unavailable" can be the server's own word about a model; a broken connection has a cause below it.
    let broken = std::error::Error::source(status).map(deepest);
    match (status.code(), broken) {
        (Code::Cancelled | Code::DeadlineExceeded, _) => {
            Failure::Gone(format!("the inference server did not answer within {} s", limit.as_secs()))
        }
        (_, Some(cause)) => Failure::Gone(format!("the inference server cannot be reached: {cause}")),
        (code, None) if status.message().is_empty() => Failure::Refused(format!("{code:?}")),
        (_, None) => Failure::Refused(status.message().to_owned()),
    }
}

/// Whether a server says that it does not know a model.
fn is_unknown(status: &Status) -> bool {
    let text = status.message().to_ascii_lowercase();
    status.code() == Code::NotFound || text.contains("not found") || text.contains("unknown model")
}

impl Repository for Oip {
    fn ready(&self) -> BoxFuture<'_, bool> {
        Box::pin(async {
            // Live, not ready: to some servers one model that is not there yet makes all of them not ready.
            let asked = self.client.clone().server_live(within(ServerLiveRequest {}, SHORT)).await;
            asked.is_ok_and(|answer| answer.get_ref().live)
        })
    }

    fn index(&self) -> BoxFuture<'_, Result<Option<BTreeSet<String>>, Failure>> {
        Box::pin(async {
            let limit = SHORT * 6;
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
            match self.client.clone().model_ready(within(request, SHORT)).await {
                Ok(answer) => Ok(answer.get_ref().ready),
                Err(status) if is_unknown(&status) => Ok(false),
                Err(status) => Err(failure(&status, SHORT)),
            }
        })
    }

    fn load<'a>(&'a self, name: &'a str, limit: Duration) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let request = RepositoryModelLoadRequest { model_name: name.to_owned(), ..Default::default() };
            let asked = self.client.clone().repository_model_load(within(request, limit)).await;
            asked.map(drop).map_err(|status| failure(&status, limit))
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
