//! Experiment status.

use super::Readiness;
use gantry_api::Experiment;
use gantry_proto::scheduler as pb;
use serde_json::{Value, json};

#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "as in the status message")]
pub(crate) struct ExperimentView {
    pub(crate) name: String,
    pub(crate) active: bool,
    pub(crate) candidates_ready: bool,
    pub(crate) mirror_ready: bool,
    pub(crate) description: String,
    pub(crate) deleted: bool,
    pub(crate) definition: pb::Experiment,
}

impl From<pb::ExperimentStatusResponse> for ExperimentView {
    fn from(status: pb::ExperimentStatusResponse) -> Self {
        let definition = status.definition.unwrap_or_else(|| pb::Experiment {
            name: status.experiment_name.clone(),
            kubernetes_meta: status.kubernetes_meta,
            ..Default::default()
        });
        Self {
            name: status.experiment_name,
            active: status.active,
            candidates_ready: status.candidates_ready,
            mirror_ready: status.mirror_ready,
            description: status.status_description,
            deleted: status.deleted,
            definition,
        }
    }
}

impl ExperimentView {
    pub(crate) const fn readiness(&self) -> Readiness {
        match (self.deleted, self.active) {
            (true, _) => Readiness::Deleted,
            (false, true) => Readiness::Ready,
            (false, false) => Readiness::Progressing,
        }
    }

    pub(crate) fn message(&self) -> String {
        match self.readiness() {
            Readiness::Deleted => "stopped".into(),
            Readiness::Ready => format!("splitting {}", self.target()),
            _ if self.description.is_empty() => "waiting for its candidates".into(),
            _ => self.description.clone(),
        }
    }

    /// The name that clients use.
    pub(crate) fn target(&self) -> String {
        self.definition.default.clone().unwrap_or_else(|| format!("{}.experiment", self.name))
    }

    /// Name and share of each candidate.
    pub(crate) fn shares(&self) -> Vec<(&str, String)> {
        let total: u64 = self.definition.candidates.iter().map(|c| u64::from(c.weight)).sum();
        let share = |weight: u32| match total {
            0 => "0 %".to_owned(),
            _ => percent(f64::from(weight) * 100.0 / total as f64),
        };
        self.definition.candidates.iter().map(|c| (c.name.as_str(), share(c.weight))).collect()
    }

    /// `50 % iris, 50 % iris-b`
    pub(crate) fn candidates_column(&self) -> String {
        let shares: Vec<String> =
            self.shares().iter().map(|(name, share)| format!("{share} {name}")).collect();
        shares.join(", ")
    }

    /// `10 % iris-c`
    pub(crate) fn mirror_column(&self) -> Option<String> {
        self.definition.mirror.as_ref().map(|m| format!("{} % {}", m.percent, m.name))
    }

    /// The manifest with its status.
    pub(crate) fn document(&self) -> Value {
        let mut document = serde_json::to_value(Experiment::from_proto(&self.definition)).unwrap_or_default();
        let condition = |kind: &str, ready: bool| {
            json!({
                "type": kind,
                "status": if ready { "True" } else { "False" },
                "reason": if ready { "Ready" } else { "NotReady" },
                "message": if ready { String::new() } else { self.message() },
            })
        };
        let status = json!({
            "active": self.active,
            "conditions": [
                condition("CandidatesReady", self.candidates_ready),
                condition("ExperimentReady", self.active),
                condition("MirrorReady", self.mirror_ready),
                condition("Ready", self.active),
            ],
        });
        if let Value::Object(map) = &mut document {
            map.insert("status".into(), status);
        }
        document
    }
}

/// With a digit only if needed.
fn percent(share: f64) -> String {
    let text = format!("{share:.1}");
    format!("{} %", text.strip_suffix(".0").unwrap_or(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_relative_to_all_weights() {
        let candidate = |name: &str, weight| pb::ExperimentCandidate { name: name.into(), weight };
        let status = |candidates| pb::ExperimentStatusResponse {
            experiment_name: "half".into(),
            active: true,
            definition: Some(pb::Experiment { name: "half".into(), candidates, ..Default::default() }),
            ..Default::default()
        };
        for (weights, expected) in [
            (vec![50, 50], "50 % a, 50 % b"),
            (vec![1, 2], "33.3 % a, 66.7 % b"),
            (vec![0, 3], "0 % a, 100 % b"),
            (vec![0, 0], "0 % a, 0 % b"),
            (vec![], ""),
        ] {
            let candidates = ["a", "b"].iter().zip(weights).map(|(n, w)| candidate(n, w)).collect();
            let view = ExperimentView::from(status(candidates));
            assert_eq!(view.candidates_column(), expected);
            assert_eq!(view.message(), "splitting half.experiment");
        }
    }
}
