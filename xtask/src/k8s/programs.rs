//! Kubernetes binaries: from `KUBEBUILDER_ASSETS`, or built once into the cache, through the environment's Go module
//! proxy.

use crate::{Failure, Unavailable, cache, metadata};
use serde_json::Value;
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Control plane binaries and clients.
pub(crate) const CONTROL_PLANE: &[&str] =
    &["etcd", "kube-apiserver", "kubectl", "kube-controller-manager", "kube-scheduler"];
/// Binaries of a real node besides the system's containerd.
pub(crate) const NODE: &[&str] = &["kubelet", "kube-proxy", "coredns"];
pub(crate) const KWOK: &str = "kwok";

/// Minimum Go version for `tests/k8s/go.mod`.
const MIN_GO: (u32, u32) = (1, 26);

#[derive(Clone, Copy)]
enum Source {
    /// A module at or below `tests/k8s`, with pinned versions, and the package to build.
    Module(&'static str, &'static str),
    /// A standalone module and its version.
    Published(&'static str, &'static str),
}

const KWOK_MODULE: &str = "sigs.k8s.io/kwok";
const KWOK_VERSION: &str = "v0.8.0";

const SOURCES: &[(&str, Source)] = &[
    ("etcd", Source::Module(".", "go.etcd.io/etcd/server/v3")),
    ("kube-apiserver", Source::Module(".", "k8s.io/kubernetes/cmd/kube-apiserver")),
    ("kubectl", Source::Module(".", "k8s.io/kubernetes/cmd/kubectl")),
    ("kube-controller-manager", Source::Module(".", "k8s.io/kubernetes/cmd/kube-controller-manager")),
    ("kube-scheduler", Source::Module(".", "k8s.io/kubernetes/cmd/kube-scheduler")),
    ("kubelet", Source::Module(".", "k8s.io/kubernetes/cmd/kubelet")),
    ("kube-proxy", Source::Module(".", "k8s.io/kubernetes/cmd/kube-proxy")),
    ("kwok", Source::Published("sigs.k8s.io/kwok/cmd/kwok", KWOK_VERSION)),
    ("coredns", Source::Module("dns", ".")),
    ("helm", Source::Published("helm.sh/helm/v3/cmd/helm", "v3.21.4")),
    ("kube-score", Source::Published("github.com/zegl/kube-score/cmd/kube-score", "v1.20.0")),
];

#[derive(Clone, Debug)]
pub(crate) struct Programs {
    assets: Option<PathBuf>,
    built: PathBuf,
    /// Of Kubernetes, such as `v1.36.3`.
    version: String,
}

