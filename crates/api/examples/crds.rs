//! Writes the kinds' `CustomResourceDefinition`s into a directory, or says which of the files there are old.
//!
//! `cargo xtask crds` runs it.
#![allow(clippy::print_stdout, reason = "a tool for developers: what it prints is its result")]

use gantry_api::{crd_yaml, resources};
use std::{collections::BTreeMap, error::Error, fs, path::Path, process::ExitCode};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["--check", folder] => check(Path::new(folder)),
        [folder] => write(Path::new(folder)),
        _ => Err("which directory? crds [--check] DIRECTORY".into()),
    }
}

fn wanted() -> Result<BTreeMap<String, String>, String> {
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
    let wanted = wanted()?;
    for file in present(folder)?.keys().filter(|file| !wanted.contains_key(*file)) {
        fs::remove_file(folder.join(file))?;
    }
    for (file, text) in &wanted {
        fs::write(folder.join(file), text)?;
    }
    let bytes: usize = wanted.values().map(String::len).sum();
    println!("{} definitions in {}, {bytes} bytes", wanted.len(), folder.display());
    Ok(ExitCode::SUCCESS)
}

fn check(folder: &Path) -> Result<ExitCode, Box<dyn Error>> {
    let (wanted, present) = (wanted()?, present(folder)?);
    let mut old = false;
    for (file, text) in &wanted {
        match present.get(file) {
            Some(found) if found == text => {}
            Some(_) => {
                println!("{} is not what the types say", folder.join(file).display());
                old = true;
            }
            None => {
                println!("{} is missing", folder.join(file).display());
                old = true;
            }
        }
    }
    for file in present.keys().filter(|file| !wanted.contains_key(*file)) {
        println!("{} is no kind's", folder.join(file).display());
        old = true;
    }
    if old {
        println!("Run cargo xtask crds.");
    }
    Ok(if old { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
