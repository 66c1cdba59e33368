//! What is done and said, situation by situation.

use super::*;

/// Its name, the situation, what is done besides making what is there, and what `Ready` says.
type Case = (&'static str, Snapshot, &'static [&'static str], ConditionStatus, &'static str, &'static str);

#[test]
fn every_situation_has_its_answer() {
    let new = |spec| snapshot(Some(server(spec)), Known::Absent);
    let three = || json!({ "replicas": 3 });
    let up = |s: Snapshot, scheduler| Snapshot { scheduler, ..made(s, 3) };
    let asked = |refusal: Option<&str>, ago| {
        let request = SchedulerRequest { operation: Operation::Notify, uid: "u1".into(), generation: 3 };
        Some((
            LastRequest {
                at: tokio::time::Instant::now(),
                request,
                refusal: refusal.map(str::to_owned),
                unanswered: None,
            },
            ago,
        ))
    };
    let soon = Duration::from_millis(1);
    let cases: Vec<Case> = vec![
        ("new", new(three()), &["notify 3"], ConditionStatus::False, "Progressing", "passing"),
        (
            "new, and told",
            Snapshot { asked: asked(None, soon), ..new(three()) },
            &[],
            ConditionStatus::False,
            "Progressing",
            "passing",
        ),
        (
            "told long ago",
            Snapshot { asked: asked(None, Duration::from_mins(1)), ..new(three()) },
            &["notify 3"],
            ConditionStatus::False,
            "Progressing",
            "passing",
        ),
        ("ready", up(new(three()), Known::Present(view(3, 3))), &[], ConditionStatus::True, "ServerReady", "settled"),
        (
            "joining",
            up(new(three()), Known::Present(view(3, 1))),
            &[],
            ConditionStatus::False,
            "ReplicasJoining",
            "passing",
        ),
        (
            "two pods of three",
            Snapshot { scheduler: Known::Present(view(3, 2)), ..made(new(three()), 2) },
            &[],
            ConditionStatus::False,
            "Progressing",
            "passing",
        ),
        (
            "the scheduler forgot it",
            up(new(three()), Known::Absent),
            &["notify 3"],
            ConditionStatus::False,
            "ReplicasJoining",
            "passing",
        ),
        (
            "the scheduler has another generation",
            up(new(three()), Known::Present(ServerView { generation: Some(2), ..view(3, 3) })),
            &["notify 3"],
            ConditionStatus::True,
            "ServerReady",
            "settled",
        ),
        (
            "the scheduler has it from somebody else and refuses",
            Snapshot {
                asked: asked(Some("it belongs to cli"), soon),
                ..up(new(three()), Known::Present(ServerView { namespace: None, ..view(3, 3) }))
            },
            &[],
            ConditionStatus::False,
            "SchedulerRefuses",
            "final",
        ),
        (
            "nobody wants a replica",
            Snapshot { scheduler: Known::Absent, ..made(new(json!({"replicas": 0})), 0) },
            &[],
            ConditionStatus::True,
            "ServerReady",
            "settled",
        ),
        (
            "no scheduler",
            up(new(three()), Known::Unknown(NO_SCHEDULER.into())),
            &[],
            ConditionStatus::True,
            "SchedulerUnreachable",
            "settled",
        ),
        (
            "no configuration",
            Snapshot { config: None, ..new(three()) },
            &[],
            ConditionStatus::False,
            "ServerConfigMissing",
            "passing",
        ),
        (
            "a configuration that cannot be read",
            Snapshot {
                config: Some(Arc::new(config(Value::Null))),
                ..new(json!({"capabilities": ["onnx"]}))
            },
            &[],
            ConditionStatus::False,
            "ServerConfigInvalid",
            "passing",
        ),
        (
            "against the rules",
            new(json!({"replicas": 1, "minReplicas": 2})),
            &[],
            ConditionStatus::False,
            "InvalidSpec",
            "final",
        ),
        ("nonsense", new(json!({"replicas": "many"})), &[], ConditionStatus::False, "InvalidSpec", "final"),
        ("too many", new(json!({"replicas": 2_000_000_000})), &[], ConditionStatus::False, "InvalidSpec", "final"),
    ];
    for (name, snapshot, done, status, reason, progress) in cases {
        let plan = plan(&snapshot, NOW);
        assert_eq!(changes(&plan), done, "{name}");
        let (t, r, o, message) = said(&plan);
        assert_eq!((t, r.as_str(), o), (status, reason, progress), "{name}: {message}");
        if ["InvalidSpec", "ServerConfigMissing", "ServerConfigInvalid"].contains(&reason) {
            assert_eq!(plan.actions, [], "{name}: nothing is touched");
        }
    }
}

#[test]
fn messages_say_where_to_look() {
    let missing =
        said(&plan(&Snapshot { config: None, ..snapshot(Some(server(json!({}))), Known::Absent) }, NOW)).3;
    assert!(missing.contains("ServerConfig small in namespace ops"), "{missing}");
    let waiting = Snapshot {
        scheduler: Known::Present(view(3, 2)),
        ..made(snapshot(Some(server(json!({"replicas": 3}))), Known::Absent), 2)
    };
    let waiting = said(&plan(&waiting, NOW)).3;
    assert!(waiting.contains("2 of 3 pods are ready"), "{waiting}");
    assert!(waiting.contains("kubectl describe pods -n ml -l seldon-server-name=a"), "{waiting}");
}
