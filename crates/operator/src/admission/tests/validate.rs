//! Decisions on admission requests.

use super::*;
use gantry_proto::gantry::RolloutStatus;
use proptest::prelude::*;

fn model(name: &str, more: Value) -> Value {
    let base = json!({ "storageUri": "gs://bucket/model" });
    object("Model", &format!("ml/{name}"), crate::workload::merge(&base, &more))
}

fn server(name: &str, config: &str) -> Value {
    object("Server", &format!("ml/{name}"), json!({ "serverConfig": config }))
}

fn claims(size: &str) -> Value {
    json!([{ "name": "models", "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": size } },
    } }])
}

fn config(name: &str, claims: Value) -> Value {
    let spec = json!({ "podSpec": { "containers": [] }, "volumeClaimTemplates": claims });
    object("ServerConfig", &format!("{OWN}/{name}"), spec)
}

/// A `StatefulSet` with the defaults of the API server.
fn set(place: &str, owner: &str, claims: Value) -> Value {
    let (namespace, name) = place.split_once('/').unwrap();
    let filled = |claim: &Value| {
        let mut spec = claim["spec"].clone();
        spec["volumeMode"] = json!("Filesystem");
        json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": claim["name"] },
            "spec": spec, "status": { "phase": "Pending" },
        })
    };
    let templates: Vec<Value> = claims.as_array().unwrap().iter().map(filled).collect();
    json!({
        "kind": "StatefulSet",
        "metadata": { "name": name, "namespace": namespace, "uid": format!("set-{name}"), "ownerReferences": [
            { "apiVersion": "mlops.seldon.io/v1alpha1", "kind": "X", "name": name, "uid": owner, "controller": true },
        ] },
        "spec": { "volumeClaimTemplates": templates },
    })
}

fn warned(warnings: &[&str]) -> Decision {
    Decision { rejection: None, warnings: warnings.iter().map(|w| (*w).to_owned()).collect() }
}

fn changed(old: &Value, pointer: &str, value: Value) -> Value {
    let mut new = old.clone();
    *new.pointer_mut(pointer).unwrap() = value;
    new
}

