//! `gantry runtime`: the built-in inference server alone.

use super::{log, trace};
use crate::failure::{Exit, Failure};
use gantry_runtime::{Config, Runtime};
use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
};
use tokio_util::sync::CancellationToken;

/// Serve a directory of models, without a scheduler.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// A directory with a folder for each model; the folder's name is the model's name.
    #[arg(value_name = "DIR")]
    pub(crate) repository: PathBuf,

    /// Address to listen on. Anything but loopback lets other machines in.
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    pub(crate) host: IpAddr,

    /// Port for REST and gRPC; 0 for any free one.
    #[arg(long, default_value_t = 8080, value_name = "PORT")]
    pub(crate) port: u16,

    /// Load nothing at the start: models are loaded over the protocol's repository calls.
    #[arg(long)]
    pub(crate) explicit: bool,

    /// Threads for inference; as many as there are cores by default.
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,

    #[command(flatten)]
    /// What is logged, and how.
    pub(crate) log: log::LogArgs,

    #[command(flatten)]
    /// Who is told how long things took.
    pub(crate) trace: trace::TraceArgs,
}

/// Runs until Ctrl-C.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if !args.repository.is_dir() {
        return Err(Failure::usage(format!("{} is not a directory", args.repository.display())));
    }
    log::start(&args.log, None, Some(tracing::Level::INFO)).map_err(Failure::usage)?;
    let config = Config {
        repository: Some(args.repository.clone()),
        apart: super::network::apart(),
        ..Config::default()
    };
    let failed = |e: std::io::Error| Failure::new(Exit::Failed, format!("no threads can be started: {e}"));
    let threads = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(failed)?;
    let tracer = {
        let _inside = threads.enter();
        args.trace.start("gantry-runtime")?
    };
    let config = Config { threads: args.threads.unwrap_or(config.threads), tracer: tracer.clone(), ..config };
    let runtime = Arc::new(Runtime::new(config).map_err(failed)?);
    if !args.explicit {
        load_all(&runtime, &args.repository)?;
    }
    threads.block_on(async {
        let stop = CancellationToken::new();
        let on_signal = stop.clone();
        tokio::spawn(async move {
            super::signal::asked_to_stop().await;
            on_signal.cancel();
        });
        let address = SocketAddr::new(args.host, args.port);
        let tell = |at| eprintln!("serving on http://{at}, REST and gRPC");
        let served = gantry_runtime::serve(runtime, address, stop, tell).await;
        trace::close(&tracer).await;
        served.map_err(|e| Failure::unavailable(e.to_string()))
    })
}

fn load_all(runtime: &Runtime, repository: &std::path::Path) -> Result<(), Failure> {
    let unreadable =
        |e: std::io::Error| Failure::usage(format!("{} cannot be read: {e}", repository.display()));
    let mut entries: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(repository).map_err(unreadable)? {
        entries.push(entry.map_err(unreadable)?.path());
    }
    entries.sort();
    for path in entries.into_iter().filter(|p| p.is_dir()) {
        let Some(name) = path.file_name().map(|n| n.to_string_lossy().into_owned()) else { continue };
        match runtime.load(&name, &path, []) {
            Ok(info) => eprintln!("{name} {} ready ({})", info.platform, info.engine),
            // One model that cannot be loaded does not keep the others from being served.
            Err(error) => eprintln!("{name} not loaded: {error}"),
        }
    }
    Ok(())
}
