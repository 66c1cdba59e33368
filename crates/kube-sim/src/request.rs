//! A request as the server understands it: verb, kind, object, options.

use super::{
    failure::Failure,
    registry::{Kind, Registry},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{collections::BTreeMap, fmt, sync::Arc};

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    /// One object.
    Get,
    /// Many objects.
    List,
    /// What happens to objects.
    Watch,
    /// A new object.
    Create,
    /// A whole object in place of another.
    Update,
    /// A part of an object: merge patch, JSON patch.
    Patch,
    /// What one manager wants of an object.
    Apply,
    /// One object's end.
    Delete,
    /// The end of many.
    DeleteCollection,
}

impl Verb {
    /// Whether it may change objects.
    pub const fn writes(self) -> bool {
        !matches!(self, Self::Get | Self::List | Self::Watch)
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Apply => "apply",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
        };
        f.write_str(name)
    }
}

/// An endpoint below an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Subresource {
    /// The object itself.
    #[default]
    Main,
    /// `/status`
    Status,
    /// `/scale`
    Scale,
}

impl Subresource {
    /// As in URLs and `managedFields`; empty for the object itself.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Main => "",
            Self::Status => "status",
            Self::Scale => "scale",
        }
    }
}

/// A request as it comes: everything that HTTP says about it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Raw {
    /// `GET`, `POST`, …
    pub method: String,
    /// Path and query.
    pub target: String,
    /// `Content-Type`, without parameters.
    pub content_type: String,
    /// `Accept`.
    pub accept: String,
    /// `User-Agent`.
    pub user_agent: String,
    /// The body.
    pub body: Vec<u8>,
}

/// A request that is understood.
#[derive(Clone, Debug)]
pub struct Request {
    /// What to do.
    pub verb: Verb,
    /// With which kind.
    pub kind: Arc<Kind>,
    /// In which namespace; empty for all of them and for kinds without.
    pub namespace: String,
    /// With which object; empty for collections.
    pub name: String,
    /// At which endpoint.
    pub subresource: Subresource,
    /// The query.
    pub query: BTreeMap<String, String>,
    /// The body, where there is one.
    pub body: Option<Value>,
    /// How a patch is written.
    pub content_type: String,
    /// The client.
    pub user_agent: String,
    /// Whether the client wants metadata only.
    pub metadata_only: bool,
}

/// The largest body that is read: etcd's limit with room for the envelope.
const MOST_BYTES: usize = 3 << 20;

impl Request {
    /// Understands a request, or says what is wrong with it.
    pub fn read(raw: &Raw, registry: &Registry) -> Result<Self, Failure> {
        let (path, query) = raw.target.split_once('?').unwrap_or((&raw.target, ""));
        let query: BTreeMap<String, String> = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        let mut parts = path.trim_matches('/').split('/');
        let unknown = || Failure::no_endpoint(path);
        let (group, version) = match parts.next() {
            Some("api") => ("", parts.next().ok_or_else(unknown)?),
            Some("apis") => (parts.next().ok_or_else(unknown)?, parts.next().ok_or_else(unknown)?),
            _ => return Err(unknown()),
        };
        let rest: Vec<&str> = parts.collect();
        let (namespace, rest) = match rest.as_slice() {
            ["namespaces", namespace, rest @ ..]
                if !rest.is_empty() && !matches!(rest, ["status" | "finalize"]) =>
            {
                (*namespace, rest)
            }
            rest => ("", rest),
        };
        let (plural, name, subresource) = match rest {
            [plural] => (*plural, "", ""),
            [plural, name] => (*plural, *name, ""),
            [plural, name, subresource] => (*plural, *name, *subresource),
            _ => return Err(unknown()),
        };
        if !registry.iter().any(|kind| kind.group == group && kind.version == version) {
            return Err(Failure::no_group(path));
        }
        let kind = registry.by_plural(group, version, plural).ok_or_else(unknown)?;
        let subresource = match subresource {
            "" => Subresource::Main,
            "status" if kind.status => Subresource::Status,
            "scale" if kind.scale.is_some() => Subresource::Scale,
            _ => return Err(unknown()),
        };
        if !kind.namespaced && !namespace.is_empty() {
            return Err(unknown());
        }
        let content_type = raw.content_type.split(';').next().unwrap_or_default().trim().to_owned();
        let verb = verb(&raw.method, name, &query, &content_type, &kind, path)?;
        if kind.namespaced && namespace.is_empty() && (verb.writes() || !name.is_empty()) {
            return Err(unknown());
        }
        if raw.body.len() > MOST_BYTES {
            return Err(Failure::new(
                413,
                "RequestEntityTooLarge",
                format!("the body is over {MOST_BYTES} bytes"),
            ));
        }
        let body = match raw.body.as_slice() {
            [] => None,
            bytes => Some(read_body(bytes, &content_type)?),
        };
        Ok(Self {
            verb,
            kind,
            namespace: namespace.into(),
            name: name.into(),
            subresource,
            query,
            body,
            content_type,
            user_agent: raw.user_agent.clone(),
            metadata_only: raw.accept.contains("as=PartialObjectMetadata"),
        })
    }

    /// A query parameter; empty when it is not there.
    pub fn option(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }

    /// A query parameter that is on.
    pub fn flag(&self, name: &str) -> bool {
        matches!(self.option(name), "true" | "1")
    }

    /// Everything but the effect is wanted.
    pub fn dry_run(&self) -> bool {
        self.option("dryRun") == "All"
    }

    /// Who owns what this request writes.
    pub fn manager(&self) -> &str {
        match self.option("fieldManager") {
            "" => match self.user_agent.split('/').next() {
                None | Some("") => "unknown",
                Some(name) => name,
            },
            name => name,
        }
    }
}

fn verb(
    method: &str,
    name: &str,
    query: &BTreeMap<String, String>,
    content_type: &str,
    kind: &Kind,
    path: &str,
) -> Result<Verb, Failure> {
    let watch = query.get("watch").is_some_and(|value| matches!(value.as_str(), "true" | "1"));
    Ok(match (method, name.is_empty()) {
        ("GET", _) if watch => Verb::Watch,
        ("GET", false) => Verb::Get,
        ("GET", true) => Verb::List,
        ("POST", true) => Verb::Create,
        ("PUT", false) => Verb::Update,
        ("PATCH", false) => match content_type {
            "application/apply-patch+yaml" => Verb::Apply,
            "application/merge-patch+json" | "application/json-patch+json" => Verb::Patch,
            other => {
                let said = format!(
                    "a patch of {} cannot be {other}: send application/merge-patch+json, application/json-patch+json \
                     or application/apply-patch+yaml",
                    kind.id()
                );
                return Err(Failure::new(415, "UnsupportedMediaType", said));
            }
        },
        ("DELETE", false) => Verb::Delete,
        ("DELETE", true) => Verb::DeleteCollection,
        _ => {
            let said = format!("{method} is not possible at {path}");
            return Err(Failure::new(405, "MethodNotAllowed", said).with_empty_details());
        }
    })
}

fn read_body(bytes: &[u8], content_type: &str) -> Result<Value, Failure> {
    serde_json::from_slice(bytes).map_err(|error| {
        Failure::bad_request(format!(
            "the body ({content_type}) is not JSON, which is all this server reads: {error}"
        ))
    })
}
