//! Mistakes on purpose: each must be found by a test of this program. `cargo xtask sim --mutants` runs it.
//!
//! Each test runs once as it should, which also says how long it takes; then, for each mistake, the tests run one after
//! the other, the quick ones first, until one fails. Tests that live whole days again and again have their turn only for
//! mistakes that nobody else finds. `GANTRY_MUTANTS=name,name` looks for some of them only.

use std::{
    collections::BTreeMap,
    path::Path,
    process::{Command, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// The mistakes that can be made, by the name under which the code has them, and what they do.
const MUTANTS: &[(&str, &str)] = &[
    // Models.
    ("does_not_hold_models", "a model has no finalizer"),
    ("lets_models_go_unasked", "a deleted model goes before its scheduler knows"),
    ("never_lets_go", "a deleted model stays when it is unloaded"),
    ("waits_for_ever_for_a_scheduler", "a deleted model stays while its scheduler is away"),
    ("compares_generations_only", "a model made anew is taken for the one before"),
    ("compares_definitions_only", "a new generation is not told to the scheduler"),
    ("calls_failures_ready", "what no server can take is Ready"),
    ("tells_of_the_wrong_generation", "a status is always of generation 1"),
    // Servers.
    ("announces_nothing", "the scheduler is not told of Servers"),
    ("says_no_goodbye", "the scheduler waits for replicas of Servers that are gone"),
    ("ignores_wishes", "the scheduler does not get the replicas that it asks for"),
    ("ignores_autoscalers", "replicas of an autoscaler are put back"),
    ("is_ready_before_replicas_join", "a Server is Ready when its pods are"),
    ("does_not_drain", "pods go without moving their models away"),
    // Runtimes.
    ("does_not_hold_runtimes", "a runtime has no finalizer"),
    ("leaves_servers_behind", "a runtime goes before its Servers"),
    ("makes_two_runtimes", "a second runtime makes components, too"),
    ("makes_what_is_disabled", "components that are disabled are made"),
    ("ignores_the_settings_of_the_runtime", "settings are those of the configuration"),
    ("is_ready_without_components", "a runtime is Ready at once"),
    // Configurations, and what is not run yet.
    ("calls_bad_configurations_ready", "a configuration that cannot be used is Ready"),
    ("keeps_what_seldon_held", "a Pipeline that Seldon's operator held cannot be deleted"),
    // Workloads.
    ("does_not_merge_pods", "what a Server says of its pods does not count"),
    ("takes_others_for_its_own", "objects of other owners are taken away"),
    ("keeps_what_nobody_wants", "objects that are not wanted any more stay"),
    ("follows_what_is_not_to_be_followed", "disableAutoUpdate does not count"),
    ("drops_replicas_at_the_hand_over", "a new autoscaler begins with one replica"),
    ("does_not_see_settings_change", "pods are not replaced when what they read changes"),
    ("believes_old_figures", "figures of an older form of a workload count"),
    ("never_tries_what_was_refused", "what was put right stays refused"),
    ("changes_times_without_a_change", "a condition's time changes with every look"),
    // The cluster.
    ("takes_older_objects", "what is older replaces what is newer in the cache"),
    ("keeps_what_a_list_lacks", "what a list does not hold stays in the cache"),
    ("is_deaf_to_deletions", "deletions are not heard of"),
    ("forgets_who_owned_what_is_gone", "the owner of what a list does not hold is not told"),
    ("tells_nobody_of_a_list", "what a list brings is not looked at"),
    ("applies_what_is_there", "what is there is applied again and again"),
    ("does_not_see_drift", "what others change is not put back"),
    ("does_not_see_what_is_taken_out", "fields that are not wanted any more stay"),
    ("takes_what_is_not_its_own", "objects of others are overwritten where a name is needed"),
    ("deletes_whatever_has_the_name", "an object is deleted without asking whether it is the one"),
    ("writes_no_status", "no status is written"),
    ("writes_the_status_of_another", "a status is written to whatever has the name"),
    ("takes_all_finalizers_away", "finalizers of others are taken away"),
    // Controllers and queues.
    ("makes_things_for_the_dead", "objects are made for an owner that is gone"),
    ("writes_what_is_written", "a status is written although it is there"),
    ("overlooks_what_answers_bring", "what the answer to a write says of others' changes is not looked at"),
    ("forgets_what_was_refused", "what the API server refuses is sent again and again"),
    ("never_looks_again", "nothing is looked at after a time"),
    ("misses_what_happens_meanwhile", "what changes while it is looked at is not seen"),
    ("gives_up_after_a_failure", "what failed is not tried again"),
    ("does_not_tell_owners", "the owner of an object that changes is not told"),
    ("does_not_tell_of_configurations", "Servers do not hear of their configuration"),
    ("begins_before_it_has_seen", "things are decided before everything is known"),
    // Schedulers.
    ("tells_nobody_of_a_connection", "nobody looks when a scheduler is met"),
    ("does_not_connect_again", "a scheduler that was lost is not looked for"),
    ("is_deaf_to_the_scheduler", "what a scheduler says of models is not heard"),
    ("is_deaf_to_servers", "what a scheduler says of servers is not heard"),
    ("never_says_that_this_is_all", "a scheduler waits in vain for the Servers"),
    ("takes_refusals_for_silence", "what a scheduler refuses is asked for again"),
    ("believes_what_a_lost_scheduler_said", "what a scheduler said counts when it is gone"),
    ("holds_grudges", "what a scheduler refused stays refused"),
    ("forgets_orphans", "models without an object stay in the scheduler"),
    ("forgets_orphaned_servers", "Servers that went meanwhile stay in the scheduler"),
    // The election.
    ("takes_the_lease_of_the_living", "a lease is taken before its term is over"),
    ("keeps_leading", "a leader that cannot renew goes on"),
    ("writes_without_the_right", "a leader whose right is over writes"),
];

/// Tests that take long.
const SLOW: [&str; 3] = ["faults::", "crash::a_crash_after_any_write", "crash::a_scheduler_that_dies"];

/// The variable that names the mistake to a process.
const VARIABLE: &str = "GANTRY_MUTANT";

/// Makes the mistake that this process was started to make, if it was.
pub(crate) fn choose() {
    if let Ok(name) = std::env::var(VARIABLE) {
        assert!(MUTANTS.iter().any(|(known, _)| *known == name), "there is no mutant {name}");
        gantry_core::mutant::choose(&name);
    }
}

/// How a test ended: `None` when it did not within its time.
fn run(me: &Path, test: &str, mutant: Option<&str>, limit: Duration) -> (Option<bool>, Duration) {
    let begin = Instant::now();
    let mut command = Command::new(me);
    command.args(["--exact", test, "--test-threads=1"]).stdout(Stdio::null()).stderr(Stdio::null());
    match mutant {
        Some(name) => command.env(VARIABLE, name),
        None => command.env_remove(VARIABLE),
    };
    let mut child = command.spawn().unwrap();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return (Some(status.success()), begin.elapsed());
        }
        if begin.elapsed() > limit {
            child.kill().unwrap();
            child.wait().unwrap();
            return (None, begin.elapsed());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Does something for each of many, as many at a time as the machine has room for.
fn each<T: Sync, R: Send>(all: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(one) = all.get(number) else { return };
                    let result = work(one);
                    done.lock().unwrap().insert(number, result);
                }
            });
        }
    });
    done.into_inner().unwrap().into_values().collect()
}

