//! A connection with latency, delays, loss and resets per direction.

use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep_until},
};
use tonic::transport::server::Connected;

/// Bytes in flight per direction before writes block.
const WINDOW: usize = 256 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

impl Side {
    const fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "independent faults")]
struct Direction {
    chunks: VecDeque<(Instant, Vec<u8>)>,
    buffered: usize,
    latency: Duration,
    /// Data is delayed.
    held: bool,
    /// Data is dropped without a reset.
    frozen: bool,
    /// The next write is lost, and the connection is reset after this time.
    lossy: Option<Duration>,
    /// The writer has shut down.
    ended: bool,
    /// The reader is closed: writes fail unless the reverse direction is blocked.
    unread: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Direction {
    fn wake(&mut self) {
        [self.reader.take(), self.writer.take()].into_iter().flatten().for_each(Waker::wake);
    }
}

#[derive(Debug, Default)]
struct State {
    from_client: Direction,
    from_server: Direction,
    /// Reset for both ends.
    cut: bool,
    /// The end whose process crashed silently: reset for this end only.
    dead: Option<Side>,
}

impl State {
    fn written_by(&mut self, side: Side) -> &mut Direction {
        match side {
            Side::Client => &mut self.from_client,
            Side::Server => &mut self.from_server,
        }
    }

