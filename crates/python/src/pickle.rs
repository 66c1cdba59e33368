//! Classes and library versions in a pickle, by a scan of its bytes. Nothing is executed.
//!
//! joblib writes arrays between the opcodes, so that a pickle cannot be walked without evaluating parts of it. The scan
//! looks for byte patterns of few opcodes instead: strings with their length, and the references to classes that follow.

use std::io::{self, Read};

/// Bytes that are scanned at most, after decompression.
const MAX_BYTES: u64 = 8 << 30;
const CHUNK: usize = 1 << 20;
/// Longer than any pattern: positions at the end of a chunk are scanned with the next.
const OVERLAP: usize = 2048;
const MAX_CLASSES: usize = 512;
const MAX_NAME: usize = 200;

const GLOBAL: u8 = b'c';
const BINUNICODE: u8 = b'X';
const SHORT_BINUNICODE: u8 = 0x8c;
const STACK_GLOBAL: u8 = 0x93;
const MEMOIZE: u8 = 0x94;
const FRAME: u8 = 0x95;

/// What the bytes of a pickle show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PickleScan {
    /// `module.Class` in order of appearance, without repetitions.
    pub classes: Vec<String>,
    /// `_sklearn_version` of the first estimator.
    pub sklearn: Option<String>,
    /// The model was trained on named columns.
    pub named_columns: bool,
}

impl PickleScan {
    /// Top-level modules, sorted.
    pub fn packages(&self) -> Vec<&str> {
        let mut packages: Vec<&str> =
            self.classes.iter().filter_map(|class| class.split('.').next()).collect();
        packages.sort_unstable();
        packages.dedup();
        packages
    }

    /// The class of the pickled object, as far as the bytes show it.
    pub fn root(&self) -> Option<&str> {
        let support = [
            "copyreg",
            "copy_reg",
            "builtins",
            "__builtin__",
            "numpy",
            "joblib",
            "collections",
            "_codecs",
            "cloudpickle",
        ];
        let is_support = |class: &&String| support.contains(&class.split('.').next().unwrap_or_default());
        let class = self.classes.iter().find(|class| !is_support(class))?;
        class.rsplit('.').next()
    }

    fn add(&mut self, module: &str, name: &str) {
        let class = format!("{module}.{name}");
        if self.classes.len() < MAX_CLASSES && !self.classes.contains(&class) {
            self.classes.push(class);
        }
    }
}

/// Scans a stream, which may be compressed by zlib or gzip as joblib does.
pub fn scan(mut input: impl Read) -> io::Result<PickleScan> {
    let mut head = [0; 2];
    let mut read = 0;
    while let Some(rest) = head.get_mut(read..).filter(|rest| !rest.is_empty()) {
        match input.read(rest)? {
            0 => break,
            count => read += count,
        }
    }
    let start = head.get(..read).unwrap_or_default();
    let input = io::Cursor::new(start.to_vec()).chain(input);
    match head {
        [0x78, 0x01 | 0x5e | 0x9c | 0xda] => scan_plain(flate2::read::ZlibDecoder::new(input)),
        [0x1f, 0x8b] => scan_plain(flate2::read::MultiGzDecoder::new(input)),
        _ => scan_plain(input),
    }
}

fn scan_plain(input: impl Read) -> io::Result<PickleScan> {
    let mut input = input.take(MAX_BYTES);
    let mut found = PickleScan::default();
    let mut window: Vec<u8> = Vec::with_capacity(CHUNK + OVERLAP);
    let mut skip = 0;
    loop {
        let count = (&mut input).take(CHUNK as u64).read_to_end(&mut window)?;
        // A pattern that starts before this is whole.
        let end = if count == 0 { window.len() } else { window.len().saturating_sub(OVERLAP) };
        let reached = scan_window(&window, skip, end, &mut found);
        if count == 0 {
            return Ok(found);
        }
        window.drain(..end);
        skip = reached.saturating_sub(end);
    }
}

