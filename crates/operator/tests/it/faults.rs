//! Every write of a day fails once in each way that writes fail; every watch is late, cut, or silent once.

use crate::{
    scenario::Day,
    world::{OPERATOR, World},
};
use gantry_sim::kube::{Fault, On, Plan, Rule, Verb};
use serde_json::Value;
use std::collections::BTreeMap;

type Picture = BTreeMap<String, Value>;

/// The picture without the numbers that the scheduler gives to versions.
fn unversioned(picture: Picture) -> Picture {
    fn walk(value: &mut Value) {
        match value {
            Value::Object(fields) => fields.values_mut().for_each(walk),
            Value::Array(items) => items.iter_mut().for_each(walk),
            Value::String(text) if text.starts_with("serves version ") => *text = "serves".into(),
            _ => {}
        }
    }
    let mut picture = picture;
    picture.values_mut().for_each(walk);
    picture
}

/// A day without a fault: how many writes it takes, what is there in the end, and what came and went.
async fn reference(day: Day) -> (usize, Picture, BTreeMap<String, (u64, u64)>) {
    let world = World::prepared().await;
    world.start_operator();
    day.live(&world).await;
    (world.writes(), world.picture().await, world.comings())
}

/// The same day with one thing that goes wrong ends the same.
async fn holds(day: Day, rule: Rule, picture: &Picture, comings: &BTreeMap<String, (u64, u64)>) {
    let world = World::prepared().await;
    let what = format!("{day:?}, {rule:?}");
    world.kube.start(Plan { rules: vec![rule] });
    world.start_operator();
    day.live(&world).await;
    let lines = || world.kube.trace().lines().join("\n");
    assert_eq!(&world.picture().await, picture, "{what}\n{}", lines());
    assert_eq!(&world.comings(), comings, "{what}\n{}", lines());
}

async fn every_write_fails(day: Day) {
    let (writes, picture, comings) = reference(day).await;
    for then in [
        Fault::Conflict,
        Fault::TooManyRequests { retry_after: 3 },
        Fault::InternalError,
        Fault::Unavailable,
        Fault::TimeoutBefore { millis: 30_000 },
        Fault::TimeoutAfterCommit { millis: 30_000 },
    ] {
        for nth in 1..=writes as u64 {
            let on = On { actor: Some(OPERATOR.into()), writes: true, ..On::default() };
            holds(day, Rule { on, nth, times: 1, then: then.clone() }, &picture, &comings).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn every_write_for_models_may_fail_once_in_every_way() {
    every_write_fails(Day::Models).await;
}

#[tokio::test(start_paused = true)]
async fn every_write_for_workloads_may_fail_once_in_every_way() {
    every_write_fails(Day::Workloads).await;
}

#[tokio::test(start_paused = true)]
async fn watches_may_be_cut_expire_or_tell_late() {
    for day in Day::ALL {
        let (_, picture, comings) = reference(day).await;
        for then in [
            Fault::CutWatch { after: 1 },
            Fault::CutWatch { after: 4 },
            Fault::ExpireWatch { after: 2 },
            Fault::Coalesce { millis: 5_000 },
        ] {
            for kind in ["Model", "Server", "SeldonRuntime", "ServerConfig", "StatefulSet", "Service"] {
                let on = On {
                    actor: Some(OPERATOR.into()),
                    verb: Some(Verb::Watch),
                    kind: Some(kind.into()),
                    ..On::default()
                };
                holds(day, Rule { on, nth: 1, times: 3, then: then.clone() }, &picture, &comings).await;
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
        let (_, picture, comings) = reference(day).await;
        for kind in kinds {
            for at in 0..day.steps() {
                let world = World::prepared().await;
                world.start_operator();
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
                }
                // A scheduler that was asked for the past and then for the present counts more versions on the way.
                let (found, expected) = (unversioned(world.picture().await), unversioned(picture.clone()));
                assert_eq!(found, expected, "{kind} was stale at step {at}");
                assert_eq!(world.comings(), comings, "{kind} was stale at step {at}");
            }
        }
    }
}
