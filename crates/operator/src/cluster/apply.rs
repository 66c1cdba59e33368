//! Every change that the operator makes in the cluster goes through here: with a deadline, as leader, and counted.

use super::{
    adopt::{Adoption, has_applied, is_foreign, taken_over},
    cache::{Cache, Origin},
    custom_resource::{Custom, CustomKind, Key, KindId},
    error::ApiError,
    owned_object::{Desired, OwnedObject},
    ownership::{Ownership, ownership_of},
    resource_kind::ResourceKind,
    write_fence::WriteFence,
};
use crate::metrics::Metrics;
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::ObjectMeta, jiff::Timestamp};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, ObjectList, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::{Value, json};
use std::{future::Future, sync::Arc, time::Duration};

/// How long one call may take.
const CALL_TIME: Duration = Duration::from_secs(10);

/// The way to change things.
#[derive(Clone)]
pub struct Writer {
    client: Client,
    fence: WriteFence,
    metrics: Arc<Metrics>,
}

/// An object that is to go: this one, as it was seen, and no other of its name.
#[derive(Clone, Debug, PartialEq)]
pub struct DeleteTarget {
    /// Its kind.
    pub kind: ResourceKind,
    /// Where it is.
    pub key: Key,
    /// Its identity.
    pub uid: String,
    /// Its version when it was looked at.
    pub resource_version: String,
}

/// Something worth telling whoever looks at an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventDraft {
    /// Whether it is a problem.
    pub warning: bool,
    /// A word that a program can match.
    pub reason: &'static str,
    /// A sentence.
    pub message: String,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("leadership", &self.fence).finish_non_exhaustive()
    }
}

impl Writer {
    /// Writes through a client for as long as there is a right to.
    pub const fn new(client: Client, fence: WriteFence, metrics: Arc<Metrics>) -> Self {
        Self { client, fence, metrics }
    }

    /// The client, for what only reads.
    pub const fn client(&self) -> &Client {
        &self.client
    }

    async fn call<T>(
        &self,
        verb: &'static str,
        kind: &'static str,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, ApiError> {
        let left = match self.fence.remaining() {
            Some(left) => left,
            None => return Err(ApiError::NotLeading),
        };
        let limit = CALL_TIME.min(left);
        let outcome = match tokio::time::timeout(limit, call).await {
            Ok(outcome) => outcome.map_err(ApiError::from),
            Err(_) => {
                Err(ApiError::Transient(format!("the API server did not answer within {} s", limit.as_secs())))
            }
        };
        self.metrics.wrote(verb, kind, outcome.as_ref().err().map_or("ok", ApiError::word));
        outcome
    }

    /// Makes an object as it is wanted, unless it is so already, or somebody else has one there. `true` when something
    /// changed.
    pub async fn apply(
        &self,
        manager: &str,
        wanted: &Desired,
        cache: &Cache<OwnedObject>,
    ) -> Result<bool, ApiError> {
        let live = cache.get(&wanted.key);
        if live.as_ref().is_some_and(|live| wanted.is_there(live)) {
            return Ok(false);
        }
        let resource = wanted.kind.api_resource();
        let api: Api<OwnedObject> = Api::namespaced_with(self.client.clone(), &wanted.key.namespace, &resource);
        let found = match &live {
            Some(live) if wanted.bare.is_none() || !is_foreign(live) => None,
            // What is not marked as ours is not in the cache, and what another operator made is not whole there.
            _ => first(api.list(&only(&wanted.key.name))).await?,
        };
        let there = found.as_ref().or(live.as_deref());
        match there.map(|there| ownership_of(&there.metadata, wanted)) {
            None | Some(Ownership::Ours) => {}
            // Pods need one of that name, and nothing in it: whoever gave it rights wants it to be used.
            Some(Ownership::Foreign(_)) if wanted.kind == ResourceKind::SERVICE_ACCOUNT => return Ok(false),
            Some(whose) => return Err(ApiError::NotOwned(whose)),
        }
        let adopting = match &found {
            Some(found) => Some(self.adopt(manager, wanted, found, &api).await?),
            None => None,
        };
        let wanted = adopting.as_ref().unwrap_or(wanted);
        let patch = wanted.manifest();
        // What appears in between is looked at before it is changed.
        let params = PatchParams { force: there.is_some(), ..PatchParams::apply(manager) };
        let sent = self
            .call("apply", wanted.kind.kind, api.patch(&wanted.key.name, &params, &Patch::Apply(&patch)))
            .await?;
        // A value that the API server writes in a way that is not known here looks different for ever: what it did not
        // change was as it is wanted.
        let is_changed =
            live.is_none_or(|live| live.metadata.resource_version != sent.metadata.resource_version);
        cache.put(super::watch::strip_metadata(sent), Origin::Write);
        Ok(is_changed)
    }

