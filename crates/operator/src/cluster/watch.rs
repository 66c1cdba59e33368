//! List and watch of one kind into a cache.

use super::cache::{Cache, Origin};
use crate::health::{SyncChange, WatchReport};
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
use std::{fmt::Debug, pin::pin, sync::Arc, time::Duration};
use tokio::sync::OwnedSemaphorePermit;

/// The annotation in which kubectl keeps a second copy of the object.
const KUBECTL_COPY: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// A watch without an error for this long has recovered: the watcher waits for less between attempts, and a quiet watch has
/// no events.
const RECOVERED_AFTER: Duration = Duration::from_secs(65);

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

/// What a watch reads.
pub(crate) struct WatchSource<O> {
    pub(crate) api: Api<O>,
    pub(crate) config: watcher::Config,
    pub(crate) scope: String,
    /// Removes what is never read before an object is cached.
    pub(crate) strip: fn(O) -> O,
}

/// Keeps one scope of a cache in sync. The watcher retries by itself, with backoff; this never returns. Calls `notify`
/// after every complete list, and when the state of the watch changes. The permit limits concurrent first lists.
pub(crate) async fn run_watch<O>(
    WatchSource { api, config, scope, strip }: WatchSource<O>,
    cache: Arc<Cache<O>>,
    report: WatchReport,
    permit: Option<OwnedSemaphorePermit>,
    notify: impl Fn(SyncChange) + Send,
) where
    O: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let mut permit = permit;
    let mut events = pin!(watcher(api, config).default_backoff());
    let mut list: Vec<O> = Vec::new();
    let mut is_failing = false;
    loop {
        let next = if is_failing {
            tokio::time::timeout(RECOVERED_AFTER, events.next()).await
        } else {
            Ok(events.next().await)
        };
        is_failing = matches!(next, Ok(Some(Err(_))));
        let Ok(next) = next else {
            notify(report.recovered());
            continue;
        };
        let Some(event) = next else { break };
        let change = match event {
            Ok(Event::Init) => {
                list.clear();
                continue;
            }
            Ok(Event::InitApply(object)) => {
                list.push(strip(object));
                continue;
            }
            Ok(Event::InitDone) => {
                cache.replace(&scope, std::mem::take(&mut list));
                SyncChange { is_listed: true, ..report.synced() }
            }
            Ok(Event::Apply(object)) => {
                cache.put(strip(object), Origin::Watch);
                report.synced()
            }
            Ok(Event::Delete(object)) => {
                cache.remove(&object);
                report.synced()
            }
            Err(error) => {
                report.failed(&error);
                SyncChange::default()
            }
        };
        permit = None;
        if change != SyncChange::default() {
            notify(change);
        }
    }
    drop(permit);
}
