//! The dashboard on the admin port: what this process measures, and its inference port.

use super::admin_server::AdminServer;
use crate::{
    address::Address,
    http_client::{Connection, HttpError},
};
use axum::Router;
use bytes::Bytes;
use futures::{FutureExt as _, future::BoxFuture};
use gantry_dashboard::{Settings, Source};
use http::{Request, Response};
use serde_json::Value;
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::sync::Semaphore;
use tonic::transport::Channel;

/// Requests of forms in flight; further ones wait for their turn within their deadline.
const MAX_REQUESTS: usize = 16;

/// The pages at `/`.
pub struct AdminDashboard {
    /// To the scheduler.
    pub channel: Channel,
    /// Where this process serves inference.
    pub inference: SocketAddr,
    /// Deadline of a request of a form.
    pub timeout: Duration,
    /// Whether the pages may change objects.
    pub actions: bool,
    pub auth_required: bool,
}

struct AdminSource {
    admin: Arc<AdminServer>,
    inference: String,
    timeout: Duration,
    requests: Arc<Semaphore>,
}

impl AdminDashboard {
    pub(super) fn router(self, admin: Arc<AdminServer>) -> Router {
        let mut at = self.inference;
        if at.ip().is_unspecified() {
            at.set_ip(super::listen::loopback(at.ip()));
        }
        let inference = at.to_string();
        let settings = Settings {
            inference: inference.clone(),
            actions: self.actions,
            auth_required: self.auth_required,
            remote: admin.logs.remote,
        };
        let requests = Arc::new(Semaphore::new(MAX_REQUESTS));
        let source = AdminSource { admin, inference, timeout: self.timeout, requests };
        gantry_dashboard::router(self.channel, Arc::new(source), settings)
    }
}

impl Source for AdminSource {
    fn metrics(&self) -> String {
        self.admin.metrics().unwrap_or_default()
    }

    fn latencies(&self) -> Value {
        (self.admin.top)()
    }

    fn processes(&self) -> Value {
        self.admin.processes()
    }

    fn runs(&self, pipeline: &str) -> Option<Value> {
        (self.admin.runs)(pipeline)
    }

    /// Over a connection as any client has it: with the same authentication, limits and metrics.
    fn infer(&self, request: Request<Bytes>) -> BoxFuture<'static, Result<Response<Bytes>, String>> {
        let (at, timeout, requests) = (self.inference.clone(), self.timeout, Arc::clone(&self.requests));
        let sending = async move {
            let address = Address::parse(&at, 9000, "--inference").map_err(|error| error.message)?;
            let _turn = requests.acquire_owned().await.map_err(|error| error.to_string())?;
            let (parts, body) = request.into_parts();
            let mut connection = Connection::new(address, timeout);
            let sent = connection.send(parts.method, parts.uri.path(), &parts.headers, body).await;
            sent.map_err(|error| match error {
                HttpError::Refused => format!("no connection to the inference port at {at}"),
                HttpError::Timeout(after) => format!("no answer within {after:?}"),
                HttpError::Failed(reason) => reason,
            })
        };
        async move {
            let expired = |_| Err("too many requests of forms are in flight: send it again".to_owned());
            tokio::time::timeout(timeout + timeout, sending).await.unwrap_or_else(expired)
        }
        .boxed()
    }
}
