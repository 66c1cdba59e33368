//! `cargo xtask image`: builds a container image without a container engine.

mod archive;

use crate::{Failure, metadata};
pub(crate) use archive::{Contents, Image, sha256};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

const USAGE: &str = "image takes --dynamic, --debug, --name NAME:TAG and -o FILE";

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// Dynamic binary with its libraries, so that ONNX Runtime can be loaded.
    pub(crate) dynamic: bool,
    /// Dev profile.
    pub(crate) debug: bool,
    /// Name and tag; defaults to `localhost/gantry` and the version.
    pub(crate) name: Option<String>,
    /// Output file; defaults to `gantry.tar` in the target directory.
    pub(crate) output: Option<PathBuf>,
}

pub(crate) struct Made {
    pub(crate) file: PathBuf,
    pub(crate) name: String,
    /// The binary in it, which also runs on this machine.
    pub(crate) program: PathBuf,
}

pub(crate) fn run(arguments: &[&str]) -> Result<bool, Failure> {
    make(&read(arguments)?)?;
    Ok(true)
}

fn read(arguments: &[&str]) -> Result<Options, Failure> {
    let mut options = Options::default();
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match *word {
            "--dynamic" => options.dynamic = true,
            "--debug" => options.debug = true,
            "--name" => {
                options.name = Some((*words.next().ok_or("--name needs NAME:TAG")?).to_owned());
            }
            "-o" | "--output" => options.output = Some(words.next().ok_or("-o needs a file")?.into()),
            other => return Err(format!("unknown image argument {other}; {USAGE}").into()),
        }
    }
    Ok(options)
}

/// Builds the binary and the image, and prints its name, size and digest.
pub(crate) fn make(options: &Options) -> Result<Made, Failure> {
    let program = build(options)?;
    let mut contents = Contents::default();
    let bytes = fs::read(&program).map_err(|e| format!("{}: {e}", program.display()))?;
    contents.program("gantry", &bytes);
    if options.dynamic {
        add_libraries(&mut contents, &program)?;
    }
    let name =
        options.name.clone().unwrap_or_else(|| format!("localhost/gantry:{}", env!("CARGO_PKG_VERSION")));
    let file = options.output.clone().unwrap_or_else(|| metadata::target().join("gantry.tar"));
    let archive = Image { name: &name, entrypoint: &["/gantry"], directory: "/", contents }.archive()?;
    fs::write(&file, &archive).map_err(|e| format!("{}: {e}", file.display()))?;
    println!(
        "{}\n  {name}, {} MiB, sha256:{}",
        file.display(),
        archive.len() >> 20,
        archive::sha256(&archive)
    );
    Ok(Made { file, name, program })
}

/// Builds `gantry`, or uses the binary named by the environment variable `GANTRY`.
fn build(options: &Options) -> Result<PathBuf, Failure> {
    if let Some(built) = std::env::var_os("GANTRY").filter(|path| !path.is_empty()) {
        return Ok(built.into());
    }
    let mut command = metadata::cargo();
    command.args(["build", "--package", "gantry-cli", "--bin", "gantry"]);
    command.args(["--message-format", "json-render-diagnostics"]);
    if !options.debug {
        command.args(["--profile", "dist", "--locked"]);
    }
    if !options.dynamic {
        make_static(&mut command);
    }
    let built = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    if !built.status.success() {
        return Err("building gantry failed".into());
    }
    let lines = String::from_utf8_lossy(&built.stdout);
    let messages = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut programs = messages.filter_map(|m| m.get("executable")?.as_str().map(PathBuf::from));
    programs.next().ok_or_else(|| "cargo built no program called gantry".into())
}

/// A static build has other flags, so it uses its own target directory.
fn make_static(command: &mut Command) {
    let set = std::env::var("RUSTFLAGS").unwrap_or_default();
    command.env("RUSTFLAGS", format!("{set} -C target-feature=+crt-static").trim());
    // With an explicit target, the flags do not apply to build scripts and proc macros.
    command.arg("--target").arg(format!("{}-unknown-linux-gnu", std::env::consts::ARCH));
    command.arg("--target-dir").arg(metadata::target().join("image-static"));
    command.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_PROFILE_DEV_STRIP", "symbols");
}

