//! `cargo xtask release`: the artifacts of a release, with what is in them, how they were built, and signatures.

mod provenance;
mod sbom;
mod signature;

use crate::{Failure, Unavailable, image, k8s, manifests, metadata, python};
use provenance::Source;
use signature::Key;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

const USAGE: &str = "release takes --key FILE and -o DIRECTORY";

#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    /// PEM file with the private key (ECDSA P-256, PKCS #8); without one, nothing is signed.
    key: Option<PathBuf>,
    /// Defaults to `release-artifacts` in the target directory.
    output: Option<PathBuf>,
}

pub(crate) fn run(arguments: &[&str]) -> Result<bool, Failure> {
    let options = read(arguments)?;
    // Before a build of minutes.
    let key = options.key.as_deref().map(Key::read).transpose()?;
    let source = Source::of_checkout(&metadata::root())?;
    let directory = options.output.unwrap_or_else(|| metadata::target().join("release-artifacts"));
    if directory.exists() {
        fs::remove_dir_all(&directory)?;
    }
    fs::create_dir_all(&directory)?;
    build(&directory, &source)?;
    describe(&directory, &source, key.as_ref())?;
    for (name, digest) in checksums(&directory)? {
        println!("{digest}  {name}");
    }
    println!(
        "{}: commit {}, {}",
        directory.display(),
        source.commit,
        if key.is_some() { "signed" } else { "not signed: --key names the private key" }
    );
    Ok(true)
}

fn read(arguments: &[&str]) -> Result<Options, Failure> {
    let mut options = Options::default();
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match *word {
            "--key" => options.key = Some(words.next().ok_or("--key needs a file")?.into()),
            "-o" | "--output" => options.output = Some(words.next().ok_or("-o needs a directory")?.into()),
            other => return Err(format!("unknown release argument {other}; {USAGE}").into()),
        }
    }
    Ok(options)
}

/// Writes the program, the image, the chart, the manifests and the bill of materials.
fn build(directory: &Path, source: &Source) -> Result<(), Failure> {
    let version = env!("CARGO_PKG_VERSION");
    let platform = platform();
    let image_file = directory.join(format!("gantry-{version}-{platform}.image.tar"));
    let made = image::make(&image::Options { output: Some(image_file), ..image::Options::default() })?;
    pack(&made.program, &directory.join(format!("gantry-{version}-{platform}.tar.gz")), source)?;
    wheel(&made.program, directory)?;
    let mut helm = Command::new(k8s::program("helm")?);
    succeed(helm.args(["package", "deploy/chart", "--destination"]).arg(directory))?;
    for entry in fs::read_dir(manifests::directory())? {
        let file = entry?;
        fs::copy(file.path(), directory.join(file.file_name()))?;
    }
    sbom::write(source, &directory.join(format!("gantry-{version}-{platform}.cdx.json")))
}

/// A tarball of the program and its licence; equal contents give equal bytes.
fn pack(program: &Path, file: &Path, source: &Source) -> Result<(), Failure> {
    let content = metadata::target().join("release-content");
    fs::create_dir_all(&content)?;
    fs::copy(program, content.join("gantry"))?;
    fs::copy(metadata::root().join("LICENSE"), content.join("LICENSE"))?;
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mode=go=rX,u+rw"]);
    tar.arg(format!("--mtime=@{}", source.committed)).args(["--use-compress-program", "gzip -n"]);
    succeed(tar.arg("-cf").arg(file).arg("-C").arg(&content).args(["gantry", "LICENSE"]))
}

/// The Python package with the program, which is static: it runs on every Linux of its architecture.
fn wheel(program: &Path, directory: &Path) -> Result<(), Failure> {
    let missing = "a release needs Python 3.10 to 3.14 with venv and pip; GANTRY_PYTHON can name one";
    let python = python::find((3, 10), (3, 14)).ok_or_else(|| Unavailable(missing.into()))?;
    let sources = metadata::root().join("python");
    let programs = python::environment(&python, &sources.join("build-requirements.txt"))?;
    let architecture = std::env::consts::ARCH;
    let mut hatchling = Command::new(programs.join("hatchling"));
    hatchling.args(["build", "-t", "wheel", "-d"]).arg(directory);
    hatchling.env("GANTRY_BINARY", program);
    hatchling
        .env("GANTRY_WHEEL_PLATFORM", format!("manylinux_2_17_{architecture}.musllinux_1_1_{architecture}"));
    succeed_in(&sources, &mut hatchling)
}

