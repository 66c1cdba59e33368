//! Known mistakes, to see whether the world finds them.

use crate::{arguments::Arguments, process::Report, runner};
use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

/// The mistakes by name; `mutant::is("…")` in core, scheduler and gateway makes them.
const MUTANTS: &[(&str, &str)] = &[
    // Core: where a version goes.
    ("ignores_memory", "a replica without room is as good as another"),
    ("ignores_capabilities", "a server that cannot run the model is as good as another"),
    ("ignores_the_named_server", "a model that names a server goes anywhere"),
    ("forgets_what_is_promised", "what is being loaded takes no memory yet"),
    ("keeps_one_too_many", "one replica more than wanted stays"),
    // Core: versions and their ends.
    ("keeps_old_versions", "old versions stay when the new one serves"),
    ("drops_old_versions_early", "old versions go before the new one serves"),
    ("uses_numbers_again", "a model that is made anew begins with version 1 again"),
    ("unloads_what_is_routed", "a replica is unloaded while it is in the route"),
    ("unloads_when_applied", "a replica is unloaded while requests are on it"),
    ("drains_one_too_few", "a replica is unloaded one route change too early"),
    ("is_available_at_once", "a model is available before gateways route it"),
    ("routes_what_is_loading", "a replica that is still loading takes traffic"),
    ("does_not_tell_gateways", "every seventh route change is kept secret"),
    // Core: what happens.
    ("never_tries_again", "a load that failed is never tried again"),
    ("never_looks_at_who_waits", "new room helps nobody who waits"),
    ("does_not_see_room", "memory that became free helps nobody who waits"),
    ("does_not_hear_failures", "a load that failed goes on for ever"),
    ("forgets_the_lost", "what was on a replica that is lost is not placed again"),
    ("believes_its_own_memory", "what a replica no longer holds stays on the books"),
    ("leaves_strays", "what a replica holds and should not stays there"),
    ("forgets_to_store_a_version", "a new version is not stored"),
    ("forgets_to_store_an_end", "that a model is deleted is not stored"),
    // The scheduler.
    ("acknowledges_what_is_not_stored", "a write that failed is acknowledged"),
    ("does_not_take_back", "a change that was refused stays in memory"),
    ("does_not_wait_after_a_start", "what gateways still route to is unloaded after a restart"),
    ("forgets_absent_gateways", "what a gateway routes to is unloaded when its connection ends"),
    ("is_impatient", "a gateway that had nothing to acknowledge is late at once"),
    ("leaves_subscribers_in_the_dark", "subscribers to statuses hear of no change"),
    // The gateway.
    ("does_not_wait_for_requests", "a gateway says that requests are answered when they are not"),
    ("drains_by_the_last_number", "what a new beginning took away counts as drained"),
    ("keeps_what_is_gone", "a new beginning takes nothing away"),
];

/// Makes a mistake in this process from now on.
#[cfg(feature = "mutants")]
pub(crate) fn choose(name: &str) -> Result<(), String> {
    if !MUTANTS.iter().any(|(known, _)| *known == name) {
        return Err(format!("{name} is no mistake that is known: --mutants lists them"));
    }
    gantry_core::mutant::choose(name);
    Ok(())
}

/// Makes a mistake in this process from now on.
#[cfg(not(feature = "mutants"))]
pub(crate) fn choose(_: &str) -> Result<(), String> {
    Err("this program makes no mistakes on purpose: build it with the feature `mutants`".into())
}

/// Looks for a seed that finds each mistake, and prints which did.
pub(crate) fn run(arguments: &Arguments) -> Result<bool, String> {
    if cfg!(not(feature = "mutants")) {
        choose("")?;
    }
    let (next, found) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..arguments.jobs {
            scope.spawn(|| {
                while let Some((name, _)) = MUTANTS.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if arguments.mutant.as_ref().is_some_and(|only| only != name) {
                        continue;
                    }
                    let caught = hunt(name, arguments);
                    eprintln!("{name}: {caught:?}");
                    if let Some(caught) = caught {
                        found.lock().unwrap_or_else(PoisonError::into_inner).insert(*name, caught);
                    }
                }
            });
        }
    });
    let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!("| mistake | what it does | seed or plan | found by |\n|---|---|---|---|");
    for (name, what) in MUTANTS {
        let (which, property) = match found.get(name) {
            Some((which, property)) => (which.as_str(), property.as_str()),
            None => ("–", "**not found**"),
        };
        println!("| `{name}` | {what} | {which} | {property} |");
    }
    let hours = arguments.length as f64 / 3_600_000.0;
    println!("\n{} of {} mistakes found, seeds of {hours} virtual hours", found.len(), MUTANTS.len());
    Ok(found.len() == MUTANTS.len())
}

/// The first seed or kept plan that finds a mistake, and the property by which.
fn hunt(name: &str, arguments: &Arguments) -> Option<(String, String)> {
    let arguments = Arguments { mutant: Some(name.to_owned()), ..arguments.clone() };
    let seeds = (arguments.from..arguments.from + arguments.seeds).map(|seed| seed.to_string());
    seeds.chain(kept_plans()).find_map(|which| match runner::child(&which, &arguments) {
        Ok(Report { violation, .. }) => violation.map(|(property, _)| (shown(&which), property)),
        Err(_) => Some((shown(&which), "the process does not end well".into())),
    })
}

/// The plans that once found a bug.
fn kept_plans() -> Vec<String> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("plans");
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut plans: Vec<String> = entries.map(|entry| entry.path().display().to_string()).collect();
    plans.sort();
    plans
}

/// A seed, or a plan without its directory.
fn shown(which: &str) -> String {
    Path::new(which).file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default()
}
