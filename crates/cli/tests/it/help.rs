//! Help of every command.

use crate::harness::{gantry, snapshot};

#[test]
fn help_of_client_commands() {
    for command in [
        "apply",
        "delete",
        "get",
        "describe",
        "explain",
        "diff",
        "fetch",
        "adopt",
        "status",
        "top",
        "wait",
        "infer",
        "logs",
        "rollout",
        "install",
        "check",
        "lint",
        "state",
        "completion",
        "man",
        "version",
    ] {
        snapshot(&format!("help-{command}"), &gantry(&[command, "--help"]).ok());
    }
    snapshot("help-rollout-simulate", &gantry(&["rollout", "simulate", "--help"]).ok());
    snapshot("help", &gantry(&["--help"]).ok());
}

#[test]
fn every_flag_has_a_help_text() {
    for command in [
        "up", "runtime", "apply", "delete", "get", "status", "wait", "infer", "logs", "install", "check",
        "lint", "state",
    ] {
        let help = gantry(&[command, "-h"]).ok();
        let mut lines = help.lines().skip_while(|l| !l.starts_with("Options:")).skip(1).peekable();
        while let Some(line) = lines.next() {
            let is_flag = line.trim_start().starts_with('-');
            let alone = !line.trim().contains("  ");
            let continued = lines.peek().is_some_and(|next| next.starts_with("          "));
            assert!(!is_flag || !alone || continued, "{command}: no help for {line}");
        }
    }
}

#[test]
fn startup_timeout_of_the_agent_reads_both_variables() {
    let help = |variable: &str| {
        let mut command = crate::harness::command(&["agent", "--help"]);
        crate::harness::finish(command.env(variable, "7")).ok()
    };
    let seldons = "SELDON_MAX_ELAPSED_TIME_READY_SUB_SERVICE_BEFORE_START_MINUTES";
    assert!(help(seldons).contains(&format!("[env: {seldons}=7]")));
    assert!(help("SELDON_MAX_TIME_READY_SUB_SERVICE_BEFORE_START_MINUTES").contains("[default: 7]"));
}
