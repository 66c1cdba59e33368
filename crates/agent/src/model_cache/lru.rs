//! LRU accounting of the server's memory. Pure: no server, no clock.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Residency {
    /// On disk only.
    Disk,
    /// Memory is reserved.
    Loading,
    Memory,
    /// Memory is still in use.
    Unloading,
}

/// What a model needs before it can be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    Free,
    /// Evict these, least recently used first.
    Evict(Vec<Arc<str>>),
    /// Busy models must finish first.
    Wait,
    /// Larger than the memory.
    Never,
}

#[derive(Clone, Copy, Debug)]
struct Model {
    size: u64,
    residency: Residency,
    /// Logical time of the last use.
    used: u64,
    /// Requests in flight.
    in_flight: u32,
}

impl Model {
    fn resident(&self) -> bool {
        self.residency != Residency::Disk
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Lru {
    capacity: u64,
    uses: u64,
    models: BTreeMap<Arc<str>, Model>,
    /// Resident models without requests, by last use.
    idle: BTreeSet<(u64, Arc<str>)>,
    /// Bytes of resident models, and of those among them being unloaded.
    resident: u64,
    unloading: u64,
    /// Bytes of models on disk only.
    disk: u64,
}

impl Lru {
    pub(crate) fn new(capacity: u64) -> Self {
        Self {
            capacity,
            uses: 0,
            models: BTreeMap::new(),
            idle: BTreeSet::new(),
            resident: 0,
            unloading: 0,
            disk: 0,
        }
    }

    /// Updates a model together with the totals and the LRU order.
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
            (&mut self.resident, model.resident()),
            (&mut self.unloading, model.residency == Residency::Unloading),
            (&mut self.disk, !model.resident()),
        ];
        for (sum, _) in sums.into_iter().filter(|(_, counts)| *counts) {
            *sum = if present { sum.saturating_add(model.size) } else { sum.saturating_sub(model.size) };
        }
        if model.residency == Residency::Memory && model.in_flight == 0 {
            let key = (model.used, name.clone());
            if present {
                self.idle.insert(key)
            } else {
                self.idle.remove(&key)
            };
        }
    }

    pub(crate) fn insert(&mut self, name: Arc<str>, size: u64) {
        self.remove(&name);
        self.uses += 1;
        let model = Model { size, residency: Residency::Disk, used: self.uses, in_flight: 0 };
        self.count(&name, model, true);
        self.models.insert(name, model);
    }

    pub(crate) fn remove(&mut self, name: &str) {
        if let Some((name, model)) = self.models.remove_entry(name) {
            self.count(&name, model, false);
        }
    }

    pub(crate) fn residency(&self, name: &str) -> Option<Residency> {
        self.models.get(name).map(|m| m.residency)
    }

    pub(crate) fn size(&self, name: &str) -> u64 {
        self.models.get(name).map_or(0, |m| m.size)
    }

    pub(crate) fn set_residency(&mut self, name: &str, residency: Residency) {
        self.change(name, |m| m.residency = residency);
    }

    /// Counts a request in flight: marks the model as used and pins it. False for an unknown model.
    pub(crate) fn pin(&mut self, name: &str) -> bool {
        self.uses += 1;
        let used = self.uses;
        self.change(name, |m| {
            m.used = used;
            m.in_flight = m.in_flight.saturating_add(1);
        });
        self.models.contains_key(name)
    }

    pub(crate) fn unpin(&mut self, name: &str) {
        self.change(name, |m| m.in_flight = m.in_flight.saturating_sub(1));
    }

    pub(crate) fn in_flight(&self, name: &str) -> u32 {
        self.models.get(name).map_or(0, |m| m.in_flight)
    }

    pub(crate) fn admission(&self, name: &str) -> Admission {
        let Some(model) = self.models.get(name) else { return Admission::Never };
        if model.size > self.capacity {
            return Admission::Never;
        }
        if model.resident() {
            return Admission::Free;
        }
        let needed = self.resident.saturating_add(model.size).saturating_sub(self.capacity);
        if needed == 0 {
            return Admission::Free;
        }
        // Unloads in progress will free memory.
        let mut missing = needed.saturating_sub(self.unloading);
        if missing == 0 {
            return Admission::Wait;
        }
        let mut victims = Vec::new();
        for (_, name) in &self.idle {
            // Evicting it would free nothing.
            let size = self.size(name);
            if size == 0 {
                continue;
            }
            victims.push(name.clone());
            missing = missing.saturating_sub(size);
            if missing == 0 {
                return Admission::Evict(victims);
            }
        }
        Admission::Wait
    }

