//! An etcd with users.

use super::{Etcd, runtime};
use crate::{batch, models};
use gantry_store::etcd::{Candidate, Credentials, Location, Settings};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

fn candidate(etcd: &Etcd, password: &str) -> Candidate {
    let location = Location { endpoints: etcd.cluster.endpoints(), prefix: "/test".into() };
    let credentials = Some(Credentials { user: "root".into(), password: password.into() });
    let lease = Duration::from_secs(5);
    Candidate::start(Settings { location, tls: None, credentials, name: "test".into(), lease }).unwrap()
}

/// A call of etcd's JSON API.
fn post(address: &str, path: &str, body: &str) {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    let request =
        format!("POST {path} HTTP/1.0\r\nhost: {address}\r\ncontent-length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.0 200"), "{path}: {answer}");
}

#[test]
fn user_is_authenticated_again_when_the_token_is_lost() {
    let test = "user_is_authenticated_again_when_the_token_is_lost";
    let Some(mut etcd) = Etcd::start(test, 1, &[]) else { return };
    let address = etcd.cluster.endpoints()[0].clone();
    post(&address, "/v3/auth/user/add", r#"{"name":"root","password":"secret"}"#);
    post(&address, "/v3/auth/role/add", r#"{"name":"root"}"#);
    post(&address, "/v3/auth/user/grant", r#"{"user":"root","role":"root"}"#);
    post(&address, "/v3/auth/enable", "{}");
    let runtime = runtime();
    let wrong = candidate(&etcd, "guess");
    let reason = runtime.block_on(async {
        let mut reasons = wrong.reason();
        tokio::select! {
            _ = wrong.campaign() => panic!("it leads with a wrong password"),
            reason = reasons.wait_for(|reason| reason.to_string().contains("GANTRY_ETCD")) => {
                reason.unwrap().to_string()
            }
        }
    });
    assert!(reason.contains("authentication failed") && !reason.contains("guess"), "{reason}");
    let right = candidate(&etcd, "secret");
    let (store, _leadership) = runtime.block_on(right.campaign()).unwrap();
    store.commit(&batch(1)).unwrap();
    // A restart forgets the tokens.
    etcd.cluster.kill(0);
    etcd.cluster.restart(0).unwrap();
    store.commit(&batch(2)).unwrap();
    assert!(!models(&store).is_empty());
    store.check().unwrap();
}
