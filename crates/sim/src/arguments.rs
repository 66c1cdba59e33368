//! The command line.

use crate::scenario::{Scenario, generate};
use std::path::Path;

pub(crate) const USAGE: &str = "\
gantry-sim [--seeds N] [--from S] [--hours H] [--jobs J] [--shrink]
    Simulates N seeds, each in its own process, and reports violated invariants.
gantry-sim --replay SEED|SCENARIO.json [--hours H] [--shrink]
    Simulates one scenario and prints every event.
  --hours H   virtual hours with faults (default 1); then the cluster has to converge
  --shrink    removes steps that a failing scenario does not need";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// One process per seed.
    Seeds,
    /// One seed or scenario, with a machine-readable report.
    Run,
    /// One seed or scenario, with a readable trace.
    Replay,
}

#[derive(Clone, Debug)]
pub(crate) struct Arguments {
    pub(crate) command: Command,
    pub(crate) seeds: u64,
    pub(crate) from: u64,
    /// Virtual milliseconds with faults.
    pub(crate) length: u64,
    pub(crate) jobs: usize,
    pub(crate) shrink: bool,
    /// A seed, or the file of a scenario.
    pub(crate) which: String,
}

impl Arguments {
    pub(crate) fn parse(words: &[String]) -> Result<Self, String> {
        let mut read = Self {
            command: Command::Seeds,
            seeds: 100,
            from: 0,
            length: 3_600_000,
            jobs: std::thread::available_parallelism().map_or(1, usize::from),
            shrink: false,
            which: String::new(),
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--seeds" => read.seeds = number(word, value()?)?,
                "--from" => read.from = number(word, value()?)?,
                "--jobs" => read.jobs = usize::try_from(number(word, value()?)?).unwrap_or(1).max(1),
                "--hours" => read.length = hours(value()?)?,
                "--shrink" => read.shrink = true,
                "--replay" => (read.command, read.which) = (Command::Replay, value()?.clone()),
                "--run" => (read.command, read.which) = (Command::Run, value()?.clone()),
                _ => return Err(USAGE.into()),
            }
        }
        Ok(read)
    }

    pub(crate) fn scenario(&self) -> Result<Scenario, String> {
        if let Ok(seed) = self.which.parse() {
            return Ok(generate(seed, self.length));
        }
        let file = Path::new(&self.which);
        let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
        Scenario::read(&text).map_err(|e| format!("{}: {e}", file.display()))
    }
}

fn number(word: &str, value: &str) -> Result<u64, String> {
    value.parse().map_err(|_| format!("{word} {value}: not a number"))
}

fn hours(value: &str) -> Result<u64, String> {
    match value.parse::<f64>() {
        Ok(hours) if hours > 0.0 && hours <= 1000.0 => Ok((hours * 3_600_000.0) as u64),
        _ => Err(format!("--hours {value}: a number above 0, such as 0.5")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments, String> {
        Arguments::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn arguments_are_parsed() {
        let many = parse("--seeds 7 --from 3 --hours 0.5 --shrink").unwrap();
        assert_eq!((many.command, many.seeds, many.from, many.length), (Command::Seeds, 7, 3, 1_800_000));
        let one = parse("--replay 42").unwrap();
        assert_eq!((one.command, one.scenario().unwrap()), (Command::Replay, generate(42, 3_600_000)));
        for wrong in ["--seeds", "--seeds x", "--hours 0", "--fast"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert!(parse("--replay nowhere.json").unwrap().scenario().is_err());
    }
}
