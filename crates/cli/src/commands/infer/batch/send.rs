//! Requests with several rows: retried while the server is overloaded, split when one row may be the cause of a failure.

use super::{
    super::{
        client::{InferClient, InferError},
        payload::Payload,
    },
    columns::Columns,
};
use crate::error::{CommandError, Exit};
use serde_json::Value;
use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// The flat values of each tensor, for one row.
pub(super) type Values = Vec<Vec<Value>>;

/// How long a request is repeated while the server is overloaded or unreachable.
const RETRY_FOR: Duration = Duration::from_mins(1);
const FIRST_DELAY: Duration = Duration::from_millis(100);
const MAX_DELAY: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Sender<'a> {
    columns: &'a Columns,
    prototype: InferClient,
    /// Idle connections.
    clients: Mutex<Vec<InferClient>>,
}

impl<'a> Sender<'a> {
    pub(super) fn new(client: InferClient, columns: &'a Columns) -> Self {
        Self { columns, prototype: client, clients: Mutex::default() }
    }

    /// The outputs of each row. Invalid rows are not sent. Fails if the server stays unreachable.
    pub(super) async fn send(
        &self,
        rows: Vec<Result<Values, String>>,
    ) -> Result<Vec<Result<Values, String>>, CommandError> {
        let valid: Vec<Values> = rows.iter().filter_map(|row| row.as_ref().ok()).cloned().collect();
        let mut client = self
            .clients
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop()
            .unwrap_or_else(|| self.prototype.reconnected());
        let mut answers = self.answers(&mut client, &valid).await?.into_iter();
        self.clients.lock().unwrap_or_else(PoisonError::into_inner).push(client);
        let lost = || Err("no answer for this row".to_owned());
        Ok(rows.into_iter().map(|row| row.and_then(|_| answers.next().unwrap_or_else(lost))).collect())
    }

    async fn answers(
        &self,
        client: &mut InferClient,
        rows: &[Values],
    ) -> Result<Vec<Result<Values, String>>, CommandError> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let error = match self.request(client, rows).await? {
            Ok(answers) => return Ok(answers.into_iter().map(Ok).collect()),
            Err(error) => error,
        };
        if rows.len() == 1 {
            return Ok(vec![Err(error)]);
        }
        // One row may be the cause: the others must not fail with it.
        let mut answers = Vec::with_capacity(rows.len());
        for row in rows.chunks(1) {
            answers.push(
                self.request(client, row).await?.and_then(|mut one| one.pop().ok_or_else(|| error.clone())),
            );
        }
        Ok(answers)
    }

    /// The inner error is one of these rows, the outer one of the server.
    async fn request(
        &self,
        client: &mut InferClient,
        rows: &[Values],
    ) -> Result<Result<Vec<Values>, String>, CommandError> {
        let payload = Payload { json: self.columns.request(rows).to_string().into() };
        if let Err(error) = client.set_payload(&payload) {
            return Ok(Err(error.message));
        }
        let start = Instant::now();
        let mut delay = FIRST_DELAY;
        loop {
            match client.infer().await {
                Ok(response) => return Ok(split(&response.json()?, rows.len())),
                Err(error) if matches!(error.exit, Exit::Unavailable | Exit::Timeout) => {
                    if start.elapsed() + delay > RETRY_FOR {
                        return Err(error.command_error(client.model()));
                    }
                    tokio::time::sleep(retry_after(&error).unwrap_or(delay)).await;
                    delay = (delay * 2).min(MAX_DELAY);
                }
                Err(error) if error.exit == Exit::NotFound => return Err(error.command_error(client.model())),
                Err(error) => return Ok(Err(error.line())),
            }
        }
    }
}

/// `Retry-After` in seconds, limited.
fn retry_after(error: &InferError) -> Option<Duration> {
    let seconds = error.headers.get(http::header::RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds).min(MAX_DELAY))
}

/// The outputs of a response, by row.
fn split(json: &[u8], rows: usize) -> Result<Vec<Values>, String> {
    let response: Value =
        serde_json::from_slice(json).map_err(|e| format!("the response is not JSON: {e}"))?;
    let outputs = response.get("outputs").and_then(Value::as_array).ok_or("the response has no outputs")?;
    let mut answers = vec![Values::new(); rows];
    for output in outputs {
        let mut data = Vec::new();
        flatten(output.get("data").unwrap_or(&Value::Null), &mut data);
        let first = output.get("shape").and_then(|s| s.get(0)).and_then(Value::as_u64);
        if rows > 1 && (first != Some(rows as u64) || !data.len().is_multiple_of(rows)) {
            return Err(format!(
                "output {} has no value per row: send one row per request with --batch-size 1",
                output.get("name").and_then(Value::as_str).unwrap_or_default()
            ));
        }
        let width = data.len() / rows.max(1);
        let mut values = data.into_iter();
        for answer in &mut answers {
            answer.push(values.by_ref().take(width).collect());
        }
    }
    Ok(answers)
}

fn flatten(value: &Value, data: &mut Vec<Value>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| flatten(item, data)),
        scalar => data.push(scalar.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_split_by_row() {
        for (json, rows, expected) in [
            (r#"{"outputs":[{"name":"y","shape":[2],"data":[1,2]}]}"#, 2, "Ok([[[1]], [[2]]])"),
            (
                r#"{"outputs":[{"name":"y","shape":[2,2],"data":[[1,2],[3,4]]}]}"#,
                2,
                "Ok([[[1, 2]], [[3, 4]]])",
            ),
            (r#"{"outputs":[{"name":"y","shape":[3],"data":[1,2,3]}]}"#, 1, "Ok([[[1, 2, 3]]])"),
            (r#"{"outputs":[]}"#, 2, "Ok([[], []])"),
            (
                r#"{"outputs":[{"name":"y","shape":[1],"data":[1]}]}"#,
                2,
                "Err(output y has no value per row: send one row per request with --batch-size 1)",
            ),
            ("{}", 1, "Err(the response has no outputs)"),
        ] {
            let outcome = match split(json.as_bytes(), rows) {
                Ok(rows) => format!("Ok({})", serde_json::to_string(&rows).unwrap().replace(',', ", ")),
                Err(error) => format!("Err({error})"),
            };
            assert_eq!(outcome, expected, "{json}");
        }
    }
}
