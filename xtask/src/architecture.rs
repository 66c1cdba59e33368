//! The shape of the house: which crate may know which, and the rules that hold in every room.

use crate::{
    Failure,
    metadata::{self, Package},
};
use std::path::{Path, PathBuf};

/// A crate, the crates of ours that it may use, those that its tests may use besides, and why.
type Arrow = (&'static str, &'static [&'static str], &'static [&'static str], &'static str);

/// Everything that is not here is not allowed.
const ARROWS: &[Arrow] = &[
    ("gantry-core", &[], &[], "pure decisions: no transport, no files, no clock"),
    ("gantry-tensor", &[], &[], "tensors and datatypes; no codec, no model"),
    ("gantry-trees", &[], &[], "evaluates trees on rows of numbers; useful without the rest"),
    ("gantry-proto", &[], &[], "the contracts stand before everybody who speaks them"),
    ("gantry-store", &[], &[], "keeps bytes under keys; what they mean is the scheduler's"),
    ("gantry-artifacts", &[], &[], "fetches files; it does not know what a model is"),
    ("gantry-tls", &[], &[], "wraps connections; it does not know what is said over them"),
    ("gantry-trace", &["gantry-tls"], &[], "tells a collector how long things took, over TLS where it must"),
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
        "what people write, turned into what the scheduler takes",
    ),
    (
        "gantry-scheduler",
        &["gantry-api", "gantry-core", "gantry-proto", "gantry-store"],
        &[],
        "one writer around core: names are checked by api, state is kept by store",
    ),
    (
        "gantry-agent",
        &["gantry-artifacts", "gantry-oip", "gantry-proto", "gantry-trace"],
        &["gantry-scheduler", "gantry-store"],
        "reaches the scheduler over gRPC only; its tests have a real one; passes the protocol's requests on",
    ),
    (
        "gantry-runtime",
        &[
            "gantry-core",
            "gantry-oip",
            "gantry-onnx",
            "gantry-proto",
            "gantry-tensor",
            "gantry-trace",
            "gantry-trees",
        ],
        &[],
        "an inference server like any other: it does not know who manages it",
    ),
    (
        "gantry-gateway",
        &["gantry-core", "gantry-oip", "gantry-proto", "gantry-trace"],
        &["gantry-tensor"],
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
        &["gantry-kube-sim", "gantry-scheduler", "gantry-store"],
        "is the adapter to Kubernetes: it reaches the scheduler over gRPC only, and nothing below it knows the cluster",
    ),
    (
        "gantry-standalone",
        &[
            "gantry-agent",
            "gantry-api",
            "gantry-artifacts",
            "gantry-gateway",
            "gantry-oip",
            "gantry-proto",
            "gantry-runtime",
            "gantry-scheduler",
            "gantry-store",
            "gantry-tls",
            "gantry-trace",
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
            "gantry-gateway",
            "gantry-oip",
            "gantry-operator",
            "gantry-proto",
            "gantry-runtime",
            "gantry-standalone",
            "gantry-store",
            "gantry-tls",
        ],
        &["gantry-scheduler", "gantry-trace"],
        "is the binary; no crate depends on it",
    ),
    ("xtask", &[], &[], "is compiled first and alone, so that nothing is compiled twice"),
];

/// Files that may contain `unsafe`, and why.
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

/// Dependencies that would need more than a Rust toolchain, or a second TLS stack.
const FORBIDDEN: &[&str] = &[
    "aws-lc-rs",
    "aws-lc-sys",
    "bindgen",
    "clang-sys",
    "cmake",
    "libz-sys",
    "native-tls",
    "openssl",
    "openssl-sys",
    "protobuf-src",
    "protoc-bin-vendored",
    "protoc",
    "zstd-sys",
];

const LONGEST: usize = 800;

/// Everything that breaks a rule, one sentence each.
pub(crate) fn problems() -> Result<Vec<String>, Failure> {
    let packages = metadata::packages()?;
    let mut problems = Vec::new();
    for package in &packages {
        problems.extend(arrows(package, ARROWS));
        problems.extend(manners(package));
        for file in sources(&package.directory)? {
            let text = std::fs::read_to_string(&file)?;
            let shown = file.strip_prefix(metadata::root()).unwrap_or(&file).display().to_string();
            problems.extend(rules_of_files(&shown, &text, UNSAFE));
        }
    }
    let resolved = metadata::resolved()?;
    problems.extend(
        FORBIDDEN
            .iter()
            .filter(|name| resolved.iter().any(|r| r == *name))
            .map(|name| format!("{name} is in the dependency graph: it needs more than a Rust toolchain")),
    );
    Ok(problems)
}

fn arrows(package: &Package, table: &[Arrow]) -> Vec<String> {
    let name = &package.name;
    let Some((_, uses, tests_use, why)) = table.iter().find(|(crate_name, ..)| crate_name == name) else {
        return vec![format!(
            "{name} is not in the table of xtask/src/architecture.rs: say there what it may use, and why"
        )];
    };
    let wrong =
        |used: &&String, extra: &[&str]| !uses.contains(&used.as_str()) && !extra.contains(&used.as_str());
    let of_code = package.uses.iter().filter(|used| wrong(used, &[]));
    let of_tests = package.tests_use.iter().filter(|used| wrong(used, tests_use));
    of_code.chain(of_tests).map(|used| format!("{name} must not depend on {used}: it {why}")).collect()
}

fn manners(package: &Package) -> Vec<String> {
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

fn rules_of_files(file: &str, text: &str, may: &[(&str, &str)]) -> Vec<String> {
    let mut problems = Vec::new();
    let lines = text.lines().count();
    if lines > LONGEST {
        problems.push(format!("{file} has {lines} lines: over {LONGEST} it is two subjects"));
    }
    if may.iter().any(|(path, _)| *path == file) {
        return problems;
    }
    for (number, line) in text.lines().enumerate().filter(|(_, l)| says_unsafe(l)) {
        let line = line.trim();
        problems.push(format!("{file}:{}: `unsafe` outside the named files: {line}", number + 1));
    }
    problems
}

/// Whether a line of code opens something unsafe, or allows to.
fn says_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    // Put together here, so that this file does not name itself.
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
        if path.is_dir() && name != "target" && !name.starts_with('.') {
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
    fn the_house_keeps_its_rules() {
        let problems = problems().unwrap();
        assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
    }

    #[test]
    fn the_table_names_every_crate_once_and_points_one_way() {
        let names: Vec<&str> = ARROWS.iter().map(|(name, ..)| *name).collect();
        let found: Vec<String> = metadata::packages().unwrap().into_iter().map(|p| p.name).collect();
        assert!(
            names.iter().all(|n| found.iter().any(|f| f == n)),
            "a crate of the table is gone: {found:?}"
        );
        for (position, (name, uses, tests_use, _)) in ARROWS.iter().enumerate() {
            for used in uses.iter().chain(*tests_use) {
                let earlier = names.iter().position(|n| n == used).unwrap();
                assert!(earlier < position, "{name} uses {used}, which comes after it: an arrow points back");
                assert!(*used != "gantry-cli" && *used != "xtask", "nobody depends on {used}");
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
    fn an_arrow_that_is_not_in_the_table_is_found() {
        for (name, uses, tests_use, says) in [
            ("gantry-core", &["gantry-proto"][..], &[][..], "gantry-core must not depend on gantry-proto"),
            ("gantry-agent", &["gantry-scheduler"], &[], "gantry-agent must not depend on gantry-scheduler"),
            ("gantry-gateway", &[], &["gantry-runtime"], "gantry-gateway must not depend on gantry-runtime"),
            ("gantry-new", &[], &[], "gantry-new is not in the table"),
        ] {
            let found = arrows(&package(name, uses, tests_use, ""), ARROWS);
            assert!(found.len() == 1 && found[0].starts_with(says), "{found:?}");
        }
        assert!(
            arrows(&package("gantry-agent", &["gantry-proto"], &["gantry-store"], ""), ARROWS).is_empty()
        );
    }

    #[test]
    fn broken_manners_are_found() {
        let good = "[package]\nname = \"x\"\n\n[lints]\nworkspace = true\n";
        assert!(manners(&package("x", &[], &[], good)).is_empty());
        assert_eq!(manners(&package("x", &[], &[], "[package]\nworkspace = true\n")).len(), 1);
        let other = Package { edition: "2021".into(), license: "MIT".into(), ..package("x", &[], &[], good) };
        assert_eq!(manners(&other).len(), 2);
    }

    #[test]
    fn files_that_break_the_rules_are_found() {
        let word = concat!("un", "safe");
        assert!(rules_of_files("a.rs", &format!("// {word} fn is a word\n"), &[]).is_empty());
        for line in [
            format!("{word} {{ x() }}"),
            format!("{word} impl Send for X {{}}"),
            format!("#[allow({word}_code)]"),
        ] {
            assert_eq!(rules_of_files("a.rs", &line, &[]).len(), 1, "{line}");
            assert!(rules_of_files("a.rs", &line, &[("a.rs", "why")]).is_empty());
        }
        assert_eq!(rules_of_files("a.rs", &"x\n".repeat(LONGEST + 1), &[]).len(), 1);
        assert!(rules_of_files("a.rs", &"x\n".repeat(LONGEST), &[]).is_empty());
    }
}
