//! List and watch of one kind into a cache.

use super::cache::{Cache, Origin};
use crate::health::WatchReport;
use futures::StreamExt as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api, Resource,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event, watcher},
    },
};
use serde::de::DeserializeOwned;
use std::{fmt::Debug, pin::pin, sync::Arc};

/// The annotation in which kubectl keeps a second copy of the object.
const KUBECTL_COPY: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Removes the metadata that takes memory and is never read.
pub(crate) fn strip_metadata<O: Resource>(mut object: O) -> O {
    let meta: &mut ObjectMeta = object.meta_mut();
    meta.managed_fields = None;
    meta.self_link = None;
    if let Some(annotations) = &mut meta.annotations {
        annotations.remove(KUBECTL_COPY);
    }
    object
}

/// Keeps one scope of a cache in sync. The watcher retries by itself, with backoff; this never returns. Calls `synced` after
/// every complete list.
pub(crate) async fn run_watch<O>(
    api: Api<O>,
    config: watcher::Config,
    scope: String,
    cache: Arc<Cache<O>>,
    report: WatchReport,
    synced: impl Fn() + Send,
) where
    O: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let mut events = pin!(watcher(api, config).default_backoff());
    let mut list: Vec<O> = Vec::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => list.clear(),
            Ok(Event::InitApply(object)) => list.push(strip_metadata(object)),
            Ok(Event::InitDone) => {
                cache.replace(&scope, std::mem::take(&mut list));
                report.synced();
                synced();
            }
            Ok(Event::Apply(object)) => {
                report.synced();
                cache.put(strip_metadata(object), Origin::Watch);
            }
            Ok(Event::Delete(object)) => {
                report.synced();
                cache.remove(&object);
            }
            Err(error) => report.failed(&error.to_string()),
        }
    }
}
