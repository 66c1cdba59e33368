//! Manifest parsing: text to validated objects.

use crate::{
    ALGORITHM_V1, API_VERSION, AlgorithmSpec, ClusterObject, Diagnostic, Experiment, ForeignObject,
    GANTRY_V1ALPHA1, INFERENCE_GRAPH, INFERENCE_SERVICE, Manifest, Metadata, Model, Object, Parsed, Pipeline,
    RolloutPolicy, SeldonConfigSpec, SeldonRuntimeSpec, Server, ServerConfigSpec,
    kserve::{
        ClusterStorageContainer, InferenceGraphSpec, InferenceServiceSpec, KSERVE_V1ALPHA1, KSERVE_V1BETA1,
        ServingRuntimeSpec, TrainedModelSpec, inference_service_warnings,
    },
    nearest, schema,
    validation::{FieldError, Validate},
    yaml::{self, Node, Value},
};
use schemars::{JsonSchema, generate::SchemaSettings};
use serde::{Deserialize, de::DeserializeOwned};

/// Kinds and their versions. A scheduler takes the first five; the others are handled by the operator only.
const KINDS: [(&str, &str); 15] = [
    ("Model", API_VERSION),
    ("Server", API_VERSION),
    ("Pipeline", API_VERSION),
    ("Experiment", API_VERSION),
    ("RolloutPolicy", GANTRY_V1ALPHA1),
    ("SeldonRuntime", API_VERSION),
    ("SeldonConfig", API_VERSION),
    ("ServerConfig", API_VERSION),
    ("InferenceService", KSERVE_V1BETA1),
    ("ServingRuntime", KSERVE_V1ALPHA1),
    ("ClusterServingRuntime", KSERVE_V1ALPHA1),
    ("ClusterStorageContainer", KSERVE_V1ALPHA1),
    ("InferenceGraph", KSERVE_V1ALPHA1),
    ("TrainedModel", KSERVE_V1ALPHA1),
    ("Algorithm", ALGORITHM_V1),
];
/// For messages: the kinds that most manifests have.
const KIND_LIST: &str =
    "Model, Server, Pipeline, Experiment, SeldonRuntime, SeldonConfig, ServerConfig or InferenceService";

fn version_of(kind: &str) -> Option<&'static str> {
    KINDS.iter().find(|(name, _)| *name == kind).map(|(_, version)| *version)
}

/// Parses a manifest for a scheduler: InferenceServices become models, other kinds of the operator are errors.
pub fn parse(file: &str, text: &str) -> Result<Vec<Parsed>, Vec<Diagnostic>> {
    let manifest = parse_manifest(file, text)?;
    let mut errors: Vec<Diagnostic> = manifest.foreign.iter().map(ForeignObject::unsupported).collect();
    let mut objects = manifest.objects;
    for object in manifest.cluster {
        match object.into_scheduled() {
            Ok(parsed) => objects.push(parsed),
            Err(more) => errors.extend(more),
        }
    }
    if errors.is_empty() { Ok(objects) } else { Err(errors) }
}

/// Parses all objects of a manifest, or returns all its errors.
pub fn parse_manifest(file: &str, text: &str) -> Result<Manifest, Vec<Diagnostic>> {
    let in_file = |diagnostic| Diagnostic { file: file.to_owned(), ..diagnostic };
    let documents = yaml::parse(text).map_err(|error| vec![in_file(error)])?;
    let mut manifest = Manifest::default();
    let mut errors = Vec::new();
    for document in documents.iter().flat_map(items) {
        if let Some((kind, api_version)) = foreign(document) {
            let (file, line) = (file.to_owned(), document.line);
            manifest.foreign.push(ForeignObject { kind, api_version, file, line });
            continue;
        }
        let decoded = match object(document) {
            Ok(decoded) => decoded,
            Err(found) => {
                errors.extend(found.into_iter().map(in_file));
                continue;
            }
        };
        let (file, line) = (file.to_owned(), document.line);
        if let Some(at) = duplicate_of(&manifest, &decoded) {
            let (kind, name) = (decoded.kind(), &decoded.metadata().name);
            let message = format!("\"{name}\" is a duplicate: {kind} {name} is already defined at line {at}");
            errors.push(in_file(Diagnostic::new(line, "metadata.name", message)));
            continue;
        }
        let at_field =
            |(path, message): FieldError| in_file(Diagnostic::new(document.line_of(&path), path, message));
        let kind = decoded.kind();
        let mut graph = None;
        let (metadata, warnings, model) = match decoded {
            Decoded::Object(object) => {
                manifest.objects.push(Parsed { object, file, line });
                continue;
            }
            Decoded::Cluster(_, metadata, warnings) => (*metadata, warnings, None),
            Decoded::Graph(decoded) => {
                graph = Some(Box::new(decoded.spec));
                (decoded.metadata, Vec::new(), None)
            }
            Decoded::Service(service) => {
                let model = service.spec.to_model(&service.metadata).map(Box::new);
                let model = model.map_err(|errors| errors.into_iter().map(at_field).collect());
                (service.metadata, inference_service_warnings(&service.spec), Some(model))
            }
        };
        manifest.warnings.extend(warnings.into_iter().map(at_field));
        let Metadata { name, namespace, .. } = metadata;
        manifest.cluster.push(ClusterObject { kind, name, namespace, file, line, model, graph });
    }
    if errors.is_empty() { Ok(manifest) } else { Err(errors) }
}

