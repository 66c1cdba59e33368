//! `lint`: the message for each kind of invalid manifest.

use crate::harness::{gantry, gantry_with, model, server};

/// A model whose spec has a `storageUri` and a further line.
fn with(line: &str) -> String {
    model("iris", &format!("  storageUri: /m\n  {line}\n"))
}

fn at(uri: &str) -> String {
    model("iris", &format!("  storageUri: {uri}\n"))
}

#[test]
fn invalid_manifests_are_reported() {
    let huge = format!("a: {}", "x".repeat(5 << 20));
    let deep = "[".repeat(50_000);
    let mut bomb = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x]\n");
    for i in 1..30 {
        bomb += &format!("a{i}: &a{i} [{}]\n", vec![format!("*a{}", i - 1); 9].join(","));
    }
    let long_name = "a".repeat(300);
    let long_uri = format!("s3://bucket/{}", "a".repeat(5000));
    let cases: Vec<(String, &str)> = vec![
        // Fields.
        (
            model("iris", "  storagUri: /m\n"),
            "stdin:6: spec.storagUri is not a field of Model. Did you mean storageUri?",
        ),
        (with("replica: 1"), "stdin:7: spec.replica is not a field of Model. Did you mean replicas?"),
        (
            with("banana: 1"),
            "stdin:7: spec.banana is not a field of Model. Its fields are artifactVersion, dataflow, dedicated, explainer, llm, logger, maxReplicas, memory, minReplicas, modelType, parameters, preloaded, replicas, requirements, schemaUri, secretName, server, storageUri.",
        ),
        (
            at("/m").replace("  name: iris", "  nmae: iris"),
            "stdin:4: metadata.nmae is not a field of metadata. Did you mean name?",
        ),
        (model("iris", "  {}\n"), "stdin:6: spec.storageUri is required"),
        (
            server("s", 1).replace("serverConfig", "serverconfg"),
            "stdin:6: spec.serverconfg is not a field of Server. Did you mean serverConfig?",
        ),
        // Kinds and versions.
        (
            at("/m").replace("kind: Model", "kind: Modle"),
            "stdin:2: kind \"Modle\" is not supported: use Model, Server, Pipeline, Experiment, SeldonRuntime, SeldonConfig, ServerConfig or InferenceService. Did you mean Model?",
        ),
        (
            at("/m").replace("kind: Model", "kind: Pipeline"),
            "stdin:6: spec.storageUri is not a field of Pipeline. Its fields are allowCycles, dataflow, input, maxStepRevisits, output, steps.",
        ),
        (
            at("/m").replace("v1alpha1", "v2"),
            "stdin:1: apiVersion must be mlops.seldon.io/v1alpha1 for a Model, got \"mlops.seldon.io/v2\"",
        ),
        (
            "kind: Model\n".into(),
            "stdin:1: apiVersion is missing: write apiVersion: mlops.seldon.io/v1alpha1",
        ),
        (
            "a: 1\n".into(),
            "stdin:1: kind is missing: set it to Model, Server, Pipeline, Experiment, SeldonRuntime, SeldonConfig, ServerConfig or InferenceService",
        ),
        (
            "- 1\n- 2\n".into(),
            "stdin:1: must be an object with apiVersion, kind, metadata and spec, got a list",
        ),
        // Names.
        (
            at("/m").replace("iris", "Iris_1"),
            "stdin:4: metadata.name \"Iris_1\" contains 'I': use lower-case letters, digits and '-', for example \"iris-1\"",
        ),
        (
            at("/m").replace("iris", "a.b"),
            "stdin:4: metadata.name \"a.b\" contains '.': use lower-case letters, digits and '-', for example \"a-b\"",
        ),
        (
            at("/m").replace("iris", "../etc"),
            "stdin:4: metadata.name \"../etc\" contains '.': use lower-case letters, digits and '-', for example \"etc\"",
        ),
        (
            at("/m").replace("iris", "-a"),
            "stdin:4: metadata.name \"-a\" must start and end with a letter or a digit",
        ),
        (at("/m").replace("iris", "''"), "stdin:4: metadata.name is empty: give the object a name"),
        (
            at("/m").replace("iris", &long_name),
            "stdin:4: metadata.name has 300 characters, at most 253 are allowed",
        ),
        (
            format!("{}---\n{}", at("/m"), at("/n")),
            "stdin:8: metadata.name \"iris\" is a duplicate: Model iris is already defined at line 1",
        ),
        // Types and sizes.
        (with("replicas: two"), "stdin:7: spec.replicas must be an integer, got \"two\""),
        (with("replicas: -1"), "stdin:7: spec.replicas must be at least 0, got -1"),
        (with("replicas: 99999999999"), "stdin:7: spec.replicas must be at most 2147483647, got 99999999999"),
        (
            with("requirements: onnx"),
            "stdin:7: spec.requirements must be a list, got \"onnx\": write it as [x] or as lines starting with -",
        ),
        (
            with("requirements: ['']"),
            "stdin:7: spec.requirements[0] is empty: name a capability, such as onnx",
        ),
        (
            with("memory: 1 GB"),
            "stdin:7: spec.memory \"1 GB\" is not an amount: write it as 100Ki, 512Mi, 2Gi or a number of bytes",
        ),
        (with("memory: 99Ei"), "stdin:7: spec.memory \"99Ei\" is larger than any memory: at most 15Ei"),
        (with("logger: {percent: 101}"), "stdin:7: spec.logger.percent must be at most 100, got 101"),
        (with("artifactVersion: -3"), "stdin:7: spec.artifactVersion must be at least 0, got -3"),
        (
            with("minReplicas: 3\n  maxReplicas: 2"),
            "stdin:7: spec.minReplicas is 3, more than maxReplicas 2: lower one or raise the other",
        ),
        (
            with("explainer: {type: a}\n  llm: {modelRef: b}"),
            "stdin:8: spec.llm is mutually exclusive with spec.explainer: remove one",
        ),
        (
            with("parameters: [{name: a, value: 1}]"),
            "stdin:7: spec.parameters[0].value must be a string, got 1: put it in quotes",
        ),
        // Storage URIs.
        (at("''"), "stdin:6: spec.storageUri is empty: set it to the location of the model artifact"),
        (at("7"), "stdin:6: spec.storageUri must be a string, got 7: put it in quotes"),
        (at("s33://bucket/x"), "URI"),
        (at("ftp://host/x"), "URI"),
        (at("s3://"), "URI"),
        (at("s3://Bad_Bucket!/x"), "URI"),
        (at("https://"), "URI"),
        (at("https://user:hunter2@host/x"), "URI"),
        (at("https://host/x#sha256=zz"), "URI"),
        (at("hf://justaname"), "URI"),
        (at("\"a\\tb\""), "URI"),
        (at(&long_uri), "URI"),
        // Invalid or oversized YAML.
        ("a: [1, 2\n".into(), "YAML"),
        ("a: b: c\n".into(), "YAML"),
        ("a: 1\na: 2\n".into(), "YAML"),
        ("a:\n\t- b\n".into(), "YAML"),
        ("kind: \"x\n".into(), "YAML"),
        (deep, "YAML"),
        (bomb, "YAML"),
        (huge, "stdin: has more than 4194304 bytes: split it"),
    ];
    assert!(cases.len() >= 30);
    let mut collected = String::new();
    for (text, expected) in &cases {
        let ran = gantry_with(&["lint", "-"], text);
        let shown: String = text.chars().take(200).collect();
        assert_eq!(ran.code, 2, "{shown}\n{ran:?}");
        let first = ran.stdout.lines().next().unwrap_or_default();
        match *expected {
            "URI" => assert!(first.starts_with("stdin:6: spec.storageUri "), "{shown}\n{first}"),
            "YAML" => assert!(first.contains("is not valid YAML"), "{shown}\n{first}"),
            exact => assert_eq!(first, exact, "{shown}"),
        }
        assert!(!first.contains("hunter2"), "{first}");
        assert!(first.len() < 600, "{} bytes: {first}", first.len());
        if matches!(*expected, "URI" | "YAML") {
            collected += &format!("{first}\n");
        }
        // apply reports the same errors before it connects to a scheduler.
        let applied = gantry_with(&["apply", "-f", "-", "--scheduler", "127.0.0.1:1"], text);
        assert_eq!(applied.code, 2, "{shown}\n{applied:?}");
        assert_eq!(applied.stderr.lines().next().unwrap_or_default(), first);
        assert!(applied.stderr.ends_with("Nothing was applied.\n"), "{applied:?}");
        assert_eq!(applied.stdout, "");
    }
    crate::harness::snapshot("lint-uris-and-syntax", &collected);
}

