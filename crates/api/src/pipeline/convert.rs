//! Pipelines in the scheduler's gRPC API.

use super::{
    JoinType, KEEP_PAYLOADS, Pipeline, PipelineBatch, PipelineInput, PipelineOutput, PipelineSpec,
    PipelineStep,
};
use crate::{API_VERSION, DataflowSpec, FieldError, Metadata, switch_errors};
use gantry_proto::scheduler as pb;
use pb::{
    pipeline_input::JoinOp as InputJoin, pipeline_output::JoinOp as OutputJoin,
    pipeline_step::JoinOp as StepJoin,
};

/// The three messages have an enumeration each, with the same values.
macro_rules! join_conversions {
    ($($join:ident),*) => { $(
        impl From<JoinType> for $join {
            fn from(join: JoinType) -> Self {
                match join {
                    JoinType::Inner => Self::Inner,
                    JoinType::Outer => Self::Outer,
                    JoinType::Any => Self::Any,
                }
            }
        }

        impl From<$join> for JoinType {
            fn from(join: $join) -> Self {
                match join {
                    $join::Inner => Self::Inner,
                    $join::Outer => Self::Outer,
                    $join::Any => Self::Any,
                }
            }
        }
    )* };
}

join_conversions!(InputJoin, OutputJoin, StepJoin);

impl PipelineSpec {
    /// The pipeline in the scheduler's gRPC API, with references as the scheduler stores them. A namespace marks a
    /// Kubernetes object.
    pub fn to_proto(&self, name: &str, namespace: Option<&str>, generation: Option<i64>) -> pb::Pipeline {
        gantry_proto::with_default_references(pb::Pipeline {
            name: name.to_owned(),
            uid: String::new(),
            version: 0,
            steps: self.steps.iter().map(PipelineStep::to_proto).collect(),
            output: self.output.as_ref().map(|output| pb::PipelineOutput {
                steps: output.steps.clone(),
                join_window_ms: output.join_window_ms,
                steps_join: OutputJoin::from(output.steps_join).into(),
                tensor_map: output.tensor_map.clone().into_iter().collect(),
            }),
            kubernetes_meta: namespace.map(|namespace| pb::KubernetesMeta {
                namespace: namespace.to_owned(),
                generation: generation.unwrap_or(1),
            }),
            input: self.input.as_ref().map(|input| pb::PipelineInput {
                external_inputs: input.external_inputs.clone(),
                external_triggers: input.external_triggers.clone(),
                join_window_ms: input.join_window_ms,
                join_type: InputJoin::from(input.join_type).into(),
                triggers_join: InputJoin::from(input.triggers_join_type).into(),
                tensor_map: input.tensor_map.clone().into_iter().collect(),
            }),
            dataflow_spec: self
                .dataflow
                .as_ref()
                .map(|d| pb::DataflowSpec { clean_topics_on_delete: d.clean_topics_on_delete }),
            allow_cycles: self.allow_cycles,
            max_step_revisits: self.max_step_revisits,
            keep_payloads: false,
        })
    }

    fn from_proto(pipeline: &pb::Pipeline) -> Self {
        Self {
            input: pipeline.input.as_ref().map(|input| PipelineInput {
                external_inputs: input.external_inputs.clone(),
                external_triggers: input.external_triggers.clone(),
                join_window_ms: input.join_window_ms,
                join_type: input.join_type().into(),
                triggers_join_type: input.triggers_join().into(),
                tensor_map: input.tensor_map.clone().into_iter().collect(),
            }),
            steps: pipeline.steps.iter().map(PipelineStep::from_proto).collect(),
            output: pipeline.output.as_ref().map(|output| PipelineOutput {
                steps: output.steps.clone(),
                join_window_ms: output.join_window_ms,
                steps_join: output.steps_join().into(),
                tensor_map: output.tensor_map.clone().into_iter().collect(),
            }),
            dataflow: pipeline
                .dataflow_spec
                .as_ref()
                .map(|d| DataflowSpec { clean_topics_on_delete: d.clean_topics_on_delete }),
            allow_cycles: pipeline.allow_cycles,
            max_step_revisits: pipeline.max_step_revisits,
        }
    }
}

impl PipelineStep {
    fn to_proto(&self) -> pb::PipelineStep {
        pb::PipelineStep {
            name: self.name.clone(),
            inputs: self.inputs.clone(),
            join_window_ms: self.join_window_ms,
            tensor_map: self.tensor_map.clone().into_iter().collect(),
            inputs_join: StepJoin::from(self.inputs_join_type).into(),
            triggers: self.triggers.clone(),
            triggers_join: StepJoin::from(self.triggers_join_type.unwrap_or_default()).into(),
            batch: self.batch.as_ref().map(|b| pb::Batch {
                size: b.size,
                window_ms: b.window_ms,
                rolling: b.rolling,
            }),
        }
    }

    fn from_proto(step: &pb::PipelineStep) -> Self {
        let triggers_join = JoinType::from(step.triggers_join());
        Self {
            name: step.name.clone(),
            inputs: step.inputs.clone(),
            join_window_ms: step.join_window_ms,
            tensor_map: step.tensor_map.clone().into_iter().collect(),
            triggers: step.triggers.clone(),
            inputs_join_type: step.inputs_join().into(),
            // Unset and `inner` are one value in the message.
            triggers_join_type: Some(triggers_join).filter(|join| *join != JoinType::Inner),
            batch: step.batch.as_ref().map(|b| PipelineBatch {
                size: b.size,
                window_ms: b.window_ms,
                rolling: b.rolling,
            }),
        }
    }
}

impl Pipeline {
    pub fn named(name: impl Into<String>, spec: PipelineSpec) -> Self {
        Self {
            api_version: API_VERSION.into(),
            kind: "Pipeline".into(),
            metadata: Metadata { name: name.into(), ..Metadata::default() },
            spec,
            status: None,
        }
    }

    /// Validation errors beyond the schema.
    pub fn validate(&self) -> Vec<FieldError> {
        let mut errors = self.spec.validate_named(&self.metadata.name);
        errors.extend(switch_errors(&self.metadata.annotations, &[KEEP_PAYLOADS]));
        errors
    }

    /// The pipeline in the scheduler's gRPC API.
    pub fn to_proto(&self) -> pb::Pipeline {
        let meta = &self.metadata;
        let keep_payloads = meta.annotations.get(KEEP_PAYLOADS).is_some_and(|value| value == "true");
        let pipeline = self.spec.to_proto(&meta.name, meta.namespace.as_deref(), meta.generation);
        pb::Pipeline { keep_payloads, ..pipeline }
    }

    /// The manifest of a pipeline reported by the scheduler.
    pub fn from_proto(pipeline: &pb::Pipeline) -> Self {
        let mut manifest = Self::named(&pipeline.name, PipelineSpec::from_proto(pipeline));
        manifest.metadata.set_kubernetes(pipeline.kubernetes_meta.as_ref());
        if pipeline.keep_payloads {
            manifest.metadata.annotations.insert(KEEP_PAYLOADS.into(), "true".into());
        }
        manifest
    }
}
