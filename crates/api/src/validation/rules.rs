//! The rules of each kind.

use super::{CelRule, Check, Rule, Violation};
use crate::{
    ExperimentSpec, ModelSpec, PipelineSpec, PipelineStep, SeldonConfigSpec, SeldonRuntimeSpec,
    ServerConfigSpec, ServerSpec, scaling::ReplicaFields,
};
use gantry_core::pipeline::MAX_STEP_REVISITS;

/// Compares each list of a step with all names: the API server stops the evaluation of larger pipelines, as it takes more than
/// a million units. Ten times ten positions, because its estimate assumes all steps that the schema allows.
macro_rules! step_exists {
    ($list:literal) => {
        concat!(
            "!has(self.spec) || self.spec.steps.size() > 100 || ",
            "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9].all(a, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].all(b, ",
            "10 * a + b >= self.spec.steps.size() || !has(self.spec.steps[10 * a + b].",
            $list,
            ") || sets.contains([self.metadata.name] + self.spec.steps.map(s, s.name), self.spec.steps[10 * a + b].",
            $list,
            ".map(r, r.split('.')[0]))))"
        )
    };
}

macro_rules! missing_message {
    ($noun:literal) => {
        concat!(
            "have ",
            $noun,
            " of a step that does not exist: add the step or correct the name (gantry lint reports which)"
        )
    };
}

macro_rules! positions {
    () => {
        "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]"
    };
}

macro_rules! reads {
    ($list:literal) => {
        concat!(
            "(has(self.steps[i].",
            $list,
            ") && self.steps[i].",
            $list,
            ".exists(r, r.split('.')[0] == self.steps[j].name))"
        )
    };
}

/// Doubles the length of the paths in a matrix of steps that read steps.
macro_rules! closure {
    () => {
        concat!(
            ".map(m, ",
            positions!(),
            ".map(i, ",
            positions!(),
            ".map(j, m[i][j] || ",
            positions!(),
            ".exists(k, m[i][k] && m[k][j]))))"
        )
    };
}

/// The transitive closure of the graph, for as many steps as the API server has the time for.
const NO_CYCLE: &str = concat!(
    "(has(self.allowCycles) && self.allowCycles) || self.steps.size() > 16 || ",
    "self.steps.exists(s, (has(s.inputs) && s.inputs.size() > 8) || (has(s.triggers) && s.triggers.size() > 8)) || ",
    "![",
    positions!(),
    ".map(i, ",
    positions!(),
    ".map(j, i < self.steps.size() && j < self.steps.size() && (",
    reads!("inputs"),
    " || ",
    reads!("triggers"),
    ")))]",
    closure!(),
    closure!(),
    closure!(),
    closure!(),
    ".exists(m, ",
    positions!(),
    ".exists(i, m[i][i]))"
);

pub(super) const MODEL: &[Rule<ModelSpec>] = &[
    not_blank("spec.storageUri", "is empty: set it to the location of the model artifact", |s| {
        blanks("spec.storageUri", Some(&s.storage_uri))
    }),
    not_blank("spec.requirements[]", "is empty: name a capability, such as onnx", |s| {
        blank_items("spec.requirements", &s.requirements)
    }),
    Rule {
        cel: CelRule {
            at: "spec",
            field: "llm",
            rule: "!has(self.explainer) || !has(self.llm)",
            message: "is mutually exclusive with spec.explainer: remove one",
            values: &[],
            ratchet: "",
        },
        check: Check::Spec(|s| violation_if(s.explainer.is_some() && s.llm.is_some(), "spec.llm")),
    },
    exclusive_refs("spec.explainer", |s: &ModelSpec| {
        let both = s.explainer.as_ref().is_some_and(|e| e.model_ref.is_some() && e.pipeline_ref.is_some());
        violation_if(both, "spec.explainer.pipelineRef")
    }),
    exclusive_refs("spec.llm", |s: &ModelSpec| {
        let both = s.llm.as_ref().is_some_and(|l| l.model_ref.is_some() && l.pipeline_ref.is_some());
        violation_if(both, "spec.llm.pipelineRef")
    }),
    not_blank("spec.parameters[].name", "is empty: name the setting, or remove it", |s| {
        blank_names("spec.parameters", s.parameters.iter().map(|p| p.name.as_str()))
    }),
    min_not_above_max(),
    replicas_not_below_min(),
    replicas_not_above_max(),
];