#[test]
fn valid_manifests_are_counted() {
    let both = format!("{}---\n{}", at("s3://bucket/iris"), server("mlserver", 2));
    let ran = gantry_with(&["lint", "-"], &both);
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (0, "", "ok: 2 objects in 1 file\n"));
}

#[test]
fn lint_reports_problems_of_all_files() {
    let dir = tempfile::tempdir().unwrap();
    let write = |file: &str, text: &str| {
        let path = dir.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
    };
    write("a.yaml", &with("replicas: x\n  banana: 1"));
    write("b.yml", &at("ftp://x/y").replace("iris", "b"));
    write("deep/c.json", "{\"kind\": \"Model\"}");
    write("deep/d.yaml", &at("/m").replace("iris", "d"));
    let run = |args: &[&str]| {
        let mut command = crate::harness::command(args);
        crate::harness::finish(command.current_dir(dir.path()))
    };
    let ran = run(&["lint", "-R", "."]);
    assert_eq!((ran.code, ran.stdout.lines().count()), (2, 4), "{ran:?}");
    assert_eq!(ran.stderr, "4 problems in 4 files\n");
    let flat = run(&["lint", "."]);
    assert_eq!(flat.stderr, "3 problems in 2 files\n");
    let json = run(&["lint", "a.yaml", "-o", "json"]);
    let report: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(report["problems"].as_array().unwrap().len(), 2);
    assert_eq!(report["problems"][0]["line"], 7);
    assert_eq!(report["problems"][0]["file"], "a.yaml");
    std::fs::create_dir(dir.path().join("empty")).unwrap();
    let empty = run(&["lint", "empty"]);
    assert_eq!(
        empty.stderr,
        "empty contains no manifests (*.yaml, *.yml, *.json); use -R to include subdirectories\n"
    );
    assert_eq!(gantry(&["lint", "/nonexistent/x.yaml"]).stderr, "/nonexistent/x.yaml does not exist\n");
}

