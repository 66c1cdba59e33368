//! The rules, kind by kind.

use super::{Break, Check, Rule, Text};
use crate::{
    ExperimentSpec, ModelSpec, PipelineSpec, SeldonConfigSpec, SeldonRuntimeSpec, ServerConfigSpec,
    ServerSpec, scaling::Scaled,
};

pub(super) const MODEL: &[Rule<ModelSpec>] = &[
    filled("spec.storageUri", "is empty: say where the model's files are", |s| {
        blanks("spec.storageUri", Some(&s.storage_uri))
    }),
    filled("spec.requirements[]", "is empty: name a capability, such as onnx", |s| {
        blank_items("spec.requirements", &s.requirements)
    }),
    Rule {
        text: Text {
            at: "spec",
            field: "llm",
            cel: "!has(self.explainer) || !has(self.llm)",
            says: "cannot stand beside spec.explainer: keep one of them",
            values: &[],
            excuse: "",
        },
        check: Check::Spec(|s| when(s.explainer.is_some() && s.llm.is_some(), "spec.llm")),
    },
    one_reference("spec.explainer", |s: &ModelSpec| {
        let both = s.explainer.as_ref().is_some_and(|e| e.model_ref.is_some() && e.pipeline_ref.is_some());
        when(both, "spec.explainer.pipelineRef")
    }),
    one_reference("spec.llm", |s: &ModelSpec| {
        let both = s.llm.as_ref().is_some_and(|l| l.model_ref.is_some() && l.pipeline_ref.is_some());
        when(both, "spec.llm.pipelineRef")
    }),
    filled("spec.parameters[].name", "is empty: name the setting, or remove it", |s| {
        blank_names("spec.parameters", s.parameters.iter().map(|p| p.name.as_str()))
    }),
    unique("spec.parameters", "\"{}\" is set twice", |s| {
        twins("spec.parameters", s.parameters.iter().map(|p| p.name.as_str()))
    }),
    fewest_below_most(),
    replicas_not_too_few(),
    replicas_not_too_many(),
];

pub(super) const SERVER: &[Rule<ServerSpec>] = &[
    filled("spec.serverConfig", "is empty: name the kind of server, such as mlserver", |s| {
        blanks("spec.serverConfig", Some(&s.server_config))
    }),
    filled("spec.capabilities[]", "is empty: name a capability, such as onnx", |s| {
        blank_items("spec.capabilities", &s.capabilities)
    }),
    filled("spec.extraCapabilities[]", "is empty: name a capability, such as onnx", |s| {
        blank_items("spec.extraCapabilities", &s.extra_capabilities)
    }),
    fewest_below_most(),
    replicas_not_too_few(),
    replicas_not_too_many(),
];

