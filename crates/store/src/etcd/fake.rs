//! A simulated etcd of one member, for tests: its answers and effects fail on request.

use super::wire::{
    Compare, DeleteRangeRequest, DeleteRangeResponse, KeyValue, LeaseGrantRequest, LeaseGrantResponse,
    LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseRevokeRequest, LeaseRevokeResponse, PutRequest,
    PutResponse, RangeRequest, RangeResponse, RequestOp, ResponseHeader, ResponseOp, TxnRequest, TxnResponse,
    compare::TargetUnion, kv_server, lease_server, request_op::Request as Op,
    response_op::Response as Answer,
};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio_stream::StreamExt as _;
use tonic::{Request, Response, Status, Streaming};

/// What happens to a transaction that writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// It is lost on its way.
    Lost,
    /// It is applied, and the answer is lost.
    AnswerLost,
    /// It arrives later, at [`FakeEtcd::heal`].
    Late,
    /// It is applied and exceeds the space quota.
    LastInQuota,
    /// The space quota is used up.
    NoSpace,
    Refused,
    /// This and all further calls fail, until [`FakeEtcd::heal`].
    Down,
}

#[derive(Clone, Debug, Default)]
pub struct FakeEtcd {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    revision: i64,
    keys: BTreeMap<Vec<u8>, KeyValue>,
    /// Time to live and the end of each lease.
    leases: BTreeMap<i64, (Duration, Instant)>,
    granted: i64,
    faults: VecDeque<Fault>,
    late: Vec<TxnRequest>,
    down: bool,
    /// Writing transactions that were applied.
    applied: usize,
}

impl FakeEtcd {
    /// Serves on a free port of loopback; the address.
    pub async fn serve(&self) -> io::Result<SocketAddr> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let router = tonic::transport::Server::builder()
            .add_service(kv_server::KvServer::new(self.clone()).max_decoding_message_size(2 << 20))
            .add_service(lease_server::LeaseServer::new(self.clone()));
        let incoming = tonic::transport::server::TcpIncoming::from(listener).with_nodelay(Some(true));
        tokio::spawn(async move { router.serve_with_incoming(incoming).await });
        Ok(address)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The faults of the next transactions that write, in order.
    pub fn fail(&self, faults: impl IntoIterator<Item = Fault>) {
        self.lock().faults = faults.into_iter().collect();
    }

    /// Ends all faults, and applies what was late.
    pub fn heal(&self) {
        let mut state = self.lock();
        state.faults.clear();
        state.down = false;
        state.release();
    }

    /// Ends all leases, as time would.
    pub fn expire_leases(&self) {
        let mut state = self.lock();
        let leases: Vec<_> = state.leases.keys().copied().collect();
        for id in leases {
            state.revoke(id);
        }
    }

    /// Writing transactions that were applied so far.
    pub fn applied(&self) -> usize {
        self.lock().applied
    }

    /// Names of all keys.
    pub fn keys(&self) -> Vec<String> {
        self.lock().keys.keys().map(|key| String::from_utf8_lossy(key).into_owned()).collect()
    }
}

impl State {
    fn live(&mut self) -> Result<(), Status> {
        let now = Instant::now();
        let ended: Vec<_> =
            self.leases.iter().filter(|(_, (_, end))| *end <= now).map(|(id, _)| *id).collect();
        for id in ended {
            self.revoke(id);
        }
        if self.down { Err(Status::unavailable("etcdserver: no leader")) } else { Ok(()) }
    }

    fn revoke(&mut self, id: i64) {
        self.leases.remove(&id);
        self.revision += 1;
        self.keys.retain(|_, kv| kv.lease != id);
    }

    fn header(&self) -> ResponseHeader {
        ResponseHeader { revision: self.revision }
    }

    fn in_range(&self, key: &[u8], end: &[u8]) -> Vec<KeyValue> {
        if end.is_empty() {
            return self.keys.get(key).cloned().into_iter().collect();
        }
        self.keys.range(key.to_vec()..end.to_vec()).map(|(_, kv)| kv.clone()).collect()
    }

    fn range(&self, request: &RangeRequest) -> RangeResponse {
        let mut kvs = self.in_range(&request.key, &request.range_end);
        let count = kvs.len();
        if let Some(limit) = usize::try_from(request.limit).ok().filter(|limit| *limit > 0) {
            kvs.truncate(limit);
        }
        let more = kvs.len() < count;
        RangeResponse { header: Some(self.header()), kvs, more, count: count as i64 }
    }

    fn holds(&self, compare: &Compare) -> bool {
        let found = self.keys.get(compare.key.as_ref());
        match &compare.target_union {
            Some(TargetUnion::CreateRevision(revision)) => {
                found.map_or(0, |kv| kv.create_revision) == *revision
            }
            Some(TargetUnion::Value(value)) => found.is_some_and(|kv| kv.value == *value),
            None => false,
        }
    }

