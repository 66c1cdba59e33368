//! Key sets in files and at URLs: rotation, outages, sizes.

use crate::{
    Files, bearer,
    issuer::{Issuer, config},
    metric,
};
use gantry_auth::{Auth, Reason};
use serde_json::json;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(40), waiting)
        .await
        .unwrap_or_else(|_| panic!("not in time: {what}"));
}

#[test]
fn rotated_file_replaces_keys_and_forgets_tokens_verified_by_old_ones() {
    let (old, new, files) = (Issuer::new(), Issuer::new(), Files::new());
    files.write("jwks.json", old.jwks());
    let (auth, _) = files.open(&config("jwks.json", ""));
    let (before, after) = (old.token(&json!({})), new.token(&json!({})));
    assert!(bearer(&auth, &before).is_ok() && bearer(&auth, &after).is_err());
    files.write("jwks.json", "{");
    assert!(auth.reload().unwrap_err().to_string().contains("jwks.json"));
    assert!(bearer(&auth, &before).is_ok());
    files.write("jwks.json", new.jwks());
    assert_eq!(auth.reload(), Ok(true));
    assert!(bearer(&auth, &before).is_err() && bearer(&auth, &after).is_ok());
}

#[test]
fn unusable_keys_are_skipped() {
    let (issuer, files) = (Issuer::new(), Files::new());
    let mut keys = issuer.keys();
    keys[2]["use"] = json!("enc");
    keys.push(json!({"kty": "oct", "kid": "secret", "k": "AAAA"}));
    keys.push(json!({"kty": "RSA", "kid": "short", "n": "AQAB", "e": "AQAB"}));
    keys.push(json!({"kty": "EC", "kid": "p384", "crv": "P-384", "x": "AA", "y": "AA"}));
    keys.push(json!(7));
    files.write("jwks.json", json!({ "keys": keys }).to_string());
    let (auth, _) = files.open(&config("jwks.json", ""));
    assert!(bearer(&auth, &issuer.token(&json!({}))).unwrap_err().message.contains("kid"));
    let header = json!({"alg": "ES256", "kid": "ec"});
    assert!(bearer(&auth, &issuer.sign("ES256", &header, &crate::issuer::valid(&json!({})))).is_ok());
}

/// Serves this text, with a status line; nothing while it is empty.
async fn server(body: &Arc<Mutex<String>>) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/keys", listener.local_addr().unwrap());
    let body = Arc::clone(body);
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let response = body.lock().unwrap().clone();
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(response.as_bytes()).await;
        }
    });
    url
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
}

fn reason(auth: &Auth, token: &str) -> Option<Reason> {
    bearer(auth, token).err().map(|denied| denied.reason)
}

#[tokio::test(flavor = "multi_thread")]
async fn key_set_at_a_url_is_fetched_and_survives_an_outage() {
    let (issuer, files) = (Issuer::new(), Files::new());
    let body = Arc::new(Mutex::new("HTTP/1.1 500 Broken\r\ncontent-length: 0\r\n\r\n".to_owned()));
    let url = server(&body).await;
    let (auth, clock) = files.open(&config(&url, "refreshSeconds: 10"));
    // Enough for all requests of this test.
    clock.advance(Duration::from_secs(1));
    let token = issuer.token(&json!({}));
    assert_eq!(reason(&auth, &token), Some(Reason::Unavailable));
    auth.watch();
    let failed = |n| metric(&auth, "gantry_auth_key_set_fetches_total{result=\"failure\"}") >= Some(n);
    until("the first fetch", || failed(1)).await;
    assert_eq!(reason(&auth, &token), Some(Reason::Unavailable));
    *body.lock().unwrap() = ok(&issuer.jwks());
    until("keys", || metric(&auth, "gantry_auth_key_set_fetches_total{result=\"success\"}") == Some(1)).await;
    until("an accepted token", || reason(&auth, &token) != Some(Reason::Unavailable)).await;
    clock.advance(Duration::from_mins(1));
    assert_eq!(reason(&auth, &token), None);
    *body.lock().unwrap() =
        "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n".into();
    until("an outage", || failed(2)).await;
    clock.advance(Duration::from_mins(1));
    assert_eq!(reason(&auth, &issuer.token(&json!({"sub": "other"}))), None);
}
