//! Parsed requests.

use super::{
    failure::Failure,
    registry::{Kind, Registry},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{collections::BTreeMap, fmt, sync::Arc};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    /// Merge patch or JSON patch.
    Patch,
    /// Server-side apply.
    Apply,
    Delete,
    DeleteCollection,
}

impl Verb {
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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Subresource {
    #[default]
    Main,
    /// `/status`
    Status,
    /// `/scale`
    Scale,
}

impl Subresource {
    /// Empty for the object itself.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Main => "",
            Self::Status => "status",
            Self::Scale => "scale",
        }
    }
}

/// An HTTP request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HttpRequest {
    pub method: String,
    pub target: String,
    /// Without parameters.
    pub content_type: String,
    pub accept: String,
    pub user_agent: String,
    pub body: Vec<u8>,
}

#[derive(Clone, Debug)]
pub struct Request {
    pub verb: Verb,
    pub kind: Arc<Kind>,
    /// Empty for all namespaces and for cluster-scoped kinds.
    pub namespace: String,
    /// Empty for collections.
    pub name: String,
    pub subresource: Subresource,
    pub query: BTreeMap<String, String>,
    pub body: Option<Value>,
    pub content_type: String,
    /// `User-Agent`.
    pub user_agent: String,
    /// Only metadata is requested.
    pub metadata_only: bool,
}

/// etcd's limit plus overhead.
const MOST_BYTES: usize = 3 << 20;

impl Request {
    pub fn read(raw: &HttpRequest, registry: &Registry) -> Result<Self, Failure> {
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

    /// Empty when absent.
    pub fn option(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }

    pub fn flag(&self, name: &str) -> bool {
        matches!(self.option(name), "true" | "1")
    }

    pub fn dry_run(&self) -> bool {
        self.option("dryRun") == "All"
    }

    /// The field manager.
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
            let said = format!("{method} is not supported at {path}");
            return Err(Failure::new(405, "MethodNotAllowed", said).with_empty_details());
        }
    })
}

fn read_body(bytes: &[u8], content_type: &str) -> Result<Value, Failure> {
    serde_json::from_slice(bytes).map_err(|error| {
        Failure::bad_request(format!(
            "the body ({content_type}) is not JSON, the only supported format: {error}"
        ))
    })
}
