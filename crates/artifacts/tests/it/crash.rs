//! `kill -9` in the middle of a download, with a real process.

use std::process::{Command, Stdio};
use std::sync::Arc;

use gantry_artifacts::{Fetcher, Request, Silent, Uri};

use crate::server::{Response, Server};
use crate::{config, content, files};

/// Runs in the process that is killed: fetches the URI in the environment.
#[tokio::test]
#[ignore = "the child of `killed_download_leaves_no_files`"]
async fn child() {
    let (Ok(dir), Ok(uri)) = (std::env::var("GANTRY_TEST_DIR"), std::env::var("GANTRY_TEST_URI")) else {
        return;
    };
    let fetcher = Fetcher::new(config(dir.as_ref(), |_| {})).unwrap();
    fetcher.fetch(&Request::new(Uri::parse(&uri).unwrap()), &Silent).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_download_leaves_no_files() {
    let body = content(3 << 20);
    let sent = body.clone();
    let begun = Arc::new(tokio::sync::Notify::new());
    let signal = Arc::clone(&begun);
    let server = Server::start(move |seen| match seen.path() {
        // Most of the file, and then nothing more.
        "/slow.bin" => {
            signal.notify_one();
            Response::ok(sent.clone()).stall(2 << 20)
        }
        _ => Response::ok(sent.clone()),
    })
    .await;
    let dir = tempfile::tempdir().unwrap();
    let kept = {
        let fetcher = Fetcher::new(config(dir.path(), |_| {})).unwrap();
        let request = Request::new(Uri::parse(&server.url("/kept.bin")).unwrap());
        fetcher.fetch(&request, &Silent).await.unwrap().path
    };
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash::child", "--ignored", "--nocapture"])
        .env("GANTRY_TEST_DIR", dir.path())
        .env("GANTRY_TEST_URI", server.url("/slow.bin"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    begun.notified().await;
    let tmp = dir.path().join("cache/tmp");
    let partial = || {
        walk(&tmp)
            .into_iter()
            .any(|path| path.ends_with("slow.bin") && path.metadata().is_ok_and(|found| found.len() > 0))
    };
    while !partial() {
        assert!(child.try_wait().unwrap().is_none(), "the child must be downloading");
        tokio::task::yield_now().await;
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(partial(), "a killed process cannot clean up");

    let fetcher = Fetcher::new(config(dir.path(), |_| {})).unwrap();
    assert!(!partial(), "the next start does");
    assert!(kept.join("kept.bin").exists(), "complete artifacts survive");
    let fetched =
        fetcher.fetch(&Request::new(Uri::parse(&server.url("/m.bin")).unwrap()), &Silent).await.unwrap();
    assert_eq!(files(&fetched)[0].1, body);
}

fn walk(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.path().is_dir() { found.extend(walk(&entry.path())) } else { found.push(entry.path()) }
    }
    found
}
