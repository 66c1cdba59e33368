//! `InferenceServices` in Standard mode with an Ingress each, on simulated nodes whose pods are ready at once.

use super::{Audit, STATUS_TIMEOUT, api_server_memory, grouped, now, row, run};
use crate::{
    Failure,
    bench::{Bench, machine, note, servers::Process, table::Row},
    k8s,
};
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

const NAMESPACE: &str = "bench-services";
/// Services per namespace of a run: 110 pods fit on a simulated node.
const SERVICES: usize = 1_000;
const NODES: u32 = 10;
/// How long an operator with nothing to do is watched.
const REST: Duration = Duration::from_secs(10);

pub(super) fn measure(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let options = k8s::Options {
        directory: bench.root.join(format!("target/k8s-bench-services-{}", std::process::id())),
        node: false,
        kwok: NODES,
        audit_reads: false,
    };
    let _guard = k8s::Guard::new(&options)?;
    let cluster = k8s::Cluster::up(&options)?;
    run(cluster.kubectl().args(["apply", "-f"]).arg(bench.root.join("deploy/crds")))?;
    let before = api_server_memory(&cluster)?;
    run(cluster.kubectl().args(["apply", "-f"]).arg(bench.root.join("deploy/crds-kserve")))?;
    run(cluster.kubectl().args(["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"]))?;
    let crds = api_server_memory(&cluster)?.saturating_sub(before) as f64 / 1e6;
    let mut rows =
        vec![row("API server memory of the CRDs of serving.kserve.io", crds, " MB", Some(60.0), Some(25.0))];
    run(cluster.kubectl().args(["create", "namespace", NAMESPACE]))?;
    run(cluster.kubectl().args(["apply", "-f"]).arg(bench.root.join("deploy/config/kserve/gantry.yaml")))?;
    let config = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": "inferenceservice-config", "namespace": NAMESPACE },
        "data": { "ingress": json!({ "ingressDomain": "example.com", "ingressClassName": "nginx" }).to_string() },
    });
    cluster.apply(&config)?;
    rows.extend(services(bench, &cluster)?);
    Ok(rows)
}

fn services(bench: &Bench, cluster: &k8s::Cluster) -> Result<Vec<Row>, Failure> {
    note(&format!("{SERVICES} InferenceServices"));
    let operator = operator(bench, cluster)?;
    let audit = Audit::from_now(cluster)?;
    let file = manifest(bench)?;
    let started = Instant::now();
    run(cluster.kubectl().args(["create", "-n", NAMESPACE, "-f"]).arg(&file).stdout(Stdio::null()))?;
    note(&format!("kubectl took {:.1} s", started.elapsed().as_secs_f64()));
    let applied = now()?;
    let deadline = Instant::now() + STATUS_TIMEOUT;
    while ready(cluster)? < SERVICES {
        if Instant::now() > deadline {
            let found = ready(cluster)?;
            return Err(format!("{found} services are ready after {} s", STATUS_TIMEOUT.as_secs()).into());
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    let writes = audit.writes()?;
    let last = |resource: &str| {
        let ended = audit.all()?.into_iter().filter(|w| w.resource == resource).map(|w| w.ended);
        Ok::<f64, Failure>((ended.fold(0.0, f64::max) - applied).max(0.0))
    };
    note(&format!("the last pod was ready {:.1} s after the apply", last("pods/status")?));
    note(&format!("the last Deployment {:.1} s", last("deployments/status")?));
    let services = last("inferenceservices/status")?;
    let events = writes.iter().filter(|w| w.resource == "events").count();
    note(&format!("{events} of {} writes are events", writes.len()));
    let memory = machine::resident(operator.id())? as f64 / 1e6;
    let named = |text: &str| format!("{} InferenceServices: {text}", grouped(SERVICES));
    let mut rows = vec![
        row(&named("all Ready after the apply"), services, " s", Some(20.0), Some(3.0)),
        row(
            &named("API writes each until Ready, children included"),
            writes.len() as f64 / SERVICES as f64,
            "",
            Some(8.0),
            Some(6.0),
        ),
        row(&named("operator resident memory"), memory, " MB", Some(60.0), Some(40.0)),
    ];
    let rest = Audit::from_now(cluster)?;
    std::thread::sleep(REST);
    let at_rest = rest.writes()?.len() as f64;
    rows.push(row(&named("API writes at rest"), at_rest, "", Some(0.0), Some(0.0)));
    let restart = Audit::from_now(cluster)?;
    drop(operator);
    let again = self::operator(bench, cluster)?;
    std::thread::sleep(REST);
    let on_restart = restart.writes()?.len() as f64;
    rows.push(row(&named("API writes on a restart"), on_restart, "", Some(0.0), Some(0.0)));
    drop(again);
    fs::remove_file(file)?;
    Ok(rows)
}

fn operator(bench: &Bench, cluster: &k8s::Cluster) -> Result<Process, Failure> {
    let mut command = Command::new(&bench.gantry);
    command.arg("operator").arg("--kubeconfig").arg(cluster.kubeconfig());
    command.args(["--namespace", NAMESPACE, "--inference-services", "--admin-port=0"]);
    let log = bench.root.join(format!("target/bench-operator-{}.log", std::process::id()));
    let mut operator = Process::start(&mut command, log)?;
    operator.until("the operator", |p| p.output().contains("admin").then_some(()))?;
    Ok(operator)
}

fn manifest(bench: &Bench) -> Result<PathBuf, Failure> {
    let file = Path::new(&bench.root).join("target/bench-services.json");
    let service = |i: usize| {
        json!({
            "apiVersion": "serving.kserve.io/v1beta1",
            "kind": "InferenceService",
            "metadata": { "name": format!("s{i}") },
            "spec": { "predictor": {
                "model": { "modelFormat": { "name": "onnx" }, "storageUri": format!("s3://models/s{i}") },
                "tolerations": [{ "operator": "Exists" }],
            } },
        })
    };
    let items: Vec<Value> = (0..SERVICES).map(service).collect();
    fs::write(&file, json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string())?;
    Ok(file)
}

/// Services that are ready in their latest generation.
fn ready(cluster: &k8s::Cluster) -> Result<usize, Failure> {
    let path = r#"jsonpath={range .items[*]}{.metadata.generation}={.status.observedGeneration} {.status.conditions[?(@.type=="Ready")].status}{"\n"}{end}"#;
    let mut command = cluster.kubectl();
    let output = command.args(["get", "isvc", "-n", NAMESPACE, "--chunk-size=0", "-o", path]).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().filter(|line| *line == "1=1 True").count())
}
