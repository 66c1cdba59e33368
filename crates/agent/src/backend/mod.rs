//! Supported inference servers: file layout and repository API.
//!
//! ```text
//! artifact ──arrange──▶ <models>/<model>_<version>/ ◀──reads── server ◀──load, unload, index── repository
//! ```

mod files;
mod mlserver;
mod oip;
mod pbtxt;
mod repository;
mod triton;
mod warm_up;

pub(crate) use files::{copy_tree, plain_name, remove_tree};
pub(crate) use repository::{Failure, Oip, Repository};

use crate::model_server::{LoadError, LoadOrder};
use gantry_proto::scheduler::ModelRuntimeInfo;
use std::{path::Path, str::FromStr};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Mlserver,
    Triton,
    /// `gantry runtime --explicit`
    Builtin,
    /// Any server with the OIP repository extension.
    Oip,
}

impl Kind {
    /// Default capabilities.
    pub const fn capabilities(self) -> &'static [&'static str] {
        match self {
            Self::Mlserver => &[
                "mlserver",
                "alibi-detect",
                "alibi-explain",
                "huggingface",
                "lightgbm",
                "mlflow",
                "python",
                "sklearn",
                "spark-mlib",
                "xgboost",
            ],
            Self::Triton => {
                &["triton", "dali", "fil", "onnx", "openvino", "python", "pytorch", "tensorflow", "tensorrt"]
            }
            Self::Builtin => &["onnx", "xgboost", "lightgbm", "gantry"],
            Self::Oip => &[],
        }
    }

    /// Command-line name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mlserver => "mlserver",
            Self::Triton => "triton",
            Self::Builtin => "builtin",
            Self::Oip => "oip",
        }
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Mlserver, Self::Triton, Self::Builtin, Self::Oip]
            .into_iter()
            .find(|kind| kind.name() == text)
            .ok_or_else(|| {
                format!("\"{}\" is not a server type: mlserver, triton, builtin or oip", text.escape_debug())
            })
    }
}

/// Environment of the server that its model settings refer to.
#[derive(Clone, Debug, Default)]
pub struct ServerEnvironment {
    /// Inference address for explainers, as `host:port`.
    pub inference: String,
    /// CA certificate for explainers.
    pub ssl_verify_path: Option<String>,
    /// Worker processes, each with a copy of every model.
    pub parallel_workers: Option<u32>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Arranged {
    pub(crate) platform: String,
    /// Number of copies, for the scheduler.
    pub(crate) runtime_info: Option<ModelRuntimeInfo>,
}

/// Copies a model's files to `target` in the server's layout. Blocking.
pub(crate) fn arrange(
    kind: Kind,
    order: &LoadOrder,
    environment: &ServerEnvironment,
    target: &Path,
) -> Result<Arranged, LoadError> {
    match kind {
        Kind::Mlserver => mlserver::arrange(order, environment, target),
        Kind::Triton => triton::arrange(order, target),
        Kind::Builtin | Kind::Oip => oip::arrange(order, target),
    }
}

/// Memory multiplier of a model.
pub(crate) fn copies(info: Option<&ModelRuntimeInfo>) -> u64 {
    use gantry_proto::scheduler::model_runtime_info::ModelRuntimeInfo as Info;
    let copies = match info.and_then(|i| i.model_runtime_info.as_ref()) {
        Some(Info::Mlserver(settings)) => settings.parallel_workers,
        Some(Info::Triton(config)) => config.cpu.first().map_or(1, |c| c.instance_count),
        None => 1,
    };
    u64::from(copies.max(1))
}
