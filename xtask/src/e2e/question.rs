//! A request for a model, and the answer that is right.

use crate::{
    Failure,
    bench::wire::http::{self, Connection},
    k8s,
};
use serde_json::{Value, json};
use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

/// How long an answer may take.
const DEADLINE: Duration = Duration::from_secs(5);

/// A question to a model. A model is a function: what it answered first it has to answer always.
#[derive(Clone, Debug)]
pub(super) struct Question {
    pub(super) model: &'static str,
    request: Vec<u8>,
    outputs: Value,
}

/// An iris of the kind setosa, which is number 0.
const IRIS: &str = r#"{"inputs":[{"name":"X","shape":[1,4],"datatype":"FP32","data":[5.1,3.5,1.4,0.2]}]}"#;
/// A large payment at night, far from home, on a new account: more likely than not it is fraud.
const FRAUD: &str =
    r#"{"inputs":[{"name":"input","shape":[1,4],"datatype":"FP32","data":[900.0,2.0,200.0,1.0]}]}"#;

impl Question {
    /// Which iris is this?
    pub(super) fn iris(address: SocketAddr) -> Result<Self, Failure> {
        Self::learn("iris", IRIS, address, |outputs| outputs.pointer("/0/data/0") == Some(&json!(0)))
    }

    /// Is this payment fraud?
    pub(super) fn fraud(address: SocketAddr) -> Result<Self, Failure> {
        Self::learn("fraud", FRAUD, address, |outputs| {
            outputs.pointer("/0/data/0").and_then(Value::as_f64).is_some_and(|share| share > 0.5)
        })
    }

    /// Asks until there is an answer (a Service answers a moment after its pods are Ready), which has to be right.
    fn learn(
        model: &'static str,
        body: &str,
        address: SocketAddr,
        right: fn(&Value) -> bool,
    ) -> Result<Self, Failure> {
        let request = http::post(&format!("/v2/models/{model}/infer"), "", body);
        let mut question = Self { model, request, outputs: Value::Null };
        let mut last = None;
        let waited = k8s::until(&format!("an answer of {model}"), 20, || {
            last = Some(question.answer(address, &mut None));
            matches!(last, Some(Ok(_)))
        });
        match last {
            Some(Ok(outputs)) if right(&outputs) => {
                question.outputs = outputs;
                Ok(question)
            }
            Some(Ok(outputs)) => Err(format!("a wrong answer of {model}: {outputs}").into()),
            Some(Err(failure)) => Err(format!("no answer of {model}: {failure}").into()),
            None => Err(waited.err().unwrap_or_else(|| "nobody was asked".into())),
        }
    }

    /// Asks, and compares with what was answered first.
    pub(super) fn ask(&self, address: SocketAddr, kept: &mut Option<Connection>) -> Result<(), Failure> {
        let outputs = self.answer(address, kept)?;
        if outputs == self.outputs { Ok(()) } else { Err(format!("a wrong answer: {outputs}").into()) }
    }

    /// Asks on this connection, which is opened when there is none and stays when it may.
    fn answer(&self, address: SocketAddr, kept: &mut Option<Connection>) -> Result<Value, Failure> {
        let begun = Instant::now();
        let mut connection = match kept.take().filter(|connection| !connection.is_closed()) {
            Some(connection) => connection,
            None => Connection::open_within(address, DEADLINE, DEADLINE)
                .map_err(|e| format!("connecting: {e}"))?,
        };
        connection.send(&self.request)?;
        let (status, body) = connection.receive()?;
        let mut said: Value = serde_json::from_slice(body).unwrap_or_default();
        if status != 200 {
            let why = said.get("error").and_then(Value::as_str).unwrap_or_default();
            return Err(format!("{status} {why}").into());
        }
        if begun.elapsed() > DEADLINE {
            return Err("answered too late".into());
        }
        if !connection.is_last() {
            *kept = Some(connection);
        }
        Ok(said.get_mut("outputs").map(Value::take).unwrap_or_default())
    }
}
