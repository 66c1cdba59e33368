//! Predictors: a Model or a Pipeline each, and an Experiment for several.

use super::{
    Output,
    graph::{Graph, UnitType},
    models::{self, Context},
    source::{DeploymentSpec, Predictor},
};
use crate::{
    Diagnostic, Experiment, ExperimentCandidate, ExperimentMirror, ExperimentSpec, Object, Pipeline,
    PipelineOutput, PipelineSpec, PipelineStep, ResourceType,
};

pub(super) fn convert(name: &str, spec: &DeploymentSpec, output: &mut Output<'_>) -> Result<(), Diagnostic> {
    output.not_carried_over("spec", &spec.other);
    if !matches!(spec.protocol.as_deref(), Some("v2" | "kfserving")) {
        let protocol = spec.protocol.as_deref().unwrap_or("seldon");
        let message = format!(
            "is {}: clients send Open Inference Protocol requests to /v2/models/NAME/infer instead",
            protocol.escape_debug()
        );
        output.note("spec.protocol", message);
    }
    let mut targets = Vec::new();
    for (i, predictor) in spec.predictors.iter().enumerate() {
        let path = format!("spec.predictors[{i}]");
        let base = match spec.predictors.len() {
            1 => name.to_owned(),
            _ => format!("{name}-{}", output.name(&format!("{path}.name"), &predictor.name)?),
        };
        let context = Context { predictor, path: &path, replicas: spec.replicas };
        let target = convert_predictor(&base, &context, output)?;
        if let Some(explainer) = &predictor.explainer {
            let at = format!("{path}.explainer");
            models::explainer(explainer, &format!("{base}-explainer"), &target, &at, output)?;
        }
        targets.push(target);
    }
    if spec.predictors.len() > 1 {
        experiment(name, &spec.predictors, targets, output)?;
    } else {
        for target in targets.into_iter().filter(|t| matches!(t, Object::Pipeline(_) | Object::Experiment(_)))
        {
            output.add(target);
        }
    }
    Ok(())
}

/// Adds the models of a predictor. Returns what serves it: a Model, which is added already, or a Pipeline or an
/// Experiment.
fn convert_predictor(
    base: &str,
    context: &Context<'_>,
    output: &mut Output<'_>,
) -> Result<Object, Diagnostic> {
    let path = context.path;
    output.not_carried_over(path, &context.predictor.other);
    let graph = Graph::read(&context.predictor.graph, &format!("{path}.graph"), output)?;
    let names = match graph.nodes.as_slice() {
        [_] => vec![base.to_owned()],
        nodes => nodes
            .iter()
            .map(|node| {
                Ok(format!("{base}-{}", output.name(&format!("{}.name", node.path), &node.unit.name)?))
            })
            .collect::<Result<Vec<_>, Diagnostic>>()?,
    };
    let split = ab_test(&graph, &names, base);
    for (i, (node, name)) in graph.nodes.iter().zip(&names).enumerate() {
        // The router of a split is replaced by the Experiment.
        if i > 0 || split.is_none() {
            models::convert(node, name, context, output);
        }
    }
    Ok(match (split, graph.nodes.len()) {
        (Some(experiment), _) => Object::Experiment(Box::new(experiment)),
        (None, 1) => output
            .objects
            .iter()
            .rfind(|o| o.name() == base && matches!(o, Object::Model(_)))
            .cloned()
            .ok_or_else(|| output.error(path, "has no graph"))?,
        (None, _) => {
            let spec = graph.pipeline(&names, output);
            Object::Pipeline(Box::new(Pipeline::named(base, spec)))
        }
    })
}

/// The Experiment that replaces a `RANDOM_ABTEST` in front of two models.
fn ab_test(graph: &Graph, names: &[String], base: &str) -> Option<Experiment> {
    let [root, a, b] = graph.nodes.as_slice() else { return None };
    let ([_, first, second], true) = (names, root.kind == UnitType::Router) else { return None };
    let is_split = root.unit.implementation.as_deref() == Some("RANDOM_ABTEST")
        && a.children.is_empty()
        && b.children.is_empty()
        && root.children.len() == 2;
    if !is_split {
        return None;
    }
    let ratio = root.unit.parameters.iter().find(|p| p.name == "ratioA");
    let ratio = ratio.and_then(|p| p.value.parse::<f64>().ok()).unwrap_or(0.5);
    let percent = (0..=100).find(|percent| f64::from(*percent) + 0.5 > ratio * 100.0).unwrap_or(100);
    let candidates = [(first, percent), (second, 100 - percent)];
    let candidates = candidates.map(|(name, weight)| ExperimentCandidate { name: name.clone(), weight });
    let spec = ExperimentSpec {
        default: Some(first.clone()),
        candidates: candidates.into(),
        ..ExperimentSpec::default()
    };
    Some(Experiment::named(base, spec))
}

/// The Experiment between predictors.
fn experiment(
    name: &str,
    predictors: &[Predictor],
    mut targets: Vec<Object>,
    output: &mut Output<'_>,
) -> Result<(), Diagnostic> {
    if let Some(i) = targets.iter().position(|t| matches!(t, Object::Experiment(_))) {
        let path = format!("spec.predictors[{i}].graph");
        return Err(
            output.error(&path, "RANDOM_ABTEST below a traffic split: convert the predictors separately")
        );
    }
    let resource_type = if targets.iter().any(|t| matches!(t, Object::Pipeline(_))) {
        targets = targets.into_iter().map(as_pipeline).collect();
        ResourceType::Pipeline
    } else {
        ResourceType::Model
    };
    let mut spec = ExperimentSpec { resource_type, ..ExperimentSpec::default() };
    for (i, (predictor, target)) in predictors.iter().zip(&targets).enumerate() {
        let path = format!("spec.predictors[{i}]");
        let target = target.name().to_owned();
        if !predictor.shadow {
            let weight = predictor.traffic.unwrap_or(0);
            spec.candidates.push(ExperimentCandidate { name: target, weight });
        } else if spec.mirror.is_none() {
            let percent = predictor.traffic.filter(|percent| (1..=100).contains(percent)).unwrap_or(100);
            spec.mirror = Some(ExperimentMirror { name: target, percent });
        } else {
            output.note(&format!("{path}.shadow"), "is not carried over: an Experiment has one mirror");
        }
    }
    // Without any share the first predictor received everything.
    if spec.candidates.iter().all(|c| c.weight == 0)
        && let Some(first) = spec.candidates.first_mut()
    {
        first.weight = 100;
    }
    spec.default = spec.candidates.first().map(|c| c.name.clone());
    for pipeline in targets.into_iter().filter(|t| matches!(t, Object::Pipeline(_))) {
        output.add(pipeline);
    }
    output.add(Object::Experiment(Box::new(Experiment::named(name, spec))));
    Ok(())
}

/// Candidates have one kind, so a model beside pipelines becomes a pipeline of one step.
fn as_pipeline(target: Object) -> Object {
    let Object::Model(model) = target else { return target };
    let model = model.metadata.name;
    let name = format!("{model}-pipeline");
    let spec = PipelineSpec {
        steps: vec![PipelineStep { name: model.clone(), ..PipelineStep::default() }],
        output: Some(PipelineOutput { steps: vec![model], ..PipelineOutput::default() }),
        ..PipelineSpec::default()
    };
    Object::Pipeline(Box::new(Pipeline::named(name, spec)))
}
