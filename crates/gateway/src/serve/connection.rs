//! Client connections.

use super::Worker;
use crate::body::ResponseBody;
use gantry_transport::serve_connection;
use http::{HeaderValue, Request, Response, Version, header};
use hyper::body::Incoming;
use std::{
    net::TcpStream,
    sync::{Arc, atomic::Ordering},
};

impl Worker {
    pub(super) async fn connection(self: Arc<Self>, stream: TcpStream) {
        let shared = &self.shared;
        shared.metrics.connections.inc();
        if let Ok(stream) = tokio::net::TcpStream::from_std(stream) {
            let handler = |request| Arc::clone(&self).handle_on_connection(request);
            serve_connection(&shared.http, stream, handler, &shared.stopping, shared.config.linger).await;
        }
        shared.metrics.connections.dec();
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// During shutdown HTTP/1 responses carry `connection: close`.
    async fn handle_on_connection(self: Arc<Self>, request: Request<Incoming>) -> Response<ResponseBody> {
        let (shared, version) = (Arc::clone(&self.shared), request.version());
        let mut response = self.handle(request).await;
        // HTTP/2 sends GOAWAY instead.
        if shared.is_stopping.load(Ordering::Relaxed) && version < Version::HTTP_2 {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}
