//! A gRPC server behind TLS, and a client that asks it something.

use crate::authority::{Authority, Paths, put};
use gantry_tls::{Client, ClientFiles, Connector, Server, ServerFiles, endpoint, explain, incoming};
use std::{net::SocketAddr, path::PathBuf, time::Duration};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

pub(crate) struct World {
    pub(crate) directory: TempDir,
    pub(crate) authority: Authority,
    pub(crate) ca: PathBuf,
}

impl World {
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

    /// The files of a server that is right in every way.
    pub(crate) fn server_files(&self, mutual: bool) -> ServerFiles {
        let paths = self.put("server", self.authority.sign(&["localhost", "127.0.0.1"]));
        let client_ca = mutual.then(|| self.ca.clone());
        ServerFiles { certificate: paths.certificate, key: paths.key, client_ca }
    }

    /// The files of a client that is right in every way.
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

/// Connects, asks, and gives what went wrong in words.
pub(crate) async fn ask(address: &str, tls: Option<Client>) -> Result<(), String> {
    let asked = async {
        let connector = Connector::new(tls.clone());
        let channel = endpoint(address, tls.as_ref())
            .unwrap()
            .connect_with_connector(connector)
            .await
            .map_err(|e| explain(&e))?;
        let request = HealthCheckRequest { service: String::new() };
        HealthClient::new(channel).check(request).await.map(|_| ()).map_err(|e| explain(&e))
    };
    tokio::time::timeout(Duration::from_secs(30), asked).await.expect("an answer, good or bad")
}