#[test]
fn dangling_reference_is_a_warning() {
    let there = [
        server("a", "small"),
        config("small", json!([])),
        model("m", json!({})),
        object("SeldonConfig", "ops/default", json!({ "components": [{ "name": "seldon-scheduler" }] })),
        object("SeldonRuntime", "ml/seldon", json!({ "seldonConfig": "default" })),
    ];
    let caches = caches(&there);
    let runtime = |spec| object("SeldonRuntime", "ml/seldon", spec);
    let pipeline = |steps| object("Pipeline", "ml/p", json!({ "steps": steps }));
    for (object, warnings) in [
        (model("n", json!({})), &[][..]),
        (model("n", json!({ "server": "a" })), &[]),
        (
            model("n", json!({ "server": "b" })),
            &[
                "spec.server: Server \"b\" not found in namespace ml; the model is not scheduled until it exists",
            ],
        ),
        (
            model("n", json!({ "explainer": { "type": "anchor", "modelRef": "x" } })),
            &["spec.explainer.modelRef: Model \"x\" not found in namespace ml"],
        ),
        (
            model("n", json!({ "llm": { "pipelineRef": "x" } })),
            &["spec.llm.pipelineRef: Pipeline \"x\" not found in namespace ml"],
        ),
        (server("b", "small"), &[]),
        (
            server("b", "large"),
            &[
                "spec.serverConfig: ServerConfig \"large\" not found in the operator's namespace ops; no pods are created until \
               it exists",
            ],
        ),
        (runtime(json!({ "seldonConfig": "default", "overrides": [{ "name": "seldon-scheduler" }] })), &[]),
        (
            runtime(
                json!({ "seldonConfig": "default", "overrides": [{ "name": "seldon-scheduler" }, { "name": "typo" }] }),
            ),
            &[
                "spec.overrides[1].name: SeldonConfig \"default\" has no component \"typo\"; the override has no effect",
            ],
        ),
        (
            runtime(json!({ "seldonConfig": "other" })),
            &[
                "spec.seldonConfig: SeldonConfig \"other\" not found in the operator's namespace ops; no components are created \
               until it exists",
            ],
        ),
        (
            object("SeldonRuntime", "ml/second", json!({ "seldonConfig": "default" })),
            &["namespace ml already has SeldonRuntime \"seldon\"; only the older of the two is reconciled"],
        ),
        (pipeline(json!([{ "name": "m" }])), &[]),
        (
            pipeline(json!([{ "name": "m" }, { "name": "x" }])),
            &["spec.steps[1].name: Model \"x\" not found in namespace ml"],
        ),
        (
            object(
                "Pipeline",
                "ml/p",
                json!({
                    "steps": [{ "name": "m" }],
                    "input": {
                        "externalInputs": ["p.inputs", "orders.step.price.outputs"], "externalTriggers": ["clock.outputs"],
                    },
                }),
            ),
            &[
                "spec.input.externalInputs[1]: Pipeline \"orders\" not found in namespace ml",
                "spec.input.externalTriggers[0]: Pipeline \"clock\" not found in namespace ml",
            ],
        ),
        (
            object(
                "Experiment",
                "ml/e",
                json!({
                    "candidates": [{ "name": "m", "weight": 1 }, { "name": "x", "weight": 1 }], "mirror": { "name": "y", "percent": 1 },
                }),
            ),
            &[
                "spec.candidates[1].name: Model \"x\" not found in namespace ml",
                "spec.mirror.name: Model \"y\" not found in namespace ml",
            ],
        ),
        (
            object(
                "Experiment",
                "ml/e",
                json!({ "resourceType": "pipeline", "candidates": [{ "name": "m", "weight": 1 }] }),
            ),
            &["spec.candidates[0].name: Pipeline \"m\" not found in namespace ml"],
        ),
    ] {
        assert_eq!(
            validate(&admission_request("CREATE", object.clone(), Value::Null), &caches),
            warned(warnings),
            "{object}"
        );
        let before = changed(
            &object,
            "/spec",
            json!({ "storageUri": "before", "serverConfig": "before", "steps": [] }),
        );
        let again = validate(&admission_request("UPDATE", object.clone(), before), &caches);
        assert_eq!(again.warnings, warned(warnings).warnings, "{object}");
        let long = warnings.iter().find(|w| w.len() > 250);
        assert_eq!(long, None, "the API server would truncate it");
    }
}

#[test]
fn rollout_policy_is_checked_against_models_and_other_policies() {
    let policy = |name: &str, created: Option<&str>, target: Value| {
        let spec = crate::workload::merge(&json!({ "strategy": { "blueGreen": {} } }), &target);
        let mut policy = object("RolloutPolicy", &format!("ml/{name}"), spec);
        policy["metadata"]["creationTimestamp"] = json!(created);
        policy
    };
    let named = |name: &str| json!({ "targetRef": { "kind": "Model", "name": name } });
    let labelled = |value: &str| json!({ "selector": { "kind": "Model", "matchLabels": { "tier": value } } });
    let mut iris = model("iris", json!({}));
    iris["metadata"]["labels"] = json!({ "tier": "gold" });
    let first = policy("first", Some("2026-01-01T00:00:00Z"), named("iris"));
    let caches = caches(&[iris, first.clone()]);
    for (target, warnings) in [
        (named("wine"), &["spec.targetRef.name: Model \"wine\" not found in namespace ml"][..]),
        (
            labelled("gold"),
            &["spec: Model \"iris\" is selected by RolloutPolicy \"first\", too, which is older and applies"],
        ),
        (labelled("silver"), &["spec.selector: selects no Model in namespace ml"]),
    ] {
        let request = admission_request("CREATE", policy("new", None, target), Value::Null);
        assert_eq!(validate(&request, &caches), warned(warnings));
    }
    let unchanged = admission_request("UPDATE", first.clone(), first.clone());
    assert_eq!(validate(&unchanged, &caches), warned(&[]));
    let invalid = policy("first", None, crate::workload::merge(&named("iris"), &labelled("gold")));
    let rejection =
        validate(&admission_request("UPDATE", invalid, first.clone()), &caches).rejection.unwrap();
    assert!(rejection.contains("must have exactly one of targetRef and selector"), "{rejection}");

    let deletion = admission_request("DELETE", Value::Null, first);
    assert_eq!(validate(&deletion, &caches), warned(&[]));
    caches.schedulers.add_namespace("ml");
    let rollout = |phase: &str| RolloutStatus {
        model: "iris".into(),
        policy: "first".into(),
        phase: phase.into(),
        ..Default::default()
    };
    caches.schedulers.apply_rollout("ml", rollout("Running"));
    assert_eq!(validate(&deletion, &caches), warned(&[]));
    caches.schedulers.apply_rollout("ml", rollout("Progressing"));
    let warning = "RolloutPolicy \"first\" has rollouts under way, which end: the latest versions of iris get all requests";
    assert_eq!(validate(&deletion, &caches), warned(&[warning]));
}

