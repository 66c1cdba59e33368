//! The words and flags of the dialect.

use super::config::Config;
use clap::{Args, Subcommand, ValueEnum};
use http::{HeaderName, HeaderValue};
use std::path::PathBuf;

/// Load, unload, list and ask models, in the form that Seldon's command line has.
#[derive(Debug, Subcommand)]
pub(crate) enum Model {
    /// Load the models of a manifest
    Load(Load),
    /// Unload a model
    Unload(Unload),
    /// Tell the status of a model, or wait for a state
    Status(Status),
    /// List the models
    List(List),
    /// Ask a model
    Infer(Infer),
    /// Tell what a model takes and gives
    Metadata(Metadata),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Server {
    /// Expect the servers of a manifest
    Load(Load),
    /// Expect a server no more
    Unload(Unload),
    /// Tell the status of a server
    Status(Named),
    /// List the servers
    List(List),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Pipeline {
    /// Load the pipelines of a manifest
    Load(Load),
    /// Unload a pipeline
    Unload(Unload),
    /// Tell the status of a pipeline, or wait for a state
    Status(Status),
    /// List the pipelines
    List(List),
    /// Ask a pipeline
    Infer(Infer),
    /// Look at the data between a pipeline's steps
    Inspect(Inspect),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Experiment {
    /// Start the experiments of a manifest
    Start(Load),
    /// Stop an experiment
    Stop(Unload),
    /// Tell the status of an experiment
    Status(ExperimentStatus),
    /// List the experiments
    List(List),
}

/// Everything that the dialect can say.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Models
    #[command(subcommand)]
    Model(Model),
    /// Servers
    #[command(subcommand)]
    Server(Server),
    /// Pipelines
    #[command(subcommand)]
    Pipeline(Pipeline),
    /// Experiments
    #[command(subcommand)]
    Experiment(Experiment),
    /// Named files that say where things are
    #[command(subcommand)]
    Config(Config),
    /// Load everything in a manifest
    Load(Load),
    /// Unload everything in a manifest
    Unload(UnloadAll),
    /// Tell the status of everything in a manifest
    Status(StatusAll),
}

/// How a call to the scheduler is made and shown.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Control {
    /// The scheduler; SELDON_SCHEDULE_HOST and the active configuration count too
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) scheduler_host: Option<String>,
    /// The authority (virtual host) to name in requests
    #[arg(long, value_name = "HOST")]
    pub(crate) authority: Option<String>,
    /// Print the request
    #[arg(short = 'r', long, num_args = 0..=1, require_equals = true, default_value_t = false,
        default_missing_value = "true", action = clap::ArgAction::Set, value_name = "BOOL")]
    pub(crate) show_request: bool,
    /// Print the response
    #[arg(short = 'o', long, num_args = 0..=1, require_equals = true, default_value_t = true,
        default_missing_value = "true", action = clap::ArgAction::Set, value_name = "BOOL")]
    pub(crate) show_response: bool,
}

/// How a change is made.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Change {
    #[command(flatten)]
    pub(crate) control: Control,
    /// Accepted, as is SELDON_FORCE_CONTROL_PLANE: changes need no force here, since each object knows its owner
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Load {
    /// The manifest, or - for stdin
    #[arg(short = 'f', long = "file-path", value_name = "FILE")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) change: Change,
}

#[derive(Debug, Args)]
pub(crate) struct Unload {
    /// The name
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    pub(crate) name: Option<String>,
    /// Take the name from a manifest, or from stdin for -
    #[arg(short = 'f', long = "file-path", value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Accepted; the response is printed in any case
    #[arg(short, long)]
    pub(crate) verbose: bool,
    #[command(flatten)]
    pub(crate) change: Change,
}

#[derive(Debug, Args)]
pub(crate) struct UnloadAll {
    /// The manifest, or - for stdin
    #[arg(short = 'f', long = "file-path", value_name = "FILE")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) change: Change,
}

#[derive(Debug, Args)]
pub(crate) struct Named {
    /// The name
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) control: Control,
}

