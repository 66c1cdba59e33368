//! What holds for every verb: exit codes, streams, colour, the environment, completions, man pages.

use crate::world::{World, command, finish, gantry, gantry_with, model};

#[test]
fn exit_codes() {
    let world = World::new();
    world.write("good.yaml", &model("good", "  storageUri: /m\n"));
    world.write("bad.yaml", &model("bad", "  storagUri: /m\n"));
    world.write("broken.yaml", &model("broken", "  storageUri: /broken\n"));
    world.write("slow.yaml", &model("slow", "  storageUri: /slow\n"));
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
        (&["get", "model", "nobody"], 3),
        (&["describe", "model/nobody"], 3),
        (&["delete", "model/nobody"], 3),
        (&["wait", "model/nobody"], 3),
        (&["get", "--scheduler", "127.0.0.1:1"], 4),
        (&["infer", "good", "[1]", "--inference", "127.0.0.1:1"], 4),
        (&["infer", "good", "[1]", "--inference", "127.0.0.1:1", "--mode", "grpc"], 4),
        (&["logs"], 4),
        (&["top"], 4),
        (&["apply", "-f", "slow.yaml", "--wait", "--timeout", "300ms"], 5),
    ] {
        let ran = world.gantry(args);
        assert_eq!(ran.code, code, "{args:?}: {ran:?}");
        if code != 0 {
            assert!(!ran.stderr.is_empty(), "{args:?} failed in silence");
        }
        assert!(!ran.stderr.contains("panicked"), "{args:?}: {ran:?}");
    }
}

#[test]
fn an_unreachable_scheduler_is_named_with_the_remedy() {
    let ran = gantry(&["status", "--scheduler", "127.0.0.1:1"]);
    assert_eq!(
        ran.stderr,
        "no scheduler answers at 127.0.0.1:1: start one with `gantry up`, or name another with --scheduler\n"
    );
    assert_eq!(ran.stdout, "");
}

#[test]
fn a_scheduler_that_accepts_and_says_nothing_ends_at_the_deadline() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let ran = gantry(&["get", "--scheduler", &address, "--timeout", "300ms"]);
    assert!(matches!(ran.code, 4 | 5), "{ran:?}");
    let ran = gantry(&["infer", "iris", "[1]", "--inference", &address, "--timeout", "300ms"]);
    assert_eq!(ran.code, 5, "{ran:?}");
    assert!(ran.stderr.contains("did not answer within 300ms"), "{ran:?}");
}

#[test]
fn the_environment_names_the_scheduler_and_flags_win() {
    let world = World::new();
    let address = world.scheduler.to_string();
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
fn what_is_not_a_terminal_gets_no_colour() {
    let world = World::new();
    world.serve("iris", "  storageUri: /m\n");
    for variables in [&[("TERM", "xterm-256color")][..], &[("TERM", "xterm"), ("NO_COLOR", "1")]] {
        for args in [&["get"][..], &["status"], &["describe", "model/iris"], &["--help"], &["frob"]] {
            let ran = finish(world.command(args).envs(variables.iter().copied()));
            assert!(!ran.stdout.contains('\u{1b}') && !ran.stderr.contains('\u{1b}'), "{args:?}: {ran:?}");
        }
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let world = World::new();
    world.serve("iris", "  storageUri: /m\n");
    let mut child =
        world.command(&["get", "-w", "-o", "name"]).stdout(std::process::Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    // The next line cannot be written any more.
    world.serve("fraud", "  storageUri: /m\n");
    world.serve("demand", "  storageUri: /m\n");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_wrong_word_is_answered_with_the_nearest() {
    for (args, says) in [
        (&["aply", "-f", "x"][..], "similar subcommand exists: 'apply'"),
        (&["get", "--al"], "similar argument exists"),
        (&["get", "modles"], "Did you mean models?"),
        (&["wait", "model/x", "--for=raedy"], "Did you mean ready?"),
        (&["describe", "iris"], "write model/iris"),
        (&["delete", "model"], "a name is missing: write model/NAME"),
        (&["apply"], "--filename <FILE>"),
        (&["top", "pods"], "possible values: models, servers"),
        (&["infer", "iris", "--header", "novalue"], "is not NAME=VALUE"),
        (&["infer", "iris", "--concurrency", "0"], "0 is not in 1..=1024"),
    ] {
        let ran = gantry(args);
        assert_eq!(ran.code, 2, "{args:?}: {ran:?}");
        assert!(ran.stderr.contains(says), "{args:?}: {}", ran.stderr);
        assert_eq!(ran.stdout, "", "{args:?}");
    }
}

#[test]
fn completions_for_four_shells() {
    for (shell, sign) in [
        ("bash", "complete -F _gantry"),
        ("zsh", "#compdef gantry"),
        ("fish", "complete -c gantry"),
        ("powershell", "Register-ArgumentCompleter"),
    ] {
        let script = gantry(&["completion", shell]).ok();
        assert!(script.contains(sign), "{shell}: {}", script.lines().next().unwrap_or_default());
        for verb in ["apply", "infer", "lint", "status"] {
            assert!(script.contains(verb), "{shell} does not complete {verb}");
        }
    }
    assert_eq!(gantry(&["completion", "tcsh"]).code, 2);
}

#[test]
fn man_pages_for_every_verb() {
    assert!(gantry(&["man"]).ok().contains(".TH gantry 1"));
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("man1");
    gantry(&["man", "--dir", target.to_str().unwrap()]).ok();
    for verb in ["up", "apply", "delete", "get", "describe", "status", "top", "wait", "infer", "logs", "lint"]
    {
        let page = std::fs::read_to_string(target.join(format!("gantry-{verb}.1"))).unwrap();
        assert!(page.contains(&format!("gantry\\-{verb}")), "{verb}");
    }
}

#[test]
fn the_version_is_the_package_s() {
    assert_eq!(gantry(&["version"]).ok(), format!("gantry {}\n", env!("CARGO_PKG_VERSION")));
    assert_eq!(
        gantry(&["version", "-o", "jsonpath={.version}"]).ok(),
        concat!(env!("CARGO_PKG_VERSION"), "\n")
    );
}

#[test]
fn stdin_is_read_where_a_dash_stands() {
    let world = World::new();
    let ran = gantry_with(
        &["apply", "-f", "-", "--scheduler", &world.scheduler.to_string()],
        &model("iris", "  storageUri: /m\n"),
    );
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "model/iris created\n"));
    let nothing = gantry_with(&["apply", "-f", "-", "--scheduler", &world.scheduler.to_string()], "");
    assert_eq!(nothing.code, 2, "{nothing:?}");
    assert_eq!(nothing.stderr, "there is no object in what was given: nothing was applied\n");
}
