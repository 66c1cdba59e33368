//! Behaviour of all commands: exit codes, streams, colour, environment, completions, man pages.

use crate::harness::{Harness, command, finish, gantry, gantry_with, model};

#[test]
fn exit_codes() {
    let harness = Harness::new();
    harness.write("good.yaml", &model("good", "  storageUri: /m\n"));
    harness.write("bad.yaml", &model("bad", "  storagUri: /m\n"));
    harness.write("broken.yaml", &model("broken", "  storageUri: /broken\n"));
    harness.write("slow.yaml", &model("slow", "  storageUri: /slow\n"));
    for (args, code) in [
        (&["apply", "-f", "good.yaml", "--wait"][..], 0),
        (&["version"], 0),
        (&["--help"], 0),
        (&["apply", "-f", "broken.yaml", "--wait"], 1),
        (&[], 2),
        (&["frobnicate"], 2),
        (&["get", "--frob"], 2),
        (&["get", "pods"], 2),
        (&["get", "-o", "xml"], 2),
        (&["get", "-o", "jsonpath={.a"], 2),
        (&["get", "--scheduler", "https://x:1"], 2),
        (&["get", "--timeout", "soon"], 2),
        (&["apply", "-f", "bad.yaml"], 2),
        (&["apply", "-f", "missing.yaml"], 2),
        (&["lint", "bad.yaml"], 2),
        (&["wait", "model/good", "--for=perfect"], 2),
        (&["infer", "Bad_Name"], 2),
        (&["get", "model", "missing"], 3),
        (&["describe", "model/missing"], 3),
        (&["delete", "model/missing"], 3),
        (&["wait", "model/missing"], 3),
        (&["get", "--scheduler", "127.0.0.1:1"], 4),
        (&["infer", "good", "[1]", "--inference", "127.0.0.1:1"], 4),
        (&["infer", "good", "[1]", "--inference", "127.0.0.1:1", "--mode", "grpc"], 4),
        (&["logs"], 4),
        (&["top"], 4),
        (&["apply", "-f", "slow.yaml", "--wait", "--timeout", "300ms"], 5),
    ] {
        let ran = harness.gantry(args);
        assert_eq!(ran.code, code, "{args:?}: {ran:?}");
        if code != 0 {
            assert!(!ran.stderr.is_empty(), "{args:?} failed without a message");
        }
        assert!(!ran.stderr.contains("panicked"), "{args:?}: {ran:?}");
    }
}

#[test]
fn unreachable_scheduler_error_has_a_remedy() {
    let ran = gantry(&["status", "--scheduler", "127.0.0.1:1"]);
    assert_eq!(ran.stderr, "no scheduler at 127.0.0.1:1: start one with `gantry up`, or set --scheduler\n");
    assert_eq!(ran.stdout, "");
}

#[test]
fn silent_server_ends_at_the_timeout() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let ran = gantry(&["get", "--scheduler", &address, "--timeout", "300ms"]);
    assert!(matches!(ran.code, 4 | 5), "{ran:?}");
    let ran = gantry(&["infer", "iris", "[1]", "--inference", &address, "--timeout", "300ms"]);
    assert_eq!(ran.code, 5, "{ran:?}");
    assert!(ran.stderr.contains("did not answer within 300ms"), "{ran:?}");
}

#[test]
fn flags_override_environment_variables() {
    let harness = Harness::new();
    let address = harness.scheduler.to_string();
    let code = |variables: &[(&str, &str)], args: &[&str]| {
        finish(command(args).envs(variables.iter().copied())).code
    };
    assert_eq!(code(&[("GANTRY_SCHEDULER", &address)], &["get"]), 0);
    assert_eq!(code(&[("SELDON_SCHEDULE_HOST", &address)], &["get"]), 0);
    let both = [("GANTRY_SCHEDULER", "127.0.0.1:1"), ("SELDON_SCHEDULE_HOST", address.as_str())];
    assert_eq!(code(&both, &["get"]), 4);
    assert_eq!(code(&both, &["get", "--scheduler", &address]), 0);
    assert_eq!(code(&[("GANTRY_SCHEDULER", ""), ("SELDON_SCHEDULE_HOST", &address)], &["get"]), 0);
}

