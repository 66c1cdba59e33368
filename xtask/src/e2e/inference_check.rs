//! An inference request whose response is checked.

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

const TIMEOUT: Duration = Duration::from_secs(5);

/// A request to a deterministic model: every response must equal the first one.
#[derive(Clone, Debug)]
pub(super) struct InferenceCheck {
    pub(super) model: &'static str,
    request: Vec<u8>,
    outputs: Value,
}

/// An iris setosa: class 0.
pub(super) const IRIS: &str =
    r#"{"inputs":[{"name":"X","shape":[1,4],"datatype":"FP32","data":[5.1,3.5,1.4,0.2]}]}"#;
/// A payment with a fraud probability above 0.5.
const FRAUD: &str =
    r#"{"inputs":[{"name":"input","shape":[1,4],"datatype":"FP32","data":[900.0,2.0,200.0,1.0]}]}"#;

impl InferenceCheck {
    pub(super) fn iris(address: SocketAddr) -> Result<Self, Failure> {
        Self::new("iris", IRIS, address, |outputs| outputs.pointer("/0/data/0") == Some(&json!(0)))
    }

    /// The `InferenceService` iris, with this request.
    pub(super) fn iris_service(address: SocketAddr, request: Vec<u8>) -> Result<Self, Failure> {
        Self::sent("iris", request, address, |outputs| outputs.pointer("/0/data/0") == Some(&json!(0)))
    }

    pub(super) fn fraud(address: SocketAddr) -> Result<Self, Failure> {
        Self::new("fraud", FRAUD, address, |outputs| {
            outputs.pointer("/0/data/0").and_then(Value::as_f64).is_some_and(|share| share > 0.5)
        })
    }

    fn new(
        model: &'static str,
        body: &str,
        address: SocketAddr,
        is_valid: fn(&Value) -> bool,
    ) -> Result<Self, Failure> {
        let request = http::post(&format!("/v2/models/{model}/infer"), "", body);
        Self::sent(model, request, address, is_valid)
    }

    /// Sends the request until it succeeds (a Service lags behind the readiness of its pods) and validates the response.
    fn sent(
        model: &'static str,
        request: Vec<u8>,
        address: SocketAddr,
        is_valid: fn(&Value) -> bool,
    ) -> Result<Self, Failure> {
        let mut check = Self { model, request, outputs: Value::Null };
        let mut last = None;
        let waited = k8s::until(&format!("a response of {model}"), 20, || {
            last = Some(check.infer(address, &mut None));
            matches!(last, Some(Ok(_)))
        });
        match last {
            Some(Ok(outputs)) if is_valid(&outputs) => {
                check.outputs = outputs;
                Ok(check)
            }
            Some(Ok(outputs)) => Err(format!("unexpected response of {model}: {outputs}").into()),
            Some(Err(failure)) => Err(format!("no response of {model}: {failure}").into()),
            None => Err(waited.err().unwrap_or_else(|| "no request was sent".into())),
        }
    }

    /// Sends the request and compares the response with the first one.
    pub(super) fn send(&self, address: SocketAddr, kept: &mut Option<Connection>) -> Result<(), Failure> {
        let outputs = self.infer(address, kept)?;
        if outputs == self.outputs { Ok(()) } else { Err(format!("unexpected response: {outputs}").into()) }
    }

    /// Sends the request on the kept connection, or on a new one.
    fn infer(&self, address: SocketAddr, kept: &mut Option<Connection>) -> Result<Value, Failure> {
        let started = Instant::now();
        let mut connection = match kept.take().filter(|connection| !connection.is_closed()) {
            Some(connection) => connection,
            None => {
                Connection::open_within(address, TIMEOUT, TIMEOUT).map_err(|e| format!("connecting: {e}"))?
            }
        };
        connection.send(&self.request)?;
        let (status, body) = connection.receive()?;
        let mut response: Value = serde_json::from_slice(body).unwrap_or_default();
        if status != 200 {
            let error = response.get("error").and_then(Value::as_str).unwrap_or_default();
            return Err(format!("{status} {error}").into());
        }
        if started.elapsed() > TIMEOUT {
            return Err("timed out".into());
        }
        if !connection.is_last() {
            *kept = Some(connection);
        }
        Ok(response.get_mut("outputs").map(Value::take).unwrap_or_default())
    }
}
