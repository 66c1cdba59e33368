//! JSON Web Tokens: parsing, and the checks of signature and claims.

use crate::{
    Denied, Reason,
    config::Issuer,
    jwk::{Algorithm, KeySet},
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::Deserialize;
use serde_json::{Map, Value};

/// A token whose signature has not been checked.
#[derive(Debug)]
pub(crate) struct Unverified<'a> {
    header: Header,
    pub(crate) claims: Map<String, Value>,
    signed: &'a str,
    signature: Vec<u8>,
}

#[derive(Debug, Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    /// Extensions that a verifier must understand; this one understands none.
    crit: Option<Value>,
}

/// A token that was verified.
#[derive(Debug)]
pub(crate) struct Verified {
    pub(crate) claims: Map<String, Value>,
    /// Seconds since 1970, leeway included.
    pub(crate) expires: u64,
}

/// Why a token is not accepted.
#[derive(Debug)]
pub(crate) enum Failure {
    Denied(Denied),
    /// The issuer may have a new key.
    UnknownKey,
}

impl From<Denied> for Failure {
    fn from(denied: Denied) -> Self {
        Self::Denied(denied)
    }
}

/// `None` for text that has not the form of a token.
pub(crate) fn parse(token: &str) -> Option<Unverified<'_>> {
    let (signed, signature) = token.rsplit_once('.')?;
    let (header, claims) = signed.split_once('.').filter(|(_, claims)| !claims.contains('.'))?;
    let decode = |text: &str| URL_SAFE_NO_PAD.decode(text).ok();
    Some(Unverified {
        header: serde_json::from_slice(&decode(header)?).ok()?,
        claims: serde_json::from_slice(&decode(claims)?).ok()?,
        signed,
        signature: decode(signature)?,
    })
}

impl Unverified<'_> {
    /// Checks the algorithm before the key is chosen, and the signature before any other claim is believed.
    pub(crate) fn verify(self, issuer: &Issuer, keys: &KeySet, now: u64) -> Result<Verified, Failure> {
        let allowed = || {
            let names: Vec<&str> = issuer.algorithms.iter().map(|a| a.name()).collect();
            Denied::invalid(format!("the token's algorithm is not allowed: use {}", names.join(", ")))
        };
        let algorithm = Algorithm::parse(&self.header.alg)
            .filter(|algorithm| issuer.algorithms.contains(algorithm))
            .ok_or_else(allowed)?;
        if self.header.crit.is_some() {
            return Err(Denied::invalid("the token has extensions (crit) that are not supported").into());
        }
        let key = keys.find(self.header.kid.as_deref(), algorithm).ok_or(Failure::UnknownKey)?;
        if !key.verify(self.signed.as_bytes(), &self.signature) {
            return Err(Denied::invalid("the token's signature is wrong").into());
        }
        let expires = self.check_times(now, issuer.leeway)?;
        self.check_audience(&issuer.audiences)?;
        Ok(Verified { claims: self.claims, expires })
    }

    fn check_times(&self, now: u64, leeway: u64) -> Result<u64, Denied> {
        let seconds = |name: &str| {
            let number = |value: &Value| {
                value.as_f64().filter(|n| n.is_finite()).map(|n| n.clamp(0.0, 1e15) as u64).ok_or_else(|| {
                    Denied::invalid(format!("the token's claim {name} is not a number of seconds"))
                })
            };
            self.claims.get(name).map(number).transpose()
        };
        let Some(exp) = seconds("exp")? else {
            return Err(Denied::invalid("the token has no expiry: the claim exp is required"));
        };
        let expires = exp.saturating_add(leeway);
        if expires <= now {
            return Err(Denied::new(Reason::Expired, "the token has expired: request a new one"));
        }
        if seconds("nbf")?.is_some_and(|start| start > now.saturating_add(leeway)) {
            return Err(Denied::invalid("the token is not valid yet (nbf): check the clocks"));
        }
        Ok(expires)
    }

    fn check_audience(&self, audiences: &[String]) -> Result<(), Denied> {
        let is_ours = |value: &Value| value.as_str().is_some_and(|a| audiences.iter().any(|own| own == a));
        let found = match self.claims.get("aud") {
            Some(Value::Array(list)) => list.iter().any(is_ours),
            Some(one) => is_ours(one),
            None => false,
        };
        if found {
            return Ok(());
        }
        Err(Denied::invalid(format!(
            "the token is not for this gateway: its audience (aud) must contain {:?}",
            audiences.first().map_or("", String::as_str)
        )))
    }
}

/// The claim of this name, else of this path: `realm_access.roles`.
pub(crate) fn claim<'a>(claims: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    if let Some(value) = claims.get(path) {
        return Some(value);
    }
    let (first, rest) = path.split_once('.')?;
    rest.split('.').try_fold(claims.get(first)?, |value, name| value.get(name))
}

/// Whether the claim is one of the values or contains one. `scope` is a text with words.
pub(crate) fn claim_matches(claims: &Map<String, Value>, path: &str, values: &[String]) -> bool {
    let wanted = |text: &str| values.iter().any(|value| value == text);
    match claim(claims, path) {
        Some(Value::String(words)) if matches!(path, "scope" | "scp") => words.split(' ').any(wanted),
        Some(Value::String(text)) => wanted(text),
        Some(Value::Array(list)) => list.iter().any(|entry| entry.as_str().is_some_and(wanted)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn claims_match_by_value_member_word_and_path() {
        let Value::Object(claims) = json!({
            "role": "admin", "groups": ["a", "data science", 7], "scope": "read infer", "words": "read infer",
            "realm_access": {"roles": ["ml"]}, "https://x.example/roles": ["url"], "flag": true, "a.b": "flat",
            "a": {"b": "deep"},
        }) else {
            unreachable!()
        };
        for (path, value, expected) in [
            ("role", "admin", true),
            ("role", "adm", false),
            ("groups", "data science", true),
            ("groups", "data", false),
            ("groups", "7", false),
            ("scope", "infer", true),
            ("scope", "read infer", false),
            ("words", "infer", false),
            ("realm_access.roles", "ml", true),
            ("realm_access", "ml", false),
            ("https://x.example/roles", "url", true),
            ("flag", "true", false),
            ("a.b", "flat", true),
            ("a.b", "deep", false),
            ("missing", "", false),
            ("role.x", "admin", false),
        ] {
            assert_eq!(claim_matches(&claims, path, &[value.to_owned()]), expected, "{path} {value}");
        }
    }
}
