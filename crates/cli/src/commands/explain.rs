//! `gantry explain`: root cause of an object's state.

use super::replica_processes;
use crate::{
    args::Global,
    client::{Address, Scheduler, admin_connection, fetch_replica_processes},
    error::{CommandError, Exit},
    object_ref::{self, ObjectRef, kind_name},
    output::{Style, Tone, emit, print_stderr, sanitize},
};
use clap::ValueEnum;
use gantry_api::Kind;
use gantry_proto::gantry::Explanation;
use serde_json::{Value, json};
use std::time::Duration;

/// Replica processes are optional details, so their timeout is short.
const ADMIN_TIMEOUT: Duration = Duration::from_millis(500);
/// Reason code of a healthy object.
const READY: &str = "Ready";

/// Explain the current state of an object: root cause, details, suggested fix.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  gantry explain model/iris\n  gantry explain server builtin -o json")]
pub(crate) struct Args {
    /// KIND NAME…, or KIND/NAME…
    #[arg(required = true, value_name = "RESOURCE")]
    resources: Vec<String>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Form::Text, value_name = "FORMAT")]
    output: Form,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// Readable text
    Text,
    /// A JSON object; a list for several objects
    Json,
}

pub(crate) async fn run(global: &Global, args: &Args) -> Result<(), CommandError> {
    let objects = object_ref::named(&args.resources)?;
    let single = objects.len() == 1;
    let scheduler = Scheduler::connect(global).await?;
    let mut explained = Vec::new();
    let mut missing = false;
    for object in objects {
        match scheduler.explain(&object).await {
            Ok(mut explanation) => {
                if object.kind == Kind::Server {
                    let address = Address::parse(&global.admin(), 9003, "--admin")?;
                    let mut admin = admin_connection(&address, ADMIN_TIMEOUT);
                    let processes = fetch_replica_processes(&mut admin).await;
                    let now = replica_processes::now_ms();
                    replica_processes::amend(&mut explanation, &object.name, &processes, now);
                }
                explained.push((object, explanation));
            }
            Err(error) if error.exit == Exit::NotFound => {
                print_stderr(&error.message);
                missing = true;
            }
            Err(error) => return Err(error),
        }
    }
    match args.output {
        Form::Text => {
            let style = Style::stdout();
            let texts: Vec<String> = explained.iter().map(|(_, e)| text(e, style)).collect();
            emit(texts.join("\n"))?;
        }
        Form::Json => {
            let mut documents: Vec<Value> = explained.iter().map(|(object, e)| document(object, e)).collect();
            let value = match documents.pop() {
                Some(document) if single => document,
                last => Value::Array(documents.into_iter().chain(last).collect()),
            };
            emit(format!("{value:#}\n"))?;
        }
    }
    if missing { Err(CommandError::silent(Exit::NotFound)) } else { Ok(()) }
}

fn text(explanation: &Explanation, style: Style) -> String {
    let tone = if explanation.reason == READY { Tone::Good } else { Tone::Bad };
    let mut text = format!("{}\n", style.paint(&sanitize(&explanation.headline), tone));
    let mut parts: Vec<(&str, Vec<&str>)> = explanation
        .facts
        .iter()
        .map(|f| (f.label.as_str(), f.lines.iter().flat_map(|l| l.lines()).collect()))
        .collect();
    if !explanation.next.is_empty() {
        parts.push(("next", explanation.next.lines().collect()));
    }
    if parts.is_empty() {
        return text;
    }
    text.push('\n');
    let width = parts.iter().map(|(label, _)| label.chars().count()).max().unwrap_or(0);
    for (label, lines) in &parts {
        for (i, line) in lines.iter().enumerate() {
            let name = if i == 0 { *label } else { "" };
            let pad = " ".repeat(width.saturating_sub(name.chars().count()));
            let label = style.paint(&sanitize(name), Tone::Faint);
            text += format!("  {label}{pad}   {}", sanitize(line)).trim_end();
            text.push('\n');
        }
    }
    text
}

fn document(object: &ObjectRef, explanation: &Explanation) -> Value {
    let facts: Vec<Value> =
        explanation.facts.iter().map(|f| json!({ "label": f.label, "lines": f.lines })).collect();
    json!({
        "kind": kind_name(object.kind),
        "name": object.name,
        "headline": explanation.headline,
        "reason": explanation.reason,
        "facts": facts,
        "next": explanation.next,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_proto::gantry::Fact;

    #[test]
    fn text_starts_with_headline_and_aligns_labels() {
        let fact = |label: &str, lines: &[&str]| Fact {
            label: label.into(),
            lines: lines.iter().map(|l| (*l).to_owned()).collect(),
        };
        let explanation = Explanation {
            headline: "demand is not ready: no server offers lightgbm.".into(),
            reason: "NoCapability".into(),
            facts: vec![
                fact("spec", &["requirements: lightgbm"]),
                fact(
                    "servers",
                    &["mlserver-a   2 replicas   sklearn, xgboost", "triton-a     1 replica    onnx"],
                ),
                fact("attempts", &["3,\u{1b} last when triton-a joined"]),
            ],
            next: "add lightgbm to a server's capabilities, or remove the requirement".into(),
        };
        insta::assert_snapshot!(text(&explanation, Style::plain()), @r"
        demand is not ready: no server offers lightgbm.

          spec       requirements: lightgbm
          servers    mlserver-a   2 replicas   sklearn, xgboost
                     triton-a     1 replica    onnx
          attempts   3,� last when triton-a joined
          next       add lightgbm to a server's capabilities, or remove the requirement
        ");
        let ready =
            Explanation { headline: "iris is ready.".into(), reason: READY.into(), ..Default::default() };
        assert_eq!(text(&ready, Style::plain()), "iris is ready.\n");
    }
}
