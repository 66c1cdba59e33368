//! The CEL and the Rust form of each rule agree on result, path and message.

use super::{CelRule, Check, Validate};
use crate::{
    AlgorithmSpec, ExperimentSpec, FieldError, ModelSpec, PipelineSpec, RolloutPolicySpec, SeldonConfigSpec,
    SeldonRuntimeSpec, ServerSpec, check_name,
    kserve::{
        ClusterStorageContainerSpec, InferenceGraphSpec, InferenceServiceSpec, ServingRuntimeSpec,
        TrainedModelSpec,
    },
    name,
};
use cel::extractors::This;
use proptest::prelude::*;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    rc::Rc,
    sync::Arc,
};

thread_local! {
    /// Parsing takes far longer than evaluation.
    static PROGRAMS: RefCell<BTreeMap<String, Rc<cel::Program>>> = RefCell::default();
}

fn evaluate(expression: &str, this: &Value) -> cel::Value {
    let program = PROGRAMS.with_borrow_mut(|programs| {
        let compile = || Rc::new(cel::Program::compile(expression).expect(expression));
        Rc::clone(programs.entry(expression.to_owned()).or_insert_with(compile))
    });
    let mut context = cel::Context::default();
    context.add_variable_from_value("self", to_cel(this));
    context.add_function("split", split);
    context.add_function("format", format);
    context.add_function("sets.contains", contains_all);
    context.add_function("sum", sum);
    program.execute(&context).unwrap_or_else(|e| panic!("{expression} on {this}: {e}"))
}

/// `split`, `format`, `sum` and `sets.contains` are Kubernetes extensions that the library lacks.
#[allow(clippy::needless_pass_by_value, clippy::unnecessary_wraps, reason = "required by the library")]
fn split(This(text): This<Arc<String>>, by: Arc<String>) -> cel::ResolveResult {
    Ok(text.split(by.as_str()).map(cel::Value::from).collect::<Vec<_>>().into())
}

#[allow(clippy::needless_pass_by_value, reason = "required by the library")]
fn format(This(text): This<Arc<String>>, values: Arc<Vec<cel::Value>>) -> String {
    let mut values = values.iter();
    let mut filled = String::new();
    let mut pieces = text.split("%s");
    filled += pieces.next().unwrap_or_default();
    for piece in pieces {
        match values.next() {
            Some(cel::Value::String(text)) => filled += text,
            Some(cel::Value::Int(number)) => filled += &number.to_string(),
            other => panic!("{text}: unexpected value {other:?}"),
        }
        filled += piece;
    }
    filled.replace("%%", "%")
}

#[allow(clippy::needless_pass_by_value, reason = "required by the library")]
fn contains_all(set: Arc<Vec<cel::Value>>, items: Arc<Vec<cel::Value>>) -> bool {
    items.iter().all(|item| set.contains(item))
}

#[allow(clippy::needless_pass_by_value, reason = "required by the library")]
fn sum(This(list): This<Arc<Vec<cel::Value>>>) -> i64 {
    let number = |value: &cel::Value| match value {
        cel::Value::Int(number) => *number,
        other => panic!("{other:?} is not an integer"),
    };
    list.iter().map(number).sum()
}

/// As in the API server: integers are `int`.
fn to_cel(value: &Value) -> cel::Value {
    match value {
        Value::Null => cel::Value::Null,
        Value::Bool(b) => (*b).into(),
        Value::Number(n) => n.as_i64().map_or_else(|| n.as_f64().expect("a number").into(), cel::Value::from),
        Value::String(s) => s.as_str().into(),
        Value::Array(items) => items.iter().map(to_cel).collect::<Vec<_>>().into(),
        Value::Object(fields) => {
            fields.iter().map(|(k, v)| (k.clone(), to_cel(v))).collect::<HashMap<_, _>>().into()
        }
    }
}

/// All values at a location, with their paths.
fn values_at<'a>(object: &'a Value, at: &str) -> Vec<(String, &'a Value)> {
    let mut found = vec![(String::new(), object)];
    for part in at.split('.').filter(|p| !p.is_empty()) {
        let (field, of_items) = part.strip_suffix("[]").map_or((part, false), |field| (field, true));
        let below = |(path, value): (String, &'a Value)| {
            let path = if path.is_empty() { field.to_owned() } else { format!("{path}.{field}") };
            value.get(field).map(|v| (path, v))
        };
        found = found.into_iter().filter_map(below).collect();
        if of_items {
            let items = |(path, value): (String, &'a Value)| {
                let items = value.as_array().expect("a list").iter().enumerate();
                items.map(|(i, v)| (format!("{path}[{i}]"), v)).collect::<Vec<_>>()
            };
            found = found.into_iter().flat_map(items).collect();
        }
    }
    found
}

