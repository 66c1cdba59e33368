//! Authentication of the inference port: `gantry auth`, and a served model.

use crate::{
    harness::gantry,
    roles::process::{Process, http, infer, wait_until},
};
use std::path::Path;

#[test]
fn created_key_is_printed_once_and_its_entry_is_a_valid_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let created = gantry(&[
        "auth",
        "create-key",
        "team-a",
        "--model",
        "iris",
        "--model",
        "fraud-*",
        "--expires",
        "2099-12-31",
    ]);
    assert_eq!(created.code, 0, "{created:?}");
    let key = created.stderr.lines().find_map(|line| line.trim().strip_prefix("gantry_")).unwrap();
    assert!(!created.stdout.contains(key), "the entry has the digest only");
    let path = dir.path().join("auth.yaml");
    std::fs::write(&path, format!("keys:\n{}", created.stdout)).unwrap();
    let file = path.display().to_string();
    assert_eq!(gantry(&["auth", "check", &file]).ok(), format!("{file}: 1 key, 0 token issuers\n"));
    std::fs::write(&path, format!("keys:\n{}{}", created.stdout, created.stdout)).unwrap();
    let twice = gantry(&["auth", "check", &file]);
    assert!(twice.code == 2 && twice.stderr.contains("used twice"), "{twice:?}");
    let wrong = gantry(&["auth", "create-key", "team a"]);
    assert!(wrong.code == 2 && wrong.stderr.contains("name must have"), "{wrong:?}");
    assert!(!wrong.stderr.contains("gantry_"), "{wrong:?}");
}

fn key(name: &str) -> (String, String) {
    let created = gantry(&["auth", "create-key", name]);
    let line = created.stderr.lines().find(|line| line.trim().starts_with("gantry_")).unwrap();
    (line.trim().to_owned(), created.stdout)
}

#[test]
fn served_models_need_a_credential_and_changes_apply_while_serving() {
    let dir = tempfile::tempdir().unwrap();
    let iris = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/quickstart/iris.yaml");
    let (file, state) = (dir.path().join("auth.yaml"), dir.path().join("state"));
    let ((one, entry), (two, other)) = (key("one"), key("two"));
    std::fs::write(&file, format!("keys:\n{entry}")).unwrap();
    let flag = |name: &str, path: &Path| format!("{name}={}", path.display());
    let mut args = vec!["up".to_owned(), iris.display().to_string(), "--log-level=debug".to_owned()];
    args.extend([flag("--state-dir", &state), flag("--auth-config", &file)]);
    args.extend(
        ["--inference-port=0", "--admin-port=0", "--scheduler-port=0", "--agent-port=0"].map(str::to_owned),
    );
    let up = Process::start(&args);
    up.wait_for_line("Ready in");
    let addresses = up.addresses();
    let inference = addresses["inference"].clone();
    assert!(up.output().contains("curl -H \"x-api-key: $KEY\""), "{}", up.output());
    let status = |headers: &str| infer(&inference, headers).unwrap();
    let as_key = |key: &str| status(&format!("authorization: Bearer {key}\r\n")).0;
    let (code, answer) = status("");
    assert!(code == 401 && answer.contains("www-authenticate: Bearer"), "{answer}");
    assert_eq!((as_key(&one), as_key(&two)), (200, 401));
    assert_eq!(http(&inference, "GET", "/v2/health/ready", "", "").unwrap().0, 200);
    // A broken edit changes nothing.
    std::fs::write(&file, "keys: [").unwrap();
    let log = || std::fs::read_to_string(state.join("gantry.log")).unwrap();
    wait_until("the edit is reported", || log().contains("authentication configuration is invalid"));
    assert_eq!((as_key(&one), as_key(&two)), (200, 401));
    std::fs::write(&file, format!("keys:\n{other}")).unwrap();
    wait_until("the other key", || as_key(&two) == 200);
    assert_eq!(as_key(&one), 401);
    let (_, metrics) = http(&addresses["admin"], "GET", "/metrics", "", "").unwrap();
    assert!(metrics.contains("gantry_auth_requests_total{key=\"two\",result=\"accepted\"}"), "{metrics}");
    assert!(metrics.contains("gantry_auth_reloads_total{result=\"failure\"} 1"), "{metrics}");
    for text in [&up.output(), &metrics] {
        assert!(!text.contains(&one) && !text.contains(&two), "{text}");
    }
    assert_eq!(up.terminate(), Some(0));
    for entry in std::fs::read_dir(&state).unwrap() {
        let content = std::fs::read(entry.unwrap().path()).unwrap_or_default();
        let text = String::from_utf8_lossy(&content);
        assert!(!text.contains(&one) && !text.contains(&two));
    }
}

#[test]
fn broken_configuration_is_refused_at_start() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("auth.yaml");
    std::fs::write(&file, "keys:\n- name: a\n  key: planted\n").unwrap();
    let flag = format!("--auth-config={}", file.display());
    let state = format!("--state-dir={}", dir.path().join("state").display());
    let refused = gantry(&["up", &flag, &state]);
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(
        refused.stderr.contains("--auth-config: ") && refused.stderr.contains("auth.yaml:3"),
        "{refused:?}"
    );
    assert!(!refused.stderr.contains("planted"), "{refused:?}");
}
