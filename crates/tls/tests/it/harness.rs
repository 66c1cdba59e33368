//! A gRPC health server with TLS, and its client.

use crate::authority::{Authority, Paths, put};
use gantry_tls::{Client, ClientFiles, Connector, Server, ServerFiles, diagnose, endpoint, incoming};
use std::{net::SocketAddr, path::PathBuf, time::Duration};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

pub(crate) struct Harness {
    pub(crate) directory: TempDir,
    pub(crate) authority: Authority,
    pub(crate) ca: PathBuf,
}

impl Harness {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::new("test CA");
        let ca = directory.path().join("ca.crt");
        authority.write(&ca);
        Self { directory, authority, ca }
    }

    pub(crate) fn put(&self, name: &str, signed: (String, String)) -> Paths {
        put(self.directory.path(), name, signed)
    }

    /// Valid server files.
    pub(crate) fn server_files(&self, mutual: bool) -> ServerFiles {
        let paths = self.put("server", self.authority.sign(&["localhost", "127.0.0.1"]));
        let client_ca = mutual.then(|| self.ca.clone());
        ServerFiles { certificate: paths.certificate, key: paths.key, client_ca }
    }

    /// Valid client files.
    pub(crate) fn client_files(&self) -> ClientFiles {
        let paths = self.put("client", self.authority.sign(&["client"]));
        let identity = Some((paths.certificate, paths.key));
        ClientFiles { ca: self.ca.clone(), identity, server_name: None }
    }
}

/// Serves gRPC health on a free port.
pub(crate) async fn serve(tls: Option<Server>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (_, health) = tonic_health::server::health_reporter();
    let serving = tonic::transport::Server::builder().add_service(health);
    tokio::spawn(async move { serving.serve_with_incoming(incoming(listener, tls)).await.unwrap() });
    address
}

/// Connects and calls the health service; the error is the diagnosis.
pub(crate) async fn check_health(address: &str, tls: Option<Client>) -> Result<(), String> {
    let call = async {
        let connector = Connector::new(tls.clone());
        let channel = endpoint(address, tls.as_ref())
            .unwrap()
            .connect_with_connector(connector)
            .await
            .map_err(|e| diagnose(&e))?;
        let request = HealthCheckRequest { service: String::new() };
        HealthClient::new(channel).check(request).await.map(|_| ()).map_err(|e| diagnose(&e))
    };
    tokio::time::timeout(Duration::from_secs(30), call).await.expect("a result within 30 s")
}
