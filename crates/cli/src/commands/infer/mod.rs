//! `gantry infer`: inference requests, single or as a load test.
//!
//! ```text
//! payload (user JSON, or zeros in the shape of the metadata) ─▶ client (REST or gRPC) ─▶ response on stdout
//!                                                           ├─▶ load (many requests)  ─▶ summary on stderr
//!                                                           └─▶ snippet (curl or Python, nothing is sent)
//! batch   (rows of a file)                                  ─▶ client ─▶ one line per row in another file
//! ```

mod batch;
mod client;
mod load;
mod payload;
mod snippet;

use crate::{
    args::Global,
    client::Address,
    duration,
    error::CommandError,
    output::{Style, Table, Tone, emit, emit_line, print_stderr},
};
use bytes::Bytes;
use clap::ValueEnum;
use client::{InferClient, InferResponse};
use http::{HeaderMap, HeaderName, HeaderValue};
use payload::Payload;
use std::{
    io::Read as _,
    path::{Path, PathBuf},
    time::Duration,
};

const MAX_PAYLOAD_BYTES: u64 = 256 << 20;

/// Send inference requests to a model.
///
/// DATA is an Open Inference Protocol request, a list of values for a model with one input, or an object with a list per
/// input. Without DATA, zeros are sent in the shape of the model's metadata.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  gantry infer iris\n  gantry infer iris '[[5.1, 3.5, 1.4, 0.2]]'\n  \
    gantry infer iris -f request.json --mode grpc\n  gantry infer iris --seconds 10 --concurrency 16\n  \
    gantry infer iris --show curl\n  gantry infer iris --input data.csv --output predictions.csv")]
