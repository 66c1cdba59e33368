//! Text of each state of a rollout.

use super::{table, text};
use crate::{client::RolledOut, output::Style};
use gantry_proto::gantry::{
    FailedRevision, RevisionStatus, RolloutHistory, RolloutStatus, steer_rollout_request::Action,
};

const NOON: u64 = 1_795_000_023_412;

fn revision(version: u32, weight: u32, requests: u64, failures: u64) -> RevisionStatus {
    RevisionStatus {
        revision: format!("{version}{version}aabbccddeeff"),
        version,
        weight,
        ready: true,
        requests,
        failures,
        p99_micros: if requests == 0 { 0 } else { 40_000 + u64::from(version) * 1000 },
        available_replicas: 1,
    }
}

fn history(version: u32, outcome: &str, took: u64) -> RolloutHistory {
    RolloutHistory {
        revision: format!("{version}{version}aabbccddeeff"),
        started_ms: NOON - took,
        ended_ms: NOON,
        outcome: outcome.into(),
        reason: if outcome == "RolledBack" { "HigherFailureRatio".into() } else { String::new() },
    }
}

fn rollout(phase: &str) -> RolloutStatus {
    RolloutStatus {
        model: "reco".into(),
        policy: "careful".into(),
        phase: phase.into(),
        stable: Some(revision(1, 100, 0, 0)),
        stages: 3,
        watch: "Off".into(),
        history: vec![history(1, "Deployed", 2500)],
        ..RolloutStatus::default()
    }
}

fn progressing() -> RolloutStatus {
    RolloutStatus {
        message: "1,210 requests show neither harm nor fitness".into(),
        stable: Some(revision(1, 80, 4816, 2)),
        candidate: Some(revision(2, 20, 1210, 6)),
        stage: 2,
        stage_ms: 41_012,
        hold_ms: 60_000,
        ..rollout("Progressing")
    }
}

fn rolled_back() -> RolloutStatus {
    RolloutStatus {
        failed: vec![FailedRevision {
            revision: "22aabbccddeeff".into(),
            reason: "HigherFailureRatio".into(),
            message: "canary answered 5xx to 17 of 19".into(),
            at_ms: NOON,
        }],
        history: vec![history(1, "Deployed", 2500), history(2, "RolledBack", 800)],
        ..rollout("Running")
    }
}

/// Each state with its name.
fn states() -> Vec<(&'static str, RolloutStatus)> {
    let waiting = |version| Some(RevisionStatus { ready: false, ..revision(version, 0, 0, 0) });
    vec![
        (
            "deploying",
            RolloutStatus {
                stable: None,
                candidate: waiting(1),
                message: "the first version is not ready yet".into(),
                history: vec![],
                ..rollout("Deploying")
            },
        ),
        ("running", rollout("Running")),
        ("first-version", RolloutStatus { watch: "Baking".into(), ..rollout("Running") }),
        (
            "baking",
            RolloutStatus {
                stable: Some(revision(2, 100, 12_345, 3)),
                watch: "Baking".into(),
                history: vec![history(1, "Deployed", 2500), history(2, "Promoted", 95_000)],
                ..rollout("Running")
            },
        ),
        (
            "waiting",
            RolloutStatus {
                candidate: waiting(2),
                message: "the new version is not ready yet".into(),
                ..rollout("Progressing")
            },
        ),
        ("progressing", progressing()),
        (
            "without-hold",
            RolloutStatus {
                hold_ms: 0,
                stage_ms: 340,
                candidate: Some(revision(2, 20, 0, 0)),
                ..progressing()
            },
        ),
        ("approval", RolloutStatus { pause: "Approval".into(), ..progressing() }),
        ("paused", RolloutStatus { pause: "Command".into(), ..progressing() }),
        ("rolled-back", rolled_back()),
        ("undone", {
            let mut undone = rolled_back();
            undone.history.iter_mut().for_each(|entry| entry.reason = "Undone".into());
            undone.failed.iter_mut().for_each(|failed| failed.message = "undone by command".into());
            undone
        }),
        (
            "rolling-back",
            RolloutStatus {
                phase: "RollingBack".into(),
                candidate: Some(revision(2, 0, 19, 17)),
                message: "gateways have not confirmed the weights yet".into(),
                ..rolled_back()
            },
        ),
        (
            "reverting",
            RolloutStatus {
                stable: Some(revision(2, 100, 9000, 4)),
                candidate: waiting(1),
                message: "the previous version is not ready yet".into(),
                ..rollout("Reverting")
            },
        ),
    ]
}