#[test]
fn objects_of_other_groups_are_passed_over_with_a_note() {
    let scaler = "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: iris}\n";
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: iris}\n";
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("all.yaml");
    std::fs::write(&path, format!("{}---\n{scaler}---\n{service}", at("/m"))).unwrap();
    let file = path.display().to_string();
    for args in [vec!["lint", "-f", &file], vec!["lint", &file]] {
        let ran = gantry(&args);
        assert_eq!((ran.code, ran.stdout.as_str()), (0, ""), "{ran:?}");
        assert_eq!(
            ran.stderr,
            format!(
                "{file}:8: not checked: HorizontalPodAutoscaler of autoscaling/v2\n\
                 {file}:12: not checked: Service of v1\nok: 1 object in 1 file\n"
            )
        );
    }
    let applied = gantry(&["apply", "-f", &file, "--scheduler", "127.0.0.1:1"]);
    assert_eq!(applied.code, 2);
    assert!(applied.stderr.contains(":12: kind Service of v1 is not handled by gantry"), "{applied:?}");
    assert_eq!(gantry(&["lint"]).code, 2, "a file is required");
}

#[test]
fn cluster_kinds_are_checked_as_by_the_api_server() {
    let config = "apiVersion: mlops.seldon.io/v1alpha1\nkind: SeldonConfig\nmetadata: {name: default}\nspec:\n  \
        components:\n  - name: seldon-scheduler\n    podSpec:\n      containers:\n      - name: scheduler\n        \
        env:\n        - {name: A, value: '600'}\n        - {name: B, value: 600}\n";
    let spec = "spec.components[0].podSpec.containers[0].env[1].value";
    for (text, expected) in [
        (config.to_owned(), format!("stdin:12: {spec} must be a string, got 600: put it in quotes\n")),
        (
            at("/m").replace("spec:\n  storageUri: /m\n", "spec: null\n"),
            "stdin:5: spec is required\n".to_owned(),
        ),
    ] {
        let ran = gantry_with(&["lint", "-"], &text);
        assert_eq!((ran.code, ran.stdout), (2, expected), "{text}");
    }
}

