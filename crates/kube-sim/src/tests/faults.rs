//! Faults and the trace.

use super::*;
use ::kube::{
    ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
    runtime::{WatchStreamExt, reflector, watcher},
};
use futures::{StreamExt, TryStreamExt, pin_mut};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

#[tokio::test(start_paused = true)]
async fn reflector_recovers_from_every_watch_fault() {
    let server = server();
    let troubles = [
        Fault::CutWatch { after: 1 },
        Fault::ExpireWatch { after: 1 },
        Fault::Coalesce { millis: 500 },
        Fault::Freeze { millis: Some(20_000) },
        Fault::TimeTravel { back: 2, millis: Some(5_000) },
        Fault::Unavailable,
        Fault::TimeoutBefore { millis: 1_000 },
    ];
    for (index, trouble) in troubles.into_iter().enumerate() {
        let kind = Some("ConfigMap".to_owned());
        let on = RequestMatch { verb: Some(Verb::Watch), kind, ..RequestMatch::default() };
        server.start(FaultPlan { rules: vec![FaultRule { on, nth: 1, times: 2, then: trouble.clone() }] });
        let client = server.client("operator", "default");
        let maps = maps(&client);
        let (reader, writer) = reflector::store();
        let stream = reflector(writer, watcher(maps.clone(), watcher::Config::default()).default_backoff())
            .applied_objects();
        let task = tokio::spawn(async move {
            pin_mut!(stream);
            while stream.next().await.is_some() {}
        });
        reader.wait_until_ready().await.unwrap();
        for value in ["1", "2", "3"] {
            let apply = PatchParams::apply("test").force();
            maps.patch("a", &apply, &Patch::Apply(map("a", value))).await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        maps.create(&PostParams::default(), &map(&format!("b{index}"), "x")).await.unwrap();
        until(async || {
            let seen = reader.find(|map| map.name_any() == "a")?;
            let new = reader.find(|map| map.name_any() == format!("b{index}"));
            (new.is_some() && seen.data.as_ref()?.get("value")? == "3").then_some(())
        })
        .await;
        task.abort();
        assert!(task.await.is_err(), "{trouble:?}: the reflector never ends by itself");
    }
}

#[tokio::test(start_paused = true)]
async fn write_with_lost_response_takes_effect() {
    let server = server();
    let on = RequestMatch { verb: Some(Verb::Create), ..RequestMatch::default() };
    let lost = |then| FaultRule { on: on.clone(), nth: 1, times: 1, then };
    let maps = maps(&server.client("test", "default"));
    server.start(FaultPlan { rules: vec![lost(Fault::TimeoutBefore { millis: 10 })] });
    maps.create(&PostParams::default(), &map("a", "1")).await.unwrap_err();
    assert!(maps.get_opt("a").await.unwrap().is_none());
    server.start(FaultPlan { rules: vec![lost(Fault::TimeoutAfterCommit { millis: 10 })] });
    maps.create(&PostParams::default(), &map("a", "1")).await.unwrap_err();
    assert!(maps.get_opt("a").await.unwrap().is_some());
    server.start(FaultPlan { rules: vec![lost(Fault::TooManyRequests { retry_after: 3 })] });
    assert_eq!(code(maps.create(&PostParams::default(), &map("b", "1")).await), 429);
}

#[tokio::test(start_paused = true)]
async fn hooks_and_counts_see_every_write() {
    let server = server();
    let called = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&called);
    server.after_write(2, Some("test"), move || flag.store(true, Ordering::Relaxed));
    let maps = maps(&server.client("test", "default"));
    maps.create(&PostParams::default(), &map("a", "1")).await.unwrap();
    assert!(!called.load(Ordering::Relaxed));
    maps.delete("a", &DeleteParams::default()).await.unwrap();
    assert!(called.load(Ordering::Relaxed));
    maps.create(&PostParams::default(), &map("a", "1")).await.unwrap();
    let trace = server.trace();
    let counts = &trace.counts["configmaps default/a"];
    assert_eq!((counts.created, counts.deleted, counts.uids.len()), (2, 1, 2));
    assert_ne!(counts.uids[0], counts.uids[1]);
    assert_eq!(trace.writes(Some("test")).count(), 3);
    assert!(trace.lines()[0].contains("test create configmaps default/"), "{}", trace.lines()[0]);
}

