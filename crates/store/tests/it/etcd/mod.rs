//! The store in etcd.

mod authentication;
mod faults;
mod leadership;

use gantry_store::etcd::{Candidate, Location, Settings, test_cluster::TestCluster};
use std::time::Duration;
use tempfile::TempDir;

/// Members of an etcd cluster that are removed at the end.
struct Etcd {
    cluster: TestCluster,
    _directory: TempDir,
}

impl Etcd {
    fn start(test: &str, members: usize, arguments: &[&str]) -> Option<Self> {
        let program = TestCluster::program(test)?;
        let directory = tempfile::tempdir().unwrap();
        let cluster = TestCluster::start(&program, directory.path(), members, arguments).unwrap();
        Some(Self { cluster, _directory: directory })
    }

    fn candidate(&self, name: &str) -> Candidate {
        let location = Location { endpoints: self.cluster.endpoints(), prefix: "/test".into() };
        candidate(location, name)
    }
}

fn candidate(location: Location, name: &str) -> Candidate {
    let settings =
        Settings { location, tls: None, credentials: None, name: name.into(), lease: Duration::from_secs(2) };
    Candidate::start(settings).unwrap()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}