/// Writes the checksums, the provenance and, with a key, the signature of each.
fn describe(directory: &Path, source: &Source, key: Option<&Key>) -> Result<(), Failure> {
    let artifacts = checksums(directory)?;
    let statement = provenance::statement(&artifacts, source);
    let envelope = key.map_or_else(|| Ok(statement.clone()), |key| key.envelope(&statement))?;
    fs::write(directory.join(format!("provenance-{}.intoto.json", platform())), format!("{envelope}\n"))?;
    let lines: Vec<String> =
        checksums(directory)?.into_iter().map(|(name, digest)| format!("{digest}  {name}\n")).collect();
    let lines = lines.concat();
    // Releases for several platforms are published together.
    let name = format!("SHA256SUMS-{}", platform());
    fs::write(directory.join(&name), &lines)?;
    if let Some(key) = key {
        fs::write(directory.join(format!("{name}.sig")), key.sign(lines.as_bytes())? + "\n")?;
    }
    Ok(())
}

/// What the artifacts of this machine run on.
fn platform() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

/// Names and SHA-256 digests of the files in a directory, by name.
fn checksums(directory: &Path) -> Result<Vec<(String, String)>, Failure> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let file = entry?;
        let digest = image::sha256(&fs::read(file.path())?);
        found.push((file.file_name().to_string_lossy().into_owned(), digest));
    }
    found.sort();
    Ok(found)
}

fn succeed(command: &mut Command) -> Result<(), Failure> {
    succeed_in(&metadata::root(), command)
}

fn succeed_in(directory: &Path, command: &mut Command) -> Result<(), Failure> {
    command.current_dir(directory);
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status();
    let status = status.map_err(|e| format!("{}: {e}", command.get_program().display()))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?} ended with {status}").into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};

    #[test]
    fn arguments_are_parsed() {
        assert_eq!(read(&[]).unwrap(), Options::default());
        let expected = Options { key: Some("k.pem".into()), output: Some("out".into()) };
        assert_eq!(read(&["-o", "out", "--key", "k.pem"]).unwrap(), expected);
        for wrong in [&["--key"][..], &["-o"], &["--sign"]] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }

    /// The commands that RELEASING.md gives to users, on the files of a release.
    #[test]
    fn signed_checksums_and_provenance_are_verified_by_openssl() {
        if Command::new("openssl").arg("version").output().is_err() {
            eprintln!("NOT TESTED: verification with openssl: there is no openssl");
            return;
        }
        let directory = std::env::temp_dir().join(format!("gantry-release-{}", std::process::id()));
        let artifacts = directory.join("artifacts");
        fs::create_dir_all(&artifacts).unwrap();
        fs::write(artifacts.join("gantry.tar.gz"), "the program").unwrap();
        let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        fs::write(directory.join("key.pem"), pair.serialize_pem()).unwrap();
        fs::write(directory.join("public.pem"), pair.public_key_pem()).unwrap();
        let source = Source::of_checkout_for_tests();
        let key = Key::read(&directory.join("key.pem")).unwrap();
        describe(&artifacts, &source, Some(&key)).unwrap();

        let sums = format!("SHA256SUMS-{}", platform());
        let script = "set -e
            base64 -d $1.sig > ../sums.der
            openssl dgst -sha256 -verify ../public.pem -signature ../sums.der $1
            sha256sum --check --strict $1";
        let verify = || {
            let mut bash = Command::new("bash");
            bash.args(["-c", script, "verify", &sums]).current_dir(&artifacts);
            bash.output().unwrap().status.success()
        };
        assert!(verify());
        fs::write(artifacts.join("gantry.tar.gz"), "another program").unwrap();
        assert!(!verify(), "a changed artifact is found");
        fs::write(artifacts.join("gantry.tar.gz"), "the program").unwrap();
        let lines = fs::read_to_string(artifacts.join(&sums)).unwrap();
        fs::write(artifacts.join(&sums), lines.replace("provenance", "provenancE")).unwrap();
        assert!(!verify(), "changed checksums are found");
        fs::remove_dir_all(&directory).unwrap();
    }
}