/// Looks at the positions from `start` to `end`, and returns the next one.
fn scan_window(bytes: &[u8], start: usize, end: usize, found: &mut PickleScan) -> usize {
    let mut at = start;
    while at < end {
        let rest = bytes.get(at..).unwrap_or_default();
        at += match rest.first() {
            Some(&(SHORT_BINUNICODE | BINUNICODE)) => {
                text_pattern(rest, found);
                text_length(rest)
            }
            Some(&GLOBAL) => global(rest).map_or(1, |(module, name)| {
                found.add(module, name);
                // With the opcode and two ends of lines.
                module.len() + name.len() + 3
            }),
            _ => 1,
        };
    }
    at
}

/// The bytes of a string with its opcode; 1 when it is none. What looks like an opcode inside is none.
fn text_length(bytes: &[u8]) -> usize {
    let (length, head): (usize, usize) = match bytes {
        [SHORT_BINUNICODE, length, ..] => (usize::from(*length), 2),
        [BINUNICODE, a, b, c, d, ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, 5),
        _ => return 1,
    };
    let text = bytes.get(head..head.saturating_add(length)).filter(|_| length <= OVERLAP / 2);
    let is_text = text
        .and_then(|text| std::str::from_utf8(text).ok())
        .is_some_and(|text| text.chars().all(|c| !c.is_control() || matches!(c, '\n' | '\r' | '\t')));
    if is_text { head + length } else { 1 }
}

/// Patterns that start with a string: a reference to a class, or an attribute with its value.
fn text_pattern(bytes: &[u8], found: &mut PickleScan) {
    let Some((text, rest)) = string(bytes) else { return };
    match text {
        "_sklearn_version" => {
            let version = string(skip_memo(rest)).map(|(version, _)| version).filter(|v| is_version(v));
            if found.sklearn.is_none() {
                found.sklearn = version.map(str::to_owned);
            }
            return;
        }
        "feature_names_in_" => found.named_columns = true,
        _ => {}
    }
    if !is_dotted(text) {
        return;
    }
    let rest = skip_memo(rest);
    if let Some((name, rest)) = string(rest)
        && is_dotted(name)
        && skip_memo(rest).first() == Some(&STACK_GLOBAL)
    {
        found.add(text, name);
    }
}

/// A string opcode at the start, and the bytes behind it.
fn string(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = match bytes {
        [SHORT_BINUNICODE, length, rest @ ..] => (usize::from(*length), rest),
        [BINUNICODE, a, b, c, d, rest @ ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, rest),
        _ => return None,
    };
    if length == 0 || length > MAX_NAME {
        return None;
    }
    let (text, rest) = rest.split_at_checked(length)?;
    Some((std::str::from_utf8(text).ok()?, rest))
}

/// Skips opcodes that store the top of the stack, and frames.
fn skip_memo(mut bytes: &[u8]) -> &[u8] {
    loop {
        bytes = match bytes {
            [MEMOIZE, rest @ ..]
            | [b'q', _, rest @ ..]
            | [b'r', _, _, _, _, rest @ ..]
            | [FRAME, _, _, _, _, _, _, _, _, rest @ ..] => rest,
            _ => return bytes,
        };
    }
}

/// `c` module newline name newline.
fn global(bytes: &[u8]) -> Option<(&str, &str)> {
    let line = |bytes: &'_ [u8]| bytes.iter().take(MAX_NAME).position(|b| *b == b'\n');
    let rest = bytes.get(1..)?;
    let (module, rest) = rest.split_at_checked(line(rest)?)?;
    let rest = rest.get(1..)?;
    let (name, _) = rest.split_at_checked(line(rest)?)?;
    let (module, name) = (std::str::from_utf8(module).ok()?, std::str::from_utf8(name).ok()?);
    (is_dotted(module) && is_dotted(name)).then_some((module, name))
}

