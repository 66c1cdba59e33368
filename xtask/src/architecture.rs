//! Allowed crate dependencies and source rules.

use crate::{
    Failure,
    metadata::{self, Package},
};
use std::path::{Path, PathBuf};

/// A crate, its allowed workspace dependencies, additional ones of its tests, and the reason.
type Dependencies = (&'static str, &'static [&'static str], &'static [&'static str], &'static str);

/// Dependencies that are not listed are not allowed.
const ALLOWED: &[Dependencies] = &[
    ("gantry-core", &[], &[], "pure decisions: no transport, no files, no clock"),
    ("gantry-tensor", &[], &[], "tensors and datatypes; no codec, no model"),
    ("gantry-trees", &[], &[], "evaluates trees on rows of numbers; useful without the rest"),
    ("gantry-proto", &["gantry-core"], &[], "the gRPC contracts; used by all services"),
    ("gantry-artifacts", &[], &[], "fetches files; independent of models"),
    ("gantry-tls", &[], &[], "wraps connections; independent of the protocol"),
    (
        "gantry-store",
        &["gantry-tls"],
        &[],
        "stores bytes by key, in a file or in etcd; the scheduler defines their meaning",
    ),
    (
        "gantry-python",
        &["gantry-tensor"],
        &[],
        "recognises files of Python libraries, and runs them in processes; independent of requests and protocols",
    ),
    ("gantry-auth", &[], &[], "credentials and rights of requests; independent of routes and protocols"),
    ("gantry-trace", &["gantry-tls"], &[], "exports spans to a collector, over TLS if configured"),
    (
        "gantry-onnx",
        &["gantry-tensor", "gantry-trees"],
        &[],
        "runs graphs on tensors, tree nodes on our evaluator",
    ),
    (
        "gantry-oip",
        &["gantry-proto", "gantry-tensor"],
        &[],
        "tensors to and from the protocol's REST and gRPC",
    ),
    (
        "gantry-api",
        &["gantry-core", "gantry-proto"],
        &[],
        "manifests, validated and converted for the scheduler",
    ),
    (
        "gantry-scheduler",
        &["gantry-api", "gantry-core", "gantry-proto", "gantry-store", "gantry-tls"],
        &[],
        "one writer around core: names are checked by api, state is kept by store, callers are identified by tls",
    ),
    ("gantry-transport", &["gantry-oip"], &[], "HTTP serving, without routing or models"),
    (
        "gantry-agent",
        &["gantry-artifacts", "gantry-oip", "gantry-proto", "gantry-trace", "gantry-transport"],
        &["gantry-scheduler", "gantry-store"],
        "reaches the scheduler over gRPC only; its tests use a real one; proxies inference requests",
    ),
    (
        "gantry-runtime",
        &[
            "gantry-core",
            "gantry-oip",
            "gantry-onnx",
            "gantry-proto",
            "gantry-python",
            "gantry-tensor",
            "gantry-trace",
            "gantry-transport",
            "gantry-trees",
        ],
        &[],
        "an inference server, independent of its manager",
    ),
    (
        "gantry-kafka",
        &["gantry-core", "gantry-oip", "gantry-proto"],
        &["gantry-tensor"],
        "reads and writes topics; who executes a pipeline is behind a trait",
    ),
    (
        "gantry-gateway",
        &[
            "gantry-auth",
            "gantry-core",
            "gantry-kafka",
            "gantry-oip",
            "gantry-proto",
            "gantry-tensor",
            "gantry-trace",
            "gantry-transport",
        ],
        &["gantry-api"],
        "a request never waits for the control plane: routes arrive over gRPC",
    ),
    ("gantry-kube-sim", &["gantry-api"], &[], "simulates the Kubernetes API server; used by tests only"),
    (
        "gantry-sim",
        &[
            "gantry-agent",
            "gantry-artifacts",
            "gantry-core",
            "gantry-gateway",
            "gantry-proto",
            "gantry-scheduler",
            "gantry-store",
        ],
        &[],
        "simulates the control plane under faults; no other crate depends on it",
    ),
    (
        "gantry-operator",
        &["gantry-api", "gantry-core", "gantry-proto", "gantry-tls"],
        &["gantry-kafka", "gantry-kube-sim", "gantry-scheduler", "gantry-store"],
        "is the adapter to Kubernetes: it reaches the scheduler over gRPC only, and no crate below depends on Kubernetes",
    ),
    (
        "gantry-dashboard",
        &["gantry-api", "gantry-proto"],
        &["gantry-scheduler", "gantry-store"],
        "shows what the scheduler reports over gRPC and what its process measures, behind a trait",
    ),
    (
        "gantry-standalone",
        &[
            "gantry-agent",
            "gantry-api",
            "gantry-artifacts",
            "gantry-auth",
            "gantry-dashboard",
            "gantry-gateway",
            "gantry-oip",
            "gantry-proto",
            "gantry-python",
            "gantry-runtime",
            "gantry-scheduler",
            "gantry-store",
            "gantry-tls",
            "gantry-trace",
            "gantry-transport",
        ],
        &[],
        "composes the parts in one process, without Kubernetes and without the command line",
    ),
    (
        "gantry-cli",
        &[
            "gantry-agent",
            "gantry-api",
            "gantry-artifacts",
            "gantry-auth",
            "gantry-core",
            "gantry-dashboard",
            "gantry-gateway",
            "gantry-oip",
            "gantry-operator",
            "gantry-proto",
            "gantry-python",
            "gantry-runtime",
            "gantry-standalone",
            "gantry-store",
            "gantry-tensor",
            "gantry-tls",
        ],
        &["gantry-scheduler", "gantry-trace"],
        "is the binary; no crate depends on it",
    ),
    ("xtask", &[], &[], "is compiled first and alone, so that nothing is compiled twice"),
];

/// Files that may contain `unsafe`, with the reason.
const UNSAFE: &[(&str, &str)] = &[
    (
        "crates/core/examples/schedule.rs",
        "counts allocations: the trait of a global allocator cannot be implemented without it",
    ),
    (
        "crates/oip/tests/it/allocations.rs",
        "counts allocations: the trait of a global allocator cannot be implemented without it",
    ),
    (
        "crates/sim/src/entropy.rs",
        "takes the place of libc's getrandom: a C function cannot be defined without it",
    ),
];

const MAX_LINES: usize = 800;

/// All violations.
pub(crate) fn problems() -> Result<Vec<String>, Failure> {
    let packages = metadata::packages()?;
    let mut problems = Vec::new();
    for package in &packages {
        problems.extend(check_dependencies(package, ALLOWED));
        problems.extend(check_manifest(package));
        for file in sources(&package.directory)? {
            let text = std::fs::read_to_string(&file)?;
            let shown = file.strip_prefix(metadata::root()).unwrap_or(&file).display().to_string();
            problems.extend(check_file(&shown, &text, UNSAFE));
        }
    }
    Ok(problems)
}

fn check_dependencies(package: &Package, table: &[Dependencies]) -> Vec<String> {
    let name = &package.name;
    let Some((_, uses, tests_use, why)) = table.iter().find(|(crate_name, ..)| crate_name == name) else {
        return vec![format!(
            "{name} is not in the table of xtask/src/architecture.rs: add its allowed dependencies and the reason"
        )];
    };
    let forbidden =
        |used: &&String, extra: &[&str]| !uses.contains(&used.as_str()) && !extra.contains(&used.as_str());
    let of_code = package.uses.iter().filter(|used| forbidden(used, &[]));
    let of_tests = package.tests_use.iter().filter(|used| forbidden(used, tests_use));
    of_code.chain(of_tests).map(|used| format!("{name} must not depend on {used}: it {why}")).collect()
}

fn check_manifest(package: &Package) -> Vec<String> {
    let Package { name, edition, license, manifest, .. } = package;
    let lints = manifest
        .split("\n[")
        .any(|s| s.starts_with("lints]") && s.lines().any(|l| l.trim() == "workspace = true"));
    [
        (license == "Apache-2.0", format!("{name} has license {license:?} and not Apache-2.0")),
        (edition == "2024", format!("{name} has edition {edition} and not 2024")),
        (lints, format!("{name}: Cargo.toml has no [lints] with workspace = true")),
    ]
    .into_iter()
    .filter_map(|(holds, problem)| (!holds).then_some(problem))
    .collect()
}

fn check_file(file: &str, text: &str, may: &[(&str, &str)]) -> Vec<String> {
    let mut problems = Vec::new();
    let lines = text.lines().count();
    if lines > MAX_LINES {
        problems.push(format!("{file} has {lines} lines: split it, the limit is {MAX_LINES}"));
    }
    if may.iter().any(|(path, _)| *path == file) {
        return problems;
    }
    for (number, line) in text.lines().enumerate().filter(|(_, l)| contains_unsafe(l)) {
        let line = line.trim();
        problems.push(format!("{file}:{}: `unsafe` outside the named files: {line}", number + 1));
    }
    problems
}

/// Whether a line of code contains an unsafe item or allows one.
fn contains_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    // Concatenated, so that this file does not match itself.
    let word = concat!("un", "safe");
    let opens =
        ["{", "fn", "impl", "extern", "trait"].iter().any(|next| code.contains(&format!("{word} {next}")));
    let allows = ["allow", "expect"].iter().any(|how| code.contains(&format!("{how}({word}_code")));
    (opens || allows) && !code.contains('"')
}

fn sources(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        if path.is_dir() && name != "target" && name != "node_modules" && !name.starts_with('.') {
            found.extend(sources(&path)?);
        } else if path.extension().is_some_and(|e| e == "rs" || e == "py") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workspace_follows_the_rules() {
        let problems = problems().unwrap();
        assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
    }

    #[test]
    fn table_is_complete_and_acyclic() {
        let names: Vec<&str> = ALLOWED.iter().map(|(name, ..)| *name).collect();
        let found: Vec<String> = metadata::packages().unwrap().into_iter().map(|p| p.name).collect();
        assert!(
            names.iter().all(|n| found.iter().any(|f| f == n)),
            "the table has a crate that does not exist: {found:?}"
        );
        for (position, (name, uses, tests_use, _)) in ALLOWED.iter().enumerate() {
            for used in uses.iter().chain(*tests_use) {
                let earlier = names.iter().position(|n| n == used).unwrap();
                assert!(earlier < position, "{name} uses {used}, which comes after it in the table");
                assert!(*used != "gantry-cli" && *used != "xtask", "no crate may depend on {used}");
            }
        }
    }

    fn package(name: &str, uses: &[&str], tests_use: &[&str], manifest: &str) -> Package {
        let owned = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect();
        Package {
            name: name.into(),
            directory: PathBuf::new(),
            edition: "2024".into(),
            license: "Apache-2.0".into(),
            manifest: manifest.into(),
            uses: owned(uses),
            tests_use: owned(tests_use),
        }
    }

    #[test]
    fn unlisted_dependency_is_reported() {
        for (name, uses, tests_use, message) in [
            ("gantry-core", &["gantry-proto"][..], &[][..], "gantry-core must not depend on gantry-proto"),
            ("gantry-agent", &["gantry-scheduler"], &[], "gantry-agent must not depend on gantry-scheduler"),
            ("gantry-gateway", &[], &["gantry-runtime"], "gantry-gateway must not depend on gantry-runtime"),
            ("gantry-new", &[], &[], "gantry-new is not in the table"),
        ] {
            let found = check_dependencies(&package(name, uses, tests_use, ""), ALLOWED);
            assert!(found.len() == 1 && found[0].starts_with(message), "{found:?}");
        }
        assert!(
            check_dependencies(&package("gantry-agent", &["gantry-proto"], &["gantry-store"], ""), ALLOWED)
                .is_empty()
        );
    }

    #[test]
    fn invalid_manifest_is_reported() {
        let good = "[package]\nname = \"x\"\n\n[lints]\nworkspace = true\n";
        assert!(check_manifest(&package("x", &[], &[], good)).is_empty());
        assert_eq!(check_manifest(&package("x", &[], &[], "[package]\nworkspace = true\n")).len(), 1);
        let other = Package { edition: "2021".into(), license: "MIT".into(), ..package("x", &[], &[], good) };
        assert_eq!(check_manifest(&other).len(), 2);
    }

    #[test]
    fn invalid_file_is_reported() {
        let word = concat!("un", "safe");
        assert!(check_file("a.rs", &format!("// {word} fn is a word\n"), &[]).is_empty());
        for line in [
            format!("{word} {{ x() }}"),
            format!("{word} impl Send for X {{}}"),
            format!("#[allow({word}_code)]"),
        ] {
            assert_eq!(check_file("a.rs", &line, &[]).len(), 1, "{line}");
            assert!(check_file("a.rs", &line, &[("a.rs", "why")]).is_empty());
        }
        assert_eq!(check_file("a.rs", &"x\n".repeat(MAX_LINES + 1), &[]).len(), 1);
        assert!(check_file("a.rs", &"x\n".repeat(MAX_LINES), &[]).is_empty());
    }
}
