//! Objects of every kind, and how a text becomes them.

use crate::{
    Model, Problem, Server, check_name, nearest,
    schema::{self, Fault},
    yaml::{self, Node, Value},
};
use schemars::{JsonSchema, generate::SchemaSettings};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::collections::BTreeMap;

/// The group and version of the kinds that are shared with Seldon Core v2.
pub const API_VERSION: &str = "mlops.seldon.io/v1alpha1";

/// Kinds that exist in the group, but that this version does not serve.
const NOT_YET: [&str; 5] = ["Pipeline", "Experiment", "SeldonRuntime", "SeldonConfig", "ServerConfig"];

/// The kinds that can be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A Server: replicas that models are loaded onto.
    Server,
    /// A Model: an artifact to be served.
    Model,
}

impl Kind {
    /// Every kind, in the order in which they are to be applied.
    pub const ALL: [Self; 2] = [Self::Server, Self::Model];

    /// The kind's name in a manifest.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Model => "Model",
            Self::Server => "Server",
        }
    }

    /// The kind that a person means by `model`, `models`, `Model` or `mlm`.
    pub fn from_word(word: &str) -> Option<Self> {
        match word.to_ascii_lowercase().as_str() {
            "model" | "models" | "mlm" => Some(Self::Model),
            "server" | "servers" | "mls" => Some(Self::Server),
            _ => None,
        }
    }
}

/// What every object has: its name, and what Kubernetes adds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    /// The name, unique among objects of the kind.
    #[serde(default)]
    pub name: String,
    /// The Kubernetes namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Labels to select by.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Grows with each change of the spec; set by the API server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// Set by the API server; accepted so that `kubectl get -o yaml` can be applied.
    #[serde(skip_serializing)]
    pub uid: Option<String>,
    /// Set by the API server.
    #[serde(skip_serializing)]
    pub resource_version: Option<String>,
    /// Set by the API server.
    #[serde(skip_serializing)]
    pub creation_timestamp: Option<String>,
    /// Set by the API server.
    #[serde(skip_serializing)]
    pub deletion_timestamp: Option<String>,
    /// Set by controllers.
    #[serde(skip_serializing)]
    pub finalizers: Option<Vec<String>>,
    /// Set by controllers.
    #[serde(skip_serializing)]
    pub owner_references: Option<serde_json::Value>,
    /// Set by the API server.
    #[serde(skip_serializing)]
    pub managed_fields: Option<serde_json::Value>,
    /// Set by the API server.
    #[serde(skip_serializing)]
    pub self_link: Option<String>,
    /// A prefix from which Kubernetes makes a name.
    #[serde(skip_serializing)]
    pub generate_name: Option<String>,
}

/// An object of one of the kinds.
#[derive(Clone, Debug, PartialEq)]
pub enum Object {
    /// A Model.
    Model(Box<Model>),
    /// A Server.
    Server(Box<Server>),
}

impl Object {
    /// The object's kind.
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Model(_) => Kind::Model,
            Self::Server(_) => Kind::Server,
        }
    }

    /// The object's metadata.
    pub const fn metadata(&self) -> &Metadata {
        match self {
            Self::Model(m) => &m.metadata,
            Self::Server(s) => &s.metadata,
        }
    }

    /// The object's name.
    pub fn name(&self) -> &str {
        &self.metadata().name
    }
}

/// An object and where it was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Parsed {
    /// The object.
    pub object: Object,
    /// The file, as the user named it.
    pub file: String,
    /// The line where the object begins.
    pub line: u32,
}

