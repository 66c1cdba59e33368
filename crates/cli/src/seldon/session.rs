//! The sticky session: the routes of the last answer, kept for the next request.

use super::files;
use std::path::PathBuf;

const FILE: &str = "session";
/// The header that names the routes taken.
pub(super) const ROUTE: &str = "x-seldon-route";

fn path() -> Option<PathBuf> {
    files::directory().map(|d| d.join(FILE))
}

/// The routes of the last answer; none when there was none.
pub(super) fn load() -> Vec<String> {
    let text = path().and_then(|p| std::fs::read_to_string(p).ok()).unwrap_or_default();
    text.split(',').map(str::trim).filter(|k| !k.is_empty()).map(str::to_owned).collect()
}

/// Keeps the routes of an answer.
pub(super) fn save(routes: &[String]) -> std::io::Result<()> {
    // An answer without a route says nothing about the session.
    if routes.is_empty() || routes == load() {
        return Ok(());
    }
    let Some(path) = path() else { return Ok(()) };
    files::replace(&path, routes.join(",").as_bytes())
}