pub(super) const SERVER: &[Rule<ServerSpec>] = &[
    Rule {
        cel: CelRule {
            at: "",
            field: "metadata.name",
            rule: "self.metadata.name.size() <= 52 && self.metadata.name.matches('^[a-z]')",
            message: "\"{}\" does not start with a letter, or has more than 52 characters: Kubernetes derives the \
                      names of pods and Services and a label from it",
            values: &["self.metadata.name"],
            ratchet: "oldSelf.hasValue()",
        },
        check: Check::Object(|name, _| {
            let is_valid = name.chars().count() <= 52 && name.starts_with(|c: char| c.is_ascii_lowercase());
            if is_valid { Vec::new() } else { vec![("metadata.name".to_owned(), vec![name.to_owned()])] }
        }),
    },
    not_blank("spec.serverConfig", "is empty: set it to the name of a ServerConfig, such as mlserver", |s| {
        blanks("spec.serverConfig", Some(&s.server_config))
    }),
    not_blank("spec.capabilities[]", "is empty: name a capability, such as onnx", |s| {
        blank_items("spec.capabilities", &s.capabilities)
    }),
    not_blank("spec.extraCapabilities[]", "is empty: name a capability, such as onnx", |s| {
        blank_items("spec.extraCapabilities", &s.extra_capabilities)
    }),
    min_not_above_max(),
    replicas_not_below_min(),
    replicas_not_above_max(),
];

pub(super) const PIPELINE: &[Rule<PipelineSpec>] = &[
    Rule {
        cel: CelRule {
            at: "spec.steps",
            field: "",
            rule: "self.size() > 0",
            message: "is empty: a pipeline has at least one step",
            values: &[],
            ratchet: "",
        },
        check: Check::Spec(|s| violation_if(s.steps.is_empty(), "spec.steps")),
    },
    not_blank("spec.steps[].name", "is empty: name the model of the step", |s| {
        blank_names("spec.steps", s.steps.iter().map(|s| s.name.as_str()))
    }),
    // The schema rejects steps of the same name: the rule of `unique` would limit their number.
    Rule {
        cel: CelRule {
            at: "",
            field: "spec.steps",
            rule: "!has(self.spec) || !self.spec.steps.exists(s, s.name == self.metadata.name)",
            message: "\"{}\" is also the name of the pipeline: rename the step or the pipeline",
            values: &["self.metadata.name"],
            ratchet: "oldSelf.hasValue() && has(oldSelf.value().spec) && oldSelf.value().spec == self.spec",
        },
        check: Check::Object(|name, s| {
            let same = s.steps.iter().enumerate().filter(|(_, step)| step.name == name);
            same.map(|(i, _)| (format!("spec.steps[{i}].name"), vec![name.to_owned()])).collect()
        }),
    },
    reference("spec.steps[].inputs[]", |s| {
        let each = s.steps.iter().enumerate();
        each.flat_map(|(i, step)| invalid_references(&format!("spec.steps[{i}].inputs"), &step.inputs))
            .collect()
    }),
    reference("spec.steps[].triggers[]", |s| {
        let each = s.steps.iter().enumerate();
        each.flat_map(|(i, step)| invalid_references(&format!("spec.steps[{i}].triggers"), &step.triggers))
            .collect()
    }),
    Rule {
        cel: CelRule {
            at: "spec.steps[]",
            field: "triggers",
            rule: "!has(self.inputs) || !has(self.triggers) || !self.inputs.exists(i, i in self.triggers)",
            message: "\"{}\" is also an input of the step: keep it in one of the two",
            values: &["self.inputs.filter(i, i in self.triggers)[0]"],
            ratchet: "",
        },
        check: Check::Spec(|s| {
            let mut broken = Vec::new();
            for (i, step) in s.steps.iter().enumerate() {
                for shared in step.inputs.iter().filter(|input| step.triggers.contains(input)) {
                    broken.push((format!("spec.steps[{i}].triggers"), vec![shared.clone()]));
                }
            }
            broken
        }),
    },
    Rule {
        cel: CelRule {
            at: "spec",
            field: "steps",
            // Compares no strings of a nested list one by one: that exceeds the cost limit.
            rule: "(has(self.allowCycles) && self.allowCycles) || self.steps.all(s, ![s.name, s.name + '.inputs', s.name + '.outputs'].exists(n, (has(s.inputs) && n in s.inputs) || (has(s.triggers) && n in s.triggers)))",
            message: "a step has itself as an input or a trigger, which needs allowCycles",
            values: &[],
            ratchet: "",
        },
        check: Check::Spec(|s| {
            let is_own = |step: &PipelineStep, source: &String| {
                let rest = source.strip_prefix(&step.name);
                rest.is_some_and(|rest| matches!(rest, "" | ".inputs" | ".outputs"))
            };
            let loops = s.steps.iter().enumerate().filter(|(_, step)| {
                !s.allow_cycles && step.inputs.iter().chain(&step.triggers).any(|source| is_own(step, source))
            });
            loops.map(|(i, _)| (format!("spec.steps[{i}]"), Vec::new())).collect()
        }),
    },
    known_steps(step_exists!("inputs"), missing_message!("an input")),
    known_steps(step_exists!("triggers"), missing_message!("a trigger")),
    Rule {
        cel: CelRule {
            at: "spec",
            field: "output.steps",
            rule: "!has(self.output) || !has(self.output.steps) || sets.contains(self.steps.map(s, s.name), self.output.steps.map(o, o.split('.')[0]))",
            message: "name a step that does not exist: add the step or correct the name",
            values: &[],
            ratchet: "",
        },
        check: Check::Whole,
    },
    Rule {
        cel: CelRule {
            at: "spec",
            field: "steps",
            rule: NO_CYCLE,
            message: "have a cycle: remove one of its inputs or triggers, or set allowCycles",
            values: &[],
            ratchet: "",
        },
        check: Check::Whole,
    },
    Rule {
        cel: CelRule {
            at: "spec.maxStepRevisits",
            field: "",
            // `MAX_STEP_REVISITS` of core.
            rule: "self <= 1000",
            message: "is more than 1000: each revisit calls the model of the step again for the same request",
            values: &[],
            ratchet: "",
        },
        check: Check::Spec(|s| violation_if(s.max_step_revisits > MAX_STEP_REVISITS, "spec.maxStepRevisits")),
    },
    reference("spec.output.steps[]", |s| {
        s.output.iter().flat_map(|o| invalid_references("spec.output.steps", &o.steps)).collect()
    }),
    not_blank(
        "spec.input.externalInputs[]",
        "is empty: name the output of a pipeline, such as orders.outputs",
        |s| {
            s.input
                .iter()
                .flat_map(|i| blank_items("spec.input.externalInputs", &i.external_inputs))
                .collect()
        },
    ),
    not_blank(
        "spec.input.externalTriggers[]",
        "is empty: name the output of a pipeline, such as orders.outputs",
        |s| {
            s.input
                .iter()
                .flat_map(|i| blank_items("spec.input.externalTriggers", &i.external_triggers))
                .collect()
        },
    ),
];

