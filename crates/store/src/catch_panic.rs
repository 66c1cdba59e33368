//! Panics of the database on corrupt pages.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Turns panics into [`redb::Error::Corrupted`].
///
/// redb trusts pages that it has not verified yet (its own bookkeeping, when a closed file is opened) and panics on
/// inconsistent ones. The caller drops the database afterwards, so no partial state is seen.
pub(crate) fn catch_panic<T>(work: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, redb::Error> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|panic| Err(redb::Error::Corrupted(format!("inconsistent page ({})", text(&*panic)))))
}

fn text(panic: &(dyn Any + Send)) -> &str {
    let literal = panic.downcast_ref::<&str>().copied();
    literal.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no reason given")
}
