//! The trace of a pipeline's request, from a response header.

use crate::{
    commands::status::millis,
    output::{PLACEHOLDER, Style, Table, Tone, sanitize},
};
use serde::Deserialize;

/// Request: `true` asks for a trace. Response: the trace as JSON.
pub(super) const TRACE: &str = "x-gantry-trace";

#[derive(Debug, Deserialize)]
pub(super) struct Trace {
    pipeline: String,
    version: u32,
    ms: f64,
    #[serde(default)]
    steps: Vec<Step>,
    #[serde(default)]
    skipped: Vec<Skipped>,
    #[serde(default)]
    truncated: bool,
}

#[derive(Debug, Deserialize)]
struct Step {
    #[serde(rename = "step")]
    name: String,
    ms: f64,
    replica: Option<String>,
    #[serde(default)]
    inputs: Vec<String>,
    #[serde(default)]
    outputs: Vec<String>,
    error: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Skipped {
    step: String,
    reason: String,
}

impl Trace {
    pub(super) fn parse(header: &[u8]) -> Option<Self> {
        serde_json::from_slice(header).ok()
    }

    pub(super) fn text(&self, answered: bool) -> String {
        let verb = if answered { "answered in" } else { "failed after" };
        let mut text =
            sanitize(&format!("{} {verb} {} (version {}).\n", self.pipeline, millis(self.ms), self.version));
        let mut table = Table::without_headings();
        let plain = |text: String| (text, Tone::Plain);
        for step in &self.steps {
            let inputs = step.inputs.join(", ");
            let result = match &step.error {
                Some(error) => format!("inputs: {inputs} → {error}"),
                None => format!("inputs: {inputs} → {}", step.outputs.join(", ")),
            };
            let tone = if step.error.is_some() { Tone::Bad } else { Tone::Plain };
            let replica = step.replica.clone().unwrap_or_else(|| PLACEHOLDER.to_owned());
            table.row(vec![
                plain(format!("  {}", step.name)),
                plain(millis(step.ms)),
                plain(replica),
                (result, tone),
            ]);
        }
        for skipped in &self.skipped {
            table.row(vec![
                plain(format!("  {}", skipped.step)),
                plain(PLACEHOLDER.to_owned()),
                plain(PLACEHOLDER.to_owned()),
                (format!("skipped: {}", skipped.reason), Tone::Faint),
            ]);
        }
        text += &table.render(Style::stdout());
        if self.truncated {
            text += "  … the gateway left out further steps\n";
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trace_lists_steps_and_what_did_not_run() {
        let header = r#"{"pipeline":"joincheck","version":3,"ms":1.94,"truncated":false,"steps":[
            {"step":"tokenize","start_ms":0.1,"ms":0.31,"replica":"builtin-0","inputs":["TEXT"],"outputs":["ids","mask"]},
            {"step":"classify","start_ms":0.5,"ms":1.2,"inputs":["ids","mask"],"outputs":[],"error":"no replica"}],
            "skipped":[{"step":"explain","reason":"tensor classify.uncertain is absent"}]}"#;
        let trace = Trace::parse(header.as_bytes()).unwrap();
        insta::assert_snapshot!(trace.text(true), @"
        joincheck answered in 1.9 ms (version 3).
          tokenize   0.3 ms   builtin-0   inputs: TEXT → ids, mask
          classify   1.2 ms   –           inputs: ids, mask → no replica
          explain    –        –           skipped: tensor classify.uncertain is absent
        ");
        assert!(trace.text(false).starts_with("joincheck failed after 1.9 ms (version 3)."));
        assert!(Trace::parse(b"{").is_none());
    }
}
