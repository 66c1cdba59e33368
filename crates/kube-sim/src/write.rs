//! Update, patch and apply of existing objects and their subresources.

use super::{
    apply::{
        self, Author,
        fields::{FieldSet, Step},
        managed::Managed,
    },
    create::set_managed,
    failure::{Cause, Failure},
    object::{self, copy, is_terminating, set, text, texts, without_managers},
    patch,
    read::shown,
    registry::{Generation, Kind},
    request::{Request, Subresource, Verb},
    rules, scale,
    state::{Key, Reply, State},
};
use jiff::Timestamp;
use serde_json::Value;
use std::sync::Arc;

impl State {
    pub(super) fn change(&mut self, request: &Request, now: Timestamp) -> Result<Reply, Failure> {
        check_options(request)?;
        let key = Key::new(&request.kind, &request.namespace, &request.name);
        if request.verb == Verb::Update && request.subresource != Subresource::Scale {
            check_body(request)?;
        }
        let Some(live) = self.objects.get(&key).cloned() else {
            return match (request.verb, request.subresource) {
                (Verb::Apply, Subresource::Main) => {
                    let config = check_body(request)?.clone();
                    self.apply_new(request, &config, now)
                }
                _ => Err(Failure::not_found(&request.kind, &request.name)),
            };
        };
        if request.subresource == Subresource::Scale {
            return self.change_scale(request, &key, &live);
        }
        let (time, version) = (object::time(now), request.kind.api_version());
        let author = author_of(request, &version, &time);
        let (candidate, managed) = match request.verb {
            Verb::Apply => applied(request, &live, &author)?,
            _ => tracked(request, &live, &author)?,
        };
        let stored = self.replace(request, &key, &live, candidate, &managed)?;
        Ok(Reply::json(200, shown(&stored, request.metadata_only)))
    }

    /// Replaces the live object, except for server-owned fields.
    fn replace(
        &mut self,
        request: &Request,
        key: &Key,
        live: &Arc<Value>,
        mut object: Value,
        managed: &Managed,
    ) -> Result<Arc<Value>, Failure> {
        let kind = &request.kind;
        for name in [
            "uid",
            "creationTimestamp",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "generation",
            "selfLink",
            "name",
            "namespace",
            "resourceVersion",
        ] {
            copy(&mut object, live, &["metadata", name]);
        }
        match request.subresource {
            Subresource::Status => rules::keep_all_but_status(kind, live, &mut object),
            _ if kind.status => copy(&mut object, live, &["status"]),
            _ => {}
        }
        let problems = rules::problems(kind, Some(live), &object);
        if !problems.is_empty() {
            return Err(Failure::invalid(kind, &key.name, &problems));
        }
        if request.subresource != Subresource::Status && new_generation(kind, live, &object) {
            let generation = live.pointer("/metadata/generation").and_then(Value::as_i64).unwrap_or(0);
            set(&mut object, &["metadata", "generation"], generation + 1);
        }
        set_managed(&mut object, managed);
        if request.dry_run() {
            return Ok(Arc::new(object));
        }
        let done = is_terminating(&object)
            && texts(&object, "/metadata/finalizers").is_empty()
            && rules::may_go(kind, &object);
        if object == **live && !done {
            return Ok(Arc::clone(live));
        }
        if done {
            // Watches get the stored state, the author of the write gets the written one.
            self.erase(key);
            return Ok(Arc::new(object));
        }
        Ok(self.put(key.clone(), object))
    }

    fn change_scale(&mut self, request: &Request, key: &Key, live: &Arc<Value>) -> Result<Reply, Failure> {
        let kind = &request.kind;
        let Some(paths) = &kind.scale else { return Err(Failure::no_endpoint("scale")) };
        let body =
            request.body.as_ref().ok_or_else(|| Failure::bad_request("the body is empty: send a Scale"))?;
        let view = scale::view(kind, live);
        let wanted = match request.verb {
            Verb::Patch => patch::patched(&view, body, &request.content_type)?,
            _ => body.clone(),
        };
        check_version(request, live, &wanted, false)?;
        let replicas = wanted.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(0);
        if replicas < 0 {
            let cause = Cause::new("FieldValueInvalid", "spec.replicas", "must be 0 or more");
            let mut failure = Failure::invalid(kind, &key.name, &[cause]);
            failure.detail("kind", "Scale");
            failure.detail("group", "autoscaling");
            return Err(failure);
        }
        let mut object = without_managers(live);
        let path: Vec<&str> = paths.spec.trim_matches('/').split('/').collect();
        set(&mut object, &path, replicas);
        let version = kind.api_version();
        // The API server sets no time here.
        let author = author_of(request, &version, "");
        let mut managed = if request.verb == Verb::Apply {
            owner_of_scale(live, &object, &author, request, &path)?
        } else {
            apply::track(
                &without_managers(live),
                &object,
                Managed::of(live),
                &author,
                &kind.merge_schema,
                &FieldSet::default(),
            )
        };
        if replicas == 0 {
            // A Scale omits zero, and an omitted field has no owner.
            let path: Vec<Step> = path.iter().map(|name| Step::Field((*name).to_owned())).collect();
            managed.disown(&path);
        }
        let stored = self.replace(request, key, live, object, &managed)?;
        Ok(Reply::json(200, scale::view(kind, &stored)))
    }
}

