//! Error messages and conversion of manifests.

mod kinds;
mod services;

use crate::{Experiment, KEEP_PAYLOADS, Model, Object, Pipeline, parse};

/// The errors of a manifest, one per line.
fn errors(text: &str) -> String {
    match parse("iris.yaml", text) {
        Ok(objects) => format!("{} objects", objects.len()),
        Err(errors) => errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
    }
}

fn model(spec: &str) -> String {
    format!("apiVersion: mlops.seldon.io/v1alpha1\nkind: Model\nmetadata:\n  name: iris\nspec:\n{spec}")
}

#[test]
fn invalid_manifests_report_position_and_remedy() {
    for (text, expected) in [
        (
            model("  storagUri: /m\n"),
            "iris.yaml:6: spec.storagUri is not a field of Model. Did you mean storageUri?\n\
             iris.yaml:6: spec.storageUri is required",
        ),
        (
            model("  storageUri: /m\n  replicas: two\n"),
            "iris.yaml:7: spec.replicas must be an integer, got \"two\"",
        ),
        (
            model("  storageUri: /m\n  replicas: -1\n"),
            "iris.yaml:7: spec.replicas must be at least 0, got -1",
        ),
        (
            model("  storageUri: /m\n  replicas: 1.5\n"),
            "iris.yaml:7: spec.replicas must be an integer, got 1.5",
        ),
        (
            model("  storageUri: /m\n  replicas: 99999999999\n"),
            "iris.yaml:7: spec.replicas must be at most 2147483647, got 99999999999",
        ),
        (
            model("  storageUri: 7\n"),
            "iris.yaml:6: spec.storageUri must be a string, got 7: put it in quotes",
        ),
        (
            model("  storageUri: ''\n"),
            "iris.yaml:6: spec.storageUri is empty: set it to the location of the model artifact",
        ),
        (
            model("  storageUri: /m\n  requirements: onnx\n"),
            "iris.yaml:7: spec.requirements must be a list, got \"onnx\": write it as [x] or as lines starting with -",
        ),
        (
            model("  storageUri: /m\n  requirements: [onnx, '']\n"),
            "iris.yaml:7: spec.requirements[1] is empty: name a capability, such as onnx",
        ),
        (
            model("  storageUri: /m\n  memory: 1 GB\n"),
            "iris.yaml:7: spec.memory \"1 GB\" is not an amount: write it as 100Ki, 512Mi, 2Gi or a number of bytes",
        ),
        (
            model("  storageUri: /m\n  minReplicas: 3\n  maxReplicas: 2\n"),
            "iris.yaml:7: spec.minReplicas is 3, more than maxReplicas 2: lower one or raise the other",
        ),
        (
            model("  storageUri: /m\n  minReplicas: 3\n  replicas: 2\n"),
            "iris.yaml:8: spec.replicas is 2, fewer than minReplicas 3",
        ),
        (
            model("  storageUri: /m\n  maxReplicas: 3\n  replicas: 4\n"),
            "iris.yaml:8: spec.replicas is 4, more than maxReplicas 3",
        ),
        (
            model("  storageUri: /m\n  explainer: {type: a}\n  llm: {modelRef: b}\n"),
            "iris.yaml:8: spec.llm is mutually exclusive with spec.explainer: remove one",
        ),
        (
            model("  storageUri: /m\n  parameters:\n  - {name: a, value: 1}\n"),
            "iris.yaml:8: spec.parameters[0].value must be a string, got 1: put it in quotes",
        ),
        (
            model("  storageUri: /m\n  logger: {percent: 101}\n"),
            "iris.yaml:7: spec.logger.percent must be at most 100, got 101",
        ),
        (
            model("  storageUri: /m\n  artifactVersion: -3\n"),
            "iris.yaml:7: spec.artifactVersion must be at least 0, got -3",
        ),
        (
            model("  storageUri: /m\n").replace("iris", "Iris_1"),
            "iris.yaml:4: metadata.name \"Iris_1\" contains 'I': use lower-case letters, digits and '-', for example \"iris-1\"",
        ),
        (
            model("  storageUri: /m\n").replace("  name: iris", "  nmae: iris"),
            "iris.yaml:4: metadata.nmae is not a field of metadata. Did you mean name?",
        ),
        (
            model("  storageUri: /m\n").replace("Model", "Modle"),
            "iris.yaml:2: kind \"Modle\" is not supported: use Model, Server, Pipeline, Experiment, SeldonRuntime, SeldonConfig, ServerConfig or InferenceService. Did you mean Model?",
        ),
        (
            model("  storageUri: /m\n").replace("v1alpha1", "v1"),
            "iris.yaml:1: apiVersion must be mlops.seldon.io/v1alpha1 for a Model, got \"mlops.seldon.io/v1\"",
        ),
        (
            "kind: Model".into(),
            "iris.yaml:1: apiVersion is missing: write apiVersion: mlops.seldon.io/v1alpha1",
        ),
        (
            "a: 1".into(),
            "iris.yaml:1: kind is missing: set it to Model, Server, Pipeline, Experiment, SeldonRuntime, SeldonConfig, ServerConfig or InferenceService",
        ),
        (
            "[1, 2]".into(),
            "iris.yaml:1: must be an object with apiVersion, kind, metadata and spec, got a list",
        ),
        (
            format!("{}---\n{}", model("  storageUri: /m\n"), model("  storageUri: /n\n")),
            "iris.yaml:8: metadata.name \"iris\" is a duplicate: Model iris is already defined at line 1",
        ),
    ] {
        assert_eq!(errors(&text), expected, "\n{text}");
    }
}

