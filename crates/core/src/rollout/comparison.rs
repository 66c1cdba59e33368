//! Sequential comparison of the candidate with the stable revision: success, latency and outputs.

use super::{
    evidence::Window,
    histogram::{Bucket, LatencyHistogram},
    policy::{Margins, Objectives, RolloutPolicy, SequentialRules},
    sequential::{Baseline, FitnessTest, HarmTest, Sample},
    verdict::Reason,
};
use serde::{Deserialize, Serialize};

/// Requests of a block: below this there is too little of one revision for a comparison.
const MIN_BLOCK: (u64, u64) = (2, 4);

/// Whether the stable revision serves requests in the same windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reference {
    Concurrent,
    /// The objectives, because the candidate serves all requests.
    Objectives,
}

/// Both tests of one metric.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    pub harm: HarmTest,
    pub fitness: FitnessTest,
    /// Evidence of fitness when the stage began.
    pub fitness_at_stage: f64,
}

impl Comparison {
    /// An outage of the baseline is no evidence of fitness.
    fn update(&mut self, candidate: Sample, baseline: Baseline, margins: &Margins, outage: bool) {
        if candidate.total > 0 {
            self.harm.update(candidate, baseline, margins.tolerated.get());
            if !outage {
                self.fitness.update(candidate, baseline, margins.rejected.get());
            }
        }
    }
}

/// The latency above which a request is slow. It is fixed before the requests that it classifies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum LatencyCut {
    /// Latencies of the stable revision so far.
    Learning(Box<LatencyHistogram>),
    Fixed(Bucket),
}

/// Requests that do not yet suffice for a comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    pub candidate: Sample,
    pub stable: Sample,
    pub slow_candidate: Sample,
    pub slow_stable: Sample,
    pub outputs: Sample,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SequentialState {
    pub success: Comparison,
    pub latency: Comparison,
    pub outputs: Comparison,
    pub cut: LatencyCut,
    pub block: Block,
}

impl Default for SequentialState {
    fn default() -> Self {
        Self {
            success: Comparison::default(),
            latency: Comparison::default(),
            outputs: Comparison::default(),
            cut: LatencyCut::Learning(Box::default()),
            block: Block::default(),
        }
    }
}

impl SequentialState {
    /// Evidence of a new stage is counted from here.
    pub(super) fn enter_stage(&mut self) {
        self.block = Block::default();
        for comparison in [&mut self.success, &mut self.latency, &mut self.outputs] {
            comparison.fitness_at_stage = comparison.fitness.evidence();
        }
    }

    pub(super) fn observe(
        &mut self,
        policy: &RolloutPolicy,
        rules: &SequentialRules,
        window: &Window,
        reference: Reference,
        mirrored: bool,
        outage: bool,
    ) {
        self.classify_latency(policy, rules, window, mirrored);
        let block = &mut self.block;
        block.candidate.add(window.candidate.failures());
        block.stable.add(window.stable.failures());
        block.outputs.add(Sample::new(window.candidate.compared.bad, window.candidate.compared.total));
        let (least_candidate, least_stable) = MIN_BLOCK;
        let complete = match reference {
            Reference::Concurrent => {
                block.candidate.total >= least_candidate && block.stable.total >= least_stable
            }
            Reference::Objectives => block.candidate.total > 0,
        };
        if complete {
            self.compare(&policy.objectives, rules, reference, outage);
            self.block = Block::default();
        }
    }

