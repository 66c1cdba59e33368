//! The files of an artifact: name validation, limits and the digest.

use std::collections::HashMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use unicode_normalization::UnicodeNormalization as _;

use crate::cloud::too_many;
use crate::digest::{Sha256, hex};
use crate::error::FetchError;

/// How large an artifact may be.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of all files together, after unpacking.
    pub bytes: u64,
    /// Number of files.
    pub files: usize,
    /// Folders inside each other.
    pub depth: usize,
    /// How many times larger than itself an archive may become.
    pub ratio: u64,
    /// Up to this many bytes any ratio is fine: small files of zeros are not an attack.
    pub ratio_from: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes: 64 << 30, files: 10_000, depth: 16, ratio: 200, ratio_from: 16 << 20 }
    }
}

/// One file of an artifact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) path: String,
    pub(crate) bytes: u64,
    pub(crate) sha256: String,
}

/// The digest of an artifact: over the names, sizes and digests of its files, in the order of names.
pub(crate) fn digest(records: &mut [Record]) -> String {
    records.sort_by(|a, b| a.path.cmp(&b.path));
    let mut hash = Sha256::new();
    for record in records.iter() {
        hash.update(format!("{} {} {}\n", record.sha256, record.bytes, record.path).as_bytes());
    }
    hex(&hash.finish())
}

/// Collects names and refuses those that could lead outside or collide on some file system.
pub(crate) struct Names {
    limits: Limits,
    files: usize,
    /// Folded name of every file and folder, its spelling, and whether it is a file.
    seen: HashMap<String, (String, bool)>,
}

impl Names {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, files: 0, seen: HashMap::new() }
    }

    /// The relative path for a file, to be joined to the directory of the artifact.
    pub(crate) fn file(&mut self, name: &str) -> Result<PathBuf, FetchError> {
        self.files += 1;
        if self.files > self.limits.files {
            return Err(too_many(self.limits.files));
        }
        self.admit(name, true)
    }

    /// Notes a folder; it is created when a file needs it.
    pub(crate) fn folder(&mut self, name: &str) -> Result<(), FetchError> {
        let name = name.trim_end_matches('/').trim_start_matches("./");
        if name.is_empty() || name == "." {
            return Ok(());
        }
        // Empty folders count like files, or an archive of nothing but folders would have no limit.
        self.files += 1;
        if self.files > self.limits.files {
            return Err(too_many(self.limits.files));
        }
        self.admit(name, false).map(|_| ())
    }

    fn admit(&mut self, name: &str, is_file: bool) -> Result<PathBuf, FetchError> {
        let name = name.strip_prefix("./").unwrap_or(name);
        let refuse = |why: &str| {
            let shown: String = name.chars().take(120).flat_map(char::escape_debug).collect();
            FetchError::permanent(format!("the file name `{shown}` {why}"))
                .remedy("rename it or leave it out")
        };
        if name.len() > 1024 {
            return Err(refuse("is longer than 1024 bytes"));
        }
        if name.starts_with('/') {
            return Err(refuse("is an absolute path"));
        }
        if name.contains('\\') || name.chars().any(char::is_control) {
            return Err(refuse("has a backslash or a control character"));
        }
        if name.as_bytes().get(1) == Some(&b':') {
            return Err(refuse("begins with a drive letter"));
        }
        let segments: Vec<&str> = name.split('/').collect();
        if segments.contains(&"..") {
            return Err(refuse("leads outside of the artifact"));
        }
        if segments.iter().any(|segment| segment.is_empty() || *segment == ".") {
            return Err(refuse("has an empty or `.` folder"));
        }
        if segments.iter().any(|segment| segment.len() > 255) {
            return Err(refuse("has a part longer than 255 bytes"));
        }
        if segments.len() > self.limits.depth {
            return Err(refuse(&format!("is deeper than {} folders", self.limits.depth)));
        }
        let mut path = String::new();
        for (index, segment) in segments.iter().enumerate() {
            if index > 0 {
                path.push('/');
            }
            path.push_str(segment);
            let last = index + 1 == segments.len();
            let leaf = last && is_file;
            let folded: String = path.nfc().flat_map(char::to_lowercase).nfc().collect();
            match self.seen.get(&folded) {
                Some((spelling, _)) if *spelling != path => {
                    return Err(refuse("differs from another only in case or accents"));
                }
                Some((_, was_file)) if *was_file || leaf => {
                    return Err(refuse("appears twice, or as a file and as a folder"));
                }
                Some(_) => {}
                None => {
                    self.seen.insert(folded, (path.clone(), leaf));
                }
            }
        }
        Ok(segments.iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(names: &[&str]) -> Result<(), FetchError> {
        let mut tree = Names::new(Limits { depth: 4, files: 5, ..Limits::default() });
        names.iter().try_for_each(|name| tree.file(name).map(|_| ()))
    }

    #[test]
    fn names_that_are_refused() {
        let long = "x".repeat(256);
        let table: &[(&[&str], &str)] = &[
            (&["/etc/passwd"], "absolute"),
            (&["../x"], "outside"),
            (&["a/../../x"], "outside"),
            (&["a/.."], "outside"),
            (&["a\\..\\x"], "backslash"),
            (&["C:/x"], "drive letter"),
            (&["a\0b"], "control"),
            (&["a\nb"], "control"),
            (&[""], "empty"),
            (&["a//b"], "empty"),
            (&["a/./b"], "empty"),
            (&["a/"], "empty"),
            (&["a/b/c/d/e"], "deeper"),
            (&[&long], "255 bytes"),
            (&["Model.json", "model.json"], "case"),
            (&["A/x", "a/y"], "case"),
            (&["caf\u{e9}", "cafe\u{301}"], "accents"),
            (&["STRASSE/\u{212a}", "STRASSE/k"], "case"),
            (&["a", "a"], "twice"),
            (&["a", "a/b"], "folder"),
            (&["a/b", "a"], "folder"),
            (&["1", "2", "3", "4", "5", "6"], "more than 5 files"),
        ];
        for (names, part) in table {
            let error = all(names).expect_err(&format!("{names:?}")).to_string();
            assert!(error.contains(part), "{names:?}: {error}");
        }
        all(&["a/b", "a/c", "./d", "e..f", "..g"]).unwrap();
    }

    #[test]
    fn digest_depends_on_names_and_content_but_not_on_order() {
        let record = |path: &str, sha: &str| Record { path: path.into(), bytes: 1, sha256: sha.into() };
        let one = digest(&mut [record("a", "1"), record("b", "2")]);
        assert_eq!(one, digest(&mut [record("b", "2"), record("a", "1")]));
        assert_ne!(one, digest(&mut [record("a", "2"), record("b", "1")]));
        assert_ne!(one, digest(&mut [record("a", "1"), record("c", "2")]));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn an_admitted_name_stays_inside(name in prop_oneof![any::<String>(), "[a./\\\\:]{0,12}"]) {
            if let Ok(path) = Names::new(Limits::default()).file(&name) {
                let root = std::path::Path::new("/root/artifact");
                let joined = root.join(&path);
                prop_assert!(joined.starts_with(root));
                prop_assert!(path.components().all(|part| matches!(part, std::path::Component::Normal(_))));
            }
        }
    }
}
