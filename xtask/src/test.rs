//! `cargo xtask test`: all tests of the workspace, the operator against a real API server, then real clients against
//! the real program, the dashboard in Chromium, models of Python libraries, then pipelines on a real Kafka broker.

use crate::{
    Failure, Unavailable, cache, count::Count, dashboard, debian, k8s, kafka, manifests, metadata, python,
};
use serde_json::Value;
use std::{
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

#[allow(clippy::struct_excessive_bools, reason = "one for each part")]
struct Options {
    cargo: bool,
    cluster: bool,
    clients: bool,
    browser: bool,
    python: bool,
    kafka: bool,
    filter: Vec<String>,
}

/// Runs a part: its counts, and whether it succeeded.
type Part = fn(&Options) -> Result<(Count, bool), Failure>;

const KAFKA: &str = "pipelines on a real Kafka broker";
const ETCD: &str = "schedulers with their state in a real etcd";

impl Options {
    /// Features of all builds of a run, so that nothing is compiled twice.
    fn features(&self) -> &'static [&'static str] {
        if self.cargo && self.kafka && kafka::libraries().is_ok() {
            &["--features", "gantry-cli/kafka,gantry-kafka/failpoints"]
        } else {
            &[]
        }
    }
}

pub(crate) fn run(arguments: &[&str]) -> Result<bool, Failure> {
    let options = read(arguments)?;
    let parts: [(bool, &str, Part); 6] = [
        (options.cargo, "the workspace", |options| cargo_tests(&mut whole_workspace(options)?)),
        (options.cluster, "the operator against a real API server", cluster_tests),
        (options.clients, "the clients against the real program", client_tests),
        (options.browser, "the dashboard in Chromium", browser_tests),
        (options.python, "models of Python libraries, and the Python package", python_tests),
        // The tests of the workspace include it, unless it is not possible here.
        (options.kafka && (!options.cargo || kafka::libraries().is_err()), KAFKA, |options| {
            kafka::tests(&options.filter, false)
        }),
    ];
    let mut total = Count::default();
    let mut fine = true;
    let mut untested = Vec::new();
    for (_, what, part) in parts.into_iter().filter(|(wanted, ..)| *wanted) {
        // A part that cannot run does not hide the counts of the others.
        let (count, ended_well) = match part(&options) {
            Ok(done) => done,
            Err(failure) if failure.is::<Unavailable>() => {
                untested.push(format!("NOT TESTED: {what}: {failure}"));
                (Count { skipped: 1, ..Count::default() }, true)
            }
            Err(failure) => {
                println!("\nFAILED: {what}: {failure}");
                (Count { failed: 1, ..Count::default() }, false)
            }
        };
        total += count;
        fine &= ended_well;
    }
    // Its tests are part of the workspace, and skip themselves.
    if options.cargo
        && let Err(failure) = k8s::program("etcd")
    {
        untested.push(format!("NOT TESTED: {ETCD}: {failure}"));
        total += Count { skipped: 1, ..Count::default() };
        fine &= failure.is::<Unavailable>();
    }
    println!();
    for line in untested {
        println!("{line}");
    }
    println!("{total}");
    Ok(fine && total.failed == 0)
}

