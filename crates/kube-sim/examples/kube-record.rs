//! Records responses of a real API server: `cargo run -p gantry-kube-sim --example kube-record -- KUBECONFIG`.
//!
//! Sends the cases in `tests/k8s/conformance`, writes the responses back into the same files, and writes the merge rules of
//! the server's schemas into `shapes.json`. Needs a cluster without controllers
//! (etcd and kube-apiserver only).
#![allow(clippy::print_stdout, reason = "a tool for developers: what it prints is its result")]

use gantry_kube_sim::{
    HttpRequest,
    conformance::{Case, Run, post},
};
use http::Request;
use http_body_util::BodyExt;
use kube::{
    Client, Config,
    client::Body,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    fs,
    path::Path,
};

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let path = std::env::args().nth(1).ok_or("usage: kube-record KUBECONFIG")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(record(Path::new(&path)))
}

async fn record(kubeconfig: &Path) -> Outcome<()> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    // Errors are recorded, too.
    config.default_retry = false;
    let client = Client::try_from(config)?;
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/k8s/conformance");
    let crd: Value = serde_json::from_str(&fs::read_to_string(directory.join("widgets.crd.json"))?)?;
    send(&client, &post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &crd)).await?;
    until_served(&client).await?;

    let mut files: Vec<_> = fs::read_dir(directory.join("cases"))?.collect::<Result<_, _>>()?;
    files.sort_by_key(fs::DirEntry::path);
    let mut number = std::process::id();
    for file in files {
        let mut cases: Vec<Case> = serde_json::from_str(&fs::read_to_string(file.path())?)?;
        for case in &mut cases {
            number += 1;
            let namespace = format!("conformance-{number}");
            send(&client, &post("/api/v1/namespaces", &json!({"metadata": {"name": namespace}}))).await?;
            let mut run = Run::new(&namespace);
            for step in &case.steps {
                let (code, documents) = send(&client, &run.request(step)).await?;
                run.answered(code, documents);
            }
            for (step, answer) in case.steps.iter_mut().zip(run.finish()) {
                step.answer = Some(answer);
            }
        }
        println!("{}: {} cases", file.file_name().display(), cases.len());
        fs::write(file.path(), written(&cases)?)?;
    }
    let builtin_merge_schemas = builtin_merge_schemas(&client).await?;
    fs::write(directory.join("shapes.json"), serde_json::to_string_pretty(&builtin_merge_schemas)? + "\n")?;
    Ok(())
}

/// One line per step, for small diffs.
fn written(cases: &[Case]) -> Outcome<String> {
    let mut written = Vec::new();
    for case in cases {
        let steps = case.steps.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
        let name = serde_json::to_string(&case.name)?;
        written
            .push(format!("{{\n  \"name\": {name},\n  \"steps\": [\n    {}\n  ]\n}}", steps.join(",\n    ")));
    }
    Ok(format!("[{}]\n", written.join(",\n")))
}

