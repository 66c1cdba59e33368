//! Removes steps that a failing scenario does not need.

use super::Scenario;

/// Removes ever smaller groups of steps while `fails` returns true; calls it at most `attempts` times.
pub(crate) fn shrink(
    scenario: Scenario,
    mut attempts: u32,
    mut fails: impl FnMut(&Scenario) -> bool,
) -> Scenario {
    let mut best = scenario;
    let mut size = best.steps.len().div_ceil(2);
    while size > 0 {
        let mut start = 0;
        let mut smaller = false;
        while start < best.steps.len() {
            if attempts == 0 {
                return best;
            }
            attempts -= 1;
            let mut candidate = best.clone();
            candidate.steps.drain(start..(start + size).min(best.steps.len()));
            if fails(&candidate) {
                best = candidate;
                smaller = true;
            } else {
                start += size;
            }
        }
        // A successful pass may enable further removals of the same size.
        if !smaller {
            size /= 2;
        }
        size = size.min(best.steps.len());
    }
    best
}

#[cfg(test)]
mod tests {
    use super::{super::generate, *};

    #[test]
    fn shrink_keeps_only_needed_steps() {
        let mut scenario = generate(3, 3_600_000);
        // Fails when the second and the eleventh step are both there.
        let needed = [scenario.steps[1].clone(), scenario.steps[10].clone()];
        scenario = shrink(scenario, 1000, |p| needed.iter().all(|step| p.steps.contains(step)));
        assert_eq!(scenario.steps, needed);
    }

    #[test]
    fn shrink_stops_after_the_last_attempt() {
        let scenario = generate(3, 3_600_000);
        let mut runs = 0;
        let same = shrink(scenario.clone(), 7, |_| {
            runs += 1;
            false
        });
        assert_eq!((same, runs), (scenario, 7));
    }
}
