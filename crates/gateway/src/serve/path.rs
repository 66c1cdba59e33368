//! REST paths of the Open Inference Protocol and of KServe's V1 protocol.

use super::endpoints::ENDPOINTS;
use http::Method;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path<'a> {
    /// `/`: liveness in the V1 protocol.
    Alive,
    OpenApi,
    /// `/v1/models`
    Names,
    /// `/v2/models`
    ModelList,
    ServerMetadata,
    Live,
    Ready,
    AllStatistics,
    /// `version` is the text after `/versions/`.
    Model {
        model: &'a str,
        version: Option<&'a str>,
        operation: Operation<'a>,
    },
    Index,
    Load(&'a str),
    Unload(&'a str),
    Pipeline {
        pipeline: &'a str,
        operation: Operation<'a>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation<'a> {
    Infer,
    /// Inference in the V1 protocol.
    Predict,
    Explain,
    Metadata,
    /// The metadata as Triton's configuration of a model.
    Config,
    Ready,
    Statistics,
    /// Streaming and generate endpoints, forwarded unchanged.
    Other(&'a str),
}

impl<'a> Operation<'a> {
    /// The path after the model name.
    pub(super) const fn tail(self) -> &'a str {
        match self {
            Self::Infer | Self::Predict => "/infer",
            Self::Metadata | Self::Config | Self::Explain => "",
            Self::Ready => "/ready",
            Self::Statistics => "/stats",
            Self::Other(tail) => tail,
        }
    }
}

impl<'a> Path<'a> {
    pub(super) fn parse(path: &'a str) -> Option<Self> {
        let path = path.strip_suffix('/').unwrap_or(path);
        if path.is_empty() {
            return Some(Self::Alive);
        }
        if path == "/openapi.json" {
            return Some(Self::OpenApi);
        }
        if let Some(rest) = path.strip_prefix("/v1/models") {
            return Self::v1(rest);
        }
        let rest = path.strip_prefix("/v2")?;
        if let Some(rest) = rest.strip_prefix("/models/") {
            return Self::model(rest);
        }
        Some(match rest {
            "" => Self::ServerMetadata,
            "/models" => Self::ModelList,
            "/health/live" => Self::Live,
            "/health/ready" => Self::Ready,
            "/repository/index" => Self::Index,
            _ => {
                if let Some(rest) = rest.strip_prefix("/pipelines/") {
                    return Self::pipeline(rest);
                }
                let (model, verb) = rest.strip_prefix("/repository/models/")?.split_once('/')?;
                match verb {
                    _ if model.is_empty() => return None,
                    "load" => Self::Load(model),
                    "unload" => Self::Unload(model),
                    _ => return None,
                }
            }
        })
    }

    /// The path after `/v1/models`.
    fn v1(rest: &'a str) -> Option<Self> {
        if rest.is_empty() {
            return Some(Self::Names);
        }
        let named = rest.strip_prefix('/').filter(|named| !named.contains('/'))?;
        let (model, operation) = match named.rsplit_once(':') {
            Some((model, "predict")) => (model, Operation::Predict),
            Some((model, "explain")) => (model, Operation::Explain),
            Some(_) => return None,
            None => (named, Operation::Ready),
        };
        (!model.is_empty()).then_some(Self::Model { model, version: None, operation })
    }

    fn model(rest: &'a str) -> Option<Self> {
        let end = rest.find('/').unwrap_or(rest.len());
        let (model, mut tail) = rest.split_at(end);
        if model.is_empty() {
            return None;
        }
        let mut version = None;
        if let Some(rest) = tail.strip_prefix("/versions/") {
            let (named, after) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            (version, tail) = (Some(named), after);
        }
        let operation = match tail {
            "" if model == "stats" && version.is_none() => return Some(Self::AllStatistics),
            "" => Operation::Metadata,
            "/config" => Operation::Config,
            "/infer" => Operation::Infer,
            "/ready" => Operation::Ready,
            "/stats" => Operation::Statistics,
            "/infer_stream" | "/generate" | "/generate_stream" => Operation::Other(tail),
            _ if tail.starts_with("/infer/") && tail.len() > 7 => Operation::Other(tail),
            _ => return None,
        };
        Some(Self::Model { model, version, operation })
    }

    fn pipeline(rest: &'a str) -> Option<Self> {
        let (pipeline, tail) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let operation = match tail {
            "" => Operation::Metadata,
            "/infer" => Operation::Infer,
            "/ready" => Operation::Ready,
            _ => return None,
        };
        (!pipeline.is_empty()).then_some(Self::Pipeline { pipeline, operation })
    }

    pub(super) const fn method(self) -> Method {
        match self {
            Self::Alive
            | Self::OpenApi
            | Self::Names
            | Self::ModelList
            | Self::ServerMetadata
            | Self::Live
            | Self::Ready
            | Self::AllStatistics
            | Self::Model {
                operation: Operation::Metadata | Operation::Config | Operation::Ready | Operation::Statistics,
                ..
            }
            | Self::Pipeline { operation: Operation::Metadata | Operation::Ready, .. } => Method::GET,
            Self::Model { .. } | Self::Pipeline { .. } | Self::Index | Self::Load(_) | Self::Unload(_) => {
                Method::POST
            }
        }
    }
}

/// The closest known path, for error messages.
pub(super) fn nearest(path: &str) -> &'static str {
    fn verb(name: &str) -> &str {
        name.rsplit_once(':').map_or("", |(_, verb)| verb)
    }
    let cut: String = path.chars().take(100).collect();
    let given: Vec<&str> = cut.split('/').collect();
    let cost = |known: &str| {
        let known: Vec<&str> = known.split('/').collect();
        let longer = given.len().max(known.len());
        (0..longer)
            .map(|i| match (given.get(i), known.get(i)) {
                (Some(g), Some(k)) if k.starts_with('{') => 1 + strsim::levenshtein(verb(g), verb(k)),
                (Some(g), Some(k)) => strsim::levenshtein(g, k),
                (Some(only), None) | (None, Some(only)) => only.len() + 1,
                (None, None) => 0,
            })
            .sum::<usize>()
    };
    // `/` is near every short path.
    let known = ENDPOINTS.iter().map(|endpoint| endpoint.path).filter(|path| *path != "/");
    known.min_by_key(|known| cost(known)).unwrap_or("/v2")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_maps_protocol_paths() {
        let model = |model, operation| Some(Path::Model { model, version: None, operation });
        let version = |operation| Some(Path::Model { model: "iris", version: Some("3"), operation });
        let pipeline = |operation| Some(Path::Pipeline { pipeline: "p", operation });
        for (path, expected) in [
            ("/v2", Some(Path::ServerMetadata)),
            ("/v2/", Some(Path::ServerMetadata)),
            ("/v2/health/live", Some(Path::Live)),
            ("/v2/health/ready", Some(Path::Ready)),
            ("/v2/models/stats", Some(Path::AllStatistics)),
            ("/v2/models/iris", model("iris", Operation::Metadata)),
            ("/v2/models/iris/", model("iris", Operation::Metadata)),
            ("/v2/models/iris/infer", model("iris", Operation::Infer)),
            ("/v2/models/iris/versions/3/infer", version(Operation::Infer)),
            ("/v2/models/iris/versions/3", version(Operation::Metadata)),
            ("/v2/models/iris/versions/3/ready", version(Operation::Ready)),
            ("/v2/models/iris/stats", model("iris", Operation::Statistics)),
            ("/v2/models/iris/config", model("iris", Operation::Config)),
            ("/v2/models/iris/versions/3/config", version(Operation::Config)),
            (
                "/v2/models/llm/infer/chat/completions",
                model("llm", Operation::Other("/infer/chat/completions")),
            ),
            ("/v2/models/llm/generate_stream", model("llm", Operation::Other("/generate_stream"))),
            ("/v2/repository/index", Some(Path::Index)),
            ("/v2/repository/models/iris/load", Some(Path::Load("iris"))),
            ("/v2/repository/models/iris/unload", Some(Path::Unload("iris"))),
            ("/v2/pipelines/p/infer", pipeline(Operation::Infer)),
            ("/v2/pipelines/p/ready", pipeline(Operation::Ready)),
            ("/v2/pipelines/p", pipeline(Operation::Metadata)),
            ("/v2/pipelines/p/stats", None),
            ("/v2/pipelines//infer", None),
            ("/v2/models//infer", None),
            ("/v2/models/", Some(Path::ModelList)),
            ("/v2/models", Some(Path::ModelList)),
            ("/v2/models?limit", None),
            ("/openapi.json", Some(Path::OpenApi)),
            ("/v2x", None),
            ("/v2/models/iris/inference", None),
            ("/v2/repository/models/iris", None),
            ("/", Some(Path::Alive)),
            ("", Some(Path::Alive)),
            ("/v1/models", Some(Path::Names)),
            ("/v1/models/", Some(Path::Names)),
            ("/v1/models/iris", model("iris", Operation::Ready)),
            ("/v1/models/iris:predict", model("iris", Operation::Predict)),
            ("/v1/models/a:b:explain", model("a:b", Operation::Explain)),
            ("/v1/models/iris:train", None),
            ("/v1/models/:predict", None),
            ("/v1/models/iris/versions/1:predict", None),
            ("/v1/modelsx", None),
            ("/v1", None),
        ] {
            assert_eq!(Path::parse(path), expected, "{path}");
        }
    }

    #[test]
    fn unknown_path_suggests_the_closest() {
        for (path, hint) in [
            ("/v2/models/iris/inference", "/v2/models/{model}/infer"),
            ("/v2/model/iris/infer", "/v2/models/{model}/infer"),
            ("/v1/models/iris:predicts", "/v1/models/{model}:predict"),
            ("/v1/model/iris", "/v1/models/{model}"),
            ("/v2/health/alive", "/v2/health/live"),
            ("/v2/repository/models/iris/laod", "/v2/repository/models/{model}/load"),
            ("/v3", "/v2"),
        ] {
            assert_eq!(nearest(path), hint, "{path}");
        }
    }
}
