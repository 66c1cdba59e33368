//! Rollout policies.

use crate::output::PLACEHOLDER;
use gantry_api::{RolloutPolicy, RolloutPolicySpec, SpecDuration};
use gantry_proto::gantry as pb;
use serde_json::{Value, json};

#[derive(Clone, Debug)]
pub(crate) struct PolicyView {
    pub(crate) name: String,
    pub(crate) models: Vec<String>,
    pub(crate) pipelines: Vec<String>,
    /// `None` for a spec of another version of Gantry.
    pub(crate) spec: Option<Box<RolloutPolicySpec>>,
}

impl From<pb::RolloutPolicy> for PolicyView {
    fn from(policy: pb::RolloutPolicy) -> Self {
        let spec = RolloutPolicy::from_proto(&policy).map(|policy| Box::new(policy.spec));
        let pb::RolloutPolicy { name, models, pipelines, .. } = policy;
        Self { name, models, pipelines, spec }
    }
}

impl PolicyView {
    /// `canary 5, 20, 50 %`
    pub(crate) fn strategy_column(&self) -> String {
        let Some(strategy) = self.spec.as_ref().map(|spec| &spec.strategy) else {
            return PLACEHOLDER.to_owned();
        };
        if let Some(canary) = &strategy.canary {
            let weights: Vec<String> = canary.steps.iter().map(|step| step.weight.to_string()).collect();
            format!("canary {} %", weights.join(", "))
        } else if strategy.blue_green.is_some() {
            "blueGreen".to_owned()
        } else {
            "mirrorFirst".to_owned()
        }
    }

    pub(crate) fn analysis_column(&self) -> &'static str {
        let analysis = self.spec.as_ref().map(|spec| spec.analysis.as_ref());
        match analysis {
            None => PLACEHOLDER,
            Some(Some(analysis)) if analysis.thresholds.is_some() => "thresholds",
            Some(_) => "sequential",
        }
    }

    /// How long the previous version is kept after a promotion.
    pub(crate) fn bake_column(&self) -> String {
        let policy = self.spec.as_ref().and_then(|spec| spec.to_policy().ok());
        policy.map_or_else(|| PLACEHOLDER.to_owned(), |p| SpecDuration::from_millis(p.bake).to_string())
    }

    pub(crate) fn targets_column(&self) -> String {
        let targets = targets(&self.models, &self.pipelines);
        if targets.is_empty() { PLACEHOLDER.to_owned() } else { targets }
    }

    pub(crate) fn summary(&self) -> String {
        format!("rolls out {} by {}", self.targets_column(), self.strategy_column())
    }

    /// The manifest with its status.
    pub(crate) fn document(&self) -> Value {
        let spec = self.spec.as_deref().cloned().unwrap_or_default();
        let policy = RolloutPolicy::named(&self.name, spec);
        let mut document = serde_json::to_value(policy).unwrap_or_default();
        if let Value::Object(map) = &mut document {
            map.insert("status".into(), json!({ "models": self.models, "pipelines": self.pipelines }));
        }
        document
    }
}

/// Models by name, pipelines with their kind.
pub(crate) fn targets(models: &[String], pipelines: &[String]) -> String {
    let pipelines = pipelines.iter().map(|name| format!("pipeline/{name}"));
    models.iter().cloned().chain(pipelines).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_name_targets_weights_and_defaults() {
        let view = |spec: Value| {
            PolicyView::from(pb::RolloutPolicy {
                name: "careful".into(),
                models: vec!["iris".into(), "fraud".into()],
                spec: spec.to_string().into_bytes(),
                pipelines: vec!["risk".into()],
                ..pb::RolloutPolicy::default()
            })
        };
        let canary = view(json!({
            "targetRef": { "kind": "Model", "name": "iris" },
            "strategy": { "canary": { "steps": [{ "weight": 5 }, { "weight": 50 }] } },
        }));
        assert_eq!(canary.summary(), "rolls out iris, fraud, pipeline/risk by canary 5, 50 %");
        assert_eq!((canary.bake_column().as_str(), canary.analysis_column()), ("10m", "sequential"));
        assert_eq!(canary.document()["status"]["models"][1], "fraud");
        let blue_green = view(json!({
            "strategy": { "blueGreen": {} }, "bake": "1h", "analysis": { "thresholds": {} },
        }));
        assert_eq!(blue_green.strategy_column(), "blueGreen");
        assert_eq!((blue_green.bake_column().as_str(), blue_green.analysis_column()), ("1h", "thresholds"));
        let unknown = view(json!({ "strategy": 7 }));
        assert_eq!(unknown.summary(), "rolls out iris, fraud, pipeline/risk by –");
    }
}
