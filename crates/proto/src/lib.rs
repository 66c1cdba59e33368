//! gRPC APIs: scheduler, agent, Open Inference Protocol, and Gantry's own services.
//!
//! Generated at build time from `proto/`.

#![allow(missing_docs, unreachable_pub, reason = "generated from .proto files")]
#![allow(clippy::all, clippy::pedantic, clippy::unwrap_used, clippy::indexing_slicing, reason = "generated")]

// Nested like the packages, as the generated code requires.
mod seldon {
    pub mod mlops {
        pub mod scheduler {
            tonic::include_proto!("seldon.mlops.scheduler");
        }
        pub mod chainer {
            tonic::include_proto!("seldon.mlops.chainer");
        }
        pub mod agent {
            tonic::include_proto!("seldon.mlops.agent");
        }
        pub mod agent_debug {
            tonic::include_proto!("seldon.mlops.agent_debug");
        }
        pub mod health {
            tonic::include_proto!("seldon.mlops.health");
        }
    }
}

mod pipeline;
mod redact;

pub use pipeline::with_default_references;
pub use redact::{redact, redacted_uri};
pub use seldon::mlops::{agent, agent_debug, chainer, health, scheduler};

/// The Open Inference Protocol.
pub mod inference {
    tonic::include_proto!("inference");
}

/// Gantry's own services and stored records.
pub mod gantry {
    pub mod v1 {
        tonic::include_proto!("gantry.v1");
    }
    pub use v1::*;
}

/// All files as an encoded `FileDescriptorSet`, for gRPC reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
