//! `explain`, `diff`, `apply --dry-run` and `adopt` against a fake scheduler: requests, their manager, and the output.

use crate::harness::{RunResult, command, finish, model, server, snapshot};
use axum::http::{HeaderMap, Uri};
use gantry_proto::gantry::{
    AdoptRequest, AdoptResponse, ExplainRequest, Explanation, Fact, PlanRequest, PlanResponse, PlannedChange,
    control_server::{Control, ControlServer},
    planned_change::Action,
};
use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};
use tokio::runtime::Runtime;
use tonic::{Request, Response, Status, service::Routes};

const OWNED: &str = "iris belongs to the operator (namespace ml, generation 7): delete it there, with kubectl \
                     delete model iris -n ml.\nTo take it over on purpose: gantry adopt model/iris";

/// Path and manager of each call.
type Calls = Arc<Mutex<Vec<(String, String)>>>;

/// Implements the control service; all other calls fail with an ownership conflict.
struct FakeScheduler {
    _runtime: Runtime,
    address: SocketAddr,
    calls: Calls,
    dir: tempfile::TempDir,
}

impl FakeScheduler {
    fn new() -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let calls = Calls::default();
        let recorded = calls.clone();
        let refuse = move |uri: Uri, headers: HeaderMap| async move {
            record(&recorded, uri.path(), &headers);
            Status::failed_precondition(OWNED).into_http::<axum::body::Body>()
        };
        let control = ControlServer::new(FakeControl(calls.clone()));
        let routes = Routes::from(Routes::new(control).into_axum_router().fallback(refuse));
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind(any)).unwrap();
        let address = listener.local_addr().unwrap();
        let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
        runtime.spawn(tonic::transport::Server::builder().add_routes(routes).serve_with_incoming(incoming));
        Self { _runtime: runtime, address, calls, dir: tempfile::tempdir().unwrap() }
    }

    fn gantry(&self, args: &[&str]) -> RunResult {
        let mut command = command(args);
        command.env("GANTRY_SCHEDULER", self.address.to_string()).env("GANTRY_ADMIN", "127.0.0.1:1");
        finish(command.current_dir(self.dir.path()))
    }

    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.dir.path().join(file), text).unwrap();
    }

    /// Managers of the calls of a method since the last query.
    fn managers(&self, method: &str) -> Vec<String> {
        let calls = std::mem::take(&mut *self.calls.lock().unwrap());
        calls.into_iter().filter(|(path, _)| path.ends_with(method)).map(|(_, manager)| manager).collect()
    }
}

fn record(calls: &Calls, path: &str, headers: &HeaderMap) {
    let manager = headers.get("gantry-manager").map(|v| v.to_str().unwrap().to_owned()).unwrap_or_default();
    calls.lock().unwrap().push((path.to_owned(), manager));
}

struct FakeControl(Calls);

impl FakeControl {
    fn record<T>(&self, path: &str, request: &Request<T>) {
        record(&self.0, path, &request.metadata().clone().into_headers());
    }
}

fn lines(lines: &[&str]) -> Vec<String> {
    lines.iter().map(|l| (*l).to_owned()).collect()
}

#[tonic::async_trait]
impl Control for FakeControl {
    async fn explain(&self, request: Request<ExplainRequest>) -> Result<Response<Explanation>, Status> {
        self.record("/Explain", &request);
        let request = request.into_inner();
        match (request.kind.as_str(), request.name.as_str()) {
            ("model", "demand") => Ok(Response::new(Explanation {
                headline: "demand is not ready: no server offers lightgbm.".into(),
                reason: "NoCapability".into(),
                facts: vec![
                    Fact { label: "spec".into(), lines: lines(&["requirements: lightgbm"]) },
                    Fact {
                        label: "servers".into(),
                        lines: lines(&[
                            "mlserver-a   2 replicas   sklearn",
                            "triton-a     1 replica    onnx",
                        ]),
                    },
                ],
                next: "add lightgbm to a server's capabilities, or remove the requirement".into(),
            })),
            ("server", "builtin") => Ok(Response::new(Explanation {
                headline: "builtin is ready: 1 of 1 replicas joined.".into(),
                reason: "Ready".into(),
                ..Default::default()
            })),
            _ => Err(Status::failed_precondition("not found")),
        }
    }

    async fn plan(&self, request: Request<PlanRequest>) -> Result<Response<PlanResponse>, Status> {
        self.record("/Plan", &request);
        let request = request.into_inner();
        let mut changes = Vec::new();
        for server in request.servers {
            let (kind, action) = ("server".into(), Action::Create as i32);
            changes.push(PlannedChange {
                kind,
                name: server.name,
                action,
                to_version: 0,
                ..Default::default()
            });
        }
        for model in request.models {
            let name = model.meta.unwrap().name;
            let (action, from, to, effect) = match name.as_str() {
                "same" => (Action::Unchanged, 3, 3, ""),
                "huge" => (Action::Create, 0, 1, "needs 6.0 GB; most free is 4.2 GB on mlserver-0"),
                "foreign" => (Action::Refuse, 1, 1, OWNED),
                _ => (Action::Update, 1, 2, "storageUri changed; loads on builtin beside version 1"),
            };
            changes.push(PlannedChange {
                kind: "model".into(),
                placed: action == Action::Update,
                action: action as i32,
                from_version: from,
                to_version: to,
                effects: if effect.is_empty() { vec![] } else { lines(&[effect]) },
                name,
            });
        }
        Ok(Response::new(PlanResponse { changes }))
    }

