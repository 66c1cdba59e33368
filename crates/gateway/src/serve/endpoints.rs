//! The REST API as a table: for the nearest path in an error, for its description, and for the page at `/`.

use super::path::Path;
use http::Method;
use serde_json::{Map, Value, json};

/// A path with placeholders, and what it is for.
pub(super) struct Endpoint {
    pub(super) path: &'static str,
    pub(super) group: Group,
    pub(super) summary: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Group {
    Inference,
    Models,
    Server,
    Repository,
    V1,
}

impl Group {
    pub(super) const ALL: [Self; 5] =
        [Self::Inference, Self::Models, Self::Server, Self::Repository, Self::V1];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Inference => "Inference",
            Self::Models => "Models",
            Self::Server => "Server",
            Self::Repository => "Repository",
            Self::V1 => "V1 protocol",
        }
    }

    const fn description(self) -> &'static str {
        match self {
            Self::Inference => "Open Inference Protocol V2",
            Self::Models => "Names, metadata, readiness, statistics",
            Self::Server => "The gateway itself",
            Self::Repository => {
                "Loading and unloading, where --allow-repository-changes or a right lets clients do it"
            }
            Self::V1 => "As KServe and TensorFlow Serving have it",
        }
    }
}

const fn endpoint(path: &'static str, group: Group, summary: &'static str) -> Endpoint {
    Endpoint { path, group, summary }
}

pub(super) const ENDPOINTS: &[Endpoint] = &[
    endpoint("/v2/models/{model}/infer", Group::Inference, "Send a request to a model"),
    endpoint(
        "/v2/models/{model}/versions/{version}/infer",
        Group::Inference,
        "Send a request to the served version",
    ),
    endpoint(
        "/v2/models/{model}/infer_stream",
        Group::Inference,
        "Server-sent events, by servers that stream",
    ),
    endpoint("/v2/models/{model}/generate", Group::Inference, "Generate text, by servers that do"),
    endpoint("/v2/models/{model}/generate_stream", Group::Inference, "Generate text as server-sent events"),
    endpoint("/v2/models/{model}/infer/{path}", Group::Inference, "A path of the server's own below infer"),
    endpoint("/v2/pipelines/{pipeline}/infer", Group::Inference, "Send a request to a pipeline"),
    endpoint("/v2/models", Group::Models, "Names of the models, with their readiness"),
    endpoint("/v2/models/{model}", Group::Models, "Inputs and outputs of a model"),
    endpoint("/v2/models/{model}/config", Group::Models, "Inputs and outputs as Triton's configuration"),
    endpoint("/v2/models/{model}/ready", Group::Models, "Whether a model is ready"),
    endpoint("/v2/models/{model}/stats", Group::Models, "Statistics of a model"),
    endpoint("/v2/models/stats", Group::Models, "Statistics of all models in this process"),
    endpoint(
        "/v2/models/{model}/versions/{version}",
        Group::Models,
        "Inputs and outputs of the served version",
    ),
    endpoint("/v2/models/{model}/versions/{version}/config", Group::Models, "The same of the served version"),
    endpoint("/v2/models/{model}/versions/{version}/ready", Group::Models, "Whether a version is served"),
    endpoint(
        "/v2/models/{model}/versions/{version}/stats",
        Group::Models,
        "Statistics of the served version",
    ),
    endpoint("/v2/pipelines/{pipeline}", Group::Models, "Inputs and outputs of a pipeline"),
    endpoint("/v2/pipelines/{pipeline}/ready", Group::Models, "Whether a pipeline is ready"),
    endpoint("/", Group::Server, "Liveness; a page for browsers"),
    endpoint("/openapi.json", Group::Server, "This description"),
    endpoint("/v2", Group::Server, "Name, version and extensions of the server"),
    endpoint("/v2/health/live", Group::Server, "Whether the gateway is live"),
    endpoint("/v2/health/ready", Group::Server, "Whether the gateway has its routes"),
    endpoint("/v2/repository/index", Group::Repository, "All models with their states and reasons"),
    endpoint("/v2/repository/models/{model}/load", Group::Repository, "Load a model that was applied before"),
    endpoint("/v2/repository/models/{model}/unload", Group::Repository, "Unload a model"),
    endpoint("/v1/models", Group::V1, "Names of the models"),
    endpoint("/v1/models/{model}", Group::V1, "Whether a model is ready"),
    endpoint("/v1/models/{model}:predict", Group::V1, "Predict rows of instances"),
    endpoint("/v1/models/{model}:explain", Group::V1, "Explain a prediction, where there is an explainer"),
];

