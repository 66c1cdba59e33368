//! The program with the feature: `gantry up` with a pipeline of the examples.

use crate::{
    inspect,
    support::{Broker, Flow, Input, gantry, wait_for},
};
use gantry_kafka::topics::Side;
use std::{
    path::Path,
    process::{Child, Stdio},
};

struct Gantry {
    process: Child,
    log: std::path::PathBuf,
}

impl Gantry {
    fn up(broker: &Broker, directory: &Path) -> Self {
        let settings = directory.join("kafka.json");
        let text = format!(
            r#"{{"bootstrap.servers":"{}","consumer":{{"session.timeout.ms":1000}},"topics":{{"numPartitions":2}}}}"#,
            broker.address()
        );
        std::fs::write(&settings, text).unwrap();
        let log = directory.join("log");
        let output = std::fs::File::create(&log).unwrap();
        let mut command = gantry();
        command.arg("up").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/pipelines"));
        command.args([
            "--inference-port",
            "0",
            "--admin-port",
            "0",
            "--scheduler-port",
            "0",
            "--agent-port",
            "0",
        ]);
        command
            .arg("--no-watch")
            .arg("--state-dir")
            .arg(directory.join("state"))
            .arg("--kafka")
            .arg(settings);
        command.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output);
        let started = Self { process: command.spawn().unwrap(), log };
        wait_for("gantry up", || started.output().contains("Ctrl-C stops"));
        started
    }

    fn scheduler(&self) -> String {
        let output = self.output();
        let line = output.lines().find_map(|line| line.trim().strip_prefix("scheduler "));
        line.and_then(|line| line.split_whitespace().next()).expect(&output).to_owned()
    }

    fn output(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Gantry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gantry_up_answers_every_record_across_a_kill() {
    let broker = Broker::shared();
    let directory = tempfile::tempdir().unwrap();
    let mut flow = Flow::new(broker, "checkout", 2).await;
    let request = |i: usize| {
        let data = format!(r#"{{"name":"payment","shape":[1,4],"datatype":"FP32","data":[{i},3,210,5]}}"#);
        let value = Some(format!(r#"{{"id":"{i}","inputs":[{data}]}}"#).into());
        Input { key: Some(format!("customer-{}", i % 4)), value, ..Input::default() }
            .header("seldon-infer-type", "json/inferModelRequest")
            .header("x-request-id", &i.to_string())
    };
    for i in 0..40 {
        flow.send(request(i)).await;
    }
    let first = Gantry::up(broker, directory.path());
    flow.outputs(10).await;
    drop(first);
    for i in 40..60 {
        flow.send(request(i)).await;
    }
    let second = Gantry::up(broker, directory.path());
    let ids = |outputs: &[crate::support::Output]| {
        let mut ids: Vec<usize> =
            outputs.iter().map(|output| output.header("x-request-id").parse().unwrap()).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    };
    let topic = flow.pipeline(Side::Outputs);
    let outputs = flow.read_until(&topic, "60 answers", |outputs| ids(outputs).len() == 60).await;
    for output in &outputs {
        let routes = output.headers.iter().filter(|(name, _)| name == "x-seldon-route").count();
        assert_eq!((output.header("pipeline"), routes), ("checkout", 1), "rentals has no input");
    }
    // The steps are those of the scheduler.
    let (address, scheduler) = (broker.address(), second.scheduler());
    let rows = inspect::rows(&[
        "checkout",
        "--request-id",
        "59",
        "--kafka-broker",
        &address,
        "--scheduler-host",
        &scheduler,
    ]);
    let topics: Vec<&str> = rows.iter().map(|(topic, ..)| topic.as_str()).collect();
    let expected =
        ["pipeline.checkout.inputs", "model.risk.inputs", "model.risk.outputs", "pipeline.checkout.outputs"];
    assert_eq!(topics, expected.map(|topic| format!("seldon.default.{topic}")), "rentals did not run");
    let names: Vec<_> = rows
        .iter()
        .map(|(.., data)| data.as_object().unwrap().values().next().unwrap()[0]["name"].clone())
        .collect();
    assert_eq!(names, ["payment", "input-0", "predict", "risk"]);
    println!("gantry killed: {} duplicates of 60 records", outputs.len() - 60);
}
