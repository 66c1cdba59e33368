//! Servers supervised by `gantry up`: start, restart after a crash, re-adoption, scaling, stop.

use crate::harness::{RunResult, command, finish};
use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Stdio},
    time::{Duration, Instant},
};

const TEST_TIMEOUT: Duration = Duration::from_mins(2);

struct Up {
    child: Child,
    variables: Vec<(&'static str, String)>,
}

impl Up {
    fn start(dir: &Path) -> Self {
        let mut up = command(&["up", "models", "--state-dir", "state"]);
        up.current_dir(dir).stdout(Stdio::piped()).stderr(Stdio::null());
        for port in ["--inference-port", "--admin-port", "--scheduler-port", "--agent-port"] {
            up.args([port, "0"]);
        }
        let mut child = up.spawn().unwrap();
        let mut variables = Vec::new();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        for line in lines.map_while(Result::ok) {
            let columns: Vec<&str> = line.split_whitespace().collect();
            let variable = match columns.as_slice() {
                ["inference", address, ..] => Some(("GANTRY_INFERENCE", *address)),
                ["scheduler", address, ..] => Some(("GANTRY_SCHEDULER", *address)),
                ["admin", address, ..] => Some(("GANTRY_ADMIN", *address)),
                ["Ready", "in", ..] => break,
                _ => None,
            };
            variables.extend(variable.map(|(name, address)| (name, address.to_owned())));
        }
        assert_eq!(variables.len(), 3, "{variables:?}");
        Self { child, variables }
    }

    fn gantry(&self, args: &[&str]) -> RunResult {
        finish(command(args).envs(self.variables.iter().map(|(n, v)| (*n, v.as_str()))))
    }

    /// Replica processes reported by the admin endpoint.
    fn replicas(&self) -> Vec<serde_json::Value> {
        let admin = &self.variables.iter().find(|(n, _)| *n == "GANTRY_ADMIN").unwrap().1;
        let text = get(admin.trim_start_matches("http://"), "/servers");
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        value["replicas"].as_array().unwrap().clone()
    }

