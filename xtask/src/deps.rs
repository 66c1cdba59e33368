//! `cargo xtask deps`: prints the workspace's dependencies and checks the source rules.

use crate::{Failure, architecture, metadata};

pub(crate) fn run() -> Result<bool, Failure> {
    let packages = metadata::packages()?;
    for package in &packages {
        let tests = package.tests_use.iter().filter(|t| !package.uses.contains(t)).map(|t| format!("({t})"));
        let mut uses: Vec<String> = package.uses.iter().cloned().chain(tests).collect();
        uses.sort();
        println!("{:18} {}", package.name, if uses.is_empty() { "-".into() } else { uses.join(" ") });
    }
    let all = metadata::resolved()?.len();
    println!(
        "\n{} workspace crates, {} external ones; in brackets: tests only",
        packages.len(),
        all - packages.len()
    );
    let problems = architecture::problems()?;
    for problem in &problems {
        println!("{problem}");
    }
    Ok(problems.is_empty())
}
