//! Writes the `CustomResourceDefinitions` to the folders of a directory, or checks the files there. Run by `cargo xtask crds`.
#![allow(clippy::print_stdout, reason = "a developer tool that prints its result")]

use gantry_api::{crd_yaml, resources};
use std::{collections::BTreeMap, error::Error, fs, path::Path, process::ExitCode};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["--check", deploy] => check(Path::new(deploy)),
        [deploy] => write(Path::new(deploy)),
        _ => Err("usage: crds [--check] DIRECTORY".into()),
    }
}

/// Files of each folder.
fn expected() -> Result<BTreeMap<&'static str, BTreeMap<String, String>>, String> {
    let mut folders: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
    for resource in resources() {
        let files = folders.entry(resource.folder()).or_default();
        files.insert(format!("{}.yaml", resource.plural), crd_yaml(&resource)?);
    }
    Ok(folders)
}

fn present(folder: &Path) -> std::io::Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        found.insert(entry.file_name().to_string_lossy().into_owned(), fs::read_to_string(entry.path())?);
    }
    Ok(found)
}

fn write(deploy: &Path) -> Result<ExitCode, Box<dyn Error>> {
    for (folder, expected) in expected()? {
        let folder = deploy.join(folder);
        fs::create_dir_all(&folder)?;
        for file in present(&folder)?.keys().filter(|file| !expected.contains_key(*file)) {
            fs::remove_file(folder.join(file))?;
        }
        for (file, text) in &expected {
            fs::write(folder.join(file), text)?;
        }
        let bytes: usize = expected.values().map(String::len).sum();
        println!("{} CRDs in {}, {bytes} bytes", expected.len(), folder.display());
    }
    Ok(ExitCode::SUCCESS)
}

fn check(deploy: &Path) -> Result<ExitCode, Box<dyn Error>> {
    let mut is_outdated = false;
    for (folder, expected) in expected()? {
        let folder = deploy.join(folder);
        let present = present(&folder)?;
        let mut report = |file: &String, problem: &str| {
            println!("{} {problem}", folder.join(file).display());
            is_outdated = true;
        };
        for (file, text) in &expected {
            match present.get(file) {
                Some(found) if found == text => {}
                Some(_) => report(file, "is outdated"),
                None => report(file, "is missing"),
            }
        }
        for file in present.keys().filter(|file| !expected.contains_key(*file)) {
            report(file, "belongs to no kind");
        }
    }
    if is_outdated {
        println!("Run cargo xtask crds.");
    }
    Ok(if is_outdated { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
