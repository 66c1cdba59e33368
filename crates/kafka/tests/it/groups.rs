//! Several workers, limits, and the end of a worker.

use crate::support::{Broker, Flow, Input, Worker, distinct, wait_for};
use gantry_kafka::topics::Side;
use std::collections::HashMap;

#[tokio::test]
async fn stopped_worker_leaves_no_duplicates() {
    let broker = Broker::shared();
    let mut flow = Flow::new(broker, "stopped", 2).await;
    for x in 0..60 {
        flow.send(Input::number(&format!("k{}", x % 5), x).header("x-sleep-ms", "10")).await;
    }
    let mut first = Worker::start(broker, 2, "", &["stopped"]);
    flow.outputs(5).await;
    first.stop();
    let _second = Worker::start(broker, 2, "", &["stopped"]);
    flow.distinct_outputs(60).await;
    flow.send(Input::number("k0", 1000)).await;
    let outputs = flow.distinct_outputs(61).await;
    assert_eq!(outputs.len(), 61);
}

#[tokio::test]
async fn joining_worker_takes_partitions_without_duplicates() {
    let broker = Broker::shared();
    let mut flow = Flow::new(broker, "joined", 4).await;
    for x in 0..200 {
        flow.send(Input::number(&format!("k{}", x % 16), x).header("x-sleep-ms", "20")).await;
    }
    let first = Worker::start(broker, 4, "", &["joined"]);
    flow.outputs(10).await;
    let second = Worker::start(broker, 4, "", &["joined"]);
    second.wait_for_log("partitions assigned");
    first.wait_for_log("partitions revoked");
    let outputs = flow.distinct_outputs(200).await;
    assert_eq!(outputs.len(), 200, "what is in flight ends before partitions move");
    let mut last: HashMap<&str, i64> = HashMap::new();
    for output in &outputs {
        let number = output.number(Side::Outputs);
        assert!(last.insert(&output.key, number).is_none_or(|before| before < number), "{}", output.key);
    }
}

#[tokio::test]
async fn records_beyond_the_limits_wait_in_the_topic() {
    let broker = Broker::shared();
    let mut flow = Flow::new(broker, "limited", 1).await;
    // More than the client buffers while partitions are paused, which the first records cause.
    let sleep = |x: i64| if x < 40 { "1500" } else { "1" };
    flow.send_all((0..3000).map(|x| Input::number(&format!("k{x}"), x).header("x-sleep-ms", sleep(x)))).await;
    let limits = r#","worker":{"maxInFlight":20,"maxInFlightBytes":16384}"#;
    let _worker = Worker::start(broker, 1, limits, &["limited"]);
    let outputs = flow.distinct_outputs(3000).await;
    assert_eq!((outputs.len(), distinct(&outputs).len()), (3000, 3000));
}

/// The worker creates the topics, and joins the groups while the broker does not know all of them.
#[tokio::test]
async fn pipelines_with_new_topics_are_consumed() {
    let broker = Broker::shared();
    let names: Vec<String> = (0..24).map(|number| format!("new-{number}")).collect();
    let pipelines: Vec<&str> = names.iter().map(String::as_str).collect();
    let worker = Worker::start(broker, 1, "", &pipelines);
    wait_for("the assignments", || worker.log().matches("partitions assigned").count() >= names.len());
    for name in &names {
        let mut flow = Flow::new(broker, name, 1).await;
        flow.send(Input::number("customer", 1)).await;
        assert_eq!(flow.outputs(1).await[0].number(Side::Outputs), 4, "{name}");
    }
}
