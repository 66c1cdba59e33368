//! Which models are in the server's memory, and which must leave when there is no room. Pure: no server, no clock.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Where a model is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// On disk only: the server knows nothing of it.
    Disk,
    /// On its way into memory; its room is taken.
    Coming,
    /// In memory: it can answer.
    Memory,
    /// On its way out; its room is not free yet.
    Leaving,
}

/// What stands between a model and the memory that it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// Nothing.
    Free,
    /// These, the least recently used first: they may leave.
    Evict(Vec<Arc<str>>),
    /// Others, which are busy: when one of them is done, ask again.
    Wait,
    /// The model is larger than the memory.
    Never,
}

#[derive(Clone, Copy, Debug)]
struct Model {
    size: u64,
    place: Place,
    /// The number of the last use; higher is later.
    used: u64,
    /// Requests that need it where it is.
    holds: u32,
}

impl Model {
    fn takes_room(&self) -> bool {
        self.place != Place::Disk
    }
}

/// The models of one server.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    capacity: u64,
    uses: u64,
    models: BTreeMap<Arc<str>, Model>,
    /// Those in memory that nobody holds, by their last use.
    idle: BTreeSet<(u64, Arc<str>)>,
    /// Bytes of those that take room, and of those among them that are about to free it.
    taken: u64,
    leaving: u64,
    /// Bytes of those on disk only.
    disk: u64,
}

impl Memory {
    pub(crate) fn new(capacity: u64) -> Self {
        Self {
            capacity,
            uses: 0,
            models: BTreeMap::new(),
            idle: BTreeSet::new(),
            taken: 0,
            leaving: 0,
            disk: 0,
        }
    }

    /// Changes a model, and with it the sums and the order of the idle ones.
    fn change(&mut self, name: &str, change: impl FnOnce(&mut Model)) {
        let Some((name, model)) = self.models.get_key_value(name).map(|(n, m)| (n.clone(), *m)) else {
            return;
        };
        self.count(&name, model, false);
        let mut changed = model;
        change(&mut changed);
        self.count(&name, changed, true);
        self.models.insert(name, changed);
    }

    fn count(&mut self, name: &Arc<str>, model: Model, present: bool) {
        let sums: [(&mut u64, bool); 3] = [
            (&mut self.taken, model.takes_room()),
            (&mut self.leaving, model.place == Place::Leaving),
            (&mut self.disk, !model.takes_room()),
        ];
        for (sum, _) in sums.into_iter().filter(|(_, counts)| *counts) {
            *sum = if present { sum.saturating_add(model.size) } else { sum.saturating_sub(model.size) };
        }
        if model.place == Place::Memory && model.holds == 0 {
            let key = (model.used, name.clone());
            if present {
                self.idle.insert(key)
            } else {
                self.idle.remove(&key)
            };
        }
    }

    /// Adds a model on disk, as used just now.
    pub(crate) fn insert(&mut self, name: Arc<str>, size: u64) {
        self.remove(&name);
        self.uses += 1;
        let model = Model { size, place: Place::Disk, used: self.uses, holds: 0 };
        self.count(&name, model, true);
        self.models.insert(name, model);
    }

    pub(crate) fn remove(&mut self, name: &str) {
        if let Some((name, model)) = self.models.remove_entry(name) {
            self.count(&name, model, false);
        }
    }

    pub(crate) fn place(&self, name: &str) -> Option<Place> {
        self.models.get(name).map(|m| m.place)
    }

    pub(crate) fn size(&self, name: &str) -> u64 {
        self.models.get(name).map_or(0, |m| m.size)
    }

    pub(crate) fn set_place(&mut self, name: &str, place: Place) {
        self.change(name, |m| m.place = place);
    }

