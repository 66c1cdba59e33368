//! Client connections: HTTP/1.1 and HTTP/2 without TLS.

use super::Worker;
use crate::body::ResponseBody;
use http::{HeaderValue, Request, Response, Version, header};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use std::{
    convert::Infallible,
    net::TcpStream,
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

impl Worker {
    pub(super) async fn connection(self: Arc<Self>, stream: TcpStream) {
        self.shared.metrics.connections.inc();
        self.serve(stream).await;
        self.shared.metrics.connections.dec();
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    async fn serve(self: &Arc<Self>, stream: TcpStream) {
        let Ok(stream) = tokio::net::TcpStream::from_std(stream) else {
            return;
        };
        let _ = stream.set_nodelay(true);
        let config = &self.shared.config;
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(config.header_timeout)
            .max_buf_size(config.max_headers.max(8192))
            .max_headers(128);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_header_list_size(u32::try_from(config.max_headers).unwrap_or(u32::MAX))
            .max_concurrent_streams(1000)
            // Rapid-reset protection.
            .max_pending_accept_reset_streams(Some(20))
            .max_local_error_reset_streams(Some(64))
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(8 << 20)
            .max_frame_size(1 << 18)
            .keep_alive_interval(Some(Duration::from_secs(30)))
            .keep_alive_timeout(Duration::from_secs(20));
        let service = service_fn(|request| {
            let worker = Arc::clone(self);
            async move { Ok::<_, Infallible>(worker.answer_on(request).await) }
        });
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
        let ended = tokio::select! {
            biased;
            ended = connection.as_mut() => ended,
            () = self.shared.stopping.cancelled() => {
                let lingering = tokio::time::timeout(config.linger, connection.as_mut());
                if let Ok(ended) = lingering.await {
                    ended
                } else {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "connection closed with an error");
        }
    }

    /// During shutdown HTTP/1 responses carry `connection: close`.
    async fn answer_on(self: Arc<Self>, request: Request<Incoming>) -> Response<ResponseBody> {
        let (shared, version) = (Arc::clone(&self.shared), request.version());
        let mut response = self.answer(request).await;
        // HTTP/2 sends GOAWAY instead.
        if shared.is_stopping.load(Ordering::Relaxed) && version < Version::HTTP_2 {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}
