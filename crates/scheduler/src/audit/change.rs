//! What a call changes, without its content.

use gantry_core::scheduling::{Kind, ReplicaId};
use serde::Serialize;

/// More objects of one call are counted.
const MAX_OBJECTS: usize = 100;
const MAX_NAME: usize = 256;
const MAX_OWNER: usize = 512;

/// An object that a call changes.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub(crate) struct Object {
    pub(super) kind: &'static str,
    pub(super) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) generation: Option<i64>,
}

impl Object {
    pub(crate) fn new(kind: &'static str, name: &str) -> Self {
        Self { kind, name: bounded(name, MAX_NAME), namespace: None, generation: None }
    }

    pub(crate) fn of_kind(kind: Kind, name: &str) -> Self {
        let kind = match kind {
            Kind::Model => "model",
            Kind::Server => "server",
            Kind::Pipeline => "pipeline",
            Kind::Experiment => "experiment",
            Kind::Service => "service",
        };
        Self::new(kind, name)
    }

    pub(crate) fn replica(id: &ReplicaId) -> Self {
        let server = bounded(&id.server, MAX_NAME);
        Self { name: format!("{server}/{}", id.index), ..Self::new("replica", "") }
    }

    /// With namespace and generation, if the API server has the object.
    pub(crate) fn in_kubernetes(self, meta: Option<&gantry_proto::scheduler::KubernetesMeta>) -> Self {
        match meta.filter(|meta| !meta.namespace.is_empty() || meta.generation > 0) {
            Some(meta) => {
                let generation = (meta.generation > 0).then_some(meta.generation);
                Self { namespace: Some(bounded(&meta.namespace, MAX_NAME)), generation, ..self }
            }
            None => self,
        }
    }

    pub(crate) fn in_namespace(self, namespace: &str) -> Self {
        Self { namespace: Some(bounded(namespace, MAX_NAME)), ..self }
    }
}

/// Filled in by the service that serves the call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Change {
    pub(super) owner: Option<String>,
    pub(super) objects: Vec<Object>,
    /// Objects beyond [`MAX_OBJECTS`].
    pub(super) more: u64,
    /// Which change, where an RPC has several: `promote`.
    pub(super) action: Option<String>,
}

impl Change {
    pub(crate) fn set_owner(&mut self, owner: impl AsRef<str>) {
        self.owner = Some(bounded(owner.as_ref(), MAX_OWNER));
    }

    pub(super) fn size(&self) -> usize {
        let names = |object: &Object| object.name.len() + object.namespace.as_ref().map_or(0, String::len);
        let objects = self.objects.iter().map(|object| size_of::<Object>() + names(object)).sum::<usize>();
        objects + self.owner.as_ref().map_or(0, String::len)
    }

    pub(crate) fn add(&mut self, object: Object) {
        if self.objects.len() < MAX_OBJECTS {
            self.objects.push(object);
        } else {
            self.more += 1;
        }
    }

    pub(crate) fn set_action(&mut self, action: &str) {
        self.action = Some(bounded(action, MAX_NAME));
    }
}

/// At most this many characters.
pub(super) fn bounded(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}
