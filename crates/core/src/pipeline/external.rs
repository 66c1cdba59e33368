//! Input from other pipelines: which data of their runs is joined, by the ID of a request.

use super::{
    DEFAULT_WINDOW_MS, External, ExternalKind, Input, Join, Tensor,
    join::{Counts, JoinStatus},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// The sources of a pipeline that reads other pipelines.
#[derive(Clone, Debug)]
pub struct Externals {
    pub inputs: Box<[External]>,
    pub triggers: Box<[External]>,
    pub join: Join,
    pub triggers_join: Join,
    /// How long a join waits after its first arrival.
    pub window_ms: u32,
    /// Such as `pipeline.outputs.tensor` to the name that this pipeline receives.
    pub renames: BTreeMap<String, Arc<str>>,
}

impl Externals {
    pub(super) fn new(input: &Input) -> Self {
        let parse = |list: &[String]| list.iter().filter_map(|item| External::parse(item).ok()).collect();
        Self {
            inputs: parse(&input.external_inputs),
            triggers: parse(&input.external_triggers),
            join: input.join,
            triggers_join: input.triggers_join,
            window_ms: input.join_window_ms.unwrap_or(DEFAULT_WINDOW_MS),
            renames: input.tensor_map.iter().map(|(from, to)| (from.clone(), to.as_str().into())).collect(),
        }
    }

    /// The pipelines that are read.
    pub fn pipelines(&self) -> BTreeSet<Arc<str>> {
        self.inputs.iter().chain(&self.triggers).map(|source| Arc::clone(&source.pipeline)).collect()
    }

    /// The tensor under the name that the reading pipeline gives it.
    fn renamed<T: Tensor>(&self, source: &External, tensor: T) -> T {
        if self.renames.is_empty() {
            return tensor;
        }
        let (pipeline, name) = (&source.pipeline, tensor.name());
        let key = match &source.kind {
            ExternalKind::Inputs => format!("{pipeline}.inputs.{name}"),
            ExternalKind::Outputs => format!("{pipeline}.outputs.{name}"),
            ExternalKind::StepInputs(step) => format!("{pipeline}.step.{step}.inputs.{name}"),
            ExternalKind::StepOutputs(step) => format!("{pipeline}.step.{step}.outputs.{name}"),
        };
        match self.renames.get(&key) {
            Some(name) => tensor.renamed(name),
            None => tensor,
        }
    }
}

/// A source of a join.
#[derive(Clone, Debug)]
enum Slot<T> {
    Pending,
    Absent,
    Arrived(Vec<T>),
}

/// The data of one request that has arrived from other pipelines.
#[derive(Clone, Debug)]
pub struct ExternalJoin<T> {
    inputs: Vec<Slot<T>>,
    triggers: Vec<Slot<()>>,
}

impl<T: Tensor> ExternalJoin<T> {
    pub fn new(externals: &Externals) -> Self {
        let pending = |sources: &[External]| sources.iter().map(|_| Slot::Pending).collect();
        let triggers = externals.triggers.iter().map(|_| Slot::Pending).collect();
        Self { inputs: pending(&externals.inputs), triggers }
    }

    /// A run of a pipeline ended. `data` returns what it has for a source.
    pub fn arrive(&mut self, externals: &Externals, pipeline: &str, data: impl Fn(&External) -> Vec<T>) {
        for (slot, source) in self.inputs.iter_mut().zip(&externals.inputs) {
            if &*source.pipeline == pipeline {
                let tensors = data(source).into_iter().map(|tensor| externals.renamed(source, tensor));
                *slot = Slot::of(tensors.collect());
            }
        }
        for (slot, source) in self.triggers.iter_mut().zip(&externals.triggers) {
            if &*source.pipeline == pipeline {
                *slot = Slot::of(data(source).iter().map(|_| ()).collect());
            }
        }
    }

    /// Whether the pipeline starts with what has arrived. `closed` when the window has ended.
    pub fn status(&self, externals: &Externals, closed: bool) -> JoinStatus {
        let inputs = status(&self.inputs, externals.join, closed);
        match (inputs, status(&self.triggers, externals.triggers_join, closed)) {
            (JoinStatus::Ready, JoinStatus::Ready) => JoinStatus::Ready,
            (JoinStatus::Impossible, _) | (_, JoinStatus::Impossible) => JoinStatus::Impossible,
            _ if closed => JoinStatus::Impossible,
            _ => JoinStatus::Waiting,
        }
    }

    /// The inputs that have arrived.
    pub fn arrived(&self) -> impl Iterator<Item = &T> {
        let arrived = self.inputs.iter().filter_map(|slot| match slot {
            Slot::Arrived(tensors) => Some(tensors),
            Slot::Pending | Slot::Absent => None,
        });
        arrived.flatten()
    }

    /// The inputs of the pipeline, in the order of the sources.
    pub fn into_inputs(self, externals: &Externals) -> Vec<T> {
        let mut arrived = self.inputs.into_iter().filter_map(|slot| match slot {
            Slot::Arrived(tensors) => Some(tensors),
            Slot::Pending | Slot::Absent => None,
        });
        match externals.join {
            Join::Any => arrived.next().unwrap_or_default(),
            Join::Inner | Join::Outer => arrived.flatten().collect(),
        }
    }
}

impl<T> Slot<T> {
    fn of(tensors: Vec<T>) -> Self {
        if tensors.is_empty() { Self::Absent } else { Self::Arrived(tensors) }
    }
}

fn status<T>(slots: &[Slot<T>], join: Join, closed: bool) -> JoinStatus {
    let mut counts = Counts::new(slots.len());
    counts.arrived = slots.iter().filter(|slot| matches!(slot, Slot::Arrived(_))).count() as u16;
    counts.pending = slots.iter().filter(|slot| matches!(slot, Slot::Pending)).count() as u16;
    if closed {
        counts.closes = 0;
    }
    counts.status(join, 0)
}
