//! Accepting connections, and shaking hands with those who come.

use crate::{Connection, Server, explain};
use futures::Stream;
use std::{
    io,
    net::SocketAddr,
    time::{Duration, Instant},
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Handshakes at a time. Whoever comes meanwhile waits in the system's own queue.
const HANDSHAKES: usize = 256;
/// How often a refused connection is worth a line.
const WORTH_A_LINE: Duration = Duration::from_secs(1);
/// A pause when the system has no descriptor to give: connections must end first.
const EXHAUSTED: Duration = Duration::from_millis(50);

/// Connections as they are accepted; with TLS, those whose handshake is done. It never ends and never fails: a client
/// that cannot prove who it is, or that does not speak, is no reason to stop listening.
pub fn incoming(
    listener: TcpListener,
    tls: Option<Server>,
) -> impl Stream<Item = io::Result<Connection>> + Send + 'static {
    let door = Door { listener, tls, handshakes: JoinSet::new(), said: None, unsaid: 0 };
    futures::stream::unfold(door, |mut door| async move {
        let connection = door.next().await;
        Some((Ok(connection), door))
    })
}

struct Door {
    listener: TcpListener,
    tls: Option<Server>,
    handshakes: JoinSet<Result<Connection, (SocketAddr, String)>>,
    /// When a refusal was last told, and how many were not since.
    said: Option<Instant>,
    unsaid: u64,
}

impl Door {
    async fn next(&mut self) -> Connection {
        loop {
            tokio::select! {
                Some(joined) = self.handshakes.join_next() => match joined {
                    Ok(Ok(connection)) => return connection,
                    Ok(Err((peer, reason))) => self.refused(peer, &reason),
                    Err(_) => {}
                },
                accepted = self.listener.accept(), if self.handshakes.len() < HANDSHAKES => match accepted {
                    Ok((stream, peer)) => {
                        // A change of a few bytes must not wait for more to send with it.
                        let _ = stream.set_nodelay(true);
                        match &self.tls {
                            None => return Connection::Plain(stream),
                            Some(tls) => { self.handshakes.spawn(handshake(tls.clone(), stream, peer)); }
                        }
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a connection could not be accepted");
                        tokio::time::sleep(EXHAUSTED).await;
                    }
                },
            }
        }
    }

    /// Tells of it, but not so often that a stranger can fill the log.
    fn refused(&mut self, peer: SocketAddr, reason: &str) {
        if self.said.is_some_and(|at| at.elapsed() < WORTH_A_LINE) {
            self.unsaid += 1;
            return;
        }
        tracing::warn!(%peer, others = self.unsaid, "connection refused: {reason}");
        self.said = Some(Instant::now());
        self.unsaid = 0;
    }
}

async fn handshake(
    tls: Server,
    stream: TcpStream,
    peer: SocketAddr,
) -> Result<Connection, (SocketAddr, String)> {
    let shaking = TlsAcceptor::from(tls.config()).accept(stream);
    match tokio::time::timeout(HANDSHAKE, shaking).await {
        Ok(Ok(stream)) => Ok(Connection::Tls(Box::new(stream.into()))),
        Ok(Err(error)) => Err((peer, explain(&error))),
        Err(_) => Err((peer, format!("it did not finish the TLS handshake within {HANDSHAKE:?}"))),
    }
}
