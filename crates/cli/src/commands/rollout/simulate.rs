//! `gantry rollout simulate`: what a policy would do to a version with given properties.

use super::{
    Form,
    text::{grouped, percent},
};
use crate::{
    commands::status::{millis, rate},
    duration,
    error::CommandError,
    manifests::Manifests,
    output::{Style, Table, Tone, emit},
};
use gantry_api::Object;
use gantry_core::rollout::{
    Behaviour, CanarySteps, Outcome, RolloutPolicy, Scenario, Simulation, Step, Strategy, simulate,
};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    path::PathBuf,
    time::{Duration, Instant},
};

/// Requests of one run, so that it ends in seconds.
const MAX_REQUESTS: f64 = 50e6;
/// After this time no further run is started.
const TIME_LIMIT: Duration = Duration::from_secs(20);

/// Simulate rollouts of a version with given properties, offline.
///
/// The rollout engine is run with random requests. Approvals count as given at once.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  gantry rollout simulate -f careful.yaml --success 0.97 --rate 50\n  \
    gantry rollout simulate -f careful.yaml --success 0.999 --rate 200 --latency 30ms --baseline-latency 20ms")]
pub(super) struct Args {
    /// Manifest of the RolloutPolicy, or - for stdin
    #[arg(short = 'f', long = "filename", value_name = "FILE")]
    file: PathBuf,
    /// Name of the policy, if the manifest has several
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// Share of requests that the new version answers well, 0 to 1
    #[arg(long, value_name = "SHARE", value_parser = share)]
    success: f64,
    /// The same for the old version
    #[arg(long, value_name = "SHARE", value_parser = share, default_value = "0.995")]
    baseline: f64,
    /// Requests per second of both versions together
    #[arg(long, value_name = "RATE", value_parser = requests_per_second)]
    rate: f64,
    /// Median latency of the new version
    #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "20ms")]
    latency: Duration,
    /// Median latency of the old version
    #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "20ms")]
    baseline_latency: Duration,
    /// Number of simulated rollouts
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    runs: u32,
    /// Seed of the random numbers: with the same seed, the result is the same
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Form::Text, value_name = "FORMAT")]
    output: Form,
}

fn share(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|value| (0.0..=1.0).contains(value));
    value.ok_or_else(|| "write a share between 0 and 1, such as 0.97".to_owned())
}

fn requests_per_second(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|value| *value > 0.0 && *value <= 100_000.0);
    value.ok_or_else(|| "write requests per second, more than 0 and at most 100000".to_owned())
}

pub(super) fn run(args: &Args) -> Result<(), CommandError> {
    let (name, policy) = read_policy(args)?;
    let behaviour =
        |success, latency: Duration| Behaviour { success, latency_ms: latency.as_secs_f64() * 1000.0 };
    let stable = behaviour(args.baseline, args.baseline_latency);
    let candidate = behaviour(args.success, args.latency);
    let mut scenario = Scenario::new(stable, candidate, args.rate);
    let most = (MAX_REQUESTS / args.rate * 1000.0) as u64;
    scenario.limit = scenario.limit.min(most).max(scenario.window);
    let started = Instant::now();
    let mut runs = Vec::new();
    for run in 0..u64::from(args.runs) {
        if run > 0 && started.elapsed() > TIME_LIMIT {
            break;
        }
        let mut random = fastrand::Rng::with_seed(args.seed.wrapping_add(run));
        runs.push(simulate(&policy, &scenario, &mut || random.u64(..)));
    }
    let result = Summary::new(name, args.runs, scenario, runs);
    match args.output {
        Form::Text => emit(result.text(Style::stdout())),
        Form::Json => emit(format!("{:#}\n", result.document())),
    }
}

fn read_policy(args: &Args) -> Result<(String, RolloutPolicy), CommandError> {
    let objects =
        Manifests::read_all(std::slice::from_ref(&args.file), false)?.checked("Nothing was simulated.")?;
    let policies: Vec<_> = objects
        .iter()
        .filter_map(|parsed| match &parsed.object {
            Object::RolloutPolicy(policy) => Some(policy),
            _ => None,
        })
        .filter(|policy| args.policy.as_ref().is_none_or(|name| *name == policy.metadata.name))
        .collect();
    let file = args.file.display();
    let policy = match (policies.as_slice(), &args.policy) {
        ([policy], _) => policy,
        ([], None) => return Err(CommandError::usage(format!("{file} has no RolloutPolicy: add one"))),
        ([], Some(name)) => {
            return Err(CommandError::usage(format!("{file} has no RolloutPolicy {name}: correct --policy")));
        }
        (several, _) => {
            let names: Vec<&str> = several.iter().map(|policy| policy.metadata.name.as_str()).collect();
            let message =
                format!("{file} has several policies: choose one with --policy: {}", names.join(", "));
            return Err(CommandError::usage(message));
        }
    };
    let mut rules = policy
        .spec
        .to_policy()
        .map_err(|(path, message)| CommandError::usage(format!("{file}: {path} {message}")))?;
    rules.strategy = approved(rules.strategy);
    Ok((policy.metadata.name.clone(), rules))
}

