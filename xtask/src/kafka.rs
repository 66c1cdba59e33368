//! `cargo xtask kafka`: pipelines on topics of a real broker, Apache Kafka from Maven Central.

use crate::{Failure, Unavailable, cache, count::Count, metadata, test};
use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

pub(crate) fn run(arguments: &[&str]) -> Result<bool, Failure> {
    let mut long = false;
    let mut filter = Vec::new();
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match *word {
            "--long" => long = true,
            "--" => filter = words.by_ref().map(|w| (*w).to_owned()).collect(),
            other => return Err(format!("kafka does not know {other}: --long, -- FILTER").into()),
        }
    }
    let (count, ended_well) = tests(&filter, long)?;
    println!("\n{count}");
    Ok(ended_well && count.failed == 0)
}

/// Runs the tests of the crate with its client and with the program, and the graphs of the gateway. `long` includes every case of kills.
pub(crate) fn tests(filter: &[String], long: bool) -> Result<(Count, bool), Failure> {
    let libraries = libraries()?;
    let gantry = gantry()?;
    // A filter keeps cargo from building examples.
    let mut examples = metadata::cargo();
    examples.args(["build", "--package", "gantry-kafka", "--features", "failpoints"]);
    examples.args(["--example", "worker", "--example", "replay"]);
    if !examples.status()?.success() {
        return Err("the worker of the tests does not build".into());
    }
    let mut command = metadata::cargo();
    command.args(["test", "--package", "gantry-kafka", "--features", "failpoints", "--no-fail-fast"]);
    command.env("GANTRY_TEST_KAFKA", &libraries).env("GANTRY_TEST_PROGRAM", gantry);
    if long {
        command.env("GANTRY_TEST_KAFKA_LONG", "1");
    }
    command.args(["--", "--nocapture"]).args(filter);
    let (mut count, mut ended_well) = test::cargo_tests(&mut command)?;
    let mut gateway = metadata::cargo();
    gateway.args(["test", "--package", "gantry-gateway", "--features", "kafka", "--test", "it"]);
    gateway.args(["--", "kafka::"]).env("GANTRY_TEST_KAFKA", &libraries);
    let (graphs, graphs_ended_well) = test::cargo_tests(&mut gateway)?;
    count += graphs;
    ended_well &= graphs_ended_well;
    Ok((count, ended_well))
}

/// Builds the program with the feature.
fn gantry() -> Result<PathBuf, Failure> {
    let built =
        metadata::cargo().args(["build", "--package", "gantry-cli", "--features", "kafka"]).status()?;
    if !built.success() {
        return Err("gantry does not build with the feature kafka".into());
    }
    Ok(metadata::target().join("debug/gantry"))
}

/// The jar files of the broker; downloads them once for each version of the list.
pub(crate) fn libraries() -> Result<PathBuf, Failure> {
    let list = metadata::root().join("tests/kafka/pom.xml");
    let text = std::fs::read_to_string(&list).map_err(|e| format!("{}: {e}", list.display()))?;
    let directory = cache::directory()?.join("kafka").join(format!("{:016x}", cache::fingerprint(&text)));
    let complete = directory.join("complete");
    if complete.exists() {
        return Ok(directory);
    }
    let works = |program: &str, argument: &str| {
        let mut command = Command::new(program);
        command.arg(argument).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    if !works("java", "-version") || !works("mvn", "-version") {
        let missing = "it needs java 17 or later and mvn: install a JDK and Maven";
        return Err(Unavailable(missing.into()).into());
    }
    println!("Downloading Apache Kafka into {}", directory.display());
    let mut download = Command::new("mvn");
    download.args(["--quiet", "--batch-mode", "dependency:copy-dependencies", "--file"]).arg(&list);
    download.arg(format!("-DoutputDirectory={}", directory.display()));
    if !download.stdin(Stdio::null()).status()?.success() {
        return Err("mvn cannot download Apache Kafka".into());
    }
    std::fs::write(complete, "")?;
    Ok(directory)
}
