//! Inputs of a pipeline from topics of other pipelines: data of one request is joined within a window.

use crate::topics::{Side, Topics};
use gantry_core::pipeline::{External, ExternalKind, Join};
use gantry_oip::InferTensor;
use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

/// What a pipeline reads of others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JoinSpec {
    pub inputs: Vec<External>,
    pub triggers: Vec<External>,
    pub join: Join,
    pub triggers_join: Join,
    pub window_ms: u32,
    /// `pipeline.outputs.tensor` to the name that this pipeline receives.
    pub tensor_map: BTreeMap<String, String>,
}

/// The topic of a source.
pub fn topic(topics: &Topics, source: &External) -> (String, Side) {
    match &source.kind {
        ExternalKind::Inputs => (topics.pipeline(&source.pipeline, Side::Inputs), Side::Inputs),
        ExternalKind::Outputs => (topics.pipeline(&source.pipeline, Side::Outputs), Side::Outputs),
        ExternalKind::StepInputs(step) => (topics.model(step, Side::Inputs), Side::Inputs),
        ExternalKind::StepOutputs(step) => (topics.model(step, Side::Outputs), Side::Outputs),
    }
}

/// Whether a record of the source's topic belongs to it: topics of models have data of all pipelines.
pub fn is_of(source: &External, pipeline: Option<&str>) -> bool {
    match &source.kind {
        ExternalKind::Inputs | ExternalKind::Outputs => true,
        ExternalKind::StepInputs(_) | ExternalKind::StepOutputs(_) => pipeline == Some(&*source.pipeline),
    }
}

impl JoinSpec {
    /// The topics to read, each once.
    pub fn topics(&self, topics: &Topics) -> Vec<(String, Side)> {
        let mut names: Vec<_> =
            self.inputs.iter().chain(&self.triggers).map(|source| topic(topics, source)).collect();
        names.sort_by(|a, b| a.0.cmp(&b.0));
        names.dedup();
        names
    }

    /// The tensors of a source under the names that the pipeline gives them; `None` if it has none of them.
    fn select(&self, source: &External, tensors: &[InferTensor]) -> Option<Vec<InferTensor>> {
        let is_read =
            |tensor: &&InferTensor| source.tensor.as_deref().is_none_or(|name| tensor.tensor.name() == name);
        let selected: Vec<InferTensor> =
            tensors.iter().filter(is_read).map(|tensor| self.renamed(source, tensor.clone())).collect();
        (!selected.is_empty()).then_some(selected)
    }

    fn renamed(&self, source: &External, mut tensor: InferTensor) -> InferTensor {
        let (pipeline, name) = (&source.pipeline, tensor.tensor.name());
        let key = match &source.kind {
            ExternalKind::Inputs => format!("{pipeline}.inputs.{name}"),
            ExternalKind::Outputs => format!("{pipeline}.outputs.{name}"),
            ExternalKind::StepInputs(step) => format!("{pipeline}.step.{step}.inputs.{name}"),
            ExternalKind::StepOutputs(step) => format!("{pipeline}.step.{step}.outputs.{name}"),
        };
        if let Some(name) = self.tensor_map.get(&key) {
            tensor.tensor = tensor.tensor.renamed(name.as_str());
        }
        tensor
    }
}

/// A join that has ended.
#[derive(Debug, PartialEq)]
pub struct Joined<P> {
    pub id: Arc<str>,
    /// The inputs of the pipeline; absent if they are not complete when the window closes.
    pub tensors: Option<Vec<InferTensor>>,
    /// The records of the join.
    pub records: Vec<P>,
}

/// The requests whose data is not complete.
#[derive(Debug)]
pub struct Joins<P> {
    spec: Arc<JoinSpec>,
    max_requests: usize,
    waiting: HashMap<Arc<str>, Waiting<P>>,
    /// In the order of their end.
    windows: VecDeque<(u64, Arc<str>)>,
}

#[derive(Debug)]
struct Waiting<P> {
    inputs: Vec<Option<Vec<InferTensor>>>,
    /// The input that arrived first.
    first: Option<usize>,
    triggers: Vec<bool>,
    records: Vec<P>,
    /// Joined already: further data of the request is dropped until the window closes.
    is_joined: bool,
}

