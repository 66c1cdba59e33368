//! A scripted HTTP server for fault injection, on raw sockets so that it can violate the protocol.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// A request as the server saw it.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// Path and query.
    pub(crate) target: String,
    pub(crate) headers: BTreeMap<String, String>,
}

impl Seen {
    pub(crate) fn path(&self) -> &str {
        self.target.split('?').next().unwrap()
    }

    pub(crate) fn query(&self, name: &str) -> Option<String> {
        let query = self.target.split_once('?')?.1;
        url::form_urlencoded::parse(query.as_bytes())
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.into_owned())
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// The offset of a `Range: bytes=N-` header.
    pub(crate) fn offset(&self) -> Option<usize> {
        self.header("range")?.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
    }
}

/// What the server sends.
#[derive(Debug, Clone)]
pub(crate) struct Response {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    /// Announced instead of the true length.
    length: Option<usize>,
    /// Close the connection after this many bytes of the body.
    cut: Option<usize>,
    /// After the body, send this for ever, without announcing a length.
    endless: bool,
    /// Send the body byte by byte, waiting for this long in between.
    drip: Option<std::time::Duration>,
    /// Send this many bytes of the body and then nothing more, without closing.
    stall: Option<usize>,
    /// Close the connection after a complete answer.
    hang_up: bool,
}

impl Response {
    pub(crate) fn ok(body: impl Into<Vec<u8>>) -> Self {
        Self {
            status: 200,
            headers: Vec::new(),
            body: body.into(),
            length: None,
            cut: None,
            endless: false,
            drip: None,
            stall: None,
            hang_up: false,
        }
    }

    pub(crate) fn status(status: u16) -> Self {
        Self { status, ..Self::ok("") }
    }

    pub(crate) fn with_status(self, status: u16) -> Self {
        Self { status, ..self }
    }

    pub(crate) fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    pub(crate) fn length(self, length: usize) -> Self {
        Self { length: Some(length), ..self }
    }

    pub(crate) fn cut(self, after: usize) -> Self {
        Self { cut: Some(after), ..self }
    }

    pub(crate) fn endless(self) -> Self {
        Self { endless: true, ..self }
    }

    pub(crate) fn hang_up(self) -> Self {
        Self { hang_up: true, ..self }
    }

    pub(crate) fn stall(self, after: usize) -> Self {
        Self { stall: Some(after), ..self }
    }

    pub(crate) fn drip(self, wait: std::time::Duration) -> Self {
        Self { drip: Some(wait), ..self }
    }

    pub(crate) fn redirect(to: impl Into<String>) -> Self {
        Self::status(302).header("location", to)
    }

    /// The rest of `body` from `offset`, as a correct server sends it.
    pub(crate) fn part(body: &[u8], offset: usize) -> Self {
        let range = format!("bytes {offset}-{}/{}", body.len() - 1, body.len());
        Self { status: 206, ..Self::ok(&body[offset..]) }.header("content-range", range)
    }

    /// `body`, or the requested range, with an `ETag`.
    pub(crate) fn file(seen: &Seen, body: &[u8], etag: &str) -> Self {
        if seen.header("if-none-match") == Some(etag) {
            return Self::status(304).header("etag", etag);
        }
        let answer = match seen.offset() {
            Some(offset) if seen.header("if-range").is_none_or(|tag| tag == etag) => Self::part(body, offset),
            _ => Self::ok(body),
        };
        answer.header("etag", etag)
    }

    async fn send(&self, stream: &mut TcpStream) -> std::io::Result<bool> {
        let mut head = format!("HTTP/1.1 {} X\r\n", self.status);
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        let bodiless = self.status == 304;
        if self.endless {
            head.push_str("connection: close\r\n");
        } else if !bodiless {
            head.push_str(&format!("content-length: {}\r\n", self.length.unwrap_or(self.body.len())));
        }
        head.push_str("\r\n");
        stream.write_all(head.as_bytes()).await?;
        let end = self.cut.or(self.stall).unwrap_or(self.body.len()).min(self.body.len());
        if let Some(wait) = self.drip {
            for byte in &self.body[..end] {
                stream.write_all(&[*byte]).await?;
                stream.flush().await?;
                tokio::time::sleep(wait).await;
            }
        } else if !bodiless {
            stream.write_all(&self.body[..end]).await?;
        }
        if self.endless {
            loop {
                stream.write_all(&[7; 16384]).await?;
            }
        }
        stream.flush().await?;
        if self.stall.is_some() {
            std::future::pending::<()>().await;
        }
        Ok(!self.hang_up
            && self.cut.is_none()
            && !self.endless
            && self.length.is_none_or(|length| length == self.body.len()))
    }
}

type Handler = dyn Fn(&Seen) -> Response + Send + Sync;

/// A server on a free port of loopback; stops when dropped.
pub(crate) struct Server {
    port: u16,
    seen: Arc<Mutex<Vec<Seen>>>,
    connections: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Server {
    pub(crate) async fn start(handler: impl Fn(&Seen) -> Response + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let handler: Arc<Handler> = Arc::new(handler);
        let log = Arc::clone(&seen);
        let connections: Arc<AtomicUsize> = Arc::default();
        let counter = Arc::clone(&connections);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counter.fetch_add(1, Ordering::SeqCst);
                let _ = stream.set_nodelay(true);
                tokio::spawn(serve(stream, Arc::clone(&handler), Arc::clone(&log)));
            }
        });
        Self { port, seen, connections, task }
    }

    /// Responses in this order, and the last one again and again.
    pub(crate) async fn script(answers: impl IntoIterator<Item = Response>) -> Self {
        let queue = Mutex::new(answers.into_iter().collect::<VecDeque<_>>());
        Self::start(move |_| {
            let mut queue = queue.lock().unwrap();
            if queue.len() > 1 { queue.pop_front().unwrap() } else { queue.front().unwrap().clone() }
        })
        .await
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    pub(crate) fn count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(mut stream: TcpStream, handler: Arc<Handler>, log: Arc<Mutex<Vec<Seen>>>) {
    while let Some(seen) = read_request(&mut stream).await {
        let answer = handler(&seen);
        log.lock().unwrap().push(seen);
        if !answer.send(&mut stream).await.unwrap_or(false) {
            return;
        }
    }
}

async fn read_request(stream: &mut TcpStream) -> Option<Seen> {
    let mut reader = BufReader::with_capacity(1, stream);
    let mut line = String::new();
    reader.read_line(&mut line).await.ok().filter(|count| *count > 0)?;
    let mut words = line.split_whitespace();
    let target = words.nth(1)?.to_owned();
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).await.ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|value| value.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).await.ok()?;
    Some(Seen { target, headers })
}
