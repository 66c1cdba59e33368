//! Every record gets an answer: outputs, or an error.

use crate::support::{Broker, Flow, Input, Output, Worker, example};
use bytes::Bytes;
use gantry_kafka::topics::Side;
use std::process::Command;

#[tokio::test]
async fn outputs_and_step_data_are_written_with_keys_and_headers() {
    let broker = Broker::shared();
    let mut flow = Flow::new(broker, "happy", 3).await;
    let _worker = Worker::start(broker, 3, "", &["happy"]);
    let json = r#"{"id":"7","inputs":[{"name":"x","shape":[1],"datatype":"INT64","data":[40]}]}"#;
    let json = Input { value: Some(json.into()), ..Input::default() }
        .header("seldon-infer-type", "json/inferModelRequest");
    flow.send(Input::number("2.happy.first", 1).header("x-tenant", "a").header("authorization", "secret"))
        .await;
    flow.send(Input::number("customer-1", 2).header("x-request-id", "second")).await;
    flow.send(Input::number("", 3)).await;
    flow.send(json).await;
    let mut outputs = flow.outputs(4).await;
    outputs.sort_by_key(|output| output.number(Side::Outputs));
    let numbers: Vec<i64> = outputs.iter().map(|output| output.number(Side::Outputs)).collect();
    assert_eq!(numbers, [4, 6, 8, 82]);
    let first = &outputs[0];
    // The partition of the gateway that waits for the answer.
    assert_eq!((first.key.as_str(), first.partition), ("2.happy.first", 2));
    assert_eq!(first.header("x-request-id"), "first");
    assert_eq!(first.header("pipeline"), "happy");
    assert_eq!(first.header("x-pipeline-version"), "1");
    assert_eq!(first.header("x-tenant"), "a");
    assert_eq!(first.header("authorization"), "");
    let routes =
        first.headers.iter().filter(|(name, _)| name == "x-seldon-route").map(|(_, value)| value.clone());
    assert_eq!(routes.collect::<Vec<_>>(), [":happy-add_1:", ":happy-double_1:"]);
    assert_eq!((outputs[1].key.as_str(), outputs[1].header("x-request-id")), ("customer-1", "second"));
    assert!(outputs[2].header("x-request-id").starts_with("seldon.default.pipeline.happy.inputs-"));
    for (step, side, expected) in [
        ("add", Side::Inputs, [1, 2, 3, 40]),
        ("add", Side::Outputs, [2, 3, 4, 41]),
        ("double", Side::Inputs, [2, 3, 4, 41]),
        ("double", Side::Outputs, [4, 6, 8, 82]),
    ] {
        let topic = flow.model(step, side);
        let records = flow.read_until(&topic, "data of a step", |records| records.len() >= 4).await;
        let mut numbers: Vec<i64> = records.iter().map(|record| record.number(side)).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, expected, "{step} {side}");
        assert!(records.iter().all(|record| record.header("pipeline") == "happy"));
    }
}

