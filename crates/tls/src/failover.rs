//! Connector for a service with several addresses, of which one answers: a leader with its standbys.

use crate::{Connection, Connector, diagnose};
use http::Uri;
use http::uri::Authority;
use hyper_util::rt::TokioIo;
use std::{
    fmt::Write as _,
    future::Future,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};
use tower_service::Service;

/// Limit for one of several addresses.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(2);

/// Connects to the first of several addresses that answers, and begins with the last one that did. Clones share that
/// choice.
#[derive(Clone, Debug)]
pub struct Failover {
    connector: Connector,
    addresses: Arc<[Authority]>,
    current: Arc<AtomicUsize>,
}

impl Failover {
    /// For addresses as `HOST:PORT`; a single one is used as by the connector itself.
    pub fn new(connector: Connector, addresses: &[String]) -> Result<Self, http::uri::InvalidUri> {
        let addresses: Arc<[Authority]> =
            addresses.iter().map(|address| address.parse()).collect::<Result<_, _>>()?;
        let connector =
            if addresses.len() > 1 { connector.within_at_most(ADDRESS_TIMEOUT) } else { connector };
        Ok(Self { connector, addresses, current: Arc::default() })
    }

    async fn connect(&self) -> io::Result<Connection> {
        let count = self.addresses.len();
        let first = self.current.load(Ordering::Relaxed);
        let mut last = io::Error::new(io::ErrorKind::InvalidInput, "no address");
        let mut failures = String::new();
        for index in (0..count).map(|offset| (first + offset) % count) {
            let Some(address) = self.addresses.get(index) else { continue };
            match self.connect_to(address, count > 1).await {
                Ok(connection) => {
                    self.current.store(index, Ordering::Relaxed);
                    return Ok(connection);
                }
                Err(error) if count == 1 => return Err(error),
                Err(error) => {
                    let separator = if failures.is_empty() { "" } else { "; " };
                    let _ = write!(failures, "{separator}{address}: {}", diagnose(&error));
                    last = error;
                }
            }
        }
        Err(if failures.is_empty() { last } else { io::Error::new(last.kind(), failures) })
    }

    async fn connect_to(&self, address: &Authority, several: bool) -> io::Result<Connection> {
        let port = address.port_u16().unwrap_or(if self.connector.is_tls() { 443 } else { 80 });
        let connection = self.connector.connect(address.host(), port).await?;
        // The kernel accepts connections for a process that is suspended. A server of HTTP/2 sends its settings at once.
        if several && let Connection::Plain(stream) = &connection {
            let silent =
                || io::Error::new(io::ErrorKind::TimedOut, "accepted the connection and did not answer");
            let answered = tokio::time::timeout(ADDRESS_TIMEOUT, stream.peek(&mut [0])).await;
            if answered.map_err(|_| silent())?? == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "closed the connection"));
            }
        }
        Ok(connection)
    }
}

impl Service<Uri> for Failover {
    type Response = TokioIo<Connection>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let failover = self.clone();
        Box::pin(async move { failover.connect().await.map(TokioIo::new) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::{io::AsyncWriteExt as _, net::TcpListener};

    async fn listener() -> (TcpListener, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        (listener, address)
    }

    fn answering(listener: TcpListener) -> tokio::task::JoinHandle<()> {
        tokio::spawn(async move {
            let mut kept = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.write_all(b"settings").await;
                kept.push(stream);
            }
        })
    }

    fn peer(connection: &Connection) -> String {
        connection.peer().unwrap().to_string()
    }

    #[tokio::test]
    async fn first_address_that_answers_is_used_and_kept() {
        // One refuses connections, one accepts them without an answer.
        let (closed, refused) = listener().await;
        drop(closed);
        let (_suspended, silent) = listener().await;
        let (one, first) = listener().await;
        let (two, second) = listener().await;
        let (server, _other) = (answering(one), answering(two));
        let addresses = [refused, silent, first.clone(), second.clone()];
        let failover = Failover::new(Connector::new(None), &addresses).unwrap();
        assert_eq!(peer(&failover.connect().await.unwrap()), first);
        assert_eq!(failover.clone().current.load(Ordering::Relaxed), 2, "clones begin there");
        server.abort();
        let _ = server.await;
        assert_eq!(peer(&failover.connect().await.unwrap()), second);
    }

    #[tokio::test]
    async fn failure_names_every_address() {
        let (closed, refused) = listener().await;
        drop(closed);
        let (_suspended, silent) = listener().await;
        let failover = Failover::new(Connector::new(None), &[refused.clone(), silent.clone()]).unwrap();
        let error = failover.connect().await.unwrap_err().to_string();
        assert!(error.contains(&format!("{refused}: Connection refused")), "{error}");
        assert!(error.contains(&format!("{silent}: accepted the connection and did not answer")), "{error}");
    }
}
