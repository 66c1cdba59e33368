//! Rules between the objects of several manifests.

use crate::{Diagnostic, Object, Parsed, ResourceType, TargetKind};
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

/// Sets the objects of each policy, by name or by the labels of the objects. An object has one
/// policy.
pub fn resolve_policies(objects: &mut [Parsed]) -> Vec<Diagnostic> {
    let labels: Vec<_> = objects
        .iter()
        .filter_map(|parsed| match &parsed.object {
            // An InferenceService is a model of the scheduler.
            Object::Model(model) => {
                let kinds = [TargetKind::Model, TargetKind::InferenceService];
                let kind = kinds.into_iter().find(|kind| model.kind == kind.name())?;
                Some((kind, model.metadata.name.clone(), model.metadata.labels.clone()))
            }
            Object::Pipeline(pipeline) => {
                let metadata = &pipeline.metadata;
                Some((TargetKind::Pipeline, metadata.name.clone(), metadata.labels.clone()))
            }
            _ => None,
        })
        .collect();
    let mut policies: BTreeMap<(&str, String), String> = BTreeMap::new();
    let mut errors = Vec::new();
    for parsed in objects {
        let Object::RolloutPolicy(policy) = &mut parsed.object else { continue };
        let mut error = |path: &str, message: String| {
            let (file, line) = (parsed.file.clone(), parsed.line);
            errors.push(Diagnostic { file, line, path: path.into(), message });
        };
        let (kind, names) = if let Some(target) = &policy.spec.target_ref {
            (target.kind, vec![target.name.clone()])
        } else if let Some(selector) = &policy.spec.selector {
            let of_kind = labels.iter().filter(|(kind, ..)| *kind == selector.kind);
            let selected = of_kind.filter(|(.., labels)| selector.matches(labels));
            let names: Vec<String> = selected.map(|(_, name, _)| name.clone()).collect();
            if names.is_empty() {
                let kind = selector.kind.name();
                let message = format!(
                    "selects no {kind} of these manifests: add the labels to a {kind}, pass the manifests of the {kind}s \
                     too, or use targetRef"
                );
                error("spec.selector", message);
            }
            (selector.kind, names)
        } else {
            continue;
        };
        for object in &names {
            let name = &policy.metadata.name;
            let scheduled = if kind == TargetKind::Pipeline { kind } else { TargetKind::Model };
            let first = policies.entry((scheduled.name(), object.clone())).or_insert_with(|| name.clone());
            if first != name {
                let kind = kind.name().to_lowercase();
                let message = format!(
                    "includes {kind} {object}, which RolloutPolicy {first} includes too: a {kind} has one policy"
                );
                error("spec", message);
            }
        }
        match kind {
            TargetKind::Pipeline => policy.pipelines = names,
            _ => policy.models = names,
        }
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

    #[test]
    fn policies_include_objects_by_name_and_by_label() {
        let model = |name: &str, labels: &str| {
            format!(
                "apiVersion: mlops.seldon.io/v1alpha1\nkind: Model\nmetadata: {{name: {name}, labels: {{{labels}}}}}\n\
                 spec: {{storageUri: /m}}\n"
            )
        };
        let policy = |name: &str, target: &str| {
            format!(
                "apiVersion: gantry.dev/v1alpha1\nkind: RolloutPolicy\nmetadata: {{name: {name}}}\n\
                 spec: {{{target}, strategy: {{blueGreen: {{}}}}}}\n"
            )
        };
        let resolve = |documents: &[String]| {
            let mut objects = parse("p.yaml", &documents.join("---\n")).unwrap();
            let errors: Vec<String> =
                resolve_policies(&mut objects).iter().map(ToString::to_string).collect();
            let policies = objects.iter().filter_map(|parsed| match &parsed.object {
                Object::RolloutPolicy(policy) => {
                    Some([policy.models.as_slice(), &policy.pipelines].concat().join(" "))
                }
                _ => None,
            });
            (policies.collect::<Vec<_>>(), errors)
        };
        let models =
            [model("a", "team: x, tier: gold"), model("b", "team: x"), model("c", "team: w, tier: gold")];
        let by_label = |labels: &str| format!("selector: {{kind: Model, matchLabels: {{{labels}}}}}");
        let by_name = |name: &str| format!("targetRef: {{kind: Model, name: {name}}}");
        let set = |policies: &[String]| [&models, policies].concat();
        let none: Vec<String> = Vec::new();
        assert_eq!(
            resolve(&set(&[policy("p", &by_label("team: x")), policy("q", &by_name("elsewhere"))])),
            (vec!["a b".to_owned(), "elsewhere".to_owned()], none.clone())
        );
        assert_eq!(
            resolve(&set(&[policy("p", &by_label("team: x, tier: gold"))])),
            (vec!["a".to_owned()], none)
        );
        let pipeline = "apiVersion: mlops.seldon.io/v1alpha1\nkind: Pipeline\nmetadata: {name: a, labels: {team: x}}\n\
                        spec: {steps: [{name: b}], output: {steps: [b]}}\n";
        let of_pipelines = "selector: {kind: Pipeline, matchLabels: {team: x}}";
        let policies =
            [pipeline.to_owned(), policy("p", &by_label("team: x, tier: gold")), policy("q", of_pipelines)];
        assert_eq!(
            resolve(&set(&policies)),
            (vec!["a".to_owned(), "a".to_owned()], Vec::new()),
            "a model and a pipeline of the same name"
        );
        let service = "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata: {name: s, labels: {team: x}}\n\
                       spec: {predictor: {model: {modelFormat: {name: onnx}, storageUri: /m}}}\n";
        let of_services = "selector: {kind: InferenceService, matchLabels: {team: x}}";
        let policies = [service.to_owned(), policy("p", of_services), policy("q", &by_name("s"))];
        let (found, errors) = resolve(&set(&policies));
        assert_eq!(found, ["s", "s"], "an InferenceService is a model of the scheduler");
        assert_eq!(errors.len(), 1, "{errors:?}");
        let (_, errors) = resolve(&set(&[policy("p", &by_label("team: z"))]));
        assert_eq!(
            errors,
            [
                "p.yaml:16: spec.selector selects no Model of these manifests: add the labels to a Model, pass the \
              manifests of the Models too, or use targetRef"
            ]
        );
        let (_, errors) = resolve(&set(&[policy("p", &by_label("team: x")), policy("q", &by_name("b"))]));
        assert_eq!(
            errors,
            ["p.yaml:21: spec includes model b, which RolloutPolicy p includes too: a model has one policy"]
        );
    }
}