pub(super) const EXPERIMENT: &[Rule<ExperimentSpec>] = &[
    Rule {
        cel: CelRule {
            at: "spec",
            field: "candidates",
            rule: "has(self.mirror) || (has(self.candidates) && self.candidates.size() > 0)",
            message: "is empty: name the models or pipelines to compare, or a mirror",
            values: &[],
            ratchet: "",
        },
        check: Check::Spec(|s| {
            violation_if(s.candidates.is_empty() && s.mirror.is_none(), "spec.candidates")
        }),
    },
    not_blank("spec.candidates[].name", "is empty: name a model or a pipeline", |s| {
        blank_names("spec.candidates", s.candidates.iter().map(|c| c.name.as_str()))
    }),
    unique("spec.candidates", "\"{}\" is a duplicate: add up the weights in one candidate", |s| {
        duplicate_names("spec.candidates", s.candidates.iter().map(|c| c.name.as_str()))
    }),
    Rule {
        cel: CelRule {
            at: "spec.candidates",
            field: "",
            rule: "self.size() == 0 || self.exists(c, c.weight > 0)",
            message: "has no weight above 0, so no candidate gets requests: raise at least one",
            values: &[],
            ratchet: "",
        },
        check: Check::Spec(|s| {
            let none = !s.candidates.is_empty() && s.candidates.iter().all(|c| c.weight == 0);
            violation_if(none, "spec.candidates")
        }),
    },
    not_blank("spec.mirror.name", "is empty: name a model or a pipeline", |s| {
        blanks("spec.mirror.name", s.mirror.as_ref().map(|m| m.name.as_str()))
    }),
    Rule {
        cel: CelRule {
            at: "spec",
            field: "mirror",
            rule: "!has(self.mirror) || !has(self.candidates) || !self.candidates.exists(c, c.name == self.mirror.name)",
            message: "\"{}\" is also a candidate: use another name for the mirror",
            values: &["self.mirror.name"],
            ratchet: "",
        },
        check: Check::Spec(|s| {
            let twice = s.mirror.iter().filter(|m| s.candidates.iter().any(|c| c.name == m.name));
            twice.map(|m| ("spec.mirror".to_owned(), vec![m.name.clone()])).collect()
        }),
    },
    Rule {
        cel: CelRule {
            at: "spec.mirror.percent",
            field: "",
            rule: "self <= 100",
            message: "is more than 100: it is a share of the requests",
            values: &[],
            ratchet: "",
        },
        check: Check::Spec(|s| {
            violation_if(s.mirror.as_ref().is_some_and(|m| m.percent > 100), "spec.mirror.percent")
        }),
    },
    Rule {
        cel: CelRule {
            at: "spec",
            field: "default",
            rule: "!has(self.default) || (has(self.candidates) && self.candidates.exists(c, c.name == self.default))",
            message: "\"{}\" is not a candidate: add it to candidates or choose one of them",
            values: &["self.default"],
            ratchet: "",
        },
        check: Check::Spec(|s| {
            let unknown = s.default.iter().filter(|d| !s.candidates.iter().any(|c| c.name == **d));
            unknown.map(|d| ("spec.default".to_owned(), vec![d.clone()])).collect()
        }),
    },
];

