use super::{definition, step};
use crate::inference_graph::{Graph, Router, Step};

fn errors(nodes: Vec<(&str, Router, Vec<Step>)>) -> Vec<String> {
    match Graph::compile(&definition(nodes)) {
        Ok(_) => Vec::new(),
        Err(errors) => errors.into_iter().map(|e| format!("{} {}", e.field, e.message)).collect(),
    }
}

#[test]
fn invalid_graphs_report_field_and_remedy() {
    use Router::{Ensemble, Sequence, Splitter, Switch};
    for (nodes, expected) in [
        (
            vec![("a", Sequence, vec![step("s")])],
            vec!["nodes has no node root, where requests enter: rename a node to root"],
        ),
        (vec![("root", Ensemble, vec![])], vec!["nodes.root.steps is empty: add a step"]),
        (
            vec![("root", Ensemble, vec![step("a").named("x"), step("b").named("x")])],
            vec!["nodes.root.steps[1].name is used by another step of the node: names must differ"],
        ),
        (
            vec![("root", Sequence, vec![step("node:b")])],
            vec!["nodes.root.steps[0].nodeName \"b\" is not in spec.nodes: add it"],
        ),
        (
            vec![("root", Splitter, vec![step("a").weight(60), step("b")])],
            vec![
                "nodes.root.steps[1].weight is missing: each step of a Splitter needs its percentage of the requests",
                "nodes.root.steps have weights that add up to 60: they must add up to 100",
            ],
        ),
        (
            vec![("root", Splitter, vec![step("a").weight(200), step("b").weight(-100)])],
            vec![
                "nodes.root.steps[1].weight is missing: each step of a Splitter needs its percentage of the requests",
            ],
        ),
        (
            vec![("root", Sequence, vec![step("a").when("x")])],
            vec![
                "nodes.root.steps[0].condition is evaluated on the previous response, and the first step has none: remove it, or use a Switch",
            ],
        ),
        (
            vec![("root", Switch, vec![step("a").when("a|b")])],
            vec!["nodes.root.steps[0].condition has a pipe (|), which is not supported: use ."],
        ),
        (
            vec![("root", Sequence, vec![step("node:root")])],
            vec!["nodes.root.steps[0].nodeName makes a cycle, root → root: remove one of the steps"],
        ),
        (
            vec![
                ("root", Sequence, vec![step("a"), step("node:b")]),
                ("b", Switch, vec![step("node:c").when("x")]),
                ("c", Ensemble, vec![step("a"), step("node:b")]),
            ],
            vec!["nodes.c.steps[1].nodeName makes a cycle, b → c → b: remove one of the steps"],
        ),
    ] {
        assert_eq!(errors(nodes), expected);
    }
}

#[test]
fn depth_and_calls_are_bounded() {
    let chain = |depth: usize| {
        let names: Vec<String> = (1..depth).map(|i| format!("n{i}")).collect();
        let mut nodes = vec![("root", Router::Sequence, vec![step("node:n1")])];
        for (i, name) in names.iter().enumerate() {
            let target = names.get(i + 1).map_or_else(|| "s".to_owned(), |next| format!("node:{next}"));
            nodes.push((name, Router::Sequence, vec![step(&target)]));
        }
        errors(nodes)
    };
    assert_eq!(chain(32), [""; 0]);
    assert_eq!(chain(33), ["nodes has 33 nodes within each other, at most 32 are allowed"]);
    // Each node calls the next one twice: 2^n calls, or one of a switch.
    let tree = |levels: usize, router: Router| {
        let names: Vec<String> =
            (0..levels).map(|i| if i == 0 { "root".into() } else { format!("n{i}") }).collect();
        let nodes = names.iter().enumerate().map(|(i, name)| {
            let target = names.get(i + 1).map_or_else(|| "s".to_owned(), |next| format!("node:{next}"));
            (name.as_str(), router, vec![step(&target), step(&target)])
        });
        errors(nodes.collect())
    };
    assert_eq!(tree(10, Router::Ensemble), [""; 0]);
    assert_eq!(
        tree(11, Router::Ensemble),
        ["nodes can make 2048 calls for a request, at most 1024 are allowed"]
    );
    assert_eq!(tree(30, Router::Switch), [""; 0]);
    let names: Vec<String> = (0..300).map(|i| format!("n{i}")).collect();
    let mut nodes: Vec<_> = names.iter().map(|n| (n.as_str(), Router::Sequence, vec![step("s")])).collect();
    nodes.push(("root", Router::Sequence, vec![step("s")]));
    assert_eq!(errors(nodes), ["nodes has 301 nodes, at most 256 are allowed"]);
}

#[test]
fn targets_are_listed_once() {
    let nodes = vec![
        ("root", Router::Sequence, vec![step("a"), step("node:b"), step("a")]),
        ("b", Router::Sequence, vec![step("http://a"), step("b")]),
    ];
    let graph = Graph::compile(&definition(nodes)).unwrap();
    let targets: Vec<String> = graph.targets().map(|target| format!("{target:?}")).collect();
    assert_eq!(targets, ["Url(\"http://a\")", "Service(\"b\")", "Service(\"a\")"]);
}
