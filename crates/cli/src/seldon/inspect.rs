//! `pipeline inspect`: the last requests of a pipeline, from the ring of the gateway or from Kafka topics.

#[cfg(feature = "kafka")]
mod topics;

use super::{
    args::{Inspect, InspectFormat},
    endpoints::Endpoints,
    error,
    pretty_json::indent,
};
use crate::{
    client::{Connection, HttpError, error_text},
    error::{CommandError, Exit},
    output::{emit_line, print_stderr},
};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Characters of a truncated row.
const TRUNCATED: usize = 80;

/// What is inspected: `pipeline[.step[.inputs|outputs[.tensor]]]` or `pipeline[.inputs|outputs[.tensor]]`.
#[derive(Debug, PartialEq, Eq)]
struct Expression<'a> {
    pipeline: &'a str,
    step: Option<&'a str>,
    side: Option<Side>,
    tensor: Option<&'a str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Inputs,
    Outputs,
}

impl Side {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "inputs" => Some(Self::Inputs),
            "outputs" => Some(Self::Outputs),
            _ => None,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Inputs => "inputs",
            Self::Outputs => "outputs",
        }
    }
}

impl<'a> Expression<'a> {
    fn parse(text: &'a str) -> Result<Self, CommandError> {
        let mut parts: Vec<&str> = text.split('.').collect();
        let pipeline = parts.remove(0);
        let step = parts.first().copied().filter(|p| Side::parse(p).is_none());
        let rest = parts.get(usize::from(step.is_some())..).unwrap_or_default();
        let (side, tensor) = match rest {
            [] => (None, None),
            [side] => (Side::parse(side), None),
            [side, tensor @ ..] => (Side::parse(side), Some(tensor)),
        };
        // A tensor's name may contain dots.
        let tensor = tensor.filter(|t| !t.is_empty()).and_then(|t| {
            let length: usize = t.iter().map(|part| part.len() + 1).sum::<usize>() - 1;
            text.get(text.len() - length..)
        });
        let valid = text.split('.').all(|part| !part.is_empty()) && (rest.is_empty() || side.is_some());
        if !valid {
            return Err(error::usage(format!(
                "\"{}\" is not PIPELINE[.STEP[.inputs|outputs[.TENSOR]]]",
                text.escape_debug()
            )));
        }
        Ok(Self { pipeline, step, side, tensor })
    }
}

#[derive(Debug, Deserialize)]
struct Runs {
    runs: Vec<Run>,
}