/// The errors that the API server reports for a rule.
pub(crate) fn cel_errors(rule: &CelRule, object: &Value) -> Vec<FieldError> {
    let violations =
        values_at(object, rule.at).into_iter().filter(|(_, v)| evaluate(rule.rule, v) == false.into());
    violations
        .map(|(path, value)| {
            let path = match (path.as_str(), rule.field) {
                (_, "") => path,
                ("", field) => field.to_owned(),
                (_, field) => format!("{path}.{field}"),
            };
            let message = match rule.values {
                [] => rule.message.to_owned(),
                _ => match evaluate(&rule.message_expression(), value) {
                    cel::Value::String(message) => message.to_string(),
                    other => panic!("{} gives {other:?}", rule.message_expression()),
                },
            };
            (path, message)
        })
        .collect()
}

/// Whether a path equals another one or is below it.
fn is_at(path: &str, above: &str) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

fn assert_cel_agrees<S: Validate + DeserializeOwned>(name: &str, spec: &Value) {
    let object = json!({ "metadata": { "name": name }, "spec": spec });
    let typed: S = serde_json::from_value(spec.clone()).expect("a spec that fits its schema");
    for rule in S::RULES {
        let found = match rule.check {
            Check::Spec(find) => find(&typed),
            Check::Object(find) => find(name, &typed),
            Check::Whole => {
                let theirs = cel_errors(&rule.cel, &object);
                let ours = Validate::validate_named(&typed, name);
                assert!(theirs.is_empty() || !ours.is_empty(), "only CEL: {theirs:?}\n{object}");
                continue;
            }
        };
        let ours: Vec<FieldError> = rule.cel.field_errors(found).collect();
        let theirs = cel_errors(&rule.cel, &object);
        for (path, message) in &theirs {
            assert!(
                ours.iter().any(|(p, m)| is_at(p, path) && m == message),
                "only CEL: {path} {message}\nRust: {ours:?}\n{object}"
            );
        }
        for (path, message) in &ours {
            assert!(
                theirs.iter().any(|(p, _)| is_at(path, p)),
                "only Rust: {path} {message}\nCEL: {theirs:?}\n{object}"
            );
        }
    }
}

fn word() -> BoxedStrategy<Value> {
    let words = [
        "",
        " ",
        "\u{a0}",
        "\u{85}",
        "\u{b}",
        "\u{200b}",
        "\u{3000}x",
        "a",
        "b",
        "c",
        "é",
        "'",
        "a.outputs",
        "a.inputs.t",
        "a.b",
        "a.outputs.",
        ".outputs",
        "a.outputs.t.u",
        "a\n",
    ];
    proptest::sample::select(words.to_vec()).prop_map(Value::from).boxed()
}

fn few() -> BoxedStrategy<Value> {
    (0..4).prop_map(|n: i32| n.into()).boxed()
}

fn list(of: BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    proptest::collection::vec(of, 0..4).prop_map(Value::from).boxed()
}

