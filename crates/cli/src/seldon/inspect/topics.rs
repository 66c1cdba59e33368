//! Data of pipelines in Kafka topics.

use super::{Expression, Row, Side, selected};
use crate::{
    error::CommandError,
    seldon::{args::Inspect, endpoints::Endpoints, error},
};
use gantry_gateway::kafka::{self, Client, Consumed, Settings, decode, headers};
use gantry_oip::{InferRequest, InferResponse, InferTensor, Limits, rest};
use serde_json::{Map, Value, json};
use std::{sync::Arc, time::Duration};

/// For one topic.
const READ_TIMEOUT: Duration = Duration::from_secs(20);
/// Records of each partition that are searched for a request.
const SEARCHED: u32 = 1000;

/// The last records of the topics, in the order of the data flow.
pub(super) async fn rows(
    endpoints: &Endpoints,
    expression: &Expression<'_>,
    args: &Inspect,
) -> Result<Vec<Row>, CommandError> {
    let failed = |message: String| error::failed(message);
    let environment = |name: &str| std::env::var(name).ok();
    let settings = match (&args.kafka_config_path, &args.kafka_broker) {
        (Some(path), _) => Settings::read(path, &args.namespace, &environment),
        (None, broker) => {
            Settings::with_broker(broker.as_deref().unwrap_or_default(), &args.namespace, &environment)
        }
    };
    let settings = Arc::new(settings.map_err(|error| failed(error.to_string()))?);
    let connecting = tokio::time::timeout(READ_TIMEOUT, Client::connect(&settings)).await;
    let client =
        connecting.map_err(|_| failed("the broker did not answer in time".to_owned()))?.map_err(failed)?;
    let mut rows = Vec::new();
    for (topic, side) in topics(endpoints, expression, args, &settings).await? {
        // Topics of models have data of all pipelines.
        let is_shared = topic.contains(".model.");
        let count =
            if args.request_id.is_none() && !is_shared { args.offset } else { SEARCHED.max(args.offset) };
        let records = client.read_last(&topic, count, READ_TIMEOUT).await.map_err(failed)?;
        let of_pipeline = |record: &&Consumed| {
            !is_shared || headers::get(&record.headers, headers::PIPELINE) == Some(expression.pipeline)
        };
        let found = records
            .iter()
            .rev()
            .filter(of_pipeline)
            .map(|record| row(&topic, side, record, expression, args));
        let is_wanted = |row: &Row| args.request_id.as_ref().is_none_or(|id| *id == row.request_id);
        let limit = usize::try_from(args.offset).unwrap_or(usize::MAX);
        rows.extend(found.filter(is_wanted).take(limit));
    }
    Ok(rows)
}

/// The steps are those of the scheduler, unless the expression names one.
async fn topics(
    endpoints: &Endpoints,
    expression: &Expression<'_>,
    args: &Inspect,
    settings: &Settings,
) -> Result<Vec<(String, Side)>, CommandError> {
    let side_of = |side: Side| match side {
        Side::Inputs => kafka::Side::Inputs,
        Side::Outputs => kafka::Side::Outputs,
    };
    let both = [Side::Inputs, Side::Outputs];
    let of_step = |step: &str| both.map(|side| (settings.topics.model(step, side_of(side)), side));
    let of_pipeline = |side| (settings.topics.pipeline(expression.pipeline, side_of(side)), side);
    let mut topics = Vec::new();
    match (expression.step, expression.side) {
        (Some(step), _) => topics.extend(of_step(step)),
        (None, Some(side)) => topics.push(of_pipeline(side)),
        (None, None) => {
            let scheduler = endpoints.scheduler(args.scheduler_host.as_deref(), None).await?;
            let steps = scheduler.pipeline_steps(expression.pipeline).await?;
            topics.push(of_pipeline(Side::Inputs));
            topics.extend(steps.iter().flat_map(|step| of_step(step)));
            topics.push(of_pipeline(Side::Outputs));
        }
    }
    topics.retain(|(_, side)| expression.side.is_none_or(|wanted| wanted == *side));
    Ok(topics)
}

fn row(topic: &str, side: Side, record: &Consumed, expression: &Expression<'_>, args: &Inspect) -> Row {
    let kind = if side == Side::Inputs { kafka::Side::Inputs } else { kafka::Side::Outputs };
    let tensors = match decode(record.value.clone(), &record.headers, kind, &Limits::default()) {
        Ok(decoded) => decoded.tensors.into_iter().map(tensor).collect(),
        Err(error) => json!([{ "error": error.message }]),
    };
    let written =
        record.headers.iter().map(|(name, value)| format!("{name}={}", String::from_utf8_lossy(value)));
    Row {
        topic: topic.to_owned(),
        request_id: kafka::request_id(record),
        data: Value::Object(Map::from_iter([(side.name().to_owned(), selected(tensors, expression.tensor))])),
        headers: if args.verbose { written.collect::<Vec<_>>().join(" ") } else { String::new() },
    }
}

/// The form of the Open Inference Protocol; without `data` if it is no text.
fn tensor(tensor: InferTensor) -> Value {
    let (name, shape) = (tensor.tensor.name().to_owned(), tensor.tensor.shape().to_vec());
    let datatype = tensor.tensor.datatype().name();
    let response = InferResponse { outputs: vec![tensor], ..InferResponse::default() };
    let encoded = rest::encode_response(&response, &InferRequest::default()).ok();
    let parsed: Option<Value> = encoded.and_then(|encoded| serde_json::from_slice(&encoded.body).ok());
    parsed
        .and_then(|mut parsed| Some(parsed.get_mut("outputs")?.get_mut(0)?.take()))
        .unwrap_or_else(|| json!({ "name": name, "shape": shape, "datatype": datatype }))
}
