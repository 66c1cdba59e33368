//! Writes the `CustomResourceDefinitions` to a directory, or checks the files there. Run by `cargo xtask crds`.
#![allow(clippy::print_stdout, reason = "a developer tool that prints its result")]

use gantry_api::{crd_yaml, resources};
use std::{collections::BTreeMap, error::Error, fs, path::Path, process::ExitCode};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["--check", folder] => check(Path::new(folder)),
        [folder] => write(Path::new(folder)),
        _ => Err("usage: crds [--check] DIRECTORY".into()),
    }
}

fn expected() -> Result<BTreeMap<String, String>, String> {
    resources().iter().map(|r| Ok((format!("{}.yaml", r.plural), crd_yaml(r)?))).collect()
}

fn present(folder: &Path) -> std::io::Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        found.insert(entry.file_name().to_string_lossy().into_owned(), fs::read_to_string(entry.path())?);
    }
    Ok(found)
}

fn write(folder: &Path) -> Result<ExitCode, Box<dyn Error>> {
    fs::create_dir_all(folder)?;
    let expected = expected()?;
    for file in present(folder)?.keys().filter(|file| !expected.contains_key(*file)) {
        fs::remove_file(folder.join(file))?;
    }
    for (file, text) in &expected {
        fs::write(folder.join(file), text)?;
    }
    let bytes: usize = expected.values().map(String::len).sum();
    println!("{} CRDs in {}, {bytes} bytes", expected.len(), folder.display());
    Ok(ExitCode::SUCCESS)
}

fn check(folder: &Path) -> Result<ExitCode, Box<dyn Error>> {
    let (expected, present) = (expected()?, present(folder)?);
    let mut is_outdated = false;
    for (file, text) in &expected {
        match present.get(file) {
            Some(found) if found == text => {}
            Some(_) => {
                println!("{} is outdated", folder.join(file).display());
                is_outdated = true;
            }
            None => {
                println!("{} is missing", folder.join(file).display());
                is_outdated = true;
            }
        }
    }
    for file in present.keys().filter(|file| !expected.contains_key(*file)) {
        println!("{} belongs to no kind", folder.join(file).display());
        is_outdated = true;
    }
    if is_outdated {
        println!("Run cargo xtask crds.");
    }
    Ok(if is_outdated { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
