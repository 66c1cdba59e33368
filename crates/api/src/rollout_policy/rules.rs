//! Validation rules of RolloutPolicy.

use super::{RolloutPolicySpec, StepSpec, TargetKind};
use crate::{
    FieldError, SpecDuration, check_name,
    validation::{CelRule, Check, Rule, Violation},
};
use gantry_core::rollout::{Margins, Rules};

pub(super) const ONE_STRATEGY: &str = "must have exactly one of canary, blueGreen and mirrorFirst";

/// Shorter intervals have too few requests for a check.
const MIN_INTERVAL: u64 = 1000;

const fn cel(at: &'static str, field: &'static str, rule: &'static str, message: &'static str) -> CelRule {
    CelRule { at, field, rule, message, values: &[], ratchet: "" }
}

fn violation_if(broken: bool, path: &str) -> Vec<Violation> {
    if broken { vec![(path.to_owned(), Vec::new())] } else { Vec::new() }
}

pub(crate) const ROLLOUT_POLICY: &[Rule<RolloutPolicySpec>] = &[
    Rule {
        cel: cel(
            "spec",
            "",
            "has(self.targetRef) != has(self.selector)",
            "must have exactly one of targetRef and selector",
        ),
        check: Check::Spec(|s| violation_if(s.target_ref.is_some() == s.selector.is_some(), "spec")),
    },
    supported_kinds("spec.targetRef.kind", |s| {
        unsupported("spec.targetRef.kind", s.target_ref.as_ref().map(|t| t.kind))
    }),
    supported_kinds("spec.selector.kind", |s| {
        unsupported("spec.selector.kind", s.selector.as_ref().map(|t| t.kind))
    }),
    Rule {
        cel: cel(
            "spec.selector.matchLabels",
            "",
            "self.size() > 0",
            "is empty: name a label that the objects have, or use targetRef",
        ),
        check: Check::Spec(|s| {
            let is_empty = s.selector.as_ref().is_some_and(|s| s.match_labels.is_empty());
            violation_if(is_empty, "spec.selector.matchLabels")
        }),
    },
    Rule {
        cel: cel(
            "spec.strategy",
            "",
            "[has(self.canary), has(self.blueGreen), has(self.mirrorFirst)].filter(x, x).size() == 1",
            ONE_STRATEGY,
        ),
        check: Check::Spec(|s| {
            let strategy = &s.strategy;
            let all =
                [strategy.canary.is_some(), strategy.blue_green.is_some(), strategy.mirror_first.is_some()];
            violation_if(all.into_iter().filter(|is_set| *is_set).count() != 1, "spec.strategy")
        }),
    },
    Rule {
        cel: cel(
            "spec",
            "strategy.mirrorFirst",
            "!has(self.strategy.mirrorFirst) || ((!has(self.targetRef) || self.targetRef.kind == 'Model') && (!has(self.selector) || self.selector.kind == 'Model'))",
            "is supported for a Model only: use canary or blueGreen",
        ),
        check: Check::Spec(|s| {
            let is_model = kinds(s).all(|kind| kind == TargetKind::Model);
            violation_if(!is_model && s.strategy.mirror_first.is_some(), "spec.strategy.mirrorFirst")
        }),
    },
    Rule {
        cel: cel(
            "spec",
            "drift",
            "!has(self.drift) || ((!has(self.targetRef) || self.targetRef.kind != 'InferenceService') && (!has(self.selector) || self.selector.kind != 'InferenceService'))",
            "is not supported for an InferenceService, whose previous version stops after the bake: raise bake instead",
        ),
        check: Check::Spec(|s| {
            let is_service = kinds(s).any(|kind| kind == TargetKind::InferenceService);
            violation_if(is_service && s.drift.is_some(), "spec.drift")
        }),
    },
    steps_exist("spec.strategy.canary.steps", |s| empty("spec.strategy.canary.steps", canary(s))),
    steps_increase("spec.strategy.canary.steps", |s| unsorted("spec.strategy.canary.steps", canary(s))),
    steps_exist("spec.strategy.mirrorFirst.steps", |s| empty("spec.strategy.mirrorFirst.steps", mirrored(s))),
    steps_increase("spec.strategy.mirrorFirst.steps", |s| {
        unsorted("spec.strategy.mirrorFirst.steps", mirrored(s))
    }),
    Rule {
        cel: cel(
            "spec.drift",
            "input",
            "!has(self.output) || !has(self.input)",
            "is mutually exclusive with output: remove one",
        ),
        check: Check::Spec(|s| {
            let both = s.drift.as_ref().is_some_and(|d| d.output.is_some() && d.input.is_some());
            violation_if(both, "spec.drift.input")
        }),
    },
    Rule {
        cel: cel(
            "spec.analysis",
            "thresholds",
            "!has(self.sequential) || !has(self.thresholds)",
            "is mutually exclusive with sequential: remove one",
        ),
        check: Check::Spec(|s| {
            let both = s.analysis.as_ref().is_some_and(|a| a.sequential.is_some() && a.thresholds.is_some());
            violation_if(both, "spec.analysis.thresholds")
        }),
    },
];

