//! Sources on this machine.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::{Duration, SystemTime};

use gantry_artifacts::{ErrorKind, Limits};

use crate::{Harness, files, names};

fn write(path: &std::path::Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

#[tokio::test]
async fn directory_copy_is_independent_of_later_edits() {
    let harness = Harness::new();
    let source = harness.dir.path().join("source");
    write(&source.join("model.json"), "one");
    write(&source.join("sub/data.bin"), "data");
    let uri = source.to_str().unwrap();
    let first = harness.fetch(uri).await.unwrap();
    assert_eq!(names(&first), ["model.json", "sub/data.bin"]);
    fs::write(source.join("model.json"), "two").unwrap();
    assert_eq!(fs::read(first.path.join("model.json")).unwrap(), b"one");
    let second = harness.fetch(&format!("file://{uri}")).await.unwrap();
    assert_ne!(first.digest, second.digest);
    assert_eq!(fs::read(second.path.join("model.json")).unwrap(), b"two");
    harness.assert_no_leftovers();
}

#[tokio::test]
async fn unchanged_source_is_not_copied_again() {
    let harness = Harness::new();
    // The files of this crate are older than any test run, unless one was edited this moment.
    let uri = concat!(env!("CARGO_MANIFEST_DIR"), "/src/uri");
    let settled = fs::read_dir(uri).unwrap().flatten().all(|entry| {
        use std::os::unix::fs::MetadataExt as _;
        let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(entry.metadata().unwrap().ctime() as u64);
        changed + Duration::from_secs(4) < SystemTime::now()
    });
    let first = harness.fetch(uri).await.unwrap();
    let second = harness.fetch(uri).await.unwrap();
    assert!(!first.from_cache && first.digest == second.digest);
    assert!(second.from_cache || !settled, "sizes, times and inodes are known");
}

#[tokio::test]
async fn one_file_and_versions() {
    let harness = Harness::new();
    let root = harness.dir.path().join("m");
    write(&root.join("model-settings.json"), "{}");
    write(&root.join("1/model.bin"), "1");
    write(&root.join("2/model.bin"), "2");
    let uri = root.to_str().unwrap();
    assert_eq!(names(&harness.fetch(uri).await.unwrap()), ["2/model.bin", "model-settings.json"]);
    assert_eq!(names(&harness.version(uri, 1).await.unwrap()), ["1/model.bin", "model-settings.json"]);
    assert!(harness.version(uri, 5).await.unwrap_err().to_string().contains("present are 1, 2"));
    let one = root.join("1/model.bin");
    assert_eq!(
        files(&harness.fetch(one.to_str().unwrap()).await.unwrap()),
        [("model.bin".to_owned(), b"1".to_vec())]
    );
    let error = harness.version(one.to_str().unwrap(), 1).await.unwrap_err();
    assert!(error.to_string().contains("is one file"), "{error}");
}

#[tokio::test]
async fn invalid_local_sources_are_rejected() {
    let harness = Harness::with(|config| {
        config.limits = Limits { bytes: 1000, files: 4, depth: 3, ..Limits::default() }
    });
    let dir = harness.dir.path();
    write(&dir.join("many/a/1"), "x");
    for i in 0..6 {
        write(&dir.join(format!("many/{i}.txt")), "x");
    }
    write(&dir.join("deep/a/b/c/d"), "x");
    write(&dir.join("big/a"), &"x".repeat(2000));
    write(&dir.join("zero/a"), "");
    fs::create_dir_all(dir.join("none")).unwrap();
    fs::create_dir_all(dir.join("loop")).unwrap();
    symlink(dir.join("loop"), dir.join("loop/again")).unwrap();
    fs::create_dir_all(dir.join("broken")).unwrap();
    symlink("/nonexistent/target", dir.join("broken/link")).unwrap();
    let socket = dir.join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    for (name, part, kind) in [
        ("missing", "cannot read the local source", ErrorKind::Permanent),
        ("many", "more than 4 files", ErrorKind::TooLarge),
        ("deep", "deeper than 3", ErrorKind::Permanent),
        ("big", "more than 1000 bytes", ErrorKind::TooLarge),
        ("zero", "is empty", ErrorKind::Permanent),
        ("none", "is empty", ErrorKind::Permanent),
        ("loop", "deeper than 3", ErrorKind::Permanent),
        ("broken", "cannot read", ErrorKind::Permanent),
        ("socket", "pipe, socket or device", ErrorKind::Permanent),
    ] {
        let error = harness.fetch(dir.join(name).to_str().unwrap()).await.expect_err(name);
        assert!(error.to_string().contains(part) && error.kind() == kind, "{name}: {error}");
    }
    harness.assert_no_leftovers();
}

#[tokio::test]
async fn links_out_of_the_folder_are_rejected() {
    let harness = Harness::new();
    let dir = harness.dir.path();
    write(&dir.join("outside/key"), "s");
    for (folder, target) in [("file", "../outside/key"), ("folder", "../outside")] {
        write(&dir.join(folder).join("model"), "m");
        symlink(target, dir.join(folder).join("link")).unwrap();
        let error = harness.fetch(dir.join(folder).to_str().unwrap()).await.expect_err(folder);
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains("a link leads out of the folder, to "), "{error}");
    }
    write(&dir.join("inside/data/model"), "m");
    symlink("data/model", dir.join("inside/model")).unwrap();
    let inside = harness.fetch(dir.join("inside").to_str().unwrap()).await.unwrap();
    assert_eq!(names(&inside), ["data/model", "model"]);
}