    /// Counts slow requests, or learns from the stable revision which ones are slow.
    fn classify_latency(
        &mut self,
        policy: &RolloutPolicy,
        rules: &SequentialRules,
        window: &Window,
        mirrored: bool,
    ) {
        let Some(rule) = rules.latency else { return };
        match &mut self.cut {
            // Copies wait for requests of clients: their latency is not that of the revision.
            LatencyCut::Fixed(_) if mirrored => {}
            LatencyCut::Fixed(cut) => {
                for (slow, stats) in [
                    (&mut self.block.slow_candidate, &window.candidate),
                    (&mut self.block.slow_stable, &window.stable),
                ] {
                    slow.add(Sample::new(stats.latency.slower_than(*cut), stats.latency.total()));
                }
            }
            LatencyCut::Learning(known) => {
                known.merge(&window.stable.latency);
                let enough = known.total() >= policy.min_requests.max(1);
                let learned = known.quantile_bucket(rule.quantile.get()).filter(|_| enough);
                let objective = policy.objectives.latency.map(|objective| Bucket::of(objective.limit_ms()));
                if let Some(cut) = objective.or(learned) {
                    self.cut = LatencyCut::Fixed(cut);
                }
            }
        }
    }

    fn compare(
        &mut self,
        objectives: &Objectives,
        rules: &SequentialRules,
        reference: Reference,
        outage: bool,
    ) {
        let block = self.block;
        let baseline = |stable: Sample, objective: f64| match reference {
            Reference::Concurrent => Baseline::Concurrent(stable),
            Reference::Objectives => Baseline::Fixed(objective),
        };
        let expected = baseline(block.stable, objectives.budget());
        self.success.update(block.candidate, expected, &rules.success, outage);
        if let Some(rule) = rules.latency {
            let quantile = objectives.latency.map_or(rule.quantile, |objective| objective.quantile);
            let expected = baseline(block.slow_stable, 1.0 - quantile.get());
            self.latency.update(block.slow_candidate, expected, &rule.margins, outage);
        }
        if let Some(margins) = rules.outputs {
            self.outputs.update(block.outputs, Baseline::Fixed(0.0), &margins, outage);
        }
    }

    /// Compared metrics.
    fn metrics(
        &self,
        rules: &SequentialRules,
        reference: Reference,
        mirrored: bool,
    ) -> Vec<(Reason, &Comparison)> {
        // Without a stable revision that serves, latencies without a known limit cannot be classified.
        let latency = rules.latency.is_some()
            && !mirrored
            && (reference == Reference::Concurrent || matches!(self.cut, LatencyCut::Fixed(_)));
        let outputs = rules.outputs.is_some() && mirrored;
        [
            Some((Reason::HigherFailureRatio, &self.success)),
            latency.then_some((Reason::HigherLatency, &self.latency)),
            outputs.then_some((Reason::OutputsDiffer, &self.outputs)),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// The metric with evidence of harm.
    pub(super) fn harmful(
        &self,
        rules: &SequentialRules,
        reference: Reference,
        mirrored: bool,
    ) -> Option<Reason> {
        // The accepted probability is divided between all metrics that the policy can compare.
        let metrics =
            1.0 + f64::from(u8::from(rules.latency.is_some())) + f64::from(u8::from(rules.outputs.is_some()));
        let needed = (metrics / rules.false_rollback.get()).ln();
        let compared = self.metrics(rules, reference, mirrored);
        compared.iter().find(|(_, metric)| metric.harm.evidence() >= needed).map(|(reason, _)| *reason)
    }

    /// Evidence of fitness in this stage relative to what it needs, of the metric that lacks most; 1 is enough. `share` is
    /// the stage's part; `total` additionally demands the complete evidence.
    pub(super) fn fitness(
        &self,
        rules: &SequentialRules,
        reference: Reference,
        mirrored: bool,
        share: f64,
        total: bool,
    ) -> f64 {
        let complete = -rules.false_promotion.get().ln();
        let of = |(_, metric): &(Reason, &Comparison)| {
            let evidence = metric.fitness.evidence();
            let stage = (evidence - metric.fitness_at_stage) / (complete * share).max(f64::MIN_POSITIVE);
            if total { stage.min(evidence / complete.max(f64::MIN_POSITIVE)) } else { stage }
        };
        self.metrics(rules, reference, mirrored).iter().map(of).fold(f64::INFINITY, f64::min)
    }
}
