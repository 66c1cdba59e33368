//! Deployments and the objects that replace them.

use super::convert_seldon_deployments;
use crate::{Object, parse};

/// The objects as YAML, then the notes.
fn converted(spec: &str) -> String {
    match convert_seldon_deployments("d.yaml", &deployment(spec)) {
        Ok(conversions) => {
            let [conversion] = conversions.try_into().unwrap();
            let objects: Vec<String> =
                conversion.objects.iter().map(|o| serde_saphyr::to_string(o).unwrap()).collect();
            let notes: Vec<String> = conversion.notes.iter().map(ToString::to_string).collect();
            format!("{}\n{}", objects.join("---\n"), notes.join("\n"))
        }
        Err(errors) => errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
    }
}

fn deployment(spec: &str) -> String {
    format!(
        "apiVersion: machinelearning.seldon.io/v1\nkind: SeldonDeployment\n\
         metadata: {{name: shop, namespace: ml, labels: {{team: a}}}}\nspec:\n{spec}"
    )
}

/// A unit with an artifact, in flow style.
fn unit(name: &str, kind: &str, children: &str) -> String {
    format!(
        "{{name: {name}, type: {kind}, implementation: TRITON_SERVER, modelUri: s3://b/{name}, \
         children: [{children}]}}"
    )
}

fn graph(graph: &str) -> String {
    format!("  protocol: v2\n  predictors:\n  - {{name: main, graph: {graph}}}\n")
}

