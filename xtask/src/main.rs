//! Developer tasks: `cargo xtask test | bench | sim | k8s | kafka | image | e2e | crds | dashboard | manifests | deps`.
#![allow(clippy::print_stdout, reason = "a tool for developers: what it prints is its result")]

mod architecture;
mod bench;
mod cache;
mod count;
mod crds;
mod dashboard;
mod debian;
mod deps;
mod e2e;
mod image;
mod k8s;
mod kafka;
mod manifests;
mod metadata;
mod mutants;
mod ports;
mod prose;
mod python;
mod release;
mod sim;
mod test;
mod tools;

use std::{fmt, process::ExitCode};

/// The error of a task, as text for the terminal.
pub(crate) type Failure = Box<dyn std::error::Error>;

/// A task is not possible on this machine: the missing requirement and the remedy.
#[derive(Debug)]
pub(crate) struct Unavailable(pub(crate) String);

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unavailable {}

const USAGE: &str = "\
cargo xtask COMMAND

  test [--no-PART…] [--only-PART] [-- FILTER]
      Runs every test: cargo's, then the operator against a real Kubernetes API server, then real clients
      (tritonclient and others) against the real program, then the dashboard in Chromium, then models of Python libraries
      with the Python package, then pipelines on a real Kafka broker. PART is clients, cluster, browser, python or kafka.
  e2e [--keep] [--long] [NAME…]
      Runs Gantry in pods on two real Kubernetes nodes, kills components under load, and counts failures. Needs root.
      --long: also with controllers of others, built from source once (gateway-api: Envoy Gateway, 15 minutes);
      --keep leaves the cluster running.
  bench [--quick] [--json] [NAME…]
      Compares with MLServer, Envoy, ONNX Runtime, LightGBM, XGBoost and Kafka on this machine.
      NAME is one of: start, memory, iris, fairness, gateway, routes, rollouts, attack, pipelines, kafka, onnx, trees, scheduler, operator, dashboard.
      Builds what it measures for release; GANTRY=PATH names another program.
  sim [--seeds N] [--from S] [--hours H] [--shrink] | --replay SEED|SCENARIO.json [--shrink] | --mutants [NAME…]
      Simulates the control plane under faults: N seeds, each H virtual hours (default 100 and 1).
      --replay prints every event of one run; --shrink removes steps that a failing scenario does not need;
      --mutants compiles known defects into a copy of the workspace and reports which test or seed detects each.
  k8s up [--node] [--kwok N] [--audit] | down | status   [--dir DIRECTORY]
      A real Kubernetes on this machine. --node: with a real node (needs root); --kwok: with N simulated ones;
      --audit: with reads in the audit log, which has every write. Several run beside each other, by --dir.
  k8s path PROGRAM
      Prints the path of a program such as kubectl, helm or kube-score; builds it once.
  kafka [--long] [-- FILTER]
      Runs pipelines on topics of a real Apache Kafka, and kills workers and the broker. --long: at every record of the
      flow. Needs a JDK and Maven.
  image [--dynamic] [--debug] [--name NAME:TAG] [-o FILE]
      Builds a container image without a container engine. --dynamic: with libraries, for ONNX Runtime, which is
      included if ORT_DYLIB_PATH is set; --debug: dev profile. GANTRY=PATH uses a prebuilt binary.
  release [--key FILE] [-o DIRECTORY]
      Builds the artifacts of a release from the commit of this checkout: program, image, chart, manifests, bill of
      materials (CycloneDX), provenance (SLSA) and checksums; signed with the key, if one is named.
  crds [--check]
      Writes the folders deploy/crds* from the types in crates/api, or checks whether they are up to date.
  dashboard [--check]
      Builds crates/dashboard/assets from crates/dashboard/web (needs npm), or checks whether they are up to date.
  manifests [--check | --verify [--kubeconfig FILE]]
      Writes deploy/manifests from the chart (needs helm). --verify: also lint, kube-score, and a server-side dry run
      on a disposable cluster; reports skipped steps.
  deps
      Checks the dependencies between the crates and the source rules, and counts the external crates.
  prose [--list]
      Counts words outside the vocabulary of docs/glossary.md in comments, messages and docs. --list shows each.
  deny
      Checks licences, banned crates and sources of the dependencies, by deny.toml.
  book
      Builds docs/ as an mdBook in target/book, and checks relative links.
  msrv
      Compiles with the oldest supported toolchain, if it is not the active one.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["test", rest @ ..] => test::run(rest),
        ["bench", rest @ ..] => bench::run(rest),
        ["bench-upstream"] => bench::upstream::serve(),
        ["bench-awake"] => Ok(bench::machine::stay_awake()),
        ["release", rest @ ..] => release::run(rest),
        ["sim", rest @ ..] => sim::run(rest),
        ["k8s", rest @ ..] => k8s::run(rest),
        ["k8s-guard", directory] => k8s::guard(directory),
        ["kafka", rest @ ..] => kafka::run(rest),
        ["image", rest @ ..] => image::run(rest),
        ["e2e", rest @ ..] => e2e::run(rest),
        ["crds", rest @ ..] => crds::run(rest),
        ["dashboard", rest @ ..] => dashboard::run(rest),
        ["manifests", rest @ ..] => manifests::run(rest),
        ["deps"] => deps::run(),
        ["prose", rest @ ..] => prose::run(rest),
        ["deny"] => tools::deny(),
        ["book"] => tools::book(),
        ["msrv"] => tools::msrv(),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(true)
        }
        _ => Err(USAGE.into()),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::from(if failure.is::<Unavailable>() { 3 } else { 2 })
        }
    }
}
