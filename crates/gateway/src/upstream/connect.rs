//! Upstream TCP connections.

use crate::routes::Endpoint;
use gantry_transport::BoxError;
use hyper_util::rt::TokioIo;
use std::{io, time::Duration};
use tokio::net::TcpStream;

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
    Ok(TokioIo::new(stream))
}
