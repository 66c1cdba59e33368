//! The command line: sub-commands and the flags that all of them share.

use crate::{client, duration, roles, seldon, up, verbs};
use clap::{Args, Parser, Subcommand};
use std::time::Duration;

/// Serve machine-learning models, and ask about those that are served.
#[derive(Debug, Parser)]
#[command(
    name = "gantry",
    version,
    arg_required_else_help = true,
    subcommand_required = true,
    max_term_width = 100,
    after_help = "Exit codes: 0 done, 1 failed, 2 wrong command line or file, 3 not found, 4 not reachable, \
                  5 out of time, 6 refused."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Where things are, and how long to wait for them.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct Global {
    /// The scheduler; SELDON_SCHEDULE_HOST counts too [default: 127.0.0.1:9004]
    #[arg(long, global = true, value_name = "HOST:PORT", env = "GANTRY_SCHEDULER", hide_env_values = true)]
    scheduler: Option<String>,
    /// The data plane; SELDON_INFER_HOST counts too [default: 127.0.0.1:9000]
    #[arg(long, global = true, value_name = "HOST:PORT", env = "GANTRY_INFERENCE", hide_env_values = true)]
    inference: Option<String>,
    /// The admin endpoint: figures and logs [default: 127.0.0.1:9003]
    #[arg(long, global = true, value_name = "HOST:PORT", env = "GANTRY_ADMIN", hide_env_values = true)]
    admin: Option<String>,
    /// Give up after this long, such as 500ms, 30s or 2m [default: 10s; 60s where something is waited for]
    #[arg(long, global = true, value_name = "TIME", value_parser = duration::parse)]
    timeout: Option<Duration>,
    #[command(flatten)]
    pub(crate) tls: client::TlsArgs,
}

impl Global {
    /// The scheduler's address as it was given.
    pub(crate) fn scheduler(&self) -> String {
        choose(self.scheduler.as_deref(), Some("SELDON_SCHEDULE_HOST"), "127.0.0.1:9004")
    }

    /// The data plane's address as it was given.
    pub(crate) fn inference(&self) -> String {
        choose(self.inference.as_deref(), Some("SELDON_INFER_HOST"), "127.0.0.1:9000")
    }

    /// The admin endpoint's address as it was given.
    pub(crate) fn admin(&self) -> String {
        choose(self.admin.as_deref(), None, "127.0.0.1:9003")
    }

    /// The scheduler and the data plane, where they were named to us by our own flags or variables.
    pub(crate) fn named(&self) -> (Option<String>, Option<String>) {
        (self.scheduler.clone(), self.inference.clone())
    }

    /// The time that was given.
    pub(crate) const fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// How long one call may take.
    pub(crate) fn call_timeout(&self) -> Duration {
        // "Check once" still has to ask.
        self.timeout.filter(|t| !t.is_zero()).unwrap_or(Duration::from_secs(10))
    }

    /// How long a wait for something to happen may take.
    pub(crate) fn wait_timeout(&self) -> Duration {
        self.timeout.unwrap_or(Duration::from_mins(1))
    }
}

fn choose(given: Option<&str>, variable: Option<&str>, default: &str) -> String {
    let given = given.map(str::to_owned).filter(|g| !g.is_empty());
    let other = || variable.and_then(|v| std::env::var(v).ok()).filter(|v| !v.is_empty());
    given.or_else(other).unwrap_or_else(|| default.to_owned())
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve models from this machine: scheduler, runtime and gateway in one process
    Up(up::Args),
    /// Serve model files alone, without a scheduler
    Runtime(roles::runtime::Args),
    /// Decide alone: the control plane as a process of its own, for agents and gateways elsewhere
    Scheduler(roles::scheduler::Args),
    /// Route alone: the data plane as a process of its own, in front of servers elsewhere
    Gateway(roles::gateway::Args),
    /// Look after an inference server (MLServer, Triton, …) as a process of its own
    Agent(Box<roles::agent::Args>),
    /// Look after the models and servers of a Kubernetes cluster
    Operator(roles::operator::Args),
    Apply(verbs::apply::Args),
    Delete(verbs::delete::Args),
    Get(verbs::get::Args),
    Describe(verbs::describe::Args),
    Explain(verbs::explain::Args),
    Diff(verbs::diff::Args),
    Adopt(verbs::adopt::Args),
    Status(verbs::status::Args),
    Top(verbs::top::Args),
    Wait(verbs::wait::Args),
    Infer(verbs::infer::Args),
    Logs(verbs::logs::Args),
    Install(verbs::install::Args),
    Check(verbs::check::Args),
    Lint(verbs::lint::Args),
    State(verbs::state::Args),
    Completion(verbs::completion::Args),
    Man(verbs::man::Args),
    Version(verbs::version::Args),
    /// Seldon's form: load, unload, status, list, infer, metadata
    #[command(subcommand)]
    Model(seldon::Model),
    /// Seldon's form: load, unload, status, list
    #[command(subcommand)]
    Server(seldon::Server),
    /// Seldon's form: load, unload, status, list, infer
    #[command(subcommand)]
    Pipeline(seldon::Pipeline),
    /// Seldon's form: start, stop, status, list
    #[command(subcommand)]
    Experiment(seldon::Experiment),
    /// Seldon's form: named files that say where things are
    #[command(subcommand)]
    Config(seldon::Config),
    /// Seldon's form: load everything in a manifest
    Load(seldon::Load),
    /// Seldon's form: unload everything in a manifest
    Unload(seldon::UnloadAll),
}