impl Endpoint {
    /// As the router decides.
    pub(super) fn method(&self) -> Option<Method> {
        Path::parse(&self.example()).map(Path::method)
    }

    /// With names instead of the placeholders.
    pub(super) fn example(&self) -> String {
        let names = [("{model}", "iris"), ("{version}", "1"), ("{pipeline}", "join"), ("{path}", "chat")];
        names
            .into_iter()
            .fold(self.path.to_owned(), |path, (placeholder, name)| path.replace(placeholder, name))
    }
}

/// The API as a document of `openapi.json`.
pub(super) fn openapi() -> Value {
    let mut paths = Map::new();
    for endpoint in ENDPOINTS {
        let Some(method) = endpoint.method() else { continue };
        let operation = json!({ method.as_str().to_lowercase(): operation(endpoint, &method) });
        paths.insert(endpoint.path.to_owned(), operation);
    }
    let tags: Vec<Value> = Group::ALL
        .into_iter()
        .map(|group| json!({ "name": group.name(), "description": group.description() }))
        .collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Gantry inference API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "The Open Inference Protocol V2 and the V1 protocol over REST. Binary tensors, compressed \
                            bodies and gRPC are described in docs/inference.md.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "tags": tags,
        "paths": paths,
        "components": { "schemas": schemas() },
    })
}

fn operation(endpoint: &Endpoint, method: &Method) -> Value {
    let mut parameters: Vec<Value> = Vec::new();
    for (name, description) in [
        ("model", "Name of a Model, or of an experiment as NAME.experiment"),
        ("version", "Number of the version in service"),
        ("pipeline", "Name of a Pipeline"),
        ("path", "Path of the server"),
    ] {
        if endpoint.path.contains(&format!("{{{name}}}")) {
            parameters.push(json!({
                "name": name, "in": "path", "required": true, "description": description, "schema": { "type": "string" },
            }));
        }
    }
    if endpoint.path == "/v2/models" {
        parameters.push(json!({
            "name": "after", "in": "query", "description": "Names after this one: `next` of the previous response",
            "schema": { "type": "string" },
        }));
        parameters.push(json!({
            "name": "limit", "in": "query", "description": "Names in the response; 1000 by default and at most",
            "schema": { "type": "integer", "minimum": 1, "maximum": 1000 },
        }));
    }
    let answer = |description: &str, schema: Value| json!({ "description": description, "content": { "application/json": { "schema": schema } } });
    let failure = |description: &str| answer(description, reference("Error"));
    let mut responses = Map::new();
    responses.insert("200".into(), answer("Success", response_schema(endpoint)));
    responses.insert("400".into(), failure("The request is invalid; the message names the field"));
    responses.insert("401".into(), failure("No valid credential, where the gateway requires one"));
    responses.insert("404".into(), failure("No such model, version or path; the message names the nearest"));
    responses.insert("503".into(), failure("Not served at the moment; `retry-after` says when to try again"));
    let mut operation = json!({
        "operationId": operation_id(endpoint.path, method),
        "summary": endpoint.summary,
        "tags": [endpoint.group.name()],
        "parameters": parameters,
        "responses": responses,
    });
    if let (Some((schema, example)), Some(fields)) = (request(endpoint), operation.as_object_mut()) {
        let content = json!({ "application/json": { "schema": schema, "example": example } });
        fields.insert("requestBody".into(), json!({ "required": true, "content": content }));
    }
    operation
}

