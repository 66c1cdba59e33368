//! When a certificate is made, announced, shown and forgotten. Without effect, and without a clock of its own.
//!
//! ```text
//! serving A        ──two thirds of its life──▶  serving A, next B   caBundle: A B    Prepare, Announce
//! serving A, next B ──everybody knows B──────▶  serving B           caBundle: B A    Promote
//! serving B        ──A has ended─────────────▶  serving B           caBundle: B      Forget, Announce
//! ```
//!
//! Each certificate has an authority of its own, whose key is thrown away as soon as it has signed: there is nothing
//! that could sign another. An authority stays in the `caBundle` until its certificate ends, so that it does not
//! matter how late a replica of the operator learns of the next.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use std::{fmt, time::Duration};

/// The longest time that API servers are given to learn of an authority.
const LONGEST_WAIT: Duration = Duration::from_mins(1);
/// The shortest.
const SHORTEST_WAIT: Duration = Duration::from_secs(1);

/// A certificate with its key, and the authority that vouches for it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// The authority's certificate, as PEM.
    pub authority: String,
    /// The certificate, as PEM.
    pub certificate: String,
    /// Its key, as PEM.
    pub key: String,
    /// The names that it is for.
    pub names: Vec<String>,
    /// When it was made.
    pub from: Timestamp,
    /// When it ends.
    pub until: Timestamp,
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { names, from, until, .. } = self;
        f.debug_struct("Pair").field("names", names).field("from", from).field("until", until).finish()
    }
}

impl Pair {
    fn lifetime(&self) -> Duration {
        Duration::try_from(self.until.duration_since(self.from)).unwrap_or_default()
    }

    /// When the next one is made.
    fn renewal(&self) -> Timestamp {
        let part = SignedDuration::try_from(self.lifetime() * 2 / 3).unwrap_or_default();
        self.from.checked_add(part).unwrap_or(self.until)
    }

    fn is_good(&self, names: &[String], now: Timestamp) -> bool {
        now < self.until && names.iter().all(|name| self.names.contains(name))
    }
}

/// An authority that nothing new is signed by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retired {
    /// Its certificate, as PEM.
    pub authority: String,
    /// When the certificate that it vouches for ends.
    pub until: Timestamp,
}

/// What the Secret holds: every replica shows `serving`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    /// What is shown.
    pub serving: Pair,
    /// What is shown next, when everybody knows its authority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Pair>,
    /// Authorities of what was shown before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retired: Vec<Retired>,
}

impl Stored {
    /// With one certificate, and nothing before it.
    pub const fn new(serving: Pair) -> Self {
        Self { serving, next: None, retired: Vec::new() }
    }

    /// With the certificate that comes next.
    #[must_use]
    pub fn preparing(self, next: Pair) -> Self {
        Self { next: Some(next), ..self }
    }

    /// With the next certificate in the place of the one that is shown.
    #[must_use]
    pub fn promoted(mut self) -> Self {
        if let Some(next) = self.next.take() {
            let Pair { authority, until, .. } = std::mem::replace(&mut self.serving, next);
            self.retired.push(Retired { authority, until });
        }
        self
    }

    /// Without authorities whose certificate has ended.
    #[must_use]
    pub fn tidied(mut self, now: Timestamp) -> Self {
        self.retired.retain(|retired| now < retired.until);
        self
    }

    /// The authorities that API servers must know: of what is shown, of what is shown next, and of what a replica that is
    /// late may still show.
    pub fn bundle(&self, now: Timestamp) -> String {
        let late = self.retired.iter().filter(|retired| now < retired.until).map(|r| &r.authority);
        let all = [&self.serving.authority].into_iter().chain(self.next.as_ref().map(|n| &n.authority));
        all.chain(late).flat_map(|pem| [pem.trim(), "\n"]).collect()
    }
}

/// What a step is decided from.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// What the Secret holds, if it can be read.
    pub stored: Option<&'a Stored>,
    /// The `caBundle` of the configuration.
    pub bundle: &'a str,
    /// Since when it has been what it should be, as far as is known here.
    pub since: Option<Timestamp>,
    /// The names by which API servers call.
    pub names: &'a [String],
    /// The time.
    pub now: Timestamp,
}

/// What the leader does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make a certificate and show it at once: there is none that could be used.
    Begin,
    /// Make the next one.
    Prepare,
    /// Show the next one.
    Promote,
    /// Forget authorities whose certificate has ended.
    Forget,
    /// Put this into the configuration.
    Announce(String),
    /// Nothing.
    Rest,
}

/// How long API servers are given to learn of an authority, for certificates that last so long.
pub(super) fn wait(lifetime: Duration) -> Duration {
    (lifetime / 90).clamp(SHORTEST_WAIT, LONGEST_WAIT)
}

/// Decides what comes next.
pub fn step(seen: &Seen<'_>) -> Step {
    let Seen { stored, bundle, since, names, now } = *seen;
    let Some(stored) = stored else { return Step::Begin };
    let next = stored.next.as_ref().filter(|next| next.is_good(names, now));
    if !stored.serving.is_good(names, now) {
        // Nobody can be disturbed: what is shown is good for nothing.
        return if next.is_some() { Step::Promote } else { Step::Begin };
    }
    let wanted = stored.bundle(now);
    if bundle != wanted {
        return Step::Announce(wanted);
    }
    if let Some(next) = next {
        let known = since.and_then(|since| Duration::try_from(now.duration_since(since)).ok());
        let is_known = known.is_some_and(|known| known >= wait(next.lifetime()));
        return if is_known { Step::Promote } else { Step::Rest };
    }
    if now >= stored.serving.renewal() {
        return Step::Prepare;
    }
    if stored.retired.iter().any(|retired| now >= retired.until) { Step::Forget } else { Step::Rest }
}
