//! Time to the first paint of the dashboard with ten thousand models, in Chromium on loopback.

use crate::{
    Failure,
    bench::{
        Bench,
        machine::Core,
        table::{Better, Row, figure},
    },
    python, test,
};
use std::process::Stdio;

const LOADS: usize = 40;

pub(crate) fn measure(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let python = python::find((3, 11), (3, 13)).ok_or("it needs Python 3.11 to 3.13 with venv and pip")?;
    let directory = bench.root.join("tests/browser");
    let programs = python::environment(&python, &directory.join("requirements.txt"))?;
    let chromium = test::chromium()?;
    let mut command = bench.machine.command(Core::Server, programs.join("python"));
    command.current_dir(&directory).arg("paint.py").arg(LOADS.to_string());
    command.env("GANTRY", &bench.gantry).env("GANTRY_TEST_CHROMIUM", chromium);
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err("paint.py failed".into());
    }
    let measured: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let row = |what: &str, field: &str, floor: f64| -> Result<Row, Failure> {
        let times = measured.get(field).and_then(serde_json::Value::as_array);
        let times = times.into_iter().flatten().filter_map(serde_json::Value::as_f64).collect();
        let p95 = p95(times).ok_or("paint.py measured nothing")?;
        Ok(Row {
            what: what.into(),
            peer: String::new(),
            ours: format!("{} ms", figure(p95)),
            theirs: String::new(),
            rounds: vec![p95],
            unit: " ms",
            better: Better::Lower,
            floor: Some(floor),
            aim: None,
        })
    };
    Ok(vec![
        row("dashboard, 10,000 models: first paint, p95", "paint", 300.0)?,
        row("dashboard, 10,000 models: first rows, p95", "rows", 1000.0)?,
    ])
}

fn p95(mut times: Vec<f64>) -> Option<f64> {
    times.sort_by(f64::total_cmp);
    let at = (times.len() * 95).div_ceil(100).checked_sub(1)?;
    times.get(at).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p95_is_exceeded_by_five_percent() {
        assert_eq!(p95((1..=100).map(f64::from).collect()), Some(95.0));
        assert_eq!(p95(vec![7.0]), Some(7.0));
        assert_eq!(p95(Vec::new()), None);
    }
}
