//! Every write of a day fails once in each way that writes fail; every watch is late, cut, or silent once.

use crate::{
    scenario::{Course, Day, differences},
    world::{OPERATOR, Picture, World},
};
use gantry_kube_sim::{Fault, RequestMatch, FaultPlan, FaultRule, Verb};
use serde_json::Value;

/// The picture without the numbers that the scheduler gives to versions.
fn unversioned(picture: &Picture) -> Picture {
    fn walk(value: &mut Value) {
        match value {
            Value::Object(fields) => fields.values_mut().for_each(walk),
            Value::Array(items) => items.iter_mut().for_each(walk),
            Value::String(text) if text.starts_with("serves version ") => *text = "serves".into(),
            _ => {}
        }
    }
    let mut picture = picture.clone();
    picture.values_mut().for_each(walk);
    picture
}

/// A day without a fault.
async fn reference(day: Day) -> Course {
    let world = World::begun().await;
    day.live(&world).await
}

/// The same day with things that go wrong goes the same way.
async fn holds(day: Day, rules: Vec<FaultRule>, course: &Course) {
    let world = World::prepared().await;
    let what = format!("{rules:?}");
    world.kube.start(FaultPlan { rules });
    world.start_operator();
    day.relive(&world, course, &what).await;
}

async fn every_write_fails(day: Day, ways: &[Fault]) {
    let course = reference(day).await;
    for then in ways {
        for nth in 1..=course.writes as u64 {
            let on = RequestMatch { actor: Some(OPERATOR.into()), writes: true, ..RequestMatch::default() };
            holds(day, vec![FaultRule { on, nth, times: 1, then: then.clone() }], &course).await;
        }
    }
}

const REFUSED: [Fault; 4] = [
    Fault::Conflict,
    Fault::TooManyRequests { retry_after: 3 },
    Fault::InternalError,
    // To the operator as good as the one before: models are enough to hold it against.
    Fault::Unavailable,
];
const LOST: [Fault; 2] =
    [Fault::TimeoutBefore { millis: 30_000 }, Fault::TimeoutAfterCommit { millis: 30_000 }];

#[tokio::test(start_paused = true)]
async fn every_write_for_models_may_be_refused_once_in_every_way() {
    every_write_fails(Day::Models, &REFUSED).await;
}

#[tokio::test(start_paused = true)]
async fn every_write_for_models_may_be_left_unanswered_once() {
    every_write_fails(Day::Models, &LOST).await;
}

#[tokio::test(start_paused = true)]
async fn every_write_for_workloads_may_be_refused_once_in_every_way() {
    every_write_fails(Day::Workloads, &REFUSED[..3]).await;
}

#[tokio::test(start_paused = true)]
async fn every_write_for_workloads_may_be_left_unanswered_once() {
    every_write_fails(Day::Workloads, &LOST).await;
}

fn watches(kind: &str, then: Fault) -> FaultRule {
    let on = RequestMatch {
        actor: Some(OPERATOR.into()),
        verb: Some(Verb::Watch),
        kind: Some(kind.into()),
        ..RequestMatch::default()
    };
    FaultRule { on, nth: 1, times: 3, then }
}

const WATCHED: [&str; 7] =
    ["Model", "Server", "SeldonRuntime", "ServerConfig", "StatefulSet", "Service", "ConfigMap"];

#[tokio::test(start_paused = true)]
async fn watches_may_be_cut_expire_or_tell_late() {
    for day in Day::ALL {
        let course = reference(day).await;
        for then in [
            Fault::CutWatch { after: 1 },
            Fault::CutWatch { after: 4 },
            Fault::ExpireWatch { after: 2 },
            Fault::Coalesce { millis: 5_000 },
        ] {
            for kind in WATCHED {
                holds(day, vec![watches(kind, then.clone())], &course).await;
            }
        }
    }
}

/// What was never told is made up for by the list that follows.
#[tokio::test(start_paused = true)]
async fn events_may_be_missed() {
    for day in Day::ALL {
        let course = reference(day).await;
        for kind in WATCHED {
            for nth in [1, 2, 3] {
                let missed = watches(kind, Fault::HideEvents { from: nth, count: 1 });
                let gone = watches(kind, Fault::ExpireWatch { after: nth });
                holds(day, vec![missed, gone], &course).await;
            }
        }
    }
}

/// What an operator does that sees an old world must not destroy anything of the new one.
#[tokio::test(start_paused = true)]
async fn a_stale_view_destroys_nothing() {
    for (day, kinds) in [
        (Day::Models, ["models.mlops.seldon.io"].as_slice()),
        (Day::Workloads, &["servers.mlops.seldon.io", "statefulsets.apps"]),
    ] {
        let course = reference(day).await;
        for kind in kinds {
            for at in 0..day.steps() {
                let world = World::begun().await;
                for number in 0..day.steps() {
                    if number == at {
                        world.kube.freeze(kind);
                    }
                    day.step(&world, number).await;
                    world.rest().await;
                    if number == at {
                        // One that starts anew and is shown the past asks a scheduler for it, and takes nothing away.
                        if day == Day::Models {
                            let revision = world.kube.with(|state| state.revision()).saturating_sub(10);
                            world.kill_operator();
                            world.kube.travel(kind, revision);
                            world.start_operator();
                            world.rest().await;
                        }
                        world.kube.release(kind);
                        world.rest().await;
                    }
                    // A scheduler that was asked for the past and then for the present counts more versions on the way.
                    let expected = unversioned(&course.pictures[number]);
                    let differ = differences(&expected, &unversioned(&world.picture().await));
                    assert!(
                        differ.is_empty(),
                        "{kind} was stale at step {at}, step {number}\n{}\n\n{}",
                        differ.join("\n"),
                        world.kube.trace().lines().join("\n")
                    );
                }
                course.came_and_went(&world, &format!("{kind} was stale at step {at}"));
            }
        }
    }
}
