//! Conversion of specs, and the sentences for invalid ones.

use super::policy_of_json;
use gantry_core::rollout::{
    CanarySteps, DriftMeasure, DriftRules, ObservedTensor, Percent, RolloutPolicy, Rules, Step, Strategy,
    ThresholdRules,
};
use serde_json::{Value, json};

fn policy(spec: &Value) -> Result<RolloutPolicy, String> {
    policy_of_json(&serde_json::to_vec(spec).unwrap())
}

fn with(field: &str, value: Value) -> Value {
    let mut spec = json!({
        "targetRef": { "kind": "Model", "name": "iris" },
        "strategy": { "canary": { "steps": [{ "weight": 20 }, { "weight": 50 }] } },
    });
    spec[field] = value;
    spec
}

fn defaults() -> RolloutPolicy {
    RolloutPolicy::new(Strategy::Canary(CanarySteps::weights(&[20, 50]).unwrap()))
}

#[test]
fn absent_fields_have_the_defaults_of_the_engine() {
    for spec in [
        with("targetRef", json!({ "kind": "Model", "name": "iris" })),
        with("analysis", json!({})),
        with("analysis", json!({ "sequential": { "success": {}, "latency": {} } })),
    ] {
        assert_eq!(policy(&spec), Ok(defaults()), "{spec}");
    }
    let expected = RolloutPolicy { drift: Some(DriftRules::default()), ..defaults() };
    assert_eq!(policy(&with("drift", json!({}))), Ok(expected));
    for (field, is_input) in [("output", false), ("input", true)] {
        let observed = Some(ObservedTensor { name: "score".into(), is_input });
        let expected = RolloutPolicy { drift: Some(DriftRules::default()), observed, ..defaults() };
        assert_eq!(policy(&with("drift", json!({ field: "score" }))), Ok(expected));
    }
    let expected = RolloutPolicy { rules: Rules::Thresholds(ThresholdRules::default()), ..defaults() };
    assert_eq!(policy(&with("analysis", json!({ "thresholds": {} }))), Ok(expected));
}

#[test]
fn answers_to_copies_are_compared_only_on_request() {
    let of = |mirror: Value| policy(&with("strategy", json!({ "mirrorFirst": mirror }))).unwrap();
    let plain = of(json!({ "percent": 30, "steps": [{ "weight": 50 }] }));
    let then = CanarySteps::weights(&[50]).unwrap();
    let strategy = Strategy::MirrorFirst { percent: Percent::new(30).unwrap(), hold: 0, then };
    assert_eq!(plain, RolloutPolicy::new(strategy));
    for (compare, tolerance, shares) in [
        (json!({}), 1000, [0.01, 0.05]),
        (json!({ "tolerance": 0.25, "tolerated": 0.1, "rejected": 0.2 }), 250_000, [0.1, 0.2]),
    ] {
        let found = of(json!({ "percent": 30, "steps": [{ "weight": 50 }], "compare": compare }));
        assert_eq!(found.answer_tolerance, Some(tolerance));
        let Rules::Sequential(rules) = found.rules else { panic!("{found:?}") };
        let margins = rules.outputs.unwrap();
        assert_eq!(
            [margins.tolerated.get(), margins.rejected.get()].map(f64::to_bits),
            shares.map(f64::to_bits)
        );
    }
}

#[test]
fn described_defaults_are_those_of_the_engine() {
    let (policy, drift, thresholds) = (defaults(), DriftRules::default(), ThresholdRules::default());
    let Rules::Sequential(sequential) = policy.rules else { panic!("{policy:?}") };
    let latency = sequential.latency.unwrap();
    let crd = crate::crd(&crate::resources().into_iter().find(|r| r.kind == "RolloutPolicy").unwrap());
    let spec = crd.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec").unwrap();
    for (path, default) in [
        ("progressDeadline", crate::SpecDuration::from_millis(policy.progress_deadline).to_string()),
        ("bake", crate::SpecDuration::from_millis(policy.bake).to_string()),
        ("coolDown", crate::SpecDuration::from_millis(policy.cool_down).to_string()),
        ("analysis/successRate", policy.objectives.success.get().to_string()),
        ("analysis/minRequests", policy.min_requests.to_string()),
        ("analysis/interval", crate::SpecDuration::from_millis(policy.interval).to_string()),
        ("analysis/errorLimit", policy.error_limit.to_string()),
        ("analysis/sequential/falseRollback", sequential.false_rollback.get().to_string()),
        ("analysis/sequential/falsePromotion", sequential.false_promotion.get().to_string()),
        (
            "analysis/sequential/success",
            format!(
                "{} tolerated, {} rejected",
                sequential.success.tolerated.get(),
                sequential.success.rejected.get()
            ),
        ),
        ("analysis/sequential/latency/quantile", latency.quantile.get().to_string()),
        ("analysis/sequential/latency/tolerated", latency.margins.tolerated.get().to_string()),
        ("analysis/sequential/latency/rejected", latency.margins.rejected.get().to_string()),
        ("analysis/thresholds/checks", thresholds.checks.to_string()),
        ("analysis/thresholds/failureThreshold", thresholds.failure_threshold.to_string()),
        ("analysis/thresholds/hardBreach", thresholds.hard_breach.to_string()),
        ("drift/measure", "PSI".to_owned()),
        ("drift/threshold", drift.threshold.to_string()),
        ("drift/windows", drift.windows.to_string()),
        ("drift/minOutputs", drift.min_outputs.to_string()),
        ("drift/objectives", drift.objectives.to_string()),
        ("drift/rollback", drift.rollback.to_string()),
    ] {
        let field = path.split('/').fold(spec, |at, field| &at["properties"][field]);
        let description = field["description"].as_str().unwrap();
        assert!(
            description.ends_with(&format!("; default {default}.")),
            "{path}: {description}, not {default}"
        );
    }
    assert_eq!(drift.measure, DriftMeasure::PopulationStabilityIndex);
}

