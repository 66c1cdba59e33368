//! Questions and answers.

use super::*;
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

/// A `StatefulSet` as the API server has it, with what it fills in.
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

fn warned(warnings: &[&str]) -> Verdict {
    Verdict { refusal: None, warnings: warnings.iter().map(|w| (*w).to_owned()).collect() }
}

fn changed(old: &Value, pointer: &str, value: Value) -> Value {
    let mut new = old.clone();
    *new.pointer_mut(pointer).unwrap() = value;
    new
}

#[test]
fn a_name_that_leads_nowhere_is_a_warning() {
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
            &["spec.server: there is no Server \"b\" in namespace ml: the model waits until there is one"],
        ),
        (
            model("n", json!({ "explainer": { "type": "anchor", "modelRef": "x" } })),
            &["spec.explainer.modelRef: there is no Model \"x\" in namespace ml"],
        ),
        (
            model("n", json!({ "llm": { "pipelineRef": "x" } })),
            &["spec.llm.pipelineRef: there is no Pipeline \"x\" in namespace ml"],
        ),
        (server("b", "small"), &[]),
        (
            server("b", "large"),
            &[
                "spec.serverConfig: there is no ServerConfig \"large\" in namespace ops, where they are looked up: no pods \
               are made until there is one",
            ],
        ),
        (runtime(json!({ "seldonConfig": "default", "overrides": [{ "name": "seldon-scheduler" }] })), &[]),
        (
            runtime(
                json!({ "seldonConfig": "default", "overrides": [{ "name": "seldon-scheduler" }, { "name": "typo" }] }),
            ),
            &[
                "spec.overrides[1].name: SeldonConfig \"default\" has no component \"typo\": the override does nothing",
            ],
        ),
        (
            runtime(json!({ "seldonConfig": "other" })),
            &[
                "spec.seldonConfig: there is no SeldonConfig \"other\" in namespace ops, where they are looked up: no \
               components are made until there is one",
            ],
        ),
        (
            object("SeldonRuntime", "ml/second", json!({ "seldonConfig": "default" })),
            &["namespace ml has SeldonRuntime \"seldon\" too: only the older of the two is made"],
        ),
        (pipeline(json!([{ "name": "m" }])), &[]),
        (
            pipeline(json!([{ "name": "m" }, { "name": "x" }])),
            &["spec.steps[1].name: there is no Model \"x\" in namespace ml"],
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
                "spec.candidates[1].name: there is no Model \"x\" in namespace ml",
                "spec.mirror.name: there is no Model \"y\" in namespace ml",
            ],
        ),
        (
            object(
                "Experiment",
                "ml/e",
                json!({ "resourceType": "pipeline", "candidates": [{ "name": "m", "weight": 1 }] }),
            ),
            &["spec.candidates[0].name: there is no Pipeline \"m\" in namespace ml"],
        ),
    ] {
        assert_eq!(judge(&ask("CREATE", object.clone(), Value::Null), &caches), warned(warnings), "{object}");
        let before = changed(
            &object,
            "/spec",
            json!({ "storageUri": "before", "serverConfig": "before", "steps": [] }),
        );
        let again = judge(&ask("UPDATE", object.clone(), before), &caches);
        assert_eq!(again.warnings, warned(warnings).warnings, "{object}");
        let long = warnings.iter().find(|w| w.len() > 250);
        assert_eq!(long, None, "kubectl would cut it");
    }
}

