//! Ordinary and hostile archives.

use std::io::Write as _;

use gantry_artifacts::{ErrorKind, FetchError, Fetched, Limits};
use tar::{EntryType, Header};
use zip::write::SimpleFileOptions;

use crate::{Harness, names};

/// Appends an entry whose name is written as it is, however hostile.
fn raw_entry(out: &mut tar::Builder<Vec<u8>>, kind: EntryType, name: &[u8], link: &str, data: &[u8]) {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(data.len() as u64);
    header.set_mode(0o644);
    header.as_mut_bytes()[..name.len()].copy_from_slice(name);
    if kind == EntryType::GNUSparse {
        let gnu = header.as_gnu_mut().unwrap();
        gnu.set_real_size(data.len() as u64);
        gnu.sparse[0].set_offset(0);
        gnu.sparse[0].set_length(data.len() as u64);
    }
    if !link.is_empty() {
        header.set_link_name_literal(link).unwrap();
    }
    header.set_cksum();
    out.append(&header, data).unwrap();
}

fn tar_of(entries: &[(EntryType, &str, &str)]) -> Vec<u8> {
    let mut out = tar::Builder::new(Vec::new());
    for (kind, name, content) in entries {
        let is_link = matches!(kind, EntryType::Symlink | EntryType::Link);
        let (link, data) = if is_link { (*content, "") } else { ("", *content) };
        raw_entry(&mut out, *kind, name.as_bytes(), link, data.as_bytes());
    }
    out.into_inner().unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zip_of(entries: &[(&str, &[u8], Option<u32>)]) -> Vec<u8> {
    let mut out = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, data, mode) in entries {
        let mut options = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
        if let Some(mode) = mode {
            options = options.unix_permissions(*mode);
        }
        if name.ends_with('/') {
            out.add_directory(*name, options).unwrap();
        } else {
            out.start_file(*name, options).unwrap();
            out.write_all(data).unwrap();
        }
    }
    out.finish().unwrap().into_inner()
}

async fn unpack(name: &str, bytes: &[u8], limits: Limits) -> Result<Fetched, FetchError> {
    let harness = Harness::with(|config| config.limits = limits);
    let path = harness.dir.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    let result = harness.fetch(path.to_str().unwrap()).await;
    harness.assert_no_leftovers();
    // Nothing may be written beside the cache and the archive itself.
    let beside = std::fs::read_dir(harness.dir.path()).unwrap().count();
    assert_eq!(beside, 2, "{name}");
    if let Ok(fetched) = &result {
        // The directory goes with the harness; the listing must be taken now.
        assert!(!names(fetched).is_empty());
    }
    result
}

#[tokio::test]
async fn ordinary_archives_are_unpacked() {
    let file = EntryType::Regular;
    let folder = EntryType::Directory;
    let tree = tar_of(&[(folder, "iris/", ""), (file, "iris/model.json", "{}"), (file, "iris/a/b.txt", "b")]);
    let flat = tar_of(&[(file, "./model.json", "{}"), (file, "a/b.txt", "b")]);
    let zipped = zip_of(&[
        ("iris/", b"", None),
        ("iris/model.json", b"{}", None),
        ("iris/a/b.txt", b"b", Some(0o644)),
    ]);
    for (name, bytes) in [
        ("m.tar", tree.clone()),
        ("m.tar.gz", gzip(&tree)),
        ("M.TGZ", gzip(&tree)),
        ("m.zip", zipped),
        ("f.tar", flat),
    ] {
        let harness = Harness::new();
        let path = harness.dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let fetched =
            harness.fetch(path.to_str().unwrap()).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(names(&fetched), ["a/b.txt", "model.json"], "{name}");
        assert_eq!(std::fs::read(fetched.path.join("a/b.txt")).unwrap(), b"b");
    }
}

#[tokio::test]
async fn long_names_in_both_dialects() {
    let long = format!("folder/{}/model.json", "n".repeat(150));
    let mut gnu = tar::Builder::new(Vec::new());
    let mut header = Header::new_gnu();
    header.set_size(2);
    header.set_mode(0o644);
    gnu.append_data(&mut header, &long, &b"{}"[..]).unwrap();
    let mut pax = tar::Builder::new(Vec::new());
    pax.append_pax_extensions([("path", long.as_bytes())]).unwrap();
    raw_entry(&mut pax, EntryType::Regular, b"short", "", b"{}");
    for archive in [gnu, pax] {
        let harness = Harness::new();
        let path = harness.dir.path().join("m.tar");
        std::fs::write(&path, archive.into_inner().unwrap()).unwrap();
        let fetched = harness.fetch(path.to_str().unwrap()).await.unwrap();
        assert_eq!(names(&fetched), [format!("{}/model.json", "n".repeat(150))]);
    }
}

