//! A disk in memory that fails on purpose. For tests and the simulated world; nothing else uses it.
//!
//! The same calls and the same seeds give the same bytes. What was written and not synced may be lost, in part or whole,
//! when the machine goes down, as on a real disk.
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

/// What a disk writes at once; a write is torn at these places, and the last one anywhere.
const SECTOR: usize = 512;

/// How a write fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// There is no room (`ENOSPC`).
    Full,
    /// The device failed (`EIO`).
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
    /// What survives a crash for certain.
    synced: Vec<u8>,
    /// What a reader sees.
    seen: Vec<u8>,
    /// What was asked since the last sync, in order.
    pending: Vec<Pending>,
    /// Counts the crashes: a handle from before the last one reaches nothing any more.
    lives: u64,
    open: bool,
    failing: Option<Fault>,
    /// Writes that still succeed before `failing` begins.
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
    /// An empty disk.
    pub fn new() -> Self {
        Self::default()
    }

    /// A disk that holds this file.
    pub fn with(file: Vec<u8>) -> Self {
        let disk = Self::new();
        let mut inner = disk.lock();
        inner.seen.clone_from(&file);
        inner.synced = file;
        drop(inner);
        disk
    }

    /// Opens the store that is on the disk; one handle at a time.
    pub fn open(&self) -> Result<Store, StoreError> {
        Store::open_with(self.clone())
    }

    /// The machine goes down: what was not synced is lost, kept or torn, as the seed says, and every open handle is
    /// dead. Faults end with it.
    pub fn crash(&self, seed: u64) {
        let mut inner = self.lock();
        let mut dice = Dice(seed);
        let survivors = survivors(&inner.pending, &mut dice);
        let mut file = std::mem::take(&mut inner.synced);
        for change in &survivors {
            apply(&mut file, change);
        }
        let (writes, syncs, lives) = (inner.writes, inner.syncs, inner.lives + 1);
        *inner = Inner { seen: file.clone(), synced: file, lives, writes, syncs, ..Inner::default() };
    }

    /// The process is killed and the machine goes on: everything written stays, every open handle is dead.
    pub fn kill(&self) {
        let mut inner = self.lock();
        inner.lives += 1;
        inner.open = false;
    }

    /// From now on every write and every growth fails like this.
    pub fn fail_writes(&self, fault: Fault) {
        self.fail_writes_after(0, fault);
    }

    /// The next `good` writes succeed, and all after them fail like this.
    pub fn fail_writes_after(&self, good: u64, fault: Fault) {
        let mut inner = self.lock();
        inner.failing = Some(fault);
        inner.good_writes = good;
    }

    /// From now on every sync fails like this. What was written before it stays in doubt.
    pub fn fail_syncs(&self, fault: Fault) {
        self.lock().failing_syncs = Some(fault);
    }

    /// The file cannot grow beyond this many bytes.
    pub fn limit(&self, bytes: usize) {
        self.lock().room = Some(bytes);
    }

    /// Ends every fault.
    pub fn heal(&self) {
        let mut inner = self.lock();
        inner.failing = None;
        inner.failing_syncs = None;
        inner.room = None;
    }

    /// Flips one bit (0 to 7) of one byte, on the platter and for every reader. Beyond the end it does nothing.
    pub fn flip_bit(&self, byte: usize, bit: u8) {
        let mut inner = self.lock();
        let Inner { seen, synced, .. } = &mut *inner;
        for file in [seen, synced] {
            if let Some(byte) = file.get_mut(byte) {
                *byte ^= 1 << (bit % 8);
            }
        }
    }

    /// Cuts the file off after this many bytes.
    pub fn truncate(&self, bytes: usize) {
        let mut inner = self.lock();
        inner.seen.truncate(bytes);
        inner.synced.truncate(bytes);
    }

    /// The file as a reader sees it now.
    pub fn bytes(&self) -> Vec<u8> {
        self.lock().seen.clone()
    }

    /// How many writes were asked for since the disk was made.
    pub fn writes(&self) -> u64 {
        self.lock().writes
    }

    /// How many syncs were asked for since the disk was made.
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
        Ok(Handle { disk: self.clone(), life: inner.lives })
    }

    fn name(&self) -> PathBuf {
        PathBuf::from("state.redb")
    }
}

/// One opening of a [`Disk`].
#[derive(Debug)]
pub struct Handle {
    disk: Disk,
    life: u64,
}

impl Handle {
    fn inner(&self) -> Result<MutexGuard<'_, Inner>, Error> {
        let inner = self.disk.lock();
        if inner.lives == self.life { Ok(inner) } else { Err(Error::other("the machine went down")) }
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
        let start = place(offset)?;
        let from = start.checked_add(out.len()).and_then(|end| inner.seen.get(start..end));
        out.copy_from_slice(from.ok_or_else(|| Error::from(ErrorKind::UnexpectedEof))?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<(), Error> {
        let mut inner = self.inner()?;
        let len = place(len)?;
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
        let start = place(offset)?;
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

fn place(offset: u64) -> Result<usize, Error> {
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

/// What of the unsynced changes reached the platter.
fn survivors(pending: &[Pending], dice: &mut Dice) -> Vec<Pending> {
    match dice.below(4) {
        // Nothing did.
        0 => Vec::new(),
        // All up to some change, and that one torn anywhere.
        1 => {
            let mut left = dice.below(pending.len() + 1);
            let mut kept = Vec::new();
            for change in pending {
                match change {
                    _ if left > 0 => {
                        kept.push(change.copy());
                        left -= 1;
                    }
                    Pending::Write(start, data) => {
                        let cut = dice.below(data.len() + 1);
                        kept.push(Pending::Write(*start, data.iter().take(cut).copied().collect()));
                        break;
                    }
                    Pending::Length(_) => break,
                }
            }
            kept
        }
        // Sectors in any order: some here, some there.
        2 => {
            let chance = 1 + dice.below(7);
            let mut kept = Vec::new();
            for change in pending {
                match change {
                    // The length goes before what lies beyond the old end, or the file would have a length that
                    // nobody asked for.
                    Pending::Length(len) => kept.push(Pending::Length(*len)),
                    Pending::Write(start, data) => {
                        let mut at = *start;
                        for sector in sectors(*start, data) {
                            if dice.below(8) < chance {
                                kept.push(Pending::Write(at, sector.to_vec()));
                            }
                            at += sector.len();
                        }
                    }
                }
            }
            kept
        }
        // Everything did.
        _ => pending.iter().map(Pending::copy).collect(),
    }
}

/// The pieces of a write that fall into different sectors.
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

/// Numbers that look random and are the same for the same seed (splitmix64).
#[derive(Debug)]
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        if bound == 0 { 0 } else { (mixed % bound as u64) as usize }
    }
}
