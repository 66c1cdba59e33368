//! Pipelines: validation and defaults.

use super::{Invalid, invalid};
use crate::definitions::{Encoded, digest};
use gantry_api::check_name;
use gantry_core::{
    pipeline::{Definition, validate},
    scheduling::PipelineDefinition,
};
use gantry_proto::{scheduler as pb, with_default_references};
use prost::Message as _;

pub(crate) fn pipeline(message: pb::Pipeline) -> Result<Encoded<PipelineDefinition>, Invalid> {
    let definition = Definition::try_from(&message)
        .map_err(|problem| Invalid::new(format!("pipeline {}: {problem}", message.name)))?;
    validate(&definition).map_err(|e| Invalid::new(e.to_string()))?;
    if let Err(problem) = check_name(&message.name) {
        return invalid(format!("pipeline name {problem}"));
    }
    Ok(accepted_pipeline(with_default_references(message)))
}

/// A definition that was validated when it was accepted.
pub(crate) fn accepted_pipeline(message: pb::Pipeline) -> Encoded<PipelineDefinition> {
    // The scheduler assigns both to each version.
    let message = pb::Pipeline { uid: String::new(), version: 0, ..message };
    let bytes = message.encode_to_vec();
    let spec = pb::Pipeline { kubernetes_meta: None, keep_payloads: false, ..message.clone() };
    let definition = PipelineDefinition {
        name: message.name.as_str().into(),
        spec: digest(&spec.encode_to_vec()),
        content: digest(&bytes),
        steps: message.steps.iter().map(|step| step.name.as_str().into()).collect(),
        keep_payloads: message.keep_payloads,
        generation: message.kubernetes_meta.map(|k| k.generation).filter(|g| *g > 0),
        replaces: None,
    };
    Encoded { definition, bytes: bytes.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_without_a_suffix_get_the_default_one() {
        let step = pb::PipelineStep {
            name: "b".into(),
            inputs: vec!["a".into(), "p".into(), "a.inputs".into(), "a.outputs.X".into()],
            triggers: vec!["c".into()],
            ..Default::default()
        };
        let input = pb::PipelineInput {
            external_inputs: vec!["q".into(), "q.step.x".into(), "q.inputs".into(), "q.inputs.X".into()],
            ..Default::default()
        };
        let output = pb::PipelineOutput { steps: vec!["b".into()], ..Default::default() };
        let message = with_default_references(pb::Pipeline {
            name: "p".into(),
            steps: vec![step],
            input: Some(input),
            output: Some(output),
            ..Default::default()
        });
        assert_eq!(message.steps[0].inputs, ["a.outputs", "p.inputs", "a.inputs", "a.outputs.X"]);
        assert_eq!(message.steps[0].triggers, ["c.outputs"]);
        assert_eq!(
            message.input.unwrap().external_inputs,
            ["q.outputs", "q.step.x.outputs", "q.inputs", "q.inputs.X"]
        );
        assert_eq!(message.output.unwrap().steps, ["b.outputs"]);
    }

    #[test]
    fn version_uid_and_metadata_are_not_part_of_the_spec() {
        let message = |uid: &str, version, generation| pb::Pipeline {
            name: "p".into(),
            uid: uid.into(),
            version,
            steps: vec![pb::PipelineStep { name: "a".into(), ..Default::default() }],
            kubernetes_meta: Some(pb::KubernetesMeta { namespace: "ml".into(), generation }),
            ..Default::default()
        };
        let of = |message| accepted_pipeline(message).definition;
        let (a, b) = (of(message("x", 1, 3)), of(message("y", 2, 3)));
        assert_eq!(a, b);
        let c = of(message("y", 2, 4));
        assert_eq!((a.spec, a.generation, c.generation), (c.spec, Some(3), Some(4)));
        assert_ne!(a.content, c.content);
        let kept = of(pb::Pipeline { keep_payloads: true, ..message("x", 1, 3) });
        assert_eq!((a.spec, a.keep_payloads, kept.keep_payloads), (kept.spec, false, true));
        assert_ne!(a.content, kept.content);
        let mut cyclic = message("x", 1, 3);
        cyclic.allow_cycles = true;
        assert_ne!(of(cyclic).spec, a.spec);
    }
}
