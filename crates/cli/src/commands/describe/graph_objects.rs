//! Pipelines and experiments.

use super::Page;
use crate::{
    output::{Style, ago, rfc3339},
    view::{ExperimentView, PipelineVersionView, PipelineView, Readiness, Resource},
};
use gantry_api::{JoinType, Pipeline};

/// The state of a model or pipeline that another object names.
fn state_of(name: &str, found: &[Resource]) -> String {
    let found = found.iter().find(|f| !f.is_deleted() && f.object_ref().name == name);
    match found.map(|f| (f.readiness(), f.message())) {
        None => "does not exist".into(),
        Some((Readiness::Ready, _)) => "ready".into(),
        Some((_, message)) if message.is_empty() => "not ready".into(),
        Some((_, message)) => format!("not ready: {message}"),
    }
}

pub(super) fn pipeline_summary(pipeline: &PipelineView) -> String {
    let name = &pipeline.name;
    let Some(latest) = pipeline.latest() else { return format!("{name} has no version.") };
    match latest.readiness() {
        Readiness::Ready => {
            format!("{name} is ready: version {} serves, {}.", latest.number, latest.summary_line())
        }
        Readiness::Deleted if pipeline.is_terminated() => format!("{name} is deleted."),
        Readiness::Deleted => format!("{name} is being deleted."),
        Readiness::Failed => format!("{name} failed: {}.", latest.message()),
        Readiness::Progressing => format!("{name} is not ready: {}.", latest.message()),
    }
}

pub(super) fn pipeline(pipeline: &PipelineView, models: &[Resource], style: Style) -> String {
    let Some(latest) = pipeline.latest() else { return format!("{}\n", pipeline_summary(pipeline)) };
    let mut page = Page::new(style, &pipeline_summary(pipeline), latest.readiness().tone());
    let manifest = Pipeline::from_proto(&latest.definition);
    let spec = &manifest.spec;
    let width = spec.steps.iter().map(|s| s.name.chars().count()).max().unwrap_or(0);
    let steps: Vec<String> = spec
        .steps
        .iter()
        .map(|step| {
            let inputs = sources(&step.inputs, step.inputs_join_type, "the pipeline's inputs");
            let mut line =
                format!("{:<width$}   {}   from {inputs}", step.name, state_of(&step.name, models));
            if !step.triggers.is_empty() {
                let join = step.triggers_join_type.unwrap_or_default();
                line += &format!(", triggered by {}", sources(&step.triggers, join, ""));
            }
            if let Some(size) = step.batch.as_ref().and_then(|b| b.size) {
                line += &format!(", in batches of {size} rows");
            }
            line
        })
        .collect();
    page.line("steps", &steps.join("\n"));
    if let Some(input) = &spec.input {
        page.line("input", &sources(&input.external_inputs, input.join_type, "requests"));
        page.line("input triggers", &sources(&input.external_triggers, input.triggers_join_type, ""));
    }
    let output = spec.output.as_ref();
    page.line("output", &output.map_or_else(|| "none".into(), |o| sources(&o.steps, o.steps_join, "none")));
    if spec.allow_cycles {
        page.line("cycles", &format!("allowed, a step runs again at most {} times", spec.max_step_revisits));
    }
    if let (Some(namespace), Some(generation)) = (&manifest.metadata.namespace, manifest.metadata.generation)
    {
        page.line("kubernetes", &format!("namespace {namespace}, generation {generation}"));
    }
    let versions: Vec<String> = pipeline.versions.iter().map(version_line).collect();
    page.line("versions", &versions.join("\n"));
    let name = &pipeline.name;
    page.line(
        "next",
        &match latest.readiness() {
            Readiness::Ready => format!("send a request: gantry pipeline infer {name} REQUEST"),
            Readiness::Deleted => "apply its manifest to recreate it".into(),
            _ => format!("find the cause: gantry explain pipeline/{name}"),
        },
    );
    page.text
}

fn version_line(version: &PipelineVersionView) -> String {
    let since = rfc3339(version.since).map(|s| format!("since {s} ({})", ago(version.since)));
    format!("{:<4} {:<12} {}", version.number, version.state_name(), since.unwrap_or_default())
}

/// `a, b` with how they are joined, if there are several.
fn sources(list: &[String], join: JoinType, empty: &str) -> String {
    let how = match join {
        JoinType::Inner => "",
        JoinType::Outer => " (those that arrive)",
        JoinType::Any => " (the first)",
    };
    match list {
        [] => empty.to_owned(),
        [one] => one.clone(),
        several => format!("{}{how}", several.join(", ")),
    }
}

pub(super) fn experiment_summary(experiment: &ExperimentView) -> String {
    let name = &experiment.name;
    match experiment.readiness() {
        Readiness::Ready => {
            let mirror = experiment.mirror_column().map(|m| format!(" Mirror: {m}.")).unwrap_or_default();
            format!("{name} splits {}: {}.{mirror}", experiment.target(), experiment.candidates_column())
        }
        Readiness::Deleted => format!("{name} is stopped."),
        _ => format!("{name} is not active: {}.", experiment.message()),
    }
}

pub(super) fn experiment(experiment: &ExperimentView, targets: &[Resource], style: Style) -> String {
    let mut page = Page::new(style, &experiment_summary(experiment), experiment.readiness().tone());
    let name = &experiment.name;
    page.line(
        "default",
        &match &experiment.definition.default {
            Some(default) => format!("{default}: its requests are split"),
            None => format!("none: clients send the header seldon-model: {name}.experiment"),
        },
    );
    let shares = experiment.shares();
    let width = shares.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let candidates: Vec<String> = shares
        .iter()
        .map(|(name, share)| format!("{name:<width$}   {share:>7}   {}", state_of(name, targets)))
        .collect();
    page.line("candidates", &candidates.join("\n"));
    if let Some(mirror) = &experiment.definition.mirror {
        page.line(
            "mirror",
            &format!("{}   {} %   {}", mirror.name, mirror.percent, state_of(&mirror.name, targets)),
        );
    }
    page.line(
        "next",
        &match experiment.readiness() {
            Readiness::Ready => format!("count the answers: gantry status experiment/{name}"),
            Readiness::Deleted => "apply its manifest to start it again".into(),
            _ => format!("find the cause: gantry explain experiment/{name}"),
        },
    );
    page.text
}
