//! Kinds that are judged by themselves: nothing but the object is looked at.

use crate::cluster::{Custom, CustomKind};
use std::sync::Arc;

/// What is decided from: the object alone.
#[derive(Clone, Debug)]
pub struct Snapshot<K: CustomKind> {
    /// The object; `None` when it is gone.
    pub object: Option<Arc<Custom<K>>>,
}

/// A controller of such a kind: its name, the kind, the word for it in metrics, the cache that holds it, and the plan.
macro_rules! controller {
    ($name:ty, $kind:ty, $word:literal, $cache:ident, $plan:path) => {
        impl $crate::controller::Controller for $name {
            type Kind = $kind;
            type Snapshot = $crate::kinds::alone::Snapshot<$kind>;
            const NAME: &'static str = $word;

            fn cache(
                world: &$crate::world::World,
            ) -> &$crate::cluster::Cache<$crate::cluster::Custom<$kind>> {
                &world.$cache
            }

            fn observe(world: &$crate::world::World, key: &$crate::cluster::Key) -> Self::Snapshot {
                Self::Snapshot { object: world.$cache.get(key) }
            }

            fn plan(
                snapshot: &Self::Snapshot,
                now: k8s_openapi::jiff::Timestamp,
            ) -> $crate::plan::Plan<gantry_api::PlainStatus> {
                $plan(snapshot, now)
            }
        }
    };
}
pub(super) use controller;
