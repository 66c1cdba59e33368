//! What all controllers share: the world as it is known, the way to change it, and the links to schedulers.

use crate::{
    cluster::{Leadership, Writer},
    metrics::Metrics,
    schedulers::{Answer, Link},
    world::World,
};
use k8s_openapi::jiff::Timestamp;
use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    sync::{Arc, Mutex, PoisonError},
};

/// The time of day; a simulated world has its own.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

pub(crate) struct House {
    pub(crate) world: World,
    pub(crate) writer: Writer,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) clock: Clock,
    pub(crate) leadership: Leadership,
    pub(crate) links: Mutex<BTreeMap<String, Link>>,
}

impl fmt::Debug for House {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("House").finish_non_exhaustive()
    }
}

impl House {
    /// Whether anything may be changed, here or in a scheduler.
    pub(crate) fn may_write(&self) -> bool {
        self.leadership.time_left().is_some()
    }

    /// Does something over a namespace's link.
    pub(crate) async fn link<F: Future<Output = Answer>>(
        &self,
        namespace: &str,
        call: impl FnOnce(Link) -> F,
    ) -> Answer {
        let link = self.links.lock().unwrap_or_else(PoisonError::into_inner).get(namespace).cloned();
        match link {
            Some(link) => call(link).await,
            None => Answer::Later(crate::schedulers::NO_SCHEDULER.into()),
        }
    }
}
