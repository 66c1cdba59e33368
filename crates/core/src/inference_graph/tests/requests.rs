use super::{definition, step};
use crate::inference_graph::{
    Call, CallTarget, Context, Graph, MAX_CALLS, Response, Router, Run, Step, is_valid,
};
use Router::{Ensemble, Sequence, Splitter, Switch};
use proptest::prelude::*;
use std::{collections::BTreeMap, sync::Arc};

struct Fixed(u64);

impl Context<Vec<u8>> for Fixed {
    fn random(&mut self) -> u64 {
        self.0
    }

    fn body(&mut self, bytes: Vec<u8>) -> Vec<u8> {
        bytes
    }
}

fn name(call: &Call<Vec<u8>>) -> String {
    match &call.target {
        CallTarget::Service(name) | CallTarget::Url(name) => name.to_string(),
    }
}

/// Calls with their inputs, and the outcome. Responses are `status body`; a service without one fails.
fn run(
    nodes: Vec<(&str, Router, Vec<Step>)>,
    request: &str,
    responses: &[(&str, &str)],
    random: u64,
) -> (Vec<String>, String) {
    let graph = Arc::new(Graph::compile(&definition(nodes)).unwrap());
    let responses: BTreeMap<&str, &str> = responses.iter().copied().collect();
    let mut context = Fixed(random);
    let mut run = Run::start(graph, request.as_bytes().to_vec(), &mut context);
    let mut calls = Vec::new();
    loop {
        let mut started = Vec::new();
        while let Some(call) = run.next_call() {
            calls.push(format!("{} {}", name(&call), String::from_utf8_lossy(&call.input)));
            started.push(call);
        }
        // In reverse, so that the order of the responses is not the order of the steps.
        for call in started.into_iter().rev() {
            let response = responses.get(name(&call).as_str()).map(|response| {
                let (status, body) = response.split_once(' ').unwrap();
                Response { status: status.parse().unwrap(), body: body.as_bytes().to_vec() }
            });
            run.complete(call.id, response.ok_or_else(|| "no connection".to_owned()), &mut context);
        }
        match run.outcome() {
            Some(Ok(response)) => {
                return (calls, format!("{} {}", response.status, String::from_utf8_lossy(&response.body)));
            }
            Some(Err(failure)) => return (calls, format!("{} failed: {}", failure.status, failure.cause)),
            None => {}
        }
    }
}