#[test]
fn unknown_objects_are_not_reported_missing() {
    let request = admission_request("CREATE", server("b", "large"), Value::Null);
    // The cache is not synced yet.
    assert_eq!(validate(&request, &Caches::new(settings())), Decision::default());
    // The namespace is not watched.
    let scope = crate::Scope::Namespaces([OWN.to_owned()].into());
    let elsewhere = Caches::new(Settings { scope, ..settings() });
    elsewhere.of::<crate::cluster::Server>().replace(OWN, Vec::new());
    let pinned = admission_request("CREATE", model("m", json!({ "server": "a" })), Value::Null);
    assert_eq!(validate(&pinned, &elsewhere), Decision::default());
    // An agent that connected to the scheduler needs no Server object.
    let caches = caches(&[]);
    assert_eq!(validate(&pinned, &caches).warnings.len(), 1);
    caches.schedulers.add_namespace("ml");
    caches.schedulers.begin_sync("ml");
    let joined =
        gantry_proto::scheduler::ServerStatusResponse { server_name: "a".into(), ..Default::default() };
    caches.schedulers.apply_server_status("ml", &joined);
    caches.schedulers.synced("ml");
    assert_eq!(validate(&pinned, &caches), Decision::default());
}

#[test]
fn delete_warns_about_dependents_but_is_allowed() {
    let mut going = server("going", "small");
    going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let there = [
        server("a", "small"),
        server("b", "small"),
        server("c", "small"),
        server("d", "small"),
        going,
        config("small", json!([])),
        config("unused", json!([])),
        model("m", json!({ "server": "a" })),
        model("free", json!({})),
        object("SeldonConfig", "ops/default", json!({})),
        object("SeldonConfig", "ml/default", json!({})),
        object("SeldonRuntime", "ml/seldon", json!({ "seldonConfig": "default" })),
        object("Pipeline", "ml/p", json!({ "steps": [{ "name": "m" }] })),
        object(
            "Pipeline",
            "ml/q",
            json!({ "steps": [{ "name": "free" }], "input": { "externalInputs": ["p.outputs", "q.inputs"] } }),
        ),
        object("Experiment", "ml/e", json!({ "candidates": [{ "name": "m", "weight": 1 }] })),
        object(
            "Experiment",
            "ml/f",
            json!({ "resourceType": "pipeline", "candidates": [{ "name": "p", "weight": 1 }] }),
        ),
    ];
    let caches = caches(&there);
    for (place, warnings) in [
        (
            "ServerConfig ops/small",
            &[
                "ServerConfig \"small\" is used by Servers ml/a, ml/b, ml/c and 1 more; their pods keep running, but are not \
               updated until it is recreated",
            ][..],
        ),
        ("ServerConfig ops/unused", &[]),
        (
            "SeldonConfig ops/default",
            &[
                "SeldonConfig \"default\" is used by SeldonRuntimes ml/seldon; their pods keep running, but are not updated \
               until it is recreated",
            ],
        ),
        // Configurations of other namespaces are not used.
        ("SeldonConfig ml/default", &[]),
        (
            "Server ml/a",
            &[
                "Models m are pinned to Server \"a\" (spec.server); they are unavailable until it is recreated",
            ],
        ),
        ("Server ml/b", &[]),
        (
            "SeldonRuntime ml/seldon",
            &[
                "SeldonRuntime \"seldon\" is not removed before the Servers of its namespace: a, b, c and 1 more",
            ],
        ),
        ("Model ml/free", &["Model \"free\" is used by Pipelines q"]),
        ("Model ml/m", &["Model \"m\" is used by Pipelines p", "Model \"m\" is used by Experiments e"]),
        (
            "Pipeline ml/p",
            &["Pipeline \"p\" is used by Pipelines q", "Pipeline \"p\" is used by Experiments f"],
        ),
        ("Pipeline ml/q", &[]),
        ("Experiment ml/e", &[]),
    ] {
        let (kind, at) = place.split_once(' ').unwrap();
        let is = |o: &&Value| {
            o["kind"] == kind
                && format!("{}/{}", o["metadata"]["namespace"], o["metadata"]["name"]).replace('"', "") == at
        };
        let old = there.iter().find(is).unwrap().clone();
        assert_eq!(
            validate(&admission_request("DELETE", Value::Null, old), &caches),
            warned(warnings),
            "{place}"
        );
    }
}

