//! What is done and said, situation by situation.

use super::*;

/// Its name, the situation, what is done besides making what is there, and what `Ready` says.
type Case = (&'static str, Snapshot, &'static [&'static str], Truth, &'static str, &'static str);

#[test]
fn every_situation_has_its_answer() {
    let new = |spec| snapshot(Some(server(spec)), Known::Absent);
    let three = || json!({ "replicas": 3 });
    let up = |s: Snapshot, scheduler| Snapshot { scheduler, ..made(s, 3) };
    let asked = |refusal: Option<&str>, ago| {
        let errand = Errand { verb: Verb::Notify, uid: "u1".into(), generation: 3 };
        Some((
            Asked {
                at: tokio::time::Instant::now(),
                errand,
                refusal: refusal.map(str::to_owned),
                unanswered: None,
            },
            ago,
        ))
    };
    let soon = Duration::from_millis(1);
    let cases: Vec<Case> = vec![
        ("new", new(three()), &["notify 3"], Truth::False, "Progressing", "passing"),
        (
            "new, and told",
            Snapshot { asked: asked(None, soon), ..new(three()) },
            &[],
            Truth::False,
            "Progressing",
            "passing",
        ),
        (
            "told long ago",
            Snapshot { asked: asked(None, Duration::from_mins(1)), ..new(three()) },
            &["notify 3"],
            Truth::False,
            "Progressing",
            "passing",
        ),
        ("ready", up(new(three()), Known::Present(view(3, 3))), &[], Truth::True, "ServerReady", "settled"),
        (
            "joining",
            up(new(three()), Known::Present(view(3, 1))),
            &[],
            Truth::False,
            "ReplicasJoining",
            "passing",
        ),
        (
            "two pods of three",
            Snapshot { scheduler: Known::Present(view(3, 2)), ..made(new(three()), 2) },
            &[],
            Truth::False,
            "Progressing",
            "passing",
        ),
        (
            "the scheduler forgot it",
            up(new(three()), Known::Absent),
            &["notify 3"],
            Truth::False,
            "ReplicasJoining",
            "passing",
        ),
        (
            "the scheduler has another generation",
            up(new(three()), Known::Present(ServerView { generation: Some(2), ..view(3, 3) })),
            &["notify 3"],
            Truth::True,
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
            Truth::False,
            "SchedulerRefuses",
            "final",
        ),
        (
            "nobody wants a replica",
            Snapshot { scheduler: Known::Absent, ..made(new(json!({"replicas": 0})), 0) },
            &[],
            Truth::True,
            "ServerReady",
            "settled",
        ),
        (
            "no scheduler",
            up(new(three()), Known::Unknown(NO_SCHEDULER.into())),
            &[],
            Truth::True,
            "SchedulerUnreachable",
            "settled",
        ),
        (
            "no configuration",
            Snapshot { config: None, ..new(three()) },
            &[],
            Truth::False,
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
            Truth::False,
            "ServerConfigInvalid",
            "passing",
        ),
        (
            "against the rules",
            new(json!({"replicas": 1, "minReplicas": 2})),
            &[],
            Truth::False,
            "InvalidSpec",
            "final",
        ),
        ("nonsense", new(json!({"replicas": "many"})), &[], Truth::False, "InvalidSpec", "final"),
        ("too many", new(json!({"replicas": 2_000_000_000})), &[], Truth::False, "InvalidSpec", "final"),
    ];
    for (name, snapshot, done, truth, reason, outlook) in cases {
        let plan = plan(&snapshot, NOW);
        assert_eq!(changes(&plan), done, "{name}");
        let (t, r, o, message) = said(&plan);
        assert_eq!((t, r.as_str(), o), (truth, reason, outlook), "{name}: {message}");
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
