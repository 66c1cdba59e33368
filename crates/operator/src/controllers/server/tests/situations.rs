//! Plans of Servers.

use super::*;

/// Name, snapshot, expected actions besides applies, expected `Ready`.
type Case = (&'static str, Snapshot, &'static [&'static str], ConditionStatus, &'static str, &'static str);

#[test]
fn plan_for_every_situation() {
    let new = |spec| snapshot(Some(server(spec)), Known::Absent);
    let three = || json!({ "replicas": 3 });
    let up = |s: Snapshot, scheduler| Snapshot { scheduler, ..made(s, 3) };
    let last_request = |refusal: Option<&str>, ago| {
        let request = SchedulerRequest {
            variant: 0,
            operation: Operation::Notify,
            uid: "u1".into(),
            generation: 3,
            switches: BTreeMap::new(),
        };
        Some((
            LastRequest {
                at: tokio::time::Instant::now(),
                request,
                attempts: 1,
                was_accepted: false,
                rejection: refusal.map(str::to_owned),
                failure: None,
            },
            ago,
        ))
    };
    let soon = Duration::from_millis(1);
    let cases: Vec<Case> = vec![
        ("new", new(three()), &["notify 3"], ConditionStatus::False, "Progressing", "in progress"),
        (
            "new, announced",
            Snapshot { last_request: last_request(None, soon), ..new(three()) },
            &[],
            ConditionStatus::False,
            "Progressing",
            "in progress",
        ),
        (
            "announced long ago",
            Snapshot { last_request: last_request(None, Duration::from_mins(1)), ..new(three()) },
            &["notify 3"],
            ConditionStatus::False,
            "Progressing",
            "in progress",
        ),
        (
            "ready",
            up(new(three()), Known::Present(view(3, 3))),
            &[],
            ConditionStatus::True,
            "ServerReady",
            "settled",
        ),
        (
            "joining",
            up(new(three()), Known::Present(view(3, 1))),
            &[],
            ConditionStatus::False,
            "ReplicasJoining",
            "in progress",
        ),
        (
            "two pods of three",
            Snapshot { scheduler: Known::Present(view(3, 2)), ..made(new(three()), 2) },
            &[],
            ConditionStatus::False,
            "Progressing",
            "in progress",
        ),
        (
            "unknown to the scheduler",
            up(new(three()), Known::Absent),
            &["notify 3"],
            ConditionStatus::False,
            "ReplicasJoining",
            "in progress",
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
            "the scheduler has a foreign server and rejects it",
            Snapshot {
                last_request: last_request(Some("it belongs to cli"), soon),
                ..up(new(three()), Known::Present(ServerView { namespace: None, ..view(3, 3) }))
            },
            &[],
            ConditionStatus::False,
            "SchedulerRefuses",
            "stalled",
        ),
        (
            "zero replicas",
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
            "in progress",
        ),
        (
            "invalid configuration",
            Snapshot {
                config: serde_json::from_value(json!({ "spec": { "volumeClaimTemplates": 3 } }))
                    .ok()
                    .map(Arc::new),
                ..new(json!({}))
            },
            &[],
            ConditionStatus::False,
            "ServerConfigInvalid",
            "in progress",
        ),
        (
            "replicas below minReplicas",
            new(json!({"replicas": 1, "minReplicas": 2})),
            &[],
            ConditionStatus::False,
            "InvalidSpec",
            "stalled",
        ),
        (
            "undecodable spec",
            new(json!({"replicas": "many"})),
            &[],
            ConditionStatus::False,
            "InvalidSpec",
            "stalled",
        ),
        (
            "replicas above the limit",
            new(json!({"replicas": 2_000_000_000})),
            &[],
            ConditionStatus::False,
            "InvalidSpec",
            "stalled",
        ),
    ];
    for (name, snapshot, done, status, reason, progress) in cases {
        let plan = plan(&snapshot, NOW);
        assert_eq!(changes(&plan), done, "{name}");
        let (t, r, o, message) = ready_condition(&plan);
        assert_eq!((t, r.as_str(), o), (status, reason, progress), "{name}: {message}");
        if ["InvalidSpec", "ServerConfigMissing", "ServerConfigInvalid"].contains(&reason) {
            assert_eq!(plan.actions, [], "{name}");
        }
    }
}

#[test]
fn messages_contain_the_command_for_details() {
    let missing = ready_condition(&plan(
        &Snapshot { config: None, ..snapshot(Some(server(json!({}))), Known::Absent) },
        NOW,
    ))
    .3;
    assert!(missing.contains("ServerConfig small does not exist"), "{missing}");
    let waiting = Snapshot {
        scheduler: Known::Present(view(3, 2)),
        ..made(snapshot(Some(server(json!({"replicas": 3}))), Known::Absent), 2)
    };
    let waiting = ready_condition(&plan(&waiting, NOW)).3;
    assert!(waiting.contains("2 of 3 pods ready"), "{waiting}");
    assert!(waiting.contains("kubectl describe pods -n ml -l seldon-server-name=a"), "{waiting}");
}
