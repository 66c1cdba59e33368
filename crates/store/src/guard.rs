//! The database's own panics.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs what reads pages that may be damaged.
///
/// The database trusts a page that it has not verified yet (those of its own book-keeping, when a closed file is opened)
/// and panics if the page makes no sense. A state file is foreign bytes like any other: that is an error, not a panic.
/// Whatever was being worked on is dropped by the caller, so nothing half-done is seen again.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, redb::Error> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        Err(redb::Error::Corrupted(format!("a page makes no sense ({})", text(&*panic))))
    })
}

fn text(panic: &(dyn Any + Send)) -> &str {
    let literal = panic.downcast_ref::<&str>().copied();
    literal.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no reason given")
}
