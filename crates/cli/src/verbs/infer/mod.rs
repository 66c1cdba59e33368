//! `gantry infer`: ask a model, once or many times.
//!
//! ```text
//! payload (JSON from the user, or zeros as the metadata says) ─▶ target (REST or gRPC) ─▶ the answer on stdout
//!                                                            └─▶ load (many requests)  ─▶ the summary on stderr
//!                                                            └─▶ show (curl or Python instead of asking)
//! ```

mod histogram;
mod load;
mod payload;
mod show;
mod target;

use crate::{
    args::Global,
    client::Address,
    duration,
    failure::Failure,
    output::{Style, Table, Tone, emit, emit_line, say},
};
use bytes::Bytes;
use clap::ValueEnum;
use http::{HeaderMap, HeaderName, HeaderValue};
use payload::Payload;
use std::{
    io::Read as _,
    path::{Path, PathBuf},
    time::Duration,
};
use target::{Answer, Target};

/// Largest payload that is read from a file.
const LARGEST: u64 = 256 << 20;

/// Ask a model, once or many times.
///
/// DATA is a request of the Open Inference Protocol; or a list of values, for a model with one input; or an object
/// with a list for each input. Without it, zeros are sent in the shape that the model's metadata tells.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  gantry infer iris\n  gantry infer iris '[[5.1, 3.5, 1.4, 0.2]]'\n  \
    gantry infer iris -f request.json --mode grpc\n  gantry infer iris --seconds 10 --concurrency 16\n  \
    gantry infer iris --show curl")]
pub(crate) struct Args {
    /// The model
    #[arg(value_name = "MODEL")]
    model: String,
    /// JSON, or - for stdin
    #[arg(value_name = "DATA", conflicts_with_all = ["data_flag", "file"])]
    data: Option<String>,
    /// JSON, as the positional DATA
    #[arg(long = "data", short = 'd', value_name = "JSON", conflicts_with = "file")]
    data_flag: Option<String>,
    /// Read the JSON from a file, or from stdin for -
    #[arg(short, long = "filename", value_name = "FILE")]
    file: Option<PathBuf>,
    /// The protocol
    #[arg(long, alias = "inference-mode", value_enum, default_value_t = Mode::Rest)]
    mode: Mode,
    /// How many requests to send
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    iterations: Option<u64>,
    /// For how long to send requests, in seconds or as 500ms, 2m
    #[arg(short = 't', long, value_name = "TIME", value_parser = duration::parse)]
    seconds: Option<Duration>,
    /// How many requests are under way at once, each on a connection of its own
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    concurrency: u32,
    /// A header to send along; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = header)]
    header: Vec<(HeaderName, HeaderValue)>,
    /// Print the headers of request and answer on stderr
    #[arg(long)]
    show_headers: bool,
    /// Print what would ask the same, and ask nothing
    #[arg(long, value_enum, value_name = "LANGUAGE")]
    show: Option<Language>,
    /// How the answer is printed
    #[arg(short, long, value_enum, default_value_t = Form::Json, value_name = "FORMAT")]
    output: Form,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// The answer as it came
    Json,
    /// A row for each output
    Table,
}

fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text
        .split_once(['=', ':'])
        .ok_or_else(|| format!("\"{}\" is not NAME=VALUE", text.escape_debug()))?;
    let name = name.trim();
    let parsed = HeaderName::try_from(name)
        .map_err(|_| format!("\"{}\" is not a header's name", name.escape_debug()))?;
    let value = HeaderValue::from_str(value.trim())
        .map_err(|_| format!("the value of {name} cannot stand in a header: it must be one line of text"))?;
    Ok((parsed, value))
}

