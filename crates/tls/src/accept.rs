//! Accept loop with TLS handshakes.

use crate::{Connection, Server, diagnose};
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

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Concurrent handshakes; further connections wait in the listener's backlog.
const MAX_HANDSHAKES: usize = 256;
/// Rate limit for logging failed handshakes.
const LOG_INTERVAL: Duration = Duration::from_secs(1);
/// Delay after a failed accept: usually out of file descriptors until connections end.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);

/// Accepted connections; with TLS, after the handshake. The stream never ends and never fails: failed handshakes are
/// logged and skipped.
pub fn incoming(
    listener: TcpListener,
    tls: Option<Server>,
) -> impl Stream<Item = io::Result<Connection>> + Send + 'static {
    let acceptor = Acceptor { listener, tls, handshakes: JoinSet::new(), logged_at: None, suppressed: 0 };
    futures::stream::unfold(acceptor, |mut acceptor| async move {
        let connection = acceptor.next().await;
        Some((Ok(connection), acceptor))
    })
}

struct Acceptor {
    listener: TcpListener,
    tls: Option<Server>,
    handshakes: JoinSet<Result<Connection, (SocketAddr, String)>>,
    logged_at: Option<Instant>,
    /// Failures not logged since.
    suppressed: u64,
}

impl Acceptor {
    async fn next(&mut self) -> Connection {
        loop {
            tokio::select! {
                Some(joined) = self.handshakes.join_next() => match joined {
                    Ok(Ok(connection)) => return connection,
                    Ok(Err((peer, reason))) => self.log_failure(peer, &reason),
                    Err(_) => {}
                },
                accepted = self.listener.accept(), if self.handshakes.len() < MAX_HANDSHAKES => match accepted {
                    Ok((stream, peer)) => {
                        // Small messages must not wait for Nagle's algorithm.
                        let _ = stream.set_nodelay(true);
                        match &self.tls {
                            None => return Connection::Plain(stream),
                            Some(tls) => { self.handshakes.spawn(handshake(tls.clone(), stream, peer)); }
                        }
                    }
                    Err(error) => {
                        tracing::warn!(%error, "accept failed");
                        tokio::time::sleep(ACCEPT_BACKOFF).await;
                    }
                },
            }
        }
    }

    /// Rate-limited, so that a port scan cannot fill the log.
    fn log_failure(&mut self, peer: SocketAddr, reason: &str) {
        if self.logged_at.is_some_and(|at| at.elapsed() < LOG_INTERVAL) {
            self.suppressed += 1;
            return;
        }
        tracing::warn!(%peer, reason, suppressed = self.suppressed, "TLS handshake failed");
        self.logged_at = Some(Instant::now());
        self.suppressed = 0;
    }
}

async fn handshake(
    tls: Server,
    stream: TcpStream,
    peer: SocketAddr,
) -> Result<Connection, (SocketAddr, String)> {
    let accepted = TlsAcceptor::from(tls.config()).accept(stream);
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, accepted).await {
        Ok(Ok(stream)) => Ok(Connection::Tls(Box::new(stream.into()))),
        Ok(Err(error)) => Err((peer, diagnose(&error))),
        Err(_) => Err((peer, format!("not finished within {HANDSHAKE_TIMEOUT:?}"))),
    }
}
