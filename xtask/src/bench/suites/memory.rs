//! Resident memory: idle with the quickstart models, and per additional model.

use super::iris;
use crate::{
    Failure,
    bench::{
        Bench, machine, note, servers,
        table::{Better, Row, divide, figure},
    },
};
use std::{fmt::Write as _, fs};

/// Copies of the small model.
const COPIES: usize = 1000;
const MEGABYTE: f64 = 1e6;

pub(crate) fn measure(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let scratch = servers::Scratch::new("memory")?;
    let trained = iris::train(bench, &scratch)?;
    let (mut mine, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..bench.rounds.min(3) {
        let mut mlserver = servers::mlserver(&bench.machine, bench.servers()?, &trained)?;
        let address = mlserver.rest;
        servers::wait_for_response(&mut mlserver.process, address, &iris::request())?;
        theirs.push(machine::resident(mlserver.process.id())? as f64);
        drop(mlserver);
        let mut ours =
            servers::gantry(&bench.machine, &bench.gantry, &[&bench.root.join("examples/quickstart")])?;
        let address = ours.inference;
        servers::wait_for_response(&mut ours.process, address, &iris::request())?;
        mine.push(machine::resident(ours.process.id())? as f64);
    }
    let middle = |values: &[f64]| crate::bench::table::median(values) / MEGABYTE;
    let idle = Row {
        what: "resident memory, idle".into(),
        peer: "MLServer with one model".into(),
        ours: format!("{} MB", figure(middle(&mine))),
        theirs: format!("{} MB", figure(middle(&theirs))),
        rounds: divide(&mine, &theirs),
        unit: "x",
        better: Better::Lower,
        floor: Some(0.3),
        aim: None,
    };
    let alone = Row {
        what: "resident memory, idle, three models".into(),
        peer: String::new(),
        ours: idle.ours.clone(),
        theirs: String::new(),
        rounds: mine.iter().map(|bytes| bytes / MEGABYTE).collect(),
        unit: " MB",
        floor: None,
        aim: Some(40.0),
        ..idle.clone()
    };
    Ok(vec![idle, alone, density(bench)?])
}

/// Small models per gigabyte, from the slope between few and many.
fn density(bench: &Bench) -> Result<Row, Failure> {
    note("loading 1,000 models");
    let mut sizes = Vec::new();
    for count in [1, COPIES] {
        let folder = servers::Scratch::in_memory("copies")?;
        let file = bench.root.join("examples/quickstart/iris/model.onnx");
        let mut manifest = String::new();
        for copy in 0..count {
            let place = folder.0.join(format!("copy-{copy}"));
            fs::create_dir(&place)?;
            fs::copy(&file, place.join("model.onnx"))?;
            write!(
                manifest,
                "apiVersion: mlops.seldon.io/v1alpha1\nkind: Model\nmetadata: {{name: copy-{copy}}}\n\
                 spec: {{storageUri: ./copy-{copy}, requirements: [onnx]}}\n---\n"
            )?;
        }
        fs::write(folder.0.join("models.yaml"), manifest.trim_end_matches("---\n"))?;
        let mut ours = servers::gantry(&bench.machine, &bench.gantry, &[&folder.0])?;
        let address = ours.inference;
        // One request per model, so that lazy initialization counts too.
        for copy in 0..count {
            let request = String::from_utf8(iris::request())?.replace("/iris/", &format!("/copy-{copy}/"));
            let response = servers::wait_for_response(&mut ours.process, address, request.as_bytes())?;
            if !iris::is_correct(&response) {
                return Err(format!("copy-{copy} answers wrongly").into());
            }
        }
        sizes.push(machine::resident(ours.process.id())? as f64);
    }
    let [few, many] = sizes.as_slice() else { return Err("two sizes were measured".into()) };
    let each = (many - few).max(1.0) / (COPIES - 1) as f64;
    Ok(Row {
        what: "small ONNX models per GB".into(),
        peer: String::new(),
        ours: format!("{} kB each", figure(each / 1e3)),
        theirs: String::new(),
        rounds: vec![1e9 / each],
        unit: " models",
        better: Better::Higher,
        floor: None,
        aim: Some(10_000.0),
    })
}