impl<P> Joins<P> {
    pub fn new(spec: Arc<JoinSpec>, max_requests: usize) -> Self {
        Self { spec, max_requests, waiting: HashMap::new(), windows: VecDeque::new() }
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub fn clear(&mut self) {
        self.waiting.clear();
        self.windows.clear();
    }

    /// A record of a topic arrived: `is_source` tells which sources it belongs to. Returns the joins that end with it.
    pub fn arrive(
        &mut self,
        now: u64,
        id: &str,
        is_source: impl Fn(&External) -> bool,
        tensors: &[InferTensor],
        record: P,
    ) -> Vec<Joined<P>> {
        let mut ended = Vec::new();
        while self.waiting.len() >= self.max_requests && !self.waiting.contains_key(id) {
            let Some((_, oldest)) = self.windows.pop_front() else { break };
            ended.extend(self.close(&oldest));
        }
        let spec = Arc::clone(&self.spec);
        let id: Arc<str> = id.into();
        let waiting = self.waiting.entry(Arc::clone(&id)).or_insert_with(|| {
            self.windows.push_back((now.saturating_add(u64::from(spec.window_ms)), Arc::clone(&id)));
            Waiting {
                inputs: vec![None; spec.inputs.len()],
                first: None,
                triggers: vec![false; spec.triggers.len()],
                records: Vec::new(),
                is_joined: false,
            }
        });
        for (index, (source, slot)) in spec.inputs.iter().zip(&mut waiting.inputs).enumerate() {
            if slot.is_none() && is_source(source) {
                *slot = spec.select(source, tensors);
                if slot.is_some() {
                    waiting.first.get_or_insert(index);
                }
            }
        }
        for (source, arrived) in spec.triggers.iter().zip(&mut waiting.triggers) {
            *arrived |= is_source(source) && spec.select(source, tensors).is_some();
        }
        waiting.records.push(record);
        if waiting.is_joined {
            let records = std::mem::take(&mut waiting.records);
            ended.push(Joined { id, tensors: None, records });
        } else if let Some(tensors) = waiting.joined(&spec, false) {
            waiting.is_joined = true;
            let records = std::mem::take(&mut waiting.records);
            ended.push(Joined { id, tensors: Some(tensors), records });
        }
        ended
    }

    /// Ends the joins whose window has closed.
    pub fn expire(&mut self, now: u64) -> Vec<Joined<P>> {
        let mut ended = Vec::new();
        while self.windows.front().is_some_and(|(end, _)| *end <= now) {
            if let Some((_, id)) = self.windows.pop_front() {
                ended.extend(self.close(&id));
            }
        }
        ended
    }

    fn close(&mut self, id: &Arc<str>) -> Option<Joined<P>> {
        let waiting = self.waiting.remove(id)?;
        if waiting.is_joined {
            return None;
        }
        let tensors = waiting.joined(&self.spec, true);
        Some(Joined { id: Arc::clone(id), tensors, records: waiting.records })
    }
}

impl<P> Waiting<P> {
    /// The inputs if both joins are complete.
    fn joined(&self, spec: &JoinSpec, is_closed: bool) -> Option<Vec<InferTensor>> {
        let arrived = self.inputs.iter().flatten().count();
        let triggers = self.triggers.iter().filter(|arrived| **arrived).count();
        let is_complete = |join: Join, arrived: usize, total: usize| match join {
            _ if total == 0 => true,
            Join::Inner => arrived == total,
            Join::Outer => arrived == total || (is_closed && arrived > 0),
            Join::Any => arrived > 0,
        };
        if !is_complete(spec.join, arrived, self.inputs.len())
            || !is_complete(spec.triggers_join, triggers, self.triggers.len())
        {
            return None;
        }
        let chosen = self.first.filter(|_| spec.join == Join::Any);
        let inputs =
            self.inputs.iter().enumerate().filter(|(index, _)| chosen.is_none_or(|chosen| chosen == *index));
        let tensors: Vec<InferTensor> = inputs.filter_map(|(_, input)| input.clone()).flatten().collect();
        (!tensors.is_empty()).then_some(tensors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_tensor::{Elements, Tensor};
    use proptest::prelude::*;

    fn source(pipeline: &str, tensor: Option<&str>) -> External {
        External { pipeline: pipeline.into(), kind: ExternalKind::Outputs, tensor: tensor.map(Into::into) }
    }

    fn tensor(name: &str) -> InferTensor {
        Tensor::new(name, vec![1], Elements::Int64(vec![1])).unwrap().into()
    }

    fn spec(join: Join, inputs: &[&str], triggers: &[&str]) -> Arc<JoinSpec> {
        let sources = |names: &[&str]| names.iter().map(|name| source(name, None)).collect();
        let (inputs, triggers) = (sources(inputs), sources(triggers));
        Arc::new(JoinSpec { inputs, triggers, join, window_ms: 100, ..JoinSpec::default() })
    }

    fn names(joined: &[Joined<u32>]) -> Vec<(Vec<u32>, Option<Vec<&str>>)> {
        joined
            .iter()
            .map(|j| {
                let tensors = j.tensors.as_ref();
                (j.records.clone(), tensors.map(|t| t.iter().map(|tensor| tensor.tensor.name()).collect()))
            })
            .collect()
    }

    fn arrive(joins: &mut Joins<u32>, now: u64, pipeline: &str, record: u32) -> Vec<Joined<u32>> {
        joins.arrive(now, "id", |source| &*source.pipeline == pipeline, &[tensor(pipeline)], record)
    }

    #[test]
    fn inner_join_waits_for_all_within_its_window() {
        let mut joins = Joins::new(spec(Join::Inner, &["a", "b"], &[]), 10);
        assert!(arrive(&mut joins, 0, "a", 1).is_empty());
        assert_eq!(names(&arrive(&mut joins, 50, "b", 2)), [(vec![1, 2], Some(vec!["a", "b"]))]);
        // Data that arrives later is dropped, and its record is done.
        assert_eq!(names(&arrive(&mut joins, 60, "a", 3)), [(vec![3], None)]);
        assert!(joins.expire(99).is_empty() && joins.expire(100).is_empty() && joins.is_empty());
        assert!(arrive(&mut joins, 200, "a", 4).is_empty());
        assert_eq!(names(&joins.expire(300)), [(vec![4], None)]);
    }

    #[test]
    fn outer_join_takes_what_arrived() {
        let mut joins = Joins::new(spec(Join::Outer, &["a", "b"], &[]), 10);
        assert!(arrive(&mut joins, 0, "b", 1).is_empty());
        assert_eq!(names(&joins.expire(100)), [(vec![1], Some(vec!["b"]))]);
        assert!(arrive(&mut joins, 0, "b", 2).is_empty());
        assert_eq!(names(&arrive(&mut joins, 1, "a", 3)), [(vec![2, 3], Some(vec!["a", "b"]))]);
    }

    #[test]
    fn any_join_takes_the_first() {
        let mut joins = Joins::new(spec(Join::Any, &["a", "b"], &[]), 10);
        assert_eq!(names(&arrive(&mut joins, 0, "b", 1)), [(vec![1], Some(vec!["b"]))]);
        assert_eq!(names(&arrive(&mut joins, 1, "a", 2)), [(vec![2], None)]);
    }

    #[test]
    fn triggers_are_waited_for_and_dropped() {
        let mut joins = Joins::new(spec(Join::Inner, &["a"], &["t"]), 10);
        assert!(arrive(&mut joins, 0, "a", 1).is_empty());
        assert_eq!(names(&arrive(&mut joins, 1, "t", 2)), [(vec![1, 2], Some(vec!["a"]))]);
    }

    #[test]
    fn tensors_are_selected_and_renamed() {
        let inputs = vec![source("q", Some("x")), source("q", Some("y"))];
        let tensor_map = BTreeMap::from([("q.outputs.y".to_owned(), "z".to_owned())]);
        let spec = JoinSpec { inputs, tensor_map, window_ms: 100, ..JoinSpec::default() };
        let mut joins = Joins::new(Arc::new(spec), 10);
        let tensors = [tensor("w"), tensor("x"), tensor("y")];
        assert_eq!(names(&joins.arrive(0, "id", |_| true, &tensors, 1)), [(vec![1], Some(vec!["x", "z"]))]);
        // A source without its tensor does not arrive.
        assert!(joins.arrive(0, "other", |_| true, &[tensor("x")], 2).is_empty());
    }

    #[test]
    fn sources_are_found_by_topic_and_header() {
        let topics = Topics::new("", "").unwrap();
        let step = External { kind: ExternalKind::StepOutputs("s".into()), ..source("q", None) };
        assert_eq!(topic(&topics, &step), ("seldon.default.model.s.outputs".to_owned(), Side::Outputs));
        assert!(is_of(&step, Some("q")) && !is_of(&step, Some("p")) && !is_of(&step, None));
        assert!(is_of(&source("q", None), None));
    }

    proptest! {
        /// Every record is released exactly once, and the number of requests is bounded.
        #[test]
        fn every_record_is_released(
            arrivals in prop::collection::vec((0u8..6, 0usize..3, 0u64..60), 0..120),
            join in prop::sample::select(vec![Join::Inner, Join::Outer, Join::Any]),
        ) {
            let pipelines = ["a", "b", "t"];
            let mut joins = Joins::new(spec(join, &["a", "b"], &["t"]), 4);
            let (mut now, mut released, mut joined) = (0, Vec::new(), HashMap::<Arc<str>, u32>::new());
            let count = arrivals.len();
            for (record, (id, pipeline, wait)) in arrivals.into_iter().enumerate() {
                now += wait;
                let mut ended = joins.expire(now);
                let is_source = |source: &External| &*source.pipeline == pipelines[pipeline];
                ended.extend(joins.arrive(now, &id.to_string(), is_source, &[tensor("x")], record));
                for ended in ended {
                    released.extend(ended.records);
                    *joined.entry(ended.id).or_default() += u32::from(ended.tensors.is_some());
                }
                prop_assert!(joins.len() <= 4);
            }
            released.extend(joins.expire(u64::MAX).into_iter().flat_map(|ended| ended.records));
            released.sort_unstable();
            prop_assert_eq!(released, (0..count).collect::<Vec<_>>());
        }
    }
}