fn owner_of_scale(
    live: &Value,
    scaled: &Value,
    author: &Author<'_>,
    request: &Request,
    path: &[&str],
) -> Result<Managed, Failure> {
    let mut config = Value::Object(serde_json::Map::new());
    let pointer = object::pointer(path);
    set(&mut config, path, scaled.pointer(&pointer).cloned().unwrap_or_default());
    let (live, managed) = (without_managers(live), Managed::of(live));
    let force = request.flag("force");
    let applied = apply::apply(
        &live,
        &config,
        managed,
        author,
        force,
        &request.kind.merge_schema,
        &FieldSet::default(),
    );
    applied.map(|(_, managed)| managed).map_err(|conflicts| Failure::apply_conflict(&conflicts))
}

fn applied(request: &Request, live: &Arc<Value>, author: &Author<'_>) -> Result<(Value, Managed), Failure> {
    let config = check_body(request)?;
    check_known(request, config)?;
    check_version(request, live, config, false)?;
    let plain = without_managers(live);
    let mut managed = Managed::of(live);
    if managed.0.is_empty() {
        // Without owners, the existing fields belong to a synthetic owner before the first apply.
        let before = Author { name: "before-first-apply", subresource: "", ..author.clone() };
        let empty = rules::empty(&request.kind);
        managed =
            apply::track(&empty, &plain, managed, &before, &request.kind.merge_schema, &FieldSet::default());
    }
    let (merge_schema, reset) = (&request.kind.merge_schema, reset_trees(request));
    let applied = apply::apply(&plain, config, managed, author, request.flag("force"), merge_schema, &reset);
    let (mut object, managed) = applied.map_err(|conflicts| Failure::apply_conflict(&conflicts))?;
    normalise_applied(&request.kind, &mut object);
    Ok((object, managed))
}

fn tracked(request: &Request, live: &Arc<Value>, author: &Author<'_>) -> Result<(Value, Managed), Failure> {
    let mut object = if request.verb == Verb::Patch {
        let body =
            request.body.as_ref().ok_or_else(|| Failure::bad_request("the body is empty: send a patch"))?;
        patch::patched(live, body, &request.content_type)?
    } else {
        check_body(request)?.clone()
    };
    if !object.is_object() {
        return Err(Failure::bad_request("the patch leaves no object"));
    }
    check_names(request, &object)?;
    check_version(request, live, &object, request.verb == Verb::Update)?;
    set_type(&request.kind, &mut object);
    normalise(&request.kind, &mut object);
    rules::inherit(&request.kind, live, &mut object);
    let managed = if request.subresource != Subresource::Main {
        Managed::of(live)
    } else if Managed::is_reset(&object) {
        return Ok((object, Managed::default()));
    } else {
        Some(Managed::of(&object))
            .filter(|claimed| !claimed.0.is_empty())
            .unwrap_or_else(|| Managed::of(live))
    };
    if managed.0.is_empty() {
        // Ownership starts at creation or at the first apply.
        return Ok((object, managed));
    }
    let (before, after) = (without_managers(live), without_managers(&object));
    let managed =
        apply::track(&before, &after, managed, author, &request.kind.merge_schema, &reset_trees(request));
    Ok((object, managed))
}

pub(super) fn author_of<'a>(request: &'a Request, version: &'a str, time: &'a str) -> Author<'a> {
    Author { name: request.manager(), subresource: request.subresource.name(), version, time }
}

/// Fields of other endpoints.
pub(super) fn reset_trees(request: &Request) -> FieldSet {
    let mut trees = FieldSet::default();
    let names: &[&str] = match request.subresource {
        Subresource::Main if request.kind.status => &["status"],
        Subresource::Status => &["spec"],
        _ => &[],
    };
    for name in names {
        trees.insert(&[Step::Field((*name).to_owned())]);
    }
    if request.subresource == Subresource::Status {
        let names: &[&str] = if request.kind.custom {
            &["labels", "annotations", "finalizers", "ownerReferences"]
        } else {
            &["labels"]
        };
        for name in names {
            trees.insert(&[Step::Field("metadata".into()), Step::Field((*name).to_owned())]);
        }
    }
    trees
}

/// Defaulting and pruning.
pub(super) fn normalise(kind: &Kind, object: &mut Value) {
    match &kind.schema {
        Some(schema) => schema.admit(object),
        None if !kind.custom => super::defaults::fill(kind, object),
        None => {}
    }
}