#[test]
fn volume_claim_templates_are_immutable() {
    let there = |live: &str| {
        caches(&[
            server("a", "small"),
            server("fresh", "small"),
            config("small", claims("1Gi")),
            config("large", claims("2Gi")),
            config("same", claims("1024Mi")),
            config("none", json!([])),
            set("ml/a", "Server-a", claims(live)),
            set("ml/fresh", "another owner", claims("1Gi")),
        ])
    };
    let moved = |name: &str, to: &str| admission_request("UPDATE", server(name, to), server(name, "small"));
    let rejection = "spec.serverConfig: volumeClaimTemplates are immutable, and those of StatefulSets ml/a differ from \
                     ServerConfig \"large\": use another name; or annotate this object with gantry.dev/admission=warn, \
                     apply it, and recreate them (kubectl delete statefulset a -n ml --cascade=orphan)";
    assert_eq!(validate(&moved("a", "large"), &there("1Gi")).rejection.as_deref(), Some(rejection));
    assert!(validate(&moved("a", "none"), &there("1Gi")).rejection.is_some());
    for (name, to, live) in
        [("a", "same", "1Gi"), ("a", "large", "2Gi"), ("fresh", "large", "1Gi"), ("a", "gone", "1Gi")]
    {
        assert_eq!(validate(&moved(name, to), &there(live)).rejection, None, "{name} to {to}");
    }
    // The annotation turns the rejection into a warning.
    let mut lenient = server("a", "large");
    lenient["metadata"]["annotations"] = json!({ "gantry.dev/admission": "warn" });
    let decision = validate(&admission_request("UPDATE", lenient, server("a", "small")), &there("1Gi"));
    assert_eq!(
        decision,
        warned(&[
            "spec.serverConfig: volumeClaimTemplates are immutable, and those of StatefulSets ml/a differ from ServerConfig \
             \"large\": recreate them now (kubectl delete statefulset a -n ml --cascade=orphan)"
        ])
    );
    // A configuration in use.
    let grown =
        |name: &str| admission_request("UPDATE", config(name, claims("3Gi")), config(name, claims("1Gi")));
    let decision = validate(&grown("small"), &there("1Gi"));
    assert!(decision.rejection.unwrap().ends_with("(kubectl delete statefulset a -n ml --cascade=orphan)"));
    assert_eq!(validate(&grown("large"), &there("1Gi")), Decision::default(), "not in use");
    let image =
        changed(&config("small", claims("1Gi")), "/spec/podSpec", json!({ "containers": [{ "name": "a" }] }));
    let decision =
        validate(&admission_request("UPDATE", image, config("small", claims("1Gi"))), &there("1Gi"));
    assert_eq!(decision, Decision::default(), "pods can be replaced");
    // Defaults of the API server are ignored; a removed field is a difference.
    let mut with_class = claims("1Gi");
    with_class[0]["spec"]["storageClassName"] = json!("fast");
    let caches = caches(&[
        server("a", "small"),
        config("small", claims("1Gi")),
        config("large", claims("1Gi")),
        set("ml/a", "Server-a", with_class),
    ]);
    assert!(validate(&moved("a", "large"), &caches).rejection.is_some());
}

