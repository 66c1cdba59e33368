//! Each role alone: who may reach it, what it says of itself, how it ends.

use super::{
    certificates::Certificates,
    process::{Role, http, until},
};
use crate::world::{command, finish, gantry};
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
fn without_certificates_nobody_else_is_let_in() {
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
    assert!(missing.code == 2 && missing.stderr.contains("/no/x.crt cannot be read"), "{missing:?}");
}

#[test]
fn mutual_tls_lets_in_who_has_a_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let certificates = Certificates::new(dir.path());
    let mut flags = certificates.server();
    flags.push("--allow-plaintext=false".into());
    let role = Role::start(&scheduler(&dir.path().join("state"), &flags));
    role.says("Ready.");
    let addresses = role.addresses();
    assert!(!addresses.contains_key("clients") && !addresses.contains_key("agents"), "{addresses:?}");
    let at = &addresses["clients tls"];
    let ask = |scheduler: &str, flags: &[String]| {
        let mut args = vec!["get", "models", "--scheduler", scheduler];
        args.extend(flags.iter().map(String::as_str));
        gantry(&args)
    };
    ask(at, &certificates.client()).ok();
    ask(&format!("https://{at}"), &certificates.client()).ok();
    // The variables of Seldon's components say the same.
    let mut by_variables = command(&["get", "models", "--scheduler", at]);
    by_variables.envs(certificates.variables());
    finish(&mut by_variables).ok();
    let stranger = ask(at, &certificates.only_ca());
    assert_eq!(stranger.code, 4, "{stranger:?}");
    assert!(stranger.stderr.contains("--tls-client-cert"), "{stranger:?}");
    let plain = ask(at, &[]);
    assert_eq!(plain.code, 4, "{plain:?}");
    // The connection may also be closed before anything came back.
    assert!(plain.stderr.contains("TLS") || plain.stderr.contains("broke off"), "{plain:?}");
    for (address, flags, says) in [
        (format!("https://{at}"), vec![], "--tls-ca"),
        (format!("http://{at}"), certificates.client(), "leave out the CA"),
    ] {
        let wrong = ask(&address, &flags);
        assert!(wrong.code == 2 && wrong.stderr.contains(says), "{wrong:?}");
    }
    let health = &addresses["health"];
    for path in ["/live", "/ready", "/startup", "/livez", "/readyz"] {
        assert_eq!(http(health, "GET", path, "", "").unwrap().0, 200, "{path}");
    }
    assert_eq!(role.terminate(), Some(0));
}

#[test]
fn a_scheduler_waits_for_the_one_that_it_replaces() {
    let dir = tempfile::tempdir().unwrap();
    let (state, plain) = (dir.path().join("state"), vec!["--allow-plaintext".to_owned()]);
    let first = Role::start(&scheduler(&state, &plain));
    first.says("Ready.");
    let refused = Role::start(&scheduler(&state, &plain));
    until("it is refused", || refused.said().contains("is in use by another gantry"));
    let patient = [plain.as_slice(), &["--wait-for-state=60".to_owned()]].concat();
    let second = Role::start(&scheduler(&state, &patient));
    until("it says what it waits for", || second.said().contains("waits 60 s at most"));
    assert_eq!(first.terminate(), Some(0));
    second.says("Ready.");
    assert_eq!(second.terminate(), Some(0));
}

#[test]
fn a_gateway_waits_for_its_scheduler_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let certificates = Certificates::new(dir.path());
    // A port that nobody listens on, until the scheduler does.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let gateway = Role::start(&gateway(&format!("localhost:{port}"), &certificates.client()));
    gateway.says("Waiting for the routes of the scheduler at localhost");
    let admin = gateway.addresses()["admin"].clone();
    let (status, says) = http(&admin, "GET", "/readyz", "", "").unwrap();
    assert_eq!(status, 503);
    assert!(says.contains("has not told its routes yet: Connection refused"), "{says}");
    assert_eq!(http(&admin, "GET", "/livez", "", "").unwrap().0, 200);

    let mut flags = certificates.server();
    flags.push(format!("--scheduler-mtls-port={port}"));
    let state = dir.path().join("state");
    let args: Vec<String> =
        scheduler(&state, &flags).into_iter().filter(|a| a != "--scheduler-mtls-port=0").collect();
    let scheduler = Role::start(&args);
    scheduler.says("Ready.");
    gateway.says("Ready.");
    assert_eq!(http(&admin, "GET", "/readyz", "", "").unwrap().0, 200);

    // What it was told stays while the scheduler is away.
    scheduler.kill();
    until("the gateway has noticed", || gateway.said().contains("keeping the last known routes"));
    assert_eq!(http(&admin, "GET", "/readyz", "", "").unwrap().0, 200);
    assert_eq!(gateway.terminate(), Some(0));
}
