//! The writer: every API write of the operator, with a timeout, behind the write fence, and counted.

use super::{
    adopt::{Adoption, claimed_fields, has_applied, is_from_other_operator},
    cache::{Cache, Origin},
    custom_resource::{Custom, CustomKind, Key, KindId},
    error::ApiError,
    event_series::{Emission, EventSeries},
    owned_object::{Desired, OwnedObject},
    ownership::{Ownership, ownership_of},
    resource_kind::ResourceKind,
    write_fence::WriteFence,
};
use crate::metrics::Metrics;
use k8s_openapi::{
    api::events::v1::Event,
    apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, ObjectList, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::{Value, json};
use std::{future::Future, sync::Arc, time::Duration};

const CALL_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub struct Writer {
    client: Client,
    fence: WriteFence,
    metrics: Arc<Metrics>,
    series: Arc<EventSeries>,
}

/// Preconditions of a delete: this object in this version, and no other of its name.
#[derive(Clone, Debug, PartialEq)]
pub struct DeleteTarget {
    pub kind: ResourceKind,
    pub key: Key,
    pub uid: String,
    pub resource_version: String,
}

/// An event about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventDraft {
    pub warning: bool,
    pub reason: &'static str,
    pub message: String,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("fence", &self.fence).finish_non_exhaustive()
    }
}

impl Writer {
    pub fn new(client: Client, fence: WriteFence, metrics: Arc<Metrics>) -> Self {
        Self { client, fence, metrics, series: Arc::default() }
    }

    /// For reads.
    pub const fn client(&self) -> &Client {
        &self.client
    }

    async fn call<T>(
        &self,
        verb: &'static str,
        kind: &'static str,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, ApiError> {
        let Some(left) = self.fence.remaining() else { return Err(ApiError::NotLeading) };
        let limit = CALL_TIMEOUT.min(left);
        let outcome = match tokio::time::timeout(limit, call).await {
            Ok(outcome) => outcome.map_err(ApiError::from),
            Err(_) => Err(ApiError::Transient(format!(
                "no response from the API server within {} s",
                limit.as_secs()
            ))),
        };
        self.metrics.write(verb, kind, outcome.as_ref().err().map_or("ok", ApiError::label));
        outcome
    }

    /// Applies an object unless it has no drift. Fails if a foreign object has its name. `true` when it changed.
    pub async fn apply(
        &self,
        manager: &str,
        desired: &Desired,
        cache: &Cache<OwnedObject>,
    ) -> Result<bool, ApiError> {
        let live = cache.get(&desired.key);
        if live.as_ref().is_some_and(|live| desired.matches(live)) {
            return Ok(false);
        }
        let resource = desired.kind.api_resource();
        let api: Api<OwnedObject> =
            Api::namespaced_with(self.client.clone(), &desired.key.namespace, &resource);
        let found = match &live {
            Some(live) if desired.base_pod.is_none() || !is_from_other_operator(live) => None,
            // The cache has labelled objects only, without their managed fields.
            _ => first(api.list(&by_name(&desired.key.name))).await?,
        };
        let existing = found.as_ref().or(live.as_deref());
        match existing.map(|existing| ownership_of(&existing.metadata, desired)) {
            None | Some(Ownership::Ours) => {}
            // Pods need an account of that name, and one with permissions is meant to be used.
            Some(Ownership::Foreign(_)) if desired.kind == ResourceKind::SERVICE_ACCOUNT => return Ok(false),
            Some(ownership) => return Err(ApiError::NotOwned(ownership)),
        }
        let adopted = match &found {
            Some(found) => Some(self.adopt(manager, desired, found, &api).await?),
            None => None,
        };
        let desired = adopted.as_ref().unwrap_or(desired);
        let patch = desired.manifest();
        // An object created meanwhile conflicts, and is checked by the next pass.
        let params = PatchParams { force: existing.is_some(), ..PatchParams::apply(manager) };
        let sent = self
            .call("apply", desired.kind.kind, api.patch(&desired.key.name, &params, &Patch::Apply(&patch)))
            .await?;
        // Without a new resource version the object had no drift, only an unknown notation of the same value.
        let is_changed =
            live.is_none_or(|live| live.metadata.resource_version != sent.metadata.resource_version);
        cache.put(super::watch::strip_metadata(sent), Origin::Write);
        Ok(is_changed)
    }

