//! Fuzz entry points: each accepts arbitrary bytes, must not panic, and asserts its invariants.

use crate::{Limits, archive};

/// Unpacks an archive whose first byte selects the format. Nothing may be written outside the directory or beyond a limit.
pub fn unpack(input: &[u8]) {
    let Some((&choice, bytes)) = input.split_first() else { return };
    let name = match choice % 3 {
        0 => "a.zip",
        1 => "a.tar",
        _ => "a.tar.gz",
    };
    let Some(format) = archive::format_of(name) else { return };
    let limits = Limits { bytes: 1 << 20, files: 64, ..Limits::default() };
    let id = format!("gantry-fuzz-{}-{:?}", std::process::id(), std::thread::current().id());
    let base = std::env::temp_dir().join(id);
    let _ = std::fs::remove_dir_all(&base);
    let into = base.join("into");
    if std::fs::create_dir_all(&into).is_err() || std::fs::write(base.join(name), bytes).is_err() {
        return;
    }
    let _ = archive::unpack(&base.join(name), format, &into, limits);
    let outside = std::fs::read_dir(&base).into_iter().flatten().flatten().count();
    assert_eq!(outside, 2, "something was written outside the directory");
    let _ = std::fs::remove_dir_all(&base);
}