#[derive(Debug, Args)]
pub(crate) struct Status {
    /// The name
    pub(crate) name: String,
    /// Wait for this state, such as ModelAvailable
    #[arg(short, long, value_name = "STATE")]
    pub(crate) wait: Option<String>,
    #[command(flatten)]
    pub(crate) control: Control,
}

#[derive(Debug, Args)]
pub(crate) struct StatusAll {
    /// The manifest, or - for stdin
    #[arg(short = 'f', long = "file-path", value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Wait until everything is ready
    #[arg(short, long)]
    pub(crate) wait: bool,
    #[command(flatten)]
    pub(crate) control: Control,
}

#[derive(Debug, Args)]
pub(crate) struct ExperimentStatus {
    /// The name
    pub(crate) name: String,
    /// Wait until it is active
    #[arg(short, long)]
    pub(crate) wait: bool,
    #[command(flatten)]
    pub(crate) control: Control,
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// The scheduler; SELDON_SCHEDULE_HOST and the active configuration count too
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) scheduler_host: Option<String>,
    /// The authority (virtual host) to name in requests
    #[arg(long, value_name = "HOST")]
    pub(crate) authority: Option<String>,
}

/// The protocol of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// HTTP with JSON
    Rest,
    /// gRPC
    Grpc,
}

/// How the data plane is reached.
#[derive(Clone, Debug, Args)]
pub(crate) struct Data {
    /// The data plane; SELDON_INFER_HOST and the active configuration count too
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) inference_host: Option<String>,
    /// The authority (HTTP/2) or virtual host (HTTP/1) to name in requests
    #[arg(long, value_name = "HOST")]
    pub(crate) authority: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Metadata {
    /// The model
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) data: Data,
}

#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag")]
pub(crate) struct Infer {
    /// The name
    pub(crate) name: String,
    /// The request as JSON: of the REST protocol, or with --inference-mode grpc of the gRPC message
    #[arg(conflicts_with = "file")]
    pub(crate) payload: Option<String>,
    /// Take the request from a file, or from stdin for -
    #[arg(short = 'f', long = "file-path", value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) data: Data,
    /// The protocol
    #[arg(long, value_enum, default_value_t = Mode::Rest, value_name = "MODE")]
    pub(crate) inference_mode: Mode,
    /// How many requests to send, one after the other
    #[arg(short, long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) iterations: u64,
    /// For how many seconds to send requests
    #[arg(short = 't', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds: Option<u64>,
    /// Take the route that the last answer took
    #[arg(short, long)]
    pub(crate) sticky_session: bool,
    /// A header to send along; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = header)]
    pub(crate) header: Vec<(HeaderName, HeaderValue)>,
    /// Print the headers of request and response
    #[arg(long)]
    pub(crate) show_headers: bool,
    /// Print the request
    #[arg(short = 'r', long, num_args = 0..=1, require_equals = true, default_value_t = false,
        default_missing_value = "true", action = clap::ArgAction::Set, value_name = "BOOL")]
    pub(crate) show_request: bool,
    /// Print the response
    #[arg(short = 'o', long, num_args = 0..=1, require_equals = true, default_value_t = true,
        default_missing_value = "true", action = clap::ArgAction::Set, value_name = "BOOL")]
    pub(crate) show_response: bool,
}

/// What `pipeline inspect` is given. The flags are read, so that a script fails for the right reason.
#[derive(Debug, Args)]
#[command(trailing_var_arg = true, disable_help_flag = false)]
pub(crate) struct Inspect {
    /// The pipeline, and flags of Kafka
    #[arg(allow_hyphen_values = true)]
    pub(crate) rest: Vec<String>,
}

fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let shown = text.escape_debug();
    let (name, value) = text.split_once('=').ok_or_else(|| format!("\"{shown}\" is not KEY=VALUE"))?;
    let name = HeaderName::try_from(name.trim()).map_err(|_| format!("\"{shown}\" names no header"))?;
    let value = HeaderValue::from_str(value.trim())
        .map_err(|_| format!("\"{shown}\" has a value that cannot stand in a header"))?;
    Ok((name, value))
}
