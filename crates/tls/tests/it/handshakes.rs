//! Accepted and rejected handshakes.

use crate::{
    authority::Authority,
    harness::{Harness, check_health, serve},
};
use gantry_tls::{Client, ClientFiles, Connector, Server, ServerFiles};
use std::time::Duration;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

#[tokio::test]
async fn mutual_tls_succeeds() {
    let harness = Harness::new();
    let address = serve(Some(Server::open(harness.server_files(true)).unwrap())).await;
    let client = Client::open(harness.client_files()).unwrap();
    assert_eq!(check_health(&address.to_string(), Some(client.clone())).await, Ok(()));
    assert_eq!(check_health(&format!("localhost:{}", address.port()), Some(client)).await, Ok(()));
}

#[tokio::test]
async fn client_certificate_is_optional_without_client_ca() {
    let harness = Harness::new();
    let address = serve(Some(Server::open(harness.server_files(false)).unwrap())).await;
    let files = ClientFiles { identity: None, ..harness.client_files() };
    assert_eq!(check_health(&address.to_string(), Some(Client::open(files).unwrap())).await, Ok(()));
}

#[tokio::test]
async fn plaintext_listener_accepts_plaintext() {
    let address = serve(None).await;
    assert_eq!(check_health(&address.to_string(), None).await, Ok(()));
}

/// Everything that must not pass, with the words that say why.
#[tokio::test]
async fn invalid_certificates_are_rejected() {
    let harness = Harness::new();
    let other_ca = Authority::new("another CA");
    let own = |name: &str, signed| harness.put(name, signed);
    let good_server = harness.server_files(true);
    let good_client = harness.client_files();
    let server_with = |name: &str, signed: (String, String)| {
        let paths = own(name, signed);
        ServerFiles { certificate: paths.certificate, key: paths.key, client_ca: Some(harness.ca.clone()) }
    };
    let client_with = |name: &str, signed: (String, String)| {
        let paths = own(name, signed);
        ClientFiles { identity: Some((paths.certificate, paths.key)), ..good_client.clone() }
    };
    let cases = [
        (
            "a server of another CA",
            server_with("s1", other_ca.sign(&["127.0.0.1"])),
            good_client.clone(),
            "not signed by a trusted CA",
        ),
        (
            "a server whose certificate has expired",
            server_with("s2", harness.authority.expired(&["127.0.0.1"])),
            good_client.clone(),
            "the peer's certificate has expired",
        ),
        (
            "a server with another name",
            server_with("s3", harness.authority.sign(&["scheduler.example"])),
            good_client.clone(),
            "is for DnsName(\"scheduler.example\"), not for 127.0.0.1",
        ),
        (
            "a client without a certificate",
            good_server.clone(),
            ClientFiles { identity: None, ..good_client.clone() },
            "requires a client certificate: set --tls-client-cert",
        ),
        (
            "a client of another CA",
            good_server.clone(),
            client_with("c1", other_ca.sign(&["client"])),
            "does not trust the CA of our certificate",
        ),
        (
            "a client whose certificate has expired",
            good_server.clone(),
            client_with("c2", harness.authority.expired(&["client"])),
            "rejected our certificate: it has expired",
        ),
    ];
    for (what, server, client, message) in cases {
        let address = serve(Some(Server::open(server).unwrap())).await;
        let refused =
            check_health(&address.to_string(), Some(Client::open(client).unwrap())).await.expect_err(what);
        assert!(refused.contains(message), "{what}: {refused}");
    }
    // Control: the same server and client with valid certificates.
    let address = serve(Some(Server::open(good_server).unwrap())).await;
    assert_eq!(check_health(&address.to_string(), Some(Client::open(good_client).unwrap())).await, Ok(()));
}

#[tokio::test]
async fn server_name_overrides_host() {
    let harness = Harness::new();
    let paths = harness.put("named", harness.authority.sign(&["scheduler.example"]));
    let files = ServerFiles { certificate: paths.certificate, key: paths.key, client_ca: None };
    let address = serve(Some(Server::open(files).unwrap())).await;
    let named = "scheduler.example".to_owned().try_into().unwrap();
    let files = ClientFiles { server_name: Some(named), ..harness.client_files() };
    assert_eq!(check_health(&address.to_string(), Some(Client::open(files).unwrap())).await, Ok(()));
}

#[tokio::test]
async fn mixing_plaintext_and_tls_is_diagnosed() {
    let harness = Harness::new();
    let client = Client::open(harness.client_files()).unwrap();
    let plain = serve(None).await;
    let refused = check_health(&plain.to_string(), Some(client)).await.unwrap_err();
    assert!(refused.contains("TLS"), "{refused}");
    let address = serve(Some(Server::open(harness.server_files(true)).unwrap())).await;
    assert!(check_health(&address.to_string(), None).await.is_err());
}

#[tokio::test]
async fn failed_handshakes_do_not_block_other_clients() {
    let harness = Harness::new();
    let address = serve(Some(Server::open(harness.server_files(true)).unwrap())).await;
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    let mut nonsense = TcpStream::connect(address).await.unwrap();
    nonsense.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut rest = Vec::new();
    // Either an alert or a reset.
    let _ =
        tokio::time::timeout(Duration::from_secs(30), nonsense.read_to_end(&mut rest)).await.expect("an end");
    let client = Client::open(harness.client_files()).unwrap();
    assert_eq!(check_health(&address.to_string(), Some(client)).await, Ok(()));
}

#[tokio::test]
async fn connect_times_out_on_silent_server() {
    let harness = Harness::new();
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let tls = Client::open(harness.client_files()).unwrap();
    let connector = Connector::new(Some(tls)).within(Duration::from_millis(50));
    let error = connector.connect("127.0.0.1", port).await.unwrap_err();
    assert!(error.to_string().contains("did not answer within 50ms"), "{error}");
}