#[test]
fn what_is_not_known_here_is_not_said_to_be_absent() {
    let question = ask("CREATE", server("b", "large"), Value::Null);
    // The list is not complete yet.
    assert_eq!(judge(&question, &Caches::new(settings())), Verdict::default());
    // The namespace is not looked after.
    let scope = crate::Scope::Namespaces([OWN.to_owned()].into());
    let elsewhere = Caches::new(Settings { scope, ..settings() });
    elsewhere.servers.replace(OWN, Vec::new());
    let pinned = ask("CREATE", model("m", json!({ "server": "a" })), Value::Null);
    assert_eq!(judge(&pinned, &elsewhere), Verdict::default());
    // A server that joined its scheduler by itself needs no object.
    let caches = caches(&[]);
    assert_eq!(judge(&pinned, &caches).warnings.len(), 1);
    caches.schedulers.add_namespace("ml");
    caches.schedulers.begin_sync("ml");
    let joined =
        gantry_proto::scheduler::ServerStatusResponse { server_name: "a".into(), ..Default::default() };
    caches.schedulers.apply_server_status("ml", &joined);
    caches.schedulers.synced("ml");
    assert_eq!(judge(&pinned, &caches), Verdict::default());
}

#[test]
fn whoever_deletes_is_told_who_would_miss_it_and_is_never_refused() {
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
                "ServerConfig \"small\" is used by Servers ml/a, ml/b, ml/c and 1 more: their pods run on, and cannot be \
               changed until there is one of that name",
            ][..],
        ),
        ("ServerConfig ops/unused", &[]),
        (
            "SeldonConfig ops/default",
            &[
                "SeldonConfig \"default\" is used by SeldonRuntimes ml/seldon: their pods run on, and cannot be changed \
               until there is one of that name",
            ],
        ),
        // Nobody looks configurations up in another namespace.
        ("SeldonConfig ml/default", &[]),
        (
            "Server ml/a",
            &[
                "Models m are for Server \"a\" only (spec.server): nothing serves them until there is one of that name",
            ],
        ),
        ("Server ml/b", &[]),
        (
            "SeldonRuntime ml/seldon",
            &[
                "SeldonRuntime \"seldon\" stays until the Servers of its namespace are deleted: a, b, c and 1 more",
            ],
        ),
        ("Model ml/free", &[]),
        ("Model ml/m", &["Model \"m\" is used by Pipelines p", "Model \"m\" is used by Experiments e"]),
        ("Pipeline ml/p", &["Pipeline \"p\" is used by Experiments f"]),
        ("Experiment ml/e", &[]),
    ] {
        let (kind, at) = place.split_once(' ').unwrap();
        let is = |o: &&Value| {
            o["kind"] == kind
                && format!("{}/{}", o["metadata"]["namespace"], o["metadata"]["name"]).replace('"', "") == at
        };
        let old = there.iter().find(is).unwrap().clone();
        assert_eq!(judge(&ask("DELETE", Value::Null, old), &caches), warned(warnings), "{place}");
    }
}

