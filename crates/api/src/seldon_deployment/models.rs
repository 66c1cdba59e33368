//! The Model of a unit, and its Server where the pods are customised.

use super::{
    Output,
    graph::Node,
    source::{ComponentSpec, Container, Explainer, Predictor},
};
use crate::{Diagnostic, ExplainerSpec, LoggingSpec, Model, ModelSpec, Object, ParameterSpec, Server};
use serde_json::{Map, Value, json};

/// A prepackaged server of Seldon Core v1.
struct Prepackaged {
    /// The capability of a server that loads the same artifacts.
    requirement: &'static str,
    /// The `ServerConfig` of such a server, which is also the name of its container.
    server_config: &'static str,
    /// A difference that clients notice.
    note: &'static str,
}

fn prepackaged(implementation: &str) -> Option<Prepackaged> {
    let (requirement, server_config, note) = match implementation {
        "SKLEARN_SERVER" => (
            "sklearn",
            "mlserver",
            "SKLEARN_SERVER returned predict_proba by default: MLServer returns predict, and predict_proba if the \
             request names that output",
        ),
        "XGBOOST_SERVER" => ("xgboost", "mlserver", ""),
        "MLFLOW_SERVER" => ("mlflow", "mlserver", ""),
        "HUGGINGFACE_SERVER" => (
            "huggingface",
            "mlserver",
            "HUGGINGFACE_SERVER: the artifact needs a model-settings.json with task and model",
        ),
        "TENSORFLOW_SERVER" => (
            "tensorflow",
            "triton",
            "TENSORFLOW_SERVER: Triton loads a SavedModel from NAME/1/model.savedmodel",
        ),
        "TRITON_SERVER" => ("triton", "triton", ""),
        _ => return None,
    };
    Some(Prepackaged { requirement, server_config, note })
}

/// What a conversion of units needs of their predictor.
pub(super) struct Context<'a> {
    pub(super) predictor: &'a Predictor,
    /// Path of the predictor.
    pub(super) path: &'a str,
    /// Replicas of the whole deployment.
    pub(super) replicas: Option<i32>,
}

pub(super) fn convert(node: &Node, name: &str, context: &Context<'_>, output: &mut Output<'_>) {
    let (unit, path) = (&node.unit, &node.path);
    let implementation = unit.implementation.as_deref().filter(|i| *i != "UNKNOWN_IMPLEMENTATION");
    let server = implementation.and_then(prepackaged);
    let mut model = Model::named(name, &unit.model_uri);
    let component = component_of(context.predictor, &unit.name);
    let replicas =
        component.and_then(|(_, c, _)| c.replicas).or(context.predictor.replicas).or(context.replicas);
    model.spec = ModelSpec {
        requirements: vec![server.as_ref().map_or("python", |s| s.requirement).to_owned()],
        secret_name: secret(unit.env_secret_ref_name.as_deref(), path, output),
        replicas,
        logger: unit.logger.as_ref().map(|_| LoggingSpec::default()),
        parameters: unit
            .parameters
            .iter()
            .map(|p| ParameterSpec { name: p.name.clone(), value: p.value.clone() })
            .collect(),
        ..model.spec
    };
    if let Some(note) = server.as_ref().map(|s| s.note).filter(|note| !note.is_empty()) {
        output.note(&format!("{path}.implementation"), note);
    }
    if unit.logger.is_some() {
        output.note(
            &format!("{path}.logger"),
            "payloads are logged by the gateway; url and mode are not carried over",
        );
    }
    if unit.model_uri.is_empty() {
        output.note(path, custom_code(implementation, component.map(|(_, _, container)| container)));
    }
    output.not_carried_over(path, &unit.other);
    if let Some((index, component, container)) = component {
        let at = format!("{}.componentSpecs[{index}]", context.path);
        scale(&mut model.spec, component, &at, output);
        if let Some(prepackaged) = server {
            let pods = pod_spec(&prepackaged, component, container, &at, output);
            if let Some(pods) = pods {
                let mut server = Server::named(name, replicas.unwrap_or(1));
                prepackaged.server_config.clone_into(&mut server.spec.server_config);
                server.spec.pod_spec = Some(pods);
                (server.spec.min_replicas, server.spec.max_replicas) =
                    (model.spec.min_replicas, model.spec.max_replicas);
                model.spec.server = Some(name.to_owned());
                output.add(Object::Server(Box::new(server)));
            }
        }
    }
    output.add(Object::Model(Box::new(model)));
}

