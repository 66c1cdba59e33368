//! Servers that `gantry up` runs as processes: started, watched, started again, taken over, stopped.

use crate::world::{Ran, command, finish};
use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Stdio},
    time::{Duration, Instant},
};

/// How long anything may take before the test gives up.
const PATIENCE: Duration = Duration::from_mins(2);

/// A `gantry up` of the test's own.
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
            let words: Vec<&str> = line.split_whitespace().collect();
            let variable = match words.as_slice() {
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

    fn gantry(&self, args: &[&str]) -> Ran {
        finish(command(args).envs(self.variables.iter().map(|(n, v)| (*n, v.as_str()))))
    }

    /// The processes as the admin port tells them.
    fn replicas(&self) -> Vec<serde_json::Value> {
        let admin = &self.variables.iter().find(|(n, _)| *n == "GANTRY_ADMIN").unwrap().1;
        let text = get(admin.trim_start_matches("http://"), "/servers");
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        value["replicas"].as_array().unwrap().clone()
    }

    /// Waits until the processes are as they should be.
    fn until(&self, what: &str, is: impl Fn(&[serde_json::Value]) -> bool) -> Vec<serde_json::Value> {
        let begun = Instant::now();
        loop {
            let replicas = self.replicas();
            if is(&replicas) {
                return replicas;
            }
            assert!(begun.elapsed() < PATIENCE, "{what}: {replicas:#?}");
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

/// One HTTP request, by hand.
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
    // As a whole, so that nobody reads half of it.
    let draft = path.with_extension("draft");
    std::fs::write(&draft, text).unwrap();
    std::fs::rename(draft, path).unwrap();
}

/// A server whose replicas are `gantry runtime`, and a model that only it may have.
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
fn a_server_serves_is_started_again_taken_over_and_stopped() {
    let dir = tempfile::tempdir().unwrap();
    manifests(dir.path(), 1, RUNTIME);
    let mut up = Up::start(dir.path());
    let first = pids(&up.until("started", all_ready(1)));
    up.gantry(&["wait", "model/iris", "--timeout", "60s"]).ok();
    assert!(up.gantry(&["infer", "iris"]).ok().contains("outputs"));
    // What it says is in our log, under its name.
    let logs = up.gantry(&["logs", "server/side"]).ok();
    assert!(logs.contains("server=side replica=0 serving on http://127.0.0.1:"), "{logs}");
    assert!(!up.gantry(&["logs", "server/other"]).ok().contains("side"));

    // A crash is followed by a new start, and the model is loaded again.
    assert!(
        std::process::Command::new("kill").args(["-KILL", &first[0].to_string()]).status().unwrap().success()
    );
    let second = pids(&up.until("started again", |r| all_ready(1)(r) && pids(r) != first));
    up.gantry(&["wait", "model/iris", "--timeout", "60s"]).ok();

    // Killed ourselves, we leave it running, and find it again.
    up.signal("-KILL");
    assert!(alive(second[0]));
    let up = Up::start(dir.path());
    assert_eq!(pids(&up.until("taken over", all_ready(1))), second);
    up.gantry(&["wait", "model/iris", "--timeout", "60s"]).ok();
    assert!(up.gantry(&["infer", "iris"]).ok().contains("outputs"));

    // More replicas, then fewer; what runs goes on running.
    manifests(dir.path(), 2, RUNTIME);
    let two = pids(&up.until("two", all_ready(2)));
    assert_eq!(two[0], second[0]);
    manifests(dir.path(), 1, RUNTIME);
    assert_eq!(pids(&up.until("one", |r| r.len() == 1)), second);
    assert!(!alive(two[1]));

    // Stopped in good order, it goes with us.
    drop(up);
    assert!(!alive(second[0]));
}

#[test]
fn a_crash_loop_is_named() {
    let dir = tempfile::tempdir().unwrap();
    manifests(dir.path(), 1, "sh -c 'echo no licence; exit 3'");
    let up = Up::start(dir.path());
    up.until("crashed twice", |r| {
        r.first().is_some_and(|r| r["failures"].as_u64() >= Some(2) && r["state"] == "crashed")
    });
    let explained = up.gantry(&["explain", "server/side"]).ok();
    assert!(explained.starts_with("side is not ready: replica 0 ended with exit code 3, "), "{explained}");
    assert!(explained.contains("it said     no licence"), "{explained}");
    let status = up.gantry(&["status"]).ok();
    assert!(status.contains("replica 0 ended with exit code 3"), "{status}");
    // A manifest that is mended is tried at once.
    manifests(dir.path(), 1, RUNTIME);
    up.until("mended", all_ready(1));
    let explained = up.gantry(&["explain", "server/side"]).ok();
    assert!(!explained.contains("is not ready: replica"), "{explained}");
    manifests(dir.path(), 1, "no-such-server");
    up.until("not found", |r| {
        r.first().is_some_and(|r| r["lastEnd"].as_str().unwrap_or_default().contains("is not found"))
    });
}

#[test]
fn a_mistake_in_a_recipe_is_named_with_its_place() {
    let dir = tempfile::tempdir().unwrap();
    manifests(dir.path(), 1, "\"a 'b\"");
    let ran = finish(command(&["up", "models", "--state-dir", "state"]).current_dir(dir.path()));
    assert_eq!(ran.code, 2);
    assert!(
        ran.stderr
            .contains("side.yaml:1: metadata.annotations.gantry.dev/command has a ' that is not closed"),
        "{ran:?}"
    );
}

#[test]
fn what_a_file_asks_for_is_refused_to_others_until_it_is_adopted() {
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
    let words = format!("iris belongs to the file {}: remove it there.", file.display());
    assert_eq!(refused.code, 6, "{refused:?}");
    assert_eq!(refused.stderr, format!("{words}\nTo take it over on purpose: gantry adopt model/iris\n"));
    // From one file to another it stays ours: in the same moment, so that it never goes.
    std::fs::create_dir(dir.path().join("models/deep")).unwrap();
    std::fs::rename(dir.path().join("models/a.yaml"), dir.path().join("models/deep/b.yaml")).unwrap();
    model("models/deep/b.yaml", 2);
    let begun = Instant::now();
    while up.gantry(&["get", "model/iris", "-o", "jsonpath={.spec.replicas}"]).ok() != "2\n" {
        assert!(begun.elapsed() < PATIENCE, "the change was not taken");
    }
    let adopted = up.gantry(&["adopt", "model/iris"]).ok();
    assert!(
        adopted.starts_with("model/iris adopted from the file ") && adopted.contains("deep/b.yaml"),
        "{adopted}"
    );
    assert_eq!(up.gantry(&["delete", "model/iris", "--wait"]).ok(), "model/iris deleted\n");
}
