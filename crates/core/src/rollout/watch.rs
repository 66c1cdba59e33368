//! The stable revision after its promotion: bake, then drift.

use super::{
    analysis::{Analysis, Position},
    distribution::{Distribution, kolmogorov_smirnov, population_stability_index},
    evidence::{DriftScore, Evidence, Stats, Window},
    policy::{DriftMeasure, DriftRules, ObservedTensor, RolloutPolicy},
    thresholds::Tally,
    verdict::{Finding, Reason},
};
use crate::scheduling::Millis;
use serde::{Deserialize, Serialize};

/// The first time after a promotion, in which the previous revision is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bake {
    pub since: Millis,
    pub analysis: Analysis,
    /// Outputs, to which later ones are compared.
    pub reference: Distribution,
    pub reported: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DriftState {
    pub reference: Distribution,
    /// The current interval.
    pub since: Millis,
    pub outputs: Distribution,
    /// The largest score of the current interval.
    #[serde(default)]
    pub score: Option<DriftScore>,
    pub tally: Tally,
    /// Consecutive intervals with a finding.
    pub exceeded: u32,
    pub finding: Option<Finding>,
    pub reported: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Watch {
    Off,
    Baking(Box<Bake>),
    Drift(Box<DriftState>),
}

impl Watch {
    pub(super) fn start(policy: &RolloutPolicy, elapsed: Millis) -> Self {
        if policy.bake == 0 {
            return Self::drift(policy, Distribution::default(), elapsed);
        }
        Self::Baking(Box::new(Bake {
            since: elapsed,
            analysis: Analysis::new(policy, elapsed),
            reference: Distribution::default(),
            reported: false,
        }))
    }

    fn drift(policy: &RolloutPolicy, reference: Distribution, elapsed: Millis) -> Self {
        if policy.drift.is_none() {
            return Self::Off;
        }
        Self::Drift(Box::new(DriftState {
            reference,
            since: elapsed,
            outputs: Distribution::default(),
            score: None,
            tally: Tally::default(),
            exceeded: 0,
            finding: None,
            reported: false,
        }))
    }

    pub const fn name(&self) -> &'static str {
        match self {
            Self::Off => "Off",
            Self::Baking(_) => "Baking",
            Self::Drift(_) => "Drift",
        }
    }

    /// Whether its finding has been reported.
    pub const fn reported(&self) -> bool {
        match self {
            Self::Off => false,
            Self::Baking(bake) => bake.reported,
            Self::Drift(drift) => drift.reported,
        }
    }

    pub(super) const fn set_reported(&mut self) {
        match self {
            Self::Off => {}
            Self::Baking(bake) => bake.reported = true,
            Self::Drift(drift) => drift.reported = true,
        }
    }

    /// Ends the bake.
    pub(super) fn end_bake(&mut self, policy: &RolloutPolicy, elapsed: Millis) {
        if let Self::Baking(bake) = self {
            *self = Self::drift(policy, std::mem::take(&mut bake.reference), elapsed);
        }
    }

    pub(super) fn bake_is_over(&self, policy: &RolloutPolicy, elapsed: Millis) -> bool {
        matches!(self, Self::Baking(bake) if elapsed >= bake.since.saturating_add(policy.bake))
    }

    pub(super) fn observe(
        &mut self,
        policy: &RolloutPolicy,
        generation: u64,
        evidence: Option<&Evidence>,
        elapsed: Millis,
    ) {
        match self {
            Self::Off => {}
            Self::Baking(bake) => bake.observe(policy, generation, evidence, elapsed),
            Self::Drift(drift) => {
                if let Some(rules) = &policy.drift {
                    drift.observe(policy, rules, generation, evidence, elapsed);
                }
            }
        }
    }

    /// Why the revision should be replaced by the previous one.
    pub(super) fn finding(&self, policy: &RolloutPolicy) -> Option<Finding> {
        match self {
            Self::Off => None,
            Self::Baking(bake) => bake.analysis.failed(policy).cloned(),
            Self::Drift(drift) => {
                let needed = policy.drift.as_ref()?.windows.max(1);
                drift.finding.clone().filter(|_| drift.exceeded >= needed)
            }
        }
    }

    /// When the next check or transition is due, in elapsed time.
    pub(super) fn due(&self, policy: &RolloutPolicy) -> Option<Millis> {
        match self {
            Self::Off => None,
            Self::Baking(bake) => Some(bake.since.saturating_add(policy.bake)),
            Self::Drift(drift) => Some(drift.since.saturating_add(policy.interval)),
        }
    }
}

