//! What a replica says, line by line: read from its file, so that it can go on saying it while we are away.

use std::{
    collections::VecDeque,
    fs::File,
    io::{Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
};

/// Longest line that is passed on; the rest of it is left out.
const LONGEST: usize = 4096;
/// Most bytes that are read at a time. Who says more than that between two looks is not heard in full.
const MOST: u64 = 256 << 10;
/// Most lines that are passed on at a time.
const MOST_LINES: usize = 200;
/// A file beyond this size is emptied once it has been read.
const FULL: u64 = 8 << 20;
/// Lines that are kept for whoever asks why it ended.
const KEPT: usize = 20;

/// A file that grows, and how far it has been read.
#[derive(Debug)]
pub(crate) struct Tail {
    path: PathBuf,
    position: u64,
    partial: Vec<u8>,
    kept: VecDeque<String>,
}

impl Tail {
    /// From the end of the file on: what it says already was heard before.
    pub(crate) fn from_end(path: &Path) -> Self {
        let position = std::fs::metadata(path).map_or(0, |m| m.len());
        Self { path: path.to_owned(), position, partial: Vec::new(), kept: VecDeque::new() }
    }

    /// The last lines.
    pub(crate) fn last(&self) -> Vec<String> {
        self.kept.iter().cloned().collect()
    }

    /// Lines since the last look; a bounded number of them.
    pub(crate) fn look(&mut self) -> Vec<String> {
        let mut lines = self.read().unwrap_or_default();
        for line in &lines {
            if self.kept.len() >= KEPT {
                self.kept.pop_front();
            }
            self.kept.push_back(line.clone());
        }
        if lines.len() > MOST_LINES {
            let missed = lines.len() - MOST_LINES;
            lines.drain(..missed);
            lines.insert(0, format!("({missed} lines were too many to keep)"));
        }
        lines
    }

    /// What is left when nothing more will come: a last line without an end.
    pub(crate) fn finish(&mut self) -> Vec<String> {
        let mut lines = self.look();
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
            // Somebody emptied it.
            self.position = 0;
            self.partial.clear();
        }
        let mut lines = Vec::new();
        if length > self.position + MOST {
            let skipped = length - self.position - MOST;
            self.position += skipped;
            self.partial.clear();
            lines.push(format!("({skipped} bytes were too many to keep)"));
        }
        file.seek(SeekFrom::Start(self.position))?;
        let mut bytes = Vec::new();
        self.position += file.take(MOST).read_to_end(&mut bytes)? as u64;
        for byte in bytes {
            match byte {
                b'\n' => lines.push(text(&std::mem::take(&mut self.partial))),
                _ if self.partial.len() < LONGEST => self.partial.push(byte),
                _ => {}
            }
        }
        if self.position >= FULL {
            // It is written at its end, wherever that is, so that emptying it loses nothing but what was read.
            File::options().write(true).open(&self.path)?.set_len(0)?;
            self.position = 0;
        }
        Ok(lines)
    }
}

/// A line without what would give a terminal orders: colours are common, and of no use in a log.
fn text(line: &[u8]) -> String {
    let line = String::from_utf8_lossy(line);
    let mut out = String::new();
    let mut letters = line.trim_end().chars();
    while let Some(letter) = letters.next() {
        if letter == '\u{1b}' {
            // An escape sequence ends with its first letter.
            if letters.next() == Some('[') {
                let _ = letters.by_ref().find(char::is_ascii_alphabetic);
            }
        } else if letter == '\t' || !letter.is_control() {
            out.push(letter);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn lines_come_once_and_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, "before\n").unwrap();
        let mut tail = Tail::from_end(&path);
        let mut file = File::options().append(true).open(&path).unwrap();
        assert_eq!(tail.look(), [] as [&str; 0]);
        write!(file, "one\ntw").unwrap();
        assert_eq!(tail.look(), ["one"]);
        write!(file, "o\n\u{1b}[32mgreen\u{1b}[0m\r\nlast").unwrap();
        assert_eq!(tail.look(), ["two", "green"]);
        assert_eq!(tail.finish(), ["last"]);
        assert_eq!(tail.last(), ["one", "two", "green", "last"]);
        file.set_len(0).unwrap();
        writeln!(file, "new").unwrap();
        assert_eq!(tail.look(), ["new"]);
    }

    #[test]
    fn floods_are_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut tail = Tail::from_end(&path);
        std::fs::write(&path, "x\n".repeat(1000) + &"y".repeat(LONGEST * 2) + "\n").unwrap();
        let lines = tail.look();
        assert_eq!(lines.len(), MOST_LINES + 1);
        assert_eq!(lines[0], "(801 lines were too many to keep)");
        assert_eq!(lines.last().unwrap().len(), LONGEST);
        assert_eq!(tail.last().len(), KEPT);
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(&vec![b'z'; usize::try_from(FULL).unwrap()]).unwrap();
        assert!(tail.look()[0].contains("bytes were too many"));
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
        writeln!(file, "\nafter").unwrap();
        assert_eq!(tail.look().last().unwrap(), "after");
    }
}
