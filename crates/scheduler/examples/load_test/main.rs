//! Load test of a scheduler over gRPC.
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
//! The scheduler runs in a separate process, so that its CPU time and memory can be measured. Every run checks the
//! final state of every model.

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
                    let measurement = scenario::burst(&options).await;
                    println!("round {round}: {measurement}");
                }
            }
            "change" => drop(scenario::change(&options).await),
            "restart" => drop(scenario::restart(&options).await),
            "growth" => scenario::growth(&options).await,
            "matrix" => scenario::matrix(&options).await,
            "figures" => scenario::summary(&options).await,
            other => {
                fail(&format!(
                    "{other:?} is not a scenario: use burst, change, restart, growth, matrix or figures"
                ));
            }
        }
    });
}

fn fail(problem: &str) {
    eprintln!("{problem}");
    std::process::exit(2);
}