    /// The desired state of an object that another operator may have created. If its pods change, their fields are
    /// claimed first.
    async fn adopt(
        &self,
        manager: &str,
        desired: &Desired,
        live: &OwnedObject,
        api: &Api<OwnedObject>,
    ) -> Result<Desired, ApiError> {
        if desired.base_pod.is_none() || !has_same_owner(live, desired) || has_applied(live, manager) {
            return Ok(desired.clone());
        }
        let adopted = desired.adopted_from(Some(live));
        let is_changed = matches!(desired.adoption(live), Some(Adoption::Changed(_)));
        if let Some(fields) = is_changed.then(|| claimed_fields(live, manager)).flatten() {
            let patch: Value = json!([
                { "op": "test", "path": "/metadata/resourceVersion", "value": live.metadata.resource_version },
                { "op": "replace", "path": "/metadata/managedFields", "value": fields },
            ]);
            let patch: json_patch::Patch =
                serde_json::from_value(patch).map_err(|e| ApiError::Rejected(e.to_string()))?;
            let (params, patch) = (PatchParams::default(), Patch::<()>::Json(patch));
            let call = api.patch(&desired.key.name, &params, &patch);
            match self.call("take_over", desired.kind.kind, call).await {
                // The test failed: the object was modified.
                Err(ApiError::Rejected(_)) => return Err(ApiError::Conflict),
                outcome => drop(outcome?),
            }
        }
        Ok(adopted)
    }

    /// Applies a part of an object under a neutral field manager: the next writer owns it. Without `force`, a manager with
    /// another value keeps the field.
    pub async fn hand_over(
        &self,
        part: &Desired,
        cache: &Cache<OwnedObject>,
        force: bool,
    ) -> Result<(), ApiError> {
        let resource = part.kind.api_resource();
        let api: Api<OwnedObject> = Api::namespaced_with(self.client.clone(), &part.key.namespace, &resource);
        let mut patch = part.body.clone();
        if let Value::Object(fields) = &mut patch {
            fields.insert("apiVersion".into(), part.kind.api_version().into());
            fields.insert("kind".into(), part.kind.kind.into());
            fields
                .insert("metadata".into(), json!({ "name": part.key.name, "namespace": part.key.namespace }));
        }
        let params = PatchParams { force, ..PatchParams::apply("gantry/autoscaled") };
        let patch = Patch::Apply(&patch);
        let call = api.patch(&part.key.name, &params, &patch);
        match self.call("hand_over", part.kind.kind, call).await {
            Ok(sent) => {
                cache.put(super::watch::strip_metadata(sent), Origin::Write);
                Ok(())
            }
            // Another conflict is retried: without an owner the field would be reset to its default.
            Err(ApiError::Conflict) => match first(api.list(&by_name(&part.key.name))).await? {
                Some(live) if has_other_owner_of_replicas(&live) => Ok(()),
                _ => Err(ApiError::Conflict),
            },
            Err(error) => Err(error),
        }
    }

    /// Reads from the API server that an object exists and is not being deleted: a watch may be late.
    pub async fn confirm<K: CustomKind>(&self, object: &Custom<K>) -> Result<(), ApiError> {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let found = first(self.api(object).list_metadata(&by_name(name))).await?;
        let same = |meta: &ObjectMeta| meta.uid == object.metadata.uid && meta.deletion_timestamp.is_none();
        if found.is_some_and(|found| same(&found.metadata)) { Ok(()) } else { Err(ApiError::NotFound) }
    }

