//! Follows one kind of objects and keeps a cache of them.

use super::{cache::Cache, object::Key};
use crate::health::WatchReport;
use futures::StreamExt as _;
use gantry_core::mutant;
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

/// Something changed: which object, and how it was and is.
#[derive(Debug)]
pub struct Change<O> {
    /// Where it is.
    pub key: Key,
    /// As it was; `None` when it is new.
    pub before: Option<Arc<O>>,
    /// As it is; `None` when it is gone.
    pub after: Option<Arc<O>>,
}

/// The object without what takes room and is never read.
pub(crate) fn lean<O: Resource>(mut object: O) -> O {
    let meta: &mut ObjectMeta = object.meta_mut();
    meta.managed_fields = None;
    meta.self_link = None;
    if let Some(annotations) = &mut meta.annotations {
        annotations.remove(KUBECTL_COPY);
    }
    object
}

/// Follows what an API has, for ever: keeps the cache, and says what changed.
pub async fn follow<O>(
    api: Api<O>,
    config: watcher::Config,
    scope: String,
    cache: Arc<Cache<O>>,
    report: WatchReport,
    changed: impl Fn(Change<O>) + Send,
) where
    O: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let mut events = pin!(watcher(api, config).default_backoff());
    let mut list: Vec<O> = Vec::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => list.clear(),
            Ok(Event::InitApply(object)) => list.push(lean(object)),
            Ok(Event::InitDone) => {
                for (key, before) in cache.replace(&scope, std::mem::take(&mut list)) {
                    if mutant::is("tells_nobody_of_a_list") {
                        continue;
                    }
                    let after = cache.get(&key);
                    let before = before.filter(|_| !mutant::is("forgets_who_owned_what_is_gone"));
                    changed(Change { key, before, after });
                }
                report.works();
            }
            Ok(Event::Apply(object)) => {
                report.works();
                let key = Key::of(object.meta());
                if let Some(before) = cache.put(lean(object)) {
                    let after = cache.get(&key);
                    changed(Change { key, before, after });
                }
            }
            Ok(Event::Delete(object)) => {
                report.works();
                let key = Key::of(object.meta());
                if mutant::is("is_deaf_to_deletions") {
                    continue;
                }
                let before = cache.remove(&object);
                let after = cache.get(&key);
                changed(Change { key, before, after });
            }
            // The watcher comes back by itself, ever more slowly; who waits is told why.
            Err(error) => report.fails(&error.to_string()),
        }
    }
}