    /// What is to be applied to an object that another operator may have made. Where a workload's pods are to change, its
    /// fields become ours first.
    async fn adopt(
        &self,
        manager: &str,
        wanted: &Desired,
        live: &OwnedObject,
        api: &Api<OwnedObject>,
    ) -> Result<Desired, ApiError> {
        if wanted.bare.is_none() || !is_of_same(live, wanted) || has_applied(live, manager) {
            return Ok(wanted.clone());
        }
        let adopting = wanted.adopting(Some(live));
        let is_changed = matches!(wanted.adoption(live), Some(Adoption::Changed(_)));
        if let Some(fields) = is_changed.then(|| taken_over(live, manager)).flatten() {
            let patch: Value = json!([
                { "op": "test", "path": "/metadata/resourceVersion", "value": live.metadata.resource_version },
                { "op": "replace", "path": "/metadata/managedFields", "value": fields },
            ]);
            let patch: json_patch::Patch =
                serde_json::from_value(patch).map_err(|e| ApiError::Rejected(e.to_string()))?;
            let (params, patch) = (PatchParams::default(), Patch::<()>::Json(patch));
            let call = api.patch(&wanted.key.name, &params, &patch);
            match self.call("take_over", wanted.kind.kind, call).await {
                // The test did not hold: somebody else changed it.
                Err(ApiError::Rejected(_)) => return Err(ApiError::Conflict),
                outcome => drop(outcome?),
            }
        }
        Ok(adopting)
    }

    /// Applies a part of an object that is there on behalf of nobody in particular: whoever changes it next owns it.
    pub async fn hand_over(&self, part: &Desired, cache: &Cache<OwnedObject>) -> Result<(), ApiError> {
        let resource = part.kind.api_resource();
        let api: Api<OwnedObject> = Api::namespaced_with(self.client.clone(), &part.key.namespace, &resource);
        let mut patch = part.body.clone();
        if let Value::Object(fields) = &mut patch {
            fields.insert("apiVersion".into(), part.kind.api_version().into());
            fields.insert("kind".into(), part.kind.kind.into());
            fields
                .insert("metadata".into(), json!({ "name": part.key.name, "namespace": part.key.namespace }));
        }
        // Not by force: who has another value meanwhile has the field already.
        let params = PatchParams::apply("gantry/autoscaled");
        let sent = self
            .call("hand_over", part.kind.kind, api.patch(&part.key.name, &params, &Patch::Apply(&patch)))
            .await?;
        cache.put(super::watch::strip_metadata(sent), Origin::Write);
        Ok(())
    }

    /// Asks the API server itself whether an object is still there, and not on its way out: a watch may be late.
    pub async fn confirm<K: CustomKind>(&self, object: &Custom<K>) -> Result<(), ApiError> {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let found = first(self.api(object).list_metadata(&only(name))).await?;
        let same = |meta: &ObjectMeta| meta.uid == object.metadata.uid && meta.deletion_timestamp.is_none();
        if found.is_some_and(|found| same(&found.metadata)) { Ok(()) } else { Err(ApiError::NotFound) }
    }

