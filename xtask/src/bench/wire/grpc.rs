//! A gRPC connection: HTTP/2 frames and the header fields of a call.
//!
//! Response headers are not decoded: a call without a message has failed, and the caller compares messages. Flow-control
//! windows are opened wide at the start; pings and settings are acknowledged.

use crate::Failure;
use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const WINDOW: u8 = 8;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const LARGEST_FRAME: usize = 16_384;

/// An event on a stream.
#[derive(Debug)]
pub(crate) enum StreamEvent {
    /// Bytes of length-prefixed messages.
    Data(u32, Vec<u8>),
    /// The end of a stream.
    End(u32),
}

pub(crate) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    start: usize,
    next: u32,
    window: i64,
    first_window: i64,
    stream_window: i64,
    /// The path in the server's HPACK table: a repeated call has six bytes of headers.
    known_path: Option<String>,
    ended: Option<u32>,
}

impl Connection {
    pub(crate) fn open(address: SocketAddr) -> Result<Self, Failure> {
        Self::open_with_window(address, 0x7fff_ffff)
    }

    /// The server may send so many bytes of each response before the client reads.
    pub(crate) fn open_with_window(address: SocketAddr, window: u32) -> Result<Self, Failure> {
        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        let mut hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        // No push; the window of each stream.
        let [a, b, c, d] = window.to_be_bytes();
        frame(&mut hello, SETTINGS, 0, 0, &[0, 2, 0, 0, 0, 0, 0, 4, a, b, c, d]);
        frame(&mut hello, WINDOW, 0, 0, &(0x7fff_ffff_u32 - 65_535).to_be_bytes());
        let mut connection = Self {
            stream,
            buffer: Vec::with_capacity(1 << 16),
            start: 0,
            next: 1,
            window: 65_535,
            first_window: 65_535,
            stream_window: 65_535,
            known_path: None,
            ended: None,
        };
        connection.stream.write_all(&hello)?;
        Ok(connection)
    }

    pub(crate) fn disable_read_timeout(&self) -> Result<(), Failure> {
        Ok(self.stream.set_read_timeout(None)?)
    }

    /// Starts a unary call; returns the stream id.
    pub(crate) fn send(&mut self, path: &str, message: &[u8]) -> Result<u32, Failure> {
        let stream = self.next;
        self.next += 2;
        self.stream_window = self.first_window;
        let block = self.header_block(path);
        let mut out = Vec::with_capacity(message.len() + 64);
        frame(&mut out, HEADERS, END_HEADERS, stream, &block);
        let mut body = vec![0];
        body.extend_from_slice(&u32::try_from(message.len())?.to_be_bytes());
        body.extend_from_slice(message);
        let mut rest = body.as_slice();
        while !rest.is_empty() {
            let open = usize::try_from(self.window.min(self.stream_window)).unwrap_or(0);
            if open == 0 {
                self.stream.write_all(&out)?;
                out.clear();
                if let Some(StreamEvent::End(_)) = self.step()? {
                    return Err("the server refused the call".into());
                }
                continue;
            }
            let (now, later) = rest.split_at(rest.len().min(open).min(LARGEST_FRAME));
            rest = later;
            self.window -= now.len() as i64;
            self.stream_window -= now.len() as i64;
            frame(&mut out, DATA, if rest.is_empty() { END_STREAM } else { 0 }, stream, now);
        }
        self.stream.write_all(&out)?;
        Ok(stream)
    }

    fn header_block(&mut self, path: &str) -> Vec<u8> {
        if self.known_path.as_deref() == Some(path) {
            // POST, http, and the four dynamic entries below, newest first.
            return vec![0x83, 0x86, 0xc1, 0xc0, 0xbf, 0xbe];
        }
        // The first path is indexed; others are literals.
        let first = self.known_path.is_none();
        let (how, limit) = if first { (0x40, 0x3f) } else { (0x00, 0x0f) };
        let mut block = vec![0x83, 0x86];
        let name_index = |block: &mut Vec<u8>, index: u8| {
            if index < limit {
                block.push(how | index);
            } else {
                block.extend_from_slice(&[how | limit, index - limit]);
            }
        };
        let text = |block: &mut Vec<u8>, text: &str| {
            // Every literal is shorter than 127 bytes.
            block.push(text.len() as u8 & 0x7f);
            block.extend_from_slice(text.as_bytes());
        };
        name_index(&mut block, 4);
        text(&mut block, path);
        name_index(&mut block, 1);
        text(&mut block, "bench");
        name_index(&mut block, 31);
        text(&mut block, "application/grpc");
        block.push(how);
        text(&mut block, "te");
        text(&mut block, "trailers");
        if first {
            self.known_path = Some(path.to_owned());
        }
        block
    }