impl Programs {
    /// Locates the directories; builds nothing.
    pub(crate) fn locate() -> Result<Self, Failure> {
        let read = |name: &str| {
            let file = module().join(name);
            fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))
        };
        let wanted = read("go.mod")?;
        let version = version(&wanted).ok_or("tests/k8s/go.mod does not require k8s.io/kubernetes")?;
        // The directory depends on all inputs of the build.
        let mut described = wanted + &read("go.sum")?;
        for file in ["dns/go.mod", "dns/go.sum", "dns/main.go"] {
            described += &read(file)?;
        }
        for (name, source) in SOURCES {
            if let Source::Published(_, version) = source {
                described += &format!("{name} {version}\n");
            }
        }
        let key = cache::fingerprint(&described);
        let built = cache::directory()?.join(format!("k8s-{version}-{key:016x}")).join("bin");
        let assets = std::env::var_os("KUBEBUILDER_ASSETS").filter(|v| !v.is_empty()).map(PathBuf::from);
        Ok(Self { assets, built, version })
    }

    pub(crate) fn built(&self) -> &Path {
        &self.built
    }

    /// The path of a program, whether built or not.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        let asset = self.assets.as_ref().map(|a| a.join(name)).filter(|p| p.is_file());
        asset.unwrap_or_else(|| self.built.join(name))
    }

    /// kwok's default stages, from its module.
    pub(crate) fn kwok_stages(&self) -> PathBuf {
        self.built.with_file_name("kwok-stages.yaml")
    }

    /// Builds missing programs.
    pub(crate) fn ensure(&self, names: &[&str]) -> Result<(), Failure> {
        for name in names {
            source(name)?;
        }
        if self.missing(names).is_empty() {
            return Ok(());
        }
        let go = go(&self.missing(names), self.assets.as_deref())?;
        fs::create_dir_all(&self.built)?;
        // A concurrent run waits and then finds the programs.
        let lock = File::create(self.built.with_file_name("lock"))?;
        lock.lock()?;
        let missing = self.missing(names);
        for (position, name) in missing.iter().enumerate() {
            eprintln!(
                "Building {name} into {} (once; {} of {})",
                self.built.display(),
                position + 1,
                missing.len()
            );
            self.build(&go, name)?;
        }
        Ok(())
    }

    fn missing<'a>(&self, names: &[&'a str]) -> Vec<&'a str> {
        let there = |name: &str| self.path(name).is_file() && (name != KWOK || self.kwok_stages().is_file());
        names.iter().copied().filter(|name| !there(name)).collect()
    }

    fn build(&self, go: &Path, name: &str) -> Result<(), Failure> {
        let source = source(name)?;
        // A concurrent run waits and then finds the program.
        let lock = File::create(self.built.join(format!(".{name}.lock")))?;
        lock.lock()?;
        if self.missing(&[name]).is_empty() {
            return Ok(());
        }
        // Built under a temporary name, then renamed.
        let unfinished = self.built.join(format!(".{name}.unfinished"));
        match source {
            Source::Module(place, package) => {
                let stamp = stamp(&self.version);
                let mut command = go_command(go);
                command.current_dir(module().join(place)).args([
                    "build",
                    "-trimpath",
                    "-ldflags",
                    &stamp,
                    "-o",
                ]);
                succeed(command.arg(&unfinished).arg(package))?;
            }
            Source::Published(package, version) => {
                install(go, package, version, &unfinished)?;
                if name == KWOK {
                    self.write_kwok_stages(go)?;
                }
            }
        }
        fs::rename(&unfinished, self.built.join(name))?;
        Ok(())
    }

    fn write_kwok_stages(&self, go: &Path) -> Result<(), Failure> {
        let stages = module_files(go, KWOK_MODULE, KWOK_VERSION)?.join("kustomize/stage");
        let mut files = vec![
            stages.join("node/fast/node-initialize.yaml"),
            stages.join("node/heartbeat-with-lease/node-heartbeat-with-lease.yaml"),
        ];
        let mut of_pods = Vec::new();
        for entry in fs::read_dir(stages.join("pod/fast"))? {
            of_pods.push(entry?.path());
        }
        let is_stage = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("pod-") && name.ends_with(".yaml")
        };
        of_pods.retain(is_stage);
        of_pods.sort();
        files.extend(of_pods);
        let mut text = String::new();
        for file in files {
            text.push_str("---\n");
            text.push_str(&fs::read_to_string(file)?);
        }
        fs::write(self.kwok_stages(), text)?;
        Ok(())
    }
}

/// A program of others with the files of its module, such as its chart: built once into the cache.
#[derive(Clone, Copy)]
pub(crate) struct Peer {
    pub(crate) module: &'static str,
    /// The program in the module, such as `cmd/controller`.
    pub(crate) package: &'static str,
    pub(crate) version: &'static str,
    /// The directory in `xtask/peers` with the go.mod that pins it, for modules with replacements, which `go install`
    /// refuses.
    pub(crate) pinned: Option<&'static str>,
}

pub(crate) struct BuiltPeer {
    pub(crate) program: PathBuf,
    /// The module's files, read-only.
    pub(crate) files: PathBuf,
}

impl Peer {
    pub(crate) fn ensure(&self) -> Result<BuiltPeer, Failure> {
        let name = self.package.rsplit('/').next().unwrap_or_default();
        let go = go(&[name], None)?;
        let directory = cache::directory()?.join("peers");
        fs::create_dir_all(&directory)?;
        let program = directory.join(format!("{name}-{}", self.version));
        // A concurrent run waits and then finds the program.
        let lock = File::create(program.with_added_extension("lock"))?;
        lock.lock()?;
        if !program.is_file() {
            eprintln!("Building {} (once)", program.display());
            let unfinished = program.with_added_extension("unfinished");
            let package = format!("{}/{}", self.module, self.package);
            if let Some(pinned) = self.pinned {
                let mut command = go_command(&go);
                command.current_dir(metadata::root().join("xtask/peers").join(pinned));
                command.args(["build", "-mod=readonly", "-trimpath", "-ldflags", "-s -w", "-o"]);
                succeed(command.arg(&unfinished).arg(package))?;
            } else {
                install(&go, &package, self.version, &unfinished)?;
            }
            fs::rename(&unfinished, &program)?;
        }
        Ok(BuiltPeer { program, files: module_files(&go, self.module, self.version)? })
    }
}

/// `go install` of a package into a file.
fn install(go: &Path, package: &str, version: &str, file: &Path) -> Result<(), Failure> {
    let name = package.rsplit('/').next().unwrap_or_default();
    // `go install` chooses the file name, so it gets its own directory.
    let directory = file.with_added_extension("install");
    fs::create_dir_all(&directory)?;
    let mut command = go_command(go);
    command.env("GOBIN", &directory).current_dir(&directory);
    command.args(["install", "-trimpath", "-ldflags", "-s -w"]);
    succeed(command.arg(format!("{package}@{version}")))?;
    fs::rename(directory.join(name), file)?;
    Ok(fs::remove_dir(&directory)?)
}