/// The strategy without approvals, for which a simulation would wait forever.
fn approved(strategy: Strategy) -> Strategy {
    let steps = |steps: CanarySteps| {
        let each = steps.as_slice().iter().map(|step| Step { approval: false, ..*step });
        CanarySteps::new(each.collect()).unwrap_or(steps)
    };
    match strategy {
        Strategy::Canary(canary) => Strategy::Canary(steps(canary)),
        Strategy::BlueGreen { hold, .. } => Strategy::BlueGreen { hold, approval: false },
        Strategy::MirrorFirst { percent, hold, then } => {
            Strategy::MirrorFirst { percent, hold, then: steps(then) }
        }
    }
}

/// The results of all runs.
struct Summary {
    policy: String,
    wanted: u32,
    scenario: Scenario,
    /// By duration.
    runs: Vec<Simulation>,
}

impl Summary {
    fn new(policy: String, wanted: u32, scenario: Scenario, mut runs: Vec<Simulation>) -> Self {
        runs.sort_by_key(|run| run.duration);
        Self { policy, wanted, scenario, runs }
    }

    /// Runs by outcome, most frequent first.
    fn outcomes(&self) -> Vec<(String, usize)> {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for run in &self.runs {
            *counts.entry(self.outcome(run)).or_default() += 1;
        }
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        counts
    }

    fn outcome(&self, run: &Simulation) -> String {
        match run.outcome {
            Some(Outcome::Promoted) => "promoted".to_owned(),
            Some(Outcome::RolledBack(reason)) => format!("rolled back ({reason})"),
            Some(other) => format!("{other:?}").to_lowercase(),
            None => format!("undecided after {}", time(self.scenario.limit)),
        }
    }

    /// Median and 95th percentile of a property of the runs.
    fn quantiles(&self, value: impl Fn(&Simulation) -> u64) -> (u64, u64) {
        let mut values: Vec<u64> = self.runs.iter().map(value).collect();
        values.sort_unstable();
        let at = |numerator: usize| {
            let index = (values.len() * numerator).div_ceil(100).saturating_sub(1);
            values.get(index).copied().unwrap_or(0)
        };
        (at(50), at(95))
    }

    /// A run of median duration among those with the most frequent outcome.
    fn typical(&self) -> Option<&Simulation> {
        let (most, _) = self.outcomes().into_iter().next()?;
        let same: Vec<&Simulation> = self.runs.iter().filter(|run| self.outcome(run) == most).collect();
        same.get(same.len().saturating_sub(1) / 2).copied()
    }

    fn text(&self, style: Style) -> String {
        let all = self.runs.len();
        let shares: Vec<String> = self
            .outcomes()
            .iter()
            .map(|(outcome, count)| {
                format!("{} {outcome} ({:.1} %)", grouped(*count as u64), *count as f64 * 100.0 / all as f64)
            })
            .collect();
        let mut text = format!(
            "Of {} simulated rollouts by {}: {}.\n",
            grouped(all as u64),
            self.policy,
            shares.join(", ")
        );
        if u64::from(self.wanted) > all as u64 {
            let limit = time(u64::try_from(TIME_LIMIT.as_millis()).unwrap_or(u64::MAX));
            text += &format!("No more than {all} of {} were run in {limit}.\n", self.wanted);
        }
        let mut table = Table::without_headings();
        let mut row = |key: &str, value: String| {
            table.row(vec![(format!("  {key}"), Tone::Faint), (value, Tone::Plain)]);
        };
        let of = |behaviour: &Behaviour| {
            format!("{} good, median latency {}", percent(behaviour.success), millis(behaviour.latency_ms))
        };
        row("new version", of(&self.scenario.candidate));
        row("old version", of(&self.scenario.stable));
        row("traffic", format!("{} requests/s", rate(self.scenario.rate)));
        let (median, high) = self.quantiles(|run| run.duration);
        row("duration", format!("median {}, 95 % within {}", time(median), time(high)));
        for (key, value) in
            [("exposed", (|run| run.exposed) as fn(&Simulation) -> u64), ("failed", |run| run.failed)]
        {
            let (median, high) = self.quantiles(value);
            row(key, format!("median {} requests, 95 % at most {}", grouped(median), grouped(high)));
        }
        text += &table.render(style);
        if let Some(typical) = self.typical() {
            text += "\nA typical run:\n";
            text += &stages(typical, &self.outcome(typical)).render(style);
        }
        text
    }

