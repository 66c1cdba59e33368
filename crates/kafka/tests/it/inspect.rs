//! `gantry pipeline inspect` on topics.

use crate::support::{Broker, Flow, Input, Worker, gantry};
use gantry_kafka::topics::Side;
use serde_json::{Value, json};

/// Runs the command; returns its exit code and its output.
fn inspect(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = gantry().args(["pipeline", "inspect"]).args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Topic, request and data of each line.
pub(crate) fn rows(arguments: &[&str]) -> Vec<(String, String, Value)> {
    let (code, stdout, stderr) = inspect(arguments);
    assert_eq!(code, Some(0), "{arguments:?}: {stderr}");
    let row = |line: &str| {
        let [topic, request, data] = line.split('\t').take(3).collect::<Vec<_>>()[..] else {
            panic!("{line}");
        };
        (topic.to_owned(), request.to_owned(), serde_json::from_str(data).unwrap())
    };
    stdout.lines().map(row).collect()
}

fn tensors(side: &str, x: i64) -> Value {
    json!({ side: [{ "name": "x", "shape": [1], "datatype": "INT64", "data": [x] }] })
}

#[tokio::test]
async fn inspect_prints_the_last_records_of_topics() {
    let broker = Broker::shared();
    let mut flow = Flow::new(broker, "inspected", 2).await;
    let _worker = Worker::start(broker, 2, "", &["inspected"]);
    for x in 0..3 {
        // One after the other: the newest record is known.
        let input = Input::number(&format!("customer-{x}"), x);
        flow.send(input.header("x-request-id", &format!("inspected-{x}"))).await;
        flow.outputs(usize::try_from(x).unwrap() + 1).await;
    }
    let step_outputs = flow.model("add", Side::Outputs);
    let foreign = Input::number("customer-0", 7).header("pipeline", "other");
    flow.send_to(&step_outputs, foreign.header("x-request-id", "foreign")).await;

    let address = broker.address();
    let at = |arguments: &[&'static str]| {
        let flags = ["--kafka-broker", address.as_str()];
        rows(&[arguments, &flags].concat())
    };
    let (inputs, outputs) = (flow.pipeline(Side::Inputs), flow.pipeline(Side::Outputs));
    let row = |topic: &str, x: i64, data: Value| (topic.to_owned(), format!("inspected-{x}"), data);
    assert_eq!(at(&["inspected.inputs"]), [row(&inputs, 2, tensors("inputs", 2))]);
    assert_eq!(
        at(&["inspected.outputs", "--offset", "3"]),
        [2, 1, 0].map(|x| row(&outputs, x, tensors("outputs", (x + 1) * 2)))
    );
    let of_request = ["inspected.inspected-add", "--request-id", "inspected-1"];
    assert_eq!(
        at(&of_request),
        [
            row(&flow.model("add", Side::Inputs), 1, tensors("inputs", 1)),
            row(&step_outputs, 1, tensors("outputs", 2)),
        ]
    );
    // The newest record of the topic is of another pipeline.
    let of_step = at(&["inspected.inspected-add.outputs.x"]);
    assert_eq!(of_step, [row(&step_outputs, 2, tensors("outputs", 3))]);
    let other = at(&["inspected.inspected-add.outputs.y"]);
    assert_eq!(other, [row(&step_outputs, 2, json!({ "outputs": [] }))]);
    assert_eq!(at(&["inspected.inputs", "--request-id", "unknown"]), []);
    let (code, verbose, stderr) = inspect(&["inspected.outputs", "-v", "--kafka-broker", &address]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(verbose.contains("x-pipeline-version=1") && verbose.contains("x-seldon-route="), "{verbose}");
}

#[tokio::test]
async fn inspect_names_what_it_cannot_read() {
    let broker = Broker::shared();
    let address = broker.address();
    let (code, stdout, stderr) = inspect(&["missing.inputs", "--kafka-broker", &address]);
    assert_eq!((code, stdout.as_str()), (Some(1), ""), "{stderr}");
    assert!(stderr.starts_with("Error: "), "{stderr}");
    assert!(stderr.contains("seldon.default.pipeline.missing.inputs"), "{stderr}");
    let (code, stdout, stderr) = inspect(&["missing.inputs", "--kafka-broker", "127.0.0.1:1"]);
    assert_eq!((code, stdout.as_str()), (Some(1), ""), "{stderr}");
    assert!(stderr.starts_with("Error: "), "{stderr}");
    let (code, _, stderr) = inspect(&["missing.inputs", "--kafka-broker", "nowhere"]);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("host:port"), "{stderr}");
}
