//! The operator with a real API server: time until every Model has an accurate status, and its cost.
//!
//! docs/benchmarks.md has the reference operators on the same API server; they cannot be built here. Writes are counted in
//! the API server's audit log.

mod audit;
mod inference_services;
mod proxy;

use crate::{
    Failure,
    bench::{
        Bench, machine, note,
        servers::{Process, Scratch},
        table::{Better, Row, figure},
    },
    k8s,
};
use audit::Audit;
use proxy::Proxy;
use serde_json::{Value, json};
use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

const STATUS_TIMEOUT: Duration = Duration::from_mins(5);
/// Sequential changes of one Model, for the latency of a change.
const CHANGES: usize = 200;
/// Up to so many rounds, the run is a quick one.
const QUICK_ROUNDS: usize = 3;
/// Secrets, and as many Pods, that the operator does not own.
const FOREIGN_OBJECTS: usize = 5_000;
const WRITERS: usize = 8;

pub(crate) fn measure(bench: &Bench) -> Result<Vec<Row>, Failure> {
    bench.machine.on_all_cores(|| {
        let mut rows = measure_on_cluster(bench)?;
        rows.extend(inference_services::measure(bench)?);
        Ok(rows)
    })
}

fn measure_on_cluster(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let options = k8s::Options {
        directory: bench.root.join(format!("target/k8s-bench-{}", std::process::id())),
        node: false,
        kwok: 0,
        audit_reads: false,
    };
    let _guard = k8s::Guard::new(&options)?;
    let cluster = k8s::Cluster::up(&options)?;
    let mut rows = vec![crds(bench, &cluster)?];
    let state = Scratch::in_memory("scheduler")?;
    let mut command = Command::new(&bench.gantry);
    command.args([
        "scheduler",
        "--scheduler-port=0",
        "--agent-port=0",
        "--health-probe-port=0",
        "--state-dir",
    ]);
    let mut scheduler = Process::start(command.arg(state.0.join("state")), state.0.join("out"))?;
    let output = scheduler.until("the scheduler", |p| Some(p.output()).filter(|s| s.contains("\nReady.")))?;
    let clients = output.lines().find_map(|l| l.trim().strip_prefix("clients")?.split_whitespace().next());
    let clients = clients.ok_or_else(|| format!("no address in {output}"))?.to_owned();
    for (count, floor, aim) in sizes(bench) {
        note(&format!("{count} models"));
        rows.extend(models(bench, &cluster, &clients, count, floor, aim)?);
    }
    Ok(rows)
}

/// Model counts, with floor and aim of the operator's memory.
fn sizes(bench: &Bench) -> Vec<(usize, f64, f64)> {
    let mut sizes = vec![(1_000, 40.0, 15.0)];
    if bench.rounds > QUICK_ROUNDS {
        sizes.push((10_000, 150.0, 40.0));
    }
    sizes
}

/// API server memory of our CRDs.
fn crds(bench: &Bench, cluster: &k8s::Cluster) -> Result<Row, Failure> {
    let before = api_server_memory(cluster)?;
    let crds = bench.root.join("deploy/crds");
    run(cluster.kubectl().args(["apply", "-f"]).arg(&crds))?;
    run(cluster.kubectl().args(["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"]))?;
    let after = api_server_memory(cluster)?;
    let mb = after.saturating_sub(before) as f64 / 1e6;
    Ok(row("API server memory of the seven CRDs", mb, " MB", Some(60.0), Some(20.0)))
}

fn api_server_memory(cluster: &k8s::Cluster) -> Result<u64, Failure> {
    let processes = cluster.directory().processes()?;
    let found = processes.iter().find(|(name, _)| name == "kube-apiserver");
    found.and_then(|(_, process)| process.memory()).ok_or_else(|| "the API server has exited".into())
}