#[test]
fn invalid_graph_is_rejected_with_the_first_error_of_lint() {
    use gantry_api::{ExperimentSpec, PipelineSpec};
    let caches = caches(&[]);
    let rejection = |object: Value| {
        validate(&admission_request("CREATE", object, Value::Null), &caches).rejection.unwrap()
    };
    for (spec, words) in [
        (json!([{ "name": "a" }, { "name": "b", "inputs": ["c"] }]), "spec.steps[1].inputs[0]"),
        (json!([{ "name": "a" }, { "name": "b", "triggers": ["c"] }]), "spec.steps[1].triggers[0]"),
        (json!([{ "name": "a", "inputs": ["b"] }, { "name": "b", "inputs": ["a"] }]), "cycle"),
        (json!([{ "name": "a", "inputs": ["a"] }]), "a"),
    ] {
        let spec = json!({ "steps": spec });
        let lint = serde_json::from_value::<PipelineSpec>(spec.clone()).unwrap().validate_named("p");
        let lint: Vec<String> = lint.iter().map(|(path, error)| format!("{path} {error}")).collect();
        let found = rejection(object("Pipeline", "ml/p", spec));
        assert_eq!(found, lint.join("; "));
        assert!(found.contains(words), "{found}");
    }
    let spec = json!({ "default": "c", "candidates": [{ "name": "a", "weight": 1 }] });
    let lint = serde_json::from_value::<ExperimentSpec>(spec.clone()).unwrap().validate_named("e");
    let found = rejection(object("Experiment", "ml/e", spec));
    assert_eq!(found, format!("{} {}", lint[0].0, lint[0].1));
    assert!(found.contains("default"), "{found}");
}

#[test]
fn annotation_that_keeps_payloads_is_true_or_false() {
    let caches = caches(&[object("Model", "ml/a", json!({ "storageUri": "s3://b/m" }))]);
    let pipeline = |value: &str, steps: Value| {
        let mut pipeline = object("Pipeline", "ml/p", json!({ "steps": steps }));
        pipeline["metadata"]["annotations"] = json!({ "gantry.dev/keep-payloads": value });
        pipeline
    };
    let (one, two) = (json!([{ "name": "a" }]), json!([{ "name": "a" }, { "name": "b", "inputs": ["a"] }]));
    let rejection =
        |operation, new, old| validate(&admission_request(operation, new, old), &caches).rejection;
    let expected = "metadata.annotations.gantry.dev/keep-payloads must be \"true\" or \"false\", got \"yes\"";
    let invalid = pipeline("yes", one.clone());
    assert_eq!(rejection("CREATE", invalid.clone(), Value::Null).as_deref(), Some(expected));
    for valid in ["true", "false"] {
        let valid = pipeline(valid, one.clone());
        assert_eq!(rejection("CREATE", valid.clone(), Value::Null), None);
        assert_eq!(rejection("UPDATE", invalid.clone(), valid.clone()).as_deref(), Some(expected));
        assert_eq!(rejection("UPDATE", valid, invalid.clone()), None);
    }
    // An object that was stored before the rule existed can be changed.
    assert_eq!(rejection("UPDATE", pipeline("yes", two), invalid), None);
}

#[test]
fn volume_claim_templates_of_components_are_immutable() {
    let component = |size: &str| json!({ "components": [{ "name": "seldon-scheduler", "volumeClaimTemplates": claims(size) }] });
    let config = |name: &str, spec: Value| object("SeldonConfig", &format!("ops/{name}"), spec);
    let runtime = |config: &str, overrides: Value| {
        object("SeldonRuntime", "ml/seldon", json!({ "seldonConfig": config, "overrides": overrides }))
    };
    let caches = caches(&[
        config("default", component("1Gi")),
        config("large", component("2Gi")),
        config("none", json!({ "components": [{ "name": "seldon-scheduler" }] })),
        runtime("default", json!([])),
        set("ml/seldon-scheduler", "SeldonRuntime-seldon", claims("1Gi")),
    ]);
    let moved = |to: Value| {
        validate(&admission_request("UPDATE", to, runtime("default", json!([]))), &caches).rejection
    };
    assert!(
        moved(runtime("large", json!([])))
            .unwrap()
            .contains("those of StatefulSets ml/seldon-scheduler differ")
    );
    assert_eq!(moved(runtime("none", json!([]))), None, "it becomes a Deployment");
    assert_eq!(moved(runtime("large", json!([{ "name": "seldon-scheduler", "disable": true }]))), None);
    let change = |spec: Value| {
        validate(
            &admission_request("UPDATE", config("default", spec), config("default", component("1Gi"))),
            &caches,
        )
    };
    assert!(
        change(component("2Gi"))
            .rejection
            .unwrap()
            .starts_with("spec.components: volumeClaimTemplates are immutable")
    );
    assert_eq!(change(json!({ "components": [{ "name": "seldon-scheduler" }] })).rejection, None);
}

