//! What is wanted of servers, from two sides: manifests say what and how many, the scheduler asks for more or fewer.

use super::recipe::Recipe;
use gantry_proto::scheduler::ServerNotify;
use std::collections::BTreeMap;
use tokio::sync::watch;

/// By server: how it is run, and in how many replicas.
pub(super) type Wanted = BTreeMap<String, (Recipe, u32)>;

/// What is wanted of each server: from its manifest, and how many replicas the scheduler asked for.
#[derive(Clone, Debug)]
pub(crate) struct Wishes(watch::Sender<Wanted>);

impl Wishes {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(BTreeMap::new()))
    }

    /// Everything that is wanted, now and whenever it changes.
    pub(super) fn subscribe(&self) -> watch::Receiver<Wanted> {
        self.0.subscribe()
    }

    /// Takes what the manifests say. A server whose manifest says the same as before keeps the size it was scaled to.
    pub(crate) fn set(&self, recipes: &BTreeMap<String, Recipe>) {
        self.0.send_if_modified(|wanted| {
            let next: BTreeMap<_, _> = recipes
                .iter()
                .map(|(name, recipe)| {
                    let kept = wanted
                        .get(name)
                        .filter(|(old, _)| old.replicas == recipe.replicas && old.bounds == recipe.bounds);
                    (name.clone(), (recipe.clone(), kept.map_or(recipe.replicas, |(_, size)| *size)))
                })
                .collect();
            let changed = next != *wanted;
            *wanted = next;
            changed
        });
    }

    /// Takes a request for another size; says what is announced, if it is a change of a server of ours.
    pub(crate) fn scale(&self, server: &str, asked: u32) -> Option<(u32, ServerNotify)> {
        let mut announced = None;
        self.0.send_if_modified(|wanted| {
            let Some((recipe, size)) = wanted.get_mut(server) else { return false };
            let (fewest, most) = recipe.bounds;
            let next = asked.clamp(fewest, most);
            if next == *size {
                return false;
            }
            *size = next;
            announced = Some((
                next,
                ServerNotify {
                    name: server.to_owned(),
                    expected_replicas: next,
                    shared: true,
                    min_replicas: fewest,
                    max_replicas: most,
                    ..ServerNotify::default()
                },
            ));
            true
        });
        announced
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe(replicas: u32, bounds: (u32, u32)) -> Recipe {
        Recipe {
            command: vec!["a".into()],
            env: BTreeMap::new(),
            directory: "/".into(),
            kind: "oip".into(),
            capabilities: vec![],
            memory: 1,
            over_commit: 0,
            replicas,
            bounds,
        }
    }

    #[test]
    fn sizes_follow_the_scheduler_within_the_manifests_bounds() {
        let wishes = Wishes::new();
        let size = || wishes.subscribe().borrow().get("s").map(|(_, size)| *size);
        let set = |recipe| wishes.set(&[("s".to_owned(), recipe)].into());
        set(recipe(2, (1, 4)));
        assert_eq!(size(), Some(2));
        let (replicas, announced) = wishes.scale("s", 9).unwrap();
        assert_eq!((replicas, announced.expected_replicas, announced.max_replicas), (4, 4, 4));
        assert_eq!(wishes.scale("s", 7), None, "it is as large as it may be");
        assert_eq!(wishes.scale("other", 1), None, "it is not ours");
        // A manifest that says the same, or changes something else, leaves the size as it is.
        set(Recipe { memory: 2, ..recipe(2, (1, 4)) });
        assert_eq!(size(), Some(4));
        set(recipe(3, (1, 4)));
        assert_eq!(size(), Some(3));
        assert_eq!(wishes.scale("s", 0).map(|(replicas, _)| replicas), Some(1));
        wishes.set(&BTreeMap::new());
        assert_eq!(size(), None);
    }
}