#[test]
fn page_answers_first_and_ends_with_a_command() {
    for (name, rollout) in states() {
        let page = text::page(&rollout, Some(0.99), Style::plain());
        insta::assert_snapshot!(format!("page-{name}"), page);
        let last = page.lines().last().unwrap();
        assert!(last.starts_with("  next") && last.contains("gantry "), "{page}");
    }
}

#[test]
fn sentence_omits_the_objective_of_an_unknown_policy() {
    let sentence = text::sentence(&progressing(), None);
    assert!(sentence.contains("1,204 of 1,210 answers good (99.50 %), 41s of 1m watched."), "{sentence}");
}

#[test]
fn list_has_one_line_per_rollout() {
    let rollouts: Vec<RolloutStatus> = states().into_iter().map(|(_, rollout)| rollout).collect();
    insta::assert_snapshot!(table(&rollouts).render(Style::plain()));
}

#[test]
fn history_is_newest_first_with_the_reason() {
    insta::assert_snapshot!(text::history(&rolled_back()).render(Style::plain()));
}

#[test]
fn decisions_differ_and_statistics_do_not() {
    let more = RolloutStatus { candidate: Some(revision(2, 20, 9999, 6)), stage_ms: 50_000, ..progressing() };
    assert!(text::decision(&progressing()) == text::decision(&more));
    for other in [
        RolloutStatus { stage: 3, ..progressing() },
        RolloutStatus { pause: "Command".into(), ..progressing() },
        RolloutStatus { candidate: Some(revision(2, 50, 1210, 6)), ..progressing() },
    ] {
        assert!(text::decision(&progressing()) != text::decision(&other), "{other:?}");
    }
}

#[test]
fn steered_names_the_effect() {
    let last = RolloutStatus { stage: 3, ..progressing() };
    for (rollout, action, expected) in [
        (&progressing(), Action::Promote, "continues with the next step of version 2"),
        (&last, Action::Promote, "promotes version 2"),
        (&progressing(), Action::PromoteFull, "promotes version 2 without further steps"),
        (&progressing(), Action::Abort, "rolls back to version 1"),
    ] {
        assert_eq!(text::steered(rollout, action), expected);
    }
}

#[test]
fn grouped_separates_thousands() {
    for (number, expected) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
        assert_eq!(text::grouped(number), expected);
    }
}

#[test]
fn services_are_named_with_their_namespace() {
    let of = |service: &str| RolloutStatus {
        model: String::new(),
        service: service.into(),
        ..rollout("Progressing")
    };
    assert_eq!(text::reference(&of("ml/iris")), "isvc/ml/iris");
    let page = text::page(&RolloutStatus { stage: 0, ..of("ml/iris") }, None, Style::plain());
    assert!(page.contains("kubectl get isvc -n ml iris"), "{page}");
    let wanted = |name: &str| super::Target { name: name.into() }.wanted().unwrap();
    let (service, model) = (RolledOut::of(&of("ml/iris")), RolledOut::of(&rollout("Running")));
    for (name, is_service) in [
        ("iris", true),
        ("isvc/iris", true),
        ("isvc/ml/iris", true),
        ("inferenceservice/ml/iris", true),
        ("isvc/other/iris", false),
        ("ml", false),
        ("model/iris", false),
    ] {
        assert_eq!(wanted(name).is(&service), is_service, "{name}");
    }
    assert!(wanted("reco").is(&model) && wanted("model/reco").is(&model) && wanted("isvc/reco").is(&model));
    assert!(!wanted("pipeline/reco").is(&model) && !wanted("isvc/ml/reco").is(&model));
    assert!(super::Target { name: "server/x".into() }.wanted().is_err());
}
