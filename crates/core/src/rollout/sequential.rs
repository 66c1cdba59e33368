//! Sequential comparison of two failure ratios, valid at any time.
//!
//! Per block of requests the candidate fails `k` of `n` and the baseline `l` of `m`, with probabilities `q` and `p` that may
//! be different in every block. For any `a > 0` and `b = 1 − (a − 1)·n/m > 0`,
//!
//! ```text
//! E[aᵏ·bˡ] = (1 + q(a−1))ⁿ·(1 + p(b−1))ᵐ ≤ exp(n·q(a−1) + m·p(b−1)) = exp(n·(q−p)·(a−1))
//! ```
//!
//! because `1 + x ≤ eˣ`. So `aᵏ·bˡ·exp(−n·d·(a−1))` has an expectation of at most 1 as long as `q − p ≤ d` if `a > 1`, and
//! as long as `q − p ≥ d` if `a < 1`: an e-value of "at most d worse" and of "at least d worse". Products over blocks are
//! e-processes, and so are mixtures over `a`. By Ville's inequality the mixture ever reaches `1/α` with a probability of at
//! most α, whenever and however often it is examined. See docs/decisions/rollout-statistics.md.

use serde::{Deserialize, Serialize};

/// Number of alternatives in a mixture.
pub const ALTERNATIVES: usize = 5;
/// Relative risks of the test of harm.
const RISKS: [f64; ALTERNATIVES] = [1.5, 2.0, 4.0, 16.0, 256.0];
/// Values of `a` of the test of fitness.
const STAKES: [f64; ALTERNATIVES] = [0.1, 0.25, 0.4, 0.6, 0.8];
/// Candidate requests after which the test of harm receives new capital.
const CAPITAL_INTERVAL: u64 = 200;
/// The part of the capital that is available from the first request.
const INITIAL_CAPITAL: f64 = 0.75;

/// Requests of one revision, and how many of them failed or were slow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    pub bad: u64,
    pub total: u64,
}

impl Sample {
    pub fn new(bad: u64, total: u64) -> Self {
        Self { bad: bad.min(total), total }
    }

    pub const fn add(&mut self, other: Self) {
        self.bad = self.bad.saturating_add(other.bad);
        self.total = self.total.saturating_add(other.total);
    }

    /// Share of bad requests; 0 without requests.
    pub fn ratio(self) -> f64 {
        self.bad as f64 / self.total.max(1) as f64
    }
}

/// Reference of a comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Baseline {
    /// The stable revision in the same block.
    Concurrent(Sample),
    /// A known ratio, when the stable revision has no requests.
    Fixed(f64),
}

/// Evidence that the candidate is more than `tolerated` worse than the baseline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HarmTest {
    log_wealth: [f64; ALTERNATIVES],
    /// Candidate requests so far.
    requests: u64,
}

impl Default for HarmTest {
    fn default() -> Self {
        Self { log_wealth: [INITIAL_CAPITAL.ln(); ALTERNATIVES], requests: 0 }
    }
}

impl HarmTest {
    pub fn update(&mut self, candidate: Sample, baseline: Baseline, tolerated: f64) {
        let before = self.requests / CAPITAL_INTERVAL;
        let (bad, total) = (candidate.bad as f64, candidate.total as f64);
        for (wealth, risk) in self.log_wealth.iter_mut().zip(RISKS) {
            *wealth += match baseline {
                Baseline::Concurrent(stable) if candidate.total == 0 || stable.total == 0 => 0.0,
                Baseline::Concurrent(stable) => {
                    let stable_total = stable.total as f64;
                    let b = (total + stable_total) / (risk * total + stable_total);
                    let a = risk * b;
                    bad * a.ln() + stable.bad as f64 * b.ln() - total * tolerated * (a - 1.0)
                }
                Baseline::Fixed(ratio) => bad * risk.ln() - total * (ratio + tolerated) * (risk - 1.0),
            };
        }
        self.requests = self.requests.saturating_add(candidate.total);
        // Part of the capital is invested later, so that a long healthy start does not delay the detection of harm. The
        // parts 1/(j·(j+1)) of the remaining capital sum to 1.
        for part in before + 1..=(self.requests / CAPITAL_INTERVAL).min(before + 1) {
            let part = part as f64;
            let capital = (1.0 - INITIAL_CAPITAL) / (part * (part + 1.0));
            self.log_wealth.iter_mut().for_each(|wealth| *wealth = log_add(*wealth, capital.ln()));
        }
    }

    /// Logarithm of the e-value.
    pub fn evidence(&self) -> f64 {
        log_mean(&self.log_wealth)
    }
}

/// Evidence that the candidate is less than `rejected` worse than the baseline.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FitnessTest {
    log_wealth: [f64; ALTERNATIVES],
}

