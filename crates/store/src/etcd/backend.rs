//! The store of a leader, for a caller that blocks.

use super::lease::Lease;
use super::session::Session;
use crate::store::Backend;
use crate::{Change, StoreError, Table};
use std::sync::Arc;
use std::sync::mpsc;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::Mutex;

/// A runtime that ends without waiting, also where blocking is not allowed.
#[derive(Debug)]
pub(super) struct Background(Option<Runtime>);

impl Background {
    /// A thread of its own, so that nothing else delays the renewals of a lease.
    pub(super) fn start() -> std::io::Result<Arc<Self>> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(4)
            .thread_name("etcd")
            .enable_all()
            .build()?;
        Ok(Arc::new(Self(Some(runtime))))
    }

    pub(super) fn handle(&self) -> Option<&Handle> {
        self.0.as_ref().map(Runtime::handle)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

#[derive(Debug)]
pub(super) struct EtcdStore {
    pub(super) epoch: u64,
    pub(super) state_id: u64,
    pub(super) lease: Arc<Lease>,
    pub(super) session: Arc<Mutex<Session>>,
    pub(super) background: Arc<Background>,
}

impl EtcdStore {
    /// Runs on the background thread. Every call in it has a deadline, so it ends.
    fn block_on<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let gone = || StoreError::Lost { reason: "the process is stopping".into(), unknown: true };
        let (sender, receiver) = mpsc::sync_channel(1);
        let handle = self.background.handle().ok_or_else(gone)?;
        handle.spawn(async move {
            // The caller waits for it.
            let _ = sender.send(work.await);
        });
        receiver.recv().unwrap_or_else(|_| Err(gone()))
    }
}

impl Backend for EtcdStore {
    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn state_id(&self) -> u64 {
        self.state_id
    }

    fn read(&self, table: Table) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let session = Arc::clone(&self.session);
        self.block_on(async move { session.lock().await.records(table).await })
    }

    fn commit(&self, changes: &[Change]) -> Result<(), StoreError> {
        let (session, changes) = (Arc::clone(&self.session), changes.to_vec());
        self.block_on(async move { session.lock().await.commit(&changes).await })
    }

    fn check(&self) -> Result<(), StoreError> {
        self.lease.left().map(drop)
    }
}
