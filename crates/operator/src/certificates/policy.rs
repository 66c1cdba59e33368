//! When the issuer creates, announces, replaces and removes authorities and certificates: pure, with an explicit clock.
//!
//! ```text
//! signing A                ──two thirds of A's life──▶  signing A, next B       Prepare
//! signing A, next B        ──B is in every Secret────▶  … announced             Write, Announce
//! … announced              ──parts have read it──────▶  signing B, retired A    Promote
//! signing B, retired A     ──certificates of B───────▶  …                       Write
//! signing B, retired A     ──A has expired───────────▶  signing B               Prune, Write
//! ```
//!
//! Parts read a Secret some time after it was written. At every moment each part trusts what each other part presents:
//! an authority signs only after all parts trust it, and is trusted until all that it signed has expired.

use super::authorities::{Authorities, Authority};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Certificates are valid this long before they are issued, for parts whose clock is behind.
pub const CLOCK_SKEW: Duration = Duration::from_hours(1);
/// Lifetimes of certificates in that of their authority.
const CERTIFICATES_PER_AUTHORITY: u32 = 8;
/// Part of a certificate's lifetime in which parts learn of a new authority.
const PROPAGATION_PART: u32 = 8;

/// Lifetimes, derived from that of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    pub certificate: Duration,
}

impl Lifetimes {
    pub fn authority(self) -> Duration {
        self.certificate.saturating_mul(CERTIFICATES_PER_AUTHORITY)
    }

    /// How long parts have to read a new authority before it signs. A node that was cut off for less misses nothing.
    pub fn propagation(self) -> Duration {
        self.certificate / PROPAGATION_PART
    }
}

/// The names in a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    /// The role, a SPIFFE ID.
    pub uri: String,
    /// Names of a server, for its clients.
    pub hosts: Vec<String>,
}

/// A certificate in a Secret, with a key that belongs to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateView {
    /// The name of the authority that signed it.
    pub issuer: String,
    pub identity: Identity,
    pub from: Timestamp,
    pub until: Timestamp,
}

/// The content of a Secret. What is damaged is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SecretView {
    /// Names of trusted authorities.
    pub trusted: BTreeSet<String>,
    /// By item, the name of its files without `.crt` and `.key`.
    pub certificates: BTreeMap<String, CertificateView>,
    /// Files that belong to no item.
    pub has_leftovers: bool,
}

impl SecretView {
    /// Whether a part may present a certificate of an authority that others trust.
    fn is_in_use(&self, now: Timestamp) -> bool {
        self.certificates.values().any(|held| now < held.until && self.trusted.contains(&held.issuer))
    }
}

/// Secrets and their items, with the names in their certificates.
pub type Wanted = BTreeMap<&'static str, BTreeMap<String, Identity>>;

#[derive(Clone, Copy, Debug)]
pub struct State<'a> {
    pub authorities: &'a Authorities,
    pub wanted: &'a Wanted,
    /// Secrets that exist, by name.
    pub secrets: &'a BTreeMap<&'static str, SecretView>,
    pub now: Timestamp,
    pub lifetimes: Lifetimes,
}

/// The next write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Create an authority that signs at once: nothing that parts present is valid.
    Create,
    /// Create the next authority.
    Prepare,
    /// Note that every Secret contains the next authority.
    Announce,
    /// Let the next authority sign.
    Promote,
    /// Remove expired authorities.
    Prune,
    /// Write a Secret with all trusted authorities and new certificates for these items.
    Write {
        secret: &'static str,
        renew: BTreeSet<String>,
    },
    Wait,
}

pub fn next_step(state: &State<'_>) -> Step {
    let State { authorities, wanted, secrets, now, lifetimes } = *state;
    let signing = authorities.signing.as_ref().filter(|authority| is_usable(authority, now));
    let next = authorities.next.as_ref().filter(|authority| is_usable(authority, now));
    match (signing, next) {
        // The authorities are lost, and parts still trust each other: they learn of the next one first.
        (None, None) if authorities.signing.is_none() && secrets.values().any(|s| s.is_in_use(now)) => {
            return Step::Prepare;
        }
        (None, None) => return Step::Create,
        // Nothing that the signing authority signed is valid any more.
        (None, Some(_)) if authorities.signing.is_some() => return Step::Promote,
        (Some(_), None) if authorities.next.is_some() => return Step::Prepare,
        _ => {}
    }
    let trusted = authorities.names();
    for (secret, items) in wanted {
        let held = secrets.get(secret);
        let renew: BTreeSet<String> = items
            .iter()
            .filter(|(item, identity)| {
                let held = held.and_then(|secret| secret.certificates.get(*item));
                !held.is_some_and(|held| stays(held, identity, authorities, now))
            })
            .map(|(item, _)| item.clone())
            .collect();
        let is_complete = held.is_some_and(|held| {
            !held.has_leftovers
                && held.trusted.iter().map(String::as_str).eq(trusted.iter().copied())
                && held.certificates.keys().eq(items.keys())
        });
        if !renew.is_empty() || !is_complete {
            return Step::Write { secret, renew };
        }
    }
    if next.is_some() {
        let age = authorities.announced.and_then(|since| Duration::try_from(now.duration_since(since)).ok());
        return match age {
            // Also when the clock was set back: the wait starts again.
            None => Step::Announce,
            Some(age) if age >= lifetimes.propagation() => Step::Promote,
            Some(_) => Step::Wait,
        };
    }
    if signing.is_some_and(|authority| now >= renew_at(authority.from, authority.until)) {
        return Step::Prepare;
    }
    if authorities.retired.iter().any(|retired| retired.until <= now) { Step::Prune } else { Step::Wait }
}

/// Whether a certificate needs no successor yet.
fn stays(held: &CertificateView, identity: &Identity, authorities: &Authorities, now: Timestamp) -> bool {
    if held.identity != *identity || !is_valid(held.from, held.until, now) {
        return false;
    }
    match &authorities.signing {
        Some(signing) => held.issuer == signing.name && now < renew_at(held.from, held.until),
        // The authority is lost: what it signed is as good as what the next one would sign, which parts may not know.
        None => authorities.names().contains(held.issuer.as_str()),
    }
}

fn is_usable(authority: &Authority, now: Timestamp) -> bool {
    is_valid(authority.from, authority.until, now)
}

/// `from` is after the start of the validity by the clock skew.
fn is_valid(from: Timestamp, until: Timestamp, now: Timestamp) -> bool {
    plus(now, CLOCK_SKEW) >= from && now < until
}

/// Two thirds of the way from issue to expiry.
pub fn renew_at(from: Timestamp, until: Timestamp) -> Timestamp {
    let life = Duration::try_from(until.duration_since(from)).unwrap_or_default();
    plus(from, life * 2 / 3)
}

/// The latest time there is, if the sum is later.
pub(super) fn plus(time: Timestamp, duration: Duration) -> Timestamp {
    let sum = SignedDuration::try_from(duration).ok().and_then(|duration| time.checked_add(duration).ok());
    sum.unwrap_or(Timestamp::MAX)
}
