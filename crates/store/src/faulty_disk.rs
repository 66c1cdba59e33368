//! In-memory disk with fault injection, for tests and simulation.
//!
//! Deterministic for the same calls and seeds. As on a real disk, a crash may lose unsynced writes completely or partially.
//!
//! ```
//! use gantry_store::{Change, Table, faulty_disk::Disk};
//! let disk = Disk::new();
//! let store = disk.open()?;
//! store.commit(&[Change { table: Table::Models, key: "iris".into(), value: Some(b"1".to_vec()) }])?;
//! disk.crash(7);
//! assert_eq!(disk.open()?.read(Table::Models)?.len(), 1);
//! # Ok::<(), gantry_store::StoreError>(())
//! ```

use std::io::{Error, ErrorKind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redb::StorageBackend;

use crate::{Storage, Store, StoreError};

/// Atomic write unit: writes are torn at sector boundaries, the last one anywhere.
const SECTOR: usize = 512;

/// How a write fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `ENOSPC`.
    Full,
    /// `EIO`.
    Broken,
}

impl Fault {
    fn error(self) -> Error {
        match self {
            Self::Full => Error::from(ErrorKind::StorageFull),
            Self::Broken => Error::other("input/output error"),
        }
    }
}

/// A disk with one file. Clones are the same disk.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Survives a crash.
    synced: Vec<u8>,
    /// Visible to readers.
    seen: Vec<u8>,
    /// Unsynced changes, in order.
    pending: Vec<Pending>,
    /// Incremented by crashes and kills; invalidates older handles.
    generation: u64,
    open: bool,
    failing: Option<Fault>,
    /// Writes that succeed before `failing` applies.
    good_writes: u64,
    failing_syncs: Option<Fault>,
    room: Option<usize>,
    writes: u64,
    syncs: u64,
}

#[derive(Debug)]
enum Pending {
    Write(usize, Vec<u8>),
    Length(usize),
}

impl Disk {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn with(file: Vec<u8>) -> Self {
        let disk = Self::new();
        let mut inner = disk.lock();
        inner.seen.clone_from(&file);
        inner.synced = file;
        drop(inner);
        disk
    }

    /// Opens the store on the disk; one handle at a time.
    pub fn open(&self) -> Result<Store, StoreError> {
        Store::open_with(self.clone())
    }

    /// Power failure: unsynced changes are lost, kept or torn depending on the seed. Invalidates handles and clears faults.
    pub fn crash(&self, seed: u64) {
        let mut inner = self.lock();
        let mut rng = fastrand::Rng::with_seed(seed);
        let survivors = survivors(&inner.pending, &mut rng);
        let mut file = std::mem::take(&mut inner.synced);
        for change in &survivors {
            apply(&mut file, change);
        }
        let (writes, syncs, generation) = (inner.writes, inner.syncs, inner.generation + 1);
        *inner = Inner { seen: file.clone(), synced: file, generation, writes, syncs, ..Inner::default() };
    }

    /// Loss of the disk: it is replaced by an empty one. Invalidates handles and clears faults.
    pub fn wipe(&self) {
        let mut inner = self.lock();
        let (writes, syncs, generation) = (inner.writes, inner.syncs, inner.generation + 1);
        *inner = Inner { generation, writes, syncs, ..Inner::default() };
    }

    /// Process kill: everything written stays; handles are invalidated.
    pub fn kill(&self) {
        let mut inner = self.lock();
        inner.generation += 1;
        inner.open = false;
    }

    /// Makes every write and growth fail.
    pub fn fail_writes(&self, fault: Fault) {
        self.fail_writes_after(0, fault);
    }

    /// Makes every write fail after `good` successful ones.
    pub fn fail_writes_after(&self, good: u64, fault: Fault) {
        let mut inner = self.lock();
        inner.failing = Some(fault);
        inner.good_writes = good;
    }

    /// Makes every sync fail; earlier writes stay unsynced.
    pub fn fail_syncs(&self, fault: Fault) {
        self.lock().failing_syncs = Some(fault);
    }

    /// Limits the file size.
    pub fn limit(&self, bytes: usize) {
        self.lock().room = Some(bytes);
    }

    /// Clears all faults.
    pub fn heal(&self) {
        let mut inner = self.lock();
        inner.failing = None;
        inner.failing_syncs = None;
        inner.room = None;
    }

    /// Flips one bit (0 to 7) of one byte; ignored beyond the end.
    pub fn flip_bit(&self, byte: usize, bit: u8) {
        let mut inner = self.lock();
        let Inner { seen, synced, .. } = &mut *inner;
        for file in [seen, synced] {
            if let Some(byte) = file.get_mut(byte) {
                *byte ^= 1 << (bit % 8);
            }
        }
    }

    pub fn truncate(&self, bytes: usize) {
        let mut inner = self.lock();
        inner.seen.truncate(bytes);
        inner.synced.truncate(bytes);
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.lock().seen.clone()
    }

    /// Total writes.
    pub fn writes(&self) -> u64 {
        self.lock().writes
    }

