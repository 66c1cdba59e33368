//! The network policy at connection time.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gantry_artifacts::{ErrorKind, Resolve};

use crate::Harness;
use crate::server::{Response, Server};

/// Gives another answer each time, as a rebinding name server does.
struct Rebinding {
    calls: AtomicUsize,
    answers: Vec<IpAddr>,
}

#[async_trait::async_trait]
impl Resolve for Rebinding {
    async fn resolve(&self, _host: &str) -> std::io::Result<Vec<IpAddr>> {
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        Ok(vec![self.answers[call.min(self.answers.len() - 1)]])
    }
}

fn resolver(answers: &[&str]) -> Arc<Rebinding> {
    Arc::new(Rebinding {
        calls: AtomicUsize::new(0),
        answers: answers.iter().map(|text| text.parse().unwrap()).collect(),
    })
}

#[tokio::test]
async fn denied_addresses_are_rejected_in_every_notation() {
    let server = Server::script([Response::ok("secret")]).await;
    let port = server.port();
    let harness = Harness::with(|config| config.allow_loopback = false);
    for host in [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "localhost",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "0.0.0.0",
        "0",
        "[::]",
        "169.254.169.254",
        "0xa9fea9fe",
        "[fd00:ec2::254]",
        "10.0.0.1",
        "192.168.0.1",
        "172.16.0.1",
        "100.64.0.1",
        "[fc00::1]",
        "[fe80::1]",
        "224.0.0.1",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "127.0.0.1.",
        "\u{ff11}27.0.0.1",
    ] {
        let error = harness.fetch(&format!("http://{host}:{port}/m.bin")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{host}: {error}");
        assert!(error.to_string().contains("allow"), "{host}: {error}");
    }
    assert_eq!(server.count(), 0, "no request may have been sent");
}

#[tokio::test]
async fn host_is_resolved_once_and_checked_address_is_used() {
    let server = Server::script([Response::ok("model")]).await;
    // Checked as public, and private by the time of a second lookup: the first answer counts, and only it.
    let rebinding = resolver(&["203.0.113.1", "127.0.0.1"]);
    let harness = Harness::with(|config| {
        config.allow_loopback = false;
        config.resolver = rebinding.clone();
    });
    let error = harness.fetch(&format!("http://rebind.example:{}/m.bin", server.port())).await.unwrap_err();
    assert_eq!((error.kind(), rebinding.calls.load(Ordering::SeqCst)), (ErrorKind::Denied, 1), "{error}");
    assert_eq!(server.count(), 0);

    let stable = resolver(&["127.0.0.1", "10.0.0.1"]);
    let harness = Harness::with(|config| config.resolver = stable.clone());
    harness.fetch(&format!("http://model.example:{}/m.bin", server.port())).await.unwrap();
    assert_eq!(stable.calls.load(Ordering::SeqCst), 1);
    assert_eq!(server.seen()[0].header("host"), Some(format!("model.example:{}", server.port()).as_str()));
}

#[tokio::test]
async fn host_and_network_rules_allow_access() {
    let server = Server::script([Response::ok("model")]).await;
    for (rule, opens) in
        [("127.0.0.0/8", true), ("minio.internal", true), ("other.internal", false), ("10.0.0.0/8", false)]
    {
        let harness = Harness::with(|config| {
            config.allow_loopback = false;
            config.allow = vec![rule.parse().unwrap()];
            config.resolver = resolver(&["127.0.0.1"]);
        });
        let result = harness.fetch(&format!("http://minio.internal:{}/m.bin", server.port())).await;
        assert_eq!(result.is_ok(), opens, "{rule}: {result:?}");
    }
}

#[tokio::test]
async fn policy_applies_to_object_stores() {
    let server = Server::script([Response::ok("secret")]).await;
    let endpoint = server.url("");
    let harness = Harness::with(|config| {
        config.allow_loopback = false;
        config.env = crate::env(&[
            ("AWS_ENDPOINT_URL", &endpoint),
            ("STORAGE_EMULATOR_HOST", &endpoint),
            ("AZURE_STORAGE_ENDPOINT", &endpoint),
            ("AZURE_STORAGE_ACCOUNT_NAME", "acct"),
            ("HF_ENDPOINT", &endpoint),
        ]);
    });
    for uri in ["s3://b/k", "gs://b/k", "az://c/k", "hf://org/model"] {
        let error = harness.fetch(uri).await.unwrap_err();
        assert!(
            error.kind() == ErrorKind::Denied && error.to_string().contains("loopback"),
            "{uri}: {error}"
        );
    }
    assert_eq!(server.count(), 0);
}

#[tokio::test]
async fn instance_credentials_are_not_requested_by_default() {
    // Without credentials the request is anonymous; nothing goes to the metadata service.
    let server = Server::script([Response::status(403)]).await;
    let endpoint = server.url("");
    let harness = Harness::with(|config| {
        config.env = crate::env(&[("AWS_ENDPOINT_URL", &endpoint), ("STORAGE_EMULATOR_HOST", &endpoint)]);
    });
    for uri in ["s3://b/k", "gs://b/k"] {
        let error = harness.fetch(uri).await.unwrap_err();
        assert_eq!((error.kind(), error.status()), (ErrorKind::Denied, Some(403)), "{uri}: {error}");
    }
    assert!(server.seen().iter().all(|seen| seen.header("authorization").is_none()));
}
