//! `gantry up`: scheduler, agent, built-in runtime, gateway and store in one process.
//!
//! ```text
//! sources (files) ──▶ follow ──gRPC──▶ scheduler ◀──gRPC── agent ──▶ runtime
//!                                          └──gRPC──▶ gateway ──────────┘ by a function call
//! ```
//!
//! The parts talk to each other as they would across machines; only a request goes from the gateway to the runtime
//! without a socket.

pub(crate) mod admin;
mod calls;
mod example;
mod fingerprint;
mod follow;
mod house;
mod local;
pub(crate) mod paths;
mod record;
mod screen;
pub(crate) mod servers;
mod sources;
mod statuses;
mod usage;

use crate::{
    failure::Failure,
    roles::{listen, log, threads, trace},
};
use gantry_artifacts::NetRule;
use std::{net::IpAddr, path::PathBuf};

/// Serve models from this machine.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Manifests, directories of manifests, or directories of model files.
    #[arg(value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,

    /// Where state is kept: what is loaded, downloaded files, the log.
    #[arg(long, env = "GANTRY_STATE_DIR", value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,

    /// Address to listen on for inference. Anything but loopback lets other machines in. The other ports, which can
    /// change what is served, stay on loopback unless --tls-cert or --allow-plaintext opens them too.
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    pub(crate) host: IpAddr,

    /// Port for inference, REST and gRPC; 0 for any free one.
    #[arg(long, default_value_t = 9000, value_name = "PORT")]
    pub(crate) inference_port: u16,

    /// Port for metrics, health and logs; 0 for any free one.
    #[arg(long, default_value_t = 9003, value_name = "PORT")]
    pub(crate) admin_port: u16,

    /// Port of the scheduler's gRPC; 0 for any free one.
    #[arg(long, default_value_t = 9004, value_name = "PORT")]
    pub(crate) scheduler_port: u16,

    /// Port where agents reach the scheduler; 0 for any free one.
    #[arg(long, default_value_t = 9005, value_name = "PORT")]
    pub(crate) agent_port: u16,

    /// Directory with a file for each secret that a Model's secretName can name.
    #[arg(long, env = "GANTRY_SECRETS_DIR", value_name = "DIR")]
    pub(crate) secrets_dir: Option<PathBuf>,

    /// Private network (CIDR) or host that artifacts may be fetched from; may be repeated.
    #[arg(long, value_name = "NETWORK")]
    pub(crate) allow_net: Vec<NetRule>,

    /// Bytes of fetched artifacts that are kept.
    #[arg(long, default_value_t = 20 << 30, value_name = "BYTES")]
    pub(crate) cache_limit: u64,

    /// Memory for models in bytes; three quarters of the machine's by default.
    #[arg(long, env = "MEMORY_REQUEST", value_name = "BYTES")]
    pub(crate) memory: Option<u64>,

    /// Largest request body in bytes.
    #[arg(long, default_value_t = 64 << 20, value_name = "BYTES")]
    pub(crate) max_body: usize,

    /// How long a request may take, in seconds.
    #[arg(long, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) request_timeout: u64,

    /// Requests that may be under way at once; more are answered with 503.
    #[arg(long, default_value_t = 4096, value_name = "N")]
    pub(crate) max_in_flight: usize,

    /// Threads for inference; as many as there are cores by default.
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,

    /// Do not look for changes of the files.
    #[arg(long)]
    pub(crate) no_watch: bool,

    #[command(flatten)]
    /// What is logged, and how.
    pub(crate) log: log::LogArgs,

    #[command(flatten)]
    /// Who may reach the control plane.
    pub(crate) listen: listen::ListenArgs,

    #[command(flatten)]
    /// Who is told how long things took.
    pub(crate) trace: trace::TraceArgs,
}

/// Runs until Ctrl-C.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let sources = sources::Sources::new(&args.paths)?;
    // Nothing is started, and no state is touched, on account of files that are wrong.
    let first = sources.read().map_err(sources::Problems::into_failure)?;
    threads::live(house::live(args, sources, first))
}
