//! Tokens: what is accepted, and what hostile clients may try.

use crate::{
    Files, NOW, bearer,
    issuer::{Issuer, config, encode, valid},
};
use gantry_auth::{Action, Auth, Reason, Target};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

fn opened(issuer: &Issuer, more: &str) -> (Arc<Auth>, gantry_auth::Clock, Files) {
    let files = Files::new();
    files.write("jwks.json", issuer.jwks());
    let (auth, clock) = files.open(&config("jwks.json", more));
    (auth, clock, files)
}

#[test]
fn tokens_of_each_algorithm_are_accepted() {
    let issuer = Issuer::new();
    let (auth, _, _files) = opened(&issuer, "");
    for (algorithm, kid) in [("RS256", "rsa"), ("ES256", "ec"), ("EdDSA", "ed")] {
        for header in [
            json!({"alg": algorithm, "kid": kid, "typ": "JWT"}),
            // One key of the algorithm: it needs no name.
            json!({"alg": algorithm}),
        ] {
            let token = issuer.sign(algorithm, &header, &valid(&json!({"sub": header.to_string()})));
            let principal = bearer(&auth, &token).unwrap();
            assert_eq!(principal.name(), "science");
            assert!(principal.authorize(Action::Infer, Target::Model("fraud-eu")).is_ok());
            let denied = principal.authorize(Action::Infer, Target::Model("iris")).unwrap_err();
            assert_eq!(denied.reason, Reason::Forbidden);
        }
    }
}

/// Header, claims and the key that signs, with the expected refusal.
#[test]
fn tokens_with_wrong_header_or_claims_are_refused() {
    let issuer = Issuer::new();
    let (auth, _, _files) = opened(&issuer, "");
    let ed = json!({"alg": "EdDSA", "kid": "ed"});
    let claims = |changes: Value| valid(&changes);
    for (header, claims, expected) in [
        (json!({"alg": "none"}), claims(json!({})), "algorithm is not allowed"),
        (json!({"alg": "None", "kid": "ed"}), claims(json!({})), "algorithm is not allowed"),
        (json!({"alg": "HS256", "kid": "rsa"}), claims(json!({})), "algorithm is not allowed"),
        (json!({"alg": "RS512", "kid": "rsa"}), claims(json!({})), "algorithm is not allowed"),
        (json!({"alg": "eddsa", "kid": "ed"}), claims(json!({})), "algorithm is not allowed"),
        (json!({"alg": "RS256", "kid": "ed"}), claims(json!({})), "kid"),
        (json!({"alg": "RS256", "kid": "rsa"}), claims(json!({})), "signature is wrong"),
        (json!({"alg": "ES256", "kid": "ec"}), claims(json!({})), "signature is wrong"),
        (json!({"alg": "EdDSA", "kid": "other"}), claims(json!({})), "kid"),
        (json!({"alg": "EdDSA", "kid": 7}), claims(json!({})), "unknown"),
        (json!({"alg": "EdDSA", "kid": "ed", "crit": ["b64"], "b64": false}), claims(json!({})), "crit"),
        (json!({"kid": "ed"}), claims(json!({})), "unknown"),
        (json!(["EdDSA"]), claims(json!({})), "unknown"),
        (ed.clone(), json!([]), "unknown"),
        (ed.clone(), claims(json!({"iss": null})), "issuer (iss)"),
        (ed.clone(), claims(json!({"iss": "https://issuer.example/"})), "issuer (iss)"),
        (ed.clone(), claims(json!({"iss": ["https://issuer.example"]})), "issuer (iss)"),
        (ed.clone(), claims(json!({"aud": null})), "audience (aud)"),
        (ed.clone(), claims(json!({"aud": "gantry2"})), "audience (aud)"),
        (ed.clone(), claims(json!({"aud": ["x", 1]})), "audience (aud)"),
        (ed.clone(), claims(json!({"exp": null})), "exp is required"),
        (ed.clone(), claims(json!({"exp": "1900000000"})), "exp is not a number"),
        (ed.clone(), claims(json!({"exp": -1})), "expired"),
        (ed.clone(), claims(json!({"exp": NOW - 31})), "expired"),
        (ed.clone(), claims(json!({"exp": NOW - 30})), "expired"),
        (ed.clone(), claims(json!({"nbf": NOW + 31})), "not valid yet"),
        (ed.clone(), claims(json!({"nbf": "soon"})), "nbf is not a number"),
        (ed.clone(), claims(json!({"groups": ["Science"]})), "claims have no grant"),
        (ed.clone(), claims(json!({"groups": null})), "claims have no grant"),
    ] {
        let token = issuer.sign("EdDSA", &header, &claims);
        let denied = bearer(&auth, &token).unwrap_err();
        assert!(denied.message.contains(expected), "{header} {claims}: {denied}");
        let is_expired = expected == "expired";
        assert_eq!(denied.reason == Reason::Expired, is_expired, "{denied}");
    }
    for accepted in [
        json!({"exp": NOW - 29}),
        json!({"exp": NOW as f64 + 0.5}),
        json!({"exp": 1e300}),
        json!({"nbf": NOW + 30}),
        json!({"aud": ["x", "other"]}),
    ] {
        assert!(bearer(&auth, &issuer.token(&accepted)).is_ok(), "{accepted}");
    }
}

