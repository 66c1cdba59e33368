//! Cache shared by all checkouts: `$XDG_CACHE_HOME/gantry` or `~/.cache/gantry`.

use crate::Failure;
use std::path::PathBuf;

/// The cache directory; it may not exist yet.
pub(crate) fn directory() -> Result<PathBuf, Failure> {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let home = || set("HOME").or_else(|| set("USERPROFILE")).map(|h| h.join(".cache"));
    let base = set("XDG_CACHE_HOME")
        .or_else(home)
        .ok_or("neither XDG_CACHE_HOME nor HOME is set: where is the cache?")?;
    Ok(base.join("gantry"))
}

/// FNV-1a hash of a text, as a file name.
pub(crate) fn fingerprint(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_texts_have_different_names() {
        assert_eq!(fingerprint(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fingerprint("a"), 0xaf63_dc4c_8601_ec8c);
        assert_ne!(fingerprint("numpy==1"), fingerprint("numpy==2"));
    }
}
