//! Certificate reload.

use crate::{
    authority::{Authority, put},
    harness::{Harness, check_health, serve},
};
use gantry_tls::{Client, ClientFiles, Server};
use std::time::{Duration, Instant};

#[tokio::test]
async fn changed_files_are_reloaded() {
    let harness = Harness::new();
    let files = harness.server_files(true);
    let address = serve(Some(Server::open(files).unwrap())).await.to_string();
    let client = harness.client_files();
    assert_eq!(check_health(&address, Some(Client::open(client.clone()).unwrap())).await, Ok(()));
    // The server moves to another CA: a client that trusts only the new one connects after the reload.
    let next = Authority::new("next CA");
    let next_ca = harness.directory.path().join("next.crt");
    next.write(&next_ca);
    let moved = ClientFiles { ca: next_ca, ..client };
    assert!(check_health(&address, Some(Client::open(moved.clone()).unwrap())).await.is_err());
    put(harness.directory.path(), "server", next.sign(&["127.0.0.1"]));
    let deadline = Instant::now() + Duration::from_mins(1);
    while let Err(error) = check_health(&address, Some(Client::open(moved.clone()).unwrap())).await {
        assert!(Instant::now() < deadline, "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn invalid_files_keep_the_previous_certificate() {
    let harness = Harness::new();
    let files = harness.server_files(true);
    let server = Server::read(files.clone()).unwrap();
    let address = serve(Some(server.clone())).await.to_string();
    let client = Client::open(harness.client_files()).unwrap();
    let whole = (std::fs::read(&files.certificate).unwrap(), std::fs::read(&files.key).unwrap());
    let half = whole.0.get(..whole.0.len() / 2).unwrap().to_vec();
    let other_key = harness.authority.sign(&["127.0.0.1"]).1.into_bytes();
    let invalid: [(&std::path::Path, Option<&[u8]>, &str); 6] = [
        (&files.certificate, Some(b""), "has no certificate"),
        (&files.certificate, Some(&half), "server.crt"),
        (&files.certificate, None, "cannot read"),
        (&files.key, Some(b"no key"), "has no usable private key"),
        (&files.key, Some(&other_key), "does not match the certificate"),
        (&harness.ca, Some(b"no CA"), "ca.crt has no certificate"),
    ];
    for (path, text, message) in invalid {
        let before = std::fs::read(path).unwrap();
        match text {
            Some(text) => std::fs::write(path, text).unwrap(),
            None => std::fs::remove_file(path).unwrap(),
        }
        let refused = server.reload().unwrap_err();
        assert!(refused.contains(message), "{refused}");
        assert_eq!(check_health(&address, Some(client.clone())).await, Ok(()), "previous certificate");
        std::fs::write(path, before).unwrap();
        assert_eq!(server.reload(), Ok(()));
    }
}

#[tokio::test]
async fn client_reconnects_with_reloaded_certificate() {
    let harness = Harness::new();
    let address = serve(Some(Server::open(harness.server_files(true)).unwrap())).await.to_string();
    let other_ca = Authority::new("another CA");
    let paths = put(harness.directory.path(), "client", other_ca.sign(&["client"]));
    let files = ClientFiles {
        ca: harness.ca.clone(),
        identity: Some((paths.certificate, paths.key)),
        server_name: None,
    };
    let client = Client::read(files).unwrap();
    assert!(check_health(&address, Some(client.clone())).await.is_err());
    put(harness.directory.path(), "client", harness.authority.sign(&["client"]));
    assert_eq!(client.reload(), Ok(()));
    assert_eq!(check_health(&address, Some(client)).await, Ok(()));
}

#[tokio::test]
async fn removed_client_ca_rejects_new_connections() {
    let harness = Harness::new();
    let files = harness.server_files(true);
    let server = Server::read(files.clone()).unwrap();
    let address = serve(Some(server.clone())).await.to_string();
    let client = Client::open(harness.client_files()).unwrap();
    assert_eq!(check_health(&address, Some(client.clone())).await, Ok(()));
    let other = Authority::new("only these");
    let other_ca = harness.directory.path().join("other.crt");
    other.write(&other_ca);
    // The client's own copy of the CA stays as it is: only the server's trust changes.
    let kept = harness.directory.path().join("kept.crt");
    std::fs::copy(&harness.ca, &kept).unwrap();
    let client_files = ClientFiles { ca: kept, ..harness.client_files() };
    let client = Client::open(client_files).unwrap();
    std::fs::copy(&other_ca, &harness.ca).unwrap();
    assert_eq!(server.reload(), Ok(()));
    assert!(
        check_health(&address, Some(client)).await.is_err(),
        "session resumption must not bypass the new CA"
    );
}
