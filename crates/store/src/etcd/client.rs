//! Calls to the members of an etcd cluster: each has a deadline, and the next one goes to another member after a failure.

use super::failure::Failure;
use super::metrics::Metrics;
use super::settings::Settings;
use super::wire::{
    AuthenticateRequest, AuthenticateResponse, LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest,
    LeaseKeepAliveResponse, LeaseRevokeRequest, LeaseRevokeResponse, RangeRequest, RangeResponse, TxnRequest,
    TxnResponse,
};
use gantry_tls::{Connector, diagnose};
use std::error::Error as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{AsciiMetadataValue, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

/// A page of records of the maximum size.
const MAX_MESSAGE: usize = 512 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Member {
    address: String,
    endpoint: Endpoint,
    channel: Mutex<Channel>,
}

#[derive(Debug)]
pub(super) struct Client {
    members: Vec<Member>,
    /// The member that answered last.
    current: AtomicUsize,
    connector: Connector,
    settings: Settings,
    token: Mutex<Option<AsciiMetadataValue>>,
    /// Runs the connections.
    background: Handle,
    pub(super) metrics: Arc<Metrics>,
}

impl Client {
    /// Connects at the first call. Requires a tokio runtime.
    pub(super) fn new(settings: Settings, metrics: Arc<Metrics>) -> Result<Self, String> {
        let connector = Connector::new(settings.tls.clone()).within(CONNECT_TIMEOUT);
        let mut members = Vec::new();
        for address in &settings.location.endpoints {
            let endpoint = gantry_tls::endpoint(address, settings.tls.as_ref())
                .map_err(|e| format!("member {address}: {e}"))?;
            let channel = Mutex::new(endpoint.connect_with_connector_lazy(connector.clone()));
            members.push(Member { address: address.clone(), endpoint, channel });
        }
        let (current, token) = (AtomicUsize::new(0), Mutex::new(None));
        let background = Handle::current();
        Ok(Self { members, current, connector, settings, token, background, metrics })
    }

    pub(super) const fn members(&self) -> usize {
        self.members.len()
    }

    /// Addresses of the members, for messages.
    pub(super) fn endpoints(&self) -> String {
        self.settings.location.endpoints.join(", ")
    }

    pub(super) async fn range(
        &self,
        request: RangeRequest,
        within: Duration,
    ) -> Result<RangeResponse, Failure> {
        self.unary("range", "/etcdserverpb.KV/Range", request, within).await
    }

    pub(super) async fn txn(&self, request: TxnRequest, within: Duration) -> Result<TxnResponse, Failure> {
        self.unary("txn", "/etcdserverpb.KV/Txn", request, within).await
    }

    pub(super) async fn grant(&self, ttl: Duration, within: Duration) -> Result<i64, Failure> {
        let ttl = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX);
        let request = LeaseGrantRequest { ttl, id: 0 };
        let granted: LeaseGrantResponse =
            self.unary("lease_grant", "/etcdserverpb.Lease/LeaseGrant", request, within).await?;
        Ok(granted.id)
    }

    pub(super) async fn revoke(&self, id: i64, within: Duration) -> Result<(), Failure> {
        let request = LeaseRevokeRequest { id };
        let path = "/etcdserverpb.Lease/LeaseRevoke";
        self.unary::<_, LeaseRevokeResponse>("lease_revoke", path, request, within).await.map(drop)
    }

    /// Renews a lease; returns its time to live, 0 if there is no such lease.
    pub(super) async fn keep_alive(&self, id: i64, within: Duration) -> Result<i64, Failure> {
        let request = LeaseKeepAliveRequest { id };
        // A stream of one message is encoded as a plain call.
        let renewed: LeaseKeepAliveResponse =
            self.unary("lease_keep_alive", "/etcdserverpb.Lease/LeaseKeepAlive", request, within).await?;
        Ok(renewed.ttl)
    }

    /// Calls the current member; once more if its token has expired.
    async fn unary<M, R>(
        &self,
        call: &'static str,
        path: &'static str,
        message: M,
        within: Duration,
    ) -> Result<R, Failure>
    where
        M: prost::Message + Clone + 'static,
        R: prost::Message + Default + 'static,
    {
        let mut again = self.settings.credentials.is_some();
        loop {
            let token = self.token(within).await?;
            match self.timed(call, path, prepared(message.clone(), token.as_ref(), within), within).await {
                Err(Failure::Unauthenticated(_)) if again => {
                    again = false;
                    *self.token.lock().unwrap_or_else(PoisonError::into_inner) = None;
                }
                Err(Failure::Unauthenticated(reason)) => return Err(not_authenticated(&reason)),
                result => return result,
            }
        }
    }

    async fn timed<M, R>(
        &self,
        call: &'static str,
        path: &'static str,
        request: Request<M>,
        within: Duration,
    ) -> Result<R, Failure>
    where
        M: prost::Message + 'static,
        R: prost::Message + Default + 'static,
    {
        let index = self.current.load(Ordering::Relaxed);
        let member = self.members.get(index).or_else(|| self.members.first());
        let Some(member) = member else { return Err(Failure::Unknown("no members".into())) };
        let channel = member.channel.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let started = Instant::now();
        let called = async {
            let mut grpc = Grpc::new(channel).max_decoding_message_size(MAX_MESSAGE);
            grpc.ready().await.map_err(|e| Status::unavailable(diagnose(&e)))?;
            let codec = ProstCodec::<M, R>::default();
            grpc.unary(request, PathAndQuery::from_static(path), codec).await
        };
        let result = match tokio::time::timeout(within, called).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(described(&status, &member.address)),
            Err(_) => {
                // The connection may lead nowhere: the next use of this member opens another one.
                let _context = self.background.enter();
                let fresh = member.endpoint.connect_with_connector_lazy(self.connector.clone());
                *member.channel.lock().unwrap_or_else(PoisonError::into_inner) = fresh;
                let within = within.as_secs_f64();
                Err(Failure::Unknown(format!("{} did not answer within {within:.1} s", member.address)))
            }
        };
        if let Err(Failure::Unknown(_)) = &result {
            let next = (index + 1) % self.members.len().max(1);
            // Another call may have moved on already.
            let _ = self.current.compare_exchange(index, next, Ordering::Relaxed, Ordering::Relaxed);
        }
        self.metrics.called(call, started.elapsed(), result.is_err());
        result
    }

    /// The token of the user, if there is one.
    async fn token(&self, within: Duration) -> Result<Option<AsciiMetadataValue>, Failure> {
        let Some(credentials) = &self.settings.credentials else { return Ok(None) };
        if let Some(token) = self.token.lock().unwrap_or_else(PoisonError::into_inner).clone() {
            return Ok(Some(token));
        }
        let request =
            AuthenticateRequest { name: credentials.user.clone(), password: credentials.password.clone() };
        let request = prepared(request, None, within);
        let answer: Result<AuthenticateResponse, _> =
            self.timed("authenticate", "/etcdserverpb.Auth/Authenticate", request, within).await;
        let answer = answer.map_err(|failure| match failure {
            Failure::Refused { reason, .. } | Failure::Unauthenticated(reason) => not_authenticated(&reason),
            other => other,
        })?;
        let token = MetadataValue::try_from(answer.token).map_err(|_| not_authenticated("invalid token"))?;
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = Some(token.clone());
        Ok(Some(token))
    }
}

fn not_authenticated(reason: &str) -> Failure {
    let reason = format!("{reason}: check GANTRY_ETCD_USER and GANTRY_ETCD_PASSWORD");
    Failure::Refused { reason, full: false }
}

fn prepared<M>(message: M, token: Option<&AsciiMetadataValue>, within: Duration) -> Request<M> {
    let mut request = Request::new(message);
    request.set_timeout(within);
    // A member without a leader answers at once instead of waiting for one.
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    if let Some(token) = token {
        request.metadata_mut().insert("token", token.clone());
    }
    request
}

/// Names the member, and explains failed connections.
fn described(status: &Status, address: &str) -> Failure {
    match Failure::of(status) {
        Failure::Unknown(text) => {
            let text = status.source().map_or(text, diagnose);
            Failure::Unknown(format!("{address}: {text}"))
        }
        other => other,
    }
}
