//! Reads the output of a replica from its log file: the replica keeps writing while no supervisor runs.

use std::{
    collections::VecDeque,
    fs::File,
    io::{Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
};

/// Longer lines are truncated.
const MAX_LINE: usize = 4096;
/// Per read; bytes beyond are skipped.
const MAX_BYTES: u64 = 256 << 10;
/// Per read; lines before are dropped.
const MAX_LINES: usize = 200;
/// A larger file is truncated after it was read.
const MAX_FILE_SIZE: u64 = 8 << 20;
/// Lines kept to explain a crash.
const KEPT_LINES: usize = 20;

#[derive(Debug)]
pub(crate) struct LogTail {
    path: PathBuf,
    position: u64,
    partial: Vec<u8>,
    kept: VecDeque<String>,
}

impl LogTail {
    /// Starts at the end of the file: earlier lines were read before.
    pub(crate) fn from_end(path: &Path) -> Self {
        let position = std::fs::metadata(path).map_or(0, |m| m.len());
        Self { path: path.to_owned(), position, partial: Vec::new(), kept: VecDeque::new() }
    }

    pub(crate) fn last_lines(&self) -> Vec<String> {
        self.kept.iter().cloned().collect()
    }

    /// Lines since the last call; a bounded number.
    pub(crate) fn read_new(&mut self) -> Vec<String> {
        let mut lines = self.read().unwrap_or_default();
        for line in &lines {
            if self.kept.len() >= KEPT_LINES {
                self.kept.pop_front();
            }
            self.kept.push_back(line.clone());
        }
        if lines.len() > MAX_LINES {
            let missed = lines.len() - MAX_LINES;
            lines.drain(..missed);
            lines.insert(0, format!("({missed} lines dropped)"));
        }
        lines
    }

    /// The remaining lines after the process exited, including an unterminated one.
    pub(crate) fn read_rest(&mut self) -> Vec<String> {
        let mut lines = self.read_new();
        if !self.partial.is_empty() {
            let last = text(&std::mem::take(&mut self.partial));
            self.kept.push_back(last.clone());
            lines.push(last);
        }
        lines
    }

    fn read(&mut self) -> std::io::Result<Vec<String>> {
        let mut file = File::open(&self.path)?;
        let length = file.metadata()?.len();
        if length < self.position {
            // Truncated by another process.
            self.position = 0;
            self.partial.clear();
        }
        let mut lines = Vec::new();
        if length > self.position + MAX_BYTES {
            let skipped = length - self.position - MAX_BYTES;
            self.position += skipped;
            self.partial.clear();
            lines.push(format!("({skipped} bytes dropped)"));
        }
        file.seek(SeekFrom::Start(self.position))?;
        let mut bytes = Vec::new();
        self.position += file.take(MAX_BYTES).read_to_end(&mut bytes)? as u64;
        for byte in bytes {
            match byte {
                b'\n' => lines.push(text(&std::mem::take(&mut self.partial))),
                _ if self.partial.len() < MAX_LINE => self.partial.push(byte),
                _ => {}
            }
        }
        if self.position >= MAX_FILE_SIZE {
            // The replica appends: truncation loses only lines that were read.
            File::options().write(true).open(&self.path)?.set_len(0)?;
            self.position = 0;
        }
        Ok(lines)
    }
}

/// The line without escape sequences and control characters.
fn text(line: &[u8]) -> String {
    let line = String::from_utf8_lossy(line);
    let mut out = String::new();
    let mut chars = line.trim_end().chars();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            // An escape sequence ends with its first c.
            if chars.next() == Some('[') {
                let _ = chars.by_ref().find(char::is_ascii_alphabetic);
            }
        } else if c == '\t' || !c.is_control() {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn each_line_is_returned_once_and_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, "before\n").unwrap();
        let mut tail = LogTail::from_end(&path);
        let mut file = File::options().append(true).open(&path).unwrap();
        assert_eq!(tail.read_new(), [] as [&str; 0]);
        write!(file, "one\ntw").unwrap();
        assert_eq!(tail.read_new(), ["one"]);
        write!(file, "o\n\u{1b}[32mgreen\u{1b}[0m\r\nlast").unwrap();
        assert_eq!(tail.read_new(), ["two", "green"]);
        assert_eq!(tail.read_rest(), ["last"]);
        assert_eq!(tail.last_lines(), ["one", "two", "green", "last"]);
        file.set_len(0).unwrap();
        writeln!(file, "new").unwrap();
        assert_eq!(tail.read_new(), ["new"]);
    }

    #[test]
    fn excess_output_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut tail = LogTail::from_end(&path);
        std::fs::write(&path, "x\n".repeat(1000) + &"y".repeat(MAX_LINE * 2) + "\n").unwrap();
        let lines = tail.read_new();
        assert_eq!(lines.len(), MAX_LINES + 1);
        assert_eq!(lines[0], "(801 lines dropped)");
        assert_eq!(lines.last().unwrap().len(), MAX_LINE);
        assert_eq!(tail.last_lines().len(), KEPT_LINES);
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(&vec![b'z'; usize::try_from(MAX_FILE_SIZE).unwrap()]).unwrap();
        assert!(tail.read_new()[0].contains("bytes dropped"));
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
        writeln!(file, "\nafter").unwrap();
        assert_eq!(tail.read_new().last().unwrap(), "after");
    }
}
