//! Server and model metadata, repository index, statistics; REST and gRPC codecs.

use gantry_tensor::TensorSpec;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerMetadata {
    pub name: String,
    pub version: String,
    /// Protocol extensions.
    pub extensions: Vec<String>,
}

impl ServerMetadata {
    /// Metadata of Gantry's gateway and runtime.
    pub fn gantry() -> Self {
        Self {
            name: "gantry".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            extensions: ["binary_tensor_data", "classification", "model_repository", "statistics"]
                .map(str::to_owned)
                .to_vec(),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelMetadata {
    pub name: String,
    pub versions: Vec<String>,
    /// Such as `onnx` or `xgboost`.
    pub platform: String,
    pub inputs: Vec<TensorSpec>,
    pub outputs: Vec<TensorSpec>,
    pub parameters: crate::Parameters,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexEntry {
    pub name: String,
    pub version: String,
    /// `READY`, `LOADING`, `UNLOADING` or `UNAVAILABLE`.
    pub state: String,
    pub reason: String,
}

/// A count with its total duration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Duration {
    pub count: u64,
    /// Nanoseconds.
    pub ns: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelStatistics {
    pub name: String,
    pub version: String,
    /// Milliseconds since 1970.
    pub last_inference: u64,
    /// Rows, with batching.
    pub inference_count: u64,
    /// Model runs; fewer than inferences with batching.
    pub execution_count: u64,
    pub success: Duration,
    pub fail: Duration,
    pub queue: Duration,
    pub compute_input: Duration,
    pub compute_infer: Duration,
    pub compute_output: Duration,
}

pub(crate) mod rest {
    //! REST.

    use super::{Duration, IndexEntry, ModelMetadata, ModelStatistics, ServerMetadata};
    use crate::{
        json::{write_int, write_string},
        rest::write_parameters,
    };
    use bytes::Bytes;
    use gantry_tensor::TensorSpec;

    fn list<T>(out: &mut Vec<u8>, items: &[T], write: impl Fn(&mut Vec<u8>, &T)) {
        out.push(b'[');
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                out.push(b',');
            }
            write(out, item);
        }
        out.push(b']');
    }

    fn member(out: &mut Vec<u8>, key: &str, text: &str) {
        if out.last() != Some(&b'{') {
            out.push(b',');
        }
        write_string(out, key);
        out.push(b':');
        write_string(out, text);
    }

    fn number(out: &mut Vec<u8>, key: &str, value: u64) {
        if out.last() != Some(&b'{') {
            out.push(b',');
        }
        write_string(out, key);
        out.push(b':');
        write_int(out, value);
    }

    /// The body of `GET /v2`.
    pub fn encode_server_metadata(server: &ServerMetadata) -> Bytes {
        let mut out = b"{".to_vec();
        member(&mut out, "name", &server.name);
        member(&mut out, "version", &server.version);
        out.extend_from_slice(b",\"extensions\":");
        list(&mut out, &server.extensions, |out, e| write_string(out, e));
        out.push(b'}');
        out.into()
    }

    /// The body of `GET /v2/models/{model}`.
    pub fn encode_model_metadata(model: &ModelMetadata) -> Bytes {
        let spec = |out: &mut Vec<u8>, spec: &TensorSpec| {
            out.push(b'{');
            member(out, "name", &spec.name);
            member(out, "datatype", spec.datatype.name());
            out.extend_from_slice(b",\"shape\":");
            list(out, &spec.shape, |out, d| write_int(out, *d));
            out.push(b'}');
        };
        let mut out = b"{".to_vec();
        member(&mut out, "name", &model.name);
        out.extend_from_slice(b",\"versions\":");
        list(&mut out, &model.versions, |out, v| write_string(out, v));
        member(&mut out, "platform", &model.platform);
        out.extend_from_slice(b",\"inputs\":");
        list(&mut out, &model.inputs, spec);
        out.extend_from_slice(b",\"outputs\":");
        list(&mut out, &model.outputs, spec);
        if !model.parameters.is_empty() {
            out.extend_from_slice(b",\"parameters\":");
            write_parameters(&mut out, &model.parameters, &[]);
        }
        out.push(b'}');
        out.into()
    }

    /// The body of `POST /v2/repository/index`.
    pub fn encode_index(entries: &[IndexEntry]) -> Bytes {
        let mut out = Vec::new();
        list(&mut out, entries, |out, e| {
            out.push(b'{');
            member(out, "name", &e.name);
            member(out, "version", &e.version);
            member(out, "state", &e.state);
            member(out, "reason", &e.reason);
            out.push(b'}');
        });
        out.into()
    }

    /// The body of `GET /v2/models/{model}/stats`.
    pub fn encode_statistics(models: &[ModelStatistics]) -> Bytes {
        let duration = |out: &mut Vec<u8>, key: &str, d: Duration| {
            if out.last() != Some(&b'{') {
                out.push(b',');
            }
            write_string(out, key);
            out.extend_from_slice(b":{");
            number(out, "count", d.count);
            number(out, "ns", d.ns);
            out.push(b'}');
        };
        let mut out = b"{\"model_stats\":".to_vec();
        list(&mut out, models, |out, m| {
            out.push(b'{');
            member(out, "name", &m.name);
            member(out, "version", &m.version);
            number(out, "last_inference", m.last_inference);
            number(out, "inference_count", m.inference_count);
            number(out, "execution_count", m.execution_count);
            out.extend_from_slice(b",\"inference_stats\":{");
            for (key, d) in [
                ("success", m.success),
                ("fail", m.fail),
                ("queue", m.queue),
                ("compute_input", m.compute_input),
                ("compute_infer", m.compute_infer),
                ("compute_output", m.compute_output),
            ] {
                duration(out, key, d);
            }
            out.extend_from_slice(b"},\"batch_stats\":[]}");
        });
        out.push(b'}');
        out.into()
    }
}

pub(crate) mod grpc {
    //! gRPC.

    use super::{Duration, IndexEntry, ModelMetadata, ModelStatistics, ServerMetadata};
    use gantry_proto::inference as pb;
    use gantry_tensor::TensorSpec;

    impl From<&ServerMetadata> for pb::ServerMetadataResponse {
        fn from(server: &ServerMetadata) -> Self {
            Self {
                name: server.name.clone(),
                version: server.version.clone(),
                extensions: server.extensions.clone(),
            }
        }
    }

    impl From<&ModelMetadata> for pb::ModelMetadataResponse {
        fn from(model: &ModelMetadata) -> Self {
            let specs = |specs: &[TensorSpec]| {
                specs
                    .iter()
                    .map(|s| pb::model_metadata_response::TensorMetadata {
                        name: s.name.clone(),
                        datatype: s.datatype.name().to_owned(),
                        shape: s.shape.clone(),
                        parameters: std::collections::BTreeMap::default(),
                    })
                    .collect()
            };
            Self {
                name: model.name.clone(),
                versions: model.versions.clone(),
                platform: model.platform.clone(),
                inputs: specs(&model.inputs),
                outputs: specs(&model.outputs),
                parameters: crate::grpc::parameters_to_proto(model.parameters.clone()),
            }
        }
    }

    impl From<&IndexEntry> for pb::repository_index_response::ModelIndex {
        fn from(entry: &IndexEntry) -> Self {
            Self {
                name: entry.name.clone(),
                version: entry.version.clone(),
                state: entry.state.clone(),
                reason: entry.reason.clone(),
            }
        }
    }

    impl From<Duration> for pb::StatisticDuration {
        fn from(d: Duration) -> Self {
            Self { count: d.count, ns: d.ns }
        }
    }

    impl From<&ModelStatistics> for pb::ModelStatistics {
        fn from(m: &ModelStatistics) -> Self {
            Self {
                name: m.name.clone(),
                version: m.version.clone(),
                last_inference: m.last_inference,
                inference_count: m.inference_count,
                execution_count: m.execution_count,
                inference_stats: Some(pb::InferStatistics {
                    success: Some(m.success.into()),
                    fail: Some(m.fail.into()),
                    queue: Some(m.queue.into()),
                    compute_input: Some(m.compute_input.into()),
                    compute_infer: Some(m.compute_infer.into()),
                    compute_output: Some(m.compute_output.into()),
                    cache_hit: None,
                    cache_miss: None,
                }),
                batch_stats: Vec::new(),
            }
        }
    }
}