    fn is_reset_for(&self, side: Side) -> bool {
        self.cut || self.dead == Some(side)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Connection {
    state: Mutex<State>,
}

impl Connection {
    /// Opens a connection with these latencies to and from the server.
    pub(crate) fn open(there: Duration, back: Duration) -> (Arc<Self>, Stream, Stream) {
        let connection = Arc::new(Self::default());
        connection.lock().from_client.latency = there;
        connection.lock().from_server.latency = back;
        let end = |side| Stream { connection: connection.clone(), side, wake: None };
        let (client, server) = (end(Side::Client), end(Side::Server));
        (connection, client, server)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        state.from_client.wake();
        state.from_server.wake();
    }

    pub(crate) fn cut(&self) {
        self.change(|state| state.cut = true);
    }

    /// Closes one end. `silently`: the peer sees no reset.
    pub(crate) fn kill(&self, side: Side, silently: bool) {
        self.change(|state| {
            if silently {
                state.dead = Some(side);
                state.written_by(side).frozen = true;
            } else {
                state.cut = true;
            }
        });
    }

    /// Starts or ends the delay of data from one end.
    pub(crate) fn hold(&self, writer: Side, held: bool) {
        self.change(|state| state.written_by(writer).held = held);
    }

    /// Makes the connection half-open.
    pub(crate) fn freeze(&self) {
        self.change(|state| {
            state.from_client.frozen = true;
            state.from_server.frozen = true;
        });
    }

    /// Loses the next response; the connection is reset later.
    pub(crate) fn lose_replies(&self, ends_after: Duration) {
        self.change(|state| state.from_server.lossy = Some(ends_after));
    }

    pub(crate) fn set_latency(&self, writer: Side, latency: Duration) {
        self.change(|state| state.written_by(writer).latency = latency);
    }
}

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct Stream {
    connection: Arc<Connection>,
    side: Side,
    wake: Option<Pin<Box<Sleep>>>,
}

impl Connected for Stream {
    type ConnectInfo = ();
    fn connect_info(&self) {}
}

impl Drop for Stream {
    fn drop(&mut self) {
        let side = self.side;
        self.connection.change(|state| {
            state.written_by(side).ended = true;
            state.written_by(side.other()).unread = true;
        });
    }
}

fn reset<T>() -> Poll<io::Result<T>> {
    Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let connection = self.connection.clone();
            let mut state = connection.lock();
            if state.is_reset_for(self.side) {
                return reset();
            }
            let incoming = state.written_by(self.side.other());
            if incoming.held || incoming.frozen {
                incoming.reader = Some(cx.waker().clone());
                return Poll::Pending;
            }
            let now = Instant::now();
            let Some((due, chunk)) = incoming.chunks.front_mut() else {
                if incoming.ended {
                    return Poll::Ready(Ok(()));
                }
                incoming.reader = Some(cx.waker().clone());
                return Poll::Pending;
            };
            if *due <= now {
                let count = chunk.len().min(buffer.remaining());
                buffer.put_slice(&chunk.drain(..count).collect::<Vec<_>>());
                if chunk.is_empty() {
                    incoming.chunks.pop_front();
                }
                incoming.buffered = incoming.buffered.saturating_sub(count);
                if let Some(writer) = incoming.writer.take() {
                    writer.wake();
                }
                return Poll::Ready(Ok(()));
            }
            let due = *due;
            incoming.reader = Some(cx.waker().clone());
            drop(state);
            let wake = self.wake.get_or_insert_with(|| Box::pin(sleep_until(due)));
            if wake.deadline() != due {
                wake.as_mut().reset(due);
            }
            ready!(wake.as_mut().poll(cx));
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = self.connection.lock();
        if state.is_reset_for(self.side) {
            return reset();
        }
        let reverse = state.written_by(self.side.other());
        let peer_is_visible = !reverse.held && !reverse.frozen;
        let outgoing = state.written_by(self.side);
        if outgoing.unread && peer_is_visible {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if let Some(ends_after) = outgoing.lossy {
            let connection = self.connection.clone();
            tokio::spawn(async move {
                tokio::time::sleep(ends_after).await;
                connection.cut();
            });
            outgoing.frozen = true;
            outgoing.lossy = None;
            return Poll::Ready(Ok(bytes.len()));
        }
        if outgoing.buffered >= WINDOW {
            outgoing.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        // Bytes stay in order when the latency changes.
        let earliest = outgoing.chunks.back().map(|(due, _)| *due);
        let due = (Instant::now() + outgoing.latency).max(earliest.unwrap_or_else(Instant::now));
        outgoing.buffered += bytes.len();
        outgoing.chunks.push_back((due, bytes.to_vec()));
        if let Some(reader) = outgoing.reader.take() {
            reader.wake();
        }
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let side = self.side;
        self.connection.change(|state| state.written_by(side).ended = true);
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        time::timeout,
    };

    const READ_TIMEOUT: Duration = Duration::from_mins(1);

    fn pair() -> (Arc<Connection>, Stream, Stream) {
        Connection::open(Duration::from_millis(5), Duration::from_millis(7))
    }

    async fn read(stream: &mut Stream) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; 64];
        let count = stream.read(&mut bytes).await?;
        bytes.truncate(count);
        Ok(bytes)
    }

    #[tokio::test(start_paused = true)]
    async fn data_arrives_in_order_after_latency() {
        let (_, mut client, mut server) = pair();
        let start = Instant::now();
        client.write_all(b"a").await.unwrap();
        assert_eq!(read(&mut server).await.unwrap(), b"a");
        assert_eq!(start.elapsed(), Duration::from_millis(5));
        server.write_all(b"b").await.unwrap();
        assert_eq!(read(&mut client).await.unwrap(), b"b");
        assert_eq!(start.elapsed(), Duration::from_millis(12));
        drop(client);
        assert!(read(&mut server).await.unwrap().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn held_data_arrives_later_and_frozen_data_never() {
        let (connection, mut client, mut server) = pair();
        connection.hold(Side::Client, true);
        client.write_all(b"a").await.unwrap();
        assert!(timeout(READ_TIMEOUT, read(&mut server)).await.is_err());
        connection.hold(Side::Client, false);
        assert_eq!(read(&mut server).await.unwrap(), b"a");
        connection.freeze();
        client.write_all(b"b").await.unwrap();
        connection.hold(Side::Client, false);
        assert!(timeout(READ_TIMEOUT, read(&mut server)).await.is_err());
        // A half-open connection reports no close.
        drop(server);
        client.write_all(b"c").await.unwrap();
        assert!(timeout(READ_TIMEOUT, read(&mut client)).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn cut_resets_both_ends_and_silent_kill_only_one() {
        let (connection, mut client, mut server) = pair();
        connection.cut();
        assert!(read(&mut client).await.is_err() && server.write_all(b"x").await.is_err());
        let (connection, mut client, mut server) = pair();
        connection.kill(Side::Server, true);
        assert!(read(&mut server).await.is_err());
        client.write_all(b"x").await.unwrap();
        assert!(timeout(READ_TIMEOUT, read(&mut client)).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn lost_reply_follows_effect() {
        let (connection, mut client, mut server) = pair();
        connection.lose_replies(Duration::from_secs(1));
        client.write_all(b"do it").await.unwrap();
        assert_eq!(read(&mut server).await.unwrap(), b"do it");
        server.write_all(b"done").await.unwrap();
        assert!(read(&mut client).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn write_blocks_when_the_window_is_full() {
        let (_connection, mut client, _server) = pair();
        let flood = async { while client.write(&[0; 4096]).await.is_ok() {} };
        assert!(timeout(READ_TIMEOUT, flood).await.is_err());
    }
}
