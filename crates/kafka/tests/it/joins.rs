//! Pipelines that read other pipelines.

use crate::support::{Broker, Flow, Input, Output, Worker};
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

/// The distinct requests, in the order of their first record.
fn ids(records: &[Output]) -> Vec<&str> {
    let mut ids = Vec::new();
    for id in records.iter().map(|record| record.header("x-request-id")) {
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    ids
}

#[tokio::test]
async fn worker_killed_before_and_after_the_write_of_joined_inputs() {
    let broker = Broker::shared();
    for writes in [0, 1] {
        let [left, right, both] = ["left", "right", "both"].map(|name| format!("{name}-killed-{writes}"));
        let pipelines = [left.clone(), right.clone(), format!("{both}<{left}+{right}")];
        let pipelines: Vec<&str> = pipelines.iter().map(String::as_str).collect();
        let left = Flow::new(broker, &left, 1).await;
        let right = Flow::new(broker, &right, 1).await;
        let mut both = Flow::new(broker, &both, 1).await;
        let number = |x: i64| Input::number("customer", x).header("x-request-id", &format!("r{x}"));
        for x in 0..4 {
            left.send(number(x)).await;
            right.send(number(x)).await;
        }
        let name = both.name.clone();
        let mut first = Worker::start_aborting(broker, 1, &pipelines, (&name, "r2", writes));
        first.wait_for_abort();
        let _second = Worker::start(broker, 1, "", &pipelines);
        let outputs = both.distinct_outputs(4).await;
        assert_eq!(ids(&outputs), ["r0", "r1", "r2", "r3"], "killed after {writes} writes");
        let topic = both.pipeline(Side::Inputs);
        // Written, and not committed: they are joined again.
        let repeated = |records: &[Output]| {
            records.iter().filter(|record| record.header("x-request-id") == "r2").count()
        };
        let inputs = both
            .read_until(&topic, "joined inputs", |records| {
                ids(records).len() == 4 && repeated(records) > writes
            })
            .await;
        assert_eq!(ids(&inputs), ["r0", "r1", "r2", "r3"], "killed after {writes} writes");
        let repeated = repeated(&inputs);
        println!(
            "worker killed after {writes} writes of joined inputs: {repeated} joined inputs of the request"
        );
    }
}

#[tokio::test]
async fn joined_inputs_that_cannot_be_written_are_a_dead_letter() {
    const PIPELINES: [&str; 3] = ["left-large", "right-large", "both-large<left-large+right-large"];
    let broker = Broker::shared();
    let left = Flow::new(broker, "left-large", 1).await;
    let right = Flow::new(broker, "right-large", 1).await;
    let mut both = Flow::with_inputs(broker, "both-large", 1, Some(1000)).await;
    let _worker = Worker::start(broker, 1, "", &PIPELINES);
    let number = |x: i64| {
        let input = Input::number("customer", x).header("x-request-id", &format!("large-{x}"));
        // A header that the join forwards.
        if x == 1 { input.header("x-pad", &"p".repeat(2000)) } else { input }
    };
    for x in 0..3 {
        left.send(number(x)).await;
        right.send(number(x)).await;
    }
    let outputs = both.distinct_outputs(2).await;
    assert_eq!(ids(&outputs), ["large-0", "large-2"]);
    let topic = both.errors();
    let is_letter = |record: &&Output| record.header("pipeline") == "both-large";
    let errors = both
        .read_until(&topic, "the dead letter", |records| records.iter().any(|record| is_letter(&record)))
        .await;
    let letters: Vec<&Output> = errors.iter().filter(is_letter).collect();
    assert_eq!(letters.len(), 1, "{letters:?}");
    let letter = letters[0];
    assert!(letter.text().starts_with("both-large : the joined inputs cannot be written: "), "{letter:?}");
    assert_eq!((letter.key.as_str(), letter.header("x-request-id")), ("customer", "large-1"));
    assert_eq!(letter.header("seldon-pipeline-errors"), "both-large");
    assert_eq!(letter.header("x-gantry-omitted"), "the joined records are only in their topics");
    let mut sources: Vec<&str> = letter
        .headers
        .iter()
        .filter(|(name, _)| name == "x-gantry-source")
        .map(|(_, value)| std::str::from_utf8(value).unwrap())
        .collect();
    sources.sort_unstable();
    assert_eq!(
        sources,
        ["seldon.default.pipeline.left-large.outputs/0/1", "seldon.default.pipeline.right-large.outputs/0/1"]
    );
}
