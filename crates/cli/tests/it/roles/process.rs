//! Processes started by the tests.

use crate::harness::command;
use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

pub(crate) const TEST_TIMEOUT: Duration = Duration::from_mins(1);

pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {TEST_TIMEOUT:?}: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// A running `gantry` process, killed on drop.
pub(crate) struct Process {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Process {
    pub(crate) fn start<S: AsRef<str>>(args: &[S]) -> Self {
        Self::start_with(args, &[])
    }

    pub(crate) fn start_with<S: AsRef<str>>(args: &[S], environment: &[(&str, &str)]) -> Self {
        let args: Vec<&str> = args.iter().map(AsRef::as_ref).collect();
        let mut command: Command = command(&args);
        command.envs(environment.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let out = child.stdout.take().unwrap();
        let err = child.stderr.take().unwrap();
        read(BufReader::new(out), &lines);
        read(BufReader::new(err), &lines);
        Self { child, lines }
    }

    pub(crate) fn output(&self) -> String {
        self.lines.lock().unwrap().join("\n")
    }

    /// Waits for a line with this prefix.
    pub(crate) fn wait_for_line(&self, start: &str) -> &Self {
        wait_until(start, || {
            let lines = self.lines.lock().unwrap();
            lines.iter().any(|l| l.trim_start().starts_with(start))
        });
        self
    }

    /// Printed addresses by name; with TLS under `NAME tls`.
    pub(crate) fn addresses(&self) -> BTreeMap<String, String> {
        let lines = self.lines.lock().unwrap();
        let mut found = BTreeMap::new();
        for line in lines.iter().filter(|l| l.starts_with("  ")) {
            let mut columns = line.split_whitespace();
            if let (Some(name), Some(address)) = (columns.next(), columns.next()) {
                let tls = if line.contains("TLS") { " tls" } else { "" };
                found.insert(format!("{name}{tls}"), address.trim_start_matches("http://").to_owned());
            }
        }
        found
    }

    /// Sends a signal, such as `STOP`.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
    }

    /// SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM; returns the exit code.
    pub(crate) fn terminate(mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        wait_until("exited", || self.child.try_wait().unwrap().is_some());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("--- process output:\n{}", self.output());
        }
    }
}

fn read(reader: BufReader<impl std::io::Read + Send + 'static>, lines: &Arc<Mutex<Vec<String>>>) {
    let lines = Arc::clone(lines);
    thread::spawn(move || {
        for line in reader.lines().map_while(Result::ok) {
            lines.lock().unwrap().push(line);
        }
    });
}

/// One HTTP/1.1 request on a new connection; returns the status and the rest of the response.
pub(crate) fn http(
    address: &str,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> Result<(u16, String), String> {
    let failed = |e: std::io::Error| e.to_string();
    let mut stream = TcpStream::connect(address).map_err(failed)?;
    stream.set_read_timeout(Some(TEST_TIMEOUT)).map_err(failed)?;
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).map_err(failed)?;
    let mut response = String::new();
    stream.read_to_string(&mut response).map_err(failed)?;
    let (first, rest) = response.split_once("\r\n").ok_or_else(|| format!("no response: {response:?}"))?;
    let status = first.split(' ').nth(1).and_then(|s| s.parse().ok()).ok_or_else(|| first.to_owned())?;
    Ok((status, rest.to_owned()))
}

/// A REST inference request to the quickstart's iris model.
pub(crate) fn infer(address: &str, headers: &str) -> Result<(u16, String), String> {
    let body = r#"{"inputs":[{"name":"X","shape":[1,4],"datatype":"FP32","data":[5.1,3.5,1.4,0.2]}]}"#;
    http(address, "POST", "/v2/models/iris/infer", headers, body)
}
