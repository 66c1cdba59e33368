//! Kinds that only other controllers read: they have a cache, and no status.

use crate::{
    caches::Caches,
    cluster::{CustomKind, Key},
    controller::Controller,
    plan::Plan,
};
use k8s_openapi::jiff::Timestamp;
use std::marker::PhantomData;

/// The controller of a kind that is read by others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cached<K>(PhantomData<K>);

impl<K: CustomKind> Controller for Cached<K> {
    type Kind = K;
    type Snapshot = ();
    const NAME: &'static str = K::PLURAL;

    fn snapshot(_: &Caches, _: &Key) {}

    fn plan((): &(), _: Timestamp) -> Plan<K::Status> {
        Plan::default()
    }
}
