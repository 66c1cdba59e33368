//! Drives a scheduler over gRPC as hard as it can, and says how it did.
//!
//! ```sh
//! cargo run --release -p gantry-scheduler --example load_test -- burst --models 10000 --in-flight 64
//! cargo run --release -p gantry-scheduler --example load_test -- burst --agent none --subscriber slow --subscriber never
//! cargo run --release -p gantry-scheduler --example load_test -- change --models 10000 --changes 500
//! cargo run --release -p gantry-scheduler --example load_test -- restart --models 10000
//! cargo run --release -p gantry-scheduler --example load_test -- growth
//! cargo run --release -p gantry-scheduler --example load_test -- matrix --models 10000 --rounds 10
//! cargo run --release -p gantry-scheduler --example load_test -- figures
//! ```
//!
//! The scheduler is a process of its own, so that its time and memory can be told from the driver's. Every run ends
//! with a look at every model: a run whose end is not the truth fails.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::missing_panics_doc,
    reason = "a driver that cannot go on has nothing to save"
)]

mod agent;
mod gateway;
mod options;
mod process;
mod scenario;
mod watch;

use options::Options;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let command = arguments.next().unwrap_or_default();
    let rest: Vec<String> = arguments.collect();
    if command == "serve" {
        return process::serve(&rest);
    }
    let options = match Options::parse(&rest) {
        Ok(options) => options,
        Err(problem) => return fail(&problem),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        match command.as_str() {
            "burst" => {
                for round in 1..=options.rounds {
                    let figures = scenario::burst(&options).await;
                    println!("round {round}: {figures}");
                }
            }
            "change" => drop(scenario::change(&options).await),
            "restart" => drop(scenario::restart(&options).await),
            "growth" => scenario::growth(&options).await,
            "matrix" => scenario::matrix(&options).await,
            "figures" => scenario::figures(&options).await,
            other => {
                fail(&format!(
                    "{other:?} is not a scenario: say burst, change, restart, growth, matrix or figures"
                ));
            }
        }
    });
}

fn fail(problem: &str) {
    eprintln!("{problem}");
    std::process::exit(2);
}
