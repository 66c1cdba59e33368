//! The inference servers that an agent can stand beside: how each wants a model's files, and how all are asked.
//!
//! ```text
//! a fetched artifact ──arrange──▶ <models>/<model>_<version>/ ◀──reads── server ◀──load, unload, index── repository
//! ```

mod files;
mod mlserver;
mod pbtxt;
mod plain;
mod repository;
mod triton;

pub(crate) use files::{copy_tree, plain_name, remove_tree};
pub(crate) use repository::{Failure, Oip, Repository};

use crate::server::LoadOrder;
use gantry_proto::scheduler::ModelRuntimeInfo;
use std::{path::Path, str::FromStr};

/// Which inference server it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// MLServer.
    Mlserver,
    /// Triton Inference Server.
    Triton,
    /// `gantry runtime --explicit`.
    Builtin,
    /// Any other server with the repository calls of the Open Inference Protocol.
    Oip,
}

impl Kind {
    /// What such a server can run, unless somebody says otherwise.
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

    /// The word for it on a command line.
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

/// What files are arranged for, beyond the model itself.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// Where an explainer reaches the model that it explains, as `host:port` of the data plane.
    pub inference: String,
    /// The certificate by which an explainer checks that it speaks to the data plane.
    pub ssl_verify_path: Option<String>,
    /// Worker processes of the server, each with a copy of every model.
    pub parallel_workers: Option<u32>,
}

/// What is known of a model once its files are arranged.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Arranged {
    /// The kind of model, or what runs it.
    pub(crate) platform: String,
    /// For the scheduler: how many copies the server will keep.
    pub(crate) runtime_info: Option<ModelRuntimeInfo>,
}

/// Copies a model's files to `place` as this kind of server wants them. Blocks.
pub(crate) fn arrange(
    kind: Kind,
    order: &LoadOrder,
    surroundings: &Surroundings,
    place: &Path,
) -> Result<Arranged, String> {
    match kind {
        Kind::Mlserver => mlserver::arrange(order, surroundings, place),
        Kind::Triton => triton::arrange(order, place),
        Kind::Builtin | Kind::Oip => plain::arrange(order, place),
    }
}

/// How many times a model's memory its server takes.
pub(crate) fn copies(info: Option<&ModelRuntimeInfo>) -> u64 {
    use gantry_proto::scheduler::model_runtime_info::ModelRuntimeInfo as Info;
    let copies = match info.and_then(|i| i.model_runtime_info.as_ref()) {
        Some(Info::Mlserver(settings)) => settings.parallel_workers,
        Some(Info::Triton(config)) => config.cpu.first().map_or(1, |c| c.instance_count),
        None => 1,
    };
    u64::from(copies.max(1))
}