pub(crate) async fn run(global: &Global, args: &Args) -> Result<(), Failure> {
    gantry_api::check_name(&args.model).map_err(|e| Failure::usage(format!("model name {e}")))?;
    let address = Address::parse(&global.inference(), 9000, "--inference")?;
    let mut headers: HeaderMap = args.header.iter().cloned().collect();
    // The reference's mesh routes by this header.
    headers
        .entry("seldon-model")
        .or_insert(HeaderValue::from_str(&args.model).map_err(|e| Failure::usage(e.to_string()))?);
    let given = given(args)?;
    let mut target = Target::new(&address, args.mode, &args.model, &headers, global.call_timeout());
    let payload = match given.as_deref().map(Payload::given).transpose()? {
        Some(Some(payload)) => payload,
        // Values without names and types need the metadata, and so does nothing at all.
        rest => {
            let metadata = target.metadata().await.map_err(|t| t.failure(&args.model))?;
            match (rest, given.as_deref()) {
                (Some(None), Some(text)) => Payload::from_values(text, &metadata)?,
                _ => Payload::zeros(&metadata)?,
            }
        }
    };
    if let Some(language) = args.show {
        let text = show::show(language, args.mode, &address, &args.model, &headers, &payload)?;
        return emit(text);
    }
    target.set_payload(&payload)?;
    if args.iterations.is_some() || args.seconds.is_some() || args.concurrency > 1 {
        let plan = load::Plan {
            iterations: args
                .iterations
                .or_else(|| args.seconds.is_none().then_some(u64::from(args.concurrency))),
            time: args.seconds,
            concurrency: args.concurrency,
        };
        let result = load::run(&target, &plan).await;
        if let Some(answer) = &result.first {
            print(args, answer)?;
        }
        say(&result.summary());
        return match result.worst {
            Some(trouble) => Err(Failure::said(trouble.failure(&args.model).exit)),
            None => Ok(()),
        };
    }
    if args.show_headers {
        say(&target.request_head());
    }
    let answer = target.infer().await;
    if args.show_headers {
        let headers = match &answer {
            Ok(answer) => &answer.headers,
            Err(trouble) => &*trouble.headers,
        };
        for (name, value) in headers {
            say(&format!("< {name}: {}", String::from_utf8_lossy(value.as_bytes())));
        }
    }
    print(args, &answer.map_err(|t| t.failure(&args.model))?)
}

/// What the user gave, wherever it was.
fn given(args: &Args) -> Result<Option<Bytes>, Failure> {
    let stdin = Path::new("-");
    let file = match (&args.data, &args.data_flag, &args.file) {
        (Some(text), ..) if text == "-" => stdin,
        (Some(text), ..) | (_, Some(text), _) => return Ok(Some(Bytes::from(text.clone()))),
        (_, _, Some(file)) => file,
        _ => return Ok(None),
    };
    let mut bytes = Vec::new();
    let read = if file == stdin {
        std::io::stdin().lock().take(LARGEST + 1).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(file).and_then(|f| f.take(LARGEST + 1).read_to_end(&mut bytes))
    };
    let name = file.display();
    read.map_err(|e| Failure::usage(format!("{name} cannot be read: {e}")))?;
    if bytes.len() as u64 > LARGEST {
        return Err(Failure::usage(format!("{name} has more than {LARGEST} bytes")));
    }
    Ok(Some(bytes.into()))
}

fn print(args: &Args, answer: &Answer) -> Result<(), Failure> {
    let json = answer.json()?;
    if args.output == Form::Json {
        emit(&json)?;
        return if json.ends_with(b"\n") { Ok(()) } else { emit("\n") };
    }
    let value: serde_json::Value =
        serde_json::from_slice(&json).map_err(|e| Failure::failed(format!("the answer is not JSON: {e}")))?;
    let mut table = Table::new(&["OUTPUT", "DATATYPE", "SHAPE", "DATA"]);
    for output in value.get("outputs").and_then(|o| o.as_array()).into_iter().flatten() {
        let text = |key: &str| match output.get(key) {
            Some(serde_json::Value::String(text)) => text.clone(),
            Some(other) => shorten(&other.to_string(), 120),
            None => String::new(),
        };
        let cells = ["name", "datatype", "shape", "data"].map(|key| (text(key), Tone::Plain));
        table.row(cells.into());
    }
    emit_line(table.render(Style::stdout()).trim_end())
}

fn shorten(text: &str, longest: usize) -> String {
    if text.chars().count() <= longest {
        return text.to_owned();
    }
    text.chars().take(longest).chain(['…']).collect()
}