/// The tests of this program, slow or not, the quickest first, with the time that each takes when nothing is wrong.
fn tests(me: &Path, slow: bool) -> Vec<(String, Duration)> {
    let listed = Command::new(me).args(["--list", "--format=terse"]).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let names = listed.lines().filter_map(|line| line.strip_suffix(": test"));
    let is_slow = |name: &str| SLOW.iter().any(|prefix| name.starts_with(prefix));
    let names = names.filter(|n| !n.starts_with("mutants::") && is_slow(n) == slow);
    let names: Vec<String> = names.map(str::to_owned).collect();
    assert!(names.len() > 5, "{names:?}");
    let took = each(&names, |name| run(me, name, None, Duration::from_mins(20)));
    let mut tests = Vec::new();
    for (name, (outcome, time)) in names.into_iter().zip(took) {
        assert_eq!(outcome, Some(true), "{name} fails without any mistake");
        tests.push((name, time));
    }
    tests.sort_by_key(|(_, time)| *time);
    tests
}

/// The first test that finds a mistake. One that does not end in its time has found nothing: the machine may be slow.
fn hunt(me: &Path, tests: &[(String, Duration)], mutant: &str) -> Option<String> {
    let finds = |(test, time): &&(String, Duration)| {
        let outcome = run(me, test, Some(mutant), *time * 10 + Duration::from_mins(1)).0;
        if outcome.is_none() {
            eprintln!("{mutant}: {test} does not end");
        }
        outcome == Some(false)
    };
    tests.iter().find(finds).map(|(test, _)| test.clone())
}

#[test]
fn every_mistake_is_found() {
    let me = std::env::current_exe().unwrap();
    let only = std::env::var("GANTRY_MUTANTS").ok();
    let chosen = |name: &str| only.as_deref().is_none_or(|only| only.split(',').any(|one| one == name));
    let mut left: Vec<&str> = MUTANTS.iter().map(|(name, _)| *name).filter(|name| chosen(name)).collect();
    let (begin, count) = (Instant::now(), left.len());
    let mut found = BTreeMap::new();
    for slow in [false, true] {
        if left.is_empty() {
            break;
        }
        let tests = tests(&me, slow);
        let seconds = begin.elapsed().as_secs_f64();
        eprintln!("{} tests are fine without a mistake after {seconds:.0} s", tests.len());
        let caught = each(&left, |name| {
            let begin = Instant::now();
            let caught = hunt(&me, &tests, name);
            eprintln!("{name}: {caught:?}");
            (caught, begin.elapsed())
        });
        for (name, (caught, time)) in left.iter().zip(caught) {
            if let Some(test) = caught {
                found.insert(*name, (test, time));
            }
        }
        left.retain(|name| !found.contains_key(name));
    }
    println!("| mistake | what it does | found by | seconds |\n|---|---|---|---|");
    for (name, what) in MUTANTS.iter().filter(|(name, _)| chosen(name)) {
        match found.get(name) {
            Some((test, time)) => {
                println!("| `{name}` | {what} | `{test}` | {:.1} |", time.as_secs_f64());
            }
            None => println!("| `{name}` | {what} | **nobody** | |"),
        }
    }
    println!("\n{} of {count} mistakes found in {:.0} s", found.len(), begin.elapsed().as_secs_f64());
    assert!(left.is_empty(), "not found: {left:?}");
}