/// An object with these fields; those whose name ends with `?` may be absent.
fn object(fields: Vec<(&'static str, BoxedStrategy<Value>)>) -> BoxedStrategy<Value> {
    let mut all = Just(Map::new()).boxed();
    for (name, values) in fields {
        let (name, optional) = name.strip_suffix('?').map_or((name, false), |name| (name, true));
        let value =
            if optional { proptest::option::of(values).boxed() } else { values.prop_map(Some).boxed() };
        all = (all, value)
            .prop_map(move |(mut fields, value)| {
                fields.extend(value.map(|v| (name.to_owned(), v)));
                fields
            })
            .boxed();
    }
    all.prop_map(Value::Object).boxed()
}

fn references() -> BoxedStrategy<Value> {
    object(vec![("modelRef?", word()), ("pipelineRef?", word())])
}

fn model() -> BoxedStrategy<Value> {
    object(vec![
        ("storageUri", word()),
        ("requirements?", list(word())),
        ("explainer?", references()),
        ("llm?", references()),
        ("parameters?", list(object(vec![("name", word()), ("value", word())]))),
        ("replicas?", few()),
        ("minReplicas?", few()),
        ("maxReplicas?", few()),
    ])
}

fn server() -> BoxedStrategy<Value> {
    object(vec![
        ("serverConfig", word()),
        ("capabilities?", list(word())),
        ("extraCapabilities?", list(word())),
        ("replicas?", few()),
        ("minReplicas?", few()),
        ("maxReplicas?", few()),
    ])
}

fn pipeline() -> BoxedStrategy<Value> {
    let step = object(vec![("name", word()), ("inputs?", list(word())), ("triggers?", list(word()))]);
    object(vec![
        ("input?", object(vec![("externalInputs?", list(word())), ("externalTriggers?", list(word()))])),
        ("steps", list(step)),
        ("output?", object(vec![("steps?", list(word()))])),
        ("allowCycles?", any::<bool>().prop_map(Value::from).boxed()),
        ("maxStepRevisits?", (999..1002).prop_map(|n: i32| n.into()).boxed()),
    ])
}

fn experiment() -> BoxedStrategy<Value> {
    object(vec![
        ("default?", word()),
        ("candidates?", list(object(vec![("name", word()), ("weight", few())]))),
        (
            "mirror?",
            object(vec![("name", word()), ("percent", (99..103).prop_map(|n: i32| n.into()).boxed())]),
        ),
    ])
}

fn runtime() -> BoxedStrategy<Value> {
    object(vec![("seldonConfig", word()), ("overrides?", list(object(vec![("name", word())])))])
}

fn config() -> BoxedStrategy<Value> {
    object(vec![("components?", list(object(vec![("name", word())])))])
}

fn replicas(mut fields: Vec<(&'static str, BoxedStrategy<Value>)>) -> BoxedStrategy<Value> {
    fields.extend([("minReplicas?", few()), ("maxReplicas?", few())]);
    object(fields)
}

fn inference_service() -> BoxedStrategy<Value> {
    let framework = || object(vec![("storageUri?", word())]);
    let container = || {
        let name = proptest::sample::select(vec!["a", "kserve-container"]).prop_map(Value::from).boxed();
        object(vec![("name?", name)])
    };
    let model = object(vec![("modelFormat", object(vec![("name", word())])), ("storageUri?", word())]);
    let predictor = replicas(vec![
        ("sklearn?", framework()),
        ("paddle?", framework()),
        ("model?", model),
        ("containers?", list(container())),
        ("storageUris?", list(object(vec![("uri", word())]))),
    ]);
    let percent = (0..60).prop_map(|n: i32| n.into()).boxed();
    let canary = object(vec![("predictor", object(vec![("name?", word())])), ("trafficPercent?", percent)]);
    object(vec![
        ("predictor", predictor),
        ("transformer?", replicas(vec![("containers?", list(container()))])),
        ("explainer?", replicas(vec![("art?", object(vec![])), ("containers?", list(container()))])),
        ("canary?", list(canary)),
    ])
}

fn serving_runtime() -> BoxedStrategy<Value> {
    object(vec![("containers", list(object(vec![("name", word())])))])
}

fn storage_container() -> BoxedStrategy<Value> {
    let workloads = ["", "initContainer", "localModelDownloadJob", "job", " initContainer"];
    let workload = proptest::sample::select(workloads.to_vec()).prop_map(Value::from).boxed();
    object(vec![
        ("container", object(vec![])),
        ("supportedUriFormats", list(object(vec![]))),
        ("workloadType?", workload),
    ])
}

fn trained_model() -> BoxedStrategy<Value> {
    let memory = Just(Value::from("1Mi")).boxed();
    let model = object(vec![("storageUri", word()), ("framework", word()), ("memory", memory)]);
    object(vec![("inferenceService", word()), ("model", model)])
}

fn inference_graph() -> BoxedStrategy<Value> {
    let node = || object(vec![("routerType", Just(Value::from("Sequence")).boxed())]);
    object(vec![("nodes", object(vec![("root?", node()), ("a?", node())]))])
}

fn rollout_policy() -> BoxedStrategy<Value> {
    let kind = || proptest::sample::select(vec!["Model", "Pipeline"]).prop_map(Value::from).boxed();
    let steps = || list(object(vec![("weight", (1..4).prop_map(|n: i32| n.into()).boxed())]));
    let mirror = object(vec![("percent", Just(Value::from(10)).boxed()), ("steps", steps())]);
    object(vec![
        ("targetRef?", object(vec![("kind", kind()), ("name", word())])),
        ("selector?", object(vec![("kind", kind()), ("matchLabels", object(vec![("a?", word())]))])),
        (
            "strategy",
            object(vec![
                ("canary?", object(vec![("steps", steps())])),
                ("blueGreen?", object(vec![])),
                ("mirrorFirst?", mirror),
            ]),
        ),
        ("analysis?", object(vec![("sequential?", object(vec![])), ("thresholds?", object(vec![]))])),
    ])
}

fn algorithm() -> BoxedStrategy<Value> {
    let word_of =
        |words: &[&'static str]| proptest::sample::select(words.to_vec()).prop_map(Value::from).boxed();
    let threshold = proptest::sample::select(vec![-0.5, 0.0, 0.99, 1.0, 1.01]).prop_map(Value::from).boxed();
    let weight = proptest::sample::select(vec![0, 1, 20, 100, 101]).prop_map(Value::from).boxed();
    object(vec![
        ("image", word_of(&["", " ", "a:1", " a"])),
        (
            "scaling?",
            object(vec![
                ("minReplicas?", few()),
                ("maxReplicas?", few()),
                ("targetLatencyMs?", (-1..2).prop_map(|n: i32| n.into()).boxed()),
            ]),
        ),
        (
            "resources?",
            object(vec![
                ("gpu?", word_of(&["nvidia.com/gpu", "gpu", "/gpu", "a/", "a/b/c"])),
                ("gpuCount?", few()),
            ]),
        ),
        ("lifecycle?", object(vec![("successThreshold?", threshold), ("steps?", list(weight))])),
    ])
}

#[test]
fn server_name_starts_with_a_letter_and_has_at_most_52_characters() {
    let spec = ServerSpec { server_config: "a".into(), ..ServerSpec::default() };
    let long = "a".repeat(53);
    for (name, problem) in [("a", false), (&long[1..], false), (&long, true), ("1a", true)] {
        let errors = spec.validate_named(name);
        assert_eq!(!errors.is_empty(), problem, "{name}: {errors:?}");
        assert!(
            errors.iter().all(|(path, e)| path == "metadata.name" && e.contains("more than 52 characters"))
        );
    }
}

/// Step names and references of a graph: most of them exist.
fn graph() -> BoxedStrategy<Value> {
    (1..=16_usize)
        .prop_flat_map(|count| {
            let reference = (0..count + 1, proptest::sample::select(vec!["", ".outputs", ".inputs.t"]));
            let reference = reference.prop_map(move |(step, tail)| match step {
                0 => format!("p{tail}"),
                step => format!("s{}{tail}", step - usize::from(tail.is_empty())),
            });
            let list = proptest::collection::vec(reference, 0..2);
            let lists = proptest::collection::vec((list.clone(), list), count);
            (lists, any::<bool>(), 0..=count)
        })
        .prop_map(|(lists, allow_cycles, output)| {
            let step = |(i, (inputs, triggers))| json!({ "name": format!("s{i}"), "inputs": inputs, "triggers": triggers });
            let steps: Vec<Value> = lists.into_iter().enumerate().map(step).collect();
            json!({ "steps": steps, "output": { "steps": [format!("s{output}.outputs")] }, "allowCycles": allow_cycles })
        })
        .boxed()
}

/// Messages of the rules whose Rust form is the check of the whole object.
fn whole_errors(spec: &Value) -> Vec<&'static str> {
    let object = json!({ "metadata": { "name": "p" }, "spec": spec });
    let rules = PipelineSpec::RULES.iter().filter(|rule| matches!(rule.check, Check::Whole));
    rules.filter(|rule| !cel_errors(&rule.cel, &object).is_empty()).map(|rule| rule.cel.message).collect()
}

#[test]
fn cel_finds_missing_steps_and_cycles_up_to_its_limits() {
    let steps = |count: usize, read: &dyn Fn(usize) -> String| {
        let steps = (0..count).map(|i| json!({ "name": format!("s{i}"), "inputs": [read(i)] }));
        json!({ "steps": steps.collect::<Vec<_>>() })
    };
    let ring = |count: usize| steps(count, &|i| format!("s{}.outputs", (i + 1) % count));
    for count in 2..=16 {
        assert_eq!(whole_errors(&ring(count)).len(), 1, "{count}");
    }
    assert_eq!(whole_errors(&ring(17)), [""; 0]);
    let chain = |count: usize| steps(count, &|i| if i == 0 { "p".into() } else { format!("s{}", i - 1) });
    assert_eq!(whole_errors(&chain(16)), [""; 0]);
    let missing = |count: usize| steps(count, &|i| if i + 1 == count { "q".into() } else { "p".into() });
    assert_eq!(whole_errors(&missing(100)).len(), 1);
    assert_eq!(whole_errors(&missing(101)), [""; 0]);
}

proptest! {
    // The closure of a graph takes long in an unoptimized interpreter.
    #![proptest_config(ProptestConfig::with_cases(50))]

    #[test]
    fn cel_agrees_on_graphs(spec in graph()) {
        let typed: PipelineSpec = serde_json::from_value(spec.clone()).unwrap();
        let ours = typed.validate_named("p");
        let text = ours.iter().map(|(_, message)| message.as_str()).collect::<String>();
        let theirs = whole_errors(&spec);
        let at_whole = typed.validate().is_empty();
        for word in ["for step that does not exist", "not found", "has a cycle, "] {
            prop_assert!(!at_whole || !text.contains(word) || !theirs.is_empty(), "only Rust: {ours:?}");
        }
        prop_assert!(theirs.is_empty() || !ours.is_empty(), "only CEL: {theirs:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn cel_agrees_on_models(spec in model()) {
        assert_cel_agrees::<ModelSpec>("a", &spec);
    }

    #[test]
    fn cel_agrees_on_servers(spec in server(), name in "[-a-z0-9.]{1,3}[a-z]{0,60}") {
        assert_cel_agrees::<ServerSpec>(&name, &spec);
    }

    #[test]
    fn cel_agrees_on_pipelines(spec in pipeline()) {
        assert_cel_agrees::<PipelineSpec>("a", &spec);
    }

    #[test]
    fn cel_agrees_on_experiments(spec in experiment()) {
        assert_cel_agrees::<ExperimentSpec>("a", &spec);
    }

    #[test]
    fn cel_agrees_on_runtimes(spec in runtime()) {
        assert_cel_agrees::<SeldonRuntimeSpec>("a", &spec);
    }

    #[test]
    fn cel_agrees_on_configs(spec in config()) {
        assert_cel_agrees::<SeldonConfigSpec>("a", &spec);
    }

    #[test]
    fn cel_agrees_on_inference_services(spec in inference_service(), name in "[-a-z0-9.]{1,3}") {
        assert_cel_agrees::<InferenceServiceSpec>(&name, &spec);
    }

    #[test]
    fn cel_agrees_on_serving_runtimes(spec in serving_runtime()) {
        assert_cel_agrees::<ServingRuntimeSpec>("a", &spec);
    }

    #[test]
    fn cel_agrees_on_storage_containers(spec in storage_container()) {
        assert_cel_agrees::<ClusterStorageContainerSpec>("a", &spec);
    }

    #[test]
    fn cel_agrees_on_trained_models(spec in trained_model()) {
        assert_cel_agrees::<TrainedModelSpec>("a", &spec);
    }

    #[test]
    fn cel_agrees_on_inference_graphs(spec in inference_graph(), name in "[-a-z0-9.]{1,3}") {
        assert_cel_agrees::<InferenceGraphSpec>(&name, &spec);
    }

    #[test]
    fn cel_agrees_on_rollout_policies(spec in rollout_policy()) {
        assert_cel_agrees::<RolloutPolicySpec>("a", &spec);
    }

    #[test]
    fn cel_agrees_on_algorithms(spec in algorithm(), name in "[-a-z0-9.]{1,3}[a-z]{0,60}") {
        assert_cel_agrees::<AlgorithmSpec>(&name, &spec);
    }

    #[test]
    fn cel_agrees_on_names(word in "[-a-zA-Z0-9._é\n ]{0,4}") {
        let object = json!({ "metadata": { "name": word } });
        prop_assert_eq!(evaluate(name::NAME_RULE.rule, &object) == true.into(), check_name(&word).is_ok());
    }
}
