//! `gantry explain`: why a model or a server is as it is, the root cause first.

use super::supervised;
use crate::{
    args::Global,
    client::{self, Address, Scheduler, admin},
    failure::{Exit, Failure},
    output::{Style, Tone, emit, harmless, say},
    reference::{self, Reference, word},
};
use clap::ValueEnum;
use gantry_api::Kind;
use gantry_proto::gantry::Explanation;
use serde_json::{Value, json};
use std::time::Duration;

/// What the processes of a server do is a bonus: nobody waits long for it.
const PATIENCE: Duration = Duration::from_millis(500);
/// The reason of an object that has nothing wrong with it.
const READY: &str = "Ready";
/// The label of the last line.
const NEXT: &str = "next";

/// Say why models or servers are as they are: the root cause first, then what led there, then what to do.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  gantry explain model/iris\n  gantry explain server builtin -o json")]
pub(crate) struct Args {
    /// KIND NAME…, or KIND/NAME…
    #[arg(required = true, value_name = "WHAT")]
    what: Vec<String>,
    /// How it is printed
    #[arg(short, long, value_enum, default_value_t = Form::Text, value_name = "FORMAT")]
    output: Form,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// In words
    Text,
    /// An object for a program; a list when several were asked for
    Json,
}

pub(crate) async fn run(global: &Global, args: &Args) -> Result<(), Failure> {
    let what = reference::named(&args.what)?;
    let alone = what.len() == 1;
    let scheduler = Scheduler::connect(global).await?;
    let mut explained = Vec::new();
    let mut missing = false;
    for one in what {
        match scheduler.explain(&one).await {
            Ok(mut explanation) => {
                if one.kind == Kind::Server {
                    let address = Address::parse(&global.admin(), 9003, "--admin")?;
                    let processes = client::supervised(&mut admin(&address, PATIENCE)).await;
                    supervised::amend(&mut explanation, &one.name, &processes, supervised::now());
                }
                explained.push((one, explanation));
            }
            Err(failure) if failure.exit == Exit::NotFound => {
                say(&failure.message);
                missing = true;
            }
            Err(failure) => return Err(failure),
        }
    }
    match args.output {
        Form::Text => {
            let style = Style::stdout();
            let texts: Vec<String> = explained.iter().map(|(_, e)| text(e, style)).collect();
            emit(texts.join("\n"))?;
        }
        Form::Json => {
            let mut documents: Vec<Value> = explained.iter().map(|(one, e)| document(one, e)).collect();
            let whole = match documents.pop() {
                Some(document) if alone => document,
                last => Value::Array(documents.into_iter().chain(last).collect()),
            };
            emit(format!("{whole:#}\n"))?;
        }
    }
    if missing { Err(Failure::said(Exit::NotFound)) } else { Ok(()) }
}

fn text(explanation: &Explanation, style: Style) -> String {
    let tone = if explanation.reason == READY { Tone::Good } else { Tone::Bad };
    let mut text = format!("{}\n", style.paint(&harmless(&explanation.headline), tone));
    let mut parts: Vec<(&str, Vec<&str>)> = explanation
        .facts
        .iter()
        .map(|f| (f.label.as_str(), f.lines.iter().flat_map(|l| l.lines()).collect()))
        .collect();
    if !explanation.next.is_empty() {
        parts.push((NEXT, explanation.next.lines().collect()));
    }
    if parts.is_empty() {
        return text;
    }
    text.push('\n');
    let width = parts.iter().map(|(label, _)| label.chars().count()).max().unwrap_or(0);
    for (label, lines) in &parts {
        for (i, line) in lines.iter().enumerate() {
            let shown = if i == 0 { *label } else { "" };
            let pad = " ".repeat(width.saturating_sub(shown.chars().count()));
            let label = style.paint(&harmless(shown), Tone::Faint);
            text += format!("  {label}{pad}   {}", harmless(line)).trim_end();
            text.push('\n');
        }
    }
    text
}

fn document(what: &Reference, explanation: &Explanation) -> Value {
    let facts: Vec<Value> =
        explanation.facts.iter().map(|f| json!({ "label": f.label, "lines": f.lines })).collect();
    json!({
        "kind": word(what.kind),
        "name": what.name,
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
    fn the_answer_stands_first_and_columns_line_up() {
        let fact = |label: &str, lines: &[&str]| Fact {
            label: label.into(),
            lines: lines.iter().map(|l| (*l).to_owned()).collect(),
        };
        let explanation = Explanation {
            headline: "demand is not ready: no server offers lightgbm.".into(),
            reason: "NoCapability".into(),
            facts: vec![
                fact("asked", &["requirements: lightgbm"]),
                fact(
                    "servers",
                    &["mlserver-a   2 replicas   sklearn, xgboost", "triton-a     1 replica    onnx"],
                ),
                fact("tried", &["3 times,\u{1b} last when triton-a joined"]),
            ],
            next: "add lightgbm to a server's capabilities, or remove the requirement".into(),
        };
        insta::assert_snapshot!(text(&explanation, Style::plain()), @r"
        demand is not ready: no server offers lightgbm.

          asked     requirements: lightgbm
          servers   mlserver-a   2 replicas   sklearn, xgboost
                    triton-a     1 replica    onnx
          tried     3 times,� last when triton-a joined
          next      add lightgbm to a server's capabilities, or remove the requirement
        ");
        let ready =
            Explanation { headline: "iris is ready.".into(), reason: READY.into(), ..Default::default() };
        assert_eq!(text(&ready, Style::plain()), "iris is ready.\n");
    }
}
