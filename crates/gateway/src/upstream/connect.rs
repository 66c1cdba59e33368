//! Upstream TCP connections.

use crate::routes::Endpoint;
use gantry_transport::BoxError;
use hyper_util::rt::TokioIo;
use socket2::{SockRef, TcpKeepalive};
use std::{io, time::Duration};
use tokio::net::TcpStream;

/// While a request waits for its response nothing is sent: keep-alive probes find out whether the peer exists.
const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(3);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEP_ALIVE_RETRIES: u32 = 3;
/// Unacknowledged data closes the connection after this time.
#[cfg(target_os = "linux")]
const USER_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) async fn connect(
    endpoint: &Endpoint,
    port: u16,
    limit: Duration,
) -> Result<TokioIo<TcpStream>, BoxError> {
    let connecting = TcpStream::connect((endpoint.host.as_str(), port));
    let stream = match tokio::time::timeout(limit, connecting).await {
        Ok(connected) => connected?,
        Err(_) => return Err(io::Error::new(io::ErrorKind::TimedOut, "connect timeout").into()),
    };
    stream.set_nodelay(true)?;
    detect_loss(&stream)?;
    Ok(TokioIo::new(stream))
}

/// Closes the connection when its peer acknowledges nothing: a lost node would hold each request to its deadline.
fn detect_loss(stream: &TcpStream) -> io::Result<()> {
    let socket = SockRef::from(stream);
    let keep_alive = TcpKeepalive::new()
        .with_time(KEEP_ALIVE_IDLE)
        .with_interval(KEEP_ALIVE_INTERVAL)
        .with_retries(KEEP_ALIVE_RETRIES);
    socket.set_tcp_keepalive(&keep_alive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn connections_detect_a_lost_peer() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        detect_loss(&stream).unwrap();
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), KEEP_ALIVE_IDLE);
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), KEEP_ALIVE_INTERVAL);
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), KEEP_ALIVE_RETRIES);
        #[cfg(target_os = "linux")]
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(USER_TIMEOUT));
        // Below the default deadline, and below the ten seconds after which the scheduler moves models.
        assert!(KEEP_ALIVE_IDLE + KEEP_ALIVE_INTERVAL * KEEP_ALIVE_RETRIES <= USER_TIMEOUT);
    }
}