#[tokio::test]
async fn weights_beside_an_onnx_file_come_with_it() {
    let harness = Harness::new();
    let dir = harness.dir.path();
    for name in ["net.onnx", "net.onnx.data", "net.onnx_data", "net.onnxx", "other.onnx", "other.onnx.data"] {
        write(&dir.join("models").join(name), name);
    }
    symlink("/etc/passwd", dir.join("models/net.onnx.link")).unwrap();
    let fetched = harness.fetch(dir.join("models/net.onnx").to_str().unwrap()).await.unwrap();
    assert_eq!(names(&fetched), ["net.onnx", "net.onnx.data", "net.onnx_data"]);
}

#[tokio::test]
async fn sources_outside_allowed_roots_are_rejected() {
    let outside = tempfile::tempdir().unwrap();
    write(&outside.path().join("secret/key"), "s");
    let inside = tempfile::tempdir().unwrap();
    write(&inside.path().join("ok/model"), "m");
    write(&inside.path().join("mounted/..data/model"), "m");
    symlink("..data/model", inside.path().join("mounted/model")).unwrap();
    symlink(outside.path().join("secret"), inside.path().join("link")).unwrap();
    write(&inside.path().join("mixed/model"), "m");
    symlink(outside.path().join("secret/key"), inside.path().join("mixed/key")).unwrap();
    let roots = vec![inside.path().to_owned()];
    let harness = Harness::with(|config| config.local_roots = Some(roots));
    let at = |path: &str| format!("{}/{path}", inside.path().display());
    assert_eq!(harness.fetch(&at("ok")).await.unwrap().bytes, 1);
    assert_eq!(names(&harness.fetch(&at("mounted")).await.unwrap()), ["model"], "as in a mounted ConfigMap");
    let escape = format!("ok/../../{}/secret", outside.path().file_name().unwrap().to_str().unwrap());
    for path in ["link", "mixed", &escape] {
        let error = harness.fetch(&at(path)).await.expect_err(path);
        assert_eq!(error.kind(), ErrorKind::Denied, "{path}: {error}");
    }
    assert_eq!(harness.fetch("/etc").await.unwrap_err().kind(), ErrorKind::Denied);
}

#[tokio::test]
async fn secret_paths_are_never_a_source() {
    let dir = tempfile::tempdir().unwrap();
    let at = |path: &str| format!("{}/{path}", dir.path().display());
    write(&dir.path().join("secrets/s3.yaml"), "key");
    write(&dir.path().join("token"), "key");
    write(&dir.path().join("ok/model"), "m");
    write(&dir.path().join("mixed/model"), "m");
    symlink(dir.path().join("token"), dir.path().join("mixed/linked")).unwrap();
    symlink(dir.path().join("secrets"), dir.path().join("link")).unwrap();
    for roots in [None, Some(vec![dir.path().to_owned()])] {
        let harness = Harness::with(|config| {
            config.local_roots = roots;
            config.secret_paths.push(dir.path().join("secrets"));
            let token = at("token");
            config.env = std::sync::Arc::new(move |name| {
                (name == "AWS_WEB_IDENTITY_TOKEN_FILE").then(|| token.clone())
            });
        });
        assert_eq!(harness.fetch(&at("ok")).await.unwrap().bytes, 1);
        for path in
            ["secrets", "secrets/s3.yaml", "token", "mixed", "link", "link/s3.yaml", "ok/../secrets", ""]
        {
            let error = harness.fetch(&at(path)).await.expect_err(path);
            assert_eq!(error.kind(), ErrorKind::Denied, "{path}: {error}");
        }
        harness.assert_no_leftovers();
    }
}