#[tokio::test]
async fn versions_inside_an_archive() {
    let file = EntryType::Regular;
    let tree = tar_of(&[(file, "m/model-settings.json", "{}"), (file, "m/1/a", "1"), (file, "m/2/a", "2")]);
    let harness = Harness::new();
    let path = harness.dir.path().join("m.tar");
    std::fs::write(&path, tree).unwrap();
    let path = path.to_str().unwrap();
    let highest = harness.fetch(path).await.unwrap();
    assert_eq!(
        (names(&highest), highest.version),
        (vec!["2/a".into(), "model-settings.json".into()], Some(2))
    );
    assert_eq!(names(&harness.version(path, 1).await.unwrap()), ["1/a", "model-settings.json"]);
    assert!(harness.version(path, 7).await.unwrap_err().to_string().contains("present are 1, 2"));
}

#[tokio::test]
async fn hostile_tar_archives_are_refused() {
    use EntryType::{Block, Char, Fifo, GNUSparse, Link, Regular, Symlink};
    let table: &[(&str, Vec<(EntryType, &str, &str)>, &str)] = &[
        ("absolute", vec![(Regular, "/etc/evil", "x")], "absolute"),
        ("parent", vec![(Regular, "../evil", "x")], "outside"),
        ("hidden parent", vec![(Regular, "a/../../evil", "x")], "outside"),
        ("symlink", vec![(Symlink, "a", "/etc"), (Regular, "a/passwd", "x")], "link or a device"),
        ("hard link", vec![(Regular, "a", "x"), (Link, "b", "/etc/passwd")], "link or a device"),
        ("character device", vec![(Char, "a", "")], "link or a device"),
        ("block device", vec![(Block, "a", "")], "link or a device"),
        ("pipe", vec![(Fifo, "a", "")], "link or a device"),
        ("sparse", vec![(GNUSparse, "a", "x")], "link or a device"),
        ("case", vec![(Regular, "Model", "x"), (Regular, "model", "y")], "case"),
        ("unicode", vec![(Regular, "caf\u{e9}", "x"), (Regular, "cafe\u{301}", "y")], "accents"),
        ("twice", vec![(Regular, "a", "x"), (Regular, "a", "y")], "twice"),
        ("file as folder", vec![(Regular, "a", "x"), (Regular, "a/b", "y")], "folder"),
        ("deep", vec![(Regular, "a/b/c/d/e/f/g/h/i/j/k/l/m/n/o/p/q", "x")], "deeper"),
        ("backslash", vec![(Regular, "..\\evil", "x")], "backslash"),
        ("nested", vec![(Regular, "inner.zip", "x")], "another archive"),
        ("empty", vec![], "no files"),
    ];
    for (name, entries, part) in table {
        for (file, bytes) in [("m.tar", tar_of(entries)), ("m.tar.gz", gzip(&tar_of(entries)))] {
            let error = unpack(file, &bytes, Limits::default()).await.expect_err(name);
            assert!(error.to_string().contains(part), "{name}: {error}");
        }
    }
}

#[tokio::test]
async fn hostile_zip_archives_are_refused() {
    let table: &[(&str, Vec<(&str, &[u8], Option<u32>)>, &str)] = &[
        ("absolute", vec![("/etc/evil", b"x", None)], "absolute"),
        ("parent", vec![("../evil", b"x", None)], "outside"),
        ("case", vec![("Model", b"x", None), ("model", b"y", None)], "case"),
        ("nested", vec![("a/inner.tar.gz", b"x", None)], "another archive"),
    ];
    for (name, entries, part) in table {
        let error = unpack("m.zip", &zip_of(entries), Limits::default()).await.expect_err(name);
        assert!(error.to_string().contains(part), "{name}: {error}");
    }
    let mut out = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    out.add_symlink("link", "/etc/passwd", SimpleFileOptions::default()).unwrap();
    let error = unpack("m.zip", &out.finish().unwrap().into_inner(), Limits::default()).await.unwrap_err();
    assert!(error.to_string().contains("link or a device"), "{error}");
}

