//! The API server: caches kept by watches, and the writer.

mod adopt;
mod apply;
mod cache;
mod custom_resource;
mod drift;
mod error;
mod event_series;
mod owned_object;
mod ownership;
mod resource_kind;
mod watch;
mod write_fence;

pub use adopt::Adoption;
pub use apply::{DeleteTarget, EventDraft, Writer};
pub use cache::{Cache, Change, Origin};
pub use custom_resource::{
    Algorithm, ClusterServingRuntime, ClusterStorageContainer, Custom, CustomKind, Experiment,
    InferenceGraph, InferenceService, Key, KindId, Model, Pipeline, ResourceScope, RolloutPolicy,
    SeldonConfig, SeldonRuntime, Server, ServerConfig, ServingRuntime, TrainedModel,
};
pub use drift::{drifted_fields, is_subset};
pub use error::ApiError;
pub(crate) use owned_object::digest;
pub use owned_object::{APPLIED, Desired, MANAGED_BY, OwnedObject};
pub use ownership::{Ownership, ownership_of};
pub use resource_kind::ResourceKind;
pub(crate) use watch::{WatchSource, run_watch, strip_metadata};
pub use write_fence::WriteFence;