#[test]
fn pipes_get_no_colour() {
    let harness = Harness::new();
    harness.serve("iris", "  storageUri: /m\n");
    for variables in [&[("TERM", "xterm-256color")][..], &[("TERM", "xterm"), ("NO_COLOR", "1")]] {
        for args in [&["get"][..], &["status"], &["describe", "model/iris"], &["--help"], &["frob"]] {
            let ran = finish(harness.command(args).envs(variables.iter().copied()));
            assert!(!ran.stdout.contains('\u{1b}') && !ran.stderr.contains('\u{1b}'), "{args:?}: {ran:?}");
        }
    }
}

#[test]
fn closed_pipe_is_not_an_error() {
    let harness = Harness::new();
    harness.serve("iris", "  storageUri: /m\n");
    let mut child =
        harness.command(&["get", "-w", "-o", "name"]).stdout(std::process::Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    // The next write fails with a broken pipe.
    harness.serve("fraud", "  storageUri: /m\n");
    harness.serve("demand", "  storageUri: /m\n");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn typos_are_answered_with_a_suggestion() {
    for (args, expected) in [
        (&["aply", "-f", "x"][..], "similar subcommand exists: 'apply'"),
        (&["get", "--al"], "similar argument exists"),
        (&["get", "modles"], "Did you mean models?"),
        (&["wait", "model/x", "--for=raedy"], "Did you mean ready?"),
        (&["describe", "iris"], "write model/iris"),
        (&["delete", "model"], "name missing: write model/NAME"),
        (&["apply"], "--filename <FILE>"),
        (&["top", "pods"], "possible values: models, pipelines, experiments, servers"),
        (&["infer", "iris", "--header", "novalue"], "is not NAME=VALUE"),
        (&["infer", "iris", "--concurrency", "0"], "0 is not in 1..=1024"),
    ] {
        let ran = gantry(args);
        assert_eq!(ran.code, 2, "{args:?}: {ran:?}");
        assert!(ran.stderr.contains(expected), "{args:?}: {}", ran.stderr);
        assert_eq!(ran.stdout, "", "{args:?}");
    }
}

#[test]
fn completion_supports_common_shells() {
    for (shell, marker) in [
        ("bash", "complete -F _gantry"),
        ("zsh", "#compdef gantry"),
        ("fish", "complete -c gantry"),
        ("powershell", "Register-ArgumentCompleter"),
    ] {
        let script = gantry(&["completion", shell]).ok();
        assert!(script.contains(marker), "{shell}: {}", script.lines().next().unwrap_or_default());
        for command in ["apply", "infer", "lint", "status"] {
            assert!(script.contains(command), "{shell} does not complete {command}");
        }
    }
    assert_eq!(gantry(&["completion", "tcsh"]).code, 2);
}

#[test]
fn man_writes_one_page_per_command() {
    assert!(gantry(&["man"]).ok().contains(".TH gantry 1"));
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("man1");
    gantry(&["man", "--dir", target.to_str().unwrap()]).ok();
    for command in
        ["up", "apply", "delete", "get", "describe", "status", "top", "wait", "infer", "logs", "lint"]
    {
        let page = std::fs::read_to_string(target.join(format!("gantry-{command}.1"))).unwrap();
        assert!(page.contains(&format!("gantry\\-{command}")), "{command}");
    }
}

#[test]
fn version_is_the_package_version() {
    assert_eq!(gantry(&["version"]).ok(), format!("gantry {}\n", env!("CARGO_PKG_VERSION")));
    assert_eq!(
        gantry(&["version", "-o", "jsonpath={.version}"]).ok(),
        concat!(env!("CARGO_PKG_VERSION"), "\n")
    );
}

#[test]
fn dash_reads_stdin() {
    let harness = Harness::new();
    let ran = gantry_with(
        &["apply", "-f", "-", "--scheduler", &harness.scheduler.to_string()],
        &model("iris", "  storageUri: /m\n"),
    );
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "model/iris created\n"));
    let nothing = gantry_with(&["apply", "-f", "-", "--scheduler", &harness.scheduler.to_string()], "");
    assert_eq!(nothing.code, 2, "{nothing:?}");
    assert_eq!(nothing.stderr, "the manifests contain no objects: nothing was applied\n");
}
