//! Pipelines that read other pipelines.

use crate::support::{Broker, Flow, Input, Worker};
use gantry_kafka::topics::Side;

const PIPELINES: [&str; 3] = ["left", "right", "both<left+right"];

#[tokio::test]
async fn outputs_of_two_pipelines_are_joined_by_request() {
    let broker = Broker::shared();
    let left = Flow::new(broker, "left", 2).await;
    let right = Flow::new(broker, "right", 2).await;
    let mut both = Flow::new(broker, "both", 2).await;
    let mut worker = Worker::start(broker, 2, "", &PIPELINES);
    let number = |x: i64| Input::number(&format!("customer-{x}"), x).header("x-request-id", &format!("r{x}"));
    for x in 0..6 {
        left.send(number(x)).await;
    }
    // Half of the joins are incomplete when the worker is killed.
    for x in 0..3 {
        right.send(number(x)).await;
    }
    both.distinct_outputs(3).await;
    worker.kill();
    for x in 3..6 {
        right.send(number(x)).await;
    }
    let _second = Worker::start(broker, 2, "", &PIPELINES);
    let mut outputs = both.distinct_outputs(6).await;
    outputs.sort_by_key(|output| output.number(Side::Outputs));
    outputs.dedup_by_key(|output| output.number(Side::Outputs));
    for (x, output) in (0..6).zip(&outputs) {
        // The first tensor is of `left`: (x + 1) * 2, and the same again in `both`.
        assert_eq!(output.number(Side::Outputs), ((x + 1) * 2 + 1) * 2);
        assert_eq!(output.header("x-request-id"), format!("r{x}"));
        assert_eq!(output.header("x-gantry-hops"), "1");
    }
    let topic = both.pipeline(Side::Inputs);
    let inputs = both.read_until(&topic, "joined inputs", |records| records.len() >= 6).await;
    assert!(inputs.iter().all(|record| record.header("pipeline") == "both"));
}
