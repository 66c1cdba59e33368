//! rten in worker processes: limits, crashes and restarts.

use crate::support::{Message, built_in, cases, graph, initializer, model, node, value_info};
use gantry_onnx::{Engine, EngineChoice, Options, RunError, Session, WorkerCommand};
use gantry_tensor::{CancelToken, Elements, Tensor};
use std::{
    process::Command,
    time::{Duration, Instant},
};

fn subprocess() -> Options {
    Options {
        engine: EngineChoice::Rten,
        worker: Some(WorkerCommand {
            program: env!("CARGO_BIN_EXE_onnx_worker").into(),
            arguments: Vec::new(),
        }),
        max_run_bytes: 256 << 20,
        ..built_in()
    }
}

fn load(bytes: impl AsRef<[u8]>, options: &Options) -> Session {
    let session = Session::from_bytes(bytes, options).unwrap();
    assert_eq!(*session.engine(), Engine::Rten);
    assert!(session.why().ends_with("in a worker process"), "{}", session.why());
    session
}

fn x(values: &[f32]) -> Tensor {
    Tensor::new("x", [1, values.len()], Elements::Fp32(values.to_vec())).unwrap()
}

/// `y = x + x`, by rten.
fn double() -> Vec<u8> {
    model(&graph(&[node("Add", "", "add", &["x", "x"], &["y"])], &[]))
}

/// Allocates as many elements as the first value: `y = x + 0 * sum(fill(x[0]))`.
fn allocates_first_value() -> Vec<u8> {
    let cast = node("Cast", "", "cast", &["x"], &["n"])
        .message(5, &Message::default().text(1, "to").int(20, 2).int(3, 7));
    let nodes = [
        cast,
        node("Gather", "", "first", &["n", "zero"], &["row"]),
        node("Slice", "", "one", &["row", "from", "to"], &["count"]),
        node("ConstantOfShape", "", "fill", &["count"], &["many"]),
        node("ReduceSum", "", "sum", &["many"], &["nothing"]),
        node("Add", "", "add", &["x", "nothing"], &["y"]),
    ];
    let int = |v: i64| v.to_le_bytes();
    let constants = [
        initializer("zero", 7, &[], &int(0)),
        initializer("from", 7, &[1], &int(0)),
        initializer("to", 7, &[1], &int(1)),
    ];
    model(&graph(&nodes, &constants))
}

#[test]
fn subprocess_and_in_process_results_are_equal() {
    let mut count = 0;
    for case in cases("nets") {
        let here = Options { engine: EngineChoice::Rten, ..built_in() };
        let Ok(here) = Session::load(&case.model, &here) else { continue };
        let worker =
            Session::load(&case.model, &subprocess()).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        // Compared as text: NaN is not equal to itself.
        let output = |session: &Session| format!("{:?}", session.run(&case.inputs, &[]));
        assert_eq!(output(&worker), output(&here), "{}", case.name);
        assert_eq!(worker.memory_bytes(), here.memory_bytes());
        count += 1;
    }
    assert!(count > 0, "no network that rten runs");
}

#[test]
fn run_beyond_memory_limit_fails_and_next_run_succeeds() {
    let session = load(allocates_first_value(), &subprocess());
    assert_eq!(
        *session.run(&[x(&[3.0, 1.0, 1.0, 1.0])], &[]).unwrap()[0].elements(),
        Elements::Fp32(vec![3.0, 1.0, 1.0, 1.0])
    );
    for _ in 0..2 {
        let error = session.run(&[x(&[2e9, 1.0, 1.0, 1.0])], &[]).unwrap_err().to_string();
        assert!(error.contains("exceeded the memory limit of 256 MiB"), "{error}");
        assert!(error.contains("max_run_memory"), "{error}");
        let again = available(|| session.run(&[x(&[5.0, 1.0, 1.0, 1.0])], &[])).unwrap();
        assert_eq!(*again[0].elements(), Elements::Fp32(vec![5.0, 1.0, 1.0, 1.0]));
    }
}

/// The first result that is not due to a restart.
fn available(run: impl Fn() -> Result<Vec<Tensor>, RunError>) -> Result<Vec<Tensor>, RunError> {
    let mut result = run();
    eventually("a running worker", || {
        let restarting = matches!(result, Err(RunError::Unavailable { .. }));
        if restarting {
            result = run();
        }
        !restarting
    });
    result
}

