//! The pipelines of `testdata/pipelines.jsonl`, which the gateway runs over REST and gRPC too. A line has the `spec` of the
//! pipeline `p`, the tensors of the `request`, and the `response` or the `error`. `models` lists what a model returns, `y` by
//! default, run by run; the last entry repeats. `or` is the response if steps finish in another order.

use super::*;
use serde_json::Value;

fn strings(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().map(|item| item.as_str().unwrap().to_owned()).collect()
}

fn renames(value: &Value) -> BTreeMap<String, String> {
    let entries = value.as_object().into_iter().flatten();
    entries.map(|(from, to)| (from.clone(), to.as_str().unwrap().to_owned())).collect()
}

fn join(value: &Value) -> Join {
    match value.as_str() {
        None | Some("inner") => Join::Inner,
        Some("outer") => Join::Outer,
        Some("any") => Join::Any,
        Some(other) => panic!("{other} is not a join type"),
    }
}

fn definition(spec: &Value) -> Definition {
    let step = |step: &Value| Step {
        name: step["name"].as_str().unwrap().into(),
        inputs: strings(&step["inputs"]),
        inputs_join: join(&step["inputsJoinType"]),
        triggers: strings(&step["triggers"]),
        triggers_join: join(&step["triggersJoinType"]),
        tensor_map: renames(&step["tensorMap"]),
        ..Step::default()
    };
    let output = |output: &Value| Output {
        steps: strings(&output["steps"]),
        join: join(&output["stepsJoin"]),
        tensor_map: renames(&output["tensorMap"]),
        ..Output::default()
    };
    Definition {
        name: "p".into(),
        steps: spec["steps"].as_array().unwrap().iter().map(step).collect(),
        output: spec.get("output").map(output),
        allow_cycles: spec["allowCycles"] == true,
        max_step_revisits: spec["maxStepRevisits"].as_u64().unwrap_or_default() as u32,
        ..Definition::default()
    }
}

#[test]
fn pipelines_give_the_response_of_the_table() {
    let table = include_str!("../../../../../testdata/pipelines.jsonl");
    let mut cases = 0;
    for line in table.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let request: Vec<_> = case["request"].as_str().unwrap().split_whitespace().collect();
        let model = |step: &str, before: usize| {
            let runs = strings(&case["models"][step]);
            let returned = runs.get(before).or(runs.last()).map_or("y", |tensors| tensors);
            returned.split_whitespace().map(str::to_owned).collect()
        };
        let (found, ran) = execute(&definition(&case["spec"]), &request, model);
        let expected = case.get("response").or(case.get("error")).unwrap();
        assert_eq!((&*found, &*ran), (expected.as_str().unwrap(), case["ran"].as_str().unwrap()), "{line}");
        cases += 1;
    }
    assert!(cases >= 60, "{cases}");
}
