//! Rules between the objects of several manifests.

use crate::{Diagnostic, Object, Parsed, ResourceType};
use std::collections::BTreeMap;

/// Errors between objects that are each valid: a model or pipeline is the default of one experiment.
pub fn check_set<'a>(objects: impl IntoIterator<Item = &'a Parsed>) -> Vec<Diagnostic> {
    let mut defaults: BTreeMap<(bool, &str), &Parsed> = BTreeMap::new();
    let mut errors = Vec::new();
    for parsed in objects {
        let Object::Experiment(experiment) = &parsed.object else { continue };
        let Some(default) = experiment.spec.default.as_deref() else { continue };
        let is_pipeline = experiment.spec.resource_type == ResourceType::Pipeline;
        let first = *defaults.entry((is_pipeline, default)).or_insert(parsed);
        if first.object.name() == parsed.object.name() {
            continue;
        }
        let (name, at) = (first.object.name(), format!("{}:{}", first.file, first.line));
        let message = format!(
            "\"{default}\" is also the default of experiment {name} at {at}: it can be the default of one experiment"
        );
        let (file, line) = (parsed.file.clone(), parsed.line);
        errors.push(Diagnostic { file, line, path: "spec.default".into(), message });
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    #[test]
    fn default_belongs_to_one_experiment() {
        let experiment = |name: &str, default: &str, kind: &str| {
            format!(
                "apiVersion: mlops.seldon.io/v1alpha1\nkind: Experiment\nmetadata: {{name: {name}}}\nspec:\n  \
                 default: {default}\n  resourceType: {kind}\n  candidates: [{{name: {default}, weight: 1}}]\n"
            )
        };
        let set = [
            experiment("a", "iris", "model"),
            experiment("b", "fraud", "model"),
            experiment("c", "iris", "pipeline"),
            experiment("d", "iris", "model"),
        ];
        let objects = parse("e.yaml", &set.join("---\n")).unwrap();
        let errors: Vec<String> = check_set(&objects).iter().map(ToString::to_string).collect();
        assert_eq!(
            errors,
            [
                "e.yaml:25: spec.default \"iris\" is also the default of experiment a at e.yaml:1: it can be the \
              default of one experiment"
            ]
        );
    }
}
