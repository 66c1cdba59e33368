//! The upstream of both gateways: responds to every request with the same kilobyte.

use crate::Failure;
use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
};

/// A request body of about a kilobyte.
pub(crate) fn request() -> String {
    format!(
        "{{\"inputs\":[{{\"name\":\"x\",\"shape\":[1,160],\"datatype\":\"FP32\",\"data\":[{}]}}]}}",
        values()
    )
}

/// The response body: about a kilobyte of protocol JSON.
pub(crate) fn response() -> String {
    format!(
        "{{\"model_name\":\"m\",\"model_version\":\"1\",\"outputs\":[{{\"name\":\"y\",\"datatype\":\"FP32\",\"shape\":[1,160],\
         \"data\":[{}]}}]}}",
        values()
    )
}

fn values() -> String {
    let values: Vec<String> = (0..160).map(|i| format!("{}.5", i % 10 + 10)).collect();
    values.join(",")
}

/// Prints its port, then serves until it is killed.
pub(crate) fn serve() -> Result<bool, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    let body = response();
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: ";
    let response = format!("{head}{}\r\n\r\n{body}", body.len()).into_bytes();
    for stream in listener.incoming() {
        let (stream, response) = (stream?, response.clone());
        std::thread::spawn(move || {
            // A disconnected client only ends its thread.
            let _ = serve_connection(stream, &response);
        });
    }
    Ok(true)
}

fn serve_connection(mut stream: TcpStream, response: &[u8]) -> Result<(), Failure> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::new();
    let mut more = vec![0; 1 << 16];
    loop {
        while let Some(length) = whole(&buffer) {
            buffer.drain(..length);
            stream.write_all(response)?;
        }
        let read = stream.read(&mut more)?;
        if read == 0 {
            return Ok(());
        }
        buffer.extend_from_slice(more.get(..read).unwrap_or_default());
    }
}

/// The length of the first request, once it is complete.
fn whole(bytes: &[u8]) -> Option<usize> {
    let end = bytes.windows(4).position(|w| w == b"\r\n\r\n")? + 4;
    let head = std::str::from_utf8(bytes.get(..end)?).ok()?;
    let length = head
        .lines()
        .filter_map(|l| l.split_once(':'))
        .find(|(n, _)| n.eq_ignore_ascii_case("content-length"));
    let body = length.map_or(0, |(_, v)| v.trim().parse().unwrap_or(0));
    (bytes.len() >= end + body).then_some(end + body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipelined_requests_are_split() {
        let two = b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}GET";
        assert_eq!(whole(two), Some(40));
        assert_eq!(whole(two.get(..39).unwrap()), None);
        assert_eq!(whole(b"GET / HTTP/1.1\r\n\r\n"), Some(18));
        assert!((900..1100).contains(&response().len()), "{}", response().len());
    }
}
