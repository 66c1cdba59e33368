//! The byte stream of a client connection: bounds HTTP/2 control frames, and delays the end of a half-closed connection.

use crate::activity::Activity;
use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Instant, Sleep},
};

/// A client that closes its side gets the response to its request if it is ready within this time. Later the request is
/// cancelled: a client that closed both sides looks the same.
const HALF_CLOSED_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) struct ClientIo {
    stream: TcpStream,
    activity: Arc<Activity>,
    frames: FrameCounter,
    /// Set when the client has closed its side.
    half_closed: Option<Pin<Box<Sleep>>>,
}

impl ClientIo {
    pub(crate) fn new(stream: TcpStream, activity: &Arc<Activity>) -> Self {
        let frames = FrameCounter::default();
        Self { stream, activity: Arc::clone(activity), frames, half_closed: None }
    }
}

impl AsyncRead for ClientIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.half_closed.is_none() {
            let before = buffer.filled().len();
            ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
            let read = buffer.filled().get(before..).unwrap_or_default();
            if !read.is_empty() {
                return Poll::Ready(self.frames.read(read));
            }
        }
        if !self.activity.is_active() {
            return Poll::Ready(Ok(()));
        }
        let timeout = || Box::pin(tokio::time::sleep(HALF_CLOSED_TIMEOUT));
        self.half_closed.get_or_insert_with(timeout).as_mut().poll(cx).map(Ok)
    }
}

impl AsyncWrite for ClientIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, data))?;
        self.frames.on_write(written);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, data))?;
        self.frames.on_write(written);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEADER: usize = 9;

/// Control frames (`WINDOW_UPDATE`, PRIORITY, SETTINGS, PING, …) that a connection may send at any time.
const ALLOWED: u64 = 1000;
const ALLOWED_PER_SECOND: u64 = 100;
/// For each frame of a request.
const ALLOWED_PER_FRAME: u64 = 16;
/// A client acknowledges what it reads with `WINDOW_UPDATE`.
const WRITTEN_BYTES_PER_ALLOWED: u64 = 512;

/// Counts the frames of an HTTP/2 connection. hyper bounds resets and pings, but not the other control frames.
struct FrameCounter {
    started: Instant,
    state: Position,
    control: u64,
    request: u64,
    written: u64,
}

enum Position {
    /// Bytes of the preface seen.
    Preface(usize),
    Http1,
    Header([u8; FRAME_HEADER], usize),
    /// Bytes of the payload left.
    Payload(usize),
}

impl Default for FrameCounter {
    fn default() -> Self {
        Self { started: Instant::now(), state: Position::Preface(0), control: 0, request: 0, written: 0 }
    }
}

impl FrameCounter {
    const fn on_write(&mut self, bytes: usize) {
        self.written += bytes as u64;
    }

    fn read(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while let Some((&first, rest)) = bytes.split_first() {
            match &mut self.state {
                Position::Http1 => return Ok(()),
                Position::Preface(seen) => {
                    if PREFACE.get(*seen) != Some(&first) {
                        self.state = Position::Http1;
                        return Ok(());
                    }
                    *seen += 1;
                    if *seen == PREFACE.len() {
                        self.state = Position::Header([0; FRAME_HEADER], 0);
                    }
                    bytes = rest;
                }
                Position::Header(header, have) => {
                    if let Some(byte) = header.get_mut(*have) {
                        *byte = first;
                    }
                    *have += 1;
                    if *have == FRAME_HEADER {
                        let [a, b, c, kind, ..] = *header;
                        self.state = Position::Payload(u32::from_be_bytes([0, a, b, c]) as usize);
                        self.count(kind)?;
                    }
                    bytes = rest;
                }
                Position::Payload(left) => {
                    let skipped = bytes.len().min(*left);
                    *left -= skipped;
                    if *left == 0 {
                        self.state = Position::Header([0; FRAME_HEADER], 0);
                    }
                    bytes = bytes.get(skipped..).unwrap_or_default();
                }
            }
        }
        Ok(())
    }

    fn count(&mut self, kind: u8) -> io::Result<()> {
        const DATA: u8 = 0;
        const HEADERS: u8 = 1;
        if matches!(kind, DATA | HEADERS) {
            self.request += 1;
            return Ok(());
        }
        self.control += 1;
        let allowed = ALLOWED + ALLOWED_PER_FRAME * self.request + self.written / WRITTEN_BYTES_PER_ALLOWED;
        if self.control <= allowed
            || self.control <= allowed + ALLOWED_PER_SECOND * self.started.elapsed().as_secs()
        {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, "too many HTTP/2 control frames"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, 0, 0, 0, 0, 0], payload].concat()
    }

    #[tokio::test(start_paused = true)]
    async fn control_frames_are_limited() {
        let update = frame(8, &[0, 0, 0, 1]);
        let started = || {
            let mut frames = FrameCounter::default();
            // In pieces of one byte, with a SETTINGS frame.
            for byte in PREFACE.iter().copied().chain(frame(4, &[0; 6])) {
                frames.read(&[byte]).unwrap();
            }
            frames.read(&update.repeat(999)).unwrap();
            frames
        };
        assert!(started().read(&update).is_err());

        let mut requests = started();
        requests.read(&frame(0, &[0; 100])).unwrap();
        requests.read(&update.repeat(16)).unwrap();
        assert!(requests.read(&update).is_err());

        let mut responses = started();
        responses.on_write(1024);
        responses.read(&update.repeat(2)).unwrap();
        assert!(responses.read(&update).is_err());

        let mut slow = started();
        tokio::time::advance(Duration::from_secs(1)).await;
        slow.read(&update.repeat(100)).unwrap();
        assert!(slow.read(&update).is_err());
    }

    #[tokio::test]
    async fn http1_is_not_counted() {
        let mut frames = FrameCounter::default();
        frames.read(b"PRI").unwrap();
        frames.read(b"NT / HTTP/1.1\r\n").unwrap();
        frames.read(&frame(8, &[0; 4]).repeat(5000)).unwrap();
    }
}
