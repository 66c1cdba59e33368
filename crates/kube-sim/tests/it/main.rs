//! Compares the simulated API server with recordings of a real one.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use gantry_kube_sim::{
    Registry, Reply, Server,
    conformance::{Answer, Case, Run, post},
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, fs, path::PathBuf};

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/k8s/conformance")
}

fn read(name: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(directory().join(name)).unwrap()).unwrap()
}

fn registry() -> Registry {
    let mut registry = Registry::built_in();
    registry.add_crd(&read("widgets.crd.json")).unwrap();
    registry
}

fn replay(case: &Case) -> Vec<Answer> {
    let server = Server::new(registry(), 1, "2026-01-01T00:00:00Z".parse().unwrap());
    let namespace = json!({"metadata": {"name": "conformance-1"}});
    let made = server.handle("case", &post("/api/v1/namespaces", &namespace));
    assert_eq!(made.code(), 201, "{}", made.body());
    let mut run = Run::new("conformance-1");
    for step in &case.steps {
        let (code, documents) = match server.handle("case", &run.request(step)) {
            Reply::Json { code, body: Value::String(_), .. } => (code, vec![json!("not JSON")]),
            Reply::Json { code, body, .. } => (code, vec![body]),
            Reply::Watch(mut watch) => (200, server.with(|state| watch.next(state, state.revision()))),
        };
        run.answered(code, documents);
    }
    run.finish()
}

/// The first difference of two documents.
fn difference(path: &str, real: &Value, simulated: &Value) -> Option<String> {
    match (real, simulated) {
        (Value::Object(a), Value::Object(b)) => {
            let missing = b
                .keys()
                .find(|name| !a.contains_key(*name))
                .map(|name| format!("{path}/{name}: only simulated"));
            let differs = a.iter().find_map(|(name, real)| match b.get(name) {
                Some(simulated) => difference(&format!("{path}/{name}"), real, simulated),
                None => Some(format!("{path}/{name}: only real: {real}")),
            });
            differs.or(missing)
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            let mut pairs = a.iter().zip(b).enumerate();
            pairs.find_map(|(index, (a, b))| difference(&format!("{path}/{index}"), a, b))
        }
        (a, b) if a == b => None,
        (a, b) => Some(format!("{path}: real {a}, simulated {b}")),
    }
}

#[tokio::test(start_paused = true)]
async fn responses_match_recorded_cases() {
    let mut files: Vec<_> =
        fs::read_dir(directory().join("cases")).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    let (mut cases, mut wrong) = (0, Vec::new());
    for file in files {
        let recorded: Vec<Case> = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        for case in recorded {
            cases += 1;
            for (index, (step, simulated)) in case.steps.iter().zip(replay(&case)).enumerate() {
                let real = step
                    .answer
                    .as_ref()
                    .unwrap_or_else(|| panic!("\"{}\" has no recorded response", case.name));
                let documents = |answer: &Answer| json!({"code": answer.code, "documents": answer.documents});
                if let Some(difference) = difference("", &documents(real), &documents(&simulated)) {
                    wrong.push(format!("{}, step {index} ({}): {difference}", case.name, step.request));
                }
            }
        }
    }
    assert!(cases >= 100, "{cases} cases: expected at least 100");
    assert!(wrong.is_empty(), "{} responses differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn merge_schemas_match_recorded_schemas() {
    let recorded: BTreeMap<String, BTreeMap<String, String>> =
        serde_json::from_value(read("shapes.json")).unwrap();
    let registry = Registry::built_in();
    let mut wrong = Vec::new();
    for (kind, rules) in &recorded {
        let merge_schema = &registry.by_id(kind).unwrap().merge_schema;
        let simulated = merge_schema.rules();
        for (path, rule) in rules {
            if simulated.get(path) != Some(rule) {
                wrong.push(format!("{kind} {path}: real {rule}, simulated {:?}", simulated.get(path)));
            }
        }
        let unknown = simulated.iter().filter(|(path, _)| !rules.contains_key(*path));
        wrong.extend(unknown.map(|(path, rule)| format!("{kind} {path}: only simulated: {rule}")));
    }
    assert!(wrong.is_empty(), "{} rules differ:\n{}", wrong.len(), wrong.join("\n"));
}