#[test]
fn validation_rules_apply_without_crd_rules() {
    let caches = caches(&[]);
    let bad = json!({ "replicas": 1, "minReplicas": 3 });
    let decision = validate(&admission_request("CREATE", model("m", bad.clone()), Value::Null), &caches);
    assert_eq!(decision.rejection.as_deref(), Some("spec.replicas is 1, fewer than minReplicas 3"));
    let decision = validate(&admission_request("CREATE", model("a.b", json!({})), Value::Null), &caches);
    assert!(decision.rejection.unwrap().starts_with("metadata.name "));
    let unreadable = object("Model", "ml/m", json!({ "storageUri": 7 }));
    let decision = validate(&admission_request("CREATE", unreadable.clone(), Value::Null), &caches);
    assert!(decision.rejection.unwrap().starts_with("spec cannot be decoded: "));
    // Errors of the old object do not block other changes.
    let other = changed(&model("m", bad.clone()), "/spec/storageUri", json!("gs://other"));
    assert_eq!(
        validate(&admission_request("UPDATE", other, model("m", bad.clone())), &caches),
        Decision::default()
    );
    assert_eq!(
        validate(&admission_request("UPDATE", unreadable.clone(), unreadable), &caches),
        Decision::default()
    );
    let worse = model("m", json!({ "replicas": 1, "minReplicas": 4 }));
    assert!(
        validate(&admission_request("UPDATE", worse.clone(), model("m", bad)), &caches).rejection.is_some()
    );
    let mut going = worse;
    going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    assert_eq!(
        validate(&admission_request("UPDATE", going, model("m", json!({}))), &caches),
        Decision::default()
    );
}

#[test]
fn other_resources_are_allowed() {
    let caches = caches(&[]);
    let mut request = admission_request("CREATE", model("m", json!({ "server": "nowhere" })), Value::Null);
    assert_eq!(validate(&request, &caches).outcome(), "warned");
    request.sub_resource = Some("status".into());
    assert_eq!(validate(&request, &caches), Decision::default());
    request.sub_resource = None;
    request.resource.group = "apps".into();
    assert_eq!(validate(&request, &caches), Decision::default());
    request.resource.group = "mlops.seldon.io".into();
    request.resource.resource = "widgets".into();
    assert_eq!(validate(&request, &caches), Decision::default());
}

#[test]
fn review_has_the_wire_format_of_the_api_server() {
    let request = admission_request("CREATE", model("m", json!({})), Value::Null);
    let review = |decision: Decision| serde_json::to_value(decision.review(&request)).unwrap();
    assert_eq!(
        review(Decision { rejection: Some("no".into()), warnings: Vec::new() }),
        json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": {
            "uid": "q1", "allowed": false, "status": { "code": 422, "reason": "Invalid", "message": "no" },
        } })
    );
    let long = format!("a\nb {}", "ü".repeat(300));
    let warned = review(Decision { rejection: None, warnings: vec![long; 20] });
    assert_eq!(warned["response"]["allowed"], json!(true));
    let warnings = warned["response"]["warnings"].as_array().unwrap();
    assert_eq!(warnings.len(), 8);
    let first = warnings[0].as_str().unwrap();
    assert!(first.starts_with("a b ü") && first.ends_with('…') && first.len() <= 250, "{first}");
}

