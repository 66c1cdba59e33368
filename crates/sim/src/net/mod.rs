//! The simulated network and its faults.

mod connection;

pub(crate) use connection::Stream;

use crate::rng;
use connection::{Connection, Side};
use fastrand::Rng;
use http::Uri;
use hyper_util::rt::TokioIo;
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll},
    time::Duration,
};
use tokio::sync::mpsc;

/// Such as `scheduler`, `alpha-0` or `gateway-1`.
pub(crate) type Host = Arc<str>;

/// Connections waiting for accept.
const BACKLOG: usize = 128;
const SYN_RETRY: Duration = Duration::from_secs(1);

/// Shared between clones.
#[derive(Clone, Debug)]
pub(crate) struct Net {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug)]
struct Inner {
    rng: Rng,
    listeners: BTreeMap<(Host, &'static str), mpsc::Sender<io::Result<Stream>>>,
    connections: Vec<Link>,
    /// One-way partitions: from, to.
    blocked: BTreeSet<(Host, Host)>,
    /// Extra latency: from, to.
    slow: BTreeMap<(Host, Host), Duration>,
    /// Hosts that do not refuse connections either.
    silent: BTreeSet<Host>,
}

#[derive(Debug)]
struct Link {
    client: Host,
    server: Host,
    connection: Weak<Connection>,
    /// From client to server and back, without faults.
    latency: (Duration, Duration),
}

impl Link {
    fn side_of(&self, host: &str) -> Option<Side> {
        match host {
            h if *h == *self.client => Some(Side::Client),
            h if *h == *self.server => Some(Side::Server),
            _ => None,
        }
    }

