//! The loop of every controller: look, decide, do; then wait for something to change.

use crate::{
    cluster::{Cache, Custom, CustomKind, Happening, Key, Trouble, Whose},
    house::House,
    plan::{Action, Plan},
    queue::Queue,
    schedulers::{Answer, Errand, Verb},
    workload::Obstacle,
    world::World,
};
use gantry_core::mutant;
use k8s_openapi::jiff::Timestamp;
use std::{sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;

/// How often what was done is looked at again at once, before the next in the queue has its turn.
const ROUNDS: usize = 4;
/// How often a conflict is answered by looking again at once.
const CONFLICTS: usize = 3;

/// A controller: what it looks at, and what it decides. Both are without effect; a worker does what was decided.
pub trait Controller: Send + Sync + Sized + 'static {
    /// The kind whose objects it looks after.
    type Kind: CustomKind;
    /// Everything that a decision is made from.
    type Snapshot: Send + Sync;
    /// Its name in metrics and as a field manager.
    const NAME: &'static str;
    /// Whether it wants to know when it wrote a status last.
    const PACED: bool = false;

    /// Where its objects are kept.
    fn cache(world: &World) -> &Cache<Custom<Self::Kind>>;
    /// Looks, at what is known here only.
    fn observe(world: &World, key: &Key) -> Self::Snapshot;
    /// Decides: total, and the same for the same snapshot.
    fn plan(snapshot: &Self::Snapshot, now: Timestamp) -> Plan<<Self::Kind as CustomKind>::Status>;
}

/// One worker of a controller. Told to stop, it finishes what it is at.
pub(crate) async fn work<C: Controller>(house: Arc<House>, queue: Arc<Queue>, stop: CancellationToken) {
    loop {
        let key = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            key = queue.next() => key,
        };
        let begun = tokio::time::Instant::now();
        let outcome = reconcile::<C>(&house, &key).await;
        house.metrics.reconciled(C::NAME, outcome.word(), begun.elapsed());
        match outcome {
            Outcome::Done(wake) => {
                queue.succeeded(&key);
                if let Some(wake) = wake.filter(|_| !mutant::is("never_looks_again")) {
                    queue.add_after(key.clone(), wake);
                }
            }
            Outcome::Failed(why, wait) => {
                let (failures, usual) = queue.failed(key.clone());
                // The first failures are nothing to wake anybody for; one that lasts is.
                if failures == 5 {
                    tracing::warn!(kind = C::Kind::KIND, object = %key, failures, "still fails: {why}");
                } else {
                    tracing::debug!(kind = C::Kind::KIND, object = %key, failures, "{why}; again in {:?}", wait.unwrap_or(usual));
                }
                if let Some(wait) = wait {
                    queue.add_after(key.clone(), wait);
                }
            }
            Outcome::Lost => {}
        }
        queue.done(&key);
        house.metrics.waiting(C::NAME, queue.depth());
    }
}

enum Outcome {
    /// Nothing is left to do, until something changes or this time has passed.
    Done(Option<Duration>),
    /// It did not work: why, and after which time at the earliest it may.
    Failed(String, Option<Duration>),
    /// Another operator leads.
    Lost,
}

impl Outcome {
    const fn word(&self) -> &'static str {
        match self {
            Self::Done(_) => "done",
            Self::Failed(..) => "failed",
            Self::Lost => "not_leading",
        }
    }
}

async fn reconcile<C: Controller>(house: &House, key: &Key) -> Outcome {
    let mut conflicts = 0;
    for _ in 0..ROUNDS {
        let snapshot = C::observe(&house.world, key);
        let object = C::cache(&house.world).get(key);
        if object.is_none() {
            house.world.memory.forget::<C::Kind>(key);
        }
        let plan = C::plan(&snapshot, (house.clock)());
        let wake = plan.wake;
        match apply::<C>(house, key, object.as_deref(), plan).await {
            Ok(Applied::Nothing) => return Outcome::Done(wake),
            Ok(Applied::Something) => {}
            Err(Trouble::Conflict) if conflicts < CONFLICTS => conflicts += 1,
            Err(Trouble::NotLeading) => return Outcome::Lost,
            // What is not there (any more) is nothing to look after; its watch says so in a moment.
            Err(Trouble::Missing) => return Outcome::Done(None),
            Err(Trouble::Throttled(wait)) => {
                return Outcome::Failed("the API server is busy".into(), Some(wait));
            }
            Err(trouble) => {
                let why = trouble.to_string();
                return Outcome::Failed(why, None);
            }
        }
    }
    // Whatever is still open is looked at after the others had their turn.
    Outcome::Done(Some(Duration::from_millis(100)))
}

enum Applied {
    /// The world was as it should be.
    Nothing,
    /// Something was changed: what follows from it is decided anew.
    Something,
}