impl FitnessTest {
    pub fn update(&mut self, candidate: Sample, baseline: Baseline, rejected: f64) {
        let (k, n) = (candidate.bad as f64, candidate.total as f64);
        for (wealth, a) in self.log_wealth.iter_mut().zip(STAKES) {
            *wealth += k * a.ln()
                + match baseline {
                    Baseline::Concurrent(Sample { total: 0, .. }) => n * rejected * (1.0 - a),
                    Baseline::Concurrent(stable) => {
                        let b = 1.0 + (1.0 - a) * n / stable.total as f64;
                        stable.bad as f64 * b.ln() + n * rejected * (1.0 - a)
                    }
                    Baseline::Fixed(ratio) => n * (ratio + rejected) * (1.0 - a),
                };
        }
    }

    /// Logarithm of the e-value.
    pub fn evidence(&self) -> f64 {
        log_mean(&self.log_wealth)
    }
}

fn log_add(left: f64, right: f64) -> f64 {
    let largest = left.max(right);
    largest + ((left - largest).exp() + (right - largest).exp()).ln()
}

/// Logarithm of the mean of exponentials.
fn log_mean(logs: &[f64]) -> f64 {
    let largest = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logs.iter().map(|log| (log - largest).exp()).sum();
    largest + (sum / logs.len() as f64).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn concurrent(bad: u64, total: u64) -> Baseline {
        Baseline::Concurrent(Sample::new(bad, total))
    }

    fn binomial(n: u64, q: f64) -> Vec<f64> {
        let mut row = vec![1.0];
        for _ in 0..n {
            let mut next = vec![0.0; row.len() + 1];
            for (k, p) in row.iter().enumerate() {
                next[k] += p * (1.0 - q);
                next[k + 1] += p * q;
            }
            row = next;
        }
        row
    }

    /// The claim of the module, by enumeration of all outcomes of a block on the boundary of the null hypotheses.
    #[test]
    fn expectation_of_each_e_value_is_at_most_one() {
        let mut largest = 0.0_f64;
        for (n, m) in [(1, 1), (2, 8), (4, 16), (10, 10), (9, 1)] {
            for p in [0.0, 0.01, 0.1, 0.5, 0.9] {
                for d in [0.0, 0.005, 0.02, 0.1] {
                    let (candidate, stable) = (binomial(n, p + d), binomial(m, p));
                    for alternative in 0..ALTERNATIVES {
                        let (mut harm, mut fitness) = (0.0, 0.0);
                        for (k, pk) in candidate.iter().enumerate() {
                            for (l, pl) in stable.iter().enumerate() {
                                let (sample, baseline) = (Sample::new(k as u64, n), concurrent(l as u64, m));
                                let mut test = HarmTest::default();
                                test.update(sample, baseline, d);
                                harm += pk * pl * test.log_wealth[alternative].exp() / INITIAL_CAPITAL;
                                let mut test = FitnessTest::default();
                                test.update(sample, baseline, d);
                                fitness += pk * pl * test.log_wealth[alternative].exp();
                            }
                        }
                        assert!(harm <= 1.0 + 1e-9, "harm {harm} for n={n} m={m} p={p} d={d}");
                        assert!(fitness <= 1.0 + 1e-9, "fitness {fitness} for n={n} m={m} p={p} d={d}");
                        largest = largest.max(harm).max(fitness);
                    }
                }
            }
        }
        assert!(largest > 0.99, "the bound is tight somewhere");
    }

    #[test]
    fn six_failures_at_a_fifth_of_the_traffic_are_evidence_of_harm() {
        let mut test = HarmTest::default();
        let mut failures = 0;
        while test.evidence() < (2.0_f64 / 0.001).ln() {
            test.update(Sample::new(1, 1), concurrent(0, 4), 0.005);
            failures += 1;
        }
        assert!(failures <= 7, "{failures}");
    }

    #[test]
    fn outage_of_both_is_no_evidence_of_harm() {
        let mut test = HarmTest::default();
        for _ in 0..1000 {
            test.update(Sample::new(4, 4), concurrent(16, 16), 0.0);
        }
        assert!(test.evidence() < 1.0);
    }

    #[test]
    fn long_healthy_start_delays_detection_by_little() {
        let mut test = HarmTest::default();
        for block in 0..10_000 {
            test.update(Sample::new(0, 4), concurrent(u64::from(block % 6 == 0), 16), 0.0);
        }
        let mut failures = 0;
        while test.evidence() < (2.0_f64 / 0.001).ln() {
            test.update(Sample::new(4, 4), concurrent(0, 16), 0.0);
            failures += 4;
        }
        assert!(failures <= 20, "{failures}");
    }

    #[test]
    fn fitness_needs_a_few_hundred_requests_without_failures() {
        let mut test = FitnessTest::default();
        let mut requests = 0;
        while test.evidence() < 1000_f64.ln() {
            test.update(Sample::new(0, 1), concurrent(0, 1), 0.02);
            requests += 1;
        }
        assert!((340..600).contains(&requests), "{requests}");
    }
}
