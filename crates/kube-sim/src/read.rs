//! Get and list.

use super::{
    failure::Failure,
    object::text,
    registry::Kind,
    request::{Request, Subresource},
    scale,
    selector::Selector,
    state::{Key, Reply, State},
};
use serde_json::{Map, Value, json};

impl State {
    pub(super) fn get(&self, request: &Request) -> Result<Reply, Failure> {
        self.get_at(request, self.revision())
    }

    pub(super) fn get_at(&self, request: &Request, revision: u64) -> Result<Reply, Failure> {
        let key = Key::new(&request.kind, &request.namespace, &request.name);
        let past;
        let found = if revision == self.revision() {
            self.objects.get(&key)
        } else {
            past = self.objects_at(&key.kind, revision);
            past.get(&key)
        };
        let object = found.ok_or_else(|| Failure::not_found(&request.kind, &request.name))?;
        Ok(Reply::json(
            200,
            match request.subresource {
                Subresource::Scale => scale::view(&request.kind, object),
                _ => shown(object, request.metadata_only),
            },
        ))
    }

    pub(super) fn list(&self, request: &Request, newest: u64) -> Result<Reply, Failure> {
        let selector = Selector::read(request)?;
        let (revision, after) = match request.option("continue") {
            "" => (self.requested_revision(request, newest)?, None),
            token => {
                let (revision, after) = read_token(token)?;
                (revision, Some(after))
            }
        };
        if revision < self.compacted() {
            let message = "the continue token is expired: list again without it";
            return Err(Failure::expired(message));
        }
        let limit = match request.option("limit") {
            "" => 0,
            text => text
                .parse::<usize>()
                .map_err(|_| Failure::bad_request(format!("limit: {text} is not a number")))?,
        };
        let objects = self.objects_at(&request.kind.id(), revision);
        let shown_all: Vec<_> = objects
            .iter()
            .filter(|(key, _)| request.namespace.is_empty() || key.namespace == request.namespace)
            .filter(|(key, _)| {
                after.as_ref().is_none_or(|(namespace, name)| (&key.namespace, &key.name) > (namespace, name))
            })
            .filter(|(_, object)| selector.shows(object))
            .collect();
        let page = if limit == 0 { shown_all.len() } else { limit.min(shown_all.len()) };
        let mut metadata = Map::new();
        if request.kind.custom {
            metadata.insert("continue".into(), "".into());
        }
        metadata.insert("resourceVersion".into(), revision.to_string().into());
        if let (true, Some((last, _))) =
            (page < shown_all.len(), page.checked_sub(1).and_then(|at| shown_all.get(at)))
        {
            metadata.insert("continue".into(), format!("{revision}/{}/{}", last.namespace, last.name).into());
            if selector.is_empty() {
                metadata.insert("remainingItemCount".into(), (shown_all.len() - page).into());
            }
        }
        let items: Vec<Value> = shown_all
            .iter()
            .take(page)
            .map(|(_, object)| item(&request.kind, object, request.metadata_only))
            .collect();
        let (version, kind) = if request.metadata_only {
            ("meta.k8s.io/v1".to_owned(), "PartialObjectMetadataList".to_owned())
        } else {
            (request.kind.api_version(), format!("{}List", request.kind.kind))
        };
        Ok(Reply::json(
            200,
            json!({"kind": kind, "apiVersion": version, "metadata": metadata, "items": items}),
        ))
    }

    fn requested_revision(&self, request: &Request, newest: u64) -> Result<u64, Failure> {
        let requested = revision_option(request)?;
        match (requested, request.option("resourceVersionMatch")) {
            (Some(requested), _) if requested > self.revision().min(newest) => {
                Err(Failure::too_new(requested, newest))
            }
            (Some(requested), "Exact") => {
                let message = "the requested resource version is expired: list without one";
                if requested < self.compacted() { Err(Failure::expired(message)) } else { Ok(requested) }
            }
            _ => Ok(newest),
        }
    }
}

/// `None` for an absent version and for 0, which mean any.
pub(super) fn revision_option(request: &Request) -> Result<Option<u64>, Failure> {
    match request.option("resourceVersion") {
        "" | "0" => Ok(None),
        text => match text.parse() {
            Ok(revision) => Ok(Some(revision)),
            Err(_) => Err(Failure::bad_request(format!("resourceVersion: {text} is invalid"))),
        },
    }
}

fn read_token(token: &str) -> Result<(u64, (String, String)), Failure> {
    let mut parts = token.splitn(3, '/');
    let read = || -> Option<_> {
        let revision = parts.next()?.parse().ok()?;
        Some((revision, (parts.next()?.to_owned(), parts.next()?.to_owned())))
    };
    let mut read = read;
    read().ok_or_else(|| Failure::bad_request("continue: invalid token: list again without it"))
}

pub(super) fn shown(object: &Value, metadata_only: bool) -> Value {
    if !metadata_only {
        return object.clone();
    }
    let metadata = object.get("metadata").cloned().unwrap_or_default();
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata})
}

/// List items of built-in kinds have no type of their own.
fn item(kind: &Kind, object: &Value, metadata_only: bool) -> Value {
    let mut object = shown(object, metadata_only);
    if let (false, false, Some(map)) = (kind.custom, metadata_only, object.as_object_mut()) {
        map.remove("kind");
        map.remove("apiVersion");
    }
    object
}

pub(super) fn uid(object: &Value) -> &str {
    text(object, "/metadata/uid")
}
