//! Simulates one scenario in this process.

use crate::{
    arguments::Arguments,
    cluster::{self, Outcome},
    entropy,
    trace::{self, Violation},
};
use serde::{Deserialize, Serialize};
use std::{io, time::Duration};

/// Real time.
const RUN_TIMEOUT: Duration = Duration::from_mins(5);

/// Printed as one line of JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// The violated invariant and its details.
    pub(crate) violation: Option<(String, String)>,
    /// Length and hash of the trace.
    pub(crate) lines: usize,
    pub(crate) digest: u64,
}

pub(crate) fn run(arguments: &Arguments) -> Result<bool, String> {
    let outcome = run_scenario(arguments)?;
    let report = Report {
        violation: outcome.violation.as_ref().map(|v| (v.invariant.clone(), v.to_string())),
        lines: outcome.lines.len(),
        digest: trace::digest(&outcome.lines),
    };
    println!("{}", serde_json::to_string(&report).map_err(|e| e.to_string())?);
    Ok(report.violation.is_none())
}

/// Once per process: see [`entropy`].
pub(crate) fn run_scenario(arguments: &Arguments) -> Result<Outcome, String> {
    let scenario = arguments.scenario()?;
    entropy::seed(scenario.seed);
    std::thread::spawn(|| {
        std::thread::sleep(RUN_TIMEOUT);
        eprintln!("the simulation does not terminate");
        std::process::exit(3);
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .map_err(|e: io::Error| e.to_string())?;
    Ok(runtime.block_on(cluster::run(scenario)))
}

pub(crate) fn summary(violation: Option<&Violation>) -> String {
    violation.map_or_else(|| "all invariants hold".to_owned(), ToString::to_string)
}
