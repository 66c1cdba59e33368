//! HTTP downloads with faults.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine as _;
use gantry_artifacts::{ErrorKind, Limits, Request, Timeouts, Uri};

use crate::server::{Response, Server};
use crate::{Harness, Recorder, content, files};

const SIZE: usize = 3 << 20;

#[tokio::test]
async fn unchanged_file_is_not_downloaded_again() {
    let body = content(SIZE);
    let sent = body.clone();
    let server = Server::start(move |seen| Response::file(seen, &sent, "\"v1\"")).await;
    let harness = Harness::new();
    let progress = Recorder::default();
    let request = Request::new(Uri::parse(&server.url("/a%20b/model.onnx?sig=x")).unwrap());
    let first = harness.fetcher.fetch(&request, &progress).await.unwrap();
    assert_eq!(files(&first), [("model.onnx".to_owned(), body)]);
    assert!(!first.from_cache && first.bytes == SIZE as u64 && first.digest.len() == 64);
    assert_eq!(progress.bytes.lock().unwrap().last(), Some(&(SIZE as u64, Some(SIZE as u64))));
    let second = harness.fetcher.fetch(&request, &progress).await.unwrap();
    assert!(second.from_cache && second.digest == first.digest);
    assert_eq!(server.seen().last().unwrap().header("if-none-match"), Some("\"v1\""));
    harness.assert_no_leftovers();
}

#[tokio::test]
async fn interrupted_download_is_resumed() {
    let body = content(SIZE);
    let sent = body.clone();
    let server = Server::start(move |seen| {
        let answer = Response::file(seen, &sent, "\"v1\"");
        match seen.offset() {
            None => answer.cut(SIZE / 3),
            Some(offset) if offset < SIZE / 2 => answer.cut(SIZE / 3),
            Some(_) => answer,
        }
    })
    .await;
    let harness = Harness::new();
    let fetched = harness.fetch(&server.url("/model.bin")).await.unwrap();
    assert_eq!(files(&fetched)[0].1, body);
    let seen = server.seen();
    assert_eq!(seen.len(), 3);
    assert!(seen[1].offset().unwrap() > 0 && seen[1].header("if-range") == Some("\"v1\""));
    assert!(seen[2].offset().unwrap() > seen[1].offset().unwrap());
}

#[tokio::test]
async fn file_changed_during_download_restarts() {
    let (old, new) = (content(SIZE), content(SIZE + 5));
    let expected = new.clone();
    let server = Server::start(move |seen| match seen.offset() {
        None => Response::file(seen, &old, "\"v1\"").cut(SIZE / 2),
        Some(_) => Response::file(seen, &new, "\"v2\""),
    })
    .await;
    let harness = Harness::new();
    let fetched = harness.fetch(&server.url("/model.bin")).await.unwrap();
    assert_eq!(files(&fetched)[0].1, expected);
}

#[tokio::test]
async fn interrupted_download_without_validator_restarts() {
    let body = content(SIZE);
    let server = Server::script([Response::ok(body.clone()).cut(SIZE / 2), Response::ok(body.clone())]).await;
    let harness = Harness::new();
    let fetched = harness.fetch(&server.url("/model.bin")).await.unwrap();
    assert_eq!(files(&fetched)[0].1, body);
    assert!(server.seen().iter().all(|seen| seen.offset().is_none()));
}

#[tokio::test]
async fn mismatched_partial_responses_are_not_appended() {
    let body = content(SIZE);
    let half = SIZE / 2;
    let whole = format!("bytes {half}-{}/{SIZE}", SIZE - 1);
    let lies: Vec<(&str, Response)> = vec![
        ("from the beginning", Response::part(&body, 0).header("etag", "\"v1\"")),
        ("another offset", Response::part(&body, half + 1).header("etag", "\"v1\"")),
        ("another version", Response::part(&body, half).header("etag", "\"v2\"")),
        ("no range at all", Response::status(206).header("etag", "\"v1\"")),
        ("another total", Response::part(&content(SIZE + 9), half).header("etag", "\"v1\"")),
        ("nonsense", Response::status(206).header("content-range", "bytes x-y/z")),
        ("too short for its range", Response::status(206).header("content-range", whole)),
    ];
    for (name, lie) in lies {
        let honest = body.clone();
        let first = AtomicBool::new(true);
        let server = Server::start(move |seen| match seen.offset() {
            Some(_) => lie.clone(),
            None if first.swap(false, Ordering::SeqCst) => {
                Response::ok(honest.clone()).header("etag", "\"v1\"").cut(half)
            }
            None => Response::ok(honest.clone()).header("etag", "\"v1\""),
        })
        .await;
        let harness = Harness::new();
        let fetched = harness.fetch(&server.url("/model.bin")).await;
        let fetched = fetched.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(files(&fetched)[0].1, body, "{name}");
        assert!(server.seen().iter().any(|seen| seen.offset().is_some()), "{name}: never resumed");
    }
}

