//! The gRPC contracts: scheduler, agent, Open Inference Protocol, and Gantry's own routing stream.
//!
//! The `.proto` files in `proto/` are the source; the code is generated when the crate is built.

#![allow(missing_docs, unreachable_pub, reason = "generated from .proto files, which carry the words")]
#![allow(clippy::all, clippy::pedantic, clippy::unwrap_used, clippy::indexing_slicing, reason = "generated")]

// The modules are nested as the packages are, because the generated code finds its neighbours that way.
mod seldon {
    pub mod mlops {
        /// Models, servers, pipelines and experiments: the scheduler's contract.
        pub mod scheduler {
            tonic::include_proto!("seldon.mlops.scheduler");
        }
        /// Dataflow engines and the scheduler.
        pub mod chainer {
            tonic::include_proto!("seldon.mlops.chainer");
        }
        /// Agents and the scheduler.
        pub mod agent {
            tonic::include_proto!("seldon.mlops.agent");
        }
        /// What an agent says about its server when somebody looks into it.
        pub mod agent_debug {
            tonic::include_proto!("seldon.mlops.agent_debug");
        }
        /// Whether a component works.
        pub mod health {
            tonic::include_proto!("seldon.mlops.health");
        }
    }
}

pub use seldon::mlops::{agent, agent_debug, chainer, health, scheduler};

/// The Open Inference Protocol.
pub mod inference {
    tonic::include_proto!("inference");
}

/// What Gantry's own parts say to each other.
pub mod gantry {
    /// The first version of it.
    pub mod v1 {
        tonic::include_proto!("gantry.v1");
    }
    pub use v1::*;
}

/// All contracts as an encoded `FileDescriptorSet`, for gRPC reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
