//! CRD structure, and that the committed files are up to date.

use super::{crd, crd_yaml, resources};
use serde_json::Value;
use std::path::Path;

/// Visits every schema of a CRD with its path.
fn walk<'a>(schema: &'a Value, path: &str, visit: &mut impl FnMut(&str, &'a Value)) {
    visit(path, schema);
    for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        walk(property, &format!("{path}.{name}"), visit);
    }
    for (below, mark) in [("items", "[]"), ("additionalProperties", "{}")] {
        if let Some(inner) = schema.get(below) {
            walk(inner, &format!("{path}{mark}"), visit);
        }
    }
}

fn schema_of(definition: &Value) -> &Value {
    definition.pointer("/spec/versions/0/schema/openAPIV3Schema").unwrap()
}

#[test]
fn every_schema_is_structural() {
    for resource in resources() {
        let definition = crd(&resource);
        walk(schema_of(&definition), resource.kind, &mut |path, schema| {
            let fields = schema.as_object().unwrap();
            let either = fields.contains_key("x-kubernetes-int-or-string");
            assert!(either || fields["type"].is_string(), "{path} must have one type: {schema}");
            assert_eq!(either, fields.contains_key("anyOf"), "{path}: {schema}");
            for unwanted in
                ["$ref", "$defs", "$schema", "title", "oneOf", "allOf", "not", "const", "nullable"]
            {
                assert!(!fields.contains_key(unwanted), "{path} has {unwanted}");
            }
            if fields.get("type").is_some_and(|t| t == "array") {
                assert!(fields.contains_key("items"), "{path}: {schema}");
            }
            if let Some(format) = fields.get("format") {
                assert!(["int32", "int64"].contains(&format.as_str().unwrap()), "{path}: {format}");
            }
            let inside = [".apiVersion", ".kind", ".metadata", ".metadata.name", "[]", "{}"];
            let root = path == resource.kind || inside.iter().any(|end| path.ends_with(end));
            assert!(root || fields.contains_key("description"), "{path} has no description");
        });
    }
}

#[test]
fn every_rule_is_in_the_crd() {
    for resource in resources() {
        let definition = crd(&resource);
        let mut placed = 0;
        walk(schema_of(&definition), resource.kind, &mut |path, schema| {
            for rule in schema.get("x-kubernetes-validations").and_then(Value::as_array).into_iter().flatten()
            {
                placed += 1;
                assert_ne!(
                    rule.get("message").is_some(),
                    rule.get("messageExpression").is_some(),
                    "{path}: {rule}"
                );
            }
        });
        let parts = (resource.parts)();
        assert_eq!(placed, parts.rules.len(), "{}", resource.kind);
    }
}

#[test]
fn root_level_rules_exempt_stored_objects() {
    for resource in resources() {
        let definition = crd(&resource);
        let schema = schema_of(&definition);
        assert_eq!(schema.get("required"), None, "{}", resource.kind);
        for rule in schema["x-kubernetes-validations"].as_array().unwrap() {
            assert_eq!(rule["optionalOldSelf"], true, "{}: {rule}", resource.kind);
            assert!(rule["rule"].as_str().unwrap().starts_with("oldSelf.hasValue()"), "{rule}");
        }
    }
}

#[test]
fn defaults_match_seldon_core_and_kserve_has_none() {
    let mut defaults = Vec::new();
    for resource in resources() {
        let definition = crd(&resource);
        walk(schema_of(&definition), resource.kind, &mut |path, schema| {
            defaults.extend(schema.get("default").map(|d| format!("{path} = {d}")));
        });
    }
    defaults.sort();
    assert_eq!(
        defaults,
        [
            "Experiment.spec.resourceType = \"model\"",
            "Pipeline.spec.input.joinType = \"inner\"",
            "Pipeline.spec.input.triggersJoinType = \"inner\"",
            "Pipeline.spec.output.stepsJoin = \"inner\"",
            "Pipeline.spec.steps[].inputsJoinType = \"inner\"",
        ]
    );
}