#[derive(Debug, Deserialize)]
struct Run {
    request_id: String,
    version: u32,
    ms: f64,
    error: Option<String>,
    steps: Vec<Step>,
    input_tensors: Option<Value>,
    output_tensors: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct Step {
    #[serde(rename = "step")]
    name: String,
    #[serde(default)]
    inputs: Vec<String>,
    #[serde(default)]
    outputs: Vec<String>,
    input_tensors: Option<Value>,
    output_tensors: Option<Value>,
}

/// A row: data of a topic in one request.
#[derive(Debug, PartialEq)]
struct Row {
    topic: String,
    request_id: String,
    data: Value,
    headers: String,
}

pub(super) async fn run(endpoints: &Endpoints, args: &Inspect) -> Result<(), CommandError> {
    let expression = Expression::parse(&args.expression)?;
    gantry_api::check_name(expression.pipeline).map_err(|e| error::usage(format!("pipeline {e}")))?;
    #[cfg(feature = "kafka")]
    if args.kafka_broker.is_some() || args.kafka_config_path.is_some() {
        for row in topics::rows(endpoints, &expression, args).await? {
            emit_line(&line(&row, args))?;
        }
        return Ok(());
    }
    let address = endpoints.admin()?;
    let mut connection = Connection::new(address.clone(), endpoints.call_timeout);
    let path = format!("/pipelines/{}/runs", expression.pipeline);
    let response = connection.get(&path).await.map_err(|e| match e {
        HttpError::Refused => CommandError::new(
            Exit::Unavailable,
            format!("Error: no admin endpoint at {address}: start one with `gantry up`, or set GANTRY_ADMIN"),
        ),
        HttpError::Timeout(time) => {
            CommandError::new(Exit::Timeout, format!("Error: {address} did not answer within {time:?}"))
        }
        HttpError::Failed(why) => {
            CommandError::new(Exit::Unavailable, format!("Error: connection to {address} failed: {why}"))
        }
    })?;
    match response.status() {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND => {
            let message = format!("Error: pipeline {} not found at {address}", expression.pipeline);
            return Err(CommandError::new(Exit::NotFound, message));
        }
        status => return Err(error::failed(error_text(status, response.body()))),
    }
    let Runs { runs } = serde_json::from_slice(response.body())
        .map_err(|e| error::failed(format!("invalid response of {address}: {e}")))?;
    let wanted = |run: &&Run| args.request_id.as_ref().is_none_or(|id| *id == run.request_id);
    let limit = usize::try_from(args.offset).unwrap_or(usize::MAX);
    let runs: Vec<&Run> = runs.iter().filter(wanted).take(limit).collect();
    if runs.is_empty() {
        print_stderr("No requests: the gateway keeps the last 16 of each pipeline.");
        return Ok(());
    }
    if runs.iter().all(|run| run.input_tensors.is_none()) {
        print_stderr(
            "Names only: to keep tensors, annotate the pipeline with gantry.dev/keep-payloads: \"true\", or start the \
             gateway with --keep-pipeline-payloads.",
        );
    }
    for run in runs {
        for row in rows(&expression, &args.namespace, run, args.verbose) {
            emit_line(&line(&row, args))?;
        }
    }
    Ok(())
}

fn line(row: &Row, args: &Inspect) -> String {
    let raw = row.data.to_string();
    let mut data = match args.format {
        InspectFormat::Raw => raw,
        InspectFormat::Json => String::from_utf8(indent(raw.as_bytes())).unwrap_or(raw),
    };
    if args.truncate && data.chars().count() > TRUNCATED {
        data = data.chars().take(TRUNCATED).chain(['…']).collect();
    }
    let headers = if row.headers.is_empty() { String::new() } else { format!("\t[{}]", row.headers) };
    // Text of clients must not control the terminal; tabs and line breaks are the form.
    let plain = |c: char| if c.is_control() && !matches!(c, '\n' | '\t') { '\u{fffd}' } else { c };
    format!("{}\t{}\t{data}{headers}", row.topic, row.request_id).chars().map(plain).collect()
}

/// The rows of one request, in the order of the data flow.
fn rows(expression: &Expression<'_>, namespace: &str, run: &Run, verbose: bool) -> Vec<Row> {
    let headers = if verbose {
        let error = run.error.as_ref().map(|e| format!(" error={e}")).unwrap_or_default();
        format!("x-pipeline-version={} ms={}{error}", run.version, run.ms)
    } else {
        String::new()
    };
    let topic =
        |kind: &str, name: &str, side: Side| format!("seldon.{namespace}.{kind}.{name}.{}", side.name());
    let mut found: Vec<(String, Side, Value)> = Vec::new();
    let pipeline = expression.pipeline;
    if expression.step.is_none() {
        let inputs = run.input_tensors.clone().unwrap_or_else(|| json!([]));
        found.push((topic("pipeline", pipeline, Side::Inputs), Side::Inputs, inputs));
    }
    if expression.step.is_some() || expression.side.is_none() {
        for step in run.steps.iter().filter(|s| expression.step.is_none_or(|name| s.name == name)) {
            let names =
                |names: &[String]| names.iter().map(|name| json!({ "name": name })).collect::<Value>();
            let inputs = step.input_tensors.clone().unwrap_or_else(|| names(&step.inputs));
            let outputs = step.output_tensors.clone().unwrap_or_else(|| names(&step.outputs));
            found.push((topic("model", &step.name, Side::Inputs), Side::Inputs, inputs));
            found.push((topic("model", &step.name, Side::Outputs), Side::Outputs, outputs));
        }
    }
    if expression.step.is_none() {
        let outputs = run.output_tensors.clone().unwrap_or_else(|| json!([]));
        found.push((topic("pipeline", pipeline, Side::Outputs), Side::Outputs, outputs));
    }
    found
        .into_iter()
        .filter(|(_, side, _)| expression.side.is_none_or(|wanted| wanted == *side))
        .map(|(topic, side, tensors)| Row {
            topic,
            request_id: run.request_id.clone(),
            data: Value::Object(Map::from_iter([(
                side.name().to_owned(),
                selected(tensors, expression.tensor),
            )])),
            headers: headers.clone(),
        })
        .collect()
}

fn selected(tensors: Value, name: Option<&str>) -> Value {
    match (tensors, name) {
        (Value::Array(tensors), Some(name)) => tensors.into_iter().filter(|t| t["name"] == name).collect(),
        (tensors, _) => tensors,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expression_names_pipeline_step_side_and_tensor() {
        let parsed = |pipeline, step, side, tensor| Some(Expression { pipeline, step, side, tensor });
        for (text, expected) in [
            ("p", parsed("p", None, None, None)),
            ("p.inputs", parsed("p", None, Some(Side::Inputs), None)),
            ("p.a", parsed("p", Some("a"), None, None)),
            ("p.a.outputs", parsed("p", Some("a"), Some(Side::Outputs), None)),
            ("p.a.outputs.y", parsed("p", Some("a"), Some(Side::Outputs), Some("y"))),
            ("p.outputs.y.z", parsed("p", None, Some(Side::Outputs), Some("y.z"))),
            ("", None),
            ("p.", None),
            ("p.a.b", None),
            (".a", None),
        ] {
            assert_eq!(Expression::parse(text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn rows_follow_the_data_and_the_expression() {
        let run: Run = serde_json::from_value(json!({
            "request_id": "r1", "version": 2, "ms": 1.5, "time_ms": 1, "skipped": [],
            "steps": [{ "step": "a", "ms": 1.0, "inputs": ["x"], "outputs": ["y", "z"] }],
        }))
        .unwrap();
        let shown = |text: &str| {
            let rows = rows(&Expression::parse(text).unwrap(), "default", &run, false);
            rows.iter().map(|r| format!("{} {}", r.topic, r.data)).collect::<Vec<_>>()
        };
        assert_eq!(
            shown("p"),
            [
                r#"seldon.default.pipeline.p.inputs {"inputs":[]}"#,
                r#"seldon.default.model.a.inputs {"inputs":[{"name":"x"}]}"#,
                r#"seldon.default.model.a.outputs {"outputs":[{"name":"y"},{"name":"z"}]}"#,
                r#"seldon.default.pipeline.p.outputs {"outputs":[]}"#,
            ]
        );
        assert_eq!(shown("p.a.outputs.z"), [r#"seldon.default.model.a.outputs {"outputs":[{"name":"z"}]}"#]);
        assert_eq!(shown("p.other"), [] as [&str; 0]);
        let verbose = rows(&Expression::parse("p.a.inputs").unwrap(), "ml", &run, true);
        assert_eq!(verbose[0].headers, "x-pipeline-version=2 ms=1.5");
        assert_eq!(verbose[0].topic, "seldon.ml.model.a.inputs");
    }
}