/// Defaulting after apply, which keeps nulls of emptied lists and maps.
pub(super) fn normalise_applied(kind: &Kind, object: &mut Value) {
    match &kind.schema {
        Some(schema) => schema.fill(object),
        None => normalise(kind, object),
    }
}

pub(super) fn check_known(request: &Request, config: &Value) -> Result<(), Failure> {
    match request.kind.schema.as_ref().and_then(|schema| schema.unknown(config)) {
        Some(field) => Err(Failure::unexpected(format!("{field} is not a field of {}", request.kind.kind))),
        None => Ok(()),
    }
}

/// Completes the type from the URL.
pub(super) fn set_type(kind: &Kind, object: &mut Value) {
    set(object, &["apiVersion"], kind.api_version());
    set(object, &["kind"], kind.kind.clone());
}

/// The body as an object of the requested kind, namespace and name.
pub(super) fn check_body(request: &Request) -> Result<&Value, Failure> {
    let body = request.body.as_ref().filter(|body| body.is_object());
    let body =
        body.ok_or_else(|| Failure::bad_request(format!("the body must be a {}", request.kind.kind)))?;
    let (version, kind) = (text(body, "/apiVersion"), text(body, "/kind"));
    let strict = request.verb == Verb::Apply;
    if (strict || !kind.is_empty()) && (kind != request.kind.kind || version != request.kind.api_version()) {
        let message = format!(
            "the body is {version} {kind}, the address is of {} {}: send one of them",
            request.kind.api_version(),
            request.kind.kind
        );
        return Err(Failure::bad_request(message));
    }
    if strict && body.pointer("/metadata/managedFields").is_some_and(|fields| !fields.is_null()) {
        return Err(Failure::bad_request("metadata.managedFields must be left out of what is applied"));
    }
    check_names(request, body)?;
    Ok(body)
}

fn check_names(request: &Request, object: &Value) -> Result<(), Failure> {
    let name = text(object, "/metadata/name");
    if !request.name.is_empty() && name != request.name {
        let message = format!("metadata.name is \"{name}\", the URL contains \"{}\"", request.name);
        return Err(Failure::bad_request(message));
    }
    let namespace = text(object, "/metadata/namespace");
    if request.kind.namespaced && !namespace.is_empty() && namespace != request.namespace {
        let message =
            format!("metadata.namespace is \"{namespace}\", the URL contains \"{}\"", request.namespace);
        return Err(Failure::bad_request(message));
    }
    Ok(())
}

fn check_options(request: &Request) -> Result<(), Failure> {
    let refuse = |field: &str, reason: &str, message: &str| {
        Err(Failure::invalid_options("PatchOptions", &Cause::new(reason, field, message)))
    };
    match request.verb {
        Verb::Apply if request.option("fieldManager").is_empty() => {
            refuse("fieldManager", "FieldValueRequired", "is required to apply: say who owns the fields")
        }
        Verb::Patch if request.flag("force") => refuse("force", "FieldValueForbidden", "is for apply only"),
        _ => Ok(()),
    }
}

/// Checks UID and resource version.
fn check_version(request: &Request, live: &Value, object: &Value, whole: bool) -> Result<(), Failure> {
    let (kind, name) = (&request.kind, request.name.as_str());
    let (uid, version) = (text(object, "/metadata/uid"), text(object, "/metadata/resourceVersion"));
    if !uid.is_empty() && uid != text(live, "/metadata/uid") {
        let message =
            format!("the uid is {uid}, the object that is there has {}", text(live, "/metadata/uid"));
        if request.verb == Verb::Update {
            return Err(Failure::conflict(kind, name, &message));
        }
        return Err(Failure::invalid(
            kind,
            name,
            &[Cause::new("FieldValueInvalid", "metadata.uid", &message)],
        ));
    }
    if version.is_empty() && whole && !kind.unconditional_update {
        let cause =
            Cause::new("FieldValueInvalid", "metadata.resourceVersion", "must be specified for an update");
        let mut failure = Failure::invalid(kind, name, &[cause]);
        failure.detail("kind", &kind.plural);
        return Err(failure);
    }
    if !version.is_empty() && version != text(live, "/metadata/resourceVersion") {
        return Err(Failure::conflict(
            kind,
            name,
            "the object has been modified: read it again and repeat the change",
        ));
    }
    Ok(())
}

fn new_generation(kind: &Kind, live: &Value, object: &Value) -> bool {
    match kind.generation {
        Generation::None => false,
        Generation::Spec => {
            live.get("spec") != object.get("spec") || rules::counts_as_new(kind, live, object)
        }
        Generation::Content => {
            let content = |object: &Value| {
                let mut map = object.as_object().cloned().unwrap_or_default();
                map.remove("metadata");
                if kind.status {
                    map.remove("status");
                }
                map
            };
            content(live) != content(object)
        }
    }
}