/// A CRD is served shortly after its creation.
async fn until_served(client: &Client) -> Outcome<()> {
    let raw = HttpRequest {
        method: "GET".into(),
        target: "/apis/test.gantry.dev/v1/widgets".into(),
        ..HttpRequest::default()
    };
    for _ in 0..600 {
        if send(client, &raw).await?.0 == 200 {
            return Ok(());
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    Err("the definition of widgets is not served after a minute: look at the API server's log".into())
}

async fn send(client: &Client, raw: &HttpRequest) -> Outcome<(u16, Vec<Value>)> {
    let request = Request::builder()
        .method(raw.method.as_str())
        .uri(&raw.target)
        .header("Content-Type", &raw.content_type)
        .header("Accept", &raw.accept)
        .header("User-Agent", &raw.user_agent)
        .body(Body::from(raw.body.clone()))?;
    let response = client.send(request).await?;
    let code = response.status().as_u16();
    let body = response.into_body().collect().await?.to_bytes();
    let documents = serde_json::Deserializer::from_slice(&body).into_iter::<Value>();
    Ok((code, documents.collect::<Result<_, _>>().unwrap_or_else(|_| vec![json!("not JSON")])))
}

/// `kind → path → rule`, in the simulator's syntax, for its kinds.
async fn builtin_merge_schemas(client: &Client) -> Outcome<BTreeMap<String, BTreeMap<String, String>>> {
    let mut found = BTreeMap::new();
    let registry = gantry_kube_sim::Registry::built_in();
    let versions: BTreeSet<(String, String)> =
        registry.iter().map(|kind| (kind.group.clone(), kind.version.clone())).collect();
    for (group, version) in versions {
        let path =
            if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") };
        let raw = HttpRequest {
            method: "GET".into(),
            target: format!("/openapi/v3/{path}"),
            ..HttpRequest::default()
        };
        let (_, documents) = send(client, &raw).await?;
        let schemas = documents.first().and_then(|document| document.pointer("/components/schemas")).cloned();
        let schemas = schemas.ok_or_else(|| format!("/openapi/v3/{path} has no schemas"))?;
        for kind in registry.iter().filter(|kind| kind.group == group && kind.version == version) {
            let is_it = |schema: &&Value| {
                let known = json!({"group": group, "kind": kind.kind, "version": version});
                let list = schema.get("x-kubernetes-group-version-kind").and_then(Value::as_array);
                list.is_some_and(|list| list.contains(&known))
            };
            let schema = schemas.as_object().into_iter().flatten().map(|(_, schema)| schema).find(is_it);
            let schema = schema.ok_or_else(|| format!("no schema for {}", kind.id()))?;
            let mut rules = BTreeMap::new();
            walk(schema, &schemas, "", &mut rules, 0);
            found.insert(kind.id(), rules);
        }
    }
    Ok(found)
}

/// The CRD schema is recursive: limits the depth.
const DEEPEST: usize = 14;

fn walk(schema: &Value, all: &Value, path: &str, rules: &mut BTreeMap<String, String>, depth: usize) {
    let mut schema = schema;
    let mut list = schema;
    while let Some(name) = reference(schema) {
        let Some(target) = all.get(name) else { return };
        schema = target;
        if list.get("x-kubernetes-list-type").is_none() {
            list = target;
        }
    }
    if depth > DEEPEST {
        return;
    }
    match list.get("x-kubernetes-list-type").and_then(Value::as_str) {
        Some("set") => {
            rules.insert(path.to_owned(), "set".into());
        }
        Some("map") => {
            let items = schema
                .get("items")
                .map(|items| reference(items).and_then(|name| all.get(name)).unwrap_or(items));
            let keys = list.get("x-kubernetes-list-map-keys").and_then(Value::as_array);
            let keys = keys.into_iter().flatten().filter_map(Value::as_str).map(|key| {
                let default = items.and_then(|items| items.pointer(&format!("/properties/{key}/default")));
                match default.and_then(Value::as_str).filter(|default| !default.is_empty()) {
                    Some(default) => format!("{key}={default}"),
                    None => key.to_owned(),
                }
            });
            rules.insert(path.to_owned(), format!("keyed {}", keys.collect::<Vec<_>>().join(" ")));
        }
        _ => {}
    }
    let opaque = schema.get("type") == Some(&json!("object"))
        && schema.get("properties").is_none()
        && schema.get("additionalProperties").is_none();
    if opaque || schema.get("x-kubernetes-map-type").and_then(Value::as_str) == Some("atomic") {
        rules.insert(path.to_owned(), "unit".into());
        return;
    }
    for (name, field) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let below = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        walk(field, all, &below, rules, depth + 1);
    }
    if let (Some(items), true) = (schema.get("items"), rules.contains_key(path)) {
        walk(items, all, &format!("{path}[]"), rules, depth + 1);
    }
}

fn reference(schema: &Value) -> Option<&str> {
    let reference = schema.get("$ref").or_else(|| schema.pointer("/allOf/0/$ref"));
    reference.and_then(Value::as_str)?.rsplit('/').next()
}
