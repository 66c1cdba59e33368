//! `cargo xtask sim --mutants`: whether the simulation and the operator's tests detect known defects.
//!
//! `crates/sim/mutants/*.toml` lists the defects as edits of the source. All of them are applied to one copy of the
//! workspace, compiled once, and enabled one at a time through the environment variable `GANTRY_MUTANT`.

mod run;
mod table;
mod workspace;

use crate::{Failure, metadata};
use run::Suite;
use std::time::Instant;
use table::Mutant;

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
    let selected = |operator: bool| -> Vec<&Mutant> {
        let is_selected = |m: &&Mutant| {
            m.is_operator() == operator && (names.is_empty() || names.contains(&m.name.as_str()))
        };
        mutants.iter().filter(is_selected).collect()
    };
    let mut detected = true;
    for operator in [false, true] {
        let selected = selected(operator);
        if !selected.is_empty() {
            let suite = if operator { Suite::operator(&copy)? } else { Suite::simulation(&copy)? };
            detected &= suite.run(&selected)?;
        }
    }
    eprintln!("{:.0} s", started.elapsed().as_secs_f64());
    Ok(detected)
}
