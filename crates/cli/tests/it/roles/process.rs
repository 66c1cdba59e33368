//! A process that the test starts, reads and ends.

use crate::world::command;
use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

/// Longer than anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// Waits until something holds.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// A role that runs. It is killed when the test is done with it.
pub(crate) struct Role {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Role {
    /// Starts `gantry` with these arguments, and waits for nothing.
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

    /// Everything it said so far.
    pub(crate) fn said(&self) -> String {
        self.lines.lock().unwrap().join("\n")
    }

    /// Waits for a line that begins so.
    pub(crate) fn says(&self, start: &str) -> &Self {
        until(start, || {
            let said = self.lines.lock().unwrap();
            said.iter().any(|l| l.trim_start().starts_with(start))
        });
        self
    }

    /// The addresses that it showed, by what they are; with TLS under `<what> tls`.
    pub(crate) fn addresses(&self) -> BTreeMap<String, String> {
        let said = self.lines.lock().unwrap();
        let mut found = BTreeMap::new();
        for line in said.iter().filter(|l| l.starts_with("  ")) {
            let mut words = line.split_whitespace();
            if let (Some(what), Some(address)) = (words.next(), words.next()) {
                let tls = if line.contains("TLS") { " tls" } else { "" };
                found.insert(format!("{what}{tls}"), address.trim_start_matches("http://").to_owned());
            }
        }
        found
    }

    /// Ends it as the kernel does when memory is short.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks it to end, and gives its exit code.
    pub(crate) fn terminate(mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        until("it ends", || self.child.try_wait().unwrap().is_some());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("--- a process said:\n{}", self.said());
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

/// One HTTP/1.1 request over a connection of its own: the status and everything after the first line.
pub(crate) fn http(
    address: &str,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> Result<(u16, String), String> {
    let failed = |e: std::io::Error| e.to_string();
    let mut stream = TcpStream::connect(address).map_err(failed)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).map_err(failed)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(failed)?;
    let (first, rest) = answer.split_once("\r\n").ok_or_else(|| format!("no answer: {answer:?}"))?;
    let status = first.split(' ').nth(1).and_then(|s| s.parse().ok()).ok_or_else(|| first.to_owned())?;
    Ok((status, rest.to_owned()))
}

/// The iris of the quickstart, asked over REST.
pub(crate) fn infer(address: &str, headers: &str) -> Result<(u16, String), String> {
    let body = r#"{"inputs":[{"name":"X","shape":[1,4],"datatype":"FP32","data":[5.1,3.5,1.4,0.2]}]}"#;
    http(address, "POST", "/v2/models/iris/infer", headers, body)
}
