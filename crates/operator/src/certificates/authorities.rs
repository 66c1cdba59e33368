//! The certificate authorities of one namespace, as stored in the operator's Secret.

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, fmt};

/// More than the authorities that are lost again and again leave behind; the ones that expire first are dropped.
const MAX_RETIRED: usize = 64;

/// An authority that can sign. Stored: field names must not change.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Authority {
    /// The distinguished name, unique for each authority.
    pub name: String,
    /// PEM.
    pub certificate: String,
    /// PEM.
    pub key: String,
    pub from: Timestamp,
    pub until: Timestamp,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, from, until, .. } = self;
        f.debug_struct("Authority")
            .field("name", name)
            .field("from", from)
            .field("until", until)
            .finish_non_exhaustive()
    }
}

/// An authority that signs no more: its key is discarded, and it is trusted until it expires.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retired {
    pub name: String,
    pub certificate: String,
    pub until: Timestamp,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Authorities {
    /// Signs certificates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signing: Option<Authority>,
    /// Trusted already, and signs when every part has learned of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Authority>,
    /// Since when every Secret of the namespace contains `next`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub announced: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retired: Vec<Retired>,
}

impl Authorities {
    /// With an authority that signs at once.
    #[must_use]
    pub fn with_signing(mut self, authority: Authority) -> Self {
        self.retire_signing();
        self.signing = Some(authority);
        self
    }

    /// With the authority that will sign.
    #[must_use]
    pub fn with_next(mut self, authority: Authority) -> Self {
        // It may have signed, if there was no other.
        if let Some(before) = self.next.replace(authority) {
            self.retire(before);
        }
        self.announced = None;
        self
    }

    #[must_use]
    pub fn announced_at(self, now: Timestamp) -> Self {
        Self { announced: Some(now), ..self }
    }

    /// The next authority signs from now on.
    #[must_use]
    pub fn promoted(mut self) -> Self {
        if let Some(next) = self.next.take() {
            self.retire_signing();
            self.signing = Some(next);
        }
        self.announced = None;
        self
    }

    /// Without authorities that have expired.
    #[must_use]
    pub fn pruned(mut self, now: Timestamp) -> Self {
        self.retired.retain(|retired| now < retired.until);
        self
    }

    /// With authorities that are still trusted by parts, although their key is lost.
    #[must_use]
    pub fn with_retired(mut self, found: impl IntoIterator<Item = Retired>) -> Self {
        for retired in found {
            if !self.names().contains(retired.name.as_str()) {
                self.add_retired(retired);
            }
        }
        self
    }

    /// The authority that signs a certificate now. Without one that every part trusts, the next one is the best choice.
    pub fn signer(&self) -> Option<&Authority> {
        self.signing.as_ref().or(self.next.as_ref())
    }

    /// Names of all trusted authorities.
    pub fn names(&self) -> BTreeSet<&str> {
        let live = [&self.signing, &self.next].into_iter().flatten().map(|authority| authority.name.as_str());
        live.chain(self.retired.iter().map(|retired| retired.name.as_str())).collect()
    }

    /// All trusted authorities as PEM, the signing one first.
    pub fn bundle(&self) -> String {
        let live = [&self.signing, &self.next].into_iter().flatten().map(|authority| &authority.certificate);
        let all = live.chain(self.retired.iter().map(|retired| &retired.certificate));
        all.flat_map(|pem| [pem.trim(), "\n"]).collect()
    }

    /// Whether every authority has expired: the namespace has no runtime any more.
    pub fn has_expired(&self, now: Timestamp) -> bool {
        let live = [&self.signing, &self.next].into_iter().flatten().map(|authority| authority.until);
        live.chain(self.retired.iter().map(|retired| retired.until)).all(|until| until <= now)
    }

    fn retire_signing(&mut self) {
        if let Some(before) = self.signing.take() {
            self.retire(before);
        }
    }

    fn retire(&mut self, authority: Authority) {
        let Authority { name, certificate, until, .. } = authority;
        self.add_retired(Retired { name, certificate, until });
    }

    fn add_retired(&mut self, retired: Retired) {
        self.retired.push(retired);
        self.retired.sort_by_key(|retired| std::cmp::Reverse(retired.until));
        self.retired.truncate(MAX_RETIRED);
    }
}