    /// A request needs the model: it is used now, and may not leave. False when there is no such model.
    pub(crate) fn hold(&mut self, name: &str) -> bool {
        self.uses += 1;
        let used = self.uses;
        self.change(name, |m| {
            m.used = used;
            m.holds = m.holds.saturating_add(1);
        });
        self.models.contains_key(name)
    }

    pub(crate) fn release(&mut self, name: &str) {
        self.change(name, |m| m.holds = m.holds.saturating_sub(1));
    }

    pub(crate) fn holds(&self, name: &str) -> u32 {
        self.models.get(name).map_or(0, |m| m.holds)
    }

    /// What must happen before a model on disk can come into memory.
    pub(crate) fn room_for(&self, name: &str) -> Room {
        let Some(model) = self.models.get(name) else { return Room::Never };
        if model.size > self.capacity {
            return Room::Never;
        }
        if model.takes_room() {
            return Room::Free;
        }
        let needed = self.taken.saturating_add(model.size).saturating_sub(self.capacity);
        if needed == 0 {
            return Room::Free;
        }
        // Those that are leaving already make room without being asked again.
        let mut missing = needed.saturating_sub(self.leaving);
        if missing == 0 {
            return Room::Wait;
        }
        let mut victims = Vec::new();
        for (_, name) in &self.idle {
            // What takes no memory frees none.
            let size = self.size(name);
            if size == 0 {
                continue;
            }
            victims.push(name.clone());
            missing = missing.saturating_sub(size);
            if missing == 0 {
                return Room::Evict(victims);
            }
        }
        Room::Wait
    }

    /// The idle models that must leave because more is in memory than fits; none when all is well.
    pub(crate) fn excess(&self) -> Vec<Arc<str>> {
        let mut over = self.taken.saturating_sub(self.leaving).saturating_sub(self.capacity);
        let mut victims = Vec::new();
        for (_, name) in &self.idle {
            if over == 0 {
                break;
            }
            let size = self.size(name);
            if size > 0 {
                victims.push(name.clone());
                over = over.saturating_sub(size);
            }
        }
        victims
    }