#[test]
fn load_beyond_memory_limit_fails() {
    // Forty doublings of a constant, which rten computes when it loads.
    let mut nodes = Vec::new();
    for i in 0..40 {
        let (from, to) = (format!("w{i}"), format!("w{}", i + 1));
        nodes.push(
            node("Concat", "", &to, &[&from, &from], &[&to])
                .message(5, &Message::default().text(1, "axis").int(20, 2).int(3, 0)),
        );
    }
    nodes.push(node("ReduceSum", "", "sum", &["w40"], &["s"]));
    nodes.push(node("Add", "", "add", &["x", "s"], &["y"]));
    let bytes = model(&graph(&nodes, &[initializer("w0", 1, &[1], &1f32.to_le_bytes())]));
    let started = Instant::now();
    let error = Session::from_bytes(bytes, &subprocess()).expect_err("a bomb was loaded").to_string();
    assert!(error.contains("exceeded the memory limit of 256 MiB"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
}

/// A loop of 2³¹ iterations.
fn endless() -> Vec<u8> {
    let body = Message::default()
        .message(1, &node("Identity", "", "go", &["go_on"], &["go_on_out"]))
        .message(1, &node("Relu", "", "relu", &["v"], &["v_out"]))
        .text(2, "body")
        .message(11, &value_info("i", 7, &[]))
        .message(11, &value_info("go_on", 9, &[]))
        .message(11, &value_info("v", 1, &[-1, 4]))
        .message(12, &value_info("go_on_out", 9, &[]))
        .message(12, &value_info("v_out", 1, &[-1, 4]));
    let attribute = Message::default().text(1, "body").int(20, 5).message(6, &body);
    let constants =
        [initializer("times", 7, &[], &i64::from(i32::MAX).to_le_bytes()), initializer("yes", 9, &[], &[1])];
    model(&graph(
        &[node("Loop", "", "loop", &["times", "yes", "x"], &["y"]).message(5, &attribute)],
        &constants,
    ))
}

#[test]
fn run_beyond_time_limit_fails() {
    let session = load(endless(), &Options { max_run_time: Duration::from_millis(200), ..subprocess() });
    let error = session.run(&[x(&[1.0; 4])], &[]).unwrap_err().to_string();
    assert!(error.contains("exceeded the time limit of 0.2 s") && error.contains("max_run_time"), "{error}");
}

fn gone(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.is_empty() || status.contains("\nState:\tZ")
}

fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < end, "not within 20 s: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn killed_worker_is_restarted() {
    let session = load(double(), &subprocess());
    for round in 0..3 {
        let process = session.process().unwrap();
        kill(process);
        // Runs fail until the exit is noticed.
        eventually("a response of the new worker", || session.run(&[x(&[1.0, 2.0, 3.0, 4.0])], &[]).is_ok());
        assert_ne!(session.process(), Some(process), "round {round}");
    }
}

#[test]
fn stuck_worker_is_killed_and_restarted() {
    let session = load(double(), &Options { max_run_time: Duration::from_millis(300), ..subprocess() });
    let process = session.process().unwrap();
    signal(process, "STOP");
    let error = session.run(&[x(&[1.0; 4])], &[]).unwrap_err().to_string();
    assert!(error.contains("exceeded the time limit of 0.3 s"), "{error}");
    eventually("a response of the new worker", || session.run(&[x(&[1.0; 4])], &[]).is_ok());
    assert!(gone(process));
}

/// Starts a worker the first time; from then on a process that never loads.
fn starts_once(directory: &std::path::Path) -> Options {
    let script = format!(
        "if [ -e {0}/started ]; then touch {0}/again; exec sleep 600; else touch {0}/started; exec {1}; fi",
        directory.display(),
        env!("CARGO_BIN_EXE_onnx_worker")
    );
    let arguments = vec!["-c".into(), script.into()];
    Options { worker: Some(WorkerCommand { program: "/bin/sh".into(), arguments }), ..subprocess() }
}

#[test]
fn callers_do_not_wait_for_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let session = load(double(), &starts_once(directory.path()));
    assert!(session.run(&[x(&[1.0; 4])], &[]).is_ok());
    kill(session.process().unwrap());
    eventually("a restart", || {
        let _ = session.run(&[x(&[1.0; 4])], &[]);
        directory.path().join("again").exists()
    });
    // The restart would take a minute to fail.
    let started = Instant::now();
    for _ in 0..100 {
        let error = session.run(&[x(&[1.0; 4])], &[]).unwrap_err();
        assert!(matches!(error, RunError::Unavailable { .. }), "{error}");
        assert!(error.to_string().contains("its worker exited and is restarting; last exit: "), "{error}");
    }
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
}