pub(super) const SELDON_RUNTIME: &[Rule<SeldonRuntimeSpec>] = &[
    not_blank("spec.seldonConfig", "is empty: name a SeldonConfig, such as default", |s| {
        blanks("spec.seldonConfig", Some(&s.seldon_config))
    }),
    not_blank("spec.overrides[].name", "is empty: name a component, such as seldon-scheduler", |s| {
        blank_names("spec.overrides", s.overrides.iter().map(|o| o.name.as_str()))
    }),
    unique(
        "spec.overrides",
        "\"{}\" is a duplicate: merge the overrides of a component into one entry",
        |s| duplicate_names("spec.overrides", s.overrides.iter().map(|o| o.name.as_str())),
    ),
];

pub(super) const SELDON_CONFIG: &[Rule<SeldonConfigSpec>] = &[
    not_blank("spec.components[].name", "is empty: name a component, such as seldon-scheduler", |s| {
        blank_names("spec.components", s.components.iter().map(|c| c.name.as_str()))
    }),
    unique("spec.components", "\"{}\" is a duplicate: component names must be unique", |s| {
        duplicate_names("spec.components", s.components.iter().map(|c| c.name.as_str()))
    }),
];

pub(super) const SERVER_CONFIG: &[Rule<ServerConfigSpec>] = &[];

/// Steps whose inputs or triggers are those of other steps, or of the pipeline.
const fn known_steps(rule: &'static str, message: &'static str) -> Rule<PipelineSpec> {
    let ratchet = "oldSelf.hasValue() && has(oldSelf.value().spec) && oldSelf.value().spec == self.spec";
    Rule {
        cel: CelRule { at: "", field: "spec.steps", rule, message, values: &[], ratchet },
        check: Check::Whole,
    }
}

/// A non-blank string. Blank means Unicode white space, as in `str::trim`.
const fn not_blank<T>(at: &'static str, message: &'static str, find: fn(&T) -> Vec<Violation>) -> Rule<T> {
    let rule = "self.matches('[^\\\\pZ\\\\t-\\\\r\\\\x85]')";
    Rule { cel: CelRule { at, field: "", rule, message, values: &[], ratchet: "" }, check: Check::Spec(find) }
}

/// A list whose items have unique names.
const fn unique<T>(at: &'static str, message: &'static str, find: fn(&T) -> Vec<Violation>) -> Rule<T> {
    let rule = "self.all(a, self.exists_one(b, b.name == a.name))";
    let values = &["self.filter(a, !self.exists_one(b, b.name == a.name))[0].name"];
    Rule { cel: CelRule { at, field: "", rule, message, values, ratchet: "" }, check: Check::Spec(find) }
}

/// Either `modelRef` or `pipelineRef`.
const fn exclusive_refs<T>(at: &'static str, find: fn(&T) -> Vec<Violation>) -> Rule<T> {
    let rule = "!has(self.modelRef) || !has(self.pipelineRef)";
    let message = "is mutually exclusive with modelRef: remove one";
    Rule {
        cel: CelRule { at, field: "pipelineRef", rule, message, values: &[], ratchet: "" },
        check: Check::Spec(find),
    }
}

/// A reference to the inputs or outputs of a step, or to one tensor of them. Not a regular expression: its estimated
/// cost is eight times as high, too much for a nested list.
const fn reference<T>(at: &'static str, find: fn(&T) -> Vec<Violation>) -> Rule<T> {
    let rule = "self != '' && !self.startsWith('.') && !self.endsWith('.') && [self.split('.')].all(p, p.size() == 1 || (p.size() <= 3 && p[1] in ['inputs', 'outputs']))";
    let message =
        "\"{}\" is not a valid reference: use step, step.outputs or step.outputs.tensor (or inputs)";
    Rule {
        cel: CelRule { at, field: "", rule, message, values: &["self"], ratchet: "" },
        check: Check::Spec(find),
    }
}

