//! Commands and flags of the Seldon CLI.

use super::config::Config;
use clap::{Args, Subcommand, ValueEnum};
use http::{HeaderName, HeaderValue};
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub(crate) enum Model {
    /// Load the models of a manifest
    Load(Load),
    /// Unload a model
    Unload(Unload),
    /// Print the status of a model, or wait for a state
    Status(Status),
    /// List the models
    List(List),
    /// Send an inference request to a model
    Infer(Infer),
    /// Print the inputs and outputs of a model
    Metadata(Metadata),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Server {
    /// Register the servers of a manifest
    Load(Load),
    /// Unregister a server
    Unload(Unload),
    /// Print the status of a server
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
    /// Print the status of a pipeline, or wait for a state
    Status(Status),
    /// List the pipelines
    List(List),
    /// Send an inference request to a pipeline
    Infer(PipelineInfer),
    /// Inspect the data between the steps of a pipeline
    Inspect(Inspect),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Experiment {
    /// Start the experiments of a manifest
    Start(Load),
    /// Stop an experiment
    Stop(Unload),
    /// Print the status of an experiment
    Status(ExperimentStatus),
    /// List the experiments
    List(List),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Manage models
    #[command(subcommand)]
    Model(Model),
    /// Manage servers
    #[command(subcommand)]
    Server(Server),
    /// Manage pipelines
    #[command(subcommand)]
    Pipeline(Pipeline),
    /// Manage experiments
    #[command(subcommand)]
    Experiment(Experiment),
    /// Manage named configuration files with addresses and TLS settings
    #[command(subcommand)]
    Config(Config),
    /// Load all objects of a manifest
    Load(Load),
    /// Unload all objects of a manifest
    Unload(UnloadAll),
    /// Print the status of all objects of a manifest
    Status(StatusAll),
}

#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Control {
    /// Scheduler address (also read from the active configuration and SELDON_SCHEDULE_HOST)
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) scheduler_host: Option<String>,
    /// Authority (virtual host) of requests
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
    /// Accepted for compatibility; the response is always printed
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Change {
    #[command(flatten)]
    pub(crate) control: Control,
    /// Accepted for compatibility, as is SELDON_FORCE_CONTROL_PLANE; ownership is tracked per object
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Load {
    /// Manifest, or - for stdin
    #[arg(short = 'f', long = "file-path", value_name = "FILE")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) change: Change,
}

#[derive(Debug, Args)]
pub(crate) struct Unload {
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    pub(crate) name: Option<String>,
    /// Manifest with the name, or - for stdin
    #[arg(short = 'f', long = "file-path", value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) change: Change,
}

#[derive(Debug, Args)]
pub(crate) struct UnloadAll {
    /// Manifest, or - for stdin
    #[arg(short = 'f', long = "file-path", value_name = "FILE")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) change: Change,
}

#[derive(Debug, Args)]
pub(crate) struct Named {
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) control: Control,
}

#[derive(Debug, Args)]
pub(crate) struct Status {
    pub(crate) name: String,
    /// Wait for this state, such as ModelAvailable or PipelineReady
    #[arg(short, long, value_name = "STATE")]
    pub(crate) wait: Option<String>,
    /// Limit of the wait, in seconds
    #[arg(short = 't', long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) timeout_secs: Option<u64>,
    #[command(flatten)]
    pub(crate) control: Control,
}

#[derive(Debug, Args)]
pub(crate) struct StatusAll {
    /// Manifest, or - for stdin
    #[arg(short = 'f', long = "file-path", value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Wait until everything is ready
    #[arg(short, long)]
    pub(crate) wait: bool,
    /// Limit of the wait, in seconds
    #[arg(short = 't', long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) timeout_secs: Option<u64>,
    #[command(flatten)]
    pub(crate) control: Control,
}

#[derive(Debug, Args)]
pub(crate) struct ExperimentStatus {
    pub(crate) name: String,
    /// Wait until it is active
    #[arg(short, long)]
    pub(crate) wait: bool,
    /// Limit of the wait, in seconds
    #[arg(short = 't', long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) timeout_secs: Option<u64>,
    #[command(flatten)]
    pub(crate) control: Control,
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// Scheduler address (also read from the active configuration and SELDON_SCHEDULE_HOST)
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) scheduler_host: Option<String>,
    /// Authority (virtual host) of requests
    #[arg(long, value_name = "HOST")]
    pub(crate) authority: Option<String>,
    /// Accepted for compatibility; the table is always the same
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// HTTP and JSON
    Rest,
    /// gRPC
    Grpc,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Data {
    /// Gateway address (also read from the active configuration and SELDON_INFER_HOST)
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) inference_host: Option<String>,
    /// Authority (HTTP/2) or virtual host (HTTP/1) of requests
    #[arg(long, value_name = "HOST")]
    pub(crate) authority: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Metadata {
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) data: Data,
}

