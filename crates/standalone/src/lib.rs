//! `gantry up`: scheduler, agent, built-in runtime, gateway and store in one process, with a watcher of manifests and
//! a supervisor of external model servers.
//!
//! ```text
//! sources (files) ─▶ manifest_watcher ──gRPC──▶ scheduler ◀──gRPC── agent ──▶ runtime
//!                                                   └──gRPC──▶ gateway ──────────┘ by a function call
//! ```
//!
//! The components communicate as they would across machines; only inference requests pass from the gateway to the
//! runtime without a socket. [`bootstrap`] is the process set-up that all roles of the `gantry` binary share.

#![allow(missing_docs)]
#![allow(clippy::doc_markdown, reason = "comments on flags are help texts: backticks would be printed")]

pub mod address;
mod applied_sources;
pub mod bootstrap;
mod builtin_server;
pub mod console;
mod curl_example;
pub mod error;
mod fingerprint;
mod graphs;
pub mod http_client;
mod manifest_watcher;
pub mod onnx_worker;
mod python_models;
pub mod scheduler_client;
pub mod servers;
mod sources;
mod stack;
mod stats;
mod status_stream;

use bootstrap::{
    access::AccessArgs,
    args::{ArtifactArgs, MemoryArgs, RequestArgs},
    auth::AuthArgs,
    kafka::KafkaArgs,
    listen::ListenArgs,
    log::LogArgs,
    tokio_runtime,
    trace::TraceArgs,
};
use error::CommandError;
use sources::{Problems, Sources};
use std::{net::IpAddr, path::PathBuf};

/// Serve models on this machine: scheduler, runtime and gateway in one process
#[derive(Clone, Debug, clap::Args)]
#[allow(clippy::struct_excessive_bools, reason = "one for each flag")]
pub struct Args {
    /// Manifests, directories of manifests, or directories of model files.
    #[arg(value_name = "PATH")]
    pub paths: Vec<PathBuf>,

    /// State directory: database, artifact cache, log.
    #[arg(long, env = "GANTRY_STATE_DIR", value_name = "DIR")]
    pub state_dir: Option<PathBuf>,

    /// Address for inference; anything but loopback is reachable from other machines. The control plane stays on
    /// loopback unless --tls-cert or --allow-plaintext exposes it too.
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    pub host: IpAddr,

    /// Port for inference, REST and gRPC; 0 picks a free one.
    #[arg(long, default_value_t = 9000, value_name = "PORT")]
    pub inference_port: u16,

    /// Port for the dashboard, metrics, health and logs; 0 picks a free one.
    #[arg(long, default_value_t = 9003, value_name = "PORT")]
    pub admin_port: u16,

    /// Port of the scheduler's gRPC API; 0 picks a free one.
    #[arg(long, default_value_t = 9004, value_name = "PORT")]
    pub scheduler_port: u16,

    /// Port of the scheduler's agent API; 0 picks a free one.
    #[arg(long, default_value_t = 9005, value_name = "PORT")]
    pub agent_port: u16,

    /// Memory for models in bytes [default: three quarters of the machine's]
    #[arg(long, env = "MEMORY_REQUEST", value_name = "BYTES", value_parser = bootstrap::args::memory)]
    pub memory: Option<u64>,

    /// Inference threads [default: number of cores]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,

    /// Let clients of the inference port load and unload models by the repository API.
    #[arg(long)]
    pub allow_repository_changes: bool,
    /// Domain of InferenceServices: requests to NAME-NAMESPACE.DOMAIN reach them.
    #[arg(long, value_name = "DOMAIN", default_value = gantry_gateway::DEFAULT_INGRESS_DOMAIN)]
    pub ingress_domain: String,

    /// Keep the tensors of the last requests of each pipeline in memory, for `gantry pipeline inspect`.
    #[arg(long)]
    pub keep_pipeline_payloads: bool,

    /// Let the dashboard on the admin port apply, delete and roll out objects; without it the pages are read-only.
    #[arg(long)]
    pub dashboard_actions: bool,

    /// Serve models of Python libraries too (scikit-learn, MLflow, CatBoost, Keras, PyTorch), each in a process of its own
    /// with the versions that it names, installed from PyPI. A pickle runs code when it is loaded.
    #[arg(long)]
    pub allow_python: bool,

    /// Do not watch the files for changes.
    #[arg(long)]
    pub no_watch: bool,

    #[command(flatten)]
    pub artifacts: ArtifactArgs,

    #[command(flatten)]
    pub auth: AuthArgs,

    #[command(flatten)]
    pub requests: RequestArgs,

    #[command(flatten)]
    pub request_memory: MemoryArgs,

    #[command(flatten)]
    pub kafka: KafkaArgs,

    #[command(flatten)]
    pub log: LogArgs,

    #[command(flatten)]
    pub listen: ListenArgs,

    #[command(flatten)]
    pub access: AccessArgs,

    #[command(flatten)]
    pub trace: TraceArgs,
}

/// Runs until Ctrl-C or SIGTERM.
pub fn run(args: &Args) -> Result<(), CommandError> {
    let sources = Sources::new(&args.paths)?.allowing_python(args.allow_python);
    // Invalid files start nothing and leave the state untouched.
    let desired = sources.read().map_err(Problems::into_error)?;
    python_models::prepare(&desired.python)?;
    tokio_runtime::block_on(stack::run(args, sources, desired))
}