fn read(arguments: &[&str]) -> Result<Options, Failure> {
    const FLAGS: &str =
        "--no-PART and --only-PART with clients, cluster, browser, python or kafka, and -- FILTER";
    const NONE: Options = Options {
        cargo: false,
        cluster: false,
        clients: false,
        browser: false,
        python: false,
        kafka: false,
        filter: Vec::new(),
    };
    let mut options = Options {
        cargo: true,
        cluster: true,
        clients: true,
        browser: true,
        python: true,
        kafka: true,
        ..NONE
    };
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match *word {
            "--no-clients" => options.clients = false,
            "--no-cluster" => options.cluster = false,
            "--no-browser" => options.browser = false,
            "--no-kafka" => options.kafka = false,
            "--no-python" => options.python = false,
            // Two of them leave nothing.
            "--only-clients" => {
                options = Options { clients: options.clients, filter: options.filter, ..NONE }
            }
            "--only-cluster" => {
                options = Options { cluster: options.cluster, filter: options.filter, ..NONE }
            }
            "--only-browser" => {
                options = Options { browser: options.browser, filter: options.filter, ..NONE }
            }
            "--only-python" => options = Options { python: options.python, filter: options.filter, ..NONE },
            "--only-kafka" => options = Options { kafka: options.kafka, filter: options.filter, ..NONE },
            "--" => options.filter = words.by_ref().map(|w| (*w).to_owned()).collect(),
            other => return Err(format!("test does not know {other}: {FLAGS}").into()),
        }
    }
    let parts =
        [options.cargo, options.cluster, options.clients, options.browser, options.python, options.kafka];
    if parts.contains(&true) {
        return Ok(options);
    }
    Err(format!("{} together leave nothing to run", arguments.join(" and ")).into())
}

fn whole_workspace(options: &Options) -> Result<Command, Failure> {
    let mut command = metadata::cargo();
    command.args(["test", "--workspace", "--no-fail-fast"]).args(options.features());
    if !options.features().is_empty() {
        command.env("GANTRY_TEST_KAFKA", kafka::libraries()?);
        command.env("GANTRY_TEST_PROGRAM", metadata::target().join("debug/gantry"));
    }
    if let Ok(etcd) = k8s::program("etcd") {
        command.env("GANTRY_TEST_ETCD", etcd);
    }
    if !options.filter.is_empty() {
        command.arg("--").args(&options.filter);
    }
    Ok(command)
}

/// Runs cargo's tests with live output.
pub(crate) fn cargo_tests(command: &mut Command) -> Result<(Count, bool), Failure> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut count = Count::default();
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).split(b'\n') {
            let line = line?;
            let line = String::from_utf8_lossy(&line);
            println!("{line}");
            count += Count::of_line(&line).unwrap_or_default();
        }
    }
    Ok((count, child.wait()?.success()))
}

/// Runs pytest over `tests/cluster`, with an API server that lives as long as the tests do, and tries the manifests on it.
fn cluster_tests(options: &Options) -> Result<(Count, bool), Failure> {
    let python = python()?;
    let cluster_options = k8s::Options {
        directory: metadata::target().join(format!("k8s-tests-{}", std::process::id())),
        node: false,
        kwok: 0,
        audit_reads: false,
    };
    let guard = k8s::Guard::new(&cluster_options)?;
    println!("\nStarting a control plane in {}", cluster_options.directory.display());
    let cluster = k8s::Cluster::up(&cluster_options)?;
    let environment = [
        ("GANTRY_TEST_KUBECONFIG", cluster.kubeconfig()),
        ("GANTRY_TEST_KUBECTL", cluster.kubectl_path()),
        ("GANTRY_TEST_AUDIT", cluster.audit_log()),
        ("KUBECACHEDIR", cluster.kubectl_cache().to_owned()),
    ];
    let mut environment = environment.map(|(name, value)| (name.to_owned(), value)).to_vec();
    match debian::unpacked("prometheus") {
        Ok(files) => {
            environment.push(("GANTRY_TEST_PROMETHEUS".to_owned(), files.join("usr/bin/prometheus")));
        }
        // Its tests are skipped with the reason.
        Err(failure) if failure.is::<Unavailable>() => println!("Without Prometheus: {failure}"),
        Err(failure) => return Err(failure),
    }
    let (mut count, ended_well) = pytest(&python, "cluster", "clients", environment, options)?;
    if options.filter.is_empty() {
        println!("\nThe manifests, with Helm, kube-score and the same API server");
        count += manifests::verify(&cluster.kubeconfig())?;
    }
    drop(guard);
    if ended_well && count.failed == 0 {
        std::fs::remove_dir_all(&cluster_options.directory)?;
    } else {
        println!("The cluster's logs are in {}", cluster_options.directory.display());
    }
    Ok((count, ended_well))
}

