//! Images of every node: the pod sandbox (pause) and `CoreDNS`.

use super::super::programs::Programs;
use crate::{
    Failure,
    image::{Contents, Image},
    metadata,
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

pub(super) const PAUSE: &str = "localhost/pause:1";
pub(super) const DNS: &str = "localhost/coredns:1";

/// Builds missing archives of both beside the programs.
pub(super) fn ensure(programs: &Programs) -> Result<Vec<PathBuf>, Failure> {
    let place = programs.built().with_file_name("images");
    fs::create_dir_all(&place)?;
    let pause = place.join("pause");
    if !pause.exists() {
        compile_pause(&pause)?;
    }
    let mut archives = Vec::new();
    for (name, program) in [(PAUSE, pause), (DNS, programs.path("coredns"))] {
        let file = program.file_name().map(|f| f.to_string_lossy().into_owned()).unwrap_or_default();
        let archive = place.join(format!("{file}.tar"));
        if !archive.exists() {
            let mut contents = Contents::default();
            contents.program(&file, &fs::read(&program)?);
            replace(
                &archive,
                &Image { name, entrypoint: &[&format!("/{file}")], directory: "/", contents }.archive()?,
            )?;
        }
        archives.push(archive);
    }
    Ok(archives)
}

/// Compiles a static program of one file with rustc alone.
fn compile_pause(program: &Path) -> Result<(), Failure> {
    let unfinished = program.with_extension(format!("{}", std::process::id()));
    let mut command = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    command.args([
        "--edition=2024",
        "-O",
        "-Cpanic=abort",
        "-Cstrip=symbols",
        "-Ctarget-feature=+crt-static",
    ]);
    command.arg("-o").arg(&unfinished).arg(metadata::root().join("xtask/examples/pause.rs"));
    if !command.status()?.success() {
        return Err("the program that holds a pod's namespaces does not compile".into());
    }
    fs::rename(unfinished, program)?;
    Ok(())
}

/// Writes a file atomically.
fn replace(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let unfinished = path.with_extension(format!("{}", std::process::id()));
    fs::write(&unfinished, bytes)?;
    fs::rename(unfinished, path)?;
    Ok(())
}
