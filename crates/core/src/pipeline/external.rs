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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
    /// The input that arrived first.
    first: Option<usize>,
}

impl<T: Tensor> ExternalJoin<T> {
    pub fn new(externals: &Externals) -> Self {
        let pending = |sources: &[External]| sources.iter().map(|_| Slot::Pending).collect();
        let triggers = externals.triggers.iter().map(|_| Slot::Pending).collect();
        Self { inputs: pending(&externals.inputs), triggers, first: None }
    }

    /// Data arrived of the sources that `is_source` selects, and `tensors` returns all of it. A source is absent if its
    /// tensors are not among them; one that has arrived before stays.
    pub fn arrive(
        &mut self,
        externals: &Externals,
        is_source: impl Fn(&External) -> bool,
        tensors: impl Fn(&External) -> Vec<T>,
    ) {
        let selected = |source: &External| {
            let is_read = |tensor: &T| source.tensor.as_deref().is_none_or(|name| tensor.name() == name);
            tensors(source).into_iter().filter(is_read).collect::<Vec<_>>()
        };
        for (i, (slot, source)) in self.inputs.iter_mut().zip(&externals.inputs).enumerate() {
            if !matches!(slot, Slot::Arrived(_)) && is_source(source) {
                let tensors = selected(source).into_iter().map(|tensor| externals.renamed(source, tensor));
                *slot = Slot::of(tensors.collect());
                if matches!(slot, Slot::Arrived(_)) {
                    self.first.get_or_insert(i);
                }
            }
        }
        for (slot, source) in self.triggers.iter_mut().zip(&externals.triggers) {
            if !matches!(slot, Slot::Arrived(_)) && is_source(source) {
                *slot = Slot::of(selected(source).iter().map(|_| ()).collect());
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

    /// The inputs of the pipeline: those of the first source for `any`, else all in the order of the sources.
    pub fn into_inputs(self, externals: &Externals) -> Vec<T> {
        let first = self.first.filter(|_| externals.join == Join::Any);
        let arrived = self.inputs.into_iter().enumerate().filter_map(|(i, slot)| match slot {
            Slot::Arrived(tensors) if first.is_none_or(|first| first == i) => Some(tensors),
            Slot::Arrived(_) | Slot::Pending | Slot::Absent => None,
        });
        arrived.flatten().collect()
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
