//! What a run did: its steps with their times and replicas, for traces and for `x-seldon-route`.

use super::{step::Finished, tensor::StepTensor};
use crate::policy::result_class::ResultClass;
use gantry_core::pipeline::Skipped;
use gantry_oip::{Code, Error};
use gantry_transport::Protocol;
use http::HeaderValue;
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

/// Steps of a record; a run with cycles may have more.
const MAX_STEPS: usize = 256;
/// Bytes of a trace in a header: clients limit the headers that they accept.
const MAX_TRACE: usize = 8 << 10;

#[derive(Clone, Default)]
pub(crate) struct Record {
    pub(crate) steps: Vec<StepRecord>,
    pub(crate) skipped: Vec<Skipped>,
    /// Of the pipeline, if they are kept.
    pub(crate) tensors: Option<KeptTensors>,
    /// Why the last step failed that did.
    failure: Option<Code>,
}

/// Tensors of a run or a step, charged to the budget of kept runs.
#[derive(Clone, Default)]
pub(crate) struct KeptTensors {
    pub(crate) inputs: Vec<StepTensor>,
    pub(crate) outputs: Vec<StepTensor>,
}

impl KeptTensors {
    fn bytes(&self) -> usize {
        self.inputs.iter().chain(&self.outputs).map(StepTensor::bytes).sum()
    }
}

#[derive(Clone)]
pub(crate) struct StepRecord {
    pub(crate) step: Arc<str>,
    /// From the start of the run.
    pub(crate) start: Duration,
    pub(crate) took: Duration,
    /// `<server>-<replica>`, unless no replica was selected.
    pub(crate) replica: Option<String>,
    /// `:<model>_<version>:`
    pub(crate) route: Option<HeaderValue>,
    pub(crate) inputs: Vec<String>,
    pub(crate) outputs: Vec<String>,
    pub(crate) error: Option<String>,
    /// If they are kept.
    pub(crate) tensors: Option<KeptTensors>,
}

pub(super) fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

impl StepRecord {
    pub(super) fn to_json(&self) -> Value {
        let mut fields = json!({
            "step": &*self.step,
            "start_ms": millis(self.start),
            "ms": millis(self.took),
            "inputs": self.inputs,
            "outputs": self.outputs,
        });
        let model = self.route.as_ref().and_then(|r| r.to_str().ok()).map(|r| r.trim_matches(':'));
        let optional =
            [("replica", self.replica.as_deref()), ("model", model), ("error", self.error.as_deref())];
        if let Some(fields) = fields.as_object_mut() {
            for (key, value) in optional {
                fields.extend(value.map(|value| (key.to_owned(), value.into())));
            }
        }
        fields
    }
}

impl Record {
    pub(super) fn add(&mut self, finished: &Finished) {
        self.failure = finished.failure.or(self.failure);
        if self.steps.len() < MAX_STEPS {
            self.steps.push(finished.record());
        }
    }

    /// The class of the run in the statistics of a rollout. Clients get 400 whatever made a step fail: the class is that of the
    /// model's error. A run without output failed, too.
    pub(crate) fn result_class(&self, protocol: Protocol, error: Option<&Error>) -> ResultClass {
        match error {
            None => ResultClass::Success,
            Some(error) if error.code == Code::StepFailed => {
                let code = self.failure.unwrap_or(Code::Internal);
                ResultClass::of(Protocol::Rest, code.http().as_u16())
            }
            Some(error) => ResultClass::of(protocol, protocol.code(error)),
        }
    }

    /// The routes of the steps, each once, in the order of their end.
    pub(crate) fn routes(&self) -> Vec<HeaderValue> {
        let mut routes: Vec<HeaderValue> = Vec::with_capacity(self.steps.len() + 1);
        for route in self.steps.iter().filter_map(|step| step.route.as_ref()) {
            if !routes.contains(route) {
                routes.push(route.clone());
            }
        }
        routes
    }

    /// The same record; tensors share their elements.
    #[cfg(feature = "kafka")]
    pub(crate) fn copy(&self, with_tensors: bool) -> Self {
        let mut copy = self.clone();
        if !with_tensors {
            copy.drop_tensors();
        }
        copy
    }