/// Does what was decided, one thing after the other, the status last. Whatever was done when it stops is a state that
/// the next plan can begin from.
async fn apply<C: Controller>(
    house: &House,
    key: &Key,
    object: Option<&Custom<C::Kind>>,
    plan: Plan<<C::Kind as CustomKind>::Status>,
) -> Result<Applied, Trouble> {
    let manager = format!("gantry/{}", C::NAME);
    let cache = C::cache(&house.world);
    let mut changed = false;
    let mut confirmed = false;
    for action in plan.actions {
        match (action, object) {
            (Action::Ensure(wanted), _) => {
                let children = house.world.children(wanted.kind);
                // What is made for an owner that is gone is taken away again at once, and would be made again.
                if let (Some(object), None, false) = (object, children.get(&wanted.key), confirmed)
                    && !mutant::is("makes_things_for_the_dead")
                {
                    house.writer.confirm(object).await?;
                    confirmed = true;
                }
                let outcome = house.writer.ensure(&manager, &wanted, children).await;
                changed |= outcome.as_ref().is_ok_and(|sent| *sent);
                match outcome {
                    Ok(_) => house.world.memory.taken::<C::Kind>(key, &wanted),
                    // Sending it again would not help: it is remembered, and what is left to do is decided anew.
                    Err(trouble) => {
                        let Some(why) = obstacle(&trouble) else { return Err(trouble) };
                        let there = children.get(&wanted.key).and_then(|c| c.metadata.uid.clone());
                        if !mutant::is("forgets_what_was_refused") {
                            let there = there.unwrap_or_default();
                            house.world.memory.refused::<C::Kind>(key, &wanted, &there, why);
                        }
                        return Ok(Applied::Something);
                    }
                }
            }
            (Action::HandOver(part), _) => {
                let children = house.world.children(part.kind);
                match house.writer.hand_over(&part, children).await {
                    // Whoever is in the way has the field: it is handed over already.
                    Ok(()) | Err(Trouble::Conflict) => {}
                    Err(trouble) => return Err(trouble),
                }
            }
            (Action::Delete(doomed), _) => {
                house.writer.delete(&doomed).await?;
                changed = true;
            }
            (Action::AddFinalizer(name), Some(object)) => {
                house.writer.add_finalizer(&manager, object, name, cache).await?;
                changed = true;
            }
            (Action::RemoveFinalizer(name), Some(object)) => {
                house.writer.remove_finalizer(object, name).await?;
                tell(house, object, &plan.events).await;
                // Nothing more can be said of it: it is going.
                return Ok(Applied::Nothing);
            }
            (Action::Scale(replicas), Some(object)) => {
                house.writer.scale(object, replicas).await?;
                house.world.schedulers.granted(key);
                changed = true;
            }
            (Action::Decline(why), object) => {
                if let (Some(why), Some(object)) = (why, object) {
                    tell(house, object, &[why]).await;
                }
                house.world.schedulers.granted(key);
                changed = true;
            }
            (Action::Load(_) | Action::Unload(_) | Action::Notify(_), _) if !house.may_write() => {
                return Err(Trouble::NotLeading);
            }
            (Action::Load(model), _) => {
                let answer = house.link(&key.namespace, |link| async move { link.load(*model).await }).await;
                settle(house, key, Verb::Load, object, answer)?;
                changed = true;
            }
            (Action::Unload(request), _) => {
                let answer =
                    house.link(&key.namespace, |link| async move { link.unload(request).await }).await;
                settle(house, key, Verb::Unload, object, answer)?;
                changed = true;
            }
            (Action::Notify(server), _) => {
                let answer =
                    house.link(&key.namespace, |link| async move { link.notify(server).await }).await;
                settle(house, key, Verb::Notify, object, answer)?;
                changed = true;
            }
            // The object is gone: there is nothing to hold or to scale.
            (Action::AddFinalizer(_) | Action::RemoveFinalizer(_) | Action::Scale(_), None) => {}
        }
    }
    if let (Some(status), Some(object)) = (&plan.status, object)
        && (object.status.as_ref() != Some(status) || mutant::is("writes_what_is_written"))
    {
        house.writer.status(object, status, cache).await?;
        // The answer, which is in the cache now, may hold what others changed meanwhile: the watch brings it as nothing new.
        changed |= !mutant::is("overlooks_what_answers_bring");
        if C::PACED {
            house.world.memory.told::<C::Kind>(key);
        }
        tell(house, object, &plan.events).await;
    }
    Ok(if changed { Applied::Something } else { Applied::Nothing })
}

/// What is in the way of an object for longer than a moment; `None` when asking again may help.
fn obstacle(trouble: &Trouble) -> Option<Obstacle> {
    match trouble {
        Trouble::Refused(why) | Trouble::Forbidden(why) => Some(Obstacle::ApiServer(why.clone())),
        Trouble::Taken(Whose::Predecessor(whose)) => Some(Obstacle::Predecessor(whose.clone())),
        Trouble::Taken(Whose::Stranger(whose)) => Some(Obstacle::Stranger(whose.clone())),
        _ => None,
    }
}

async fn tell<K: CustomKind>(house: &House, object: &Custom<K>, events: &[Happening]) {
    for event in events {
        house.writer.tell(object, event, (house.clock)()).await;
    }
}

/// Keeps what a scheduler answered, or that it did not, for the next plan.
fn settle<K: CustomKind>(
    house: &House,
    key: &Key,
    verb: Verb,
    object: Option<&Custom<K>>,
    answer: Answer,
) -> Result<(), Trouble> {
    let Some(object) = object else {
        // Nobody is left who could be told.
        house.world.schedulers.forget_asked(K::KIND, key);
        return match answer {
            Answer::Done => Ok(()),
            Answer::Refused(why) => Err(Trouble::Refused(why)),
            Answer::Later(why) => Err(Trouble::Passing(why)),
        };
    };
    let errand = Errand { verb, uid: object.uid().to_owned(), generation: object.generation() };
    match answer {
        Answer::Done => house.world.schedulers.asked(K::KIND, key, errand, None),
        Answer::Refused(why) => house.world.schedulers.asked(K::KIND, key, errand, Some(why)),
        Answer::Later(why) => house.world.schedulers.unanswered(K::KIND, key, errand, why),
    }
    Ok(())
}