/// An environment of Python at its place on this machine: the packages, the interpreter with the standard library, and the
/// shared libraries of all of them.
pub(crate) fn add_python(contents: &mut Contents, programs: &Path) -> Result<(), Failure> {
    let environment = programs.parent().ok_or("no environment")?;
    let python = programs.join("python");
    let output = Command::new(&python)
        .args(["-c", "import sysconfig; print(sysconfig.get_path('stdlib'))"])
        .output()?;
    let library = PathBuf::from(String::from_utf8(output.stdout)?.trim());
    contents.tree(environment, &["pip", "lib64"])?;
    contents.tree(&library, &["site-packages", "dist-packages", "test", "idlelib", "tkinter", "_tkinter"])?;
    let binaries = contents.ending_with(".so").into_iter().chain([python]);
    let output = Command::new("ldd").args(binaries).output()?;
    for found in libraries(&String::from_utf8_lossy(&output.stdout))?.into_iter().map(PathBuf::from) {
        // Packages have libraries of their own.
        if !found.starts_with(environment) && !found.starts_with(&library) {
            contents.tree(&found, &[])?;
        }
    }
    Ok(())
}

/// Adds the shared libraries of the binary; and ONNX Runtime beside the binary, if `ORT_DYLIB_PATH` is set.
pub(crate) fn add_libraries(contents: &mut Contents, program: &Path) -> Result<(), Failure> {
    let mut binaries = vec![program.to_path_buf()];
    if let Some(runtime) = std::env::var_os("ORT_DYLIB_PATH").filter(|p| !p.is_empty()).map(PathBuf::from) {
        let bytes = fs::read(&runtime).map_err(|e| format!("ORT_DYLIB_PATH: {}: {e}", runtime.display()))?;
        contents.program("libonnxruntime.so", &bytes);
        binaries.push(runtime);
    }
    for file in binaries {
        let output = Command::new("ldd").arg(&file).output()?;
        if !output.status.success() {
            return Err(format!("ldd failed for {}", file.display()).into());
        }
        for library in libraries(&String::from_utf8_lossy(&output.stdout))? {
            contents.program(&library, &fs::read(&library).map_err(|e| format!("{library}: {e}"))?);
        }
    }
    Ok(())
}

/// The files in the output of `ldd`: `name => file (address)`, or `file (address)` for the loader.
fn libraries(output: &str) -> Result<Vec<String>, Failure> {
    let mut found = Vec::new();
    for line in output.lines().map(str::trim) {
        if line.ends_with("=> not found") {
            return Err(format!("this machine lacks a library: {line}").into());
        }
        // With several files, each has a heading.
        if line.ends_with(':') {
            continue;
        }
        let file = line.split_once(" => ").map_or(line, |(_, file)| file);
        let file = file.split_once(" (").map_or(file, |(file, _)| file);
        // The kernel's own has no file.
        if file.starts_with('/') {
            found.push(file.to_owned());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_parsed() {
        assert_eq!(read(&[]).unwrap(), Options::default());
        let options = read(&["--dynamic", "-o", "x.tar", "--name", "a:1", "--debug"]).unwrap();
        let expected =
            Options { dynamic: true, debug: true, name: Some("a:1".into()), output: Some("x.tar".into()) };
        assert_eq!(options, expected);
        for wrong in [&["-o"][..], &["--name"], &["--tiny"]] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn ldd_output_is_parsed() {
        let output = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        assert_eq!(
            libraries(output).unwrap(),
            ["/lib/x86_64-linux-gnu/libm.so.6", "/lib64/ld-linux-x86-64.so.2"]
        );
        let of_two = format!("/one.so:\n{output}/two.so:\n\tstatically linked\n");
        assert_eq!(libraries(&of_two).unwrap(), libraries(output).unwrap());
        assert!(libraries("\tlibstdc++.so.6 => not found\n").is_err());
        assert!(libraries("\tstatically linked\n").unwrap().is_empty());
    }
}