#[test]
fn fault_plan_round_trips_through_json() {
    let text = r#"{"rules":[
        {"on":{"verb":"apply","kind":"StatefulSet"},"nth":2,"then":{"timeout-after-commit":{"millis":5}}},
        {"then":"conflict"},
        {"on":{"verb":"watch"},"then":{"freeze":{}}}
    ]}"#;
    let plan: FaultPlan = serde_json::from_str(text).unwrap();
    assert_eq!(plan.rules[0].then, Fault::TimeoutAfterCommit { millis: 5 });
    assert_eq!((plan.rules[1].nth, plan.rules[1].times), (1, 1));
    let again: FaultPlan = serde_json::from_str(&serde_json::to_string(&plan).unwrap()).unwrap();
    assert_eq!(again, plan);
    assert!(serde_json::from_str::<FaultPlan>(r#"{"rules":[{"then":"typo"}]}"#).is_err());
}

fn on(verb: Verb) -> RequestMatch {
    RequestMatch { verb: Some(verb), ..RequestMatch::default() }
}

fn once(on: RequestMatch, then: Fault) -> FaultPlan {
    FaultPlan { rules: vec![FaultRule { on, nth: 1, times: 1, then }] }
}

#[tokio::test(start_paused = true)]
async fn only_nth_matching_request_fails() {
    let server = server();
    let maps = maps(&server.client("test", "default"));
    let on = RequestMatch { kind: Some("ConfigMap".into()), actor: Some("test".into()), ..on(Verb::Create) };
    server.start(FaultPlan { rules: vec![FaultRule { on, nth: 2, times: 2, then: Fault::InternalError }] });
    let mut codes = Vec::new();
    for name in ["a", "b", "c", "d"] {
        let made = maps.create(&PostParams::default(), &map(name, "1")).await;
        codes.push(if made.is_ok() { 201 } else { code(made) });
    }
    assert_eq!(codes, [201, 500, 500, 201]);
    let other = super::maps(&server.client("other", "default"));
    server.start(once(
        RequestMatch { actor: Some("test".into()), ..RequestMatch::default() },
        Fault::Unavailable,
    ));
    other.get("a").await.unwrap();
    assert_eq!(code(maps.get("a").await), 503);
}

#[tokio::test(start_paused = true)]
async fn stale_reads_succeed_and_stale_writes_conflict() {
    let server = server();
    let maps = maps(&server.client("test", "default"));
    let old = maps.create(&PostParams::default(), &map("a", "1")).await.unwrap();
    let past = old.resource_version().unwrap().parse().unwrap();
    maps.delete("a", &DeleteParams::default()).await.unwrap();
    let new = maps.create(&PostParams::default(), &map("a", "2")).await.unwrap();
    server.travel("configmaps", past);
    assert_eq!(maps.get("a").await.unwrap().uid(), old.uid());
    let seen = maps.list(&ListParams::default()).await.unwrap();
    assert_eq!((seen.items[0].uid(), seen.metadata.resource_version), (old.uid(), old.resource_version()));
    assert_eq!(
        code(maps.replace("a", &PostParams::default(), &old).await),
        409,
        "a stale view destroys nothing"
    );
    server.release("configmaps");
    assert_eq!(maps.get("a").await.unwrap().uid(), new.uid());
}

#[tokio::test(start_paused = true)]
async fn frozen_watch_catches_up_and_hidden_event_is_lost() {
    let server = server();
    let maps = maps(&server.client("test", "default"));
    server.start(once(on(Verb::Watch), Fault::HideEvents { from: 2, count: 1 }));
    server.freeze("configmaps");
    let events = maps.watch(&WatchParams::default().timeout(30), "0").await.unwrap();
    let task = tokio::spawn(async move {
        let started = tokio::time::Instant::now();
        let names = events.map_ok(|event| match event {
            WatchEvent::Added(map) => (map.name_any(), started.elapsed().as_secs()),
            other => panic!("{other:?}"),
        });
        names.try_collect::<Vec<_>>().await.unwrap()
    });
    for name in ["a", "b", "c"] {
        maps.create(&PostParams::default(), &map(name, "1")).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    server.release("configmaps");
    assert_eq!(task.await.unwrap(), [("a".to_owned(), 10), ("c".to_owned(), 10)]);
}

#[tokio::test(start_paused = true)]
async fn delay_takes_virtual_time() {
    let server = server();
    let maps = maps(&server.client("test", "default"));
    server.start(once(on(Verb::List), Fault::Delay { millis: 90_000 }));
    let before = server.now();
    maps.list(&ListParams::default()).await.unwrap();
    assert_eq!(server.now().duration_since(before).as_secs(), 90);
}

#[test]
fn same_seed_gives_same_trace() {
    let run = |seed: u64| {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let server = Server::new(registry(), seed, "2026-01-01T00:00:00Z".parse().unwrap());
            let maps = maps(&server.client("test", "default"));
            for name in ["a", "b"] {
                maps.create(&PostParams::default(), &map(name, "1")).await.unwrap();
                tokio::time::sleep(Duration::from_millis(250)).await;
            }
            maps.delete("a", &DeleteParams::default()).await.unwrap();
            server.trace()
        })
    };
    assert_eq!(run(1), run(1));
    assert_eq!(run(1).lines(), run(2).lines());
    assert_ne!(run(1).counts, run(2).counts, "another seed gives other uids");
}