#[test]
fn yaml_syntax_errors_report_the_file() {
    for text in ["a: [1, 2", "a: b: c", "a: 1\na: 2\n", "{{{{", "\u{0}"] {
        let message = errors(text);
        assert!(message.starts_with("iris.yaml"), "{text:?}: {message}");
        assert!(message.contains("is not valid YAML"), "{text:?}: {message}");
    }
}

#[test]
fn alias_bomb_and_oversized_text_are_rejected() {
    let mut text = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x]\n");
    for i in 1..30 {
        let below = format!("*a{}", i - 1);
        text += &format!("a{i}: &a{i} [{}]\n", vec![below; 9].join(","));
    }
    assert!(errors(&text).contains("is not valid YAML"));
    assert!(errors(&"[".repeat(100_000)).contains("is not valid YAML"));
    for levels in [20, 21, 32, 500] {
        let deep = "{a: [".repeat(levels) + &"]}".repeat(levels);
        assert_eq!(errors(&deep).contains("is not valid YAML"), levels > 20, "{levels}");
    }
    assert!(errors(&" ".repeat(5 << 20)).contains("at most"));
}

#[test]
fn model_round_trips_through_proto() {
    let text = model(
        "  storageUri: gs://bucket/iris\n  artifactVersion: 3\n  secretName: creds\n  requirements: [sklearn, gpu]\n  \
         memory: 100Ki\n  replicas: 2\n  minReplicas: 1\n  maxReplicas: 4\n  server: mlserver\n  \
         explainer: {type: anchor_tabular, modelRef: income}\n  parameters: [{name: p, value: v}]\n  \
         dataflow: {cleanTopicsOnDelete: true}\n  logger: {}\n",
    );
    let [parsed] = parse("f", &text).unwrap().try_into().unwrap();
    let Object::Model(original) = parsed.object else { panic!("expected a Model") };
    let back = Model::from_proto(&original.to_proto());
    assert_eq!(back.to_proto(), original.to_proto());
    assert_eq!(back.spec.memory.as_ref().map(crate::Quantity::bytes), Some(102_400));
    assert_eq!(
        Model {
            spec: crate::ModelSpec { memory: original.spec.memory.clone(), ..back.spec.clone() },
            ..back
        },
        *original
    );
}