    /// The models, the most recently used first.
    pub(crate) fn by_use(&self) -> Vec<Arc<str>> {
        let mut names: Vec<_> = self.models.iter().map(|(n, m)| (std::cmp::Reverse(m.used), n)).collect();
        names.sort();
        names.into_iter().map(|(_, name)| name.clone()).collect()
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes of the models that take room in memory.
    pub(crate) fn bytes_taken(&self) -> u64 {
        self.taken
    }

    /// Bytes of the models that are on disk only.
    pub(crate) fn bytes_on_disk(&self) -> u64 {
        self.disk
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn filled(capacity: u64, models: &[(&str, u64)]) -> Memory {
        let mut memory = Memory::new(capacity);
        for (name, size) in models {
            memory.insert((*name).into(), *size);
            memory.set_place(name, Place::Memory);
        }
        memory
    }

    #[test]
    fn the_least_recently_used_leaves() {
        let mut memory = filled(10, &[("a", 4), ("b", 3), ("c", 3)]);
        memory.insert("d".into(), 4);
        assert_eq!(memory.room_for("d"), Room::Evict(vec!["a".into()]));
        memory.hold("a");
        memory.release("a");
        assert_eq!(memory.room_for("d"), Room::Evict(vec!["b".into(), "c".into()]));
        memory.hold("b");
        assert_eq!(memory.room_for("d"), Room::Evict(vec!["c".into(), "a".into()]), "who is held stays");
        memory.hold("c");
        memory.hold("a");
        assert_eq!(memory.room_for("d"), Room::Wait);
        memory.release("a");
        memory.set_place("a", Place::Leaving);
        assert_eq!(memory.room_for("d"), Room::Wait, "a is on its way out: that is enough");
        memory.set_place("a", Place::Disk);
        assert_eq!(memory.room_for("d"), Room::Free);
        memory.insert("huge".into(), 11);
        assert_eq!(memory.room_for("huge"), Room::Never);
        assert_eq!(memory.room_for("nobody"), Room::Never);
    }

    #[test]
    fn what_is_too_much_after_a_restart_leaves() {
        let memory = filled(5, &[("a", 3), ("b", 3), ("c", 2)]);
        assert_eq!(memory.excess(), ["a".into()]);
        assert!(filled(8, &[("a", 3), ("b", 3), ("c", 2)]).excess().is_empty());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u8, u64),
        Remove(u8),
        Hold(u8),
        Release(u8),
        Bring(u8),
        Arrived(u8),
        Left(u8),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let name = 0..6u8;
        proptest::collection::vec(
            prop_oneof![
                (name.clone(), 0..8u64).prop_map(|(n, s)| Step::Insert(n, s)),
                name.clone().prop_map(Step::Remove),
                name.clone().prop_map(Step::Hold),
                name.clone().prop_map(Step::Release),
                name.clone().prop_map(Step::Bring),
                name.clone().prop_map(Step::Arrived),
                name.prop_map(Step::Left),
            ],
            0..60,
        )
    }

    proptest! {
        /// As the shelf uses it: memory is never over-full, who is held never leaves, and the victims are the
        /// shortest row of the least recently used that makes room.
        #[test]
        fn room_is_made_fairly(steps in steps()) {
            let mut memory = Memory::new(10);
            for step in steps {
                let name = |n: u8| format!("m{n}");
                match step {
                    Step::Insert(n, size) if memory.place(&name(n)).is_none() => {
                        memory.insert(name(n).into(), size);
                    }
                    Step::Remove(n) if memory.place(&name(n)) == Some(Place::Disk) => memory.remove(&name(n)),
                    Step::Hold(n) => {
                        memory.hold(&name(n));
                    }
                    Step::Release(n) => memory.release(&name(n)),
                    Step::Arrived(n) if memory.place(&name(n)) == Some(Place::Coming) => {
                        memory.set_place(&name(n), Place::Memory);
                    }
                    Step::Left(n) if memory.place(&name(n)) == Some(Place::Leaving) => {
                        memory.set_place(&name(n), Place::Disk);
                    }
                    Step::Bring(n) if memory.place(&name(n)) == Some(Place::Disk) => match memory.room_for(&name(n)) {
                        Room::Free => memory.set_place(&name(n), Place::Coming),
                        Room::Evict(victims) => {
                            let size = memory.size(&name(n));
                            let freed: u64 = victims.iter().map(|v| memory.size(v)).sum();
                            let last = victims.last().map_or(0, |v| memory.size(v));
                            let free = memory.capacity() + memory.leaving - memory.taken;
                            prop_assert!(free + freed >= size, "enough leave");
                            prop_assert!(free + freed - last < size, "no more than needed");
                            let newest = victims.iter().filter_map(|v| memory.models.get(v)).map(|m| m.used).max();
                            for (other, model) in &memory.models {
                                let idle = model.place == Place::Memory && model.holds == 0 && model.size > 0;
                                prop_assert!(!victims.contains(other) || idle, "{other} may not leave");
                                let older = Some(model.used) < newest;
                                prop_assert!(!idle || !older || victims.contains(other), "{other} was used before");
                            }
                            for victim in victims {
                                memory.set_place(&victim, Place::Leaving);
                            }
                        }
                        Room::Wait | Room::Never => {}
                    },
                    _ => {}
                }
                let sum = |wanted: fn(&Model) -> bool| -> u64 {
                    memory.models.values().filter(|m| wanted(m)).map(|m| m.size).sum()
                };
                prop_assert_eq!(memory.taken, sum(Model::takes_room));
                prop_assert_eq!(memory.leaving, sum(|m| m.place == Place::Leaving));
                prop_assert_eq!(memory.disk, sum(|m| m.place == Place::Disk));
                prop_assert!(memory.taken <= memory.capacity);
            }
        }
    }
}