/// A Python identifier, or several with dots between them.
fn is_dotted(text: &str) -> bool {
    !text.is_empty()
        && text.split('.').all(|part| {
            let mut chars = part.chars();
            chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
                && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
        })
}

/// `1.7.2`, `1.8.0rc1` or `2.0.dev0`: nothing that pip could read as more than a version.
pub(crate) fn is_version(text: &str) -> bool {
    text.len() <= 32
        && text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '+' | '!'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write as _;

    /// `pickle.dumps` of an estimator-like object with protocol 4.
    fn protocol_4() -> Vec<u8> {
        let mut bytes = b"\x80\x04\x95\x50\0\0\0\0\0\0\0".to_vec();
        for text in ["sklearn.linear_model._logistic", "LogisticRegression"] {
            bytes.extend([SHORT_BINUNICODE, text.len() as u8]);
            bytes.extend(text.as_bytes());
            bytes.push(MEMOIZE);
        }
        bytes.extend([STACK_GLOBAL, MEMOIZE, b')', 0x81, b'}']);
        for text in ["_sklearn_version", "1.7.2"] {
            bytes.extend([SHORT_BINUNICODE, text.len() as u8]);
            bytes.extend(text.as_bytes());
            bytes.push(MEMOIZE);
        }
        bytes.extend(b"sb.");
        bytes
    }

    #[test]
    fn classes_and_version_are_found_in_each_protocol() {
        let found = scan(protocol_4().as_slice()).unwrap();
        assert_eq!(found.classes, ["sklearn.linear_model._logistic.LogisticRegression"]);
        assert_eq!((found.sklearn.as_deref(), found.root()), (Some("1.7.2"), Some("LogisticRegression")));
        assert_eq!(found.packages(), ["sklearn"]);

        let old = b"\x80\x02csklearn.svm._classes\nSVC\nq\x00)\x81q\x01}q\x02(X\x11\0\0\0feature_names_in_q\x03K\x01X\x10\0\0\0_sklearn_versionq\x04X\x06\0\0\x000.24.2q\x05ub.";
        let found = scan(old.as_slice()).unwrap();
        assert_eq!(found.classes, ["sklearn.svm._classes.SVC"]);
        assert_eq!((found.sklearn.as_deref(), found.named_columns), (Some("0.24.2"), true));
    }

    #[test]
    fn patterns_across_chunks_and_in_compressed_files_are_found() {
        for offset in [CHUNK - 60, CHUNK - 5, CHUNK] {
            let mut bytes = vec![0; offset];
            bytes.extend(protocol_4());
            assert_eq!(scan(bytes.as_slice()).unwrap().sklearn.as_deref(), Some("1.7.2"), "{offset}");
        }
        let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        zlib.write_all(&protocol_4()).unwrap();
        assert_eq!(scan(zlib.finish().unwrap().as_slice()).unwrap().sklearn.as_deref(), Some("1.7.2"));
    }

    #[test]
    fn words_of_a_text_are_no_classes() {
        let text = "cat\ndog\ncow\nhen\n";
        let mut bytes = b"\x80\x04\x8c".to_vec();
        bytes.push(text.len() as u8);
        bytes.extend(text.as_bytes());
        assert_eq!(scan(bytes.as_slice()).unwrap().classes, Vec::<String>::new());
    }

    #[test]
    fn text_that_is_no_version_is_not_one() {
        for text in ["1.7.2", "0.24", "1.8.0rc1", "2.0.dev0+local"] {
            assert!(is_version(text), "{text}");
        }
        for text in ["", "v1", "1.0; import os", "1.0 --index-url=x", "https://x", &"1".repeat(40)] {
            assert!(!is_version(text), "{text}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = scan(bytes.as_slice());
        }

        #[test]
        fn truncated_pickles_never_panic(end in 0usize..100) {
            let bytes = protocol_4();
            let _ = scan(bytes.get(..end).unwrap_or(&bytes));
        }
    }
}
