//! `cargo xtask image`: a container image, made without a container engine.

mod archive;
mod tar;

use crate::{Failure, metadata};
pub(crate) use archive::{Contents, Image};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

const WORDS: &str = "image takes --dynamic, --debug, --name NAME:TAG and -o FILE";

/// What kind of image is to be made.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// With the dynamic program and its libraries, so that ONNX Runtime can be loaded.
    pub(crate) dynamic: bool,
    /// Compiled as for tests: quickly.
    pub(crate) debug: bool,
    /// The image's name and tag; by default `localhost/gantry` and the version.
    pub(crate) name: Option<String>,
    /// Where it is written; by default `gantry.tar` among cargo's results.
    pub(crate) output: Option<PathBuf>,
}

/// An image that was made.
pub(crate) struct Made {
    pub(crate) file: PathBuf,
    pub(crate) name: String,
    /// The program in it, which runs on this machine too.
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
            other => return Err(format!("image does not know {other}: {WORDS}").into()),
        }
    }
    Ok(options)
}

/// Builds the program, and the image around it; says on standard output what came of it.
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
    let archive = Image { name: &name, entrypoint: "/gantry", contents }.archive()?;
    fs::write(&file, &archive).map_err(|e| format!("{}: {e}", file.display()))?;
    println!(
        "{}\n  {name}, {} MiB, sha256:{}",
        file.display(),
        archive.len() >> 20,
        archive::sha256(&archive)
    );
    Ok(Made { file, name, program })
}

/// Builds `gantry` and says where it is; `GANTRY` names one that is built already.
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
        return Err("gantry does not build".into());
    }
    let lines = String::from_utf8_lossy(&built.stdout);
    let messages = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut programs = messages.filter_map(|m| m.get("executable")?.as_str().map(PathBuf::from));
    programs.next().ok_or_else(|| "cargo built no program called gantry".into())
}

/// A static build has flags of its own, and so a place of its own: nothing else is compiled again because of it.
fn make_static(command: &mut Command) {
    let set = std::env::var("RUSTFLAGS").unwrap_or_default();
    command.env("RUSTFLAGS", format!("{set} -C target-feature=+crt-static").trim());
    // With a target named, build scripts and macros are compiled without these flags, as they have to be.
    command.arg("--target").arg(format!("{}-unknown-linux-gnu", std::env::consts::ARCH));
    command.arg("--target-dir").arg(metadata::target().join("image-static"));
    // An image is not a place for a debugger.
    command.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_PROFILE_DEV_STRIP", "symbols");
}

/// Adds what the program is linked with, under the names by which it asks for it; and ONNX Runtime, when
/// `ORT_DYLIB_PATH` names it, beside the program, where that looks for it.
fn add_libraries(contents: &mut Contents, program: &Path) -> Result<(), Failure> {
    let mut asking = vec![program.to_path_buf()];
    if let Some(runtime) = std::env::var_os("ORT_DYLIB_PATH").filter(|p| !p.is_empty()).map(PathBuf::from) {
        let bytes = fs::read(&runtime).map_err(|e| format!("ORT_DYLIB_PATH: {}: {e}", runtime.display()))?;
        contents.program("libonnxruntime.so", &bytes);
        asking.push(runtime);
    }
    for file in asking {
        let said = Command::new("ldd").arg(&file).output()?;
        if !said.status.success() {
            return Err(format!("ldd does not know the libraries of {}", file.display()).into());
        }
        for library in libraries(&String::from_utf8_lossy(&said.stdout))? {
            contents.program(&library, &fs::read(&library).map_err(|e| format!("{library}: {e}"))?);
        }
    }
    Ok(())
}

/// The files in what `ldd` prints: `name => file (address)`, or `file (address)` for the loader.
fn libraries(said: &str) -> Result<Vec<String>, Failure> {
    let mut found = Vec::new();
    for line in said.lines().map(str::trim) {
        if line.ends_with("=> not found") {
            return Err(format!("this machine lacks a library: {line}").into());
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
    fn the_command_line_is_read() {
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
    fn libraries_are_read_from_ldd() {
        let said = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        assert_eq!(
            libraries(said).unwrap(),
            ["/lib/x86_64-linux-gnu/libm.so.6", "/lib64/ld-linux-x86-64.so.2"]
        );
        assert!(libraries("\tlibstdc++.so.6 => not found\n").is_err());
        assert!(libraries("\tstatically linked\n").unwrap().is_empty());
    }
}
