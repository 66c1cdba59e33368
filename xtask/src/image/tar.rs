//! A tar archive (ustar) in which nothing depends on when or where it was written.

use crate::Failure;

const BLOCK: usize = 512;

/// What one entry is.
pub(super) enum Entry<'a> {
    Directory,
    File(&'a [u8]),
}

/// Puts entries one after the other; the caller chooses the order.
#[derive(Default)]
pub(super) struct Tar {
    bytes: Vec<u8>,
}

impl Tar {
    /// Adds an entry that belongs to root and is as old as time.
    pub(super) fn add(&mut self, name: &str, mode: u32, entry: &Entry<'_>) -> Result<(), Failure> {
        let (kind, content) = match entry {
            Entry::Directory => (b'5', &[][..]),
            Entry::File(content) => (b'0', *content),
        };
        self.bytes.extend_from_slice(&header(name, mode, kind, content.len())?);
        self.bytes.extend_from_slice(content);
        self.bytes.resize(self.bytes.len().next_multiple_of(BLOCK), 0);
        Ok(())
    }

    /// The archive, with the two empty blocks that end it.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.bytes.resize(self.bytes.len() + 2 * BLOCK, 0);
        self.bytes
    }
}

fn header(name: &str, mode: u32, kind: u8, size: usize) -> Result<[u8; BLOCK], Failure> {
    if name.len() > 100 {
        return Err(format!("{name}: a name in an image's archive may have 100 bytes").into());
    }
    let size = format!("{size:011o}\0");
    if size.len() != 12 {
        return Err(format!("{name}: a file in an image's archive may have 8 GiB").into());
    }
    let mut header = [0; BLOCK];
    put(&mut header, 0, name.as_bytes());
    put(&mut header, 100, format!("{mode:07o}\0").as_bytes());
    put(&mut header, 108, b"0000000\0");
    put(&mut header, 116, b"0000000\0");
    put(&mut header, 124, size.as_bytes());
    put(&mut header, 136, b"00000000000\0");
    put(&mut header, 148, b"        ");
    put(&mut header, 156, &[kind]);
    put(&mut header, 257, b"ustar\x0000");
    // The sum is taken while its own field is blank.
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    put(&mut header, 148, format!("{sum:06o}\0 ").as_bytes());
    Ok(header)
}

fn put(header: &mut [u8; BLOCK], at: usize, text: &[u8]) {
    for (slot, byte) in header.iter_mut().skip(at).zip(text) {
        *slot = *byte;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::Write as _,
        process::{Command, Stdio},
    };

    #[test]
    fn tar_reads_it() {
        let mut tar = Tar::default();
        tar.add("etc/", 0o755, &Entry::Directory).unwrap();
        tar.add("etc/name", 0o644, &Entry::File(&[b'x'; 513])).unwrap();
        tar.add("tmp/", 0o1777, &Entry::Directory).unwrap();
        let bytes = tar.finish();
        let mut child = Command::new("tar")
            .args(["--list", "--verbose", "--numeric-owner", "--utc", "--file", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(&bytes).unwrap();
        let listed = child.wait_with_output().unwrap();
        assert!(listed.status.success());
        let text = String::from_utf8(listed.stdout).unwrap();
        let lines: Vec<Vec<&str>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["drwxr-xr-x", "0/0", "0", "1970-01-01", "00:00", "etc/"]);
        assert_eq!(lines[1], ["-rw-r--r--", "0/0", "513", "1970-01-01", "00:00", "etc/name"]);
        assert_eq!(lines[2], ["drwxrwxrwt", "0/0", "0", "1970-01-01", "00:00", "tmp/"]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert!(Tar::default().add(&"x".repeat(101), 0o644, &Entry::Directory).is_err());
        assert!(header("x", 0o644, b'0', 1 << 33).is_err());
        assert!(header("x", 0o644, b'0', (1 << 33) - 1).is_ok());
    }
}