#[test]
fn sequences() {
    let request = r#"{"instances":[1]}"#;
    let answers = [
        ("a", r#"200 {"predictions":["dog"]}"#),
        ("b", "200 {\"b\":1}"),
        ("bad", "503 {\"error\":1}"),
        ("text", "200 hello"),
    ];
    for (steps, calls, expected) in [
        (vec![step("a")], vec![r#"a {"instances":[1]}"#], r#"200 {"predictions":["dog"]}"#),
        (
            vec![step("a"), step("b")],
            vec![r#"a {"instances":[1]}"#, r#"b {"instances":[1]}"#],
            "200 {\"b\":1}",
        ),
        (
            vec![step("a"), step("b").of_response()],
            vec![r#"a {"instances":[1]}"#, r#"b {"predictions":["dog"]}"#],
            "200 {\"b\":1}",
        ),
        (
            vec![step("a").of_response(), step("b").of_response().mapped()],
            vec![r#"a {"instances":[1]}"#, r#"b {"instances":["dog"]}"#],
            "200 {\"b\":1}",
        ),
        // Conditions.
        (
            vec![step("a"), step("b").when("[@this].#(predictions.0==\"dog\")")],
            vec![r#"a {"instances":[1]}"#, r#"b {"instances":[1]}"#],
            "200 {\"b\":1}",
        ),
        (
            vec![step("a"), step("b").when("[@this].#(predictions.0==\"cat\")"), step("c")],
            vec![r#"a {"instances":[1]}"#],
            r#"200 {"predictions":["dog"]}"#,
        ),
        (
            vec![step("bad"), step("b").when("predictions")],
            vec![r#"bad {"instances":[1]}"#],
            "200 {\"error\":1}",
        ),
        (
            vec![step("text"), step("b").when("predictions")],
            vec![r#"text {"instances":[1]}"#],
            "500 failed: step 0 of node root did not respond with JSON, which the next condition needs",
        ),
        // Dependencies.
        (
            vec![step("bad"), step("b").of_response()],
            vec![r#"bad {"instances":[1]}"#, "b {\"error\":1}"],
            "200 {\"b\":1}",
        ),
        (vec![step("bad").hard(), step("b")], vec![r#"bad {"instances":[1]}"#], "503 {\"error\":1}"),
        (
            vec![step("a").hard(), step("text").hard()],
            vec![r#"a {"instances":[1]}"#, r#"text {"instances":[1]}"#],
            "200 hello",
        ),
        (
            vec![step("b"), step("bad")],
            vec![r#"b {"instances":[1]}"#, r#"bad {"instances":[1]}"#],
            "503 {\"error\":1}",
        ),
        (
            vec![step("gone").named("first"), step("b")],
            vec![r#"gone {"instances":[1]}"#],
            "500 failed: step first of node root: no connection",
        ),
    ] {
        let (made, outcome) = run(vec![("root", Sequence, steps.clone())], request, &answers, 0);
        assert_eq!(
            (made, outcome.as_str()),
            (calls.iter().map(ToString::to_string).collect(), expected),
            "{steps:?}"
        );
    }
}

#[test]
fn splitter_draws_by_cumulative_weights() {
    let steps = || vec![step("a").weight(20), step("none").weight(0), step("b").weight(80)];
    let answers = [("a", "200 1"), ("b", "429 2")];
    let percent = |percent: u64| (u128::from(percent) * (1_u128 << 64) / 100) as u64;
    for (random, expected) in [
        (0, "200 1"),
        (percent(19), "200 1"),
        (percent(20), "200 1"),
        (percent(20) + 1, "429 2"),
        (percent(99), "429 2"),
        (u64::MAX, "429 2"),
    ] {
        assert_eq!(run(vec![("root", Splitter, steps())], "{}", &answers, random).1, expected, "{random}");
    }
}

#[test]
fn switch_selects_the_first_condition_that_exists() {
    let nodes = || {
        vec![(
            "root",
            Switch,
            vec![step("never"), step("a").when("[@this].#(model==\"a\")"), step("b").when("model").hard()],
        )]
    };
    let answers = [("a", "200 1"), ("b", "500 2"), ("never", "200 3")];
    for (request, expected) in [
        (r#"{"model": "a"}"#, "200 1"),
        (r#"{"model": "b"}"#, "500 2"),
        (r#"{"instances": []}"#, "404 failed: no condition of switch root matches the request"),
        ("not JSON", "404 failed: no condition of switch root matches the request"),
        ("", "404 failed: no condition of switch root matches the request"),
    ] {
        assert_eq!(run(nodes(), request, &answers, 0).1, expected, "{request}");
    }
}

#[test]
fn ensembles() {
    let answers = [
        ("a", "200 {\"x\": 1}"),
        ("b", "200 [2]"),
        ("bad", "503 {\"error\":1}"),
        ("worse", "500 {\"error\":2}"),
        ("down", "502 no \"backend\""),
        ("text", "200 hello"),
    ];
    for (steps, expected) in [
        (vec![step("b").named("z"), step("a").named("y")], "200 {\"y\":{\"x\": 1},\"z\":[2]}"),
        (vec![step("a"), step("b")], "200 {\"0\":{\"x\": 1},\"1\":[2]}"),
        (vec![step("a"), step("bad")], "200 {\"0\":{\"x\": 1},\"1\":{\"error\":1}}"),
        (vec![step("a"), step("bad").hard()], "503 {\"error\":1}"),
        (vec![step("bad").hard(), step("worse").hard()], "503 {\"error\":1}"),
        (vec![step("worse").hard(), step("bad").hard()], "500 {\"error\":2}"),
        (vec![step("a"), step("down")], "200 {\"0\":{\"x\": 1},\"1\":{\"error\":\"no \\\"backend\\\"\"}}"),
        (vec![step("a"), step("down").hard()], "502 no \"backend\""),
        (vec![step("a"), step("text")], "500 failed: step 1 of ensemble root did not respond with JSON"),
        (vec![step("a"), step("gone")], "500 failed: step 1 of node root: no connection"),
    ] {
        assert_eq!(run(vec![("root", Ensemble, steps.clone())], "{}", &answers, 0).1, expected, "{steps:?}");
    }
}

#[test]
fn nodes_are_nested() {
    let nodes = || {
        vec![
            (
                "root",
                Sequence,
                vec![step("a"), step("node:both").of_response().mapped(), step("c").of_response()],
            ),
            ("both", Ensemble, vec![step("b").named("b"), step("node:kind").named("kind")]),
            ("kind", Switch, vec![step("dog").when("instances.#(==\"dog\")"), step("cat").when("instances")]),
        ]
    };
    let answers =
        [("a", r#"200 {"predictions":["dog"]}"#), ("b", "200 1"), ("dog", "200 2"), ("c", "200 \"end\"")];
    let (calls, outcome) = run(nodes(), "{}", &answers, 0);
    assert_eq!(
        calls,
        ["a {}", r#"b {"instances":["dog"]}"#, r#"dog {"instances":["dog"]}"#, r#"c {"b":1,"kind":2}"#]
    );
    assert_eq!(outcome, "200 \"end\"");
    let answers = [("a", "200 {}"), ("b", "200 1")];
    let (calls, outcome) = run(nodes(), "{}", &answers, 0);
    assert_eq!(
        (calls.len(), outcome.as_str()),
        (1, "404 failed: no condition of switch kind matches the request")
    );
}

#[test]
fn calls_that_are_no_longer_needed_are_cancelled() {
    let nodes = vec![
        ("root", Sequence, vec![step("node:both"), step("after")]),
        ("both", Ensemble, vec![step("first").hard(), step("slow"), step("node:inner")]),
        ("inner", Sequence, vec![step("also-slow"), step("never")]),
    ];
    let graph = Arc::new(Graph::compile(&definition(nodes)).unwrap());
    let mut context = Fixed(0);
    let mut run = Run::start(graph, b"{}".to_vec(), &mut context);
    let calls: Vec<Call<Vec<u8>>> = std::iter::from_fn(|| run.next_call()).collect();
    assert_eq!(calls.iter().map(name).collect::<Vec<_>>(), ["first", "slow", "also-slow"]);
    let response = |status| Ok(Response { status, body: b"{}".to_vec() });
    run.complete(calls[0].id, response(500), &mut context);
    let mut cancelled = run.cancelled();
    cancelled.sort();
    assert_eq!(cancelled, [calls[1].id, calls[2].id]);
    assert_eq!(run.cancelled(), []);
    // Too late.
    run.complete(calls[2].id, response(200), &mut context);
    let after = run.next_call().unwrap();
    assert_eq!((name(&after).as_str(), run.next_call()), ("after", None));
    run.complete(after.id, response(204), &mut context);
    assert_eq!(run.outcome().unwrap().unwrap().status, 204);
}

fn any_step() -> impl Strategy<Value = Step> {
    let target = prop_oneof![3 => Just("s".to_owned()), 2 => (0..5_usize).prop_map(|i| format!("node:n{i}"))];
    let condition = proptest::option::of(prop_oneof![Just("a"), Just("*.#"), Just("[@this].#(a==1)")]);
    (target, any::<[bool; 3]>(), condition).prop_map(|(target, [response, mapped, hard], condition)| Step {
        takes_response: response,
        maps_predictions: mapped,
        is_hard: hard,
        condition: condition.map(Into::into),
        weight: Some(100),
        ..step(&target)
    })
}

fn any_graph() -> impl Strategy<Value = Graph> {
    let router = prop_oneof![Just(Sequence), Just(Splitter), Just(Ensemble), Just(Switch)];
    let node = (router, proptest::collection::vec(any_step(), 1..4));
    proptest::collection::vec(node, 6).prop_filter_map("an invalid graph", |nodes| {
        let names = ["root", "n0", "n1", "n2", "n3", "n4"];
        let mut nodes: Vec<_> =
            names.into_iter().zip(nodes).map(|(name, (router, steps))| (name, router, steps)).collect();
        for (i, (_, router, steps)) in nodes.iter_mut().enumerate() {
            // Nodes call later ones.
            for step in steps.iter_mut() {
                if let crate::inference_graph::Target::Node(name) = &mut step.target
                    && name.as_str() < format!("n{i}").as_str()
                {
                    step.target = crate::inference_graph::Target::Service("s".into());
                }
            }
            match router {
                Splitter => steps.truncate(1),
                Sequence => steps[0].condition = None,
                _ => {}
            }
        }
        Graph::compile(&definition(nodes)).ok()
    })
}

proptest! {
    #[test]
    fn every_request_ends_within_the_bound(
        graph in any_graph(),
        seeds in proptest::collection::vec(any::<u8>(), 1..40),
    ) {
        let bodies: [&[u8]; 6] = [b"{}", b"{\"a\":1}", b"{\"predictions\":[1]}", b"no json", b"", b"[{\"a\":1}]"];
        let mut seed = seeds.iter().cycle().map(|seed| usize::from(*seed));
        let mut context = Fixed(7);
        let mut run = Run::start(Arc::new(graph), bodies[seeds.len() % 6].to_vec(), &mut context);
        let mut in_flight = Vec::new();
        let mut calls = 0;
        let outcome = loop {
            while let Some(call) = run.next_call() {
                in_flight.push(call.id);
                calls += 1;
            }
            let cancelled = run.cancelled();
            in_flight.retain(|id| !cancelled.contains(id));
            if let Some(outcome) = run.outcome() {
                break outcome;
            }
            prop_assert!(!in_flight.is_empty(), "neither a call nor an outcome");
            let id = in_flight.swap_remove(seed.next().unwrap() % in_flight.len());
            let random = seed.next().unwrap();
            let status = [200, 204, 404, 503][random % 4];
            let response = Response { status, body: bodies[random / 4 % 6].to_vec() };
            run.complete(id, if random == 77 { Err("gone".into()) } else { Ok(response) }, &mut context);
        };
        prop_assert!(calls <= MAX_CALLS);
        prop_assert!(in_flight.is_empty(), "calls remain after {outcome:?}");
        if let Err(failure) = outcome {
            prop_assert!(matches!(failure.status, 404 | 500));
            prop_assert!(is_valid(crate::inference_graph::error_body(&failure.cause).as_bytes()));
        }
    }
}