/// The component with the container of a unit.
fn component_of<'a>(
    predictor: &'a Predictor,
    unit: &str,
) -> Option<(usize, &'a ComponentSpec, &'a Container)> {
    predictor.component_specs.iter().enumerate().find_map(|(i, component)| {
        component.spec.containers.iter().find(|c| c.name == unit).map(|container| (i, component, container))
    })
}

fn custom_code(implementation: Option<&str>, container: Option<&Container>) -> String {
    let what = match (implementation, container.and_then(|c| c.image.as_deref())) {
        (Some(implementation), _) => {
            format!("implementation {} has no artifact", implementation.escape_debug())
        }
        (None, Some(image)) => {
            format!("image {} serves the protocol of Seldon Core v1", image.escape_debug())
        }
        (None, None) => "has neither modelUri nor a container".to_owned(),
    };
    format!("{what}: write its code as a Python model of MLServer, and set storageUri of the Model")
}

fn secret(name: Option<&str>, path: &str, output: &mut Output<'_>) -> Option<String> {
    let name = name.filter(|name| !name.is_empty())?;
    output.note(
        &format!("{path}.envSecretRefName"),
        format!(
            "Secret {}: replace its environment variables by an rclone configuration (see docs/artifacts.md)",
            name.escape_debug()
        ),
    );
    Some(name.to_owned())
}

fn scale(spec: &mut ModelSpec, component: &ComponentSpec, path: &str, output: &mut Output<'_>) {
    output.not_carried_over(path, &component.other);
    let Some(hpa) = &component.hpa_spec else { return };
    (spec.min_replicas, spec.max_replicas) = (hpa.min_replicas.filter(|min| *min > 0), hpa.max_replicas);
    // The scaler owned the number.
    spec.replicas = None;
    output.not_carried_over(&format!("{path}.hpaSpec"), &hpa.other);
}

/// The settings of pods that a Server takes; `None` if there are none.
fn pod_spec(
    server: &Prepackaged,
    component: &ComponentSpec,
    container: &Container,
    path: &str,
    output: &mut Output<'_>,
) -> Option<Value> {
    let mut pods = component.spec.settings.clone();
    if pods.remove("initContainers").is_some() {
        let reason = super::source::reason("initContainers").unwrap_or_default();
        output.note(&format!("{path}.spec.initContainers"), format!("is not carried over: {reason}"));
    }
    if let Some(image) = &container.image {
        let message = format!(
            "image {} is not carried over: the Server uses the image of ServerConfig {}",
            image.escape_debug(),
            server.server_config
        );
        output.note(&format!("{path}.spec.containers"), message);
    }
    let has_settings = !pods.is_empty() || !container.settings.is_empty();
    let mut settings = Map::from_iter([("name".to_owned(), server.server_config.into())]);
    settings.extend(container.settings.clone());
    pods.insert("containers".to_owned(), json!([settings]));
    has_settings.then_some(Value::Object(pods))
}

/// The explainer of a predictor, as a Model.
pub(super) fn explainer(
    explainer: &Explainer,
    name: &str,
    target: &Object,
    path: &str,
    output: &mut Output<'_>,
) -> Result<(), Diagnostic> {
    let r#type = match explainer.r#type.as_str() {
        "AnchorTabular" => "anchor_tabular",
        "AnchorImages" => "anchor_image",
        "AnchorText" => "anchor_text",
        "KernelShap" => "kernel_shap",
        "TreeShap" => "tree_shap",
        "IntegratedGradients" => "integrated_gradients",
        "ALE" => "ale",
        other => {
            let message = format!("\"{}\" is not a type of an explainer", other.escape_debug());
            return Err(output.error(&format!("{path}.type"), message));
        }
    };
    let (model_ref, pipeline_ref) = match target {
        Object::Pipeline(pipeline) => (None, Some(pipeline.metadata.name.clone())),
        other => (Some(other.name().to_owned()), None),
    };
    let mut model = Model::named(name, &explainer.model_uri);
    model.spec.requirements = vec!["alibi-explain".into()];
    model.spec.secret_name = secret(explainer.env_secret_ref_name.as_deref(), path, output);
    model.spec.explainer = Some(ExplainerSpec { r#type: Some(r#type.into()), model_ref, pipeline_ref });
    output.not_carried_over(path, &explainer.other);
    output.add(Object::Model(Box::new(model)));
    Ok(())
}
