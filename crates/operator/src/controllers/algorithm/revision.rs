//! Revisions: the digest of the pod-affecting fields, and the templates of those that may be needed again.

use crate::cluster::digest;
use gantry_api::{AlgorithmStatus, PodTemplate, RevisionTemplate};
use gantry_core::rollout::{Revision, Rollout};
use std::collections::BTreeMap;

/// 10 hexadecimal digits.
pub(super) fn revision_of(template: &PodTemplate) -> Revision {
    let digest = digest(&serde_json::to_value(template).unwrap_or_default());
    let mut hash = u64::from_str_radix(&digest, 16).unwrap_or_default();
    // Spreads every bit over the digits that remain.
    for (shift, factor) in [(30, 0xbf58_476d_1ce4_e5b9), (27, 0x94d0_49bb_1331_11eb)] {
        hash = (hash ^ (hash >> shift)).wrapping_mul(factor);
    }
    format!("{:010x}", (hash ^ (hash >> 31)) >> 24).into()
}

/// Templates by revision.
#[derive(Clone, Debug, Default)]
pub(super) struct Templates(BTreeMap<Revision, PodTemplate>);

impl Templates {
    /// Those of the status, and that of the spec.
    pub(super) fn new(status: Option<&AlgorithmStatus>, desired: &PodTemplate) -> Self {
        let stored = status.iter().flat_map(|status| &status.revisions);
        let stored = stored.filter_map(|stored| {
            let template = serde_json::from_str(&stored.template).ok()?;
            Some((Revision::from(stored.revision.as_str()), template))
        });
        let desired = (revision_of(desired), desired.clone());
        Self(stored.chain([desired]).collect())
    }

    pub(super) fn get(&self, revision: &str) -> Option<&PodTemplate> {
        self.0.get(revision)
    }

    /// Forgets revisions that the rollout does not need.
    pub(super) fn retain(&mut self, state: &Rollout, desired: &Revision) {
        let mut needed = state.retained();
        needed.extend(state.phase.stable().and_then(|stable| stable.previous.clone()));
        needed.push(desired.clone());
        self.0.retain(|revision, _| needed.contains(revision));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Revision, &PodTemplate)> {
        self.0.iter()
    }

    pub(super) fn stored(&self) -> Vec<RevisionTemplate> {
        let stored = |(revision, template): (&Revision, &PodTemplate)| RevisionTemplate {
            revision: revision.to_string(),
            template: serde_json::to_string(template).unwrap_or_default(),
        };
        self.0.iter().map(stored).collect()
    }
}