#[test]
fn public_key_is_no_shared_secret() {
    let issuer = Issuer::new();
    let (auth, _, _files) = opened(&issuer, "");
    let signed =
        format!("{}.{}", encode(r#"{"alg":"HS256","kid":"rsa"}"#), encode(valid(&json!({})).to_string()));
    let secret = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &issuer.modulus());
    let tag = ring::hmac::sign(&secret, signed.as_bytes());
    let denied = bearer(&auth, &format!("{signed}.{}", encode(tag))).unwrap_err();
    assert!(denied.message.contains("algorithm is not allowed"), "{denied}");
}

#[test]
fn algorithms_outside_the_list_are_refused() {
    let issuer = Issuer::new();
    let (auth, _, _files) = opened(&issuer, "algorithms: [ES256]");
    let denied = bearer(&auth, &issuer.token(&json!({}))).unwrap_err();
    assert_eq!(denied.message, "the token's algorithm is not allowed: use ES256");
}

#[test]
fn key_of_another_issuer_is_no_proof() {
    let (issuer, attacker) = (Issuer::new(), Issuer::new());
    let (auth, _, _files) = opened(&issuer, "");
    let denied = bearer(&auth, &attacker.token(&json!({}))).unwrap_err();
    assert_eq!(denied.message, "the token's signature is wrong");
}

#[test]
fn changed_claims_and_repeated_header_fields_are_refused() {
    let issuer = Issuer::new();
    let (auth, _, _files) = opened(&issuer, "");
    let token = issuer.token(&json!({}));
    let [header, _, signature] = token.split('.').collect::<Vec<_>>()[..] else { panic!() };
    let claims = encode(valid(&json!({"scope": "admin"})).to_string());
    assert!(bearer(&auth, &format!("{header}.{claims}.{signature}")).is_err());
    let twice = r#"{"alg":"EdDSA","kid":"ed","alg":"none"}"#;
    let token = issuer.sign_text("EdDSA", twice, &valid(&json!({})).to_string());
    assert!(bearer(&auth, &token).is_err());
    for cut in [
        format!("{token}."),
        format!(".{token}"),
        format!("{token}="),
        token.replace('.', ""),
        format!("{header}..{signature}"),
        "..".to_owned(),
        ".".to_owned(),
    ] {
        assert_eq!(bearer(&auth, &cut).unwrap_err().reason, Reason::Invalid, "{cut}");
    }
}

#[test]
fn cached_token_expires() {
    let issuer = Issuer::new();
    let (auth, clock, _files) = opened(&issuer, "leewaySeconds: 0");
    let token = issuer.token(&json!({"exp": NOW + 10}));
    assert!(bearer(&auth, &token).is_ok());
    clock.advance(Duration::from_secs(9));
    assert!(bearer(&auth, &token).is_ok());
    clock.advance(Duration::from_secs(1));
    let denied = bearer(&auth, &token).unwrap_err();
    assert_eq!((denied.reason, denied.challenge().is_some()), (Reason::Expired, true));
}

#[test]
fn rights_of_several_grants_add_up() {
    let issuer = Issuer::new();
    let (auth, _, _files) = opened(&issuer, "");
    let principal = bearer(&auth, &issuer.token(&json!({"scope": "openid admin"}))).unwrap();
    assert_eq!(principal.name(), "science");
    for (action, model, expected) in [
        (Action::Infer, "iris", true),
        (Action::Repository, "iris", true),
        (Action::Metadata, "fraud-eu", true),
        (Action::Metadata, "iris", false),
    ] {
        assert_eq!(principal.authorize(action, Target::Model(model)).is_ok(), expected, "{action:?} {model}");
    }
}

#[test]
fn rate_is_counted_by_subject_across_tokens() {
    let issuer = Issuer::new();
    let (auth, clock, _files) = opened(&issuer, "");
    let token = |sub: &str, id: usize| issuer.token(&json!({"sub": sub, "jti": id.to_string()}));
    for id in 0..5 {
        assert!(bearer(&auth, &token("ada", id)).is_ok());
    }
    let denied = bearer(&auth, &token("ada", 9)).unwrap_err();
    assert_eq!((denied.reason, denied.retry_after), (Reason::Limited, Some(1)));
    assert!(bearer(&auth, &token("bob", 0)).is_ok());
    clock.advance(Duration::from_secs(1));
    assert!(bearer(&auth, &token("ada", 0)).is_ok());
}

/// One issuer for all cases of the properties.
fn shared() -> &'static (Issuer, Arc<Auth>, Files) {
    static SHARED: OnceLock<(Issuer, Arc<Auth>, Files)> = OnceLock::new();
    SHARED.get_or_init(|| {
        let issuer = Issuer::new();
        let (auth, _, files) = opened(&issuer, "");
        (issuer, auth, files)
    })
}

proptest! {
    #[test]
    fn garbage_is_refused_without_a_panic(text in "[!-~]{0,200}") {
        let (_, auth, _) = shared();
        prop_assert!(bearer(auth, &text).is_err());
    }

    #[test]
    fn garbage_in_the_form_of_a_token_is_refused(
        header in proptest::collection::vec(any::<u8>(), 0..60),
        claims in proptest::collection::vec(any::<u8>(), 0..60),
        signature in proptest::collection::vec(any::<u8>(), 0..80),
    ) {
        let (_, auth, _) = shared();
        let token = format!("{}.{}.{}", encode(header), encode(claims), encode(signature));
        prop_assert!(bearer(auth, &token).is_err());
    }

    #[test]
    fn changed_byte_is_refused(at in any::<prop::sample::Index>(), to in "[A-Za-z0-9_.-]") {
        let (issuer, auth, _) = shared();
        let token = issuer.token(&json!({"sub": "changed"}));
        let at = at.index(token.len());
        let mut changed = token.clone();
        changed.replace_range(at..=at, &to);
        prop_assume!(changed != token);
        prop_assert!(bearer(auth, &changed).is_err());
    }
}
