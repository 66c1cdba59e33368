//! Certificates that change while connections are made.

use crate::{
    authority::{Authority, put},
    world::{World, ask, serve},
};
use gantry_tls::{Client, ClientFiles, Server};
use std::time::{Duration, Instant};

#[tokio::test]
async fn a_new_certificate_is_used_by_itself() {
    let world = World::new();
    let files = world.server_files(true);
    let at = serve(Some(Server::open(files).unwrap())).await.to_string();
    let client = world.client_files();
    assert_eq!(ask(&at, Some(Client::open(client.clone()).unwrap())).await, Ok(()));
    // The server moves to another CA; a client that knows only that one gets in as soon as it has.
    let next = Authority::new("next CA");
    let next_ca = world.directory.path().join("next.crt");
    next.write(&next_ca);
    let moved = ClientFiles { ca: next_ca, ..client };
    assert!(ask(&at, Some(Client::open(moved.clone()).unwrap())).await.is_err());
    put(world.directory.path(), "server", next.sign(&["127.0.0.1"]));
    let deadline = Instant::now() + Duration::from_mins(1);
    while let Err(error) = ask(&at, Some(Client::open(moved.clone()).unwrap())).await {
        assert!(Instant::now() < deadline, "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn broken_files_change_nothing() {
    let world = World::new();
    let files = world.server_files(true);
    let server = Server::read(files.clone()).unwrap();
    let at = serve(Some(server.clone())).await.to_string();
    let client = Client::open(world.client_files()).unwrap();
    let whole = (std::fs::read(&files.certificate).unwrap(), std::fs::read(&files.key).unwrap());
    let half = whole.0.get(..whole.0.len() / 2).unwrap().to_vec();
    let other_key = world.authority.sign(&["127.0.0.1"]).1.into_bytes();
    let broken: [(&std::path::Path, Option<&[u8]>, &str); 6] = [
        (&files.certificate, Some(b""), "holds no certificate"),
        (&files.certificate, Some(&half), "server.crt"),
        (&files.certificate, None, "cannot be read"),
        (&files.key, Some(b"no key"), "holds no private key"),
        (&files.key, Some(&other_key), "is not the key of the certificate"),
        (&world.ca, Some(b"no CA"), "ca.crt holds no certificate"),
    ];
    for (path, text, says) in broken {
        let before = std::fs::read(path).unwrap();
        match text {
            Some(text) => std::fs::write(path, text).unwrap(),
            None => std::fs::remove_file(path).unwrap(),
        }
        let refused = server.look_again().unwrap_err();
        assert!(refused.contains(says), "{refused}");
        assert_eq!(ask(&at, Some(client.clone())).await, Ok(()), "the last good ones stay in use");
        std::fs::write(path, before).unwrap();
        assert_eq!(server.look_again(), Ok(()));
    }
}

#[tokio::test]
async fn a_client_connects_with_the_certificate_it_has_then() {
    let world = World::new();
    let at = serve(Some(Server::open(world.server_files(true)).unwrap())).await.to_string();
    let stranger = Authority::new("another CA");
    let paths = put(world.directory.path(), "client", stranger.sign(&["client"]));
    let files = ClientFiles {
        ca: world.ca.clone(),
        identity: Some((paths.certificate, paths.key)),
        server_name: None,
    };
    let client = Client::read(files).unwrap();
    assert!(ask(&at, Some(client.clone())).await.is_err());
    put(world.directory.path(), "client", world.authority.sign(&["client"]));
    assert_eq!(client.look_again(), Ok(()));
    assert_eq!(ask(&at, Some(client)).await, Ok(()));
}

/// A clone in use follows the same files; what is let go of is not followed.
#[tokio::test]
async fn a_client_that_lost_trust_is_refused_at_its_next_connection() {
    let world = World::new();
    let files = world.server_files(true);
    let server = Server::read(files.clone()).unwrap();
    let at = serve(Some(server.clone())).await.to_string();
    let client = Client::open(world.client_files()).unwrap();
    assert_eq!(ask(&at, Some(client.clone())).await, Ok(()));
    let other = Authority::new("only these");
    let other_ca = world.directory.path().join("other.crt");
    other.write(&other_ca);
    // The client's own copy of the CA stays as it is: only the server stops to trust.
    let kept = world.directory.path().join("kept.crt");
    std::fs::copy(&world.ca, &kept).unwrap();
    let client_files = ClientFiles { ca: kept, ..world.client_files() };
    let client = Client::open(client_files).unwrap();
    std::fs::copy(&other_ca, &world.ca).unwrap();
    assert_eq!(server.look_again(), Ok(()));
    assert!(ask(&at, Some(client)).await.is_err(), "no resumed session may carry old trust over");
}
