//! Sticky session: routes of the last response, reused by the next request.

use super::files;
use std::path::PathBuf;

const FILE: &str = "session";
/// Response header with the routes taken.
pub(super) const ROUTE: &str = "x-seldon-route";

fn path() -> Option<PathBuf> {
    files::directory().map(|d| d.join(FILE))
}

pub(super) fn load() -> Vec<String> {
    let text = path().and_then(|p| std::fs::read_to_string(p).ok()).unwrap_or_default();
    text.split(',').map(str::trim).filter(|k| !k.is_empty()).map(str::to_owned).collect()
}

pub(super) fn save(routes: &[String]) -> std::io::Result<()> {
    // A response without a route keeps the session.
    if routes.is_empty() || routes == load() {
        return Ok(());
    }
    let Some(path) = path() else { return Ok(()) };
    files::replace(&path, routes.join(",").as_bytes())
}