    /// Deletes the object that was looked at. One that is gone already is as good.
    pub async fn delete(&self, target: &DeleteTarget) -> Result<(), ApiError> {
        let resource = target.kind.api_resource();
        let api: Api<OwnedObject> = Api::namespaced_with(self.client.clone(), &target.key.namespace, &resource);
        let looked_at = Preconditions {
            uid: Some(target.uid.clone()),
            resource_version: Some(target.resource_version.clone()),
        };
        let params = DeleteParams {
            preconditions: Some(looked_at),
            ..DeleteParams::background()
        };
        match self.call("delete", target.kind.kind, api.delete(&target.key.name, &params)).await {
            Ok(_) | Err(ApiError::NotFound) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn api<K: CustomKind>(&self, object: &Custom<K>) -> Api<Custom<K>> {
        Custom::<K>::api(self.client.clone(), object.metadata.namespace.as_deref().unwrap_or_default())
    }

    /// Writes an object's status, for this object and no other of its name.
    pub async fn status<K: CustomKind>(
        &self,
        object: &Custom<K>,
        status: &K::Status,
        cache: &Cache<Custom<K>>,
    ) -> Result<(), ApiError> {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let patch = json!({ "metadata": { "uid": object.uid() }, "status": status });
        let params = PatchParams { field_manager: Some("gantry/status".into()), ..PatchParams::default() };
        let api = self.api(object);
        let sent =
            self.call("status", K::KIND, api.patch_status(name, &params, &Patch::Merge(&patch))).await?;
        cache.put(super::watch::strip_metadata(sent), Origin::Write);
        Ok(())
    }

    /// Adds a finalizer. Server-side apply adds to the list whatever else changes meanwhile: there is nothing to
    /// conflict with.
    pub async fn add_finalizer<K: CustomKind>(
        &self,
        manager: &str,
        object: &Custom<K>,
        finalizer: &str,
        cache: &Cache<Custom<K>>,
    ) -> Result<(), ApiError> {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let patch = json!({
            "apiVersion": KindId::of::<K>().api_version(),
            "kind": K::KIND,
            "metadata": { "name": name, "uid": object.uid(), "finalizers": [finalizer] },
        });
        let params = PatchParams::apply(manager).force();
        let api = self.api(object);
        let sent = self.call("finalizer", K::KIND, api.patch(name, &params, &Patch::Apply(&patch))).await?;
        cache.put(super::watch::strip_metadata(sent), Origin::Write);
        Ok(())
    }

    /// Takes a finalizer away, whoever put it there.
    pub async fn remove_finalizer<K: CustomKind>(
        &self,
        object: &Custom<K>,
        finalizer: &str,
    ) -> Result<(), ApiError> {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let finalizers: Vec<&String> = object.metadata.finalizers.iter().flatten().collect();
        let stays = |f: &&String| *f != finalizer;
        let rest: Vec<&String> = finalizers.iter().copied().filter(stays).collect();
        let patch: Value = json!([
            { "op": "test", "path": "/metadata/uid", "value": object.uid() },
            { "op": "test", "path": "/metadata/finalizers", "value": finalizers },
            { "op": "replace", "path": "/metadata/finalizers", "value": rest },
        ]);
        let patch: json_patch::Patch =
            serde_json::from_value(patch).map_err(|e| ApiError::Rejected(e.to_string()))?;
        let api = self.api(object);
        let sent = self
            .call("finalizer", K::KIND, api.patch(name, &PatchParams::default(), &Patch::<()>::Json(patch)))
            .await;
        match sent {
            Ok(_) | Err(ApiError::NotFound) => Ok(()),
            // The test did not hold: somebody else changed the list.
            Err(ApiError::Rejected(_)) => Err(ApiError::Conflict),
            Err(error) => Err(error),
        }
    }

    /// Sets an object's replicas, as `kubectl scale` would, if it still is at the generation that was looked at.
    pub async fn scale<K: CustomKind>(&self, object: &Custom<K>, replicas: i32) -> Result<(), ApiError> {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let patch = json!({
            "metadata": { "uid": object.uid(), "resourceVersion": object.metadata.resource_version },
            "spec": { "replicas": replicas },
        });
        let params = PatchParams { field_manager: Some("gantry/scaling".into()), ..PatchParams::default() };
        let api = self.api(object);
        self.call("scale", K::KIND, api.patch(name, &params, &Patch::Merge(&patch))).await?;
        Ok(())
    }

    /// Tells whoever looks at an object. Nothing depends on it: a failure is only logged.
    pub async fn emit<K: CustomKind>(&self, object: &Custom<K>, event: &EventDraft, now: Timestamp) {
        let namespace = object.metadata.namespace.clone().unwrap_or_default();
        let name = object.metadata.name.clone().unwrap_or_default();
        // One event for one happening of one generation: telling it again is refused, not repeated.
        let event_name = format!("{name}.{}.{}", event.reason.to_lowercase(), now.as_millisecond());
        let event: k8s_openapi::api::events::v1::Event = match serde_json::from_value(json!({
            "metadata": { "name": event_name, "namespace": namespace },
            "eventTime": k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime(now),
            "reportingController": "gantry-operator",
            "reportingInstance": "gantry-operator",
            "action": "Reconcile",
            "reason": event.reason,
            "note": event.message.chars().take(1000).collect::<String>(),
            "type": if event.warning { "Warning" } else { "Normal" },
            "regarding": {
                "apiVersion": KindId::of::<K>().api_version(),
                "kind": K::KIND, "name": name, "namespace": namespace, "uid": object.uid(),
                "resourceVersion": object.metadata.resource_version,
            },
        })) {
            Ok(event) => event,
            Err(error) => {
                tracing::warn!(%error, "an event could not be written");
                return;
            }
        };
        let api = Api::namespaced(self.client.clone(), &namespace);
        if let Err(error) = self.call("event", "Event", api.create(&PostParams::default(), &event)).await {
            tracing::debug!(object = %object.key(), reason = event.reason, %error, "an event was not taken");
        }
    }
}

/// Whether an object belongs to whom the wanted one belongs.
fn is_of_same(live: &OwnedObject, wanted: &Desired) -> bool {
    let owner = wanted.body.pointer("/metadata/ownerReferences/0/uid").and_then(Value::as_str);
    owner.is_some() && live.controller().map(|(_, uid)| uid) == owner
}

/// A list of one: the operator follows everything by lists, and has no other right to read.
fn only(name: &str) -> ListParams {
    ListParams::default().fields(&format!("metadata.name={name}"))
}

/// What the API server itself has at a place.
async fn first<T: Clone>(
    list: impl Future<Output = Result<ObjectList<T>, kube::Error>>,
) -> Result<Option<T>, ApiError> {
    let found = tokio::time::timeout(CALL_TIME, list).await;
    let found = found.map_err(|_| ApiError::Transient("the API server did not answer".into()))??;
    Ok(found.items.into_iter().next())
}