fn operation_id(path: &str, method: &Method) -> String {
    let words = path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    std::iter::once(method.as_str().to_lowercase())
        .chain(words.map(str::to_owned))
        .collect::<Vec<_>>()
        .join("_")
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

fn request(endpoint: &Endpoint) -> Option<(Value, Value)> {
    let tensor = json!({ "name": "X", "shape": [1, 4], "datatype": "FP32", "data": [5.1, 3.5, 1.4, 0.2] });
    match endpoint.path {
        path if path.ends_with("/infer") || path.ends_with("/infer_stream") => {
            Some((reference("InferRequest"), json!({ "inputs": [tensor] })))
        }
        path if path.contains("/generate") => {
            Some((json!({ "type": "object" }), json!({ "text_input": "Gantry is" })))
        }
        path if path.ends_with("{path}") => Some((json!({ "type": "object" }), json!({}))),
        path if path.ends_with(":predict") || path.ends_with(":explain") => {
            Some((reference("PredictRequest"), json!({ "instances": [[5.1, 3.5, 1.4, 0.2]] })))
        }
        "/v2/repository/index" => Some((
            json!({ "type": "object", "properties": { "ready": { "type": "boolean" } } }),
            json!({ "ready": true }),
        )),
        _ => None,
    }
}

fn response_schema(endpoint: &Endpoint) -> Value {
    match endpoint.path {
        "/v2/models/{model}" | "/v2/models/{model}/versions/{version}" | "/v2/pipelines/{pipeline}" => {
            reference("Metadata")
        }
        "/v2/models" => reference("ModelList"),
        path if path.ends_with("/infer") => reference("InferResponse"),
        path if path.ends_with(":predict") => reference("PredictResponse"),
        _ => json!({ "type": "object" }),
    }
}

fn schemas() -> Value {
    let string = json!({ "type": "string" });
    let shape = json!({ "type": "array", "items": { "type": "integer" } });
    let object = |properties: Value, required: &[&str]| json!({ "type": "object", "properties": properties, "required": required });
    let list = |items: Value| json!({ "type": "array", "items": items });
    let datatypes = [
        "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32",
        "FP64", "BF16", "BYTES",
    ];
    let datatype = json!({ "type": "string", "enum": datatypes });
    let parameters = json!({ "type": "object", "additionalProperties": true });
    json!({
        "Tensor": object(
            json!({ "name": string, "shape": shape, "datatype": datatype, "parameters": parameters, "data": list(json!({})) }),
            &["name", "shape", "datatype"],
        ),
        "InferRequest": object(
            json!({
                "id": string, "parameters": parameters, "inputs": list(reference("Tensor")),
                "outputs": list(object(json!({ "name": string, "parameters": parameters }), &["name"])),
            }),
            &["inputs"],
        ),
        "InferResponse": object(
            json!({ "model_name": string, "model_version": string, "id": string, "outputs": list(reference("Tensor")) }),
            &["model_name", "outputs"],
        ),
        "TensorMetadata": object(
            json!({ "name": string, "datatype": datatype, "shape": shape }),
            &["name", "datatype", "shape"],
        ),
        "Metadata": object(
            json!({
                "name": string, "versions": list(string.clone()), "platform": string,
                "inputs": list(reference("TensorMetadata")), "outputs": list(reference("TensorMetadata")),
            }),
            &["name"],
        ),
        "ModelList": object(
            json!({
                "models": list(object(json!({ "name": string, "ready": { "type": "boolean" } }), &["name", "ready"])),
                "next": { "type": "string", "description": "Value of `after` for the rest; missing at the end" },
            }),
            &["models"],
        ),
        "PredictRequest": object(
            json!({ "instances": list(json!({})), "inputs": {}, "parameters": parameters }),
            &[],
        ),
        "PredictResponse": object(json!({ "predictions": list(json!({})), "outputs": {} }), &[]),
        "Error": object(json!({ "error": string }), &["error"]),
    })
}

#[cfg(test)]
mod tests {
    use super::{super::path::Operation, *};

    /// The path in the table. A new path does not compile without an entry here.
    fn documented(path: Path<'_>) -> String {
        let model = |version: Option<&str>, tail: &str| {
            let version = version.map_or("", |_| "/versions/{version}");
            format!("/v2/models/{{model}}{version}{tail}")
        };
        match path {
            Path::Alive => "/".into(),
            Path::OpenApi => "/openapi.json".into(),
            Path::Names => "/v1/models".into(),
            Path::ModelList => "/v2/models".into(),
            Path::ServerMetadata => "/v2".into(),
            Path::Live => "/v2/health/live".into(),
            Path::Ready => "/v2/health/ready".into(),
            Path::AllStatistics => "/v2/models/stats".into(),
            Path::Index => "/v2/repository/index".into(),
            Path::Load(_) => "/v2/repository/models/{model}/load".into(),
            Path::Unload(_) => "/v2/repository/models/{model}/unload".into(),
            Path::Model { version, operation, .. } => match operation {
                Operation::Predict => "/v1/models/{model}:predict".into(),
                Operation::Explain => "/v1/models/{model}:explain".into(),
                Operation::Infer => model(version, "/infer"),
                Operation::Metadata => model(version, ""),
                Operation::Config => model(version, "/config"),
                Operation::Ready => model(version, "/ready"),
                Operation::Statistics => model(version, "/stats"),
                Operation::Other(tail) if tail.starts_with("/infer/") => model(version, "/infer/{path}"),
                Operation::Other(tail) => model(version, tail),
            },
            Path::Pipeline { operation, .. } => match operation {
                Operation::Metadata => "/v2/pipelines/{pipeline}".into(),
                Operation::Ready => "/v2/pipelines/{pipeline}/ready".into(),
                Operation::Infer => "/v2/pipelines/{pipeline}/infer".into(),
                other => panic!("{other:?} is not a path of a pipeline"),
            },
        }
    }

    #[test]
    fn every_documented_path_is_routed() {
        for endpoint in ENDPOINTS {
            let example = endpoint.example();
            let path = Path::parse(&example).unwrap_or_else(|| panic!("{} is not routed", endpoint.path));
            // Readiness is that of V2 in the V1 protocol too.
            let expected = if endpoint.path == "/v1/models/{model}" {
                "/v2/models/{model}/ready"
            } else {
                endpoint.path
            };
            assert_eq!(documented(path), expected);
        }
    }

    #[test]
    fn every_routed_path_is_documented() {
        let operations = [
            Operation::Infer,
            Operation::Predict,
            Operation::Explain,
            Operation::Metadata,
            Operation::Config,
            Operation::Ready,
            Operation::Statistics,
            Operation::Other("/infer_stream"),
            Operation::Other("/generate"),
            Operation::Other("/generate_stream"),
            Operation::Other("/infer/chat"),
        ];
        let mut paths = vec![
            Path::Alive,
            Path::OpenApi,
            Path::Names,
            Path::ModelList,
            Path::ServerMetadata,
            Path::Live,
            Path::Ready,
            Path::AllStatistics,
            Path::Index,
            Path::Load("m"),
            Path::Unload("m"),
        ];
        paths.extend(operations.map(|operation| Path::Model { model: "m", version: None, operation }));
        let versioned = [
            Operation::Infer,
            Operation::Metadata,
            Operation::Config,
            Operation::Ready,
            Operation::Statistics,
        ];
        paths.extend(versioned.map(|operation| Path::Model { model: "m", version: Some("1"), operation }));
        let of_pipelines = [Operation::Metadata, Operation::Ready, Operation::Infer];
        paths.extend(of_pipelines.map(|operation| Path::Pipeline { pipeline: "p", operation }));
        for path in paths {
            let template = documented(path);
            let found = ENDPOINTS.iter().find(|endpoint| endpoint.path == template);
            let endpoint = found.unwrap_or_else(|| panic!("{template} is not documented"));
            assert_eq!(endpoint.method(), Some(path.method()), "{template}");
        }
    }

    #[test]
    fn description_is_complete() {
        let document = openapi();
        let text = document.to_string();
        assert_eq!(document["paths"].as_object().unwrap().len(), ENDPOINTS.len());
        for reference in text.split("#/components/schemas/").skip(1) {
            let name = reference.split('"').next().unwrap();
            assert!(document["components"]["schemas"].get(name).is_some(), "{name}");
        }
        let mut ids: Vec<&str> = document["paths"]
            .as_object()
            .unwrap()
            .values()
            .flat_map(|methods| methods.as_object().unwrap().values())
            .map(|operation| operation["operationId"].as_str().unwrap())
            .collect();
        ids.sort_unstable();
        let count = ids.len();
        ids.dedup();
        assert_eq!(ids.len(), count, "operation IDs are unique");
    }
}