/// Runs pytest over `tests/clients`.
fn client_tests(options: &Options) -> Result<(Count, bool), Failure> {
    let python = python()?;
    let servers = servers(&python, &metadata::root().join("tests/clients/servers"))?;
    pytest(&python, "clients", "clients", servers, options)
}

/// Whether the committed pages are those of their source, then pytest over `tests/browser`.
fn browser_tests(options: &Options) -> Result<(Count, bool), Failure> {
    let mut count = Count::default();
    if options.filter.is_empty() {
        match dashboard::stale() {
            Ok(stale) if stale.is_empty() => count.passed += 1,
            Ok(stale) => {
                println!(
                    "crates/dashboard/assets is out of date ({}): run cargo xtask dashboard",
                    stale.join(", ")
                );
                count.failed += 1;
            }
            Err(failure) if failure.is::<Unavailable>() => {
                println!("NOT TESTED: whether crates/dashboard/assets is up to date: {failure}");
                count.skipped += 1;
            }
            Err(failure) => return Err(failure),
        }
    }
    let python = python()?;
    let chromium = vec![("GANTRY_TEST_CHROMIUM".to_owned(), chromium()?)];
    let (tested, ended_well) = pytest(&python, "browser", "browser", chromium, options)?;
    count += tested;
    Ok((count, ended_well))
}

/// Chromium of this machine, else that of Debian. It needs many libraries, so it is installed and not unpacked.
pub(crate) fn chromium() -> Result<PathBuf, Failure> {
    const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
    let found = || {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut places = std::env::split_paths(&path).flat_map(|place| NAMES.map(|name| place.join(name)));
        places.find(|program| program.is_file())
    };
    if let Some(program) = found() {
        return Ok(program);
    }
    let missing = || Unavailable("it needs Chromium: install it".into());
    if !Path::new("/usr/bin/apt-get").is_file() {
        return Err(missing().into());
    }
    // Fails without the rights of root.
    let _ = debian::install(&["chromium", "fonts-liberation"]);
    found().ok_or_else(|| missing().into())
}

/// Runs pytest over `tests/python` and `tests/zoo`. The environments that the program makes are kept with those of the tests.
fn python_tests(options: &Options) -> Result<(Count, bool), Failure> {
    let python = python()?;
    let environment = vec![("GANTRY_CACHE_DIR".to_owned(), cache::directory()?.join("environments"))];
    let (mut count, mut ended_well) = (Count::default(), true);
    for folder in ["python", "zoo"] {
        let (more, fine) = pytest(&python, folder, folder, environment.clone(), options)?;
        count += more;
        ended_well &= fine;
    }
    Ok((count, ended_well))
}

fn python() -> Result<python::Python, Failure> {
    let missing = "it needs Python 3.11 to 3.13 with venv and pip. Install it, or name one in GANTRY_PYTHON";
    python::find((3, 11), (3, 13)).ok_or_else(|| Unavailable(missing.into()).into())
}

/// Runs pytest over a folder of `tests` with the requirements of one, and a program that is built as the tests were.
fn pytest(
    python: &python::Python,
    folder: &str,
    requirements: &str,
    environment: Vec<(String, PathBuf)>,
    options: &Options,
) -> Result<(Count, bool), Failure> {
    let tests = metadata::root().join("tests");
    let programs = python::environment(python, &tests.join(requirements).join("requirements.txt"))?;
    let gantry = build(options.features())?;
    let report = std::env::temp_dir().join(format!("gantry-{folder}-{}.xml", std::process::id()));
    let mut command = Command::new(programs.join("python"));
    command
        .current_dir(tests.join(folder))
        .env("GANTRY", &gantry)
        .env("GANTRY_BINARY", &gantry)
        .env("PYTHONDONTWRITEBYTECODE", "1");
    command.envs(environment);
    command.args(["-m", "pytest", "-p", "no:cacheprovider", "--junitxml"]).arg(&report);
    if !options.filter.is_empty() {
        command.args(["-k", &options.filter.join(" or ")]);
    }
    let status = command.stdin(Stdio::null()).status()?;
    // 5: no tests selected.
    if status.code() == Some(5) {
        return Ok((Count::default(), true));
    }
    let text = std::fs::read_to_string(&report).unwrap_or_default();
    let _ = std::fs::remove_file(&report);
    let count = Count::of_junit(&text).ok_or("pytest left no report of what it did")?;
    Ok((count, status.success()))
}

