//! API keys, rates and reloads.

use crate::{Files, NOW, metric, request};
use gantry_auth::{Action, Reason, Target, generate};
use std::time::Duration;

fn entry(name: &str, sha256: &str, more: &str) -> String {
    format!("- name: {name}\n  sha256: {sha256}\n  allow: {{models: [iris]}}\n{more}")
}

#[test]
fn key_is_known_by_its_digest_until_it_expires() {
    let (files, key, old) = (Files::new(), generate().unwrap(), generate().unwrap());
    let expiring = entry("old", &old.sha256.to_uppercase(), "  expires: 2027-01-15\n");
    let (auth, clock) = files.open(&format!("keys:\n{}{expiring}", entry("a", &key.sha256, "")));
    for header in [("x-api-key", key.key.clone()), ("authorization", format!("bearer {}", key.key))] {
        let principal = request(&auth, &[(header.0, &header.1)]).unwrap();
        assert_eq!(principal.name(), "a");
        assert!(principal.authorize(Action::Infer, Target::Model("iris")).is_ok());
        assert!(principal.sees("iris") && !principal.sees("other"));
    }
    assert_eq!(request(&auth, &[]).unwrap_err().reason, Reason::Missing);
    for wrong in [&key.sha256, &key.key[1..], &format!("{}x", key.key), "gantry_", "a"] {
        assert_eq!(request(&auth, &[("x-api-key", wrong)]).unwrap_err().reason, Reason::Invalid, "{wrong}");
    }
    // NOW is 2027-01-15T08:00:00Z, and the day counts.
    assert!(request(&auth, &[("x-api-key", &old.key)]).is_ok());
    clock.advance(Duration::from_hours(16));
    let denied = request(&auth, &[("x-api-key", &old.key)]).unwrap_err();
    assert_eq!(denied.reason, Reason::Expired);
    assert!(request(&auth, &[("x-api-key", &key.key)]).is_ok());
    assert_eq!(NOW % 86_400, 8 * 3600);
}

#[test]
fn rate_limits_requests_of_a_key_and_survives_a_reload() {
    let (files, key) = (Files::new(), generate().unwrap());
    let config = format!("keys:\n{}", entry("a", &key.sha256, "  rate: {perSecond: 2, burst: 3}\n"));
    let (auth, clock) = files.open(&config);
    let send =
        || request(&auth, &[("x-api-key", &key.key)]).map(|_| ()).map_err(|d| (d.reason, d.retry_after));
    assert_eq!((send(), send(), send()), (Ok(()), Ok(()), Ok(())));
    assert_eq!(send(), Err((Reason::Limited, Some(1))));
    files.write("auth.yaml", format!("{config}# changed\n"));
    assert_eq!(auth.reload(), Ok(true));
    assert_eq!(send(), Err((Reason::Limited, Some(1))));
    clock.advance(Duration::from_millis(500));
    assert_eq!(send(), Ok(()));
    assert!(send().is_err());
    assert_eq!(metric(&auth, "gantry_auth_requests_total{key=\"a\",result=\"accepted\"}"), Some(4));
    assert_eq!(metric(&auth, "gantry_auth_requests_total{key=\"a\",result=\"limited\"}"), Some(3));
}

#[test]
fn reload_applies_valid_changes_and_keeps_the_last_one_otherwise() {
    let (files, one, two) = (Files::new(), generate().unwrap(), generate().unwrap());
    let first = format!("keys:\n{}", entry("one", &one.sha256, ""));
    let (auth, _) = files.open(&first);
    let known = |key: &str| request(&auth, &[("x-api-key", key)]).is_ok();
    assert_eq!(auth.reload(), Ok(false));
    for broken in ["keys: [", "", "keys: []", &format!("{first}  rats: {{}}\n"), "\u{0}"] {
        files.write("auth.yaml", broken);
        let error = auth.reload().unwrap_err();
        assert!(error.to_string().contains("auth.yaml"), "{error}");
        assert!(auth.reload().is_err());
        assert!(known(&one.key));
    }
    std::fs::remove_file(files.directory.path().join("auth.yaml")).unwrap();
    assert!(auth.reload().is_err());
    assert!(known(&one.key));
    // A problem that stays is counted once: the second and the third have one message.
    assert_eq!(metric(&auth, "gantry_auth_reloads_total{result=\"failure\"}"), Some(5));
    files.write("auth.yaml", format!("keys:\n{}", entry("two", &two.sha256, "")));
    assert_eq!(auth.reload(), Ok(true));
    assert!(!known(&one.key) && known(&two.key));
    assert_eq!(metric(&auth, "gantry_auth_reloads_total{result=\"success\"}"), Some(1));
    assert_eq!(metric(&auth, "gantry_auth_requests_total{key=\"one\",result=\"accepted\"}"), None);
}