#[test]
fn volumes_of_a_stateful_set_cannot_be_changed() {
    let there = |live: &str| {
        caches(&[
            server("a", "small"),
            server("fresh", "small"),
            config("small", claims("1Gi")),
            config("large", claims("2Gi")),
            config("same", claims("1024Mi")),
            config("none", json!([])),
            set("ml/a", "Server-a", claims(live)),
            set("ml/fresh", "somebody else", claims("1Gi")),
        ])
    };
    let moved = |name: &str, to: &str| ask("UPDATE", server(name, to), server(name, "small"));
    let refusal = "spec.serverConfig: ServerConfig \"large\" has other volumeClaimTemplates than StatefulSets ml/a, which \
                   cannot change theirs: use another name; or annotate this object with gantry.dev/admission=warn, apply \
                   it, and replace them (kubectl delete statefulset a -n ml --cascade=orphan)";
    assert_eq!(judge(&moved("a", "large"), &there("1Gi")).refusal.as_deref(), Some(refusal));
    assert!(judge(&moved("a", "none"), &there("1Gi")).refusal.is_some());
    for (name, to, live) in
        [("a", "same", "1Gi"), ("a", "large", "2Gi"), ("fresh", "large", "1Gi"), ("a", "gone", "1Gi")]
    {
        assert_eq!(judge(&moved(name, to), &there(live)).refusal, None, "{name} to {to}");
    }
    // Whoever knows what to do next may.
    let mut lenient = server("a", "large");
    lenient["metadata"]["annotations"] = json!({ "gantry.dev/admission": "warn" });
    let verdict = judge(&ask("UPDATE", lenient, server("a", "small")), &there("1Gi"));
    assert_eq!(
        verdict,
        warned(&[
            "spec.serverConfig: ServerConfig \"large\" has other volumeClaimTemplates than StatefulSets ml/a, which \
                  cannot change theirs: now replace them (kubectl delete statefulset a -n ml --cascade=orphan)"
        ])
    );
    // The configuration itself, while something is made from it.
    let grown = |name: &str| ask("UPDATE", config(name, claims("3Gi")), config(name, claims("1Gi")));
    let verdict = judge(&grown("small"), &there("1Gi"));
    assert!(verdict.refusal.unwrap().starts_with("spec.volumeClaimTemplates: this change has other"));
    assert_eq!(judge(&grown("large"), &there("1Gi")), Verdict::default(), "nobody uses it");
    let image =
        changed(&config("small", claims("1Gi")), "/spec/podSpec", json!({ "containers": [{ "name": "a" }] }));
    let verdict = judge(&ask("UPDATE", image, config("small", claims("1Gi"))), &there("1Gi"));
    assert_eq!(verdict, Verdict::default(), "pods can be replaced");
    // What the API server filled in is not a difference; what somebody took out is one.
    let mut with_class = claims("1Gi");
    with_class[0]["spec"]["storageClassName"] = json!("fast");
    let caches = caches(&[
        server("a", "small"),
        config("small", claims("1Gi")),
        config("large", claims("1Gi")),
        set("ml/a", "Server-a", with_class),
    ]);
    assert!(judge(&moved("a", "large"), &caches).refusal.is_some());
}

#[test]
fn volumes_of_components_cannot_be_changed_either() {
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
    let moved = |to: Value| judge(&ask("UPDATE", to, runtime("default", json!([]))), &caches).refusal;
    assert!(
        moved(runtime("large", json!([])))
            .unwrap()
            .contains("StatefulSets ml/seldon-scheduler, which cannot")
    );
    assert_eq!(moved(runtime("none", json!([]))), None, "it becomes a Deployment");
    assert_eq!(moved(runtime("large", json!([{ "name": "seldon-scheduler", "disable": true }]))), None);
    let change = |spec: Value| {
        judge(&ask("UPDATE", config("default", spec), config("default", component("1Gi"))), &caches)
    };
    assert!(change(component("2Gi")).refusal.unwrap().starts_with("spec.components: this change has other"));
    assert_eq!(change(json!({ "components": [{ "name": "seldon-scheduler" }] })).refusal, None);
}

#[test]
fn the_rules_of_the_kinds_hold_where_the_schema_does_not_have_them() {
    let caches = caches(&[]);
    let bad = json!({ "replicas": 1, "minReplicas": 3 });
    let verdict = judge(&ask("CREATE", model("m", bad.clone()), Value::Null), &caches);
    assert_eq!(verdict.refusal.as_deref(), Some("spec.replicas is 1, fewer than minReplicas 3"));
    let verdict = judge(&ask("CREATE", model("a.b", json!({})), Value::Null), &caches);
    assert!(verdict.refusal.unwrap().starts_with("metadata.name "));
    let unreadable = object("Model", "ml/m", json!({ "storageUri": 7 }));
    let verdict = judge(&ask("CREATE", unreadable.clone(), Value::Null), &caches);
    assert!(verdict.refusal.unwrap().starts_with("spec cannot be read: "));
    // What was wrong before does not keep anybody from changing something else, or from taking a finalizer away.
    let other = changed(&model("m", bad.clone()), "/spec/storageUri", json!("gs://other"));
    assert_eq!(judge(&ask("UPDATE", other, model("m", bad.clone())), &caches), Verdict::default());
    assert_eq!(judge(&ask("UPDATE", unreadable.clone(), unreadable), &caches), Verdict::default());
    let worse = model("m", json!({ "replicas": 1, "minReplicas": 4 }));
    assert!(judge(&ask("UPDATE", worse.clone(), model("m", bad)), &caches).refusal.is_some());
    let mut going = worse;
    going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    assert_eq!(judge(&ask("UPDATE", going, model("m", json!({}))), &caches), Verdict::default());
}