#[test]
fn successful_runs_do_not_reset_the_backoff() {
    let session = load(allocates_first_value(), &subprocess());
    for _ in 0..5 {
        let good = available(|| session.run(&[x(&[1.0; 4])], &[]));
        assert!(good.is_ok(), "{good:?}");
        let error = session.run(&[x(&[2e9, 1.0, 1.0, 1.0])], &[]).unwrap_err();
        assert!(matches!(error, RunError::Ended { .. }), "{error}");
    }
    // By now the backoff is long enough to be seen.
    let error = session.run(&[x(&[1.0; 4])], &[]).unwrap_err().to_string();
    assert!(error.contains("its worker exited 5 times within a short time and restarts in "), "{error}");
}

#[test]
fn cancelled_run_returns_at_once_and_the_worker_is_restarted() {
    let session = load(endless(), &subprocess());
    let process = session.process().unwrap();
    let cancel = CancelToken::default();
    std::thread::scope(|scope| {
        let run = scope.spawn(|| session.run_until(&[x(&[1.0; 4])], &[], &cancel));
        eventually("the worker is busy", || cpu_ticks(process) > 5);
        cancel.cancel();
        let deadline = Instant::now() + Duration::from_secs(20);
        while !gone(process) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        let is_killed = gone(process);
        // The run ends in any case.
        let _ = Command::new("kill").args(["-9", &process.to_string()]).status();
        assert!(is_killed, "the worker goes on");
        assert_eq!(run.join().unwrap(), Err(RunError::Cancelled));
    });
    eventually("a new worker", || session.process() != Some(process));
    let cancelled = CancelToken::with_deadline(Some(Instant::now() + Duration::from_millis(50)));
    let result = available(|| session.run_until(&[x(&[1.0; 4])], &[], &cancelled));
    assert_eq!(result, Err(RunError::Cancelled));
}

/// User and system time of a process.
fn cpu_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let number = |i: usize| fields.get(i).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
    number(11) + number(12)
}

#[test]
fn worker_exits_when_session_is_dropped() {
    let session = load(double(), &subprocess());
    let process = session.process().unwrap();
    assert!(!gone(process));
    drop(session);
    eventually("the process is gone", || gone(process));
}

#[test]
fn concurrent_runs_get_their_own_results() {
    let session = load(double(), &subprocess());
    std::thread::scope(|scope| {
        for caller in 0..8u16 {
            let session = &session;
            scope.spawn(move || {
                for turn in 0..50u16 {
                    let v = f32::from(caller * 100 + turn);
                    let y = session.run(&[x(&[v, 0.0, 1.0, 2.0])], &[]).unwrap();
                    assert_eq!(*y[0].elements(), Elements::Fp32(vec![v * 2.0, 0.0, 2.0, 4.0]));
                }
            });
        }
    });
}

#[test]
fn invalid_worker_program_is_reported() {
    let program = |p: &str, arguments: &[&str]| Options {
        worker: Some(WorkerCommand {
            program: p.into(),
            arguments: arguments.iter().map(Into::into).collect(),
        }),
        ..subprocess()
    };
    let error = |options: &Options| Session::from_bytes(double(), options).unwrap_err().to_string();
    let none = error(&program("/nowhere/gantry", &[]));
    assert!(none.contains("cannot start its worker process"), "{none}");
    let other = error(&program("/bin/sh", &["-c", "echo not a worker >&2; exit 3"]));
    assert!(other.contains("its worker exited with 3: not a worker"), "{other}");
    let closed = error(&program("/bin/true", &[]));
    assert!(closed.contains("its worker exited with 0"), "{closed}");
}

fn kill(process: u32) {
    signal(process, "KILL");
}

fn signal(process: u32, signal: &str) {
    let sent = std::process::Command::new("kill").arg(format!("-{signal}")).arg(process.to_string()).status();
    assert!(sent.unwrap().success());
}
