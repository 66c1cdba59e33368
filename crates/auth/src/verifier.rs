//! From a credential to a principal. A verifier belongs to one configuration and the keys of its issuers; a change of either
//! builds another one, so that nothing verified by old keys remains.

use crate::{
    Credential, Denied, Now, Principal, Reason,
    cache::TokenCache,
    config::{ClaimGrant, Config, Issuer, Key, KeySource},
    jwk::KeySet,
    jwt::{self, Failure, Verified},
    key::{Digest, sha256},
    metrics::Metrics,
    rate::Limits,
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// The keys of all issuers; none for a URL that has not responded yet.
pub(crate) type KeySets = BTreeMap<KeySource, Arc<KeySet>>;

pub(crate) struct Verifier {
    keys: HashMap<Digest, Arc<Principal>>,
    tokens: TokenCache,
    config: Arc<Config>,
    key_sets: KeySets,
    limits: Arc<Limits>,
    metrics: Arc<Metrics>,
    /// A token names a key that its issuer did not have.
    unknown_key: AtomicBool,
}

impl Verifier {
    pub(crate) fn new(
        config: &Arc<Config>,
        key_sets: KeySets,
        limits: &Arc<Limits>,
        metrics: &Arc<Metrics>,
        now: Now,
    ) -> Self {
        let principal = |key: &Key| {
            let grant = &key.grant;
            let principal = Principal {
                name: Arc::clone(&grant.name),
                access: vec![Arc::clone(&grant.access)],
                expires: key.expires,
                bucket: grant.rate.map(|rate| limits.bucket(&grant.name, None, rate, now.steady)),
                counters: metrics.counters(&grant.name),
            };
            (key.digest, Arc::new(principal))
        };
        let keys = config.keys.iter().map(principal).collect();
        let of_claims = config.issuers.iter().flat_map(|issuer| &issuer.grants).map(|grant| &grant.grant);
        let names: BTreeSet<_> = config
            .keys
            .iter()
            .map(|key| &key.grant)
            .chain(of_claims)
            .collect::<Vec<_>>()
            .into_iter()
            .map(|grant| Arc::clone(&grant.name))
            .collect();
        metrics.retain(names);
        Self {
            keys,
            tokens: TokenCache::new(),
            config: Arc::clone(config),
            key_sets,
            limits: Arc::clone(limits),
            metrics: Arc::clone(metrics),
            unknown_key: AtomicBool::new(false),
        }
    }

    /// Whether a key was missing since the last call.
    pub(crate) fn take_unknown_key(&self) -> bool {
        self.unknown_key.swap(false, Ordering::Relaxed)
    }

    /// The principal of a credential that is valid and within its rate.
    pub(crate) fn authenticate(&self, credential: &Credential, now: Now) -> Result<Arc<Principal>, Denied> {
        let text = credential.text();
        let digest = sha256(text.as_bytes());
        if let Some(principal) = self.keys.get(&digest) {
            principal.admit(now)?;
            return Ok(Arc::clone(principal));
        }
        let principal = match self.tokens.get(&digest) {
            Some(principal) => principal,
            None => self.token(text, digest, now)?,
        };
        principal.admit(now)?;
        Ok(principal)
    }

    fn token(&self, text: &str, digest: Digest, now: Now) -> Result<Arc<Principal>, Denied> {
        if self.config.issuers.is_empty() {
            return Err(Denied::unknown());
        }
        let token = jwt::parse(text).ok_or_else(Denied::unknown)?;
        // Only chooses the issuer, whose keys then decide.
        let named = token.claims.get("iss").and_then(serde_json::Value::as_str);
        let issuer = self
            .config
            .issuers
            .iter()
            .find(|issuer| Some(issuer.name.as_str()) == named)
            .ok_or_else(|| Denied::invalid("the token is of an issuer (iss) that is not configured"))?;
        let Some(keys) = self.key_sets.get(&issuer.key_source) else {
            return Err(Denied {
                retry_after: Some(1),
                ..Denied::new(
                    Reason::Unavailable,
                    "the keys of the token's issuer have not been fetched yet: retry in 1 s",
                )
            });
        };
        let verified = token.verify(issuer, keys, now.wall).map_err(|failure| match failure {
            Failure::Denied(denied) => denied,
            Failure::UnknownKey => {
                self.unknown_key.store(true, Ordering::Relaxed);
                Denied::invalid("the token is signed by a key (kid) that its issuer does not publish")
            }
        })?;
        let principal = Arc::new(self.principal(issuer, &verified, now)?);
        self.tokens.insert(digest, &principal, now.wall);
        Ok(principal)
    }

    /// The rights of all grants of the token; name and rate are those of the first.
    fn principal(&self, issuer: &Issuer, verified: &Verified, now: Now) -> Result<Principal, Denied> {
        let applies = |grant: &&ClaimGrant| {
            let claim = grant.claim.as_ref();
            claim.is_none_or(|(name, values)| jwt::claim_matches(&verified.claims, name, values))
        };
        let grants: Vec<_> = issuer.grants.iter().filter(applies).map(|grant| &grant.grant).collect();
        let Some(first) = grants.first() else {
            return Err(Denied::new(
                Reason::Forbidden,
                "the token is valid, but its claims have no grant: see issuers.grants in the authentication configuration",
            ));
        };
        let subject = verified.claims.get("sub").and_then(serde_json::Value::as_str);
        let subject = subject.map(|subject| sha256(subject.as_bytes()));
        let rate = first.rate;
        Ok(Principal {
            name: Arc::clone(&first.name),
            access: grants.iter().map(|grant| Arc::clone(&grant.access)).collect(),
            expires: Some(verified.expires),
            bucket: rate.map(|rate| self.limits.bucket(&first.name, subject, rate, now.steady)),
            counters: self.metrics.counters(&first.name),
        })
    }
}