    async fn adopt(&self, request: Request<AdoptRequest>) -> Result<Response<AdoptResponse>, Status> {
        self.record("/Adopt", &request);
        match request.into_inner().name.as_str() {
            "iris" => Ok(Response::new(AdoptResponse { previous: "operator:ml".into() })),
            _ => Err(Status::failed_precondition("not found")),
        }
    }
}

#[test]
fn explain_starts_with_the_root_cause() {
    let fake = FakeScheduler::new();
    snapshot("explain", &fake.gantry(&["explain", "model/demand", "server/builtin"]).transcript());
    snapshot("explain-json", &fake.gantry(&["explain", "model", "demand", "-o", "json"]).transcript());
    let unknown = fake.gantry(&["explain", "model/missing", "model/demand"]);
    assert_eq!((unknown.code, unknown.stderr.as_str()), (3, "model/missing not found\n"));
    assert!(unknown.stdout.starts_with("demand is not ready"), "{unknown:?}");
    assert_eq!(fake.gantry(&["explain", "model"]).code, 2);
}

#[test]
fn diff_and_dry_run_change_nothing() {
    let fake = FakeScheduler::new();
    let spec = "  storageUri: /m\n";
    fake.write("same.yaml", &model("same", spec));
    fake.write(
        "new.yaml",
        &(model("fraud", spec) + "---\n" + &model("huge", spec) + "---\n" + &model("same", spec)),
    );
    fake.write("server.yaml", &server("s", 2));
    fake.write("foreign.yaml", &model("foreign", spec));
    for (name, args) in [
        ("diff", &["diff", "-f", "new.yaml", "-f", "server.yaml"][..]),
        ("diff-nothing", &["diff", "-f", "same.yaml"]),
        ("diff-refused", &["diff", "-f", "foreign.yaml"]),
        ("diff-json", &["diff", "-f", "new.yaml", "-o", "json"]),
        ("dry-run", &["apply", "--dry-run", "-f", "new.yaml"]),
        ("dry-run-refused", &["apply", "--dry-run", "-f", "foreign.yaml"]),
    ] {
        snapshot(name, &fake.gantry(args).transcript());
    }
    let calls = std::mem::take(&mut *fake.calls.lock().unwrap());
    for (path, manager) in &calls {
        // Only plan and status calls; the plan carries the manager.
        let read_only = path.ends_with("/Plan") && manager == "cli" || path.ends_with("Status");
        assert!(read_only, "{path} {manager}");
    }
    assert_eq!(calls.iter().filter(|(path, _)| path.ends_with("/Plan")).count(), 6);
    let broken = fake.gantry(&["diff", "-f", "none.yaml"]);
    assert_eq!((broken.code, broken.stderr.as_str()), (2, "none.yaml does not exist\n"));
}

#[test]
fn unreachable_scheduler_exits_with_4() {
    let unreachable = finish(command(&["explain", "model/iris"]).env("GANTRY_SCHEDULER", "127.0.0.1:1"));
    assert_eq!(unreachable.code, 4, "{unreachable:?}");
}

#[test]
fn adopt_prints_the_previous_owner() {
    let fake = FakeScheduler::new();
    let ran = fake.gantry(&["adopt", "model/iris"]);
    assert_eq!(ran.ok(), "model/iris adopted from the operator (namespace ml)\n");
    assert_eq!(fake.managers("/Adopt"), ["cli"]);
    let unknown = fake.gantry(&["adopt", "model/missing"]);
    assert_eq!((unknown.code, unknown.stderr.as_str()), (3, "model/missing not found\n"));
}

#[test]
fn changes_carry_the_manager_and_conflicts_name_the_owner() {
    let fake = FakeScheduler::new();
    fake.write("iris.yaml", &model("iris", "  storageUri: /m\n"));
    fake.write("server.yaml", &server("s", 1));
    let message = format!("{OWNED}\n");
    let applied = fake.gantry(&["apply", "-f", "iris.yaml"]);
    assert_eq!(applied.code, 6);
    assert_eq!(applied.stderr, format!("iris.yaml:1: model/iris was refused: {message}0 of 1 applied.\n"));
    assert_eq!(fake.managers("/LoadModel"), ["cli"]);
    assert_eq!(fake.gantry(&["apply", "-f", "server.yaml"]).code, 6);
    assert_eq!(fake.managers("/ServerNotify"), ["cli"]);
    for (args, method) in [
        (&["model", "load", "-f", "iris.yaml"][..], "/LoadModel"),
        (&["model", "unload", "iris"], "/UnloadModel"),
        (&["server", "load", "-f", "server.yaml"], "/ServerNotify"),
        (&["server", "unload", "s"], "/ServerNotify"),
    ] {
        let ran = fake.gantry(args);
        assert_eq!((ran.code, ran.stdout.as_str(), &ran.stderr), (6, "", &message), "{args:?}");
        assert_eq!(fake.managers(method), ["cli"], "{args:?}");
    }
}