#[test]
fn required_fields_match_seldon_core_and_kserve() {
    let mut required = Vec::new();
    for resource in resources() {
        let definition = crd(&resource);
        walk(schema_of(&definition), resource.kind, &mut |path, schema| {
            for field in schema.get("required").and_then(Value::as_array).into_iter().flatten() {
                required.push(format!("{path}.{}", field.as_str().unwrap()));
            }
        });
    }
    required.retain(|path| !path.contains(".status.") && path.rsplit('.').next() != Some("spec"));
    required.sort();
    assert_eq!(
        required,
        [
            "Algorithm.spec.image",
            "Algorithm.spec.metrics.prometheus.address",
            "Algorithm.spec.ports[].containerPort",
            "Algorithm.spec.ports[].name",
            "ClusterServingRuntime.spec.containers",
            "ClusterServingRuntime.spec.supportedModelFormats[].name",
            "ClusterStorageContainer.spec.container",
            "ClusterStorageContainer.spec.supportedUriFormats",
            "Experiment.spec.candidates[].name",
            "Experiment.spec.candidates[].weight",
            "Experiment.spec.mirror.name",
            "Experiment.spec.mirror.percent",
            "InferenceGraph.spec.nodes",
            "InferenceGraph.spec.nodes{}.routerType",
            "InferenceService.spec.canary[].predictor",
            "InferenceService.spec.explainer.autoScaling.metrics[].type",
            "InferenceService.spec.explainer.storageUris[].uri",
            "InferenceService.spec.predictor",
            "InferenceService.spec.predictor.autoScaling.metrics[].type",
            "InferenceService.spec.predictor.model.modelFormat",
            "InferenceService.spec.predictor.model.modelFormat.name",
            "InferenceService.spec.predictor.storageUris[].uri",
            "InferenceService.spec.transformer.autoScaling.metrics[].type",
            "InferenceService.spec.transformer.storageUris[].uri",
            "Model.spec.parameters[].name",
            "Model.spec.parameters[].value",
            "Model.spec.storageUri",
            "Pipeline.spec.steps",
            "Pipeline.spec.steps[].name",
            "RolloutPolicy.spec.analysis.latency.target",
            "RolloutPolicy.spec.notifications.webhooks[].url",
            "RolloutPolicy.spec.selector.kind",
            "RolloutPolicy.spec.selector.matchLabels",
            "RolloutPolicy.spec.strategy",
            "RolloutPolicy.spec.strategy.canary.steps",
            "RolloutPolicy.spec.strategy.canary.steps[].weight",
            "RolloutPolicy.spec.strategy.mirrorFirst.percent",
            "RolloutPolicy.spec.strategy.mirrorFirst.steps",
            "RolloutPolicy.spec.strategy.mirrorFirst.steps[].weight",
            "RolloutPolicy.spec.targetRef.kind",
            "RolloutPolicy.spec.targetRef.name",
            "SeldonConfig.spec.components[].name",
            "SeldonConfig.spec.components[].volumeClaimTemplates[].name",
            "SeldonRuntime.spec.overrides[].name",
            "SeldonRuntime.spec.seldonConfig",
            "Server.spec.serverConfig",
            "ServerConfig.spec.podSpec",
            "ServerConfig.spec.volumeClaimTemplates[].name",
            "ServingRuntime.spec.containers",
            "ServingRuntime.spec.supportedModelFormats[].name",
            "TrainedModel.spec.inferenceService",
            "TrainedModel.spec.model",
            "TrainedModel.spec.model.framework",
            "TrainedModel.spec.model.memory",
            "TrainedModel.spec.model.storageUri",
        ]
    );
}

#[test]
fn crds_fit_client_side_apply() {
    // The API server keeps every schema in memory; `kubectl apply` accepts 256 KiB.
    let sizes: Vec<(&str, usize)> =
        resources().iter().map(|r| (r.kind, crd_yaml(r).unwrap().len())).collect();
    assert!(sizes.iter().all(|(_, size)| *size < 50_000), "{sizes:?}");
    assert!(sizes.iter().map(|(_, size)| size).sum::<usize>() < 210_000, "{sizes:?}");
}

#[test]
fn committed_crds_are_up_to_date() {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    for resource in resources() {
        let file = deploy.join(resource.folder()).join(format!("{}.yaml", resource.plural));
        let committed = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(
            committed == crd_yaml(&resource).unwrap(),
            "{} is outdated: run cargo xtask crds",
            file.display()
        );
    }
    let count = |folder: &str| std::fs::read_dir(deploy.join(folder)).unwrap().count();
    let files: usize = ["crds", "crds-kserve", "crds-algorithm"].map(count).into_iter().sum();
    assert_eq!(files, resources().len(), "a file in deploy has no kind");
}

#[test]
fn declared_ranges_of_unsigned_fields_are_kept() {
    let algorithm = resources().into_iter().find(|r| r.kind == "Algorithm").unwrap();
    let definition = crd(&algorithm);
    let fields = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/lifecycle/properties";
    for (field, least, most) in [("canaryWeight", 0, 100), ("checks", 1, u32::MAX)] {
        let field = definition.pointer(&format!("{fields}/{field}")).unwrap();
        assert_eq!((field["minimum"].as_u64(), field["maximum"].as_u64()), (Some(least), Some(most.into())));
    }
}
