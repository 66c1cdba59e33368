//! The command line.

use crate::plan::{Plan, generate};
use std::path::Path;

pub(crate) const USAGE: &str = "\
gantry-sim [--seeds N] [--from S] [--hours H] [--jobs J] [--shrink]
    Runs the worlds of N seeds, each in a process of its own, and says which property did not hold where.
gantry-sim --replay SEED|PLAN.json [--hours H] [--shrink]
    Runs one world and shows everything that happened.
  --hours H   how long things go wrong, in virtual hours (default 1); then the world has to come to rest
  --shrink    leaves out of a failing plan what is not needed to fail";

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Many seeds, a process each.
    Seeds,
    /// One seed or plan, in this process, for another one of us to read.
    World,
    /// One seed or plan, for people to read.
    Replay,
}

#[derive(Clone, Debug)]
pub(crate) struct Arguments {
    pub(crate) command: Command,
    pub(crate) seeds: u64,
    pub(crate) from: u64,
    /// Virtual milliseconds in which things go wrong.
    pub(crate) length: u64,
    pub(crate) jobs: usize,
    pub(crate) shrink: bool,
    /// A seed, or a plan's file.
    pub(crate) which: String,
}

impl Arguments {
    pub(crate) fn read(words: &[String]) -> Result<Self, String> {
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
                "--world" => (read.command, read.which) = (Command::World, value()?.clone()),
                _ => return Err(USAGE.into()),
            }
        }
        Ok(read)
    }

    /// The plan that is meant by a seed or by a file's name.
    pub(crate) fn plan(&self) -> Result<Plan, String> {
        if let Ok(seed) = self.which.parse() {
            return Ok(generate(seed, self.length));
        }
        let file = Path::new(&self.which);
        let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
        Plan::read(&text).map_err(|e| format!("{}: {e}", file.display()))
    }
}

fn number(word: &str, value: &str) -> Result<u64, String> {
    value.parse().map_err(|_| format!("{word} {value}: that is no number"))
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

    fn read(line: &str) -> Result<Arguments, String> {
        Arguments::read(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn the_command_line_is_read() {
        let many = read("--seeds 7 --from 3 --hours 0.5 --shrink").unwrap();
        assert_eq!((many.command, many.seeds, many.from, many.length), (Command::Seeds, 7, 3, 1_800_000));
        let one = read("--replay 42").unwrap();
        assert_eq!((one.command, one.plan().unwrap()), (Command::Replay, generate(42, 3_600_000)));
        for wrong in ["--seeds", "--seeds x", "--hours 0", "--fast"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        assert!(read("--replay nowhere.json").unwrap().plan().is_err());
    }
}