#[tokio::test]
async fn bombs_stop_at_the_limits() {
    // The limits are lowered, not the bombs made large: a suite that fills a disk fails for the wrong reason.
    let zeros = vec![0; 1 << 20];
    let mut out = tar::Builder::new(Vec::new());
    raw_entry(&mut out, EntryType::Regular, b"zeros", "", &zeros);
    let tar_bomb = gzip(&out.into_inner().unwrap());
    let zip_bomb = zip_of(&[("zeros", &zeros, None)]);
    for (name, bytes) in [("m.tar.gz", &tar_bomb), ("m.zip", &zip_bomb)] {
        let ratio = Limits { ratio: 50, ratio_from: 1 << 18, ..Limits::default() };
        let error = unpack(name, bytes, ratio).await.unwrap_err();
        assert!(
            error.kind() == ErrorKind::TooLarge && error.to_string().contains("50 times"),
            "{name}: {error}"
        );
        unpack(name, bytes, Limits { ratio_from: 1 << 20, ..ratio })
            .await
            .expect("small enough for any ratio");
        let error = unpack(name, bytes, Limits { bytes: 1 << 18, ..Limits::default() }).await.unwrap_err();
        assert!(
            error.kind() == ErrorKind::TooLarge && error.to_string().contains("262144 bytes"),
            "{name}: {error}"
        );
    }
    let many: Vec<(EntryType, String)> = (0..30).map(|i| (EntryType::Regular, format!("f{i}"))).collect();
    let many: Vec<(EntryType, &str, &str)> =
        many.iter().map(|(kind, name)| (*kind, name.as_str(), "x")).collect();
    let error = unpack("m.tar", &tar_of(&many), Limits { files: 20, ..Limits::default() }).await.unwrap_err();
    assert!(error.kind() == ErrorKind::TooLarge && error.to_string().contains("20 files"), "{error}");
    let folders: Vec<(EntryType, String)> =
        (0..30).map(|i| (EntryType::Directory, format!("d{i}/"))).collect();
    let folders: Vec<(EntryType, &str, &str)> =
        folders.iter().map(|(kind, name)| (*kind, name.as_str(), "")).collect();
    let error =
        unpack("m.tar", &tar_of(&folders), Limits { files: 20, ..Limits::default() }).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
    // A name of a megabyte, packed into a kilobyte.
    let mut out = tar::Builder::new(Vec::new());
    raw_entry(&mut out, EntryType::GNULongName, b"x", "", &vec![b'a'; 1 << 20]);
    let error = unpack("m.tar.gz", &gzip(&out.into_inner().unwrap()), Limits::default()).await.unwrap_err();
    assert!(error.to_string().contains("64 KiB"), "{error}");
}

#[tokio::test]
async fn damaged_archives_are_reported() {
    let good = tar_of(&[(EntryType::Regular, "a", &"x".repeat(3000))]);
    let zipped = zip_of(&[("a", &crate::content(3000), None)]);
    let mut flipped = zipped.clone();
    flipped[100] ^= 0xff;
    for (name, bytes) in [
        ("m.tar", good[..2000].to_vec()),
        ("m.tar", good[..300].to_vec()),
        ("m.tar", vec![b'x'; 2048]),
        ("m.tar.gz", gzip(&good)[..40].to_vec()),
        ("m.tar.gz", good.clone()),
        ("m.zip", zipped[..zipped.len() - 30].to_vec()),
        ("m.zip", flipped),
        ("m.zip", b"PK".to_vec()),
    ] {
        let error = unpack(name, &bytes, Limits::default()).await.unwrap_err();
        assert!(
            error.kind() == ErrorKind::Permanent && error.to_string().contains("damaged"),
            "{name}: {error}"
        );
    }
}

#[tokio::test]
async fn other_archive_formats_are_refused_by_name() {
    for name in ["m.tar.zst", "m.tar.xz", "M.TAR.BZ2", "m.7z"] {
        let error = unpack(name, b"x", Limits::default()).await.unwrap_err();
        assert!(error.to_string().contains("pack as .zip, .tar or .tar.gz"), "{name}: {error}");
    }
}