    fn is_between(&self, a: &str, b: &str) -> bool {
        self.side_of(a).is_some() && self.side_of(b).is_some()
    }
}

impl Net {
    pub(crate) fn new(seed: u64) -> Self {
        let inner = Inner {
            rng: rng::seeded(seed, "net"),
            listeners: BTreeMap::new(),
            connections: Vec::new(),
            blocked: BTreeSet::new(),
            slow: BTreeMap::new(),
            silent: BTreeSet::new(),
        };
        Self { inner: Arc::new(Mutex::new(inner)) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces an earlier listener on the port.
    pub(crate) fn listen(&self, host: &Host, port: &'static str) -> mpsc::Receiver<io::Result<Stream>> {
        let (sender, receiver) = mpsc::channel(BACKLOG);
        let mut inner = self.lock();
        inner.silent.remove(host);
        inner.listeners.insert((host.clone(), port), sender);
        receiver
    }

    /// Waits while the host is unreachable: the caller has a timeout.
    pub(crate) async fn connect(&self, from: &Host, to: &Host, port: &'static str) -> io::Result<Stream> {
        loop {
            let reachable = {
                let inner = self.lock();
                let open = |a: &Host, b: &Host| !inner.blocked.contains(&(a.clone(), b.clone()));
                open(from, to) && open(to, from) && !inner.silent.contains(to)
            };
            if reachable {
                break;
            }
            tokio::time::sleep(SYN_RETRY).await;
        }
        let (stream, trip) = {
            let mut inner = self.lock();
            let inner = &mut *inner;
            let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
            let listener = inner.listeners.get(&(to.clone(), port)).ok_or_else(refused)?;
            // The observer has no latency.
            let takes = if **from == *OBSERVER { 0 } else { inner.rng.u64(1..=4) };
            let latency = (Duration::from_millis(takes), Duration::from_millis(takes));
            let extra =
                |a: &Host, b: &Host| inner.slow.get(&(a.clone(), b.clone())).copied().unwrap_or_default();
            let (there, back) = (latency.0 + extra(from, to), latency.1 + extra(to, from));
            let (connection, client, server) = Connection::open(there, back);
            listener.try_send(Ok(server)).map_err(|_| refused())?;
            inner.connections.retain(|link| link.connection.strong_count() > 0);
            inner.connections.push(Link {
                client: from.clone(),
                server: to.clone(),
                connection: Arc::downgrade(&connection),
                latency,
            });
            (client, there + back)
        };
        if !trip.is_zero() {
            tokio::time::sleep(trip).await;
        }
        Ok(stream)
    }

    /// A connector for tonic.
    pub(crate) fn dialer(&self, from: &Host, to: &Host, port: &'static str) -> Dialer {
        Dialer { net: self.clone(), from: from.clone(), to: to.clone(), port }
    }

    fn each_between(&self, a: &str, b: &str, mut act: impl FnMut(&Link, &Connection)) {
        let inner = self.lock();
        for known in inner.connections.iter().filter(|known| known.is_between(a, b)) {
            if let Some(connection) = known.connection.upgrade() {
                act(known, &connection);
            }
        }
    }

    /// Starts a one-way partition; data in flight is delayed until it ends.
    pub(crate) fn block(&self, from: &Host, to: &Host) {
        self.lock().blocked.insert((from.clone(), to.clone()));
        self.each_between(from, to, |known, connection| {
            if let Some(side) = known.side_of(from) {
                connection.hold(side, true);
            }
        });
    }

    pub(crate) fn unblock(&self, from: &Host, to: &Host) {
        self.lock().blocked.remove(&(from.clone(), to.clone()));
        self.each_between(from, to, |known, connection| {
            if let Some(side) = known.side_of(from) {
                connection.hold(side, false);
            }
        });
    }

    /// Resets the connections between two hosts.
    pub(crate) fn cut(&self, a: &str, b: &str) {
        self.each_between(a, b, |_, connection| connection.cut());
    }

    /// Makes the connections between two hosts half-open.
    pub(crate) fn freeze(&self, a: &str, b: &str) {
        self.each_between(a, b, |_, connection| connection.freeze());
    }

    /// Loses the next responses between two hosts.
    pub(crate) fn lose_replies(&self, a: &str, b: &str, ends_after: Duration) {
        self.each_between(a, b, |_, connection| connection.lose_replies(ends_after));
    }

    /// Sets the extra latency between two hosts.
    pub(crate) fn slow_down(&self, a: &Host, b: &Host, extra: Duration) {
        {
            let mut inner = self.lock();
            inner.slow.insert((a.clone(), b.clone()), extra);
            inner.slow.insert((b.clone(), a.clone()), extra);
        }
        self.each_between(a, b, |known, connection| {
            connection.set_latency(Side::Client, known.latency.0 + extra);
            connection.set_latency(Side::Server, known.latency.1 + extra);
        });
    }

    /// The host refuses connections again instead of dropping them.
    pub(crate) fn revive(&self, host: &Host) {
        self.lock().silent.remove(host);
    }

    /// Kills the processes of a host. `silently`: without resets, as after a power failure.
    pub(crate) fn kill(&self, host: &Host, silently: bool) {
        let mut inner = self.lock();
        inner.listeners.retain(|(h, _), _| h != host);
        if silently {
            inner.silent.insert(host.clone());
        }
        for known in &inner.connections {
            if let (Some(side), Some(connection)) = (known.side_of(host), known.connection.upgrade()) {
                connection.kill(side, silently && *known.client != *OBSERVER);
            }
        }
    }
}

/// The host of the invariant checks: no latency, no faults.
pub(crate) const OBSERVER: &str = "observer";

/// Connects tonic's channels over the network.
#[derive(Clone, Debug)]
pub(crate) struct Dialer {
    net: Net,
    from: Host,
    to: Host,
    port: &'static str,
}

impl tower_service::Service<Uri> for Dialer {
    type Response = TokioIo<Stream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<Stream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let this = self.clone();
        Box::pin(async move { Ok(TokioIo::new(this.net.connect(&this.from, &this.to, this.port).await?)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        time::timeout,
    };

    #[tokio::test(start_paused = true)]
    async fn a_one_way_block_holds_one_way() {
        let (net, a, b): (_, Host, Host) = (Net::new(1), "a".into(), "b".into());
        assert!(net.connect(&a, &b, "x").await.is_err());
        let mut incoming = net.listen(&b, "x");
        let mut client = net.connect(&a, &b, "x").await.unwrap();
        let mut server = incoming.recv().await.unwrap().unwrap();
        net.block(&a, &b);
        server.write_all(b"1").await.unwrap();
        assert_eq!(client.read_u8().await.unwrap(), b'1');
        client.write_all(b"2").await.unwrap();
        let minute = Duration::from_mins(1);
        assert!(timeout(minute, server.read_u8()).await.is_err());
        assert!(timeout(minute, net.connect(&a, &b, "x")).await.is_err());
        net.unblock(&a, &b);
        assert_eq!(server.read_u8().await.unwrap(), b'2');
        net.kill(&b, true);
        assert!(server.read_u8().await.is_err());
        assert!(timeout(minute, client.read_u8()).await.is_err());
        assert!(timeout(minute, net.connect(&a, &b, "x")).await.is_err());
    }
}