/// The line of an earlier object with the same kind and name.
fn duplicate_of(manifest: &Manifest, decoded: &Decoded) -> Option<u32> {
    match decoded {
        Decoded::Object(object) => manifest
            .objects
            .iter()
            .find(|o| o.object.kind() == object.kind() && o.object.name() == object.name())
            .map(|o| o.line),
        Decoded::Cluster(..) | Decoded::Service(_) | Decoded::Graph(_) => {
            let (kind, metadata) = (decoded.kind(), decoded.metadata());
            let is_same = |o: &&ClusterObject| {
                o.kind == kind && o.name == metadata.name && o.namespace == metadata.namespace
            };
            manifest.cluster.iter().find(is_same).map(|o| o.line)
        }
    }
}

/// The items of a `kind: List`, or the document itself.
pub(crate) fn items(document: &Node) -> Vec<&Node> {
    let is_list = document.get("kind").and_then(Node::text) == Some("List");
    match document.get("items").map(|i| &i.value) {
        Some(Value::List(items)) if is_list => items.iter().collect(),
        _ => vec![document],
    }
}

/// Kind and version of an object of another API group. A kind of ours with another version is a mistake instead.
fn foreign(node: &Node) -> Option<(String, String)> {
    let (kind, version) = (node.get("kind")?.text()?, node.get("apiVersion")?.text()?);
    let group = |version: &str| version.split_once('/').map_or(String::new(), |(group, _)| group.to_owned());
    let is_own_group = [API_VERSION, GANTRY_V1ALPHA1].map(group).contains(&group(version));
    // Kinds of KServe that are not handled are left to others; a kind of another group with a name of theirs too.
    let is_ours = version_of(kind).is_some_and(|own| own == API_VERSION || group(own) == group(version));
    let ours = is_own_group || is_ours;
    (!ours).then(|| (kind.to_owned(), version.to_owned()))
}

enum Decoded {
    Object(Object),
    /// With its warnings.
    Cluster(&'static str, Box<Metadata>, Vec<FieldError>),
    Service(Box<Envelope<InferenceServiceSpec>>),
    Graph(Box<Envelope<InferenceGraphSpec>>),
}

impl Decoded {
    const fn kind(&self) -> &'static str {
        match self {
            Self::Object(object) => object.kind().name(),
            Self::Cluster(kind, _, _) => kind,
            Self::Service(_) => INFERENCE_SERVICE,
            Self::Graph(_) => INFERENCE_GRAPH,
        }
    }

    const fn metadata(&self) -> &Metadata {
        match self {
            Self::Object(object) => object.metadata(),
            Self::Cluster(_, metadata, _) => metadata,
            Self::Service(service) => &service.metadata,
            Self::Graph(graph) => &graph.metadata,
        }
    }
}

