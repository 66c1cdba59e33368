//! Inputs of a pipeline from topics of other pipelines: data of one request is joined within a window.

use crate::topics::{Side, Topics};
use gantry_core::pipeline::{External, ExternalJoin, ExternalKind, Externals, JoinStatus, Tensor};
use gantry_oip::InferTensor;
use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

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

/// The topics to read, each once.
pub fn topics(external: &Externals, topics: &Topics) -> Vec<(String, Side)> {
    let sources = external.inputs.iter().chain(&external.triggers);
    let mut names: Vec<_> = sources.map(|source| topic(topics, source)).collect();
    names.sort_by(|a, b| a.0.cmp(&b.0));
    names.dedup();
    names
}

/// A tensor of a record.
#[derive(Clone, Debug)]
struct Data(InferTensor);

impl Tensor for Data {
    fn name(&self) -> &str {
        self.0.tensor.name()
    }

    fn renamed(mut self, name: &Arc<str>) -> Self {
        self.0.tensor = self.0.tensor.renamed(&**name);
        self
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
    external: Arc<Externals>,
    max_requests: usize,
    waiting: HashMap<Arc<str>, Waiting<P>>,
    /// In the order of their end.
    windows: VecDeque<(u64, Arc<str>)>,
}

#[derive(Debug)]
struct Waiting<P> {
    /// Absent when it has been joined already: further data of the request is dropped until the window closes.
    data: Option<ExternalJoin<Data>>,
    records: Vec<P>,
}

impl<P> Joins<P> {
    pub fn new(external: Arc<Externals>, max_requests: usize) -> Self {
        Self { external, max_requests, waiting: HashMap::new(), windows: VecDeque::new() }
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
        let external = &self.external;
        let id: Arc<str> = id.into();
        let waiting = self.waiting.entry(Arc::clone(&id)).or_insert_with(|| {
            self.windows.push_back((now.saturating_add(u64::from(external.window_ms)), Arc::clone(&id)));
            Waiting { data: Some(ExternalJoin::new(external)), records: Vec::new() }
        });
        waiting.records.push(record);
        let is_waiting = waiting.data.as_mut().is_some_and(|data| {
            data.arrive(external, is_source, |_| tensors.iter().cloned().map(Data).collect());
            data.status(external, false) == JoinStatus::Waiting
        });
        if !is_waiting {
            let tensors = waiting.data.take().and_then(|data| inputs(external, data, false));
            ended.push(Joined { id, tensors, records: std::mem::take(&mut waiting.records) });
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
        let Waiting { data, records } = self.waiting.remove(id)?;
        Some(Joined { id: Arc::clone(id), tensors: inputs(&self.external, data?, true), records })
    }
}

/// The inputs of the pipeline, if it starts.
fn inputs(external: &Externals, data: ExternalJoin<Data>, is_closed: bool) -> Option<Vec<InferTensor>> {
    let starts = data.status(external, is_closed) == JoinStatus::Ready;
    starts.then(|| data.into_inputs(external).into_iter().map(|Data(tensor)| tensor).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_core::pipeline::Join;
    use gantry_tensor::Elements;
    use proptest::prelude::*;

    fn source(pipeline: &str, tensor: Option<&str>) -> External {
        External { pipeline: pipeline.into(), kind: ExternalKind::Outputs, tensor: tensor.map(Into::into) }
    }

    fn tensor(name: &str) -> InferTensor {
        gantry_tensor::Tensor::new(name, vec![1], Elements::Int64(vec![1])).unwrap().into()
    }

    fn spec(join: Join, inputs: &[&str], triggers: &[&str]) -> Arc<Externals> {
        let sources = |names: &[&str]| names.iter().map(|name| source(name, None)).collect();
        let (inputs, triggers) = (sources(inputs), sources(triggers));
        Arc::new(Externals { inputs, triggers, join, window_ms: 100, ..Externals::default() })
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
        let inputs = [source("q", Some("x")), source("q", Some("y"))].into();
        let renames = [("q.outputs.y".to_owned(), "z".into())].into();
        let spec = Externals { inputs, renames, window_ms: 100, ..Externals::default() };
        let mut joins = Joins::new(Arc::new(spec), 10);
        let tensors = [tensor("w"), tensor("x"), tensor("y")];
        assert_eq!(names(&joins.arrive(0, "id", |_| true, &tensors, 1)), [(vec![1], Some(vec!["x", "z"]))]);
        // A source without its tensor is absent: the join ends at once.
        assert_eq!(names(&joins.arrive(0, "other", |_| true, &[tensor("x")], 2)), [(vec![2], None)]);
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
