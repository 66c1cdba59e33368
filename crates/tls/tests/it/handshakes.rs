//! Who may speak with whom.

use crate::{
    authority::Authority,
    world::{World, ask, serve},
};
use gantry_tls::{Client, ClientFiles, Connector, Server, ServerFiles};
use std::time::Duration;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

#[tokio::test]
async fn both_sides_prove_who_they_are() {
    let world = World::new();
    let at = serve(Some(Server::open(world.server_files(true)).unwrap())).await;
    let client = Client::open(world.client_files()).unwrap();
    assert_eq!(ask(&at.to_string(), Some(client.clone())).await, Ok(()));
    assert_eq!(ask(&format!("localhost:{}", at.port()), Some(client)).await, Ok(()));
}

#[tokio::test]
async fn without_a_client_ca_nobody_needs_a_certificate() {
    let world = World::new();
    let at = serve(Some(Server::open(world.server_files(false)).unwrap())).await;
    let files = ClientFiles { identity: None, ..world.client_files() };
    assert_eq!(ask(&at.to_string(), Some(Client::open(files).unwrap())).await, Ok(()));
}

#[tokio::test]
async fn plaintext_is_served_by_the_same_door() {
    let at = serve(None).await;
    assert_eq!(ask(&at.to_string(), None).await, Ok(()));
}

/// Everything that must not pass, with the words that say why.
#[tokio::test]
async fn whoever_cannot_prove_it_is_refused() {
    let world = World::new();
    let stranger = Authority::new("another CA");
    let own = |name: &str, signed| world.put(name, signed);
    let good_server = world.server_files(true);
    let good_client = world.client_files();
    let server_with = |name: &str, signed: (String, String)| {
        let paths = own(name, signed);
        ServerFiles { certificate: paths.certificate, key: paths.key, client_ca: Some(world.ca.clone()) }
    };
    let client_with = |name: &str, signed: (String, String)| {
        let paths = own(name, signed);
        ClientFiles { identity: Some((paths.certificate, paths.key)), ..good_client.clone() }
    };
    let cases = [
        (
            "a server of another CA",
            server_with("s1", stranger.sign(&["127.0.0.1"])),
            good_client.clone(),
            "not signed by the CA that we trust",
        ),
        (
            "a server whose certificate has expired",
            server_with("s2", world.authority.expired(&["127.0.0.1"])),
            good_client.clone(),
            "the other side's certificate has expired",
        ),
        (
            "a server with another name",
            server_with("s3", world.authority.sign(&["scheduler.example"])),
            good_client.clone(),
            "is for DnsName(\"scheduler.example\"), not for 127.0.0.1",
        ),
        (
            "a client without a certificate",
            good_server.clone(),
            ClientFiles { identity: None, ..good_client.clone() },
            "wants a client certificate: name one with --tls-client-cert",
        ),
        (
            "a client of another CA",
            good_server.clone(),
            client_with("c1", stranger.sign(&["client"])),
            "does not know the CA that signed our certificate",
        ),
        (
            "a client whose certificate has expired",
            good_server.clone(),
            client_with("c2", world.authority.expired(&["client"])),
            "our certificate has expired",
        ),
    ];
    for (what, server, client, says) in cases {
        let at = serve(Some(Server::open(server).unwrap())).await;
        let refused = ask(&at.to_string(), Some(Client::open(client).unwrap())).await.expect_err(what);
        assert!(refused.contains(says), "{what}: {refused}");
    }
    // The same server and the same client, when they are right: it was not something else that kept them apart.
    let at = serve(Some(Server::open(good_server).unwrap())).await;
    assert_eq!(ask(&at.to_string(), Some(Client::open(good_client).unwrap())).await, Ok(()));
}

#[tokio::test]
async fn a_server_name_can_be_given() {
    let world = World::new();
    let paths = world.put("named", world.authority.sign(&["scheduler.example"]));
    let files = ServerFiles { certificate: paths.certificate, key: paths.key, client_ca: None };
    let at = serve(Some(Server::open(files).unwrap())).await;
    let named = "scheduler.example".to_owned().try_into().unwrap();
    let files = ClientFiles { server_name: Some(named), ..world.client_files() };
    assert_eq!(ask(&at.to_string(), Some(Client::open(files).unwrap())).await, Ok(()));
}

#[tokio::test]
async fn plaintext_and_tls_do_not_mix_and_say_so() {
    let world = World::new();
    let client = Client::open(world.client_files()).unwrap();
    let plain = serve(None).await;
    let refused = ask(&plain.to_string(), Some(client)).await.unwrap_err();
    assert!(refused.contains("TLS"), "{refused}");
    let at = serve(Some(Server::open(world.server_files(true)).unwrap())).await;
    assert!(ask(&at.to_string(), None).await.is_err());
}

/// Those who connect and say nothing, or nonsense, keep nobody else out.
#[tokio::test]
async fn strangers_do_not_stop_the_door() {
    let world = World::new();
    let at = serve(Some(Server::open(world.server_files(true)).unwrap())).await;
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(TcpStream::connect(at).await.unwrap());
    }
    let mut nonsense = TcpStream::connect(at).await.unwrap();
    nonsense.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut rest = Vec::new();
    // It may be an alert or a reset, but it ends.
    let _ =
        tokio::time::timeout(Duration::from_secs(30), nonsense.read_to_end(&mut rest)).await.expect("an end");
    let client = Client::open(world.client_files()).unwrap();
    assert_eq!(ask(&at.to_string(), Some(client)).await, Ok(()));
}

#[tokio::test]
async fn a_server_that_never_answers_is_given_up() {
    let world = World::new();
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let tls = Client::open(world.client_files()).unwrap();
    let connector = Connector::new(Some(tls)).within(Duration::from_millis(50));
    let given_up = connector.connect("127.0.0.1", port).await.unwrap_err();
    assert!(given_up.to_string().contains("did not answer within 50ms"), "{given_up}");
}
