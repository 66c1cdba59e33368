//! The defect enabled in this process, named by the environment variable `GANTRY_MUTANT`.

use std::sync::LazyLock;

static ENABLED: LazyLock<Option<String>> = LazyLock::new(|| std::env::var("GANTRY_MUTANT").ok());

/// Whether a defect is enabled.
pub(crate) fn is(name: &str) -> bool {
    ENABLED.as_deref() == Some(name)
}