fn pipeline(spec: &str) -> String {
    format!("apiVersion: mlops.seldon.io/v1alpha1\nkind: Pipeline\nmetadata:\n  name: join\nspec:\n{spec}")
}

#[test]
fn invalid_graphs_report_position_and_remedy() {
    let steps = |rest: &str| format!("  steps:\n  - name: tokenize\n  - name: classify\n    inputs:\n{rest}");
    for (spec, expected) in [
        (
            steps("    - tokenize\n    - tokenise.outputs.ids\n"),
            "iris.yaml:11: spec.steps[1].inputs[1] step classify has input tokenise for step that does not exist: \
             add step tokenise or correct the name. Did you mean tokenize?",
        ),
        (
            steps("    - tokenize\n    triggers: [other]\n"),
            "iris.yaml:11: spec.steps[1].triggers[0] step classify has trigger other for step that does not exist: \
             add step other or correct the name",
        ),
        (
            steps("    - tokenize\n  output:\n    steps: [clasify]\n"),
            "iris.yaml:12: spec.output.steps[0] output step clasify not found: name one of the steps. \
             Did you mean classify?",
        ),
        (
            "  steps:\n  - {name: a, inputs: [b]}\n  - {name: b, inputs: [a]}\n".to_owned(),
            "iris.yaml:7: spec.steps[0].inputs[0] has a cycle, a → b → a: remove one of these inputs or triggers, \
             or set allowCycles",
        ),
        (
            "  steps:\n  - {name: a, inputs: [a.outputs]}\n".to_owned(),
            "iris.yaml:7: spec.steps[0] a step has itself as an input or a trigger, which needs allowCycles",
        ),
        (
            "  input:\n    externalInputs: [other.what]\n  steps: [{name: a}]\n".to_owned(),
            "iris.yaml:7: spec.input.externalInputs[0] input other.what is invalid: ",
        ),
        (
            format!(
                "  steps: [{}]\n",
                (0..10_000).map(|i| format!("{{name: s{i}}}")).collect::<Vec<_>>().join(", ")
            ),
            "iris.yaml:6: spec.steps has 10000 entries, at most 640 are allowed",
        ),
    ] {
        let actual = errors(&pipeline(&spec));
        assert!(actual.starts_with(expected), "{actual}\n{expected}");
    }
    let mut diamonds = String::from("  steps:\n  - name: s0\n");
    for i in 0..85 {
        let (from, to) = (if i == 0 { "s0".to_owned() } else { format!("j{}", i - 1) }, format!("j{i}"));
        diamonds += &format!("  - {{name: l{i}, inputs: [{from}]}}\n  - {{name: r{i}, inputs: [{from}]}}\n");
        diamonds += &format!("  - {{name: {to}, inputs: [l{i}, r{i}]}}\n");
    }
    assert_eq!(errors(&pipeline(&diamonds)), "1 objects");
}

#[test]
fn annotation_that_keeps_payloads_is_true_or_false() {
    let annotated = |value: &str| {
        let annotations = format!("  annotations:\n    other: x\n    {KEEP_PAYLOADS}: {value}\nspec:\n");
        pipeline("  steps: [{name: a}]\n").replace("spec:\n", &annotations)
    };
    for valid in ["'true'", "'false'"] {
        assert_eq!(errors(&annotated(valid)), "1 objects");
    }
    let at = "iris.yaml:7: metadata.annotations.gantry.dev/keep-payloads";
    for (value, expected) in [
        ("'yes'", "must be \"true\" or \"false\", got \"yes\""),
        ("'True'", "must be \"true\" or \"false\", got \"True\""),
        ("''", "must be \"true\" or \"false\", got \"\""),
        ("true", "must be a string, got true: put it in quotes"),
    ] {
        assert_eq!(errors(&annotated(value)), format!("{at} {expected}"));
    }
}

