//! The command line: sub-commands and the flags that all of them share.

use crate::{client, commands, duration, seldon, serve};
use clap::{Args, Parser, Subcommand};
use std::time::Duration;

/// Serve machine-learning models and manage them
#[derive(Debug, Parser)]
#[command(
    name = "gantry",
    version,
    arg_required_else_help = true,
    subcommand_required = true,
    max_term_width = 100,
    after_help = "Exit codes: 0 success, 1 failure, 2 invalid command line or file, 3 not found, 4 unreachable, \
                  5 timeout, 6 refused."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Addresses, timeout and TLS of client commands.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct Global {
    /// Scheduler addresses, comma-separated (also SELDON_SCHEDULE_HOST) [default: 127.0.0.1:9004]
    #[arg(long, global = true, value_name = "HOST:PORT", env = "GANTRY_SCHEDULER", hide_env_values = true)]
    scheduler: Option<String>,
    /// Inference gateway address (also read from SELDON_INFER_HOST) [default: 127.0.0.1:9000]
    #[arg(long, global = true, value_name = "HOST:PORT", env = "GANTRY_INFERENCE", hide_env_values = true)]
    inference: Option<String>,
    /// Admin endpoint address: metrics and logs [default: 127.0.0.1:9003]
    #[arg(long, global = true, value_name = "HOST:PORT", env = "GANTRY_ADMIN", hide_env_values = true)]
    admin: Option<String>,
    /// Timeout, such as 500ms, 30s or 2m [default: 10s per call; 60s when waiting for a state]
    #[arg(long, global = true, value_name = "TIME", value_parser = duration::parse)]
    timeout: Option<Duration>,
    #[command(flatten)]
    pub(crate) tls: client::TlsArgs,
}

impl Global {
    pub(crate) fn scheduler(&self) -> String {
        choose(self.scheduler.as_deref(), Some("SELDON_SCHEDULE_HOST"), "127.0.0.1:9004")
    }

    pub(crate) fn inference(&self) -> String {
        choose(self.inference.as_deref(), Some("SELDON_INFER_HOST"), "127.0.0.1:9000")
    }

    pub(crate) fn admin(&self) -> String {
        choose(self.admin.as_deref(), None, "127.0.0.1:9003")
    }

    /// Scheduler and gateway addresses set by Gantry's own flags or variables.
    pub(crate) fn explicit_addresses(&self) -> (Option<String>, Option<String>) {
        (self.scheduler.clone(), self.inference.clone())
    }

    pub(crate) const fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Deadline of one call. `--timeout 0` ("check once") still allows the default.
    pub(crate) fn call_timeout(&self) -> Duration {
        self.timeout.filter(|t| !t.is_zero()).unwrap_or(Duration::from_secs(10))
    }

    /// Deadline of a wait for a state.
    pub(crate) fn wait_timeout(&self) -> Duration {
        self.timeout.unwrap_or(Duration::from_mins(1))
    }
}

/// The first non-empty of flag, environment variable and default.
fn choose(flag: Option<&str>, variable: Option<&str>, default: &str) -> String {
    let flag = flag.map(str::to_owned).filter(|f| !f.is_empty());
    let from_env = || variable.and_then(|v| std::env::var(v).ok()).filter(|v| !v.is_empty());
    flag.or_else(from_env).unwrap_or_else(|| default.to_owned())
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve models on this machine: scheduler, runtime and gateway in one process
    Up(gantry_standalone::Args),
    /// Serve model files directly, without a scheduler
    Runtime(serve::runtime::Args),
    /// Run the scheduler (control plane) as a standalone process
    Scheduler(serve::scheduler::Args),
    /// Run the inference gateway (data plane) as a standalone process
    Gateway(serve::gateway::Args),
    /// Run the agent of an inference server (MLServer, Triton, …) as a standalone process
    Agent(Box<serve::agent::Args>),
    /// Run the agent of an InferenceService's pod: log and batch its requests
    KserveAgent(serve::kserve_agent::Args),
    /// Run the Kubernetes operator
    Operator(serve::operator::Args),
    Apply(commands::apply::Args),
    Delete(commands::delete::Args),
    Get(commands::get::Args),
    Describe(commands::describe::Args),
    Explain(commands::explain::Args),
    Graph(commands::graph::Args),
    Diff(commands::diff::Args),
    Adopt(commands::adopt::Args),
    Status(commands::status::Args),
    Top(commands::top::Args),
    Wait(commands::wait::Args),
    Infer(commands::infer::Args),
    Logs(commands::logs::Args),
    Rollout(commands::rollout::Args),
    Auth(commands::auth::Args),
    Install(commands::install::Args),
    Check(commands::check::Args),
    Lint(commands::lint::Args),
    Convert(commands::convert::Args),
    Fetch(commands::fetch::Args),
    State(commands::state::Args),
    Completion(commands::completion::Args),
    Man(commands::man::Args),
    Version(commands::version::Args),
    /// Seldon CLI: load, unload, status, list, infer, metadata
    #[command(subcommand)]
    Model(seldon::Model),
    /// Seldon CLI: load, unload, status, list
    #[command(subcommand)]
    Server(seldon::Server),
    /// Seldon CLI: load, unload, status, list, infer, inspect
    #[command(subcommand)]
    Pipeline(seldon::Pipeline),
    /// Seldon CLI: start, stop, status, list
    #[command(subcommand)]
    Experiment(seldon::Experiment),
    /// Seldon CLI: named configuration files with addresses and TLS settings
    #[command(subcommand)]
    Config(seldon::Config),
    /// Seldon CLI: load all objects of a manifest
    Load(seldon::Load),
    /// Seldon CLI: unload all objects of a manifest
    Unload(seldon::UnloadAll),
}