#[test]
fn every_field_reaches_the_policy() {
    let spec = json!({
        "selector": { "kind": "Model", "matchLabels": { "a": "b" } },
        "strategy": { "canary": { "steps": [{ "weight": 5, "hold": "1m", "approval": true }] } },
        "analysis": {
            "successRate": 0.9, "minRequests": 7, "interval": "5s", "errorLimit": 2,
            "latency": { "target": "80ms", "quantile": 0.5, "tolerance": 2 },
            "sequential": {
                "falseRollback": 0.01, "falsePromotion": 0.02,
                "success": { "tolerated": 0.1, "rejected": 0.2 },
                "latency": { "quantile": 0.9, "tolerated": 0.3, "rejected": 0.4 },
            },
        },
        "progressDeadline": "1s", "bake": "2s", "coolDown": "3s",
        "drift": {
            "measure": "KS", "threshold": 0.5, "windows": 9, "minOutputs": 8, "objectives": false, "rollback": false,
        },
    });
    let policy = policy(&spec).unwrap();
    let step = Step { weight: Percent::new(5).unwrap(), hold: 60_000, approval: true };
    assert_eq!(policy.strategy, Strategy::Canary(CanarySteps::new(vec![step]).unwrap()));
    let Rules::Sequential(rules) = policy.rules else { panic!("{policy:?}") };
    let latency = rules.latency.unwrap();
    let objective = policy.objectives.latency.unwrap();
    let ratios = [
        policy.objectives.success.get(),
        objective.quantile.get(),
        objective.tolerance,
        rules.false_rollback.get(),
        rules.false_promotion.get(),
        rules.success.tolerated.get(),
        rules.success.rejected.get(),
        latency.quantile.get(),
        latency.margins.tolerated.get(),
        latency.margins.rejected.get(),
    ];
    let expected: [f64; 10] = [0.9, 0.5, 2.0, 0.01, 0.02, 0.1, 0.2, 0.9, 0.3, 0.4];
    assert_eq!(ratios.map(f64::to_bits), expected.map(f64::to_bits), "{ratios:?}");
    assert_eq!(
        (objective.target, policy.min_requests, policy.interval, policy.error_limit),
        (80, 7, 5000, 2)
    );
    assert_eq!((policy.progress_deadline, policy.bake, policy.cool_down), (1000, 2000, 3000));
    let drift = DriftRules {
        measure: DriftMeasure::KolmogorovSmirnov,
        threshold: 0.5,
        windows: 9,
        min_outputs: 8,
        objectives: false,
        rollback: false,
    };
    assert_eq!(policy.drift, Some(drift));
}

#[test]
fn invalid_specs_are_one_sentence() {
    for (spec, expected) in [
        (b"{".to_vec(), "the spec is not JSON: EOF while parsing an object at line 1 column 1"),
        (b"[]".to_vec(), "spec must be an object, got a list"),
        (b"null".to_vec(), "spec is required"),
        (
            with("bake", json!("soon")).to_string().into_bytes(),
            "spec.bake \"soon\" is not a duration: write 500ms, 30s, 10m or 1h30m",
        ),
        (
            json!({ "strategi": {}, "targetRef": { "kind": "Model", "name": "iris" } })
                .to_string()
                .into_bytes(),
            "spec.strategi is not a field of RolloutPolicy. Did you mean strategy? (and 1 more)",
        ),
        (
            with("strategy", json!({ "canary": { "steps": [{ "weight": 50 }, { "weight": 20 }] } }))
                .to_string()
                .into_bytes(),
            "spec.strategy.canary.steps[1].weight must be more than the weight of the step before: sort the steps by weight",
        ),
    ] {
        assert_eq!(policy_of_json(&spec).unwrap_err(), expected, "{}", String::from_utf8_lossy(&spec));
    }
}