    /// The response message of a call.
    pub(crate) fn receive(&mut self, stream: u32) -> Result<Vec<u8>, Failure> {
        let mut body = Vec::new();
        loop {
            match self.step()? {
                Some(StreamEvent::Data(of, bytes)) if of == stream => body.extend_from_slice(&bytes),
                Some(StreamEvent::End(of)) if of == stream => break,
                _ => {}
            }
        }
        match take_message(&mut body) {
            Some(message) => Ok(message),
            None => Err("the call ended without a message: the server refused it".into()),
        }
    }

    pub(crate) fn call(&mut self, path: &str, message: &[u8]) -> Result<Vec<u8>, Failure> {
        let stream = self.send(path, message)?;
        self.receive(stream)
    }

    /// Concurrent calls, without their responses: the scheduler commits their changes in one batch.
    pub(crate) fn call_all(&mut self, path: &str, messages: &[Vec<u8>]) -> Result<(), Failure> {
        let mut streams = Vec::with_capacity(messages.len());
        for message in messages {
            streams.push(self.send(path, message)?);
        }
        while !streams.is_empty() {
            if let Some(StreamEvent::End(stream)) = self.step()? {
                streams.retain(|s| *s != stream);
            }
        }
        Ok(())
    }

    /// Reads and handles one frame.
    pub(crate) fn step(&mut self) -> Result<Option<StreamEvent>, Failure> {
        if let Some(stream) = self.ended.take() {
            return Ok(Some(StreamEvent::End(stream)));
        }
        let (kind, flags, stream, payload) = self.read_frame()?;
        match kind {
            DATA => {
                self.ended = (flags & END_STREAM != 0).then_some(stream);
                return Ok(Some(StreamEvent::Data(stream, payload)));
            }
            HEADERS if flags & END_STREAM != 0 => return Ok(Some(StreamEvent::End(stream))),
            RESET => return Ok(Some(StreamEvent::End(stream))),
            GO_AWAY => return Err("the server ends the connection".into()),
            SETTINGS if flags & ACK == 0 => {
                for setting in payload.as_chunks::<6>().0 {
                    if let [0, 4, value @ ..] = setting {
                        let value = i64::from(u32::from_be_bytes(*value));
                        self.stream_window += value - self.first_window;
                        self.first_window = value;
                    }
                }
                self.response(SETTINGS, &[])?;
            }
            PING if flags & ACK == 0 => self.response(PING, &payload)?,
            WINDOW => {
                let more = payload.first_chunk().map_or(0, |b| i64::from(u32::from_be_bytes(*b)));
                *(if stream == 0 { &mut self.window } else { &mut self.stream_window }) += more;
            }
            _ => {}
        }
        Ok(None)
    }

    fn response(&mut self, kind: u8, payload: &[u8]) -> Result<(), Failure> {
        let mut out = Vec::new();
        frame(&mut out, kind, ACK, 0, payload);
        Ok(self.stream.write_all(&out)?)
    }

    fn read_frame(&mut self) -> Result<(u8, u8, u32, Vec<u8>), Failure> {
        loop {
            let ready = self.buffer.get(self.start..).unwrap_or_default();
            if let Some(([a, b, c, kind, flags, s @ ..], rest)) = ready.split_first_chunk::<9>() {
                let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
                if let Some(payload) = rest.get(..length) {
                    let found = (*kind, *flags, u32::from_be_bytes(*s) & 0x7fff_ffff, payload.to_vec());
                    self.start += 9 + length;
                    return Ok(found);
                }
            }
            self.buffer.drain(..self.start);
            self.start = 0;
            let mut more = [0; 16_384];
            let read = self.stream.read(&mut more)?;
            if read == 0 {
                return Err("the server closed the connection".into());
            }
            self.buffer.extend_from_slice(more.get(..read).unwrap_or_default());
        }
    }
}

/// Splits a complete message off the buffer.
pub(crate) fn take_message(body: &mut Vec<u8>) -> Option<Vec<u8>> {
    let ([0, length @ ..], rest) = body.split_first_chunk::<5>()? else { return None };
    let length = u32::from_be_bytes(*length) as usize;
    let message = rest.get(..length)?.to_vec();
    body.drain(..5 + length);
    Some(message)
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let [_, length @ ..] = (payload.len() as u32).to_be_bytes();
    out.extend_from_slice(&length);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_and_messages_are_encoded() {
        let mut out = Vec::new();
        frame(&mut out, PING, ACK, 3, &[1, 2]);
        assert_eq!(out, [0, 0, 2, 6, 1, 0, 0, 0, 3, 1, 2]);
        let mut body = vec![0, 0, 0, 0, 2, 7, 8, 0, 0];
        assert_eq!(take_message(&mut body), Some(vec![7, 8]));
        assert_eq!(take_message(&mut body), None);
        assert_eq!(body, [0, 0]);
    }
}
