//! The files to download for an artifact, and their version.

use std::fmt::Write as _;

use url::Url;

use crate::auth::Auth;
use crate::digest::{Announced, Sha256, hex};
use crate::error::FetchError;
use crate::net::Follow;

/// One file to download.
pub(crate) struct Item {
    /// Its place below the artifact's directory.
    pub(crate) rel: String,
    pub(crate) url: Url,
    pub(crate) size: Option<u64>,
    /// Changes whenever the content does.
    pub(crate) tag: Option<String>,
    pub(crate) known: Vec<Announced>,
}

/// Everything to download for one artifact.
pub(crate) struct DownloadPlan {
    pub(crate) items: Vec<Item>,
    pub(crate) auth: Auth,
    pub(crate) follow: Follow,
    pub(crate) version: Option<u32>,
    /// Whether the URI names one file, which may then be an archive.
    pub(crate) single: bool,
}

/// The objects of a folder after a version was chosen: name, size, tag.
#[derive(Default)]
pub(crate) struct Layer {
    pub(crate) objects: Vec<(String, u64, Option<String>)>,
    pub(crate) version: Option<u32>,
}

impl DownloadPlan {
    /// A value that changes when any file does; `None` when a file has no tag.
    pub(crate) fn fingerprint(&self) -> Option<String> {
        let mut hash = Sha256::new();
        for item in &self.items {
            let line = format!("{}\0{:?}\0{}\n", item.rel, item.size, item.tag.as_deref()?);
            hash.update(line.as_bytes());
        }
        Some(hex(&hash.finish()))
    }

    /// The size of all files, when every one is known.
    pub(crate) fn total(&self) -> Option<u64> {
        self.items.iter().try_fold(0_u64, |sum, item| sum.checked_add(item.size?))
    }
}

/// A chosen version folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) number: u32,
    pub(crate) folder: String,
}

/// Which folders of a source are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Folders {
    /// The highest number, if all folders are numbers; else all.
    Newest,
    Version(u32),
    /// All, as they are.
    All,
}

/// Which of the top folders to take: the wanted number; without one, the highest if all are numbers; else all.
pub(crate) fn choose_version<'a>(
    folders: impl Iterator<Item = &'a str>,
    wanted: Folders,
    place: &str,
) -> Result<Option<Version>, FetchError> {
    if wanted == Folders::All {
        return Ok(None);
    }
    let mut others = 0;
    let mut versions: Vec<Version> = Vec::new();
    for folder in folders {
        match folder.parse::<u32>() {
            Ok(number) if folder.bytes().all(|b| b.is_ascii_digit()) => {
                versions.push(Version { number, folder: folder.to_owned() });
            }
            _ => others += 1,
        }
    }
    // `1` before `01`, so that the plain spelling wins.
    versions.sort_by(|a, b| a.number.cmp(&b.number).then(b.folder.len().cmp(&a.folder.len())));
    match wanted {
        Folders::Version(wanted) => match versions.iter().rev().find(|version| version.number == wanted) {
            Some(version) => Ok(Some(version.clone())),
            None => Err(missing_version(wanted, &versions).at(place)),
        },
        Folders::Newest if others == 0 => Ok(versions.pop()),
        Folders::Newest | Folders::All => Ok(None),
    }
}

fn missing_version(wanted: u32, versions: &[Version]) -> FetchError {
    let mut present = String::new();
    for version in versions.iter().take(20) {
        let separator = if present.is_empty() { "" } else { ", " };
        let _ = write!(present, "{separator}{}", version.number);
    }
    if versions.len() > 20 {
        let _ = write!(present, " and {} more", versions.len() - 20);
    }
    let error = FetchError::permanent(format!("artifactVersion {wanted} does not exist"));
    if present.is_empty() {
        error.remedy("there are no version folders here; remove artifactVersion or check storageUri")
    } else {
        error.remedy(format!("present are {present}"))
    }
}

/// Percent-encodes everything but unreserved characters and slashes, which is how S3 signs a path.
pub(crate) fn encode_path(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'/') {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        type Case<'a> = (&'a [&'a str], Folders, Result<Option<&'a str>, &'a str>);
        let table: &[Case<'_>] = &[
            (&["1", "2", "10"], Folders::Version(2), Ok(Some("2"))),
            (&["1", "2", "10"], Folders::Newest, Ok(Some("10"))),
            (&["1", "2", "assets"], Folders::Newest, Ok(None)),
            (&["1", "2", "assets"], Folders::Version(1), Ok(Some("1"))),
            (&[], Folders::Newest, Ok(None)),
            (&["1", "2"], Folders::All, Ok(None)),
            (&["01", "1"], Folders::Version(1), Ok(Some("1"))),
            (&["01"], Folders::Version(1), Ok(Some("01"))),
            (&["1", "3"], Folders::Version(2), Err("present are 1, 3")),
            (&["assets"], Folders::Version(2), Err("no version folders")),
            (&["+1", "99999999999"], Folders::Newest, Ok(None)),
        ];
        for (folders, wanted, expected) in table {
            let chosen = choose_version(folders.iter().copied(), *wanted, "s3://b/k");
            match (chosen, expected) {
                (Ok(chosen), Ok(expected)) => assert_eq!(
                    chosen.as_ref().map(|v| v.folder.as_str()),
                    *expected,
                    "{folders:?} {wanted:?}"
                ),
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
                (chosen, expected) => panic!("{folders:?} {wanted:?}: {chosen:?} instead of {expected:?}"),
            }
        }
    }

    #[test]
    fn paths_are_encoded_as_s3_signs_them() {
        assert_eq!(encode_path("a b/c+d(1)/ü~_-.txt"), "a%20b/c%2Bd%281%29/%C3%BC~_-.txt");
    }
}
