//! `cargo xtask e2e`: Gantry in pods, on real nodes.

mod install;
mod kill;
mod kills;
mod load;
mod operator;
mod pod;
mod program;
mod question;
mod services;
mod statics;
mod volumes;
mod world;

use crate::{Failure, NotHere, count::Count, image, k8s, metadata};
use std::time::Instant;
use world::World;

/// What happens to the world, and what has to be true of it then.
type Scenario = fn(&World) -> Result<(), Failure>;

/// Every scenario, in the order in which they run on one cluster, each in a namespace of its own.
const SCENARIOS: &[(&str, Scenario)] = &[
    ("program", program::run),
    ("services", services::run),
    ("static", statics::run),
    ("operator", operator::run),
    ("kills", kills::run),
];

#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    keep: bool,
    names: Vec<String>,
}

pub(crate) fn run(arguments: &[&str]) -> Result<bool, Failure> {
    let options = read(arguments)?;
    match in_a_new_world(&options) {
        Err(failure) if failure.is::<NotHere>() => {
            println!("\nNOT TESTED: Gantry in pods on a real node: {failure}");
            Ok(true)
        }
        other => other,
    }
}

fn read(arguments: &[&str]) -> Result<Options, Failure> {
    let mut options = Options::default();
    for word in arguments {
        if *word == "--keep" {
            options.keep = true;
        } else if SCENARIOS.iter().any(|(name, _)| name == word) {
            options.names.push((*word).to_owned());
        } else {
            let known: Vec<&str> = SCENARIOS.iter().map(|(name, _)| *name).collect();
            return Err(format!("e2e does not know {word}: --keep, {}", known.join(", ")).into());
        }
    }
    Ok(options)
}

fn in_a_new_world(options: &Options) -> Result<bool, Failure> {
    let cluster =
        k8s::Options { directory: metadata::target().join("e2e"), node: true, kwok: 0, audit_reads: false };
    // Asked before anything is compiled.
    k8s::node_requirements()?;
    // With its libraries: what tests have compiled already is not compiled again for an image.
    let image = image::make(&image::Options { debug: true, dynamic: true, ..image::Options::default() })?;
    let guard = if options.keep { None } else { Some(k8s::Guard::new(&cluster)?) };
    let world = World::new(k8s::Cluster::up(&cluster)?, &image)?;
    let wanted = |name: &str| options.names.is_empty() || options.names.iter().any(|n| n == name);
    let mut count = Count::default();
    for (name, scenario) in SCENARIOS.iter().filter(|(name, _)| wanted(name)) {
        let begun = Instant::now();
        let outcome = world.in_namespace(name, options.keep, scenario);
        let seconds = begun.elapsed().as_secs_f64();
        match outcome {
            Ok(()) => {
                count.passed += 1;
                println!("  {name:<20} ok     {seconds:>6.1} s");
            }
            Err(failure) => {
                count.failed += 1;
                println!("  {name:<20} FAILED {seconds:>6.1} s\n{failure}");
            }
        }
    }
    drop(guard);
    println!("\n{count}");
    Ok(count.failed == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_read() {
        assert_eq!(read(&[]).unwrap(), Options::default());
        assert_eq!(
            read(&["--keep", "program"]).unwrap(),
            Options { keep: true, names: vec!["program".into()] }
        );
        assert!(read(&["--fast"]).unwrap_err().to_string().contains("program"));
    }
}
