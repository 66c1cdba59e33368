//! Invalid configurations: the message names the entry and the remedy, and repeats no key.

use crate::Files;
use gantry_auth::{Auth, Clock};

const DIGEST: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

#[test]
fn example_of_the_documentation_is_valid() {
    let page = include_str!("../../../../docs/inference.md");
    let (_, rest) = page.split_once("```yaml\nkeys:").unwrap();
    let (example, _) = rest.split_once("```").unwrap();
    gantry_auth::check(&format!("keys:{example}")).unwrap();
}

#[test]
fn invalid_configurations_name_entry_and_remedy() {
    let files = Files::new();
    files.write("empty.json", "{\"keys\":[]}");
    files.write("text.json", "planted-secret");
    let key = |fields: &str| format!("keys:\n- {{{fields}}}\n");
    let issuer = |fields: &str| {
        format!(
            "issuers:\n- {{issuer: i, audience: a, grants: [{{name: g, allow: {{models: [m]}}}}], {fields}}}\n"
        )
    };
    let allow = "allow: {models: [m]}";
    for (config, expected) in [
        ("{}".to_owned(), "has no keys and no issuers: `gantry auth create-key NAME`"),
        ("keys: 7".to_owned(), "auth.yaml:1"),
        (key(&format!("name: a, {allow}")), "sha256"),
        (key(&format!("name: a, sha256: planted-secret, {allow}")), "and not the key itself"),
        (key(&format!("name: '', sha256: {DIGEST}, {allow}")), "keys[0]: name must have 1 to 100"),
        (key(&format!("name: 'a b', sha256: {DIGEST}, {allow}")), "keys[0]: name must have"),
        (key(&format!("name: a, sha256: {DIGEST}, allow: {{}}")), "allow of \"a\": permits no object"),
        (key(&format!("name: a, sha256: {DIGEST}, allow: {{models: [m], rights: [root]}}")), "infer"),
        (key(&format!("name: a, sha256: {DIGEST}, {allow}, expires: soon")), "expires must be a day"),
        (key(&format!("name: a, sha256: {DIGEST}, {allow}, rate: {{perSecond: 0}}")), "perSecond must be"),
        (key(&format!("name: a, sha256: {DIGEST}, {allow}, secret: x")), "secret"),
        (
            format!(
                "keys:\n- {{name: a, sha256: {DIGEST}, {allow}}}\n- {{name: b, sha256: {DIGEST}, {allow}}}\n"
            ),
            "keys[1]: sha256 is that of another entry",
        ),
        (issuer("jwks: ''"), "jwks must be a file or an https:// URL"),
        (issuer("jwks: 'http://issuer.example/keys'"), "jwks must use https://"),
        (issuer("jwks: 'https://a:planted-secret@issuer.example/keys'"), "without a password"),
        (issuer("jwks: 'ftp://issuer.example/keys'"), "jwks must use https://"),
        (issuer("jwks: missing.json"), "missing.json: "),
        (issuer("jwks: empty.json"), "empty.json: the key set has no public key"),
        (issuer("jwks: text.json"), "text.json: not a JSON Web Key Set"),
        (issuer("jwks: x, algorithms: [HS256]"), "algorithms may be RS256, ES256 and EdDSA"),
        (issuer("jwks: x, algorithms: [none]"), "algorithms may be"),
        (issuer("jwks: x, algorithms: []"), "algorithms is empty"),
        (issuer("jwks: x, leewaySeconds: 301"), "leewaySeconds"),
        (issuer("jwks: x, refreshSeconds: 1"), "refreshSeconds"),
    ] {
        let path = files.write("auth.yaml", &config);
        let error = Auth::open(&path, Clock::system()).unwrap_err().to_string();
        assert!(error.contains(expected), "{config}: {error}");
        assert!(!error.contains("planted-secret"), "{error}");
    }
    let missing = Auth::open(&files.directory.path().join("none.yaml"), Clock::system()).unwrap_err();
    assert!(missing.to_string().contains("none.yaml: No such file"), "{missing}");
}