/// Reads every object in a text; on failure, everything that is wrong with it.
pub fn parse(file: &str, text: &str) -> Result<Vec<Parsed>, Vec<Problem>> {
    let problem = |fault: Fault| Problem {
        file: file.to_owned(),
        line: fault.line,
        path: fault.path,
        message: fault.message,
    };
    let documents = yaml::parse(text)
        .map_err(|e| vec![problem(Fault { line: e.line, path: String::new(), message: e.message })])?;
    let mut objects: Vec<Parsed> = Vec::new();
    let mut problems = Vec::new();
    for document in documents.iter().flat_map(items) {
        match object(document) {
            Ok(object) => {
                let twin = objects
                    .iter()
                    .find(|o| o.object.kind() == object.kind() && o.object.name() == object.name());
                if let Some(twin) = twin {
                    problems.push(problem(Fault {
                        line: document.line,
                        path: "metadata.name".into(),
                        message: format!(
                            "\"{}\" is used twice: {} {} stands at line {} already",
                            object.name(),
                            object.kind().name(),
                            object.name(),
                            twin.line
                        ),
                    }));
                } else {
                    objects.push(Parsed { object, file: file.to_owned(), line: document.line });
                }
            }
            Err(faults) => problems.extend(faults.into_iter().map(problem)),
        }
    }
    if problems.is_empty() { Ok(objects) } else { Err(problems) }
}

/// A `kind: List`, as kubectl writes it, stands for its items.
fn items(document: &Node) -> Vec<&Node> {
    let is_list = document.get("kind").and_then(Node::text) == Some("List");
    match document.get("items").map(|i| &i.value) {
        Some(Value::List(items)) if is_list => items.iter().collect(),
        _ => vec![document],
    }
}

fn object(node: &Node) -> Result<Object, Vec<Fault>> {
    let fault = |path: &str, message: String| {
        vec![Fault { line: node.line_of(path), path: path.to_owned(), message }]
    };
    if !matches!(node.value, Value::Map(_)) {
        return Err(fault(
            "",
            format!("must be an object with apiVersion, kind, metadata and spec, got {}", node.describe()),
        ));
    }
    let Some(kind) = node.get("kind").and_then(Node::text) else {
        return Err(fault("kind", "is missing: it says what the object is, Model or Server".into()));
    };
    let known = match kind {
        "Model" => Kind::Model,
        "Server" => Kind::Server,
        other if NOT_YET.contains(&other) => {
            return Err(fault("kind", format!("{other} is not supported yet; Model and Server are")));
        }
        other => {
            let meant = nearest(other, Kind::ALL.map(Kind::name))
                .map(|k| format!(" Did you mean {k}?"))
                .unwrap_or_default();
            return Err(fault(
                "kind",
                format!("\"{}\" is not known: kinds are Model and Server.{meant}", other.escape_debug()),
            ));
        }
    };
    match node.get("apiVersion").map(|v| (v, v.text())) {
        Some((_, Some(API_VERSION))) => {}
        Some((v, _)) => {
            return Err(fault(
                "apiVersion",
                format!("must be {API_VERSION} for a {kind}, got {}", v.describe()),
            ));
        }
        None => {
            return Err(fault("apiVersion", format!("is missing: write apiVersion: {API_VERSION}")));
        }
    }
    match known {
        Kind::Model => typed(node, kind, |m: &Model| m.rules()).map(|m| Object::Model(Box::new(m))),
        Kind::Server => typed(node, kind, |s: &Server| s.rules()).map(|s| Object::Server(Box::new(s))),
    }
}

/// Something that a kind's own rules refuse: a path and a message.
pub(crate) type Refusal = (String, String);

fn typed<T: DeserializeOwned + JsonSchema + HasMetadata>(
    node: &Node,
    kind: &str,
    rules: impl Fn(&T) -> Vec<Refusal>,
) -> Result<T, Vec<Fault>> {
    let schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<T>().to_value();
    let faults = schema::check(node, &schema, kind);
    if !faults.is_empty() {
        return Err(faults);
    }
    let value: T = serde_json::from_value(node.to_json())
        .map_err(|e| vec![Fault { line: node.line, path: String::new(), message: e.to_string() }])?;
    let name = check_name(&value.metadata().name).err().map(|p| ("metadata.name".to_owned(), p.to_string()));
    let faults: Vec<Fault> = name
        .into_iter()
        .chain(rules(&value))
        .map(|(path, message)| Fault { line: node.line_of(&path), path, message })
        .collect();
    if faults.is_empty() { Ok(value) } else { Err(faults) }
}

/// A kind's type: it has metadata.
pub(crate) trait HasMetadata {
    fn metadata(&self) -> &Metadata;
}
