//! `kubectl proxy`: authenticated requests to the API server without a process per request.

use crate::{
    Failure,
    bench::{Bench, servers::Process, wire::http},
    k8s,
};
use serde_json::Value;
use std::net::SocketAddr;

pub(super) struct Proxy {
    address: SocketAddr,
    _process: Process,
}

impl Proxy {
    pub(super) fn start(bench: &Bench, cluster: &k8s::Cluster) -> Result<Self, Failure> {
        let mut command = cluster.kubectl();
        let log = bench.root.join(format!("target/bench-proxy-{}.log", std::process::id()));
        let mut process = Process::start(command.args(["proxy", "--port=0", "--accept-hosts=^bench$"]), log)?;
        let address = process.until("the proxy", |p| {
            p.output().lines().find_map(|l| l.rsplit_once("serve on ")?.1.trim().parse().ok())
        })?;
        Ok(Self { address, _process: process })
    }

    /// A connection for one thread.
    pub(super) fn connect(&self) -> Result<Connection, Failure> {
        Ok(Connection(http::Connection::open(self.address)?))
    }
}

pub(super) struct Connection(http::Connection);

impl Connection {
    pub(super) fn create(&mut self, path: &str, object: &Value) -> Result<(), Failure> {
        self.call(&http::post(path, "", &object.to_string()), 201).map(drop)
    }

    pub(super) fn merge(&mut self, path: &str, patch: &Value) -> Result<(), Failure> {
        self.call(&http::merge_patch(path, &patch.to_string()), 200).map(drop)
    }

    pub(super) fn get(&mut self, path: &str) -> Result<Value, Failure> {
        Ok(serde_json::from_slice(self.call(&http::get(path), 200)?)?)
    }

    fn call(&mut self, request: &[u8], expected: u16) -> Result<&[u8], Failure> {
        self.0.send(request)?;
        match self.0.receive()? {
            (status, body) if status == expected => Ok(body),
            (status, body) => Err(format!("{status}: {}", String::from_utf8_lossy(body)).into()),
        }
    }
}