    fn put(&mut self, put: PutRequest) {
        let revision = self.revision;
        let created = self.keys.get(put.key.as_ref()).map_or(revision, |kv| kv.create_revision);
        let kv = KeyValue {
            key: put.key.clone(),
            create_revision: created,
            mod_revision: revision,
            value: put.value,
            lease: put.lease,
        };
        self.keys.insert(put.key.to_vec(), kv);
    }

    fn delete(&mut self, delete: &DeleteRangeRequest) {
        for kv in self.in_range(&delete.key, &delete.range_end) {
            self.keys.remove(kv.key.as_ref());
        }
    }

    fn apply(&mut self, request: TxnRequest) -> TxnResponse {
        let succeeded = request.compare.iter().all(|compare| self.holds(compare));
        let operations = if succeeded { request.success } else { request.failure };
        if operations.iter().any(writes) {
            self.revision += 1;
            self.applied += 1;
        }
        let mut responses = Vec::new();
        for operation in operations {
            responses.push(match operation.request {
                Some(Op::RequestRange(range)) => Answer::ResponseRange(self.range(&range)),
                Some(Op::RequestPut(put)) => {
                    self.put(put);
                    Answer::ResponsePut(PutResponse {})
                }
                Some(Op::RequestDeleteRange(delete)) => {
                    self.delete(&delete);
                    Answer::ResponseDeleteRange(DeleteRangeResponse {})
                }
                None => continue,
            });
        }
        let responses = responses.into_iter().map(|answer| ResponseOp { response: Some(answer) }).collect();
        TxnResponse { header: Some(self.header()), succeeded, responses }
    }

    fn release(&mut self) {
        for late in std::mem::take(&mut self.late) {
            self.apply(late);
        }
    }
}

fn writes(operation: &RequestOp) -> bool {
    matches!(operation.request, Some(Op::RequestPut(_) | Op::RequestDeleteRange(_)))
}

#[tonic::async_trait]
impl kv_server::Kv for FakeEtcd {
    async fn range(&self, request: Request<RangeRequest>) -> Result<Response<RangeResponse>, Status> {
        let mut state = self.lock();
        state.live()?;
        Ok(Response::new(state.range(request.get_ref())))
    }

    async fn txn(&self, request: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        let request = request.into_inner();
        let lost = || Status::unavailable("etcdserver: request timed out");
        let no_space = || Status::resource_exhausted("etcdserver: mvcc: database space exceeded");
        let mut state = self.lock();
        state.live()?;
        if request.success.len() > 128 {
            return Err(Status::invalid_argument("etcdserver: too many operations in txn request"));
        }
        let fault = state.faults.pop_front().unwrap_or(Fault::None);
        let answer = match fault {
            Fault::None => Ok(state.apply(request)),
            Fault::Lost => Err(lost()),
            Fault::AnswerLost => {
                state.apply(request);
                Err(lost())
            }
            Fault::Late => {
                state.late.push(request);
                return Err(lost());
            }
            Fault::LastInQuota => {
                state.apply(request);
                Err(no_space())
            }
            Fault::NoSpace => Err(no_space()),
            Fault::Refused => Err(Status::invalid_argument("etcdserver: request is too large")),
            Fault::Down => {
                state.down = true;
                Err(lost())
            }
        };
        answer.map(Response::new)
    }
}

#[tonic::async_trait]
impl lease_server::Lease for FakeEtcd {
    async fn lease_grant(
        &self,
        request: Request<LeaseGrantRequest>,
    ) -> Result<Response<LeaseGrantResponse>, Status> {
        let mut state = self.lock();
        state.live()?;
        state.granted += 1;
        let (id, ttl) = (state.granted, request.get_ref().ttl);
        let lasts = Duration::from_secs(ttl.unsigned_abs());
        state.leases.insert(id, (lasts, Instant::now() + lasts));
        Ok(Response::new(LeaseGrantResponse { header: Some(state.header()), id, ttl }))
    }

    async fn lease_revoke(
        &self,
        request: Request<LeaseRevokeRequest>,
    ) -> Result<Response<LeaseRevokeResponse>, Status> {
        let mut state = self.lock();
        state.live()?;
        state.revoke(request.get_ref().id);
        Ok(Response::new(LeaseRevokeResponse {}))
    }

    type LeaseKeepAliveStream =
        tokio_stream::Iter<std::vec::IntoIter<Result<LeaseKeepAliveResponse, Status>>>;

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        let mut requests = request.into_inner();
        let mut answers = Vec::new();
        while let Some(request) = requests.next().await {
            let id = request?.id;
            let mut state = self.lock();
            state.live()?;
            let ttl = state.leases.get_mut(&id).map_or(0, |(lasts, end)| {
                *end = Instant::now() + *lasts;
                lasts.as_secs() as i64
            });
            answers.push(Ok(LeaseKeepAliveResponse { header: Some(state.header()), id, ttl }));
        }
        Ok(Response::new(tokio_stream::iter(answers)))
    }
}
