//! `gantry runtime`: the built-in inference server.

use crate::error::CommandError;
use gantry_python::Environments;
use gantry_runtime::{Config, Runtime};
use gantry_standalone::{
    bootstrap::{
        log::{self, LogArgs},
        signal, tokio_runtime,
        trace::{self, TraceArgs},
    },
    onnx_worker,
};
use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
};

/// Serve a directory of models, without a scheduler.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory with one subdirectory per model, named after the model; with --model-name, of that model.
    #[arg(value_name = "DIR")]
    pub(crate) repository: PathBuf,

    /// Address to listen on; anything but loopback is reachable from other machines.
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    pub(crate) host: IpAddr,

    /// Port for REST and gRPC; 0 picks a free one.
    #[arg(long, default_value_t = 8080, value_name = "PORT")]
    pub(crate) port: u16,

    /// Serve DIR itself as one model of this name, and fail if it cannot be loaded.
    #[arg(long, value_name = "NAME", conflicts_with = "explicit")]
    pub(crate) model_name: Option<String>,

    /// Load models on request only, over the repository API of the protocol.
    #[arg(long)]
    pub(crate) explicit: bool,

    /// Serve models of Python libraries too, each in a process of its own. A pickle runs code when it is loaded.
    #[arg(long)]
    pub(crate) allow_python: bool,

    /// Inference threads [default: number of cores]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,

    #[command(flatten)]
    pub(crate) log: LogArgs,

    #[command(flatten)]
    pub(crate) trace: TraceArgs,
}

/// Runs until Ctrl-C or SIGTERM.
pub(crate) fn run(args: &Args) -> Result<(), CommandError> {
    if !args.repository.is_dir() {
        return Err(CommandError::usage(format!("{} is not a directory", args.repository.display())));
    }
    log::start(&args.log, None)?;
    tokio_runtime::block_on_all_cores(serve(args))
}

async fn serve(args: &Args) -> Result<(), CommandError> {
    let tracer = args.trace.start("gantry-runtime")?;
    let mut config = Config {
        repository: Some(args.repository.clone()),
        onnx_worker: onnx_worker::command(),
        tracer: tracer.clone(),
        python: if args.allow_python {
            Some(Environments::of_user().map_err(CommandError::usage)?)
        } else {
            None
        },
        ..Config::default()
    };
    config.threads = args.threads.unwrap_or(config.threads);
    let runtime = Runtime::new(config)
        .map_err(|e| CommandError::failed(format!("failed to start inference threads: {e}")))?;
    let runtime = Arc::new(runtime);
    if let Some(name) = &args.model_name {
        load_one(&runtime, name, &args.repository)?;
    } else if !args.explicit {
        load_all(&runtime, &args.repository)?;
    }
    let address = SocketAddr::new(args.host, args.port);
    let served = gantry_runtime::serve(runtime, address, signal::shutdown_token(), |address| {
        eprintln!("serving on http://{address}, REST and gRPC");
    })
    .await;
    trace::flush(&tracer).await;
    served.map_err(|e| CommandError::unavailable(e.to_string()))
}

fn load_one(runtime: &Runtime, name: &str, directory: &Path) -> Result<(), CommandError> {
    let info = runtime.load(name, directory, []).map_err(|error| {
        CommandError::failed(format!("{name} not loaded from {}: {error}", directory.display()))
    })?;
    eprintln!("{name} {} ready ({})", info.platform, info.engine);
    Ok(())
}

fn load_all(runtime: &Runtime, repository: &Path) -> Result<(), CommandError> {
    let unreadable =
        |e: std::io::Error| CommandError::usage(format!("{} is not readable: {e}", repository.display()));
    let mut entries: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(repository).map_err(unreadable)? {
        entries.push(entry.map_err(unreadable)?.path());
    }
    entries.sort();
    for path in entries.into_iter().filter(|p| p.is_dir()) {
        let Some(name) = path.file_name().map(|n| n.to_string_lossy().into_owned()) else { continue };
        match runtime.load(&name, &path, []) {
            Ok(info) => eprintln!("{name} {} ready ({})", info.platform, info.engine),
            // The other models are still served.
            Err(error) => eprintln!("{name} not loaded: {error}"),
        }
    }
    Ok(())
}
