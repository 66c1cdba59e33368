//! One record: decode, execute, write the results, and wait for their acknowledgement.

use super::{
    Context, ExecuteError, Execution, Executor, RecordSpan as _, RunRequest, StepRecord, client::ProduceError,
};
use crate::{
    dead_letter::{self, Failure},
    encoding::{self, Tensors},
    headers::{self, RunHeaders},
    key::{self, Key},
    record::{Consumed, Produced},
    settings::Settings,
    topics::Side,
};
use bytes::Bytes;
use futures::FutureExt as _;
use gantry_oip::{InferTensor, Limits};
use http::HeaderMap;
use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};
use tokio::time::Instant;

const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

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
    let mut forwarded = headers::forwarded(&record.headers);
    let mut span = context.executor.span(pipeline, &request_id, record, &mut forwarded);
    let limits = Limits { body: context.settings.producer.max_bytes as usize, ..Limits::default() };
    let decoded = encoding::decode(record.value.clone(), &record.headers, Side::Inputs, &limits);
    let (Execution { version, steps, result }, id) = match decoded {
        Ok(tensors) => {
            let id = tensors.id.clone();
            (execute(context, pipeline, &request_id, &forwarded, tensors).await, id)
        }
        Err(error) => {
            let error = of_pipeline(pipeline, &error.message);
            (Execution { version: 0, steps: Vec::new(), result: Err(error) }, String::new())
        }
    };
    let run = RunHeaders { pipeline, version, request_id: &request_id, forwarded: &forwarded };
    let answer = Answer { settings: &context.settings, record, run, id: &id };
    let (outputs, error) = match result {
        Ok(outputs) => (outputs, None),
        Err(error) => (None, Some(error)),
    };
    let written = write(context, pipeline, answer.records(steps, outputs, error.is_none())).await;
    let error = match (error, written) {
        (None, Ok(())) => {
            context.metrics.record("answered");
            return;
        }
        // A result that is too large, for example.
        (None, Err(refused)) => of_pipeline(pipeline, &format!("the result cannot be written: {refused}")),
        (Some(error), Ok(())) => error,
        (Some(error), Err(refused)) => {
            tracing::warn!(pipeline = &**pipeline, request_id, error = %refused, "data of steps cannot be written");
            error
        }
    };
    tracing::warn!(
        pipeline = &**pipeline,
        request_id,
        step = &*error.step,
        "record failed: written to the errors topic"
    );
    span.fail();
    write_dead_letter(context, pipeline, answer.failure(&error.step, &error.message).dead_letter(record))
        .await;
    context.metrics.record("failed");
}

/// A failure for good, of the pipeline and not of one of its steps.
fn of_pipeline(pipeline: &Arc<str>, message: &str) -> ExecuteError {
    let message = format!("{pipeline} : {message}");
    ExecuteError { is_transient: false, step: Arc::clone(pipeline), message }
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
            let error = of_pipeline(pipeline, "the execution failed; see the log");
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

/// What the records of one answer have in common.
struct Answer<'a> {
    settings: &'a Settings,
    record: &'a Consumed,
    run: RunHeaders<'a>,
    /// Of the message.
    id: &'a str,
}

impl Answer<'_> {
    /// The data of the steps; with an answer also the errors of steps on which it does not depend, then the outputs.
    fn records(
        &self,
        steps: Vec<StepRecord>,
        outputs: Option<Vec<InferTensor>>,
        is_answered: bool,
    ) -> Vec<Produced> {
        let Settings { topics, worker, .. } = self.settings;
        let routes: Vec<_> = steps.iter().filter_map(|step| step.route.clone()).collect();
        let of = |tensors| Tensors { id: self.id.to_owned(), tensors, ..Tensors::default() };
        let mut records = Vec::with_capacity(2 * steps.len() + 1);
        for StepRecord { step, inputs, outputs, route } in steps {
            let headers = self.run.with_routes(&route);
            if worker.step_topics {
                let value = encoding::encode_inputs(&step, of(inputs));
                records.push(self.produced(topics.model(&step, Side::Inputs), value, headers.clone()));
            }
            match outputs {
                Ok(outputs) if worker.step_topics => {
                    let value = encoding::encode_outputs(&step, of(outputs));
                    records.push(self.produced(topics.model(&step, Side::Outputs), value, headers));
                }
                // Without an answer the dead letter has the error.
                Err(message) if is_answered => {
                    records.push(self.failure(&step, &message).of_answered(self.record));
                }
                _ => {}
            }
        }
        if let Some(outputs) = outputs {
            let value = encoding::encode_outputs("", of(outputs));
            let topic = topics.pipeline(self.run.pipeline, Side::Outputs);
            records.push(self.produced(topic, value, self.run.with_routes(&routes)));
        }
        records
    }

    fn failure<'a>(&'a self, step: &'a str, message: &'a str) -> Failure<'a> {
        Failure { topics: &self.settings.topics, run: self.run.clone(), step, message }
    }

    fn produced(&self, topic: String, value: Bytes, headers: headers::Headers) -> Produced {
        let key = self.record.key.clone();
        Produced { topic, partition: key::reply_partition(key.as_ref()), key, value, headers }
    }
}

/// Retries while the broker does not acknowledge; the error is of the records.
pub(super) async fn write<E>(
    context: &Context<E>,
    pipeline: &str,
    records: Vec<Produced>,
) -> Result<(), ProduceError> {
    let mut backoff = Backoff::new();
    loop {
        match context.client.produce(&records).await {
            Err(error) if !error.is_permanent => {
                tracing::warn!(pipeline, %error, "the broker does not acknowledge: retrying");
                context.metrics.retries.inc();
                backoff.wait().await;
            }
            done => return done,
        }
    }
}

/// The same for a dead letter. If the topic does not accept it, it is written without its record.
pub(super) async fn write_dead_letter<E>(context: &Context<E>, pipeline: &str, letter: Produced) {
    let Err(refused) = write(context, pipeline, vec![letter.clone()]).await else { return };
    let reduced = dead_letter::without_record(letter, &refused.message);
    if let Err(error) = write(context, pipeline, vec![reduced]).await {
        tracing::error!(pipeline, %error, "the error of a record cannot be written");
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
                .map(|id| (headers::REQUEST_ID.into(), Bytes::from_static(id.as_bytes())))
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