fn object(node: &Node) -> Result<Decoded, Vec<Diagnostic>> {
    let error = |path: &str, message: String| vec![Diagnostic::new(node.line_of(path), path, message)];
    if !matches!(node.value, Value::Map(_)) {
        return Err(error(
            "",
            format!("must be an object with apiVersion, kind, metadata and spec, got {}", node.describe()),
        ));
    }
    let Some(kind) = node.get("kind").and_then(Node::text) else {
        return Err(error("kind", format!("is missing: set it to {KIND_LIST}")));
    };
    let Some(api_version) = version_of(kind) else {
        let meant = nearest(kind, KINDS.map(|(name, _)| name))
            .map(|k| format!(" Did you mean {k}?"))
            .unwrap_or_default();
        let kind = kind.escape_debug();
        return Err(error("kind", format!("\"{kind}\" is not supported: use {KIND_LIST}.{meant}")));
    };
    match node.get("apiVersion").map(|v| (v, v.text())) {
        Some((_, Some(version))) if version == api_version => {}
        Some((v, _)) => {
            return Err(error(
                "apiVersion",
                format!("must be {api_version} for a {kind}, got {}", v.describe()),
            ));
        }
        None => {
            return Err(error("apiVersion", format!("is missing: write apiVersion: {api_version}")));
        }
    }
    match kind {
        "Model" => decode(node, kind, |m: &Model| m.spec.validate_named(&m.metadata.name))
            .map(|m| Decoded::Object(Object::Model(Box::new(m)))),
        "Server" => decode(node, kind, |s: &Server| s.spec.validate_named(&s.metadata.name))
            .map(|s| Decoded::Object(Object::Server(Box::new(s)))),
        "Pipeline" => {
            decode(node, kind, Pipeline::validate).map(|p| Decoded::Object(Object::Pipeline(Box::new(p))))
        }
        "Experiment" => decode(node, kind, |e: &Experiment| e.spec.validate_named(&e.metadata.name))
            .map(|e| Decoded::Object(Object::Experiment(Box::new(e)))),
        "RolloutPolicy" => decode(node, kind, |p: &RolloutPolicy| p.spec.validate_named(&p.metadata.name))
            .map(|p| Decoded::Object(Object::RolloutPolicy(Box::new(p)))),
        "SeldonRuntime" => decode_cluster_object::<SeldonRuntimeSpec>(node, "SeldonRuntime"),
        "SeldonConfig" => decode_cluster_object::<SeldonConfigSpec>(node, "SeldonConfig"),
        INFERENCE_SERVICE => decode_envelope(node, kind).map(|service| Decoded::Service(Box::new(service))),
        "ServingRuntime" => decode_cluster_object::<ServingRuntimeSpec>(node, "ServingRuntime"),
        "ClusterServingRuntime" => decode_cluster_object::<ServingRuntimeSpec>(node, "ClusterServingRuntime"),
        "ClusterStorageContainer" => {
            decode(node, kind, |c: &ClusterStorageContainer| c.spec.validate_named(&c.metadata.name))
                .map(|c| Decoded::Cluster("ClusterStorageContainer", Box::new(c.metadata), Vec::new()))
        }
        INFERENCE_GRAPH => decode_envelope(node, kind).map(|graph| Decoded::Graph(Box::new(graph))),
        "TrainedModel" => decode_cluster_object::<TrainedModelSpec>(node, "TrainedModel"),
        "Algorithm" => decode_cluster_object::<AlgorithmSpec>(node, "Algorithm"),
        _ => decode_cluster_object::<ServerConfigSpec>(node, "ServerConfig"),
    }
}

/// An object of a kind for which only the spec has a type.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Envelope<S> {
    #[allow(dead_code, reason = "the schema is generated from it")]
    api_version: String,
    #[allow(dead_code, reason = "the schema is generated from it")]
    kind: String,
    pub(crate) metadata: Metadata,
    pub(crate) spec: S,
    #[allow(dead_code, reason = "the schema is generated from it")]
    status: Option<serde_json::Value>,
}

pub(crate) fn decode_envelope<S>(node: &Node, kind: &str) -> Result<Envelope<S>, Vec<Diagnostic>>
where
    S: DeserializeOwned + JsonSchema + Validate,
{
    decode(node, kind, |o: &Envelope<S>| o.spec.validate_named(&o.metadata.name))
}

fn decode_cluster_object<S>(node: &Node, kind: &'static str) -> Result<Decoded, Vec<Diagnostic>>
where
    S: DeserializeOwned + JsonSchema + Validate,
{
    decode_envelope::<S>(node, kind)
        .map(|object| Decoded::Cluster(kind, Box::new(object.metadata), Vec::new()))
}

/// Checks the schema, decodes, and applies the validation rules.
pub(crate) fn decode<T: DeserializeOwned + JsonSchema>(
    node: &Node,
    kind: &str,
    validate: impl Fn(&T) -> Vec<FieldError>,
) -> Result<T, Vec<Diagnostic>> {
    let schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<T>().to_value();
    let errors = schema::check(node, &schema, kind);
    if !errors.is_empty() {
        return Err(errors);
    }
    let value: T = serde_json::from_value(node.to_json())
        .map_err(|e| vec![Diagnostic::new(node.line, "", e.to_string())])?;
    let errors: Vec<Diagnostic> = validate(&value)
        .into_iter()
        .map(|(path, message)| Diagnostic::new(node.line_of(&path), path, message))
        .collect();
    if errors.is_empty() { Ok(value) } else { Err(errors) }
}
