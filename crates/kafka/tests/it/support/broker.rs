//! Apache Kafka in `KRaft` mode: one node on loopback with its own directory.

use super::wait_for;
use std::{
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

pub(crate) struct Broker {
    directory: tempfile::TempDir,
    port: u16,
    process: Option<Child>,
}

/// The jar files, from `cargo xtask kafka`.
fn libraries() -> PathBuf {
    let path = std::env::var_os("GANTRY_TEST_KAFKA");
    path.expect("GANTRY_TEST_KAFKA is not set: run these tests by `cargo xtask kafka`").into()
}

fn java(main: &str, arguments: &[&str], log: &Path) -> Command {
    let mut command = Command::new("java");
    command.args(["-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp"]);
    command.arg(format!("{}/*", libraries().display())).arg(main).args(arguments);
    let log = std::fs::File::create(log).unwrap();
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    command
}

/// A port below those that the system gives to connections and to listeners on port 0, which could take it before the broker
/// binds it: that is seconds later.
pub(crate) fn free_port() -> u16 {
    const FIRST: u32 = 15_000;
    const COUNT: u32 = 15_000;
    static TRIED: AtomicU32 = AtomicU32::new(0);
    // Processes that run side by side start at different ports.
    let start = std::process::id().wrapping_mul(7919);
    let mut ports = std::iter::repeat_with(|| {
        let port = FIRST + start.wrapping_add(TRIED.fetch_add(1, Ordering::Relaxed)) % COUNT;
        u16::try_from(port).unwrap()
    });
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).unwrap()
}

impl Broker {
    /// The broker of all tests that leave it running.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<Broker> = OnceLock::new();
        SHARED.get_or_init(|| {
            let broker = Self::start();
            // Statics are not dropped; the broker ends with the last test.
            let process = broker.process.as_ref().unwrap().id();
            exit_with(process, broker.directory.path());
            broker
        })
    }

    pub(crate) fn start() -> Self {
        Self::start_with(tempfile::tempdir().unwrap(), "", "", &[])
    }

    /// With a further listener, further properties, and further arguments of the format.
    pub(crate) fn start_with(
        directory: tempfile::TempDir,
        listener: &str,
        more: &str,
        format_arguments: &[&str],
    ) -> Self {
        let (port, controller) = (free_port(), free_port());
        let data = directory.path().join("data").display().to_string();
        let properties = format!(
            "process.roles=broker,controller\n\
             node.id=1\n\
             controller.quorum.voters=1@127.0.0.1:{controller}\n\
             listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}{listener}\n\
             advertised.listeners=PLAINTEXT://127.0.0.1:{port}{listener}\n\
             inter.broker.listener.name=PLAINTEXT\n\
             controller.listener.names=CONTROLLER\n\
             listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL\n\
             log.dirs={data}\n\
             auto.create.topics.enable=false\n\
             offsets.topic.replication.factor=1\n\
             offsets.topic.num.partitions=2\n\
             group.initial.rebalance.delay.ms=0\n\
             group.min.session.timeout.ms=500\n\
             {more}"
        );
        let file = directory.path().join("server.properties");
        std::fs::write(&file, properties).unwrap();
        let cluster = "Z2FudHJ5LWthZmthLXRlc3";
        let arguments = [&["format", "-t", cluster, "-c", file.to_str().unwrap()], format_arguments].concat();
        let log = directory.path().join("format.log");
        let status = java("kafka.tools.StorageTool", &arguments, &log).status();
        let status = status.expect("java is not installed: a JDK 17 or later is needed");
        assert!(status.success(), "{}", std::fs::read_to_string(log).unwrap());
        let mut broker = Self { directory, port, process: None };
        broker.restart();
        broker
    }

    pub(crate) fn restart(&mut self) {
        let file = self.directory.path().join("server.properties");
        let log = self.directory.path().join("broker.log");
        let address = self.address();
        let process =
            self.process.insert(java("kafka.Kafka", &[file.to_str().unwrap()], &log).spawn().unwrap());
        wait_for("the broker", || {
            let status = process.try_wait().unwrap();
            assert!(status.is_none(), "the broker ended: {}", std::fs::read_to_string(&log).unwrap());
            TcpStream::connect(&address).is_ok()
        });
    }

    /// Ends the broker as `kill -9` does.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Ends a process after this one, whatever its end is, and removes its directory.
fn exit_with(process: u32, directory: &Path) {
    let script = format!(
        "while kill -0 {} 2>/dev/null; do sleep 0.2; done; kill -9 {process}; sleep 0.2; rm -rf '{}'",
        std::process::id(),
        directory.display()
    );
    let guard = Command::new("sh")
        .args(["-c", &script])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    drop(guard.unwrap());
}
