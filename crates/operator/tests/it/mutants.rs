//! Mistakes on purpose: each must be found by a test of this program. `cargo xtask sim --mutants` runs it.

use std::process::Command;

/// The mistakes that can be made, by the name under which the code has them.
const MUTANTS: &[&str] = &[
    "applies_what_is_there",
    "believes_what_a_lost_scheduler_said",
    "calls_failures_ready",
    "compares_definitions_only",
    "compares_generations_only",
    "does_not_ask_what_there_is",
    "does_not_hold_models",
    "forgets_orphans",
    "gives_up_after_a_failure",
    "holds_grudges",
    "is_deaf_to_deletions",
    "is_deaf_to_the_scheduler",
    "keeps_what_a_list_lacks",
    "lets_models_go_unasked",
    "makes_things_for_the_dead",
    "misses_what_happens_meanwhile",
    "never_lets_go",
    "takes_older_objects",
    "tells_nobody_of_a_connection",
    "tells_of_the_wrong_generation",
    "waits_for_ever_for_a_scheduler",
    "writes_no_status",
    "writes_what_is_written",
];

/// The variable that names the mistake to a process.
pub(crate) const VARIABLE: &str = "GANTRY_MUTANT";

/// Makes the mistake that this process was started to make, if it was.
pub(crate) fn choose() {
    if let Ok(name) = std::env::var(VARIABLE) {
        assert!(MUTANTS.contains(&name.as_str()), "there is no mutant {name}");
        gantry_core::mutant::choose(&name);
    }
}

/// A process for each mistake, with the quick tests first; it is found when one of them fails.
#[test]
#[ignore = "takes minutes; `cargo xtask sim --mutants` runs it"]
fn every_mistake_is_found() {
    let me = std::env::current_exe().unwrap();
    let mut escaped = Vec::new();
    for name in MUTANTS {
        let found = ["crash::", "faults::"].into_iter().find(|tests| {
            let run =
                Command::new(&me).args([tests, "--test-threads=2"]).env(VARIABLE, name).output().unwrap();
            !run.status.success()
        });
        println!("{name:<40} {}", found.unwrap_or("ESCAPED"));
        if found.is_none() {
            escaped.push(*name);
        }
    }
    assert!(escaped.is_empty(), "not found: {escaped:?}");
}
