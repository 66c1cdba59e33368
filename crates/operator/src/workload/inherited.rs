//! Labels and annotations that a workload and its pods inherit from the objects that declare it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use std::collections::BTreeMap;

type Pairs = BTreeMap<String, String>;

/// State that tools keep on the declaring object itself.
const EXCLUDED: [&str; 4] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    "meta.helm.sh/release-name",
    "meta.helm.sh/release-namespace",
    "seldon.io/last-applied",
];
/// The operator's own labels and annotations.
const OWN: &str = "gantry.dev/";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Inherited {
    pub labels: Pairs,
    pub annotations: Pairs,
}

impl Inherited {
    pub fn new(labels: &Pairs, annotations: &Pairs) -> Self {
        let inherited = |pairs: &Pairs| {
            let is_inherited = |name: &str| !EXCLUDED.contains(&name) && !name.starts_with(OWN);
            pairs.iter().filter(|(name, _)| is_inherited(name)).map(|(n, v)| (n.clone(), v.clone())).collect()
        };
        Self { labels: inherited(labels), annotations: inherited(annotations) }
    }

    pub fn of(metadata: &ObjectMeta) -> Self {
        let none = Pairs::new();
        Self::new(metadata.labels.as_ref().unwrap_or(&none), metadata.annotations.as_ref().unwrap_or(&none))
    }

    /// Both; the values of `self` win.
    #[must_use]
    pub fn over(self, base: &Self) -> Self {
        let mut merged = base.clone();
        merged.labels.extend(self.labels);
        merged.annotations.extend(self.annotations);
        merged
    }

    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.annotations.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn metadata(value: serde_json::Value) -> ObjectMeta {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn declaring_object_wins_over_its_configuration() {
        let server = metadata(json!({
            "labels": { "team": "blue", "gantry.dev/serves": "mesh" },
            "annotations": { "a": "1", "kubectl.kubernetes.io/last-applied-configuration": "{}", "gantry.dev/admission": "warn" },
        }));
        let config = metadata(json!({
            "labels": { "team": "red", "cost": "7" },
            "annotations": { "b": "2", "meta.helm.sh/release-name": "r", "meta.helm.sh/release-namespace": "n" },
        }));
        let merged = Inherited::of(&server).over(&Inherited::of(&config));
        let expected =
            json!({ "labels": { "team": "blue", "cost": "7" }, "annotations": { "a": "1", "b": "2" } });
        assert_eq!(serde_json::to_value(&merged).unwrap(), expected);
        assert!(Inherited::of(&ObjectMeta::default()).is_empty());
    }
}
