//! The cache: one download for many, eviction that respects leases, nothing left after a crash.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use gantry_artifacts::{ErrorKind, Fetcher, Request, Silent, Uri};

use crate::server::{Response, Server};
use crate::{Harness, config, content, files};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn equal_requests_share_one_download() {
    let body = content(300_000);
    let server = Server::script([Response::ok(body).header("etag", "\"v\"")]).await;
    let harness = Arc::new(Harness::new());
    let url = server.url("/m.bin");
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let (harness, url) = (Arc::clone(&harness), url.clone());
            tokio::spawn(async move { harness.fetch(&url).await.unwrap().digest })
        })
        .collect();
    let mut digests = Vec::new();
    for task in tasks {
        digests.push(task.await.unwrap());
    }
    digests.dedup();
    assert_eq!(digests.len(), 1);
    let complete = server.seen().iter().filter(|seen| seen.header("if-none-match").is_none()).count();
    assert_eq!(complete, 1, "the others waited or revalidated");
    harness.assert_no_leftovers();
}

#[tokio::test]
async fn cancelled_caller_does_not_cancel_shared_download() {
    let started = Arc::new(tokio::sync::Notify::new());
    let signal = Arc::clone(&started);
    let requests = AtomicUsize::new(0);
    let server = Server::start(move |_| {
        signal.notify_one();
        let first = requests.fetch_add(1, Ordering::SeqCst) == 0;
        if first {
            Response::ok("xxxx").drip(std::time::Duration::from_mins(10))
        } else {
            Response::ok("model")
        }
    })
    .await;
    let harness = Harness::new();
    let request = Request::new(Uri::parse(&server.url("/m.bin")).unwrap());
    let (fetcher, first) = (harness.fetcher.clone(), request.clone());
    let leader = tokio::spawn(async move { fetcher.fetch(&first, &Silent).await });
    started.notified().await;
    let (fetcher, second) = (harness.fetcher.clone(), request.clone());
    let follower = tokio::spawn(async move { fetcher.fetch(&second, &Silent).await });
    tokio::task::yield_now().await;
    leader.abort();
    let _ = leader.await;
    assert_eq!(follower.await.unwrap().unwrap().bytes, 5);
    // A file that the cancelled download was creating on a blocking thread goes when that thread is done.
    tokio::time::timeout(std::time::Duration::from_secs(30), async {
        while !harness.leftovers().is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap_or_else(|_| harness.assert_no_leftovers());
}

#[tokio::test]
async fn eviction_removes_least_recently_used_unleased_entry() {
    let server =
        Server::start(|seen| Response::file(seen, format!("{:>1000}", seen.path()).as_bytes(), "\"v\""))
            .await;
    let harness = Harness::with(|config| config.cache_limit = 3000);
    let get = |name: &str| {
        let url = server.url(name);
        let harness = &harness;
        async move { harness.fetch(&url).await.unwrap() }
    };
    let held = get("/a").await;
    let b = get("/b").await;
    let c = get("/c").await;
    let (b_path, c_path) = (b.path.clone(), c.path.clone());
    drop((b, c));
    // Used again, so that `c` is now the least recently used.
    assert!(get("/b").await.from_cache);
    let d = get("/d").await;
    assert!(held.path.exists() && d.path.exists() && b_path.exists(), "in use or recent");
    assert!(!c_path.exists(), "the oldest unused entry goes");
    assert_eq!(files(&held)[0].1.len(), 1000);
    let indexed = std::fs::read_dir(harness.dir.path().join("cache/index")).unwrap().count();
    assert!(indexed <= 3, "what was known about an evicted artifact is forgotten: {indexed}");
    assert!(!get("/c").await.from_cache);
    // All in use: nothing may go, even above the limit.
    let all = [get("/a").await, get("/c").await, get("/d").await, get("/e").await, get("/f").await];
    assert!(all.iter().all(|fetched| fetched.path.exists()));

    let big = Server::script([Response::ok(content(5000))]).await;
    let error = harness.fetch(&big.url("/big")).await.unwrap_err();
    assert!(error.kind() == ErrorKind::TooLarge && error.to_string().contains("cache"), "{error}");
    harness.assert_no_leftovers();
}

#[tokio::test]
async fn leases_of_other_processes_prevent_eviction() {
    let server = Server::start(|seen| Response::ok(format!("{:>1000}", seen.path()))).await;
    let harness = Harness::with(|config| config.cache_limit = 1500);
    let other = Fetcher::new(config(harness.dir.path(), |config| config.cache_limit = 1500)).unwrap();
    let request = Request::new(Uri::parse(&server.url("/a")).unwrap());
    let held = other.fetch(&request, &Silent).await.unwrap();
    harness.fetch(&server.url("/b")).await.unwrap();
    harness.fetch(&server.url("/c")).await.unwrap();
    assert!(held.path.join("a").exists());
}

#[tokio::test]
async fn leftovers_of_dead_processes_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let tmp = dir.path().join("cache/tmp");
    for dead in ["999-1-0", "999-2-0"] {
        std::fs::create_dir_all(tmp.join(dead).join("7/files")).unwrap();
        std::fs::write(tmp.join(dead).join("7/files/half"), "x").unwrap();
    }
    std::fs::write(tmp.join("999-1-0/lock"), "").unwrap();
    let first = Fetcher::new(config(dir.path(), |_| {})).unwrap();
    let sessions =
        || std::fs::read_dir(&tmp).unwrap().flatten().filter(|entry| entry.path().is_dir()).count();
    assert_eq!(sessions(), 1, "only the living session");
    let second = Fetcher::new(config(dir.path(), |_| {})).unwrap();
    assert_eq!(sessions(), 2, "a second process leaves the first alone");
    drop((first, second));
    assert_eq!(sessions(), 0);
}

#[tokio::test]
async fn damaged_entry_is_refetched() {
    let server = Server::start(|seen| Response::file(seen, b"model", "\"v\"")).await;
    let harness = Harness::new();
    let url = server.url("/m.bin");
    let path = harness.fetch(&url).await.unwrap().path;
    std::fs::remove_file(path.join("m.bin")).unwrap();
    let again = harness.fetch(&url).await.unwrap();
    assert!(!again.from_cache);
    assert_eq!(files(&again), [("m.bin".to_owned(), b"model".to_vec())]);
    let read_only = std::fs::metadata(again.path.join("m.bin")).unwrap().permissions().readonly();
    assert!(read_only, "a served file must not be changed by accident");
}

#[tokio::test]
async fn equal_content_is_stored_once() {
    let server = Server::script([Response::ok("model")]).await;
    let harness = Harness::new();
    let one = harness.fetch(&server.url("/x/m.bin")).await.unwrap();
    let two = harness.fetch(&server.url("/y/m.bin")).await.unwrap();
    assert_eq!((one.path, one.digest), (two.path, two.digest));
}

#[tokio::test]
async fn unreachable_source_falls_back_to_cached_copy() {
    let up = Arc::new(Mutex::new(true));
    let state = Arc::clone(&up);
    let server =
        Server::start(
            move |_| if *state.lock().unwrap() { Response::ok("model") } else { Response::status(503) },
        )
        .await;
    let url = server.url("/m.bin");
    let harness = Harness::new();
    harness.fetch(&url).await.unwrap();
    *up.lock().unwrap() = false;
    let stale = harness.fetch(&url).await.unwrap();
    assert!(stale.stale && stale.from_cache);
    // Also after a restart.
    let dir = harness.dir;
    drop(harness.fetcher);
    let fetcher = Fetcher::new(config(dir.path(), |_| {})).unwrap();
    let request = Request::new(Uri::parse(&url).unwrap());
    assert!(fetcher.fetch(&request, &Silent).await.unwrap().stale);
    let strict = Fetcher::new(config(dir.path(), |config| config.use_stale = false)).unwrap();
    assert_eq!(strict.fetch(&request, &Silent).await.unwrap_err().kind(), ErrorKind::Transient);
    // Another version or other credentials are another request, with no copy to fall back to.
    let secret = gantry_artifacts::Secret::parse(
        "{type: http, parameters: {url: 'http://127.0.0.1', bearer_token: t}}",
    )
    .unwrap();
    let other = Request { secret: Some(secret), ..request };
    assert!(fetcher.fetch(&other, &Silent).await.is_err());
}