    fn wait_until(
        &self,
        what: &str,
        condition: impl Fn(&[serde_json::Value]) -> bool,
    ) -> Vec<serde_json::Value> {
        let started = Instant::now();
        loop {
            let replicas = self.replicas();
            if condition(&replicas) {
                return replicas;
            }
            assert!(started.elapsed() < TEST_TIMEOUT, "{what}: {replicas:#?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn signal(&mut self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(std::process::Command::new("kill").args([signal, &pid]).status().unwrap().success());
        self.child.wait().unwrap();
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            self.signal("-TERM");
        }
    }
}

fn get(address: &str, path: &str) -> String {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let body = text.split_once("\r\n\r\n").unwrap().1;
    body.to_owned()
}

fn write(dir: &Path, file: &str, text: &str) {
    let path = dir.join(file);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    // Atomically, because the file is watched.
    let temporary = path.with_extension("temporary");
    std::fs::write(&temporary, text).unwrap();
    std::fs::rename(temporary, path).unwrap();
}

/// A server whose replicas run `command`, and a model that requires it.
fn manifests(dir: &Path, replicas: u32, command: &str) {
    let server = format!(
        "apiVersion: mlops.seldon.io/v1alpha1\nkind: Server\nmetadata:\n  name: side\n  annotations:\n    \
         gantry.dev/command: {command}\n    gantry.dev/memory: 100Mi\nspec:\n  serverConfig: builtin\n  \
         capabilities: [onnx, side]\n  replicas: {replicas}\n"
    );
    write(dir, "models/side.yaml", &server);
    let iris = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/quickstart/iris");
    let model = format!(
        "apiVersion: mlops.seldon.io/v1alpha1\nkind: Model\nmetadata:\n  name: iris\nspec:\n  storageUri: {}\n  \
         requirements: [side]\n",
        iris.canonicalize().unwrap().display()
    );
    write(dir, "models/iris.yaml", &model);
}

const RUNTIME: &str = "\"{gantry} runtime --explicit --port {http_port} {models_dir}\"";

fn pids(replicas: &[serde_json::Value]) -> Vec<i64> {
    replicas.iter().filter_map(|r| r["pid"].as_i64()).collect()
}

fn all_ready(count: usize) -> impl Fn(&[serde_json::Value]) -> bool {
    move |replicas| replicas.len() == count && replicas.iter().all(|r| r["state"] == "ready")
}

fn alive(pid: i64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

#[test]
fn server_restarts_survives_gantry_and_scales() {
    let dir = tempfile::tempdir().unwrap();
    manifests(dir.path(), 1, RUNTIME);
    let mut up = Up::start(dir.path());
    let first = pids(&up.wait_until("started", all_ready(1)));
    up.gantry(&["wait", "model/iris", "--timeout", "60s"]).ok();
    assert!(up.gantry(&["infer", "iris"]).ok().contains("outputs"));
    // Its output is in the log, labelled with its name.
    let logs = up.gantry(&["logs", "server/side"]).ok();
    assert!(logs.contains("server=side replica=0 serving on http://127.0.0.1:"), "{logs}");
    assert!(!up.gantry(&["logs", "server/other"]).ok().contains("side"));

    // After a crash, the server restarts and reloads the model.
    assert!(
        std::process::Command::new("kill").args(["-KILL", &first[0].to_string()]).status().unwrap().success()
    );
    let second = pids(&up.wait_until("restarted", |r| all_ready(1)(r) && pids(r) != first));
    up.gantry(&["wait", "model/iris", "--timeout", "60s"]).ok();

    // It survives a killed gantry and is re-adopted by the next one.
    up.signal("-KILL");
    assert!(alive(second[0]));
    let up = Up::start(dir.path());
    assert_eq!(pids(&up.wait_until("re-adopted", all_ready(1))), second);
    up.gantry(&["wait", "model/iris", "--timeout", "60s"]).ok();
    assert!(up.gantry(&["infer", "iris"]).ok().contains("outputs"));

    // Scale up and down; the first replica keeps running.
    manifests(dir.path(), 2, RUNTIME);
    let two = pids(&up.wait_until("two", all_ready(2)));
    assert_eq!(two[0], second[0]);
    manifests(dir.path(), 1, RUNTIME);
    assert_eq!(pids(&up.wait_until("one", |r| r.len() == 1)), second);
    assert!(!alive(two[1]));

    // A graceful shutdown stops it.
    drop(up);
    assert!(!alive(second[0]));
}

#[test]
fn crash_loop_is_explained() {
    let dir = tempfile::tempdir().unwrap();
    manifests(dir.path(), 1, "sh -c 'echo no licence; exit 3'");
    let up = Up::start(dir.path());
    up.wait_until("crashed twice", |r| {
        r.first().is_some_and(|r| r["failures"].as_u64() >= Some(2) && r["state"] == "crashed")
    });
    let explained = up.gantry(&["explain", "server/side"]).ok();
    assert!(explained.starts_with("side is not ready: replica 0 ended with exit code 3, "), "{explained}");
    assert!(explained.contains("log         no licence"), "{explained}");
    let status = up.gantry(&["status"]).ok();
    assert!(status.contains("replica 0 ended with exit code 3"), "{status}");
    // A fixed manifest restarts it immediately.
    manifests(dir.path(), 1, RUNTIME);
    up.wait_until("fixed", all_ready(1));
    let explained = up.gantry(&["explain", "server/side"]).ok();
    assert!(!explained.contains("is not ready: replica"), "{explained}");
    manifests(dir.path(), 1, "no-such-server");
    up.wait_until("not found", |r| {
        r.first().is_some_and(|r| r["lastEnd"].as_str().unwrap_or_default().contains("not found"))
    });
}

#[test]
fn invalid_command_annotation_is_reported_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    manifests(dir.path(), 1, "\"a 'b\"");
    let ran = finish(command(&["up", "models", "--state-dir", "state"]).current_dir(dir.path()));
    assert_eq!(ran.code, 2);
    assert!(
        ran.stderr.contains("side.yaml:1: metadata.annotations.gantry.dev/command has an unclosed quote"),
        "{ran:?}"
    );
}

#[test]
fn objects_of_a_file_must_be_adopted_before_deletion() {
    let dir = tempfile::tempdir().unwrap();
    let model = |file: &str, replicas: u32| {
        let iris = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/quickstart/iris");
        let text = format!(
            "apiVersion: mlops.seldon.io/v1alpha1\nkind: Model\nmetadata:\n  name: iris\nspec:\n  storageUri: {}\n  \
             minReplicas: 1\n  replicas: {replicas}\n",
            iris.canonicalize().unwrap().display()
        );
        write(dir.path(), file, &text);
    };
    model("models/a.yaml", 1);
    let up = Up::start(dir.path());
    let refused = up.gantry(&["delete", "model/iris"]);
    let file = dir.path().canonicalize().unwrap().join("models/a.yaml");
    let message = format!("iris belongs to the file {}: remove it there.", file.display());
    assert_eq!(refused.code, 6, "{refused:?}");
    assert_eq!(refused.stderr, format!("{message}\nTo take it over on purpose: gantry adopt model/iris\n"));
    // Moving it to another file keeps the owner, without a deletion.
    std::fs::create_dir(dir.path().join("models/deep")).unwrap();
    std::fs::rename(dir.path().join("models/a.yaml"), dir.path().join("models/deep/b.yaml")).unwrap();
    model("models/deep/b.yaml", 2);
    let started = Instant::now();
    while up.gantry(&["get", "model/iris", "-o", "jsonpath={.spec.replicas}"]).ok() != "2\n" {
        assert!(started.elapsed() < TEST_TIMEOUT, "the change was not applied");
    }
    let adopted = up.gantry(&["adopt", "model/iris"]).ok();
    assert!(
        adopted.starts_with("model/iris adopted from file ") && adopted.contains("deep/b.yaml"),
        "{adopted}"
    );
    assert_eq!(up.gantry(&["delete", "model/iris", "--wait"]).ok(), "model/iris deleted\n");
}
