//! Real etcd members on loopback, for tests. `GANTRY_TEST_ETCD` is the path of the program.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, io};

/// For a member to answer on a busy machine.
const START_TIMEOUT: Duration = Duration::from_mins(1);

#[derive(Debug)]
pub struct TestCluster {
    directory: PathBuf,
    program: PathBuf,
    members: Vec<Member>,
    arguments: Vec<String>,
}

#[derive(Debug)]
struct Member {
    client: u16,
    peer: u16,
    child: Option<Child>,
}

impl TestCluster {
    /// The path of etcd; without it, prints that the test does not run.
    pub fn program(test: &str) -> Option<PathBuf> {
        let program = std::env::var_os("GANTRY_TEST_ETCD").filter(|path| !path.is_empty()).map(PathBuf::from);
        if program.is_none() {
            eprintln!("NOT TESTED: {test}: GANTRY_TEST_ETCD does not name etcd");
        }
        program
    }

    /// Starts members, and waits until each answers.
    pub fn start(program: &Path, directory: &Path, members: usize, arguments: &[&str]) -> io::Result<Self> {
        let mut reserved = Vec::new();
        for _ in 0..members * 2 {
            reserved.push(TcpListener::bind("127.0.0.1:0")?);
        }
        let ports =
            reserved.iter().map(|port| Ok(port.local_addr()?.port())).collect::<io::Result<Vec<_>>>()?;
        drop(reserved);
        let members = ports
            .chunks_exact(2)
            .map(|pair| Member {
                client: pair.first().copied().unwrap_or_default(),
                peer: pair.last().copied().unwrap_or_default(),
                child: None,
            })
            .collect::<Vec<_>>();
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let mut cluster =
            Self { directory: directory.to_owned(), program: program.to_owned(), members, arguments };
        for index in 0..cluster.members.len() {
            cluster.launch(index)?;
        }
        for index in 0..cluster.members.len() {
            cluster.wait(index)?;
        }
        Ok(cluster)
    }

    /// `HOST:PORT` of each member.
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| format!("127.0.0.1:{}", member.client)).collect()
    }

    fn launch(&mut self, index: usize) -> io::Result<()> {
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let initial: Vec<_> =
            self.members.iter().enumerate().map(|(n, member)| format!("m{n}={}", url(member.peer))).collect();
        let Some(member) = self.members.get_mut(index) else { return Ok(()) };
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.directory.join(format!("m{index}.log")))?;
        let (client, peer) = (url(member.client), url(member.peer));
        let child = Command::new(&self.program)
            .arg("--name")
            .arg(format!("m{index}"))
            .arg("--data-dir")
            .arg(self.directory.join(format!("m{index}")))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &initial.join(","), "--log-level", "warn"])
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()?;
        member.child = Some(child);
        Ok(())
    }

    /// Until the member knows a leader, which it reports on its health page.
    pub fn wait(&mut self, index: usize) -> io::Result<()> {
        let Some(member) = self.members.get_mut(index) else { return Ok(()) };
        let start = Instant::now();
        while start.elapsed() < START_TIMEOUT {
            if healthy(member.client) {
                return Ok(());
            }
            if let Some(status) = member.child.as_mut().map(Child::try_wait).transpose()?.flatten() {
                let log =
                    fs::read_to_string(self.directory.join(format!("m{index}.log"))).unwrap_or_default();
                return Err(io::Error::other(format!("etcd exited with {status}: {log}")));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "etcd does not answer"))
    }

    /// Kills a member at once.
    pub fn kill(&mut self, index: usize) {
        if let Some(mut child) = self.members.get_mut(index).and_then(|member| member.child.take()) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts a killed member again, without waiting for it.
    pub fn restart(&mut self, index: usize) -> io::Result<()> {
        self.launch(index)
    }
}

impl Drop for TestCluster {
    fn drop(&mut self) {
        for index in 0..self.members.len() {
            self.kill(index);
        }
    }
}

fn healthy(port: u16) -> bool {
    use std::io::{Read as _, Write as _};
    let Ok(mut stream) = std::net::TcpStream::connect(("127.0.0.1", port)) else { return false };
    let _ = stream.set_read_timeout(Some(Duration::from_secs(2)));
    let mut answer = String::new();
    stream.write_all(b"GET /health HTTP/1.0\r\n\r\n").is_ok()
        && stream.read_to_string(&mut answer).is_ok()
        && answer.contains("\"health\":\"true\"")
}