pub(crate) struct Args {
    /// Model name
    #[arg(value_name = "MODEL")]
    model: String,
    /// Request or values as JSON, or - for stdin
    #[arg(value_name = "DATA", conflicts_with_all = ["data_flag", "file"])]
    data: Option<String>,
    /// Same as the positional DATA
    #[arg(long = "data", short = 'd', value_name = "JSON", conflicts_with = "file")]
    data_flag: Option<String>,
    /// Read DATA from a file, or - for stdin
    #[arg(short, long = "filename", value_name = "FILE")]
    file: Option<PathBuf>,
    /// Protocol
    #[arg(long, alias = "inference-mode", value_enum, default_value_t = Mode::Rest)]
    mode: Mode,
    /// Number of requests
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    iterations: Option<u64>,
    /// Duration of the load test, in seconds or as 500ms, 2m
    #[arg(short = 't', long, value_name = "TIME", value_parser = duration::parse)]
    seconds: Option<Duration>,
    /// Concurrent connections, each with one request in flight
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    concurrency: u32,
    /// Additional request header; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = header)]
    header: Vec<(HeaderName, HeaderValue)>,
    /// Print request and response headers to stderr
    #[arg(long)]
    show_headers: bool,
    /// Print the equivalent curl or Python request without sending it
    #[arg(long, value_enum, value_name = "LANGUAGE")]
    show: Option<Language>,
    /// Predict every row of a file: .csv with a header line, or .ndjson with an object or a list per line
    #[arg(long, value_name = "FILE", conflicts_with_all = ["data", "data_flag", "file", "iterations", "seconds", "show", "show_headers"])]
    input: Option<PathBuf>,
    /// With --input: columns for the model's only input, in order [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',', requires = "input")]
    columns: Vec<String>,
    /// With --input: rows per request
    #[arg(long, value_name = "N", default_value_t = 64, requires = "input", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    batch_size: u32,
    /// With --input: continue an output file after its last complete line
    #[arg(long, requires = "input")]
    resume: bool,
    /// Output format: json (the response body, unchanged) or table (one row per output tensor); with --input, the file for the
    /// predictions
    #[arg(short, long, default_value = "json", value_name = "FORMAT|FILE", value_parser = Output::parse)]
    output: Output,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Output {
    Json,
    Table,
    File(PathBuf),
}

impl Output {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "json" => Ok(Self::Json),
            "table" => Ok(Self::Table),
            file if file.contains(['.', '/']) => Ok(Self::File(file.into())),
            _ => Err("use json or table, or with --input a file such as predictions.csv".into()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    Rest,
    Grpc,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Language {
    Curl,
    Python,
}

fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text
        .split_once(['=', ':'])
        .ok_or_else(|| format!("\"{}\" is not NAME=VALUE", text.escape_debug()))?;
    let name = name.trim();
    let parsed = HeaderName::try_from(name)
        .map_err(|_| format!("\"{}\" is not a valid header name", name.escape_debug()))?;
    let value = HeaderValue::from_str(value.trim())
        .map_err(|_| format!("the value of {name} is not a valid header value"))?;
    Ok((parsed, value))
}

pub(crate) async fn run(global: &Global, args: &Args) -> Result<(), CommandError> {
    gantry_api::check_name(&args.model).map_err(|e| CommandError::usage(format!("model name {e}")))?;
    let address = Address::parse(&global.inference(), 9000, "--inference")?;
    let mut headers: HeaderMap = args.header.iter().cloned().collect();
    // Seldon's Envoy routes by this header.
    headers
        .entry("seldon-model")
        .or_insert(HeaderValue::from_str(&args.model).map_err(|e| CommandError::usage(e.to_string()))?);
    let batch = batch_options(args)?;
    let data = read_data(args)?;
    let mut client = InferClient::new(&address, args.mode, &args.model, &headers, global.call_timeout());
    if let Some(options) = batch {
        return batch::run(client, &options).await;
    }
    let payload = match data.as_deref().map(Payload::from_request).transpose()? {
        Some(Some(payload)) => payload,
        // Bare values and zeros need the metadata for names, types and shapes.
        rest => {
            let metadata = client.metadata().await.map_err(|e| e.command_error(&args.model))?;
            match (rest, data.as_deref()) {
                (Some(None), Some(text)) => Payload::from_values(text, &metadata)?,
                _ => Payload::zeros(&metadata)?,
            }
        }
    };
    if let Some(language) = args.show {
        let text = snippet::render(language, args.mode, &address, &args.model, &headers, &payload)?;
        return emit(text);
    }
    client.set_payload(&payload)?;
    if args.iterations.is_some() || args.seconds.is_some() || args.concurrency > 1 {
        let options = load::LoadOptions {
            iterations: args
                .iterations
                .or_else(|| args.seconds.is_none().then_some(u64::from(args.concurrency))),
            duration: args.seconds,
            concurrency: args.concurrency,
        };
        let report = load::run(&client, &options).await;
        if let Some(response) = &report.first_response {
            print(args, response)?;
        }
        print_stderr(&report.summary());
        return match report.first_error {
            Some(error) => Err(CommandError::silent(error.exit)),
            None => Ok(()),
        };
    }
    if args.show_headers {
        print_stderr(&client.request_head());
    }
    let response = client.infer().await;
    if args.show_headers {
        let headers = match &response {
            Ok(response) => &response.headers,
            Err(error) => &*error.headers,
        };
        for (name, value) in headers {
            print_stderr(&format!("< {name}: {}", String::from_utf8_lossy(value.as_bytes())));
        }
    }
    print(args, &response.map_err(|e| e.command_error(&args.model))?)
}

/// `--input` with its output file.
fn batch_options(args: &Args) -> Result<Option<batch::BatchOptions>, CommandError> {
    match (&args.input, &args.output) {
        (None, Output::File(file)) => Err(CommandError::usage(format!(
            "--output {}: a file is for --input; use json or table for a single request",
            file.display()
        ))),
        (None, _) => Ok(None),
        (Some(input), Output::File(output)) => Ok(Some(batch::BatchOptions {
            input: input.clone(),
            output: output.clone(),
            columns: args.columns.clone(),
            rows_per_request: args.batch_size as usize,
            concurrency: args.concurrency as usize,
            resume: args.resume,
        })),
        (Some(_), _) => {
            Err(CommandError::usage("--input needs a file for the predictions: --output predictions.csv"))
        }
    }
}

/// DATA from the argument, the flag, a file or stdin.
fn read_data(args: &Args) -> Result<Option<Bytes>, CommandError> {
    let stdin = Path::new("-");
    let file = match (&args.data, &args.data_flag, &args.file) {
        (Some(text), ..) if text == "-" => stdin,
        (Some(text), ..) | (_, Some(text), _) => return Ok(Some(Bytes::from(text.clone()))),
        (_, _, Some(file)) => file,
        _ => return Ok(None),
    };
    let mut bytes = Vec::new();
    let read = if file == stdin {
        std::io::stdin().lock().take(MAX_PAYLOAD_BYTES + 1).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(file).and_then(|f| f.take(MAX_PAYLOAD_BYTES + 1).read_to_end(&mut bytes))
    };
    let name = file.display();
    read.map_err(|e| CommandError::usage(format!("{name} cannot be read: {e}")))?;
    if bytes.len() as u64 > MAX_PAYLOAD_BYTES {
        return Err(CommandError::usage(format!("{name} has more than {MAX_PAYLOAD_BYTES} bytes")));
    }
    Ok(Some(bytes.into()))
}

fn print(args: &Args, response: &InferResponse) -> Result<(), CommandError> {
    let json = response.json()?;
    if args.output == Output::Json {
        emit(&json)?;
        return if json.ends_with(b"\n") { Ok(()) } else { emit("\n") };
    }
    let value: serde_json::Value = serde_json::from_slice(&json)
        .map_err(|e| CommandError::failed(format!("the response is not JSON: {e}")))?;
    let mut table = Table::new(&["OUTPUT", "DATATYPE", "SHAPE", "DATA"]);
    for output in value.get("outputs").and_then(|o| o.as_array()).into_iter().flatten() {
        let text = |key: &str| match output.get(key) {
            Some(serde_json::Value::String(text)) => text.clone(),
            Some(other) => truncate(&other.to_string(), 120),
            None => String::new(),
        };
        let cells = ["name", "datatype", "shape", "data"].map(|key| (text(key), Tone::Plain));
        table.row(cells.into());
    }
    emit_line(table.render(Style::stdout()).trim_end())
}

fn truncate(text: &str, max_chars: usize) -> String {
    if text.chars().count() <= max_chars {
        return text.to_owned();
    }
    text.chars().take(max_chars).chain(['…']).collect()
}