fn kinds(spec: &RolloutPolicySpec) -> impl Iterator<Item = TargetKind> {
    let of_target = spec.target_ref.as_ref().map(|target| target.kind);
    of_target.into_iter().chain(spec.selector.as_ref().map(|selector| selector.kind))
}

fn canary(spec: &RolloutPolicySpec) -> Option<&[StepSpec]> {
    spec.strategy.canary.as_ref().map(|canary| &*canary.steps)
}

fn mirrored(spec: &RolloutPolicySpec) -> Option<&[StepSpec]> {
    spec.strategy.mirror_first.as_ref().map(|mirror| &*mirror.steps)
}

const fn steps_exist(
    at: &'static str,
    find: fn(&RolloutPolicySpec) -> Vec<Violation>,
) -> Rule<RolloutPolicySpec> {
    let message = "is empty: add a step, such as {weight: 20}";
    Rule { cel: cel(at, "", "self.size() > 0", message), check: Check::Spec(find) }
}

fn empty(path: &str, steps: Option<&[StepSpec]>) -> Vec<Violation> {
    violation_if(steps.is_some_and(<[_]>::is_empty), path)
}

const fn steps_increase(
    at: &'static str,
    find: fn(&RolloutPolicySpec) -> Vec<Violation>,
) -> Rule<RolloutPolicySpec> {
    let rule = "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18].all(i, i + 1 >= self.size() || self[i].weight < self[i + 1].weight)";
    let message = "must be more than the weight of the step before: sort the steps by weight";
    Rule { cel: cel(at, "", rule, message), check: Check::Spec(find) }
}

fn unsorted(path: &str, steps: Option<&[StepSpec]>) -> Vec<Violation> {
    let steps = steps.unwrap_or_default();
    let pairs = steps.iter().zip(steps.iter().skip(1)).enumerate();
    let broken = pairs.filter(|(_, (before, after))| before.weight >= after.weight);
    broken.map(|(i, _)| (format!("{path}[{}].weight", i + 1), Vec::new())).collect()
}

const fn supported_kinds(
    at: &'static str,
    find: fn(&RolloutPolicySpec) -> Vec<Violation>,
) -> Rule<RolloutPolicySpec> {
    let message = "\"{}\" is not supported yet: policies act on Model, Pipeline and InferenceService";
    let rule = "self in ['Model', 'Pipeline', 'InferenceService']";
    Rule {
        cel: CelRule { at, field: "", rule, message, values: &["self"], ratchet: "" },
        check: Check::Spec(find),
    }
}

fn unsupported(path: &str, kind: Option<TargetKind>) -> Vec<Violation> {
    let kind = kind.filter(|kind| *kind == TargetKind::Algorithm);
    kind.map(|kind| (path.to_owned(), vec![kind.name().to_owned()])).into_iter().collect()
}

/// Checks of durations and ratios, which CEL compares without the engine's defaults.
pub(crate) fn rollout_policy_errors(_name: &str, spec: &RolloutPolicySpec) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Some(target) = &spec.target_ref
        && let Err(invalid) = check_name(&target.name)
    {
        errors.push(("spec.targetRef.name".to_owned(), invalid.to_string()));
    }
    let drift = spec.drift.as_ref();
    for (path, name) in [
        ("spec.drift.output", drift.and_then(|d| d.output.as_deref())),
        ("spec.drift.input", drift.and_then(|d| d.input.as_deref())),
    ] {
        if name == Some("") {
            errors.push((path.to_owned(), "is empty: name a tensor, or remove the field".to_owned()));
        }
    }
    errors.extend(spec.notifications.as_ref().into_iter().flat_map(super::notifications::errors));
    let analysis = spec.analysis.as_ref();
    for (path, duration, least) in [
        ("spec.analysis.interval", analysis.and_then(|a| a.interval), MIN_INTERVAL),
        ("spec.analysis.latency.target", analysis.and_then(|a| a.latency.as_ref()).map(|l| l.target), 1),
        ("spec.progressDeadline", spec.progress_deadline, 1000),
    ] {
        if let Some(duration) = duration.filter(|d| d.millis() < least) {
            let least = SpecDuration::from_millis(least);
            errors.push((path.to_owned(), format!("must be at least {least}, got {duration}")));
        }
    }
    match spec.to_policy() {
        Ok(policy) => {
            if let Rules::Sequential(rules) = policy.rules {
                let latency = rules.latency.map(|latency| latency.margins);
                errors.extend(margin_error("spec.analysis.sequential.success", rules.success));
                errors
                    .extend(rules.outputs.and_then(|m| margin_error("spec.strategy.mirrorFirst.compare", m)));
                errors.extend(latency.and_then(|m| margin_error("spec.analysis.sequential.latency", m)));
            }
        }
        Err(error) => errors.push(error),
    }
    errors
}

/// Between the margins, the evidence decides neither for a rollback nor for a promotion.
fn margin_error(path: &str, margins: Margins) -> Option<FieldError> {
    let (tolerated, rejected) = (margins.tolerated.get(), margins.rejected.get());
    (tolerated >= rejected).then(|| {
        let message = format!(
            "must have a tolerated difference below the rejected one, got {tolerated} and {rejected}: raise rejected \
             or lower tolerated"
        );
        (path.to_owned(), message)
    })
}
