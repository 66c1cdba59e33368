//! One record: decode, execute, write the results, and wait for their acknowledgement.

use super::{Context, ExecuteError, Execution, Executor, RunRequest, StepRecord, client::ProduceError};
use crate::{
    encoding::{self, Tensors},
    headers::{self, RunHeaders},
    key::Key,
    record::{Consumed, Produced},
    settings::Settings,
    topics::Side,
};
use bytes::Bytes;
use futures::FutureExt as _;
use gantry_oip::Limits;
use http::HeaderMap;
use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};
use tokio::time::Instant;

const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// Bytes of an error's text.
const MAX_ERROR: usize = 4 << 10;

/// Delays between retries: doubled each time, up to a maximum.
pub(super) struct Backoff(Duration);

impl Backoff {
    pub(super) const fn new() -> Self {
        Self(BACKOFF_MIN)
    }

    pub(super) async fn wait(&mut self) {
        tokio::time::sleep(self.0).await;
        self.0 = (self.0 * 2).min(BACKOFF_MAX);
    }
}

/// Returns when the results of a record are in the log: its outputs or its error, and the data of its steps. Until then the
/// record is retried; dropping the future abandons it, and another worker reads it again.
pub(super) async fn process<E: Executor>(context: &Context<E>, pipeline: &Arc<str>, record: &Consumed) {
    let request_id = request_id(record);
    let forwarded = headers::forwarded(&record.headers);
    let answer = Answer { context, pipeline, record, request_id: &request_id, forwarded: &forwarded };
    let limits = Limits { body: context.settings.producer.max_bytes as usize, ..Limits::default() };
    let decoded = encoding::decode(record.value.clone(), &record.headers, Side::Inputs, &limits);
    let (execution, id) = match decoded {
        Ok(tensors) => {
            let id = tensors.id.clone();
            (execute(context, pipeline, &request_id, &forwarded, tensors).await, id)
        }
        Err(error) => {
            let message = format!("{pipeline} : {}", error.message);
            let error = ExecuteError { is_transient: false, step: Arc::clone(pipeline), message };
            (Execution { version: 0, steps: Vec::new(), result: Err(error) }, String::new())
        }
    };
    let is_answered = execution.result.is_ok();
    if let Err(error) = &execution.result {
        tracing::warn!(
            pipeline = &**pipeline,
            request_id,
            step = &*error.step,
            "record failed: written to the errors topic"
        );
    }
    if let Err(error) = answer.write(answer.records(execution, &id)).await {
        // A result that is too large, for example. The error is small.
        let message = format!("{pipeline} : the result cannot be written: {error}");
        let error = ExecuteError { is_transient: false, step: Arc::clone(pipeline), message };
        tracing::warn!(pipeline = &**pipeline, request_id, error = %error, "result cannot be written");
        if let Err(error) = answer.write(vec![answer.error(0, &error)]).await {
            tracing::error!(pipeline = &**pipeline, request_id, %error, "the error of a record cannot be written");
        }
        context.metrics.record("failed");
        return;
    }
    context.metrics.record(if is_answered { "answered" } else { "failed" });
}

/// Executes until it succeeds, fails for good, or the time for retries is over.
async fn execute<E: Executor>(
    context: &Context<E>,
    pipeline: &Arc<str>,
    request_id: &str,
    forwarded: &HeaderMap,
    tensors: Tensors,
) -> Execution {
    let give_up = Instant::now() + context.settings.worker.retry_timeout();
    let request = RunRequest {
        pipeline: Arc::clone(pipeline),
        request_id: request_id.to_owned(),
        headers: forwarded.clone(),
        parameters: tensors.parameters,
        inputs: tensors.tensors,
    };
    let mut backoff = Backoff::new();
    loop {
        let running = AssertUnwindSafe(context.executor.execute(request.clone())).catch_unwind();
        let execution = running.await.unwrap_or_else(|_| {
            let message = format!("{pipeline} : the execution failed; see the log");
            let error = ExecuteError { is_transient: false, step: Arc::clone(pipeline), message };
            Execution { version: 0, steps: Vec::new(), result: Err(error) }
        });
        match &execution.result {
            Err(error) if error.is_transient && Instant::now() < give_up => {
                tracing::debug!(pipeline = &**pipeline, request_id, step = &*error.step, %error, "retrying a record");
                context.metrics.retries.inc();
                backoff.wait().await;
            }
            _ => return execution,
        }
    }
}

/// The ID of a request: of the key, of the header, or the position of the record, which is the same each time it is read.
pub fn request_id(record: &Consumed) -> String {
    let of_key = record.key.as_deref().and_then(Key::parse).map(|key| key.request_id.to_owned());
    let is_valid = |id: &&str| (1..=128).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic());
    let of_header = || headers::get(&record.headers, headers::REQUEST_ID).filter(is_valid).map(str::to_owned);
    of_key.filter(|id| is_valid(&id.as_str())).or_else(of_header).unwrap_or_else(|| {
        let Consumed { topic, partition, offset, .. } = record;
        format!("{topic}-{partition}-{offset}")
    })
}