impl Bake {
    fn observe(
        &mut self,
        policy: &RolloutPolicy,
        generation: u64,
        evidence: Option<&Evidence>,
        elapsed: Millis,
    ) {
        // The stable revision is the one under analysis.
        let alone = match evidence {
            Some(Evidence::Window(window)) => {
                if window.generation == generation {
                    self.reference.merge(&window.stable.outputs);
                }
                Some(Evidence::Window(Box::new(Window {
                    candidate: window.stable.clone(),
                    stable: Stats::default(),
                    ..**window
                })))
            }
            other => other.cloned(),
        };
        self.analysis.observe(policy, Position::BAKE, generation, alone.as_ref(), elapsed);
    }
}

impl DriftState {
    fn observe(
        &mut self,
        policy: &RolloutPolicy,
        rules: &DriftRules,
        generation: u64,
        evidence: Option<&Evidence>,
        elapsed: Millis,
    ) {
        if let Some(Evidence::Window(window)) = evidence
            && window.generation == generation
        {
            self.outputs.merge(&window.stable.outputs);
            self.score = self.score.max(window.stable.drift);
            self.tally.add(&window.stable);
        }
        if elapsed < self.since.saturating_add(policy.interval) {
            return;
        }
        let has_outputs = self.outputs.total() >= rules.min_outputs.max(1);
        let compared = has_outputs || self.score.is_some();
        let enough = self.tally.totals.sample.total >= policy.min_requests.max(1);
        let measured = self
            .measure(rules, policy.observed.as_ref())
            .filter(|_| has_outputs)
            .or_else(|| self.scored(rules));
        let found = measured.or_else(|| {
            let missed = self.tally.missed("stable", &policy.objectives)?;
            (rules.objectives && enough).then(|| Finding::new(Reason::ObjectivesMissed, missed.message))
        });
        match found {
            Some(found) => {
                self.exceeded = self.exceeded.saturating_add(1);
                self.finding = Some(found);
            }
            // An interval without enough evidence shows neither drift nor its end.
            None if compared || (rules.objectives && enough) => {
                (self.exceeded, self.finding, self.reported) = (0, None, false);
            }
            None => {}
        }
        if self.reference.total() == 0 && has_outputs {
            // Without a bake the first complete interval is the reference.
            self.reference = std::mem::take(&mut self.outputs);
        }
        (self.since, self.outputs, self.tally) = (elapsed, Distribution::default(), Tally::default());
        self.score = None;
    }

    fn scored(&self, rules: &DriftRules) -> Option<Finding> {
        let score = self.score.map(DriftScore::get).filter(|score| *score >= rules.threshold)?;
        let text = format!("drift score is {score:.2}, at least {:.2}", rules.threshold);
        Some(Finding::new(Reason::Drifted, text))
    }

    fn measure(&self, rules: &DriftRules, observed: Option<&ObservedTensor>) -> Option<Finding> {
        let (name, value) = match rules.measure {
            DriftMeasure::PopulationStabilityIndex => {
                ("PSI", population_stability_index(&self.reference, &self.outputs)?)
            }
            DriftMeasure::KolmogorovSmirnov => ("KS", kolmogorov_smirnov(&self.reference, &self.outputs)?),
        };
        (value >= rules.threshold).then(|| {
            let text = format!(
                "{name} of the {} is {value:.2}, at least {:.2}, over {} values",
                observed.map_or_else(|| "outputs".to_owned(), ToString::to_string),
                rules.threshold,
                self.outputs.total()
            );
            Finding::new(Reason::Drifted, text)
        })
    }
}
