//! A keep-alive HTTP/1.1 connection.

use crate::Failure;
use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

/// A connection with at most one request in flight.
pub(crate) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    filled: usize,
}

/// A POST with a JSON body.
pub(crate) fn post(path: &str, headers: &str, body: &str) -> Vec<u8> {
    post_with("bench", path, headers, body)
}

/// A POST with a JSON body, to a virtual host.
pub(crate) fn post_to(host: &str, path: &str, body: &str) -> Vec<u8> {
    post_with(host, path, "", body)
}

fn post_with(host: &str, path: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    let head = format!("host: {host}\r\ncontent-type: application/json\r\n");
    format!("POST {path} HTTP/1.1\r\n{head}{headers}content-length: {length}\r\n\r\n{body}").into_bytes()
}

/// A merge PATCH.
pub(crate) fn merge_patch(path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    let head = "host: bench\r\ncontent-type: application/merge-patch+json\r\n";
    format!("PATCH {path} HTTP/1.1\r\n{head}content-length: {length}\r\n\r\n{body}").into_bytes()
}

/// A GET.
pub(crate) fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: bench\r\n\r\n").into_bytes()
}

impl Connection {
    pub(crate) fn open(address: SocketAddr) -> Result<Self, Failure> {
        Self::open_within(address, Duration::from_secs(5), Duration::from_secs(30))
    }

    /// Connects within a timeout; each read of a response has its own timeout.
    pub(crate) fn open_within(
        address: SocketAddr,
        connect: Duration,
        response: Duration,
    ) -> Result<Self, Failure> {
        let stream = TcpStream::connect_timeout(&address, connect)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(response))?;
        Ok(Self { stream, buffer: vec![0; 1 << 20], filled: 0 })
    }

    /// Whether the peer has closed the idle connection.
    pub(crate) fn is_closed(&self) -> bool {
        let peeked = self.stream.set_nonblocking(true).and_then(|()| self.stream.peek(&mut [0]));
        let quiet = matches!(&peeked, Err(e) if e.kind() == std::io::ErrorKind::WouldBlock);
        !quiet || self.stream.set_nonblocking(false).is_err()
    }

    pub(crate) fn send(&mut self, request: &[u8]) -> Result<(), Failure> {
        Ok(self.stream.write_all(request)?)
    }

    /// Whether the last response had `Connection: close`.
    pub(crate) fn is_last(&self) -> bool {
        self.header("connection").is_some_and(|how| how == "close")
    }

    /// A header of the last response, in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        let received = self.buffer.get(..self.filled).unwrap_or_default();
        let end = received.windows(4).position(|w| w == b"\r\n\r\n").unwrap_or(0);
        let head = String::from_utf8_lossy(received.get(..end).unwrap_or_default()).to_lowercase();
        let mut headers = head.lines().filter_map(|line| line.split_once(':'));
        headers.find(|(found, _)| *found == name).map(|(_, value)| value.trim().to_owned())
    }

    /// Status and body of the next response.
    pub(crate) fn receive(&mut self) -> Result<(u16, &[u8]), Failure> {
        self.filled = 0;
        let mut expected = None;
        loop {
            let free = self
                .buffer
                .get_mut(self.filled..)
                .filter(|f| !f.is_empty())
                .ok_or("the response is too large")?;
            let read = self.stream.read(free)?;
            if read == 0 {
                return Err("the server closed the connection".into());
            }
            self.filled += read;
            if expected.is_none() {
                expected = head(self.buffer.get(..self.filled).unwrap_or_default())?;
            }
            if let Some((status, start, end)) = expected
                && self.filled >= end
            {
                return Ok((status, self.buffer.get(start..end).unwrap_or_default()));
            }
        }
    }

    /// Sends and receives; any status but 200 is an error.
    pub(crate) fn call(&mut self, request: &[u8]) -> Result<&[u8], Failure> {
        self.send(request)?;
        match self.receive()? {
            (200, body) => Ok(body),
            (status, body) => Err(format!("{status}: {}", String::from_utf8_lossy(body)).into()),
        }
    }
}

/// Status, start and end of the body; `None` while the head is incomplete.
fn head(bytes: &[u8]) -> Result<Option<(u16, usize, usize)>, Failure> {
    let Some(end) = bytes.windows(4).position(|w| w == b"\r\n\r\n") else { return Ok(None) };
    let head = std::str::from_utf8(bytes.get(..end).unwrap_or_default())?;
    let status = head.get(9..12).and_then(|s| s.parse().ok()).ok_or("no status line")?;
    let mut length = None;
    for (name, value) in head.lines().filter_map(|l| l.split_once(':')) {
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse::<usize>().ok();
        }
    }
    let length = length.ok_or("a response without content-length")?;
    Ok(Some((status, end + 4, end + 4 + length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_heads_are_parsed() {
        let response = b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\nx: y\r\n\r\n{}";
        assert_eq!(head(response).unwrap(), Some((404, 51, 53)));
        assert_eq!(head(response.get(..30).unwrap()).unwrap(), None);
        assert!(head(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }
}
