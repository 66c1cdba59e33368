//! Certificate rotation policy: pure, with an explicit clock.
//!
//! ```text
//! serving A         ──two thirds of its life──▶  serving A, next B   caBundle: A B    PrepareNext, PublishBundle
//! serving A, next B ──B has propagated────────▶  serving B           caBundle: B A    Promote
//! serving B         ──A has expired───────────▶  serving B           caBundle: B      PruneRetired, PublishBundle
//! ```
//!
//! Each certificate has its own CA, whose key is discarded after signing. A CA stays in the `caBundle` until its
//! certificate expires, so a replica may learn of the next certificate arbitrarily late.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use std::{fmt, time::Duration};

/// Time for API servers to learn of a CA.
const MAX_PROPAGATION_DELAY: Duration = Duration::from_mins(1);
const MIN_PROPAGATION_DELAY: Duration = Duration::from_secs(1);

/// A certificate with its key and CA, all as PEM. Stored in the Secret: field names must not change.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IssuedCertificate {
    pub authority: String,
    pub certificate: String,
    pub key: String,
    /// Subject alternative names.
    pub names: Vec<String>,
    pub from: Timestamp,
    pub until: Timestamp,
}

impl fmt::Debug for IssuedCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { names, from, until, .. } = self;
        f.debug_struct("IssuedCertificate")
            .field("names", names)
            .field("from", from)
            .field("until", until)
            .finish()
    }
}

impl IssuedCertificate {
    fn lifetime(&self) -> Duration {
        Duration::try_from(self.until.duration_since(self.from)).unwrap_or_default()
    }

    fn renew_at(&self) -> Timestamp {
        let part = SignedDuration::try_from(self.lifetime() * 2 / 3).unwrap_or_default();
        self.from.checked_add(part).unwrap_or(self.until)
    }

    fn is_valid(&self, names: &[String], now: Timestamp) -> bool {
        now < self.until && names.iter().all(|name| self.names.contains(name))
    }
}

/// The CA of a previous certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retired {
    pub authority: String,
    /// Expiry of the certificate that it signed.
    pub until: Timestamp,
}

/// The content of the Secret: every replica serves `serving`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredCertificates {
    pub serving: IssuedCertificate,
    /// Served when its CA has propagated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<IssuedCertificate>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retired: Vec<Retired>,
}

impl StoredCertificates {
    pub const fn new(serving: IssuedCertificate) -> Self {
        Self { serving, next: None, retired: Vec::new() }
    }

    #[must_use]
    pub fn with_next(self, next: IssuedCertificate) -> Self {
        Self { next: Some(next), ..self }
    }

    #[must_use]
    pub fn promoted(mut self) -> Self {
        if let Some(next) = self.next.take() {
            let IssuedCertificate { authority, until, .. } = std::mem::replace(&mut self.serving, next);
            self.retired.push(Retired { authority, until });
        }
        self
    }

    /// Removes CAs whose certificate has expired.
    #[must_use]
    pub fn pruned(mut self, now: Timestamp) -> Self {
        self.retired.retain(|retired| now < retired.until);
        self
    }

    /// CAs of the current, the next and previous certificates, which a lagging replica may still serve.
    pub fn bundle(&self, now: Timestamp) -> String {
        let retired = self.retired.iter().filter(|retired| now < retired.until).map(|r| &r.authority);
        let all = [&self.serving.authority].into_iter().chain(self.next.as_ref().map(|n| &n.authority));
        all.chain(retired).flat_map(|pem| [pem.trim(), "\n"]).collect()
    }
}

#[derive(Clone, Copy, Debug)]
pub struct RotationState<'a> {
    /// Content of the Secret; `None` when missing or invalid.
    pub stored: Option<&'a StoredCertificates>,
    /// The published `caBundle`.
    pub bundle: &'a str,
    /// When the published bundle was first observed.
    pub since: Option<Timestamp>,
    /// Host names used by API servers.
    pub names: &'a [String],
    pub now: Timestamp,
}

/// The next action of the leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RotationStep {
    /// Issue a certificate and serve it immediately: there is no valid one.
    Issue,
    /// Issue the next certificate.
    PrepareNext,
    /// Serve the next certificate.
    Promote,
    PruneRetired,
    /// Write this `caBundle` to the webhook configuration.
    PublishBundle(String),
    Wait,
}

pub(super) fn propagation_delay(lifetime: Duration) -> Duration {
    (lifetime / 90).clamp(MIN_PROPAGATION_DELAY, MAX_PROPAGATION_DELAY)
}

pub fn next_step(state: &RotationState<'_>) -> RotationStep {
    let RotationState { stored, bundle, since, names, now } = *state;
    let Some(stored) = stored else { return RotationStep::Issue };
    let next = stored.next.as_ref().filter(|next| next.is_valid(names, now));
    if !stored.serving.is_valid(names, now) {
        // The served certificate is invalid: no need to wait for propagation.
        return if next.is_some() { RotationStep::Promote } else { RotationStep::Issue };
    }
    let desired = stored.bundle(now);
    if bundle != desired {
        return RotationStep::PublishBundle(desired);
    }
    if let Some(next) = next {
        let age = since.and_then(|since| Duration::try_from(now.duration_since(since)).ok());
        let has_propagated = age.is_some_and(|age| age >= propagation_delay(next.lifetime()));
        return if has_propagated { RotationStep::Promote } else { RotationStep::Wait };
    }
    if now >= stored.serving.renew_at() {
        return RotationStep::PrepareNext;
    }
    if stored.retired.iter().any(|retired| now >= retired.until) {
        RotationStep::PruneRetired
    } else {
        RotationStep::Wait
    }
}