    /// Total syncs.
    pub fn syncs(&self) -> u64 {
        self.lock().syncs
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Storage for Disk {
    type Backend = Handle;

    fn open(&self) -> Result<Handle, Error> {
        let mut inner = self.lock();
        if inner.open {
            return Err(Error::from(ErrorKind::ResourceBusy));
        }
        inner.open = true;
        Ok(Handle { disk: self.clone(), generation: inner.generation })
    }

    fn name(&self) -> PathBuf {
        PathBuf::from("state.redb")
    }
}

/// An open handle of a [`Disk`].
#[derive(Debug)]
pub struct Handle {
    disk: Disk,
    generation: u64,
}

impl Handle {
    fn inner(&self) -> Result<MutexGuard<'_, Inner>, Error> {
        let inner = self.disk.lock();
        if inner.generation == self.generation { Ok(inner) } else { Err(Error::other("the disk crashed")) }
    }
}

impl Inner {
    fn write_fails(&mut self, end: usize) -> Result<(), Error> {
        self.writes += 1;
        if let Some(fault) = self.failing {
            if self.good_writes == 0 {
                return Err(fault.error());
            }
            self.good_writes -= 1;
        }
        match self.room {
            Some(room) if end > room && end > self.seen.len() => Err(Fault::Full.error()),
            _ => Ok(()),
        }
    }
}

impl StorageBackend for Handle {
    fn len(&self) -> Result<u64, Error> {
        Ok(self.inner()?.seen.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        let inner = self.inner()?;
        let start = to_offset(offset)?;
        let from = start.checked_add(out.len()).and_then(|end| inner.seen.get(start..end));
        out.copy_from_slice(from.ok_or_else(|| Error::from(ErrorKind::UnexpectedEof))?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<(), Error> {
        let mut inner = self.inner()?;
        let len = to_offset(len)?;
        if len > inner.seen.len() {
            inner.write_fails(len)?;
        }
        let change = Pending::Length(len);
        apply(&mut inner.seen, &change);
        inner.pending.push(change);
        Ok(())
    }

    fn sync_data(&self) -> Result<(), Error> {
        let mut inner = self.inner()?;
        inner.syncs += 1;
        if let Some(fault) = inner.failing_syncs {
            return Err(fault.error());
        }
        let mut synced = std::mem::take(&mut inner.synced);
        for change in inner.pending.drain(..) {
            apply(&mut synced, &change);
        }
        inner.synced = synced;
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        let mut inner = self.inner()?;
        let start = to_offset(offset)?;
        let end = start.checked_add(data.len()).ok_or_else(|| Error::from(ErrorKind::FileTooLarge))?;
        inner.write_fails(end)?;
        let change = Pending::Write(start, data.to_vec());
        apply(&mut inner.seen, &change);
        inner.pending.push(change);
        Ok(())
    }

    fn close(&self) -> Result<(), Error> {
        if let Ok(mut inner) = self.inner() {
            inner.open = false;
        }
        Ok(())
    }
}

fn to_offset(offset: u64) -> Result<usize, Error> {
    usize::try_from(offset).map_err(|_| Error::from(ErrorKind::FileTooLarge))
}

fn apply(file: &mut Vec<u8>, change: &Pending) {
    match change {
        Pending::Length(len) => file.resize(*len, 0),
        Pending::Write(start, data) => {
            let end = start + data.len();
            if file.len() < end {
                file.resize(end, 0);
            }
            if let Some(place) = file.get_mut(*start..end) {
                place.copy_from_slice(data);
            }
        }
    }
}

/// The unsynced changes that survive a crash.
fn survivors(pending: &[Pending], rng: &mut fastrand::Rng) -> Vec<Pending> {
    match rng.usize(..4) {
        // None.
        0 => Vec::new(),
        // A prefix, with its last write torn.
        1 => {
            let mut left = rng.usize(..=pending.len());
            let mut kept = Vec::new();
            for change in pending {
                match change {
                    _ if left > 0 => {
                        kept.push(change.copy());
                        left -= 1;
                    }
                    Pending::Write(start, data) => {
                        let cut = rng.usize(..=data.len());
                        kept.push(Pending::Write(*start, data.iter().take(cut).copied().collect()));
                        break;
                    }
                    Pending::Length(_) => break,
                }
            }
            kept
        }
        // Arbitrary sectors.
        2 => {
            let chance = 1 + rng.usize(..7);
            let mut kept = Vec::new();
            for change in pending {
                match change {
                    // Length changes always survive, so that the file has a requested length.
                    Pending::Length(len) => kept.push(Pending::Length(*len)),
                    Pending::Write(start, data) => {
                        let mut at = *start;
                        for sector in sectors(*start, data) {
                            if rng.usize(..8) < chance {
                                kept.push(Pending::Write(at, sector.to_vec()));
                            }
                            at += sector.len();
                        }
                    }
                }
            }
            kept
        }
        // All.
        _ => pending.iter().map(Pending::copy).collect(),
    }
}

/// Splits a write at sector boundaries.
fn sectors(start: usize, data: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (head, tail) = data.split_at(data.len().min((SECTOR - start % SECTOR) % SECTOR));
    std::iter::once(head).filter(|head| !head.is_empty()).chain(tail.chunks(SECTOR))
}

impl Pending {
    fn copy(&self) -> Self {
        match self {
            Self::Write(start, data) => Self::Write(*start, data.clone()),
            Self::Length(len) => Self::Length(*len),
        }
    }
}