#[tokio::test]
async fn record_that_fails_goes_to_the_errors_topic() {
    let broker = Broker::shared();
    let mut flow = Flow::new(broker, "failing", 1).await;
    let _worker = Worker::start(broker, 1, r#","worker":{"retryTimeoutMs":1500}"#, &["failing"]);
    let garbage = Some(Bytes::from_static(b"\x07garbage"));
    let table = [
        (
            "garbage",
            Input { value: garbage, ..Input::default() },
            "failing",
            "failing : the value is not valid protobuf",
        ),
        ("tombstone", Input::default(), "failing", "failing : the request has no inputs"),
        (
            "type",
            Input::number("", 1).header("seldon-infer-type", "xml"),
            "failing",
            "failing : the header seldon-infer-type",
        ),
        (
            "permanent",
            Input::number("", 1).header("x-fail", "permanent"),
            "failing-add",
            "failing-add : permanent failure",
        ),
        (
            "transient",
            Input::number("", 1).header("x-fail", "transient"),
            "failing-add",
            "failing-add : transient failure",
        ),
        (
            "panic",
            Input::number("", 1).header("x-panic", "true"),
            "failing",
            "failing : the execution failed",
        ),
    ];
    for (id, input, ..) in &table {
        flow.send(input.clone().header("x-request-id", id)).await;
    }
    flow.send(Input::number("", 5).header("x-fail", "transient").header("x-attempts", "3")).await;
    let outputs = flow.outputs(1).await;
    assert_eq!(outputs[0].number(Side::Outputs), 12, "a failure that passes is retried");
    let topic = flow.errors();
    let errors = flow
        .read_until(&topic, "errors", |errors| {
            errors.iter().filter(|e| e.header("pipeline") == "failing").count() >= table.len()
        })
        .await;
    for (offset, (id, input, step, message)) in table.iter().enumerate() {
        let error = errors.iter().find(|error| error.header("x-request-id") == *id).unwrap();
        assert_eq!(error.header("seldon-pipeline-errors"), *step, "{id}");
        assert!(error.text().starts_with(message), "{id}: {}", error.text());
        assert_eq!(
            error.header("x-gantry-source"),
            format!("seldon.default.pipeline.failing.inputs/0/{offset}")
        );
        let original = error.original().unwrap();
        assert_eq!(
            (&*original.topic, original.partition),
            ("seldon.default.pipeline.failing.inputs", Some(0))
        );
        assert_eq!(original.key, None, "{id}");
        assert_eq!(original.value, input.value.clone().unwrap_or_default(), "{id}");
        let headers = input.headers.iter().map(|(name, value)| (*name, value.as_str()));
        let headers: Vec<_> = headers.chain([("x-request-id", *id)]).collect();
        let carried = original.headers.iter();
        let carried: Vec<_> =
            carried.map(|(name, value)| (&**name, std::str::from_utf8(value).unwrap())).collect();
        assert_eq!(carried, headers, "{id}");
    }
}

#[tokio::test]
async fn failure_of_a_step_that_the_answer_does_not_need_is_written() {
    let broker = Broker::shared();
    let mut flow = Flow::new(broker, "aside", 1).await;
    let _worker = Worker::start(broker, 1, "", &["aside"]);
    let input = Input::number("customer", 1).header("x-request-id", "aside-1");
    flow.send(input.header("x-fail", "side")).await;
    assert_eq!(flow.outputs(1).await[0].number(Side::Outputs), 4);
    let topic = flow.errors();
    let of_flow = |error: &&Output| error.header("pipeline") == "aside";
    let errors = flow.read_until(&topic, "the error", |errors| errors.iter().any(|e| of_flow(&e))).await;
    let error = errors.iter().find(of_flow).unwrap();
    assert_eq!(error.text(), "aside-side : permanent failure");
    assert_eq!((error.key.as_str(), error.header("x-request-id")), ("customer", "aside-1"));
    assert_eq!(error.header("seldon-pipeline-errors"), "aside-side");
    assert_eq!(error.header("x-gantry-source"), "seldon.default.pipeline.aside.inputs/0/0");
    assert_eq!(error.header("x-gantry-answered"), "true");
    assert_eq!(error.original(), None, "it has an answer");
    let inputs = flow.model("side", Side::Inputs);
    let inputs = flow.read_until(&inputs, "inputs of the step", |records| !records.is_empty()).await;
    assert_eq!(inputs[0].number(Side::Inputs), 2);
}

/// Records as large as the topic accepts, and with as many headers as a client sends, do not fit into their dead letters.
#[tokio::test]
async fn dead_letter_without_room_for_its_record_states_so() {
    let broker = Broker::shared();
    let mut flow = Flow::new(broker, "large", 1).await;
    let _worker = Worker::start(broker, 1, "", &["large"]);
    let large = Some(Bytes::from(vec![7; 1_048_400]));
    flow.send(Input { value: large, ..Input::default() }.header("x-request-id", "large-1")).await;
    let garbage = Some(Bytes::from_static(b"\x07garbage"));
    let headers = vec![("h", String::new()); 9_998];
    flow.send(Input { key: None, value: garbage, headers }.header("x-request-id", "large-2")).await;
    flow.send(Input::number("", 1)).await;
    assert_eq!(flow.outputs(1).await[0].number(Side::Outputs), 4, "records behind them are answered");
    let topic = flow.errors();
    let of_flow = |error: &&Output| error.header("pipeline") == "large";
    let errors =
        flow.read_until(&topic, "the errors", |errors| errors.iter().filter(of_flow).count() == 2).await;
    for error in errors.iter().filter(of_flow) {
        assert!(error.text().starts_with("large : the value is not valid protobuf"), "{}", error.text());
        let position = error.header("x-gantry-source");
        assert!(position.starts_with("seldon.default.pipeline.large.inputs/0/"), "{position}");
        let reason = error.header("x-gantry-omitted");
        assert!(reason.starts_with("the record is only in its topic: "), "{reason}");
        assert_eq!(error.original(), None);
    }
}

#[tokio::test]
async fn dead_letters_are_replayed() {
    let broker = Broker::shared();
    let mut flow = Flow::new(broker, "replayed", 2).await;
    let limits = r#","worker":{"retryTimeoutMs":0}"#;
    let _worker = Worker::start(broker, 2, limits, &["replayed"]);
    // Each fails once.
    let number = |x: i64| {
        Input::number(&format!("customer-{x}"), x)
            .header("x-request-id", &format!("replayed-{x}"))
            .header("x-tenant", "a")
            .header("x-fail", "transient")
            .header("x-attempts", "1")
    };
    for x in 0..3 {
        flow.send(number(x)).await;
    }
    let topic = flow.errors();
    let count = |errors: &[Output]| errors.iter().filter(|e| e.header("pipeline") == "replayed").count();
    flow.read_until(&topic, "dead letters", |errors| count(errors) == 3).await;
    let replay = |requests: &[&str]| {
        let output = Command::new(example("replay"))
            .args([&broker.address(), "default", "replayed"])
            .args(requests)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let printed = replay(&["replayed-1"]);
    assert!(printed.starts_with("replayed-1\tseldon.default.pipeline.replayed.inputs/"), "{printed}");
    let outputs = flow.outputs(1).await;
    assert_eq!(outputs[0].number(Side::Outputs), 4);
    assert_eq!((outputs[0].key.as_str(), outputs[0].header("x-tenant")), ("customer-1", "a"));
    assert_eq!(outputs[0].header("x-request-id"), "replayed-1");
    assert_eq!(replay(&[]).lines().count(), 3);
    let mut numbers: Vec<i64> =
        flow.outputs(4).await.iter().map(|output| output.number(Side::Outputs)).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [2, 4, 4, 6]);
}