#[test]
fn what_is_not_ours_is_allowed() {
    let caches = caches(&[]);
    let mut question = ask("CREATE", model("m", json!({ "server": "nowhere" })), Value::Null);
    assert_eq!(judge(&question, &caches).word(), "warned");
    question.sub_resource = "status".into();
    assert_eq!(judge(&question, &caches), Verdict::default());
    question.sub_resource.clear();
    question.resource.group = "apps".into();
    assert_eq!(judge(&question, &caches), Verdict::default());
    question.resource.group = "mlops.seldon.io".into();
    question.resource.plural = "widgets".into();
    assert_eq!(judge(&question, &caches), Verdict::default());
}

#[test]
fn an_answer_is_as_the_api_server_reads_it() {
    let refused = Verdict { refusal: Some("no".into()), warnings: Vec::new() };
    assert_eq!(
        refused.body("q1"),
        json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": {
            "uid": "q1", "allowed": false, "status": { "code": 422, "reason": "Invalid", "message": "no" },
        } })
    );
    let long = format!("a\nb {}", "ü".repeat(300));
    let warned = Verdict { refusal: None, warnings: vec![long; 20] }.body("q2");
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

/// A good spec with something else somewhere in it.
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
    fn every_body_has_an_answer(body in prop_oneof![
        prop::collection::vec(any::<u8>(), 0..200),
        any_json().prop_map(|v| v.to_string().into_bytes()),
        any_json().prop_map(|v| json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": v }).to_string().into_bytes()),
    ]) {
        if let Err(why) = Request::read(&body) {
            prop_assert!(!why.is_empty());
        }
    }

    #[test]
    fn every_question_has_an_answer(
        kind in prop::sample::select(gantry_api::resources().iter().map(|r| r.plural).collect::<Vec<_>>()),
        operation in prop::sample::select(vec!["CREATE", "UPDATE", "DELETE", "CONNECT", ""]),
        whole in any::<bool>(), object in any_json(), old in any_json(), spec in near_spec(), old_spec in near_spec(),
    ) {
        let caches = caches(&[
            server("a", "small"), config("large", claims("1Gi")), config("small", claims("1Gi")),
            object_of("SeldonConfig", "ops/large"), object_of("SeldonRuntime", "ml/seldon"),
            set("ml/a", "u", claims("1Gi")), set("ml/seldon-scheduler", "u", claims("1Gi")),
        ]);
        let near = |spec: Value| json!({ "metadata": { "name": "a", "namespace": "ml", "uid": "u" }, "spec": spec });
        let (object, old) = if whole { (object, old) } else { (near(spec), near(old_spec)) };
        let mut question = Request { uid: "q".into(), operation: operation.into(), object, old_object: old, ..Request::default() };
        question.resource.group = "mlops.seldon.io".into();
        question.resource.plural = kind.into();
        let verdict = judge(&question, &caches);
        prop_assert_eq!(&verdict, &judge(&question, &caches), "the same question, the same answer");
        prop_assert!(operation != "DELETE" || verdict.refusal.is_none(), "what goes is let go");
        if question.object.get("spec") == question.old_object.get("spec") && operation == "UPDATE" {
            prop_assert_eq!(&verdict, &Verdict::default(), "nothing was asked for");
        }
        let body = verdict.body("q");
        prop_assert_eq!(body["response"]["allowed"].as_bool(), Some(verdict.refusal.is_none()));
    }
}

fn object_of(kind: &str, place: &str) -> Value {
    let spec = json!({ "seldonConfig": "large", "components": [{ "name": "seldon-scheduler", "volumeClaimTemplates": claims("1Gi") }] });
    object(kind, place, spec)
}