    /// A missing object counts as deleted.
    pub async fn delete(&self, target: &DeleteTarget) -> Result<(), ApiError> {
        let resource = target.kind.api_resource();
        let api: Api<OwnedObject> =
            Api::namespaced_with(self.client.clone(), &target.key.namespace, &resource);
        let preconditions = Preconditions {
            uid: Some(target.uid.clone()),
            resource_version: Some(target.resource_version.clone()),
        };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
        match self.call("delete", target.kind.kind, api.delete(&target.key.name, &params)).await {
            Ok(_) | Err(ApiError::NotFound) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn api<K: CustomKind>(&self, object: &Custom<K>) -> Api<Custom<K>> {
        Custom::<K>::api(self.client.clone(), object.metadata.namespace.as_deref().unwrap_or_default())
    }

    /// Writes the status of this object, and of no other of its name.
    pub async fn status<K: CustomKind>(
        &self,
        object: &Custom<K>,
        status: &K::Status,
        cache: &Cache<Custom<K>>,
    ) -> Result<(), ApiError> {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let before = serde_json::to_value(&object.status).unwrap_or_default();
        let status = with_removals(&before, serde_json::to_value(status).unwrap_or_default());
        let patch = json!({ "metadata": { "uid": object.uid() }, "status": status });
        let params = PatchParams { field_manager: Some("gantry/status".into()), ..PatchParams::default() };
        let api = self.api(object);
        let sent =
            self.call("status", K::KIND, api.patch_status(name, &params, &Patch::Merge(&patch))).await?;
        cache.put(super::watch::strip_metadata(sent), Origin::Write);
        Ok(())
    }

    /// Server-side apply adds to the list without conflicts.
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

    /// Removes a finalizer of any field manager.
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
            // The test failed: the list was modified.
            Err(ApiError::Rejected(_)) => Err(ApiError::Conflict),
            Err(error) => Err(error),
        }
    }

    /// Sets `spec.replicas`, if the object is unchanged.
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

    /// Writes an event, or counts its repetition in the series of the first one; a failure is only logged.
    pub async fn emit<K: CustomKind>(&self, object: &Custom<K>, event: &EventDraft, now: Timestamp) {
        let key = (object.uid().to_owned(), event.reason, event.message.clone());
        let object_name = object.metadata.name.as_deref().unwrap_or_default();
        let new = || format!("{object_name}.{}.{}", event.reason.to_lowercase(), now.as_millisecond());
        let outcome = match self.series.count(key.clone(), new()) {
            Emission::Skip => return,
            Emission::Create(name) => self.create_event(object, event, &name, now).await,
            Emission::Update { name, count } => match self.update_series(object, &name, count, now).await {
                // Events expire.
                Err(ApiError::NotFound) => {
                    self.series.forget(&key);
                    match self.series.count(key, new()) {
                        Emission::Create(name) => self.create_event(object, event, &name, now).await,
                        Emission::Update { .. } | Emission::Skip => Ok(()),
                    }
                }
                outcome => outcome,
            },
        };
        if let Err(error) = outcome {
            tracing::debug!(object = %object.key(), reason = event.reason, %error, "event rejected");
        }
    }

    async fn update_series<K: CustomKind>(
        &self,
        object: &Custom<K>,
        name: &str,
        count: i32,
        now: Timestamp,
    ) -> Result<(), ApiError> {
        let patch = json!({ "series": { "count": count, "lastObservedTime": MicroTime(now) } });
        let api: Api<Event> = Api::namespaced(self.client.clone(), &event_namespace(object));
        let params = PatchParams::default();
        self.call("event", "Event", api.patch(name, &params, &Patch::Merge(&patch))).await.map(drop)
    }