pub(super) const PIPELINE: &[Rule<PipelineSpec>] = &[
    Rule {
        text: Text {
            at: "spec.steps",
            field: "",
            cel: "self.size() > 0",
            says: "is empty: a pipeline has at least one step",
            values: &[],
            excuse: "",
        },
        check: Check::Spec(|s| when(s.steps.is_empty(), "spec.steps")),
    },
    filled("spec.steps[].name", "is empty: name the model of the step", |s| {
        blank_names("spec.steps", s.steps.iter().map(|s| s.name.as_str()))
    }),
    unique("spec.steps", "\"{}\" is there twice: a step has a name of its own", |s| {
        twins("spec.steps", s.steps.iter().map(|s| s.name.as_str()))
    }),
    Rule {
        text: Text {
            at: "",
            field: "spec.steps",
            cel: "!has(self.spec) || !self.spec.steps.exists(s, s.name == self.metadata.name)",
            says: "\"{}\" is the pipeline's own name too: rename the step or the pipeline",
            values: &["self.metadata.name"],
            excuse: "oldSelf.hasValue() && has(oldSelf.value().spec) && oldSelf.value().spec == self.spec",
        },
        check: Check::Object(|name, s| {
            let same = s.steps.iter().enumerate().filter(|(_, step)| step.name == name);
            same.map(|(i, _)| (format!("spec.steps[{i}].name"), vec![name.to_owned()])).collect()
        }),
    },
    flow("spec.steps[].inputs[]", |s| {
        let each = s.steps.iter().enumerate();
        each.flat_map(|(i, step)| malformed(&format!("spec.steps[{i}].inputs"), &step.inputs)).collect()
    }),
    flow("spec.steps[].triggers[]", |s| {
        let each = s.steps.iter().enumerate();
        each.flat_map(|(i, step)| malformed(&format!("spec.steps[{i}].triggers"), &step.triggers)).collect()
    }),
    Rule {
        text: Text {
            at: "spec.steps[]",
            field: "triggers",
            cel: "!has(self.inputs) || !has(self.triggers) || !self.inputs.exists(i, i in self.triggers)",
            says: "\"{}\" is an input of the step too: keep it in one of the two",
            values: &["self.inputs.filter(i, i in self.triggers)[0]"],
            excuse: "",
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
    flow("spec.output.steps[]", |s| {
        s.output.iter().flat_map(|o| malformed("spec.output.steps", &o.steps)).collect()
    }),
    filled("spec.input.externalInputs[]", "is empty: name a pipeline's data, such as orders.outputs", |s| {
        s.input.iter().flat_map(|i| blank_items("spec.input.externalInputs", &i.external_inputs)).collect()
    }),
    filled(
        "spec.input.externalTriggers[]",
        "is empty: name a pipeline's data, such as orders.outputs",
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
        text: Text {
            at: "spec",
            field: "candidates",
            cel: "has(self.mirror) || (has(self.candidates) && self.candidates.size() > 0)",
            says: "is empty: name the models or pipelines to compare, or a mirror",
            values: &[],
            excuse: "",
        },
        check: Check::Spec(|s| when(s.candidates.is_empty() && s.mirror.is_none(), "spec.candidates")),
    },
    filled("spec.candidates[].name", "is empty: name a model or a pipeline", |s| {
        blank_names("spec.candidates", s.candidates.iter().map(|c| c.name.as_str()))
    }),
    unique("spec.candidates", "\"{}\" is a candidate twice: add the weights up", |s| {
        twins("spec.candidates", s.candidates.iter().map(|c| c.name.as_str()))
    }),
    filled("spec.mirror.name", "is empty: name a model or a pipeline", |s| {
        blanks("spec.mirror.name", s.mirror.as_ref().map(|m| m.name.as_str()))
    }),
    Rule {
        text: Text {
            at: "spec",
            field: "mirror",
            cel: "!has(self.mirror) || !has(self.candidates) || !self.candidates.exists(c, c.name == self.mirror.name)",
            says: "\"{}\" is a candidate too: it would answer and be mirrored at once",
            values: &["self.mirror.name"],
            excuse: "",
        },
        check: Check::Spec(|s| {
            let twice = s.mirror.iter().filter(|m| s.candidates.iter().any(|c| c.name == m.name));
            twice.map(|m| ("spec.mirror".to_owned(), vec![m.name.clone()])).collect()
        }),
    },
    Rule {
        text: Text {
            at: "spec",
            field: "default",
            cel: "!has(self.default) || (has(self.candidates) && self.candidates.exists(c, c.name == self.default))",
            says: "\"{}\" is not among the candidates: add it there, or name one of them",
            values: &["self.default"],
            excuse: "",
        },
        check: Check::Spec(|s| {
            let unknown = s.default.iter().filter(|d| !s.candidates.iter().any(|c| c.name == **d));
            unknown.map(|d| ("spec.default".to_owned(), vec![d.clone()])).collect()
        }),
    },
];

pub(super) const SELDON_RUNTIME: &[Rule<SeldonRuntimeSpec>] = &[
    filled("spec.seldonConfig", "is empty: name a SeldonConfig, such as default", |s| {
        blanks("spec.seldonConfig", Some(&s.seldon_config))
    }),
    filled("spec.overrides[].name", "is empty: name a component, such as seldon-scheduler", |s| {
        blank_names("spec.overrides", s.overrides.iter().map(|o| o.name.as_str()))
    }),
    unique("spec.overrides", "\"{}\" is there twice: put its overrides together", |s| {
        twins("spec.overrides", s.overrides.iter().map(|o| o.name.as_str()))
    }),
];

pub(super) const SELDON_CONFIG: &[Rule<SeldonConfigSpec>] = &[
    filled("spec.components[].name", "is empty: name a component, such as seldon-scheduler", |s| {
        blank_names("spec.components", s.components.iter().map(|c| c.name.as_str()))
    }),
    unique("spec.components", "\"{}\" is there twice: a component has a name of its own", |s| {
        twins("spec.components", s.components.iter().map(|c| c.name.as_str()))
    }),
];

pub(super) const SERVER_CONFIG: &[Rule<ServerConfigSpec>] = &[];

/// A text that says something. Blank is what Unicode calls white space, as for `str::trim`.
const fn filled<T>(at: &'static str, says: &'static str, find: fn(&T) -> Vec<Break>) -> Rule<T> {
    let cel = "self.matches('[^\\\\pZ\\\\t-\\\\r\\\\x85]')";
    Rule { text: Text { at, field: "", cel, says, values: &[], excuse: "" }, check: Check::Spec(find) }
}

/// A list whose items have names of their own.
const fn unique<T>(at: &'static str, says: &'static str, find: fn(&T) -> Vec<Break>) -> Rule<T> {
    let cel = "self.all(a, self.exists_one(b, b.name == a.name))";
    let values = &["self.filter(a, !self.exists_one(b, b.name == a.name))[0].name"];
    Rule { text: Text { at, field: "", cel, says, values, excuse: "" }, check: Check::Spec(find) }
}

/// A model or a pipeline, not both.
const fn one_reference<T>(at: &'static str, find: fn(&T) -> Vec<Break>) -> Rule<T> {
    let cel = "!has(self.modelRef) || !has(self.pipelineRef)";
    let says = "cannot stand beside modelRef: keep one of them";
    Rule {
        text: Text { at, field: "pipelineRef", cel, says, values: &[], excuse: "" },
        check: Check::Spec(find),
    }
}

/// Data that flows: of a step, or one tensor of it. Not a pattern, which would cost the API server eight times as much:
/// too much for a list in a list.
const fn flow<T>(at: &'static str, find: fn(&T) -> Vec<Break>) -> Rule<T> {
    let cel = "self != '' && !self.startsWith('.') && !self.endsWith('.') && [self.split('.')].all(p, p.size() == 1 || (p.size() <= 3 && p[1] in ['inputs', 'outputs']))";
    let says = "\"{}\" is no data: write step, step.outputs or step.outputs.tensor (or inputs)";
    Rule { text: Text { at, field: "", cel, says, values: &["self"], excuse: "" }, check: Check::Spec(find) }
}

const fn fewest_below_most<T: Scaled>() -> Rule<T> {
    Rule {
        text: Text {
            at: "spec",
            field: "minReplicas",
            cel: "!has(self.minReplicas) || !has(self.maxReplicas) || self.maxReplicas == 0 || self.minReplicas <= self.maxReplicas",
            says: "is {}, more than maxReplicas {}: lower one or raise the other",
            values: &["self.minReplicas", "self.maxReplicas"],
            excuse: "",
        },
        check: Check::Spec(|s| match s.written() {
            [_, Some(min), Some(max)] if max != 0 && min > max => {
                vec![("spec.minReplicas".into(), vec![min.to_string(), max.to_string()])]
            }
            _ => Vec::new(),
        }),
    }
}

const fn replicas_not_too_few<T: Scaled>() -> Rule<T> {
    Rule {
        text: Text {
            at: "spec",
            field: "replicas",
            cel: "!has(self.replicas) || !has(self.minReplicas) || self.replicas >= self.minReplicas",
            says: "is {}, fewer than minReplicas {}",
            values: &["self.replicas", "self.minReplicas"],
            excuse: "",
        },
        check: Check::Spec(|s| match s.written() {
            [Some(replicas), Some(min), _] if replicas < min => {
                vec![("spec.replicas".into(), vec![replicas.to_string(), min.to_string()])]
            }
            _ => Vec::new(),
        }),
    }
}

const fn replicas_not_too_many<T: Scaled>() -> Rule<T> {
    Rule {
        text: Text {
            at: "spec",
            field: "replicas",
            cel: "!has(self.replicas) || !has(self.maxReplicas) || self.maxReplicas == 0 || self.replicas <= self.maxReplicas",
            says: "is {}, more than maxReplicas {}",
            values: &["self.replicas", "self.maxReplicas"],
            excuse: "",
        },
        check: Check::Spec(|s| match s.written() {
            [Some(replicas), _, Some(max)] if max != 0 && replicas > max => {
                vec![("spec.replicas".into(), vec![replicas.to_string(), max.to_string()])]
            }
            _ => Vec::new(),
        }),
    }
}

fn when(broken: bool, path: &str) -> Vec<Break> {
    if broken { vec![(path.to_owned(), Vec::new())] } else { Vec::new() }
}

fn blanks(path: &str, text: Option<&str>) -> Vec<Break> {
    when(text.is_some_and(|t| t.trim().is_empty()), path)
}

fn blank_items(list: &str, items: &[String]) -> Vec<Break> {
    let blank = items.iter().enumerate().filter(|(_, item)| item.trim().is_empty());
    blank.map(|(i, _)| (format!("{list}[{i}]"), Vec::new())).collect()
}

fn blank_names<'a>(list: &str, names: impl Iterator<Item = &'a str>) -> Vec<Break> {
    let blank = names.enumerate().filter(|(_, name)| name.trim().is_empty());
    blank.map(|(i, _)| (format!("{list}[{i}].name"), Vec::new())).collect()
}

fn twins<'a>(list: &str, names: impl Iterator<Item = &'a str>) -> Vec<Break> {
    let mut seen = std::collections::BTreeSet::new();
    let again = names.enumerate().filter(|(_, name)| !seen.insert(*name));
    again.map(|(i, name)| (format!("{list}[{i}].name"), vec![name.to_owned()])).collect()
}

fn malformed(list: &str, flows: &[String]) -> Vec<Break> {
    let bad = flows.iter().enumerate().filter(|(_, flow)| !is_flow(flow));
    bad.map(|(i, flow)| (format!("{list}[{i}]"), vec![flow.clone()])).collect()
}

fn is_flow(text: &str) -> bool {
    let parts: Vec<&str> = text.split('.').collect();
    let side = |s: &str| matches!(s, "inputs" | "outputs");
    match parts.as_slice() {
        [step] => !step.is_empty(),
        [step, of] => !step.is_empty() && side(of),
        [step, of, tensor] => !step.is_empty() && side(of) && !tensor.is_empty(),
        _ => false,
    }
}