/// Inference servers for tests with agents. Each has its own environment, because their requirements conflict; the tests
/// find its programs by an environment variable.
fn servers(python: &python::Python, lists: &Path) -> Result<Vec<(String, PathBuf)>, Failure> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(lists).map_err(|e| format!("{}: {e}", lists.display()))? {
        let list = entry?.path();
        let Some(name) = list.file_stem().map(|n| n.to_string_lossy().to_uppercase()) else { continue };
        // No wheels for other platforms; its tests are skipped.
        if name == "TRITON" && !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
            continue;
        }
        found.push((format!("GANTRY_{name}_PROGRAMS"), python::environment(python, &list)?));
    }
    Ok(found)
}

/// Builds `gantry` in the profile of the tests, with the whole workspace and its tests, so that features are unified as in
/// `cargo test` and nothing is compiled twice.
fn build(features: &[&str]) -> Result<PathBuf, Failure> {
    let mut command = metadata::cargo();
    command.args([
        "build",
        "--workspace",
        "--bins",
        "--tests",
        "--message-format",
        "json-render-diagnostics",
    ]);
    command.args(features);
    let built = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    if !built.status.success() {
        return Err("gantry does not build".into());
    }
    let lines = String::from_utf8_lossy(&built.stdout);
    let executable =
        lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).find_map(|message| {
            let named = message.pointer("/target/name")?.as_str()? == "gantry";
            // The unit tests of the binary have the same name.
            let is_test = message.pointer("/profile/test").and_then(Value::as_bool).unwrap_or(false);
            (named && !is_test).then(|| message.get("executable")?.as_str().map(PathBuf::from)).flatten()
        });
    executable.ok_or_else(|| "cargo built no program called gantry".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_parsed() {
        let options = read(&["--only-clients", "--", "kill", "drain"]).unwrap();
        assert!(!options.cargo && options.clients && !options.browser && !options.python && !options.kafka);
        assert!(read(&["--only-browser"]).is_ok_and(|o| !o.cargo && !o.clients && o.browser));
        assert!(read(&["--no-browser"]).is_ok_and(|o| o.cargo && o.clients && !o.browser));
        assert_eq!(options.filter, ["kill", "drain"]);
        assert!(read(&["--only-kafka"]).is_ok_and(|o| !o.cargo && !o.cluster && !o.clients && o.kafka));
        assert!(read(&["--no-kafka"]).is_ok_and(|o| o.cargo && !o.kafka));
        assert!(read(&["--no-clients"]).is_ok_and(|o| o.cargo && !o.clients));
        assert!(read(&["--only-clients"]).is_ok_and(|o| !o.cargo && !o.cluster && o.clients));
        assert!(read(&["--only-cluster"]).is_ok_and(|o| !o.cargo && o.cluster && !o.clients));
        assert!(read(&["--no-cluster"]).is_ok_and(|o| o.cargo && !o.cluster && o.clients));
        assert!(read(&["--no-clients", "--no-cluster"]).is_ok_and(|o| o.cargo && !o.cluster && !o.clients));
        assert!(read(&["--only-clients", "--only-cluster"]).is_err());
        assert!(read(&["--only-clients", "--only-kafka"]).is_err());
        assert!(read(&["--no-clients", "--only-clients"]).is_err());
        assert!(read(&["--only-python"]).is_ok_and(|o| o.python && !o.cargo && !o.clients));
        assert!(read(&["--no-python"]).is_ok_and(|o| !o.python && o.cargo));
        assert!(read(&["--fast"]).is_err());
    }
}
