//! Makes a plan that fails smaller for as long as it fails the same way.

use super::Plan;

/// Leaves out steps in ever smaller parts. `fails` runs a plan and says whether it fails as the first one did; it is
/// asked at most `tries` times.
pub(crate) fn shrink(plan: Plan, mut tries: u32, mut fails: impl FnMut(&Plan) -> bool) -> Plan {
    let mut best = plan;
    let mut part = best.steps.len().div_ceil(2);
    while part > 0 {
        let mut start = 0;
        let mut smaller = false;
        while start < best.steps.len() {
            if tries == 0 {
                return best;
            }
            tries -= 1;
            let mut candidate = best.clone();
            candidate.steps.drain(start..(start + part).min(best.steps.len()));
            if fails(&candidate) {
                best = candidate;
                smaller = true;
            } else {
                start += part;
            }
        }
        // After a pass that left something out another one of the same size may leave out more.
        if !smaller {
            part /= 2;
        }
        part = part.min(best.steps.len());
    }
    best
}

#[cfg(test)]
mod tests {
    use super::{super::generate, *};

    #[test]
    fn what_is_needed_is_all_that_stays() {
        let mut plan = generate(3, 3_600_000);
        // Fails when the second and the eleventh step are both there.
        let needed = [plan.steps[1].clone(), plan.steps[10].clone()];
        plan = shrink(plan, 1000, |p| needed.iter().all(|step| p.steps.contains(step)));
        assert_eq!(plan.steps, needed);
    }

    #[test]
    fn it_stops_when_the_tries_are_used_up() {
        let plan = generate(3, 3_600_000);
        let mut asked = 0;
        let same = shrink(plan.clone(), 7, |_| {
            asked += 1;
            false
        });
        assert_eq!((same, asked), (plan, 7));
    }
}