#[test]
fn prepackaged_server_becomes_a_model_and_pod_settings_a_server() {
    let spec = r"
  name: other
  protocol: v2
  transport: grpc
  annotations: {seldon.io/rest-timeout: '1000'}
  predictors:
  - name: main
    replicas: 2
    svcOrchSpec: {env: []}
    graph:
      name: classifier
      implementation: SKLEARN_SERVER
      modelUri: gs://bucket/iris
      envSecretRefName: rclone
      parameters: [{name: method, type: STRING, value: predict}]
      logger: {mode: all, url: http://x}
    componentSpecs:
    - hpaSpec: {minReplicas: 1, maxReplicas: 4, metrics: [{type: Resource}]}
      spec:
        nodeSelector: {gpu: 'true'}
        containers:
        - name: classifier
          image: seldonio/sklearnserver:1.17
          resources: {requests: {memory: 1Gi}}
    explainer: {type: AnchorTabular, modelUri: gs://bucket/explainer, serviceAccountName: x}
";
    insta::assert_snapshot!(converted(spec));
}

#[test]
fn graph_becomes_a_pipeline_in_the_order_of_the_orchestrator() {
    let models = [unit("a", "MODEL", ""), unit("b", "MODEL", "")].join(", ");
    let combiner = unit("mean", "COMBINER", &models);
    let transformer = unit("scale", "TRANSFORMER", &combiner);
    insta::assert_snapshot!(converted(&graph(&unit("round", "OUTPUT_TRANSFORMER", &transformer))));
}

#[test]
fn router_becomes_triggers_on_its_tensors() {
    let spec = r"
  protocol: v2
  predictors:
  - name: main
    graph:
      name: Choose_one
      type: ROUTER
      children:
      - {name: left, implementation: XGBOOST_SERVER, modelUri: s3://b/l}
      - {name: right, implementation: XGBOOST_SERVER, modelUri: s3://b/r}
    componentSpecs: [{spec: {containers: [{name: Choose_one, image: shop/router:1}]}}]
";
    insta::assert_snapshot!(converted(spec));
}

#[test]
fn predictors_with_traffic_become_an_experiment() {
    let predictor = |about: &str, uri: &str| {
        format!("  - {{{about}, graph: {{name: m, implementation: XGBOOST_SERVER, modelUri: {uri}}}}}\n")
    };
    let predictors = [
        predictor("name: main, traffic: 75", "s3://b/1"),
        predictor("name: canary, traffic: 25", "s3://b/2"),
        predictor("name: next, shadow: true, traffic: 10", "s3://b/3"),
        predictor("name: last, shadow: true", "s3://b/4"),
    ];
    insta::assert_snapshot!(converted(&format!("  protocol: v2\n  predictors:\n{}", predictors.concat())));
}

#[test]
fn model_beside_a_graph_becomes_a_pipeline_of_one_step() {
    let chain = unit("t", "TRANSFORMER", "{name: m, implementation: TENSORFLOW_SERVER, modelUri: s3://b/2}");
    let spec = format!(
        "  predictors:\n  - {{name: main, graph: {}}}\n  - {{name: chain, traffic: 0, graph: {chain}}}\n",
        unit("m", "MODEL", "")
    );
    insta::assert_snapshot!(converted(&spec));
}

#[test]
fn random_ab_test_becomes_an_experiment() {
    let split = |ratio: &str| {
        let children = [unit("a", "MODEL", ""), unit("b", "MODEL", "")].join(", ");
        let parameters = format!("[{{name: ratioA, type: FLOAT, value: '{ratio}'}}]");
        graph(&format!(
            "{{name: split, implementation: RANDOM_ABTEST, parameters: {parameters}, children: [{children}]}}"
        ))
    };
    insta::assert_snapshot!(converted(&split("0.29")));
    for (ratio, weight) in [("0", 0), ("1", 100), ("0.5", 50), ("0.004", 0), ("x", 50), ("7", 100)] {
        let text = deployment(&split(ratio));
        let [conversion] = convert_seldon_deployments("d.yaml", &text).unwrap().try_into().unwrap();
        let Some(Object::Experiment(experiment)) = conversion.objects.last() else {
            panic!("{conversion:?}")
        };
        let weights: Vec<u32> = experiment.spec.candidates.iter().map(|c| c.weight).collect();
        assert_eq!(weights, [weight, 100 - weight], "{ratio}");
    }
}

#[test]
fn converted_objects_are_valid() {
    let pair = [unit("a", "MODEL", ""), unit("b", "MODEL", "")].join(", ");
    let router = unit("r", "ROUTER", &pair);
    for of in [
        unit("a", "MODEL", ""),
        unit("c", "COMBINER", &pair),
        router.clone(),
        unit("c", "COMBINER", &format!("{}, {router}", unit("d", "MODEL", ""))),
    ] {
        let text = deployment(&graph(&of));
        let [conversion] = convert_seldon_deployments("d.yaml", &text).unwrap().try_into().unwrap();
        for object in &conversion.objects {
            let yaml = serde_saphyr::to_string(object).unwrap();
            let parsed = parse("o.yaml", &yaml).unwrap_or_else(|e| panic!("{e:?}\n{yaml}"));
            assert_eq!(parsed.first().map(|p| &p.object), Some(object));
        }
    }
}

#[test]
fn alternatives_beside_other_inputs_are_joined_as_they_arrive() {
    let router = unit("r", "ROUTER", &[unit("a", "MODEL", ""), unit("b", "MODEL", "")].join(", "));
    let several = format!("{router}, {}", unit("c", "MODEL", ""));
    for (children, join) in [(router, "any"), (several, "outer")] {
        let text = deployment(&graph(&unit("mean", "COMBINER", &children)));
        let [conversion] = convert_seldon_deployments("d.yaml", &text).unwrap().try_into().unwrap();
        let Some(Object::Pipeline(pipeline)) = conversion.objects.last() else { panic!("{conversion:?}") };
        let step = pipeline.spec.steps.iter().find(|s| s.name == "shop-mean").unwrap();
        assert_eq!(serde_json::to_value(step.inputs_join_type).unwrap(), join);
    }
}

#[test]
fn invalid_deployments_are_rejected_with_their_position() {
    let deep = "{name: a, children: [".repeat(300) + &"]}".repeat(300);
    let wide: Vec<String> = (0..300).map(|i| format!("{{name: a{i}}}")).collect();
    for (spec, expected) in [
        ("  predictors: []\n".to_owned(), "d.yaml:5: spec.predictors is empty"),
        ("  predictors: 7\n".to_owned(), "d.yaml:1: is not a valid SeldonDeployment: "),
        (graph("7"), "d.yaml:7: spec.predictors[0].graph is not a unit of a graph: "),
        (
            graph("{name: a, children: [{name: b}, {name: b}]}"),
            "d.yaml:7: spec.predictors Model shop-b would exist twice: rename a unit",
        ),
        (
            graph("{name: a}, explainer: {type: Guess}"),
            "d.yaml:7: spec.predictors[0].explainer.type \"Guess\" is not a type of an explainer",
        ),
        (graph(&deep), "d.yaml:7: is not valid YAML: too deeply nested"),
        (
            graph(&format!("{{name: a, children: [{}]}}", wide.join(", "))),
            "d.yaml:7: spec.predictors[0].graph.children[255] a graph has at most 256 units",
        ),
    ] {
        let message = converted(&spec);
        assert!(message.starts_with(expected), "{message}");
    }
}
