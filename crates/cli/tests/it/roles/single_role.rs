//! Each role on its own: access control, health, shutdown.

use super::{
    certificates::Certificates,
    process::{Process, http, wait_until},
};
use crate::harness::{command, finish, gantry};
use std::net::TcpListener;

const FREE: [&str; 6] = [
    "--scheduler-port=0",
    "--agent-port=0",
    "--scheduler-mtls-port=0",
    "--agent-mtls-port=0",
    "--health-probe-port=0",
    "--log-level=info",
];

/// The arguments of a scheduler on free ports.
pub(crate) fn scheduler(state: &std::path::Path, more: &[String]) -> Vec<String> {
    let mut args = vec!["scheduler".to_owned(), format!("--state-dir={}", state.display())];
    args.extend(FREE.map(str::to_owned));
    args.extend_from_slice(more);
    args
}

/// The arguments of a gateway on free ports.
pub(crate) fn gateway(scheduler: &str, more: &[String]) -> Vec<String> {
    let mut args: Vec<String> = ["gateway", "--inference-port=0", "--admin-port=0"].map(str::to_owned).into();
    args.push(format!("--scheduler={scheduler}"));
    args.extend_from_slice(more);
    args
}

#[test]
fn scheduler_requires_certificates_beyond_loopback() {
    let dir = tempfile::tempdir().unwrap();
    let state = format!("--state-dir={}", dir.path().display());
    let refused = gantry(&["scheduler", &state, "--host", "0.0.0.0"]);
    assert_eq!(refused.code, 2, "{refused:?}");
    for remedy in ["--tls-cert", "--tls-key", "--tls-client-ca", "--allow-plaintext"] {
        assert!(refused.stderr.contains(remedy), "{refused:?}");
    }
    let nothing = gantry(&["scheduler", &state, "--allow-plaintext=false"]);
    assert_eq!(nothing.code, 2, "{nothing:?}");
    let half = gantry(&["scheduler", &state, "--tls-cert", "x.crt"]);
    assert!(half.code == 2 && half.stderr.contains("--tls-key"), "{half:?}");
    let missing = gantry(&["scheduler", &state, "--tls-cert", "/no/x.crt", "--tls-key", "/no/x.key"]);
    assert!(missing.code == 2 && missing.stderr.contains("cannot read /no/x.crt"), "{missing:?}");
}

#[test]
fn mutual_tls_requires_a_client_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let certificates = Certificates::new(dir.path());
    let mut flags = certificates.server();
    flags.push("--allow-plaintext=false".into());
    let role = Process::start(&scheduler(&dir.path().join("state"), &flags));
    role.wait_for_line("Ready.");
    let addresses = role.addresses();
    assert!(!addresses.contains_key("clients") && !addresses.contains_key("agents"), "{addresses:?}");
    let address = &addresses["clients tls"];
    let get = |scheduler: &str, flags: &[String]| {
        let mut args = vec!["get", "models", "--scheduler", scheduler];
        args.extend(flags.iter().map(String::as_str));
        gantry(&args)
    };
    get(address, &certificates.client()).ok();
    get(&format!("https://{address}"), &certificates.client()).ok();
    // The same with the environment variables of Seldon's components.
    let mut by_variables = command(&["get", "models", "--scheduler", address]);
    by_variables.envs(certificates.variables());
    finish(&mut by_variables).ok();
    let anonymous = get(address, &certificates.only_ca());
    assert_eq!(anonymous.code, 4, "{anonymous:?}");
    assert!(anonymous.stderr.contains("--tls-client-cert"), "{anonymous:?}");
    let plain = get(address, &[]);
    assert_eq!(plain.code, 4, "{plain:?}");
    // The connection may also be closed without a response.
    assert!(plain.stderr.contains("TLS") || plain.stderr.contains("failed"), "{plain:?}");
    for (address, flags, message) in [
        (format!("https://{address}"), vec![], "--tls-ca"),
        (format!("http://{address}"), certificates.client(), "remove --tls-ca"),
    ] {
        let wrong = get(&address, &flags);
        assert!(wrong.code == 2 && wrong.stderr.contains(message), "{wrong:?}");
    }
    let health = &addresses["health"];
    for path in ["/live", "/ready", "/startup", "/livez", "/readyz"] {
        assert_eq!(http(health, "GET", path, "", "").unwrap().0, 200, "{path}");
    }
    assert_eq!(role.terminate(), Some(0));
}

#[test]
fn scheduler_waits_for_the_state_lock() {
    let dir = tempfile::tempdir().unwrap();
    let (state, plain) = (dir.path().join("state"), vec!["--allow-plaintext".to_owned()]);
    let first = Process::start(&scheduler(&state, &plain));
    first.wait_for_line("Ready.");
    let refused = Process::start(&scheduler(&state, &plain));
    wait_until("refused", || refused.output().contains("is in use by another gantry"));
    let waiting = [plain.as_slice(), &["--wait-for-state=60".to_owned()]].concat();
    let second = Process::start(&scheduler(&state, &waiting));
    wait_until("waiting", || second.output().contains("waiting for the state directory"));
    assert_eq!(first.terminate(), Some(0));
    second.wait_for_line("Ready.");
    assert_eq!(second.terminate(), Some(0));
}

#[test]
fn gateway_is_unready_until_it_has_routes() {
    let dir = tempfile::tempdir().unwrap();
    let certificates = Certificates::new(dir.path());
    // Unused until the scheduler starts.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let gateway = Process::start(&gateway(&format!("localhost:{port}"), &certificates.of("gateway")));
    gateway.wait_for_line("Waiting for routes from the scheduler at localhost");
    let admin = gateway.addresses()["admin"].clone();
    let (status, body) = http(&admin, "GET", "/readyz", "", "").unwrap();
    assert_eq!(status, 503);
    assert!(body.contains("yet: Connection refused"), "{body}");
    assert_eq!(http(&admin, "GET", "/livez", "", "").unwrap().0, 200);

    let mut flags = certificates.server();
    flags.push(format!("--scheduler-mtls-port={port}"));
    let state = dir.path().join("state");
    let args: Vec<String> =
        scheduler(&state, &flags).into_iter().filter(|a| a != "--scheduler-mtls-port=0").collect();
    let scheduler = Process::start(&args);
    scheduler.wait_for_line("Ready.");
    gateway.wait_for_line("Ready.");
    assert_eq!(http(&admin, "GET", "/readyz", "", "").unwrap().0, 200);

    // It keeps the routes while the scheduler is down.
    scheduler.kill();
    wait_until("the gateway has noticed", || gateway.output().contains("keeping the last known routes"));
    assert_eq!(http(&admin, "GET", "/readyz", "", "").unwrap().0, 200);
    assert_eq!(gateway.terminate(), Some(0));
}
