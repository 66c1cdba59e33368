//! Two schedulers with three members of a real etcd, an agent and a gateway: kills, pauses and lost majorities.

use super::process::{Process, http, infer, wait_until};
use crate::harness::{RunResult, command, finish};
use std::{
    net::TcpListener,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;
use test_cluster::TestCluster;

#[allow(unreachable_pub, reason = "shared with the tests of the store")]
#[path = "../../../../store/src/etcd/test_cluster.rs"]
mod test_cluster;

/// Eight processes each: one test after the other.
static ONE: Mutex<()> = Mutex::new(());

/// From the end of a leader until the next one accepts a change.
const FAILOVER_LIMIT: Duration = Duration::from_secs(15);

struct Setup {
    load: Load,
    schedulers: Vec<Option<Process>>,
    ports: Vec<(u16, u16)>,
    _runtime: Process,
    agent: Process,
    _gateway: Process,
    etcd: TestCluster,
    dir: TempDir,
    _one: MutexGuard<'static, ()>,
}

impl Setup {
    /// Starts everything, and serves iris under load.
    fn start(test: &str) -> Option<Self> {
        let program = TestCluster::program(test)?;
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::tempdir().unwrap();
        let etcd = TestCluster::start(&program, dir.path(), 3, &[]).unwrap();
        let reserved = reserve_ports();
        let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
        let ports: Vec<_> = reserved.chunks(2).map(|pair| (port(&pair[0]), port(&pair[1]))).collect();
        drop(reserved);
        let store = format!("etcd://{}/test", etcd.endpoints().join(","));
        let first = start_scheduler(&store, ports[0]);
        first.wait_for_line("Ready.");
        let second = start_scheduler(&store, ports[1]);
        second.wait_for_line("Standby:");
        let models = dir.path().join("models");
        std::fs::create_dir_all(&models).unwrap();
        let models = models.display().to_string();
        let runtime = Process::start(&["runtime", &models, "--explicit", "--port=0"]);
        runtime.wait_for_line("serving on http://");
        let output = runtime.output();
        let server = output.split("http://127.0.0.1:").nth(1).unwrap().split(',').next().unwrap().to_owned();
        let agents: Vec<_> = ports.iter().map(|(_, agents)| format!("127.0.0.1:{agents}")).collect();
        let mut args: Vec<String> = [
            "agent",
            "--server=builtin",
            "--server-type=builtin",
            "--health-check-interval=1",
            "--local-root=/",
        ]
        .map(str::to_owned)
        .into();
        args.push(format!("--models-dir={models}"));
        args.push(format!("--state-dir={}", dir.path().join("agent").display()));
        args.push(format!("--server-http-port={server}"));
        args.push(format!("--server-grpc-port={server}"));
        args.push(format!("--scheduler-host={}", agents.join(",")));
        args.extend(
            ["proxy-http", "proxy-grpc", "debug", "metrics", "drainer", "readiness"]
                .map(|port| format!("--{port}-port=0")),
        );
        let agent = Process::start(&args);
        agent.wait_for_line("Ready.");
        let clients = client_addresses(&ports);
        let gateway = Process::start(&[
            "gateway",
            "--inference-port=0",
            "--admin-port=0",
            &format!("--scheduler={clients}"),
        ]);
        gateway.wait_for_line("Ready.");
        let iris = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/quickstart/iris.yaml");
        gantry(&clients, &["apply", "--wait", "-f", &iris.display().to_string()]).ok();
        let inference = gateway.addresses()["inference"].clone();
        wait_until("iris is served", || matches!(infer(&inference, ""), Ok((200, _))));
        let load = Load::start(inference);
        load.wait_for_successes(20);
        let schedulers = vec![Some(first), Some(second)];
        Some(Self {
            load,
            schedulers,
            ports,
            _runtime: runtime,
            agent,
            _gateway: gateway,
            etcd,
            dir,
            _one: one,
        })
    }

    fn store(&self) -> String {
        format!("etcd://{}/test", self.etcd.endpoints().join(","))
    }

    fn gantry(&self, args: &[&str]) -> RunResult {
        gantry(&client_addresses(&self.ports), args)
    }

    /// Creates a model that no server can load: a change that needs nothing but the leader.
    fn change(&self, name: &str) -> RunResult {
        let manifest = self.dir.path().join(format!("{name}.yaml"));
        let text = format!(
            "apiVersion: mlops.seldon.io/v1alpha1\nkind: Model\nmetadata:\n  name: {name}\nspec:\n  \
             storageUri: /nowhere\n  requirements: [other]\n"
        );
        std::fs::write(&manifest, text).unwrap();
        self.gantry(&["--timeout=3s", "apply", "-f", &manifest.display().to_string()])
    }

    /// Waits until a change is accepted, and returns the time that it took.
    fn wait_for_change(&self, name: &str) -> Duration {
        let start = Instant::now();
        wait_until("a change is accepted", || self.change(name).code == 0);
        start.elapsed()
    }

    /// What has to hold at the end: the model is served by both parts' account, and no request failed.
    fn finish(self, changes: &[&str]) {
        self.gantry(&["wait", "model/iris", "--for=ready"]).ok();
        self.load.wait_for_successes(50);
        for name in changes {
            let found = self.gantry(&["get", "model", name]);
            assert_eq!(found.code, 0, "{name} was acknowledged: {found:?}\n{}", self.agent.output());
        }
        // Before the gateway is stopped.
        let failed = self.load.stop();
        assert_eq!(failed, Vec::<String>::new());
    }
}

/// Four ports that stay free while no scheduler listens on them: the kernel gives connections and port 0 others, from 32768.
fn reserve_ports() -> Vec<TcpListener> {
    let first = 20_000 + u16::try_from(std::process::id() % 12_000).unwrap();
    let candidates = (first..32_768).chain(20_000..first);
    candidates.filter_map(|port| TcpListener::bind(("127.0.0.1", port)).ok()).take(4).collect()
}

fn client_addresses(ports: &[(u16, u16)]) -> String {
    ports.iter().map(|(clients, _)| format!("127.0.0.1:{clients}")).collect::<Vec<_>>().join(",")
}

fn gantry(schedulers: &str, args: &[&str]) -> RunResult {
    finish(command(args).args(["--scheduler", schedulers]))
}

fn start_scheduler(store: &str, ports: (u16, u16)) -> Process {
    Process::start(&[
        "scheduler",
        &format!("--store={store}"),
        &format!("--scheduler-port={}", ports.0),
        &format!("--agent-port={}", ports.1),
        "--health-probe-port=0",
    ])
}

/// `/ready`, `/live` and `/startup` of a scheduler.
fn health(scheduler: &Process) -> [(u16, String); 3] {
    let address = scheduler.addresses()["health"].clone();
    ["/ready", "/live", "/startup"].map(|path| {
        let (status, rest) = http(&address, "GET", path, "", "").unwrap();
        (status, rest.rsplit("\r\n\r\n").next().unwrap_or_default().trim().to_owned())
    })
}

/// About 50 requests per second, counted.
struct Load {
    stop: Arc<AtomicBool>,
    succeeded: Arc<AtomicUsize>,
    thread: thread::JoinHandle<Vec<String>>,
}

impl Load {
    fn start(address: String) -> Self {
        let (stop, succeeded) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (stopped, counted) = (stop.clone(), succeeded.clone());
        let thread = thread::spawn(move || {
            let mut failed = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                match infer(&address, "") {
                    Ok((200, _)) => {
                        counted.fetch_add(1, Ordering::Relaxed);
                    }
                    other => failed.push(format!("{other:?}")),
                }
                thread::sleep(Duration::from_millis(20));
            }
            failed
        });
        Self { stop, succeeded, thread }
    }

    /// Waits for this many more successful requests.
    fn wait_for_successes(&self, more: usize) {
        let target = self.succeeded.load(Ordering::Relaxed) + more;
        wait_until("requests are answered", || self.succeeded.load(Ordering::Relaxed) >= target);
    }

    fn stop(self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

#[test]
fn standby_leads_when_the_leader_is_killed_or_suspended() {
    let Some(mut setup) = Setup::start("standby_leads_when_the_leader_is_killed_or_suspended") else {
        return;
    };
    let [first, second] = [0, 1].map(|n| health(setup.schedulers[n].as_ref().unwrap()));
    assert!(
        first.iter().all(|(status, _)| *status == 200) && first[0].1.starts_with("leader, epoch "),
        "{first:?}"
    );
    let statuses = second.clone().map(|(status, _)| status);
    assert_eq!(statuses, [503, 200, 200], "{second:?}");
    assert!(second[0].1.starts_with("standby: ") && second[0].1.ends_with(" leads"), "{second:?}");

    // Killed: the standby leads, and the killed one stands by after its restart.
    setup.schedulers[0].take().unwrap().kill();
    let took = setup.wait_for_change("killed");
    assert!(took < FAILOVER_LIMIT, "{took:?}");
    eprintln!("a change was accepted {took:?} after the leader was killed");
    setup.schedulers[0] = Some(start_scheduler(&setup.store(), setup.ports[0]));
    setup.schedulers[0].as_ref().unwrap().wait_for_line("Standby:");
    setup.gantry(&["wait", "model/iris", "--for=ready"]).ok();

    // Suspended for longer than its lease.
    let suspended = setup.schedulers[1].take().unwrap();
    suspended.signal("STOP");
    let took = setup.wait_for_change("suspended");
    assert!(took < FAILOVER_LIMIT, "{took:?}");
    eprintln!("a change was accepted {took:?} after the leader was suspended");
    suspended.signal("CONT");
    suspended.wait_for_line("Stepped down:").wait_for_line("Standby:");
    wait_until("it stands by", || health(&suspended)[0].0 == 503);
    assert_eq!(health(setup.schedulers[0].as_ref().unwrap())[0].0, 200);
    setup.schedulers[1] = Some(suspended);
    setup.change("afterwards").ok();

    let epochs = epochs(&setup.etcd.endpoints()[0]);
    eprintln!("epochs of the writes, by revision: {epochs:?}");
    assert!(epochs.is_sorted(), "an earlier leader wrote after a later one: {epochs:?}");
    let mut leaders = epochs;
    leaders.dedup();
    assert_eq!(leaders.len(), 3);
    setup.finish(&["killed", "suspended", "afterwards"]);
}

#[test]
fn etcd_may_lose_a_member_and_recovers_from_a_lost_majority() {
    let Some(mut setup) = Setup::start("etcd_may_lose_a_member_and_recovers_from_a_lost_majority") else {
        return;
    };
    // One member: whichever the scheduler uses.
    for member in 0..3 {
        setup.etcd.kill(member);
        for n in 0..3 {
            setup.change(&format!("member-{member}-{n}")).ok();
        }
        setup.etcd.restart(member).unwrap();
        setup.etcd.wait(member).unwrap();
    }
    let leader = setup.schedulers[0].as_ref().unwrap();
    assert!(!leader.output().contains("Stepped down"), "{}", leader.output());

    // The majority: requests are answered, changes are refused with the reason.
    setup.etcd.kill(0);
    setup.etcd.kill(1);
    leader.wait_for_line("Stepped down:");
    wait_until("the reason is shown", || {
        let [ready, live, _] = health(setup.schedulers[0].as_ref().unwrap());
        ready.0 == 503 && ready.1.contains("is not available") && live.0 == 200
    });
    let refused = setup.change("refused");
    assert_eq!(refused.code, 4, "{refused:?}");
    assert!(
        refused.stderr.contains("Connection refused") && refused.stderr.contains("/ready"),
        "{refused:?}"
    );
    setup.load.wait_for_successes(100);

    setup.etcd.restart(0).unwrap();
    setup.etcd.restart(1).unwrap();
    setup.wait_for_change("recovered");
    setup.finish(&["member-0-0", "member-2-2", "recovered"]);
}

/// The epoch of the last write at each revision, through etcd's JSON API.
fn epochs(member: &str) -> Vec<u64> {
    // The keys /test/batch and, of the last revision, the same.
    let range = |revision: u64| {
        let body = format!(r#"{{"key":"L3Rlc3QvYmF0Y2g=","revision":"{revision}"}}"#);
        http(member, "POST", "/v3/kv/range", "content-type: application/json\r\n", &body).unwrap().1
    };
    let number = |text: &str, name: &str| -> u64 {
        let value = text.split(&format!("\"{name}\":\"")).nth(1).unwrap_or_default();
        value.split('"').next().unwrap_or_default().parse().unwrap_or_default()
    };
    let latest = number(&range(0), "revision");
    let mut found = Vec::new();
    for revision in 1..=latest {
        let text = range(revision);
        let value = text.split("\"value\":\"").nth(1).unwrap_or_default();
        let id = decoded(value.split('"').next().unwrap_or_default());
        if let Some((epoch, _)) = id.split_once('-') {
            found.push(epoch.parse().unwrap());
        }
    }
    found
}

/// Base64.
fn decoded(text: &str) -> String {
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bits, mut count, mut bytes) = (0_u32, 0, Vec::new());
    for digit in text.bytes().filter_map(|byte| alphabet.iter().position(|letter| *letter == byte)) {
        bits = (bits << 6 | digit as u32) & 0xff_ffff;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    String::from_utf8(bytes).unwrap()
}
