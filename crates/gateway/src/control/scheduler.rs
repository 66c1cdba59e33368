//! The OIP model repository, backed by the scheduler's gRPC API.

use super::Control;
use futures::future::BoxFuture;
use gantry_oip::{Code, Error, IndexEntry};
use gantry_proto::scheduler::{
    LoadModelRequest, MetaData, Model, ModelReference, ModelStatusRequest, ModelStatusResponse,
    ModelVersionStatus, UnloadModelRequest, model_status::ModelState, scheduler_client::SchedulerClient,
};
use gantry_transport::Backoff;
use std::time::Duration;
use tonic::{Status, metadata::MetadataValue, transport::Channel};

const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of status calls while a model loads.
const POLL_MIN: Duration = Duration::from_millis(5);
const POLL_MAX: Duration = Duration::from_millis(250);

pub struct SchedulerControl {
    client: SchedulerClient<Channel>,
}

impl SchedulerControl {
    pub fn new(channel: Channel) -> Self {
        Self { client: SchedulerClient::new(channel) }
    }

    async fn status(&self, model: Option<&str>) -> Result<Vec<ModelStatusResponse>, Error> {
        let mut request = tonic::Request::new(ModelStatusRequest {
            subscriber_name: "gateway".into(),
            model: model.map(|name| ModelReference { name: name.to_owned(), version: None }),
            all_versions: false,
        });
        request.set_timeout(CALL_TIMEOUT);
        let mut stream = match (self.client.clone().model_status(request).await, model) {
            (Ok(stream), _) => stream.into_inner(),
            (Err(status), Some(model)) if status.code() == tonic::Code::FailedPrecondition => {
                return Err(unknown(model));
            }
            (Err(status), _) => return Err(failed(&status)),
        };
        let mut all = Vec::new();
        while let Some(one) = stream.message().await.map_err(|s| failed(&s))? {
            all.push(one);
        }
        Ok(all)
    }
}

impl Control for SchedulerControl {
    fn index(&self, ready_only: bool) -> BoxFuture<'_, Result<Vec<IndexEntry>, Error>> {
        Box::pin(async move {
            let mut entries: Vec<IndexEntry> = self
                .status(None)
                .await?
                .iter()
                .filter(|m| !m.deleted)
                .filter_map(|m| m.versions.last().map(|v| entry(&m.model_name, v)))
                .filter(|e| !ready_only || e.state == "READY")
                .collect();
            entries.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(entries)
        })
    }

    fn load<'a>(&'a self, model: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let mut poll = Backoff::new(POLL_MIN, POLL_MAX);
            let meta = Some(MetaData { name: model.to_owned(), ..MetaData::default() });
            let request = LoadModelRequest { model: Some(Model { meta, ..Model::default() }) };
            while let Err(rejection) =
                self.client.clone().load_model(on_behalf_of_owner(request.clone())).await
            {
                if rejection.code() != tonic::Code::FailedPrecondition {
                    return Err(failed(&rejection));
                }
                // A model that a gateway unloaded keeps its owner: it can be loaded when the unload is complete.
                let is_loadable = |m: &ModelStatusResponse| !m.deleted || !m.manager.is_empty();
                if !self.status(Some(model)).await?.first().is_some_and(is_loadable) {
                    return Err(unknown(model));
                }
                tokio::time::sleep(poll.next_delay()).await;
            }
            poll.reset();
            loop {
                let known = self.status(Some(model)).await?;
                let latest = known.first().filter(|m| !m.deleted).and_then(|m| m.versions.first());
                let latest = latest.ok_or_else(|| unknown(model))?;
                let (state, reason) = state(latest);
                match state {
                    // The next request scales it up.
                    ModelState::ModelAvailable | ModelState::ModelScaledDown => return Ok(()),
                    ModelState::ModelFailed | ModelState::ScheduleFailed => {
                        return Err(Error::invalid(format!("model {model} failed to load: {reason}")));
                    }
                    _ => tokio::time::sleep(poll.next_delay()).await,
                }
            }
        })
    }

    fn unload<'a>(&'a self, model: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let request = on_behalf_of_owner(UnloadModelRequest {
                model: Some(ModelReference { name: model.to_owned(), version: None }),
                kubernetes_meta: None,
            });
            self.client.clone().unload_model(request).await.map_err(|s| failed(&s))?;
            Ok(())
        })
    }
}

/// OIP requests have no field manager: the scheduler applies the change on behalf of the model's owner.
fn on_behalf_of_owner<T>(message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(CALL_TIMEOUT);
    request.metadata_mut().insert("gantry-manager", MetadataValue::from_static("owner"));
    request
}

/// Maps a scheduler error to OIP; an unreachable scheduler does not affect serving.
fn failed(status: &Status) -> Error {
    let code = Code::from_grpc(u8::try_from(i32::from(status.code())).unwrap_or(2));
    if code == Code::Unavailable {
        return Error::unavailable("the scheduler is unreachable; models in service are unaffected", 5);
    }
    Error::new(code, status.message())
}

fn unknown(model: &str) -> Error {
    Error::not_found(format!("there is no model {model:?}: apply a Model with its storageUri first"))
}

fn state(version: &ModelVersionStatus) -> (ModelState, &str) {
    version.state.as_ref().map_or((ModelState::Unknown, ""), |s| (s.state(), s.reason.as_str()))
}

fn entry(model: &str, version: &ModelVersionStatus) -> IndexEntry {
    let (state, reason) = state(version);
    let state = match state {
        ModelState::ModelAvailable => "READY",
        ModelState::ModelProgressing | ModelState::ModelCreate => "LOADING",
        ModelState::ModelTerminating | ModelState::ModelTerminate => "UNLOADING",
        _ => "UNAVAILABLE",
    };
    IndexEntry {
        name: model.to_owned(),
        version: version.version.to_string(),
        state: state.to_owned(),
        reason: reason.to_owned(),
    }
}
