//! One world in one process, and what one process tells another about it.

use crate::{
    arguments::Arguments,
    entropy,
    trace::{self, Violation},
    world::{self, Outcome},
};
use serde::{Deserialize, Serialize};
use std::{io, time::Duration};

/// A world that takes longer than this in real time does not come to an end.
const LONGEST: Duration = Duration::from_mins(5);

/// What a process says about its world, in one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// The property that did not hold, and what was seen.
    pub(crate) violation: Option<(String, String)>,
    /// How many things happened, and a number that stands for all of them.
    pub(crate) lines: usize,
    pub(crate) digest: u64,
}

/// Runs a world in this process and reports on it.
pub(crate) fn run(arguments: &Arguments) -> Result<bool, String> {
    let outcome = live(arguments)?;
    let report = Report {
        violation: outcome.violation.as_ref().map(|v| (v.property.clone(), v.to_string())),
        lines: outcome.lines.len(),
        digest: trace::digest(&outcome.lines),
    };
    println!("{}", serde_json::to_string(&report).map_err(|e| e.to_string())?);
    Ok(report.violation.is_none())
}

/// Lives through a plan. Once in a process: see [`entropy`].
pub(crate) fn live(arguments: &Arguments) -> Result<Outcome, String> {
    let plan = arguments.plan()?;
    entropy::seed(plan.seed);
    std::thread::spawn(|| {
        std::thread::sleep(LONGEST);
        eprintln!("the world does not come to an end");
        std::process::exit(3);
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .map_err(|e: io::Error| e.to_string())?;
    Ok(runtime.block_on(world::run(plan)))
}

/// What a violation is called in a sentence.
pub(crate) fn sentence(violation: Option<&Violation>) -> String {
    violation.map_or_else(|| "every property held".to_owned(), ToString::to_string)
}