    /// Idle models to evict because the capacity is exceeded.
    pub(crate) fn excess(&self) -> Vec<Arc<str>> {
        let mut over = self.resident.saturating_sub(self.unloading).saturating_sub(self.capacity);
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

    /// Most recently used first.
    pub(crate) fn by_recency(&self) -> Vec<Arc<str>> {
        let mut names: Vec<_> = self.models.iter().map(|(n, m)| (std::cmp::Reverse(m.used), n)).collect();
        names.sort();
        names.into_iter().map(|(_, name)| name.clone()).collect()
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(crate) fn resident_bytes(&self) -> u64 {
        self.resident
    }

    pub(crate) fn disk_bytes(&self) -> u64 {
        self.disk
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn filled(capacity: u64, models: &[(&str, u64)]) -> Lru {
        let mut memory = Lru::new(capacity);
        for (name, size) in models {
            memory.insert((*name).into(), *size);
            memory.set_residency(name, Residency::Memory);
        }
        memory
    }

    #[test]
    fn admission_evicts_least_recently_used() {
        let mut memory = filled(10, &[("a", 4), ("b", 3), ("c", 3)]);
        memory.insert("d".into(), 4);
        assert_eq!(memory.admission("d"), Admission::Evict(vec!["a".into()]));
        memory.pin("a");
        memory.unpin("a");
        assert_eq!(memory.admission("d"), Admission::Evict(vec!["b".into(), "c".into()]));
        memory.pin("b");
        assert_eq!(
            memory.admission("d"),
            Admission::Evict(vec!["c".into(), "a".into()]),
            "pinned models are not evicted"
        );
        memory.pin("c");
        memory.pin("a");
        assert_eq!(memory.admission("d"), Admission::Wait);
        memory.unpin("a");
        memory.set_residency("a", Residency::Unloading);
        assert_eq!(memory.admission("d"), Admission::Wait, "unloading a frees enough");
        memory.set_residency("a", Residency::Disk);
        assert_eq!(memory.admission("d"), Admission::Free);
        memory.insert("huge".into(), 11);
        assert_eq!(memory.admission("huge"), Admission::Never);
        assert_eq!(memory.admission("absent"), Admission::Never);
    }

    #[test]
    fn excess_lists_models_over_capacity() {
        let memory = filled(5, &[("a", 3), ("b", 3), ("c", 2)]);
        assert_eq!(memory.excess(), ["a".into()]);
        assert!(filled(8, &[("a", 3), ("b", 3), ("c", 2)]).excess().is_empty());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u8, u64),
        Remove(u8),
        Pin(u8),
        Unpin(u8),
        Load(u8),
        Loaded(u8),
        Unloaded(u8),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let name = 0..6u8;
        proptest::collection::vec(
            prop_oneof![
                (name.clone(), 0..8u64).prop_map(|(n, s)| Step::Insert(n, s)),
                name.clone().prop_map(Step::Remove),
                name.clone().prop_map(Step::Pin),
                name.clone().prop_map(Step::Unpin),
                name.clone().prop_map(Step::Load),
                name.clone().prop_map(Step::Loaded),
                name.prop_map(Step::Unloaded),
            ],
            0..60,
        )
    }

    proptest! {
        /// Invariants: capacity is never exceeded, pinned models are never evicted, victims are the minimal LRU
        /// prefix.
        #[test]
        fn admission_keeps_lru_invariants(steps in steps()) {
            let mut memory = Lru::new(10);
            for step in steps {
                let name = |n: u8| format!("m{n}");
                match step {
                    Step::Insert(n, size) if memory.residency(&name(n)).is_none() => {
                        memory.insert(name(n).into(), size);
                    }
                    Step::Remove(n) if memory.residency(&name(n)) == Some(Residency::Disk) => memory.remove(&name(n)),
                    Step::Pin(n) => {
                        memory.pin(&name(n));
                    }
                    Step::Unpin(n) => memory.unpin(&name(n)),
                    Step::Loaded(n) if memory.residency(&name(n)) == Some(Residency::Loading) => {
                        memory.set_residency(&name(n), Residency::Memory);
                    }
                    Step::Unloaded(n) if memory.residency(&name(n)) == Some(Residency::Unloading) => {
                        memory.set_residency(&name(n), Residency::Disk);
                    }
                    Step::Load(n) if memory.residency(&name(n)) == Some(Residency::Disk) => match memory.admission(&name(n)) {
                        Admission::Free => memory.set_residency(&name(n), Residency::Loading),
                        Admission::Evict(victims) => {
                            let size = memory.size(&name(n));
                            let freed: u64 = victims.iter().map(|v| memory.size(v)).sum();
                            let last = victims.last().map_or(0, |v| memory.size(v));
                            let free = memory.capacity() + memory.unloading - memory.resident;
                            prop_assert!(free + freed >= size, "enough is freed");
                            prop_assert!(free + freed - last < size, "no more than needed");
                            let newest = victims.iter().filter_map(|v| memory.models.get(v)).map(|m| m.used).max();
                            for (other, model) in &memory.models {
                                let idle = model.residency == Residency::Memory && model.in_flight == 0 && model.size > 0;
                                prop_assert!(!victims.contains(other) || idle, "{other} is not evictable");
                                let older = Some(model.used) < newest;
                                prop_assert!(!idle || !older || victims.contains(other), "{other} is older");
                            }
                            for victim in victims {
                                memory.set_residency(&victim, Residency::Unloading);
                            }
                        }
                        Admission::Wait | Admission::Never => {}
                    },
                    _ => {}
                }
                let sum = |wanted: fn(&Model) -> bool| -> u64 {
                    memory.models.values().filter(|m| wanted(m)).map(|m| m.size).sum()
                };
                prop_assert_eq!(memory.resident, sum(Model::resident));
                prop_assert_eq!(memory.unloading, sum(|m| m.residency == Residency::Unloading));
                prop_assert_eq!(memory.disk, sum(|m| m.residency == Residency::Disk));
                prop_assert!(memory.resident <= memory.capacity);
            }
        }
    }
}