    pub(super) fn skipped_to_json(&self) -> Vec<Value> {
        let skipped = self.skipped.iter();
        skipped.map(|skipped| json!({ "step": &*skipped.step, "reason": skipped.reason })).collect()
    }

    pub(super) fn bytes(&self) -> usize {
        let of_steps = self.steps.iter().filter_map(|step| step.tensors.as_ref());
        of_steps.chain(&self.tensors).map(KeptTensors::bytes).sum()
    }

    pub(super) fn drop_tensors(&mut self) {
        self.tensors = None;
        self.steps.iter_mut().for_each(|step| step.tensors = None);
    }

    /// The record as JSON in ASCII. Steps that do not fit are left out, and `truncated` is set.
    pub(crate) fn trace(&self, pipeline: &str, version: u32, took: Duration) -> Option<HeaderValue> {
        let steps = self.steps.iter().map(StepRecord::to_json);
        let mut kept: Vec<Value> = steps.chain(self.skipped_to_json()).collect();
        let all = kept.len();
        loop {
            let is_step = |entry: &&Value| entry.get("reason").is_none();
            let trace = json!({
                "pipeline": pipeline,
                "version": version,
                "ms": millis(took),
                "steps": kept.iter().filter(is_step).collect::<Vec<_>>(),
                "skipped": kept.iter().filter(|entry| !is_step(entry)).collect::<Vec<_>>(),
                "truncated": kept.len() < all,
            });
            let text = ascii(&trace.to_string());
            if text.len() <= MAX_TRACE {
                return HeaderValue::from_str(&text).ok();
            }
            if kept.is_empty() {
                return None;
            }
            kept.truncate(kept.len() / 2);
        }
    }
}

/// JSON with escapes for all other characters.
fn ascii(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for unit in json.encode_utf16() {
        match u8::try_from(unit) {
            Ok(byte) if byte.is_ascii() && byte != 0x7f => out.push(char::from(byte)),
            _ => {
                out.push_str("\\u");
                for shift in [12, 8, 4, 0] {
                    let digit = u32::from(unit >> shift & 15);
                    out.push(char::from_digit(digit, 16).unwrap_or('0'));
                }
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &str, output: &str) -> StepRecord {
        StepRecord {
            step: name.into(),
            start: Duration::from_micros(100),
            took: Duration::from_micros(1250),
            replica: Some("builtin-0".into()),
            route: Some(HeaderValue::from_static(":a_1:")),
            inputs: vec!["x".into()],
            outputs: vec![output.into()],
            error: None,
            tensors: None,
        }
    }

    #[test]
    fn trace_is_json_in_ascii() {
        let skipped = vec![Skipped { step: "b".into(), reason: "tensor a.y is absent".into() }];
        let record = Record { steps: vec![step("a", "größe \u{1f600}")], skipped, ..Record::default() };
        let trace = record.trace("p", 3, Duration::from_millis(2)).unwrap();
        let parsed: serde_json::Value = serde_json::from_str(trace.to_str().unwrap()).unwrap();
        let expected = serde_json::json!({
            "pipeline": "p", "version": 3, "ms": 2.0, "truncated": false,
            "steps": [{ "step": "a", "start_ms": 0.1, "ms": 1.25, "replica": "builtin-0", "model": "a_1",
                        "inputs": ["x"], "outputs": ["größe \u{1f600}"] }],
            "skipped": [{ "step": "b", "reason": "tensor a.y is absent" }],
        });
        assert_eq!(parsed, expected);
    }

    #[test]
    fn long_trace_is_cut_to_its_limit() {
        let steps = (0..MAX_STEPS).map(|i| step(&format!("step-{i}"), &"t".repeat(100))).collect();
        let record = Record { steps, ..Record::default() };
        let trace = record.trace("p", 1, Duration::from_millis(2)).unwrap();
        assert!(trace.len() <= MAX_TRACE);
        let parsed: serde_json::Value = serde_json::from_str(trace.to_str().unwrap()).unwrap();
        assert_eq!(parsed["truncated"], true);
        assert!(parsed["steps"].as_array().is_some_and(|steps| steps.len() > 8));
        assert_eq!(record.routes(), [":a_1:"]);
    }
}
