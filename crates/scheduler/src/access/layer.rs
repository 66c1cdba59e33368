//! Applies the table to each call, and audits changes and denials.

use super::{
    Guard, RoleLabel,
    caller::Caller,
    role::Identity,
    table::{Decision, Effect, Port, decide},
};
use crate::audit::{Pending, Source};
use futures::future::BoxFuture;
use gantry_tls::{ConnectInfo, Peer};
use http::{Request, Response};
use std::{
    net::SocketAddr,
    task::{Context, Poll},
};
use tonic::{Code, Status, service::Routes, transport::server::TcpConnectInfo};
use tower::{Layer, Service};

/// The services of a port, behind the guard.
pub(crate) fn guarded(routes: Routes, port: Port, guard: Guard) -> Routes {
    routes.into_axum_router().layer(GuardLayer { port, guard }).into()
}

#[derive(Clone)]
struct GuardLayer {
    port: Port,
    guard: Guard,
}

impl<S> Layer<S> for GuardLayer {
    type Service = Guarded<S>;

    fn layer(&self, inner: S) -> Guarded<S> {
        Guarded { inner, layer: self.clone() }
    }
}

#[derive(Clone)]
struct Guarded<S> {
    inner: S,
    layer: GuardLayer,
}

impl<S, B, R> Service<Request<B>> for Guarded<S>
where
    S: Service<Request<B>, Response = Response<R>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    R: Default + Send + 'static,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<R>, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let GuardLayer { port, guard } = &self.layer;
        let (peer, address) = peer(request.extensions());
        let identity = Identity::of(&peer, guard.trust);
        let rpc = request.uri().path().trim_start_matches('/').to_owned();
        let decision = decide(*port, &rpc, &identity);
        let source = Source { identity: identity.name.clone(), role: identity.role(), address, rpc };
        let effect = match decision {
            Decision::Allowed(effect) => effect,
            // The router answers, and knows no more RPCs than the table.
            Decision::Unknown if identity.role() == "all" => Effect::Read,
            Decision::Unknown => return answer(Status::unimplemented("")),
            Decision::Denied(message) => {
                guard.denied(&source, &message);
                if let Some(pending) = guard.pending_denial(source, Caller::new(identity)) {
                    pending.finish(Code::PermissionDenied, &message);
                }
                return answer(Status::permission_denied(message));
            }
        };
        let caller = Caller::new(identity);
        request.extensions_mut().insert(caller.clone());
        let pending = match &guard.shared.audit {
            Some(audit) if effect == Effect::Change => Some(audit.pending(source.clone(), caller.clone(), 0)),
            _ => None,
        };
        let guard = guard.clone();
        let called = self.inner.call(request);
        Box::pin(async move {
            let response = called.await?;
            // A rejected call has its status in the response; that of a successful one follows the messages.
            let rejected = response.extensions().get::<Status>();
            let (code, message) = rejected.map_or((Code::Ok, ""), |status| (status.code(), status.message()));
            let is_denied = code == Code::PermissionDenied;
            if is_denied {
                guard.denied(&source, message);
            }
            match pending {
                Some(pending) => pending.finish(code, message),
                None if is_denied => {
                    if let Some(pending) = guard.pending_denial(source, caller) {
                        pending.finish(code, message);
                    }
                }
                None => {}
            }
            Ok(response)
        })
    }
}

fn answer<R: Default + Send + 'static, E: Send + 'static>(
    status: Status,
) -> BoxFuture<'static, Result<Response<R>, E>> {
    Box::pin(std::future::ready(Ok(status.into_http())))
}

fn peer(extensions: &http::Extensions) -> (Peer, Option<SocketAddr>) {
    match extensions.get::<ConnectInfo>() {
        Some(info) => (info.peer.clone(), info.remote),
        None => (Peer::Anonymous, extensions.get::<TcpConnectInfo>().and_then(TcpConnectInfo::remote_addr)),
    }
}

impl Guard {
    /// Counts and logs a denied call. The log is rate-limited, so that a caller cannot fill it.
    fn denied(&self, source: &Source, message: &str) {
        self.shared.denied.get_or_create(&RoleLabel { role: source.role }).inc();
        if let Some(suppressed) = self.shared.logged.admit() {
            let address = source.address.map(|a| a.to_string()).unwrap_or_default();
            tracing::warn!(rpc = %source.rpc, %address, suppressed, "call denied: {message}");
        }
    }

    fn pending_denial(&self, source: Source, caller: Caller) -> Option<Pending> {
        let audit = self.shared.audit.as_ref()?;
        let suppressed = self.shared.audited.admit()?;
        Some(audit.pending(source, caller, suppressed))
    }
}