    async fn create_event<K: CustomKind>(
        &self,
        object: &Custom<K>,
        event: &EventDraft,
        event_name: &str,
        now: Timestamp,
    ) -> Result<(), ApiError> {
        let namespace = event_namespace(object);
        let event: Event = serde_json::from_value(json!({
            "metadata": { "name": event_name, "namespace": namespace },
            "eventTime": MicroTime(now),
            "reportingController": "gantry-operator",
            "reportingInstance": "gantry-operator",
            "action": "Reconcile",
            "reason": event.reason,
            "note": event.message.chars().take(1000).collect::<String>(),
            "type": if event.warning { "Warning" } else { "Normal" },
            "regarding": {
                "apiVersion": KindId::of::<K>().api_version(),
                "kind": K::KIND, "name": object.metadata.name, "namespace": namespace, "uid": object.uid(),
                "resourceVersion": object.metadata.resource_version,
            },
        }))
        .map_err(|error| ApiError::Rejected(error.to_string()))?;
        let api = Api::namespaced(self.client.clone(), &namespace);
        self.call("event", "Event", api.create(&PostParams::default(), &event)).await.map(drop)
    }
}

/// Events of cluster-scoped objects belong to the namespace "default".
fn event_namespace<K: CustomKind>(object: &Custom<K>) -> String {
    object.metadata.namespace.clone().unwrap_or_else(|| "default".into())
}

/// Whether a manager other than our controllers owns `spec.replicas`.
fn has_other_owner_of_replicas(live: &OwnedObject) -> bool {
    let owns = |entry: &ManagedFieldsEntry| {
        let fields = entry.fields_v1.as_ref();
        fields.is_some_and(|fields| fields.0.pointer("/f:spec/f:replicas").is_some())
    };
    let is_ours = |manager: &str| manager.starts_with("gantry/") && manager != "gantry/autoscaled";
    let mut entries = live.metadata.managed_fields.iter().flatten();
    entries.any(|entry| owns(entry) && !entry.manager.as_deref().is_some_and(is_ours))
}

/// Whether both have the same controlling owner.
fn has_same_owner(live: &OwnedObject, desired: &Desired) -> bool {
    let owner = desired.body.pointer("/metadata/ownerReferences/0/uid").and_then(Value::as_str);
    owner.is_some() && live.controller().map(|(_, uid)| uid) == owner
}

/// A list of one object: the operator has no permission to get.
fn by_name(name: &str) -> ListParams {
    ListParams::default().fields(&format!("metadata.name={name}"))
}

async fn first<T: Clone>(
    list: impl Future<Output = Result<ObjectList<T>, kube::Error>>,
) -> Result<Option<T>, ApiError> {
    let found = tokio::time::timeout(CALL_TIMEOUT, list).await;
    let found = found.map_err(|_| ApiError::Transient("no response from the API server".into()))??;
    Ok(found.items.into_iter().next())
}

/// A merge patch keeps the fields that it does not name: those of `before` that `after` lacks become null.
fn with_removals(before: &Value, mut after: Value) -> Value {
    let (Value::Object(before), Value::Object(fields)) = (before, &mut after) else { return after };
    for (name, value) in before {
        let next = fields.remove(name).map_or(Value::Null, |next| with_removals(value, next));
        fields.insert(name.clone(), next);
    }
    after
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_patch_nulls_removed_fields() {
        let before =
            json!({ "ready": "True", "replicas": 1, "annotations": { "a": "1", "b": "2" }, "list": [1, 2] });
        let after = json!({ "replicas": 2, "annotations": { "b": "3" }, "list": [2], "new": {} });
        let patch = with_removals(&before, after);
        let expected = json!({
            "ready": null, "replicas": 2, "annotations": { "a": null, "b": "3" }, "list": [2], "new": {},
        });
        assert_eq!(patch, expected);
        assert_eq!(with_removals(&Value::Null, json!({ "replicas": 1 })), json!({ "replicas": 1 }));
    }
}