fn models(
    bench: &Bench,
    cluster: &k8s::Cluster,
    scheduler: &str,
    count: usize,
    memory_floor: f64,
    memory_aim: f64,
) -> Result<Vec<Row>, Failure> {
    let namespace = format!("bench-{count}");
    run(cluster.kubectl().args(["create", "namespace", &namespace]))?;
    let operator = operator(bench, cluster, scheduler, &namespace)?;
    let audit = Audit::from_now(cluster)?;
    let file = manifest(bench, count)?;
    let started = Instant::now();
    run(cluster.kubectl().args(["create", "-n", &namespace, "-f"]).arg(&file).stdout(Stdio::null()))?;
    let took = started.elapsed();
    let applied = now()?;
    note(&format!("kubectl took {:.1} s", took.as_secs_f64()));
    let deadline = Instant::now() + STATUS_TIMEOUT;
    while with_status(cluster, &namespace, count)? < count {
        if Instant::now() > deadline {
            return Err(format!("not every model has a status after {} s", STATUS_TIMEOUT.as_secs()).into());
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    let writes = audit.writes()?;
    let last = writes.iter().map(|w| w.ended).fold(0.0, f64::max);
    let conflicts = writes.iter().filter(|w| w.code == 409).count();
    let memory = machine::resident(operator.id())? as f64 / 1e6;
    let named = |text: &str| format!("{} Models: {text}", grouped(count));
    let mut rows = vec![
        row(
            &named("the last correct status after the apply"),
            (last - applied).max(0.0),
            " s",
            Some(5.0),
            (count >= 10_000).then_some(5.0),
        ),
        row(&named("operator resident memory"), memory, " MB", Some(memory_floor), Some(memory_aim)),
        row(
            &named("API writes per Model until its status"),
            writes.len() as f64 / count as f64,
            "",
            Some(4.0),
            Some(2.0),
        ),
        row(&named("conflicts per 1,000"), conflicts as f64 * 1e3 / count as f64, "", Some(10.0), Some(0.0)),
    ];
    let proxy = Proxy::start(bench, cluster)?;
    if bench.rounds > QUICK_ROUNDS && count == 1_000 {
        rows.push(foreign_objects(&proxy, &namespace, &operator)?);
    }
    rows.push(change(cluster, &proxy, &namespace, &named("a change until its status is correct, p99"))?);
    // Steady state: a restarted operator must not write.
    let restart = Audit::from_now(cluster)?;
    drop(operator);
    let again = self::operator(bench, cluster, scheduler, &namespace)?;
    std::thread::sleep(Duration::from_secs(10));
    rows.push(row(
        &named("API writes on a restart"),
        restart.writes()?.len() as f64,
        "",
        Some(0.0),
        Some(0.0),
    ));
    drop(again);
    run(cluster.kubectl().args(["delete", "namespace", &namespace, "--wait=false"]))?;
    fs::remove_file(file)?;
    Ok(rows)
}

/// Starts the operator for one namespace and waits until it is ready.
fn operator(
    bench: &Bench,
    cluster: &k8s::Cluster,
    scheduler: &str,
    namespace: &str,
) -> Result<Process, Failure> {
    let mut command = Command::new(&bench.gantry);
    command.arg("operator").arg("--kubeconfig").arg(cluster.kubeconfig());
    command.args(["--namespace", namespace, "--scheduler-address", scheduler, "--admin-port=0"]);
    let log = bench.root.join(format!("target/bench-operator-{}.log", std::process::id()));
    let mut operator = Process::start(&mut command, log)?;
    operator.until("the operator", |p| p.output().contains("admin").then_some(()))?;
    Ok(operator)
}

/// Models without a matching server: each gets an unschedulable status.
fn manifest(bench: &Bench, count: usize) -> Result<PathBuf, Failure> {
    let file = bench.root.join(format!("target/bench-models-{count}.json"));
    let items: Vec<Value> = (0..count)
        .map(|i| {
            json!({
                "apiVersion": "mlops.seldon.io/v1alpha1",
                "kind": "Model",
                "metadata": { "name": format!("m{i}") },
                "spec": { "storageUri": format!("gs://models/m{i}"), "requirements": ["onnx"], "memory": "1Mi" },
            })
        })
        .collect();
    fs::write(&file, json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string())?;
    Ok(file)
}

/// Models with Ready=False for their latest generation.
fn with_status(cluster: &k8s::Cluster, namespace: &str, count: usize) -> Result<usize, Failure> {
    let path = r#"jsonpath={range .items[*]}{.metadata.generation}={.status.observedGeneration} {.status.conditions[?(@.type=="Ready")].status}{"\n"}{end}"#;
    let output =
        cluster.kubectl().args(["get", "models", "-n", namespace, "--chunk-size=0", "-o", path]).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    let lines = String::from_utf8_lossy(&output.stdout);
    let all: Vec<&str> = lines.lines().collect();
    if all.len() != count {
        return Err(format!("{} models instead of {count}", all.len()).into());
    }
    Ok(all.iter().filter(|line| **line == "1=1 False").count())
}

/// Changes one Model repeatedly: time from the API server's response to the operator's status write, including the call
/// to the scheduler.
fn change(cluster: &k8s::Cluster, proxy: &Proxy, namespace: &str, what: &str) -> Result<Row, Failure> {
    let audit = Audit::from_now(cluster)?;
    let mut connection = proxy.connect()?;
    let path = format!("/apis/mlops.seldon.io/v1alpha1/namespaces/{namespace}/models/m0");
    for i in 0..CHANGES {
        connection.merge(&path, &json!({ "spec": { "storageUri": format!("gs://models/changed-{i}") } }))?;
        let deadline = Instant::now() + STATUS_TIMEOUT;
        loop {
            let model = connection.get(&path)?;
            let at = |pointer: &str| model.pointer(pointer).and_then(Value::as_u64);
            if at("/status/observedGeneration") == at("/metadata/generation") {
                break;
            }
            if Instant::now() > deadline {
                return Err("a change got no status".into());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    let all = audit.all()?;
    let changes = all.iter().filter(|w| w.resource == "models" && !w.agent.starts_with("gantry"));
    let mut times: Vec<f64> = changes
        .filter_map(|change| {
            let status = all.iter().find(|w| w.resource == "models/status" && w.received >= change.ended)?;
            Some((status.received - change.ended) * 1000.0)
        })
        .collect();
    times.sort_by(f64::total_cmp);
    let slowest: Vec<String> = times.iter().rev().take(3).map(|t| format!("{t:.0} ms")).collect();
    note(&format!("the slowest of {} changes took {}", times.len(), slowest.join(", ")));
    // Nearest rank: of 200, the second slowest.
    let rank = (times.len() * 99).div_ceil(100);
    let p99 = *times.get(rank.saturating_sub(1)).ok_or("the audit log has no change")?;
    Ok(row(what, p99, " ms", Some(250.0), Some(20.0)))
}

/// Growth of the operator's memory with foreign objects in its namespace.
fn foreign_objects(proxy: &Proxy, namespace: &str, operator: &Process) -> Result<Row, Failure> {
    note(&format!("{FOREIGN_OBJECTS} foreign Secrets and as many Pods"));
    let before = machine::resident(operator.id())?;
    let payload = "c3RyYW5nZXJz".repeat(80);
    let write = |part: usize| -> Result<(), Failure> {
        let mut connection = proxy.connect()?;
        for i in (part..FOREIGN_OBJECTS).step_by(WRITERS) {
            let name = format!("foreign-{i}");
            let secret = json!({ "kind": "Secret", "apiVersion": "v1", "metadata": { "name": name },
                "data": { "key": payload } });
            // No scheduler of this name exists: the Pods stay pending.
            let pod = json!({ "kind": "Pod", "apiVersion": "v1", "metadata": { "name": name }, "spec": {
                "schedulerName": "none", "containers": [{ "name": "main", "image": "example.invalid/main" }] } });
            connection.create(&format!("/api/v1/namespaces/{namespace}/secrets"), &secret)?;
            connection.create(&format!("/api/v1/namespaces/{namespace}/pods"), &pod)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let write = &write;
        let writers: Vec<_> =
            (0..WRITERS).map(|part| scope.spawn(move || write(part).map_err(|f| f.to_string()))).collect();
        writers.into_iter().try_for_each(|w| w.join().map_err(|_| "a writer panicked".to_owned())?)
    })?;
    let grown = machine::resident(operator.id())?.saturating_sub(before) as f64 / 1e6;
    let what = format!("{} foreign Secrets and Pods: operator memory growth", grouped(2 * FOREIGN_OBJECTS));
    Ok(row(&what, grown, " MB", Some(10.0), Some(0.0)))
}

fn row(what: &str, value: f64, unit: &'static str, floor: Option<f64>, aim: Option<f64>) -> Row {
    Row {
        what: what.to_owned(),
        peer: String::new(),
        ours: format!("{}{unit}", figure(value)),
        theirs: String::new(),
        rounds: vec![value],
        unit,
        better: Better::Lower,
        floor,
        aim,
    }
}

fn grouped(count: usize) -> String {
    if count >= 1_000 { format!("{},{:03}", count / 1_000, count % 1_000) } else { count.to_string() }
}

/// Seconds of the day; the API server uses the same clock.
fn now() -> Result<f64, Failure> {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    Ok(since.as_secs_f64() % 86_400.0)
}

fn run(command: &mut Command) -> Result<(), Failure> {
    let output = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)).into())
}