#[test]
fn pipelines_and_experiments_round_trip_through_proto() {
    for file in ["pipelines", "experiments"] {
        let path = format!("{}/testdata/valid/{file}.yaml", env!("CARGO_MANIFEST_DIR"));
        let parsed = parse(&path, &std::fs::read_to_string(&path).unwrap()).unwrap();
        assert!(!parsed.is_empty());
        for object in parsed.into_iter().map(|p| p.object) {
            match &object {
                Object::Pipeline(p) => {
                    let (sent, back) = (p.to_proto(), Pipeline::from_proto(&p.to_proto()));
                    assert_eq!(back.to_proto(), sent);
                    assert_eq!(sent.keep_payloads, p.metadata.name == "chain");
                    // References are completed, nothing else changes.
                    let mut expected = (**p).clone();
                    let own = p.metadata.name.clone();
                    let complete = |reference: &mut String| {
                        if !reference.contains('.') {
                            *reference += if *reference == own { ".inputs" } else { ".outputs" };
                        }
                    };
                    for step in &mut expected.spec.steps {
                        step.inputs.iter_mut().chain(&mut step.triggers).for_each(complete);
                    }
                    expected.spec.output.iter_mut().flat_map(|o| &mut o.steps).for_each(complete);
                    assert_eq!(back, expected);
                }
                Object::Experiment(e) => assert_eq!(Experiment::from_proto(&e.to_proto()), **e),
                other => panic!("unexpected {other:?}"),
            }
        }
    }
    let external = |text: &str| {
        let input = crate::PipelineInput { external_inputs: vec![text.into()], ..Default::default() };
        let spec = crate::PipelineSpec { input: Some(input), ..Default::default() };
        spec.to_proto("p", None, None).input.unwrap().external_inputs.remove(0)
    };
    let completed = ["q", "q.step.x", "q.inputs", "q.step.x.inputs.t"].map(external);
    assert_eq!(completed, ["q.outputs", "q.step.x.outputs", "q.inputs", "q.step.x.inputs.t"]);
    let spec = crate::ExperimentSpec::default();
    let meta = spec.to_proto("half", Some("ml"), Some(7)).kubernetes_meta.unwrap();
    assert_eq!((meta.namespace.as_str(), meta.generation), ("ml", 7));
    assert_eq!(spec.to_proto("half", None, Some(7)).kubernetes_meta, None);
}

#[test]
fn replica_defaults_match_seldon_core() {
    for (spec, replicas, min, max) in [
        ("", 1, 0, 0),
        ("  minReplicas: 3\n", 3, 3, 0),
        ("  replicas: 0\n", 0, 0, 0),
        ("  maxReplicas: 5\n", 1, 0, 5),
        ("  replicas: 2\n  minReplicas: 1\n  maxReplicas: 2\n", 2, 1, 2),
    ] {
        let [parsed] = parse("f", &model(&format!("  storageUri: /m\n{spec}"))).unwrap().try_into().unwrap();
        let Object::Model(model) = parsed.object else { panic!("expected a Model") };
        let deployment = model.to_proto().deployment_spec.unwrap();
        assert_eq!(
            (deployment.replicas, deployment.min_replicas, deployment.max_replicas),
            (replicas, min, max),
            "{spec}"
        );
    }
}

#[test]
fn kubectl_output_can_be_applied() {
    let text = r#"{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"mlops.seldon.io/v1alpha1","kind":"Server",
        "metadata":{"name":"mlserver","uid":"x","resourceVersion":"1","managedFields":[],"labels":{"a":"b"}},
        "spec":{"serverConfig":"mlserver","replicas":2,"podSpec":{"anything":{"goes":[1]}}},"status":{"conditions":[]}}]}"#;
    let [parsed] = parse("f", text).unwrap().try_into().unwrap();
    let Object::Server(server) = parsed.object else { panic!("expected a Server") };
    assert_eq!((server.to_proto().name.as_str(), server.to_proto().expected_replicas), ("mlserver", 2));
}

proptest::proptest! {
    #[test]
    fn parse_never_panics(text in "\\PC{0,200}") {
        let _ = parse("f", &text);
    }
}