    fn document(&self) -> Value {
        let quantiles = |value: fn(&Simulation) -> u64| {
            let (median, p95) = self.quantiles(value);
            json!({ "median": median, "p95": p95 })
        };
        let outcomes: Vec<Value> = self
            .outcomes()
            .into_iter()
            .map(|(outcome, runs)| json!({ "outcome": outcome, "runs": runs }))
            .collect();
        let weights = |run: &Simulation| -> Vec<Value> {
            run.weights.iter().map(|(ms, weight)| json!({ "ms": ms, "weight": weight })).collect()
        };
        json!({
            "policy": self.policy,
            "runs": self.runs.len(),
            "outcomes": outcomes,
            "durationMs": quantiles(|run| run.duration),
            "exposed": quantiles(|run| run.exposed),
            "failed": quantiles(|run| run.failed),
            "typical": self.typical().map(|run| json!({
                "outcome": self.outcome(run), "durationMs": run.duration, "weights": weights(run), "summary": run.summary,
            })),
        })
    }
}

/// The changes of the weight, and the end.
fn stages(run: &Simulation, outcome: &str) -> Table {
    let mut table = Table::without_headings();
    let mut row = |at: u64, weight: String, note: &str| {
        table.row(vec![
            (format!("  {:>7}", time(at)), Tone::Plain),
            (weight, Tone::Plain),
            (note.to_owned(), Tone::Plain),
        ]);
    };
    let ends = run.weights.last().is_some_and(|(at, _)| *at == run.duration);
    let last = run.weights.len().saturating_sub(usize::from(ends));
    for (at, weight) in run.weights.iter().take(last) {
        row(*at, format!("{weight:>3} %"), "");
    }
    let weight = run.weights.last().map_or(0, |(_, weight)| *weight);
    let end = if run.summary.is_empty() { outcome.to_owned() } else { format!("{outcome}: {}", run.summary) };
    row(run.duration, format!("{weight:>3} %"), &end);
    table
}

fn time(ms: u64) -> String {
    duration::format(Duration::from_millis(ms))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_core::rollout::Reason;

    fn summary() -> Summary {
        let behaviour = |success| Behaviour { success, latency_ms: 20.0 };
        let run = |outcome, duration, exposed, failed| Simulation {
            outcome,
            duration,
            requests: 10 * exposed,
            exposed,
            failed,
            weights: vec![(100, 5), (1200, 20), (duration, 0)],
            summary: "canary answered 5xx to 17 of 1,019".into(),
        };
        let back = Some(Outcome::RolledBack(Reason::HigherFailureRatio));
        let runs = vec![
            run(back, 61_000, 1300, 30),
            run(Some(Outcome::Promoted), 90_000, 2400, 70),
            run(back, 2500, 40, 2),
            run(back, 41_000, 1019, 17),
        ];
        Summary::new("careful".into(), 4, Scenario::new(behaviour(0.995), behaviour(0.97), 50.0), runs)
    }

    #[test]
    fn text_has_shares_quantiles_and_a_typical_run() {
        insta::assert_snapshot!(summary().text(Style::plain()));
        assert_eq!(summary().document()["outcomes"][0]["runs"], 3);
        assert_eq!(summary().document()["durationMs"]["median"], 41_000);
    }

    #[test]
    fn simulation_is_repeatable_and_rolls_bad_versions_back() {
        let policy = RolloutPolicy::new(Strategy::Canary(CanarySteps::weights(&[5, 50]).unwrap()));
        let behaviour = |success| Behaviour { success, latency_ms: 20.0 };
        let scenario = Scenario::new(behaviour(0.995), behaviour(0.5), 200.0);
        let run = || {
            let mut random = fastrand::Rng::with_seed(7);
            simulate(&policy, &scenario, &mut || random.u64(..))
        };
        assert_eq!(run(), run());
        assert!(matches!(run().outcome, Some(Outcome::RolledBack(_))), "{:?}", run());
    }

    #[test]
    fn approvals_count_as_given() {
        let step = |weight| Step { weight, hold: 5, approval: true };
        let percent = |p| gantry_core::rollout::Percent::new(p).unwrap();
        let steps = CanarySteps::new(vec![step(percent(5)), step(percent(50))]).unwrap();
        for strategy in [Strategy::Canary(steps), Strategy::BlueGreen { hold: 5, approval: true }] {
            let approved = approved(strategy);
            assert!(approved.stages().all(|stage| !stage.approval && stage.hold == 5), "{approved:?}");
        }
    }
}
