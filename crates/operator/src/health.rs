//! Whether the operator sees what it has to see.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

/// What each watch last said of itself.
#[derive(Clone, Debug, Default)]
pub struct Health {
    watches: Arc<Mutex<BTreeMap<String, Watch>>>,
}

#[derive(Clone, Debug, Default)]
struct Watch {
    /// Whether it ever had a whole list.
    listed: bool,
    trouble: Option<String>,
}

impl Health {
    /// A report for one more watch, named as people would name it: `models` or `models in ml`.
    pub fn watch(&self, name: String) -> WatchReport {
        self.edit(&name, |_| {});
        WatchReport { health: self.clone(), name }
    }

    fn edit(&self, name: &str, change: impl FnOnce(&mut Watch)) {
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        change(watches.entry(name.to_owned()).or_default());
    }

    /// What is waited for before anything can be decided; nothing when all lists are complete.
    pub fn not_ready(&self) -> Vec<String> {
        let watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches
            .iter()
            .filter(|(_, watch)| !watch.listed)
            .map(|(name, watch)| match &watch.trouble {
                Some(trouble) => format!("{name}: {trouble}"),
                None => format!("{name}: being listed"),
            })
            .collect()
    }

    /// Watches that do not work just now, and why.
    pub fn troubles(&self) -> Vec<(String, String)> {
        let watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.iter().filter_map(|(name, w)| Some((name.clone(), w.trouble.clone()?))).collect()
    }
}

/// How one watch says how it is.
#[derive(Clone, Debug)]
pub struct WatchReport {
    health: Health,
    name: String,
}

impl WatchReport {
    /// It works.
    pub fn works(&self) {
        self.health.edit(&self.name, |watch| {
            watch.listed = true;
            if watch.trouble.take().is_some() {
                tracing::info!(watch = %self.name, "works again");
            }
        });
    }

    /// It does not work, for now.
    pub fn fails(&self, why: &str) {
        let why = remedy(&self.name, why);
        self.health.edit(&self.name, |watch| {
            // The same trouble is told once, not with each try.
            if watch.trouble.as_deref() != Some(&why) {
                tracing::warn!(watch = %self.name, "{why}");
            }
            watch.trouble = Some(why);
        });
    }
}

/// What a person can do about the usual reasons.
fn remedy(watch: &str, why: &str) -> String {
    if why.contains("404")
        || why.contains("NotFound")
        || why.contains("could not find the requested resource")
    {
        return format!(
            "the API server does not know {watch}: install the CRDs with `gantry install --crds | kubectl apply -f -`"
        );
    }
    if why.contains("Forbidden") || why.contains("forbidden") {
        return format!(
            "the operator may not list or watch {watch}: its Role is not the one that is installed with it"
        );
    }
    why.to_owned()
}