#[tokio::test]
async fn unrequested_partial_response_is_rejected() {
    let server = Server::script([Response::part(&content(100), 50)]).await;
    let error = Harness::new().fetch(&server.url("/model.bin")).await.unwrap_err();
    assert!(error.to_string().contains("not requested"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Permanent);
}

#[tokio::test]
async fn content_length_mismatch_is_rejected() {
    let body = content(1000);
    let short =
        Server::script([Response::ok(body.clone()).length(2000).cut(1000), Response::ok(body.clone())]).await;
    assert_eq!(Harness::new().fetch(&short.url("/m.bin")).await.unwrap().bytes, 1000);
    let always_short = Server::script([Response::ok(body).length(2000).cut(1000)]).await;
    let harness = Harness::new();
    let error = harness.fetch(&always_short.url("/m.bin")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
    assert_eq!(always_short.count(), 4, "the first attempt and three retries");
    harness.assert_no_leftovers();
}

#[tokio::test]
async fn overload_is_retried_and_client_errors_are_not() {
    let table: &[(u16, ErrorKind, usize)] = &[
        (429, ErrorKind::Transient, 4),
        (500, ErrorKind::Transient, 4),
        (503, ErrorKind::Transient, 4),
        (400, ErrorKind::Permanent, 1),
        (404, ErrorKind::Permanent, 1),
        (410, ErrorKind::Permanent, 1),
        (401, ErrorKind::Denied, 1),
        (403, ErrorKind::Denied, 1),
        (304, ErrorKind::Permanent, 1),
    ];
    for (status, kind, requests) in table {
        let server = Server::script([Response::status(*status)]).await;
        let url = server.url("/m.bin");
        let error = Harness::new().fetch(&url).await.unwrap_err();
        assert_eq!((error.kind(), server.count()), (*kind, *requests), "{status}: {error}");
        assert!(error.to_string().contains(&url), "{error}");
        if *status != 304 {
            assert_eq!(error.status(), Some(*status));
            assert!(error.to_string().contains(&format!("HTTP {status}")), "{error}");
        }
    }
    let recovers = Server::script([
        Response::status(503).header("retry-after", "0"),
        Response::status(429).header("retry-after", "3600"),
        Response::ok("model"),
    ])
    .await;
    assert_eq!(Harness::new().fetch(&recovers.url("/m.bin")).await.unwrap().bytes, 5);
}

#[tokio::test]
async fn server_and_uri_checksums_are_verified() {
    let body = content(5000);
    let md5 = |bytes: &[u8]| {
        use md5::Digest as _;
        base64::engine::general_purpose::STANDARD.encode(md5::Md5::digest(bytes))
    };
    let good = Response::ok(body.clone()).header("content-md5", md5(&body));
    let bad = Response::ok(body.clone()).header("content-md5", md5(b"other"));
    let once = Server::script([bad.clone(), good]).await;
    assert_eq!(Harness::new().fetch(&once.url("/m.bin")).await.unwrap().bytes, 5000);
    let always = Server::script([bad]).await;
    let harness = Harness::new();
    let error = harness.fetch(&always.url("/m.bin")).await.unwrap_err();
    assert!(error.to_string().contains("Content-MD5") && error.kind() == ErrorKind::Permanent, "{error}");
    harness.assert_no_leftovers();

    let sha256 = crate::sha256(&body);
    let plain = Server::script([Response::ok(body)]).await;
    let harness = Harness::new();
    let pinned = plain.url(&format!("/m.bin#sha256={sha256}"));
    assert!(!harness.fetch(&pinned).await.unwrap().from_cache);
    assert!(harness.fetch(&pinned).await.unwrap().from_cache);
    assert_eq!(plain.count(), 1, "a pinned file needs no second question");
    let error = harness.fetch(&plain.url(&format!("/m.bin#sha256={}", "00".repeat(32)))).await.unwrap_err();
    assert!(error.to_string().contains("#sha256 of storageUri"), "{error}");
}

#[tokio::test]
async fn oversized_bodies_stop_at_the_limit() {
    let limits = Limits { bytes: 4 << 20, ..Limits::default() };
    let endless = Server::script([Response::ok("").endless()]).await;
    let harness = Harness::with(|config| config.limits = limits);
    let error = harness.fetch(&endless.url("/m.bin")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
    let declared = Server::script([Response::ok("x").length(5 << 20)]).await;
    let error = harness.fetch(&declared.url("/m.bin")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
    harness.assert_no_leftovers();
}

#[tokio::test]
async fn empty_body_is_rejected() {
    let server = Server::script([Response::ok("")]).await;
    let error = Harness::new().fetch(&server.url("/m.bin")).await.unwrap_err();
    assert!(error.to_string().contains("0 bytes"), "{error}");
}

#[tokio::test]
async fn silent_and_slow_servers_time_out() {
    let short =
        Timeouts { connect: Duration::from_secs(5), idle: Duration::from_millis(60), min_bytes_per_idle: 0 };
    let silent = Server::script([Response::ok("xx").drip(Duration::from_mins(10))]).await;
    let harness = Harness::with(|config| {
        config.timeouts = short;
        config.retry.retries = 1;
    });
    let error = harness.fetch(&silent.url("/m.bin")).await.unwrap_err();
    assert!(
        error.to_string().contains("sent nothing for") && error.kind() == ErrorKind::Transient,
        "{error}"
    );
    // Every byte comes in time, but together they are too few.
    let drip = Server::script([Response::ok(content(100_000)).drip(Duration::from_millis(5))]).await;
    let harness = Harness::with(|config| {
        config.timeouts = Timeouts { min_bytes_per_idle: 10_000, ..short };
        config.retry.retries = 0;
    });
    let error = harness.fetch(&drip.url("/m.bin")).await.unwrap_err();
    assert!(error.to_string().contains("stalled"), "{error}");
}

#[tokio::test]
async fn redirects_are_followed_with_limits() {
    let target = Server::script([Response::ok("model")]).await;
    let to = target.url("/elsewhere.bin");
    let front = Server::start(move |seen| match seen.path() {
        "/ok.bin" => Response::redirect("/relative.bin"),
        "/relative.bin" => Response::redirect(to.clone()),
        "/loop.bin" => Response::redirect("/loop.bin"),
        "/file.bin" => Response::redirect("file:///etc/passwd"),
        "/gopher.bin" => Response::redirect("gopher://127.0.0.1/"),
        "/user.bin" => Response::redirect("http://user:pass@127.0.0.1/"),
        "/meta.bin" => Response::redirect("http://169.254.169.254/latest/meta-data/"),
        _ => Response::redirect("http://10.0.0.1/"),
    })
    .await;
    let harness = Harness::new();
    let fetched = harness.fetch(&front.url("/ok.bin")).await.unwrap();
    assert_eq!(files(&fetched)[0], ("ok.bin".to_owned(), b"model".to_vec()));
    for (path, part, kind) in [
        ("/loop.bin", "more than 5 redirects", ErrorKind::Permanent),
        ("/file.bin", "scheme `file`", ErrorKind::Denied),
        ("/gopher.bin", "scheme `gopher`", ErrorKind::Denied),
        ("/user.bin", "credentials", ErrorKind::Denied),
        ("/meta.bin", "cloud metadata address", ErrorKind::Denied),
        ("/private.bin", "private address", ErrorKind::Denied),
    ] {
        let error = harness.fetch(&front.url(path)).await.unwrap_err();
        assert!(error.to_string().contains(part) && error.kind() == kind, "{path}: {error}");
    }
}

#[tokio::test]
async fn compressed_response_is_rejected() {
    let server = Server::script([Response::ok("x").header("content-encoding", "gzip")]).await;
    let error = Harness::new().fetch(&server.url("/m.bin")).await.unwrap_err();
    assert!(error.to_string().contains("compressed"), "{error}");
}

#[tokio::test]
async fn connections_are_reused_and_closed_ones_replaced() {
    let server = Server::start(|seen| Response::ok(seen.path().to_owned())).await;
    let harness = Harness::new();
    for i in 0..10 {
        harness.fetch(&server.url(&format!("/{i}.bin"))).await.unwrap();
    }
    assert_eq!((server.count(), server.connections()), (10, 1));
    // Announces that it keeps the connection, and closes it after each answer.
    let rude = Server::start(|seen| Response::ok(seen.path().to_owned()).hang_up()).await;
    let harness = Harness::with(|config| config.retry.retries = 0);
    for i in 0..10 {
        harness.fetch(&rude.url(&format!("/{i}.bin"))).await.unwrap();
    }
}

#[tokio::test]
async fn secret_headers_are_sent_only_to_their_host() {
    let other = Server::script([Response::ok("model")]).await;
    // Another name for the same machine is another host.
    let elsewhere = format!("http://localhost:{}/m.bin", other.port());
    let server = Server::script([Response::redirect(elsewhere)]).await;
    let secret = format!(
        "{{type: http, parameters: {{url: '{}', bearer_token: tok, headers: 'X-Key,val'}}}}",
        server.url("")
    );
    let mut request = Request::new(Uri::parse(&server.url("/m.bin")).unwrap());
    request.secret = Some(gantry_artifacts::Secret::parse(&secret).unwrap());
    let harness = Harness::new();
    harness.request(&request).await.unwrap();
    let first = &server.seen()[0];
    assert_eq!((first.header("authorization"), first.header("x-key")), (Some("Bearer tok"), Some("val")));
    let second = &other.seen()[0];
    assert_eq!((second.header("authorization"), second.header("x-key")), (None, None));
    request.uri = Uri::parse(&format!("http://localhost:{}/m.bin", other.port())).unwrap();
    let error = harness.request(&request).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Denied && other.count() == 1, "{error}");
}

#[tokio::test]
async fn byte_per_connection_server_is_abandoned() {
    let body = content(10_000);
    let server = Server::start(move |seen| Response::file(seen, &body, "\"v1\"").cut(1)).await;
    let error = Harness::new().fetch(&server.url("/m.bin")).await.unwrap_err();
    assert_eq!((error.kind(), server.count()), (ErrorKind::Transient, 4), "{error}");
}
