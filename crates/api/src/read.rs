//! How a text becomes objects.

use crate::{
    API_VERSION, ClusterObject, Kind, Manifest, Metadata, Model, Object, Parsed, Problem, SeldonConfigSpec,
    SeldonRuntimeSpec, Server, ServerConfigSpec, nearest,
    rules::{Refusal, Ruled},
    schema::{self, Fault},
    yaml::{self, Node, Value},
};
use schemars::{JsonSchema, generate::SchemaSettings};
use serde::{Deserialize, de::DeserializeOwned};

/// Kinds that exist in the group, but that this version does not serve.
const NOT_YET: [&str; 2] = ["Pipeline", "Experiment"];

/// Kinds that only the operator acts on: the API server of Kubernetes takes them, a scheduler does not.
const OF_KUBERNETES: [&str; 3] = ["SeldonRuntime", "SeldonConfig", "ServerConfig"];

/// Reads every object in a text that a scheduler takes; on failure, everything that is wrong with it.
pub fn parse(file: &str, text: &str) -> Result<Vec<Parsed>, Vec<Problem>> {
    let manifest = read(file, text)?;
    if manifest.cluster.is_empty() {
        return Ok(manifest.objects);
    }
    Err(manifest.cluster.iter().map(ClusterObject::refusal).collect())
}

/// Reads every object in a text; on failure, everything that is wrong with it.
pub fn read(file: &str, text: &str) -> Result<Manifest, Vec<Problem>> {
    let problem = |fault: Fault| Problem {
        file: file.to_owned(),
        line: fault.line,
        path: fault.path,
        message: fault.message,
    };
    let documents = yaml::parse(text)
        .map_err(|e| vec![problem(Fault { line: e.line, path: String::new(), message: e.message })])?;
    let mut manifest = Manifest::default();
    let mut problems = Vec::new();
    for document in documents.iter().flat_map(items) {
        let found = match object(document) {
            Ok(found) => found,
            Err(faults) => {
                problems.extend(faults.into_iter().map(problem));
                continue;
            }
        };
        let (file, line) = (file.to_owned(), document.line);
        if let Some(at) = twin_of(&manifest, &found) {
            let (kind, name) = (found.kind(), &found.metadata().name);
            problems.push(problem(Fault {
                line,
                path: "metadata.name".into(),
                message: format!("\"{name}\" is used twice: {kind} {name} stands at line {at} already"),
            }));
            continue;
        }
        match found {
            Found::Object(object) => manifest.objects.push(Parsed { object, file, line }),
            Found::Cluster(kind, metadata) => {
                let Metadata { name, namespace, .. } = *metadata;
                manifest.cluster.push(ClusterObject { kind, name, namespace, file, line });
            }
        }
    }
    if problems.is_empty() { Ok(manifest) } else { Err(problems) }
}

/// The line of an object of the same kind and name that was read before.
fn twin_of(manifest: &Manifest, found: &Found) -> Option<u32> {
    match found {
        Found::Object(object) => manifest
            .objects
            .iter()
            .find(|o| o.object.kind() == object.kind() && o.object.name() == object.name())
            .map(|o| o.line),
        Found::Cluster(kind, metadata) => manifest
            .cluster
            .iter()
            .find(|o| o.kind == *kind && o.name == metadata.name && o.namespace == metadata.namespace)
            .map(|o| o.line),
    }
}

/// A `kind: List`, as kubectl writes it, stands for its items.
fn items(document: &Node) -> Vec<&Node> {
    let is_list = document.get("kind").and_then(Node::text) == Some("List");
    match document.get("items").map(|i| &i.value) {
        Some(Value::List(items)) if is_list => items.iter().collect(),
        _ => vec![document],
    }
}

/// A document that was understood.
enum Found {
    Object(Object),
    Cluster(&'static str, Box<Metadata>),
}

impl Found {
    const fn kind(&self) -> &'static str {
        match self {
            Self::Object(object) => object.kind().name(),
            Self::Cluster(kind, _) => kind,
        }
    }

    const fn metadata(&self) -> &Metadata {
        match self {
            Self::Object(object) => object.metadata(),
            Self::Cluster(_, metadata) => metadata,
        }
    }
}

fn object(node: &Node) -> Result<Found, Vec<Fault>> {
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
    if NOT_YET.contains(&kind) {
        return Err(fault("kind", format!("{kind} is not supported yet; Model and Server are")));
    }
    if Kind::ALL.iter().all(|k| k.name() != kind) && !OF_KUBERNETES.contains(&kind) {
        let meant = nearest(kind, Kind::ALL.map(Kind::name).into_iter().chain(OF_KUBERNETES))
            .map(|k| format!(" Did you mean {k}?"))
            .unwrap_or_default();
        let kind = kind.escape_debug();
        return Err(fault("kind", format!("\"{kind}\" is not known: kinds are Model and Server.{meant}")));
    }
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
    match kind {
        "Model" => whole(node, kind, |m: &Model| m.spec.rules_named(&m.metadata.name))
            .map(|m| Found::Object(Object::Model(Box::new(m)))),
        "Server" => whole(node, kind, |s: &Server| s.spec.rules_named(&s.metadata.name))
            .map(|s| Found::Object(Object::Server(Box::new(s)))),
        "SeldonRuntime" => in_cluster::<SeldonRuntimeSpec>(node, "SeldonRuntime"),
        "SeldonConfig" => in_cluster::<SeldonConfigSpec>(node, "SeldonConfig"),
        _ => in_cluster::<ServerConfigSpec>(node, "ServerConfig"),
    }
}

/// An object as it is written, of a kind that has no type for its whole.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Written<S> {
    #[allow(dead_code, reason = "the schema is made from it")]
    api_version: String,
    #[allow(dead_code, reason = "the schema is made from it")]
    kind: String,
    pub(crate) metadata: Metadata,
    pub(crate) spec: S,
    #[allow(dead_code, reason = "the schema is made from it")]
    status: Option<serde_json::Value>,
}

/// Reads an object by the type of its spec.
pub(crate) fn written<S>(node: &Node, kind: &str) -> Result<Written<S>, Vec<Fault>>
where
    S: DeserializeOwned + JsonSchema + Ruled,
{
    whole(node, kind, |o: &Written<S>| o.spec.broken_named(&o.metadata.name))
}

fn in_cluster<S>(node: &Node, kind: &'static str) -> Result<Found, Vec<Fault>>
where
    S: DeserializeOwned + JsonSchema + Ruled,
{
    written::<S>(node, kind).map(|object| Found::Cluster(kind, Box::new(object.metadata)))
}

fn whole<T: DeserializeOwned + JsonSchema>(
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
    let faults: Vec<Fault> = rules(&value)
        .into_iter()
        .map(|(path, message)| Fault { line: node.line_of(&path), path, message })
        .collect();
    if faults.is_empty() { Ok(value) } else { Err(faults) }
}