fn any_json() -> impl Strategy<Value = Value> {
    let names = [
        "metadata",
        "spec",
        "server",
        "serverConfig",
        "steps",
        "name",
        "namespace",
        "candidates",
        "overrides",
        "components",
        "volumeClaimTemplates",
        "annotations",
        "deletionTimestamp",
        "storageUri",
        "uid",
        "status",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-z./\"\u{0}ü-]{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 48, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(prop::sample::select(names.to_vec()), inner, 0..6)
                .prop_map(|fields| fields.into_iter().map(|(n, v)| (n.to_owned(), v)).collect()),
        ]
    })
}

/// A valid spec with one arbitrary field.
fn near_spec() -> impl Strategy<Value = Value> {
    let good = json!({
        "storageUri": "gs://x", "server": "a", "serverConfig": "large", "seldonConfig": "large", "steps": [{ "name": "m" }],
        "candidates": [{ "name": "m", "weight": 1 }], "podSpec": {}, "volumeClaimTemplates": claims("2Gi"),
        "components": [{ "name": "seldon-scheduler", "volumeClaimTemplates": claims("2Gi") }],
    });
    let names: Vec<String> = good.as_object().unwrap().keys().cloned().collect();
    (prop::sample::select(names), any_json()).prop_map(move |(name, value)| {
        let mut spec = good.clone();
        spec[name] = value;
        spec
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn decode_never_panics(body in prop_oneof![
        prop::collection::vec(any::<u8>(), 0..200),
        any_json().prop_map(|v| v.to_string().into_bytes()),
        any_json().prop_map(|v| json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": v }).to_string().into_bytes()),
    ]) {
        if let Err(error) = decode(&body) {
            prop_assert!(!error.is_empty());
        }
    }

    #[test]
    fn validate_never_panics(
        kind in prop::sample::select(gantry_api::resources().iter().map(|r| r.plural).collect::<Vec<_>>()),
        operation in prop::sample::select(vec!["CREATE", "UPDATE", "DELETE", "CONNECT"]),
        whole in any::<bool>(), object in any_json(), old in any_json(), spec in near_spec(), old_spec in near_spec(),
    ) {
        let caches = caches(&[
            server("a", "small"), config("large", claims("1Gi")), config("small", claims("1Gi")),
            object_of("SeldonConfig", "ops/large"), object_of("SeldonRuntime", "ml/seldon"),
            set("ml/a", "u", claims("1Gi")), set("ml/seldon-scheduler", "u", claims("1Gi")),
        ]);
        let near = |spec: Value| json!({ "metadata": { "name": "a", "namespace": "ml", "uid": "u" }, "spec": spec });
        let (object, old) = if whole { (object, old) } else { (near(spec), near(old_spec)) };
        let body = json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "q", "operation": operation, "name": "", "userInfo": {}, "object": object, "oldObject": old,
            "kind": { "group": "mlops.seldon.io", "version": "v1alpha1", "kind": kind },
            "resource": { "group": "mlops.seldon.io", "version": "v1alpha1", "resource": kind },
        } });
        if let Ok(request) = decode(body.to_string().as_bytes()) {
            let decision = validate(&request, &caches);
            prop_assert_eq!(&decision, &validate(&request, &caches), "deterministic");
            prop_assert!(operation != "DELETE" || decision.rejection.is_none(), "deletes are allowed");
            let spec = |object: &Option<kube::core::DynamicObject>| object.as_ref().map(|o| o.data.get("spec").cloned());
            if spec(&request.object) == spec(&request.old_object) && operation == "UPDATE" {
                prop_assert_eq!(&decision, &Decision::default(), "unchanged spec");
            }
            let review = serde_json::to_value(decision.review(&request)).unwrap();
            prop_assert_eq!(review["response"]["allowed"].as_bool(), Some(decision.rejection.is_none()));
        } else {
            prop_assert!(whole, "a valid object is decoded");
        }
    }
}

fn object_of(kind: &str, place: &str) -> Value {
    let spec = json!({ "seldonConfig": "large", "components": [{ "name": "seldon-scheduler", "volumeClaimTemplates": claims("1Gi") }] });
    object(kind, place, spec)
}
