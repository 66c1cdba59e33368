//! The audit log: one JSON line for each change and each denied call.
//!
//! A call never waits for the disk: entries go through a bounded queue to a thread of their own. What does not fit, or
//! cannot be written, is counted in `gantry_scheduler_audit_dropped_total` and in the next line.

mod change;
mod entry;
mod file;

pub(crate) use change::{Change, Object};
pub(crate) use entry::{Pending, Source};

use crate::access::Caller;
use entry::Entry;
use file::RotatedFile;
use prometheus_client::{metrics::counter::Counter, registry::Registry};
use std::{
    io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

/// Entries that wait for the disk, and their size in bytes.
const QUEUE: usize = 4096;
const MAX_QUEUED: usize = 16 << 20;

/// Where the audit log is, and its limits.
#[derive(Clone, Debug)]
pub struct AuditSettings {
    pub file: PathBuf,
    /// Size in bytes at which a new file is started.
    pub max_size: u64,
    /// Number of files, the current one included; `FILE.1` is the latest of the others.
    pub max_files: u32,
}

enum Message {
    Entry(Box<Entry>),
    Stop,
}

#[derive(Debug, Default)]
struct Counts {
    written: Counter,
    dropped: Counter,
    /// Entries dropped since the last line.
    unreported: AtomicU64,
    /// Bytes in the queue.
    queued: AtomicUsize,
}

/// Takes entries. Clones share the file.
#[derive(Clone, Debug)]
pub struct AuditLog {
    queue: SyncSender<Message>,
    counts: Arc<Counts>,
}

/// The thread that writes the file.
#[derive(Debug)]
pub struct AuditWriter {
    queue: SyncSender<Message>,
    thread: thread::JoinHandle<()>,
}

impl AuditLog {
    /// Opens the file for appending; it is created if it is missing.
    pub fn open(settings: AuditSettings) -> io::Result<(Self, AuditWriter)> {
        let mut file = RotatedFile::new(settings);
        file.open()?;
        let (queue, entries) = sync_channel(QUEUE);
        let counts = Arc::<Counts>::default();
        let shared = counts.clone();
        let thread = thread::Builder::new()
            .name("audit".into())
            .spawn(move || run(&entries, &shared, |line| file.append(line)))?;
        Ok((Self { queue: queue.clone(), counts }, AuditWriter { queue, thread }))
    }

    /// Registers `audit_entries_total` and `audit_dropped_total`.
    pub(crate) fn register_metrics(&self, registry: &mut Registry) {
        let Counts { written, dropped, .. } = &*self.counts;
        registry.register("audit_entries", "Entries written to the audit log", written.clone());
        registry.register(
            "audit_dropped",
            "Entries missing from the audit log, because the disk is full or too slow",
            dropped.clone(),
        );
    }

    /// An entry whose result is not known yet.
    pub(crate) fn pending(&self, source: Source, caller: Caller, suppressed: u64) -> Pending {
        Pending::new(self.clone(), source, caller, suppressed)
    }

    fn write(&self, entry: Entry) {
        let size = entry.size();
        let fits = self.counts.queued.fetch_add(size, Ordering::Relaxed) <= MAX_QUEUED;
        if !fits || self.queue.try_send(Message::Entry(Box::new(entry))).is_err() {
            self.counts.queued.fetch_sub(size, Ordering::Relaxed);
            self.counts.drop_entry();
        }
    }
}

impl AuditWriter {
    /// Writes what is queued; gives up after the limit, when the disk does not respond.
    pub async fn finish(self, limit: Duration) {
        let (done, finished) = tokio::sync::oneshot::channel();
        // Not on a thread of the runtime, whose end would wait for it.
        let waiting = thread::Builder::new().name("audit-end".into()).spawn(move || {
            let _ = self.queue.send(Message::Stop);
            let _ = self.thread.join();
            let _ = done.send(());
        });
        if waiting.is_ok() && tokio::time::timeout(limit, finished).await.is_err() {
            tracing::error!("the last entries of the audit log are not written: the disk does not respond");
        }
    }
}

impl Counts {
    fn drop_entry(&self) {
        self.dropped.inc();
        self.unreported.fetch_add(1, Ordering::Relaxed);
    }
}

fn run(entries: &Receiver<Message>, counts: &Counts, mut append: impl FnMut(&[u8]) -> io::Result<()>) {
    let mut is_failing = false;
    while let Ok(Message::Entry(entry)) = entries.recv() {
        counts.queued.fetch_sub(entry.size(), Ordering::Relaxed);
        let dropped = counts.unreported.swap(0, Ordering::Relaxed);
        match append(&entry.line(dropped)) {
            Ok(()) => {
                counts.written.inc();
                if std::mem::take(&mut is_failing) {
                    tracing::info!("the audit log is written again");
                }
            }
            Err(error) => {
                counts.unreported.fetch_add(dropped, Ordering::Relaxed);
                counts.drop_entry();
                if !std::mem::replace(&mut is_failing, true) {
                    tracing::error!(%error, "the audit log cannot be written: entries are dropped and counted");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
