//! Tree models: our evaluator, and LightGBM and XGBoost, all in process, on the same rows, on one thread.

use crate::{
    Failure,
    bench::{
        Bench,
        machine::Core,
        note,
        servers::{self, Peer},
        table::{Better, Row, divide, figure, median},
    },
};
use serde_json::{Value, json};
use std::path::Path;

pub(crate) fn measure(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let speed = bench.build_example("gantry-trees", "speed")?;
    let scratch = servers::Scratch::new("trees")?;
    let mut peer =
        Peer::start(&bench.machine, bench.libraries()?, &bench.root.join("xtask/peers/libraries.py"))?;
    note("training");
    let files = peer.call(&json!({ "ask": "trees-train", "folder": scratch.0 }))?;
    let seconds = bench.turn.as_secs_f64() / 2.0;
    let mut rows = Vec::new();
    for (library, name) in [("lightgbm", "LightGBM"), ("xgboost", "XGBoost")] {
        let file = files.get(library).and_then(Value::as_str).ok_or("a model was not trained")?;
        for (batch, aim) in [(1, Some(0.3)), (1000, None)] {
            note(&format!("{name}, batch {batch}"));
            let (mut mine, mut theirs) = (Vec::new(), Vec::new());
            for _ in 0..bench.rounds {
                let question =
                    json!({ "ask": "trees-time", "library": library, "batch": batch, "seconds": seconds });
                let peers = peer.call(&question)?;
                let ours = run(bench, &speed, file, &scratch.0.join("rows.f32"), batch, seconds)?;
                let (expected, actual) = (number(&peers, "check")?, number(&ours, "check")?);
                if (expected - actual).abs() > 1e-5 * expected.abs().max(1.0) {
                    return Err(format!("{name}: sum of predictions is {actual}, expected {expected}").into());
                }
                theirs.push(number(&peers, "median_ns")? / 1e3);
                mine.push(number(&ours, "median_ns")? / 1e3);
            }
            rows.push(Row {
                what: format!("100 trees of {name}, batch {batch}"),
                peer: format!("{name} in process"),
                ours: format!("{} µs", figure(median(&mine))),
                theirs: format!("{} µs", figure(median(&theirs))),
                rounds: divide(&mine, &theirs),
                unit: "x",
                better: Better::Lower,
                floor: Some(1.0),
                aim,
            });
        }
    }
    Ok(rows)
}

fn number(response: &Value, key: &str) -> Result<f64, Failure> {
    response.get(key).and_then(Value::as_f64).ok_or_else(|| format!("no {key} in {response}").into())
}

fn run(
    bench: &Bench,
    speed: &Path,
    model: &str,
    rows: &Path,
    batch: usize,
    seconds: f64,
) -> Result<Value, Failure> {
    let mut command = bench.machine.command(Core::Server, speed);
    command.arg(model).arg(rows).args([&batch.to_string(), "1", &seconds.to_string()]);
    let output = command.output()?;
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    serde_json::from_str(&stdout).map_err(|e| format!("{}: {e}: {stdout}{stderr}", speed.display()).into())
}