fn inference_service(predictor: &str) -> String {
    format!(
        "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata:\n  name: iris\nspec:\n  \
         predictor:\n{predictor}"
    )
}

#[test]
fn mistakes_in_an_inference_service_name_line_field_and_remedy() {
    let model = "    model:\n      modelFormat: {name: sklearn}\n      storageUri: s3://bucket/iris\n";
    let cases = [
        model.replace("storageUri", "storageURI"),
        model.replace("modelFormat", "modelFromat"),
        format!("{model}    minReplica: 2\n"),
        format!("{model}    serviceAcountName: models\n"),
        format!("{model}    containers:\n    - name: sidecar\n      imge: example/sidecar\n"),
        format!("{model}      enviroment: [{{name: A, value: '1'}}]\n"),
        format!("{model}      env: [{{name: A, value: 1}}]\n"),
        format!("{model}    minReplicas: 3\n    maxReplicas: 2\n"),
        format!("{model}    canaryTrafficPercent: 120\n"),
        format!("{model}    scaleMetric: gpu\n"),
        format!("{model}    sklearn: {{storageUri: 's3://bucket/iris'}}\n"),
        "    sklearn: {storageUri: 's3://a/b'}\n    xgboost: {storageUri: 's3://a/b'}\n".to_owned(),
        "    minReplicas: 1\n".to_owned(),
        "    sklearn: {storageUri: 7}\n".to_owned(),
        format!("{model}  transfomer: {{}}\n"),
        format!("{model}  transformer: {{minReplicas: 1}}\n"),
        format!("{model}  canary:\n  - predictor: {{name: next}}\n    trafficPercent: 10\n"),
    ];
    let mut collected = String::new();
    for case in cases {
        let ran = gantry_with(&["lint", "-"], &inference_service(&case));
        assert_eq!(ran.code, 2, "{case}\n{ran:?}");
        collected += &format!("{case}→ {}\n", ran.stdout.trim_end().replace('\n', "\n→ "));
    }
    crate::harness::snapshot("lint-inference-services", &collected);
}

#[test]
fn model_without_storage_is_a_warning() {
    let text = inference_service("    model:\n      modelFormat: {name: sklearn}\n");
    let ran = gantry_with(&["lint", "-"], &text);
    let expected = "stdin:8: warning: spec.predictor.model.storageUri is missing: the server starts without a model. Set it to the \
                    location of the artifact\nok: 1 object in 1 file\n";
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (0, "", expected));
    for complete in [
        "    model: {modelFormat: {name: sklearn}, runtime: with-model}\n",
        "    model: {modelFormat: {name: huggingface}, args: [--model_id=a/b]}\n",
        "    onnx: {storageUri: s3://bucket/iris}\n",
        "    model: {modelFormat: {name: sklearn}}\n    storageUris: [{uri: s3://bucket/iris}]\n",
    ] {
        let ran = gantry_with(&["lint", "-"], &inference_service(complete));
        assert_eq!(ran.stderr, "ok: 1 object in 1 file\n", "{complete}");
    }
}