const fn min_not_above_max<T: ReplicaFields>() -> Rule<T> {
    Rule {
        cel: CelRule {
            at: "spec",
            field: "minReplicas",
            rule: "!has(self.minReplicas) || !has(self.maxReplicas) || self.maxReplicas == 0 || self.minReplicas <= self.maxReplicas",
            message: "is {}, more than maxReplicas {}: lower one or raise the other",
            values: &["self.minReplicas", "self.maxReplicas"],
            ratchet: "",
        },
        check: Check::Spec(|s| match s.replica_fields() {
            [_, Some(min), Some(max)] if max != 0 && min > max => {
                vec![("spec.minReplicas".into(), vec![min.to_string(), max.to_string()])]
            }
            _ => Vec::new(),
        }),
    }
}

const fn replicas_not_below_min<T: ReplicaFields>() -> Rule<T> {
    Rule {
        cel: CelRule {
            at: "spec",
            field: "replicas",
            rule: "!has(self.replicas) || !has(self.minReplicas) || self.replicas >= self.minReplicas",
            message: "is {}, fewer than minReplicas {}",
            values: &["self.replicas", "self.minReplicas"],
            ratchet: "",
        },
        check: Check::Spec(|s| match s.replica_fields() {
            [Some(replicas), Some(min), _] if replicas < min => {
                vec![("spec.replicas".into(), vec![replicas.to_string(), min.to_string()])]
            }
            _ => Vec::new(),
        }),
    }
}

const fn replicas_not_above_max<T: ReplicaFields>() -> Rule<T> {
    Rule {
        cel: CelRule {
            at: "spec",
            field: "replicas",
            rule: "!has(self.replicas) || !has(self.maxReplicas) || self.maxReplicas == 0 || self.replicas <= self.maxReplicas",
            message: "is {}, more than maxReplicas {}",
            values: &["self.replicas", "self.maxReplicas"],
            ratchet: "",
        },
        check: Check::Spec(|s| match s.replica_fields() {
            [Some(replicas), _, Some(max)] if max != 0 && replicas > max => {
                vec![("spec.replicas".into(), vec![replicas.to_string(), max.to_string()])]
            }
            _ => Vec::new(),
        }),
    }
}

fn violation_if(condition: bool, path: &str) -> Vec<Violation> {
    if condition { vec![(path.to_owned(), Vec::new())] } else { Vec::new() }
}

fn blanks(path: &str, text: Option<&str>) -> Vec<Violation> {
    violation_if(text.is_some_and(|t| t.trim().is_empty()), path)
}

fn blank_items(list: &str, items: &[String]) -> Vec<Violation> {
    let blank = items.iter().enumerate().filter(|(_, item)| item.trim().is_empty());
    blank.map(|(i, _)| (format!("{list}[{i}]"), Vec::new())).collect()
}

fn blank_names<'a>(list: &str, names: impl Iterator<Item = &'a str>) -> Vec<Violation> {
    let blank = names.enumerate().filter(|(_, name)| name.trim().is_empty());
    blank.map(|(i, _)| (format!("{list}[{i}].name"), Vec::new())).collect()
}

fn duplicate_names<'a>(list: &str, names: impl Iterator<Item = &'a str>) -> Vec<Violation> {
    let mut seen = std::collections::BTreeSet::new();
    let duplicates = names.enumerate().filter(|(_, name)| !seen.insert(*name));
    duplicates.map(|(i, name)| (format!("{list}[{i}].name"), vec![name.to_owned()])).collect()
}

fn invalid_references(list: &str, references: &[String]) -> Vec<Violation> {
    let invalid = references.iter().enumerate().filter(|(_, reference)| !is_reference(reference));
    invalid.map(|(i, reference)| (format!("{list}[{i}]"), vec![reference.clone()])).collect()
}

fn is_reference(text: &str) -> bool {
    let parts: Vec<&str> = text.split('.').collect();
    let side = |s: &str| matches!(s, "inputs" | "outputs");
    match parts.as_slice() {
        [step] => !step.is_empty(),
        [step, of] => !step.is_empty() && side(of),
        [step, of, tensor] => !step.is_empty() && side(of) && !tensor.is_empty(),
        _ => false,
    }
}