/// The directory of a published module's files.
fn module_files(go: &Path, module: &str, version: &str) -> Result<PathBuf, Failure> {
    let mut command = Command::new(go);
    // Outside of any module.
    command.current_dir(cache::directory()?).args(["mod", "download", "-json"]);
    let output = command.arg(format!("{module}@{version}")).stdin(Stdio::null()).output()?;
    let output: Value = serde_json::from_slice(&output.stdout)?;
    let directory = output.get("Dir").and_then(Value::as_str);
    Ok(directory.ok_or_else(|| format!("go mod download has no directory of {module}"))?.into())
}

fn go_command(go: &Path) -> Command {
    let mut command = Command::new(go);
    command.env("CGO_ENABLED", "0").stdin(Stdio::null()).stdout(Stdio::null());
    command
}

fn source(name: &str) -> Result<Source, Failure> {
    let found = SOURCES.iter().find(|(known, _)| *known == name).map(|(_, source)| *source);
    found.ok_or_else(|| {
        let known: Vec<&str> = SOURCES.iter().map(|(known, _)| *known).collect();
        format!("{name} is not a program that is built here; these are: {}", known.join(", ")).into()
    })
}

/// The Go module with the pinned versions.
fn module() -> PathBuf {
    metadata::root().join("tests/k8s")
}

/// The Kubernetes version in a go.mod.
fn version(text: &str) -> Option<String> {
    let mut lines = text.lines().map(|line| line.trim().trim_start_matches("require "));
    lines.find_map(|l| l.strip_prefix("k8s.io/kubernetes "))?.split_whitespace().next().map(str::to_owned)
}

/// Linker flags: no symbols, and the version, without which clients see 0.0.0.
fn stamp(version: &str) -> String {
    let at = "k8s.io/component-base/version";
    let mut numbers = version.trim_start_matches('v').split('.');
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    format!("-s -w -X {at}.gitVersion={version} -X {at}.gitMajor={major} -X {at}.gitMinor={minor}")
}

/// The Go binary, or the remedy.
fn go(missing: &[&str], assets: Option<&Path>) -> Result<PathBuf, Failure> {
    let oldest = format!("Go ≥ {}.{}", MIN_GO.0, MIN_GO.1);
    let remedy = match assets {
        Some(assets) => {
            format!("{} has no {}: put it there or install {oldest}", assets.display(), missing.join(", "))
        }
        None => format!("install {oldest} or set KUBEBUILDER_ASSETS"),
    };
    let output =
        Command::new("go").args(["env", "GOVERSION"]).stdin(Stdio::null()).stderr(Stdio::null()).output();
    let output = output.ok().filter(|o| o.status.success());
    let Some(output) = output else { return Err(Unavailable(remedy).into()) };
    let output = String::from_utf8_lossy(&output.stdout);
    if go_version(&output).is_some_and(|found| found >= MIN_GO) {
        return Ok("go".into());
    }
    Err(Unavailable(format!("{remedy} (this one is {})", output.trim())).into())
}

/// Major and minor of a version such as `go1.26.8`.
fn go_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.trim().strip_prefix("go")?.split(['.', 'r', 'b', ' ']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn succeed(command: &mut Command) -> Result<(), Failure> {
    let status = command.status()?;
    if status.success() { Ok(()) } else { Err(format!("{command:?} failed with {status}").into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubernetes_version_is_read_from_go_mod() {
        let text =
            "require (\n\tk8s.io/kubectl v0.36.3 // indirect\n\tk8s.io/kubernetes v1.36.3 // indirect\n)";
        assert_eq!(version(text).as_deref(), Some("v1.36.3"));
        assert_eq!(version("require k8s.io/kubernetes v1.37.0\n").as_deref(), Some("v1.37.0"));
        assert_eq!(version("replace k8s.io/api => k8s.io/api v0.36.3"), None);
    }

    #[test]
    fn linker_flags_have_the_version() {
        let stamp = stamp("v1.36.3");
        for part in ["gitVersion=v1.36.3", "gitMajor=1", "gitMinor=36"] {
            assert!(stamp.contains(part), "{stamp}");
        }
    }

    #[test]
    fn go_versions_are_parsed() {
        for (text, version) in [
            ("go1.26.8\n", Some((1, 26))),
            ("go1.27rc1", Some((1, 27))),
            ("go1.9", Some((1, 9))),
            ("devel +abc", None),
            ("", None),
        ] {
            assert_eq!(go_version(text), version, "{text}");
        }
        assert!((1, 9) < MIN_GO);
    }

    #[test]
    fn every_program_has_a_source() {
        for name in CONTROL_PLANE.iter().chain(NODE).chain([&KWOK]) {
            assert!(source(name).is_ok(), "{name}");
        }
        assert!(source("../go").is_err_and(|failure| failure.to_string().contains("kube-apiserver")));
    }
}
