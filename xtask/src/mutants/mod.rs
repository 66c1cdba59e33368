//! `cargo xtask sim --mutants`: whether the simulation and the tests detect known defects.
//!
//! `crates/sim/mutants/*.toml` lists the defects as edits of the source. All of them are applied to one copy of the
//! workspace, compiled once, and enabled one at a time through the environment variable `GANTRY_MUTANT`.

mod run;
mod table;
mod workspace;

use crate::{Failure, metadata};
use run::Suite;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;
use table::{Detector, Mutant};

/// Seeds for the simulation, besides the kept scenarios, and the virtual hours of each.
const SEEDS: u32 = 30;
const HOURS: &str = "0.15";

/// Runs the mutants with these names, or all.
pub(crate) fn run(names: &[&str]) -> Result<bool, Failure> {
    let started = Instant::now();
    let mutants = table::load(&metadata::root())?;
    if let Some(unknown) = names.iter().find(|name| !mutants.iter().any(|m| m.name == **name)) {
        return Err(format!("no mutant is named {unknown}: see crates/sim/mutants").into());
    }
    let copy = workspace::prepare(&mutants)?;
    // Mutants with the same program and the same choice of tests share a suite.
    let mut suites: BTreeMap<_, Vec<&Mutant>> = BTreeMap::new();
    for mutant in mutants.iter().filter(|m| names.is_empty() || names.contains(&m.name.as_str())) {
        let key = match &mutant.detector {
            Detector::Simulation => None,
            Detector::Tests { package, target, test } => Some((package, target, test.is_some())),
        };
        suites.entry(key).or_default().push(mutant);
    }
    let mut detected = true;
    for (key, mutants) in suites {
        let suite = match key {
            None => Suite::simulation(&copy)?,
            Some((package, target, _)) => {
                let tests: BTreeSet<&str> = mutants.iter().filter_map(|m| m.detector.test()).collect();
                Suite::tests(&copy, package, target, &tests)?
            }
        };
        detected &= suite.run(&mutants)?;
    }
    eprintln!("{:.0} s", started.elapsed().as_secs_f64());
    Ok(detected)
}