/// The error of a record that cannot be read.
pub(super) fn dead_letter(settings: &Settings, pipeline: &str, record: &Consumed, message: &str) -> Produced {
    let (request_id, forwarded) = (request_id(record), headers::forwarded(&record.headers));
    let headers = RunHeaders { pipeline, version: 0, request_id: &request_id, forwarded: &forwarded };
    error_record(settings, record, &headers, pipeline, message)
}

fn error_record(
    settings: &Settings,
    record: &Consumed,
    headers: &RunHeaders<'_>,
    step: &str,
    message: &str,
) -> Produced {
    let mut headers = headers.with_routes([]);
    let Consumed { topic, partition, offset, key, .. } = record;
    headers.push((headers::ERRORS.to_owned(), Bytes::copy_from_slice(step.as_bytes())));
    headers.push((headers::SOURCE.to_owned(), format!("{topic}/{partition}/{offset}").into()));
    let mut end = message.len().min(MAX_ERROR);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    let text = message.get(..end).unwrap_or_default();
    Produced {
        topic: settings.topics.errors(),
        partition: reply_partition(key.as_ref()),
        key: key.clone(),
        value: Bytes::copy_from_slice(text.as_bytes()),
        headers,
    }
}

fn reply_partition(key: Option<&Bytes>) -> Option<i32> {
    key.and_then(|key| Key::parse(key)).map(|key| key.reply_partition)
}

/// What the records of one answer have in common.
struct Answer<'a, E> {
    context: &'a Context<E>,
    pipeline: &'a Arc<str>,
    record: &'a Consumed,
    request_id: &'a str,
    forwarded: &'a HeaderMap,
}

impl<E: Executor> Answer<'_, E> {
    /// The data of the steps, then the outputs or the error.
    fn records(&self, execution: Execution, id: &str) -> Vec<Produced> {
        let settings = &self.context.settings;
        let Execution { version, steps, result } = execution;
        let headers = RunHeaders {
            pipeline: self.pipeline,
            version,
            request_id: self.request_id,
            forwarded: self.forwarded,
        };
        let routes: Vec<_> = steps.iter().filter_map(|step| step.route.clone()).collect();
        let of = |tensors| Tensors { id: id.to_owned(), tensors, ..Tensors::default() };
        let mut records = Vec::with_capacity(2 * steps.len() + 1);
        for StepRecord { step, inputs, outputs, route } in steps {
            if !settings.worker.step_topics {
                break;
            }
            let headers = headers.with_routes(&route);
            let value = encoding::encode_inputs(&step, of(inputs));
            records.push(self.produced(settings.topics.model(&step, Side::Inputs), value, headers.clone()));
            if let Some(outputs) = outputs {
                let value = encoding::encode_outputs(&step, of(outputs));
                records.push(self.produced(settings.topics.model(&step, Side::Outputs), value, headers));
            }
        }
        match result {
            Ok(Some(outputs)) => {
                let value = encoding::encode_outputs("", of(outputs));
                let topic = settings.topics.pipeline(self.pipeline, Side::Outputs);
                records.push(self.produced(topic, value, headers.with_routes(&routes)));
            }
            Ok(None) => {}
            Err(error) => records.push(self.error(version, &error)),
        }
        records
    }

    fn error(&self, version: u32, error: &ExecuteError) -> Produced {
        let headers = RunHeaders {
            pipeline: self.pipeline,
            version,
            request_id: self.request_id,
            forwarded: self.forwarded,
        };
        error_record(&self.context.settings, self.record, &headers, &error.step, &error.message)
    }

    fn produced(&self, topic: String, value: Bytes, headers: headers::Headers) -> Produced {
        let key = self.record.key.clone();
        let partition = reply_partition(key.as_ref());
        Produced { topic, partition, key, value, headers }
    }

    /// Retries while the broker does not acknowledge; the error is of the records.
    async fn write(&self, records: Vec<Produced>) -> Result<(), ProduceError> {
        let mut backoff = Backoff::new();
        loop {
            match self.context.client.produce(records.clone()).await {
                Err(error) if !error.is_permanent => {
                    tracing::warn!(pipeline = &**self.pipeline, %error, "the broker does not acknowledge: retrying");
                    self.context.metrics.retries.inc();
                    backoff.wait().await;
                }
                done => return done,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_id_is_taken_from_key_header_or_position() {
        let record = |key: Option<&'static [u8]>, header: Option<&'static str>| Consumed {
            topic: "t".into(),
            partition: 2,
            offset: 7,
            key: key.map(Bytes::from_static),
            value: Bytes::new(),
            headers: header
                .map(|id| (headers::REQUEST_ID.to_owned(), Bytes::from_static(id.as_bytes())))
                .into_iter()
                .collect(),
        };
        let table = [
            (Some(&b"0.p.abc"[..]), Some("header"), "abc"),
            (Some(b"0.p.a b"), Some("header"), "header"),
            (Some(b"customer-1"), Some("header"), "header"),
            (Some(b"customer-1"), Some("bad id"), "t-2-7"),
            (Some(b"\xff"), None, "t-2-7"),
            (None, None, "t-2-7"),
        ];
        for (key, header, expected) in table {
            assert_eq!(request_id(&record(key, header)), expected);
        }
    }
}