#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag")]
pub(crate) struct Infer {
    pub(crate) name: String,
    /// Request as JSON: the REST body, or with --inference-mode grpc the gRPC message
    #[arg(conflicts_with = "file")]
    pub(crate) payload: Option<String>,
    /// Read the request from a file, or - for stdin
    #[arg(short = 'f', long = "file-path", value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) data: Data,
    /// Protocol
    #[arg(long, value_enum, default_value_t = Mode::Rest, value_name = "MODE")]
    pub(crate) inference_mode: Mode,
    /// Number of sequential requests
    #[arg(short, long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) iterations: u64,
    /// Send requests for this many seconds
    #[arg(short = 't', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds: Option<u64>,
    /// Reuse the route of the last response
    #[arg(short, long)]
    pub(crate) sticky_session: bool,
    /// Additional request header; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = header)]
    pub(crate) header: Vec<(HeaderName, HeaderValue)>,
    /// Print request and response headers
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

#[derive(Debug, Args)]
pub(crate) struct PipelineInfer {
    #[command(flatten)]
    pub(crate) infer: Infer,
    /// Print the steps instead of the response: time, replica, tensors, and why a step did not run
    #[arg(long, conflicts_with_all = ["iterations", "seconds"])]
    pub(crate) trace: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Inspect {
    /// PIPELINE, PIPELINE.STEP, PIPELINE.STEP.inputs or PIPELINE.STEP.outputs, each with .TENSOR
    #[arg(value_name = "EXPRESSION")]
    pub(crate) expression: String,
    /// Number of requests, newest first
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) offset: u32,
    /// Only this request
    #[arg(long, value_name = "ID")]
    pub(crate) request_id: Option<String>,
    /// Form of the tensors
    #[arg(long, value_enum, default_value_t = InspectFormat::Raw, value_name = "FORMAT")]
    pub(crate) format: InspectFormat,
    /// Shorten tensors to one line of 80 characters
    #[arg(short, long)]
    pub(crate) truncate: bool,
    /// Print version, time and error of each request too
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Namespace in the printed topics
    #[arg(long, default_value = "default", env = "POD_NAMESPACE", hide_env = true, value_name = "NAMESPACE")]
    pub(crate) namespace: String,
    /// Read Kafka topics of this broker; without the feature kafka the flag is ignored, and the gateway is read
    #[arg(long, env = "SELDON_KAFKA_BROKER", hide_env = true, value_name = "HOST:PORT")]
    pub(crate) kafka_broker: Option<String>,
    /// Read Kafka topics with the settings of this kafka.json; without the feature kafka the flag is ignored
    #[arg(long, env = "SELDON_KAFKA_CONFIG_PATH", hide_env = true, value_name = "FILE")]
    pub(crate) kafka_config_path: Option<PathBuf>,
    /// Scheduler that knows the steps of the pipeline; for topics only
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) scheduler_host: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum InspectFormat {
    /// Tensors as JSON on one line
    Raw,
    /// Indented JSON
    Json,
}

fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let shown = text.escape_debug();
    let (name, value) = text.split_once('=').ok_or_else(|| format!("\"{shown}\" is not KEY=VALUE"))?;
    let name =
        HeaderName::try_from(name.trim()).map_err(|_| format!("\"{shown}\" has an invalid header name"))?;
    let value = HeaderValue::from_str(value.trim())
        .map_err(|_| format!("\"{shown}\" has an invalid header value"))?;
    Ok((name, value))
}
