//! Client connections.

use super::{
    Worker,
    access::Access,
    client::{Client, Exchange},
    request_body,
};
use crate::body::ClientBody;
use gantry_transport::serve_connection;
use http::{Request, Response};
use hyper::body::{Body as _, Incoming};
use std::{
    net::TcpStream,
    sync::{Arc, atomic::Ordering},
};

impl Worker {
    pub(super) async fn connection(self: Arc<Self>, stream: TcpStream) {
        let shared = &self.shared;
        shared.metrics.connections.inc();
        if let Ok(stream) = tokio::net::TcpStream::from_std(stream) {
            let client = Client::new(&shared.memory);
            let handler = |request| Arc::clone(&self).handle_on_connection(request, Arc::clone(&client));
            serve_connection(&shared.http, stream, handler, &shared.stopping, shared.config.linger).await;
        }
        shared.metrics.connections.dec();
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    async fn handle_on_connection(
        self: Arc<Self>,
        request: Request<Incoming>,
        client: Arc<Client>,
    ) -> Response<ClientBody> {
        let mut exchange = Exchange { client, admitted: None, access: Access::default() };
        let response = self.handle(request, &mut exchange).await;
        let Exchange { client, admitted, .. } = exchange;
        response.map(|body| ClientBody::new(body, admitted, &client.memory))
    }

    /// Whether an HTTP/1 connection ends with this response: during shutdown, and after a request whose body was not
    /// read. HTTP/2 sends GOAWAY instead.
    pub(super) async fn closes(&self, body: &mut Incoming, expects_continue: bool) -> bool {
        if self.shared.is_stopping.load(Ordering::Relaxed) {
            return true;
        }
        !body.is_end_stream() && (expects_continue || !request_body::drain(body).await)
    }
}
