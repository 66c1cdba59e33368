//! What each namespace's scheduler said last.

use crate::{
    cluster::{CustomKind as _, Key, Model},
    plan::Known,
};
use gantry_core::mutant;
use gantry_proto::scheduler as pb;
use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// A model as its scheduler has it.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelView {
    /// Whether somebody unloaded it; it may still be on its way out.
    pub deleted: bool,
    /// Who manages it there, such as `operator:ml`; empty from schedulers that do not say.
    pub manager: String,
    /// The latest version, as it was asked for and as it is.
    pub latest: Option<pb::ModelVersionStatus>,
}

/// A server as its scheduler has it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerView {
    /// Replicas that joined.
    pub available: i32,
    /// Replicas that were announced.
    pub expected: i32,
    /// Copies of models on its replicas.
    pub loaded_models: i32,
    /// The generation that was announced.
    pub generation: Option<i64>,
    /// The namespace that it was announced from.
    pub namespace: Option<String>,
    /// Who manages it there, such as `operator:ml`; empty from schedulers that do not say.
    pub manager: String,
    /// The replicas that the scheduler wants it to have, if it asked since then.
    pub wanted: Option<i32>,
}

/// Every scheduler's word. Nothing in it outlives the connection that it came over.
#[derive(Debug, Default)]
pub struct Book {
    namespaces: Mutex<BTreeMap<String, Page>>,
}

#[derive(Debug, Default)]
struct Page {
    /// Whether everything that the scheduler has was heard over the connection that stands.
    complete: bool,
    /// Why not.
    why: String,
    /// Since when nothing is heard.
    silent_since: Option<Instant>,
    models: BTreeMap<String, ModelView>,
    servers: BTreeMap<String, ServerView>,
    /// What was asked lately, by kind and name.
    asked: BTreeMap<(&'static str, String), Asked>,
}

/// What is asked of a scheduler, and for which object: another of the same name is another errand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errand {
    /// What is asked.
    pub verb: Verb,
    /// The object's identity.
    pub uid: String,
    /// Its generation.
    pub generation: i64,
}

/// What can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Serve a model.
    Load,
    /// Stop serving it.
    Unload,
    /// Take note of a server.
    Notify,
}

/// What was asked of a scheduler for one object, and what came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// When.
    pub at: Instant,
    /// What.
    pub errand: Errand,
    /// Why it was refused, if it was.
    pub refusal: Option<String>,
    /// Why there was no answer, if there was none.
    pub unanswered: Option<String>,
}

impl Book {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Page>> {
        self.namespaces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn page<T>(&self, namespace: &str, read: impl FnOnce(&Page) -> T) -> Option<T> {
        self.lock().get(namespace).map(read)
    }

    /// Writes on a namespace's page, if it has one: what was under way when its scheduler went, and ends only now, must
    /// not make the namespace look as if it had one.
    fn edit<T: Default>(&self, namespace: &str, change: impl FnOnce(&mut Page) -> T) -> T {
        self.lock().get_mut(namespace).map(change).unwrap_or_default()
    }

    /// The namespace has a scheduler, which is not connected yet.
    pub fn open(&self, namespace: &str) {
        let why = "the scheduler is not connected yet".to_owned();
        let page = Page { why, silent_since: Some(Instant::now()), ..Page::default() };
        self.lock().insert(namespace.to_owned(), page);
    }

    /// Nothing is known of a namespace's scheduler any more, and why.
    pub fn lost(&self, namespace: &str, why: &str) {
        self.edit(namespace, |page| {
            let since = page.silent_since.unwrap_or_else(Instant::now);
            if mutant::is("believes_what_a_lost_scheduler_said") {
                return;
            }
            *page = Page { why: why.to_owned(), silent_since: Some(since), ..Page::default() };
        });
    }

    /// A new connection begins: what it says is taken in, but not yet trusted to be all.
    pub fn begin(&self, namespace: &str) {
        self.edit(namespace, |page| {
            let since = page.silent_since;
            *page = Page {
                why: "the scheduler is being asked what it has".into(),
                silent_since: since,
                ..Page::default()
            };
        });
    }

    /// Everything that the scheduler has was heard.
    pub fn complete(&self, namespace: &str) {
        self.edit(namespace, |page| {
            page.complete = true;
            page.silent_since = None;
        });
    }

    /// The namespace has no scheduler any more.
    pub fn forget(&self, namespace: &str) {
        self.lock().remove(namespace);
    }

    /// What was said about a model. `false` when it is nothing new.
    pub fn model(&self, namespace: &str, status: pb::ModelStatusResponse) -> bool {
        let latest = status.versions.into_iter().max_by_key(|v| v.version);
        let view = ModelView { deleted: status.deleted, manager: status.manager, latest };
        self.edit(namespace, |page| {
            if page.models.get(&status.model_name) == Some(&view) {
                return false;
            }
            // What was refused as things were may be taken as they are now.
            let asked = (Model::KIND, status.model_name.clone());
            if page.asked.get(&asked).is_some_and(|a| a.refusal.is_some()) && !mutant::is("holds_grudges") {
                page.asked.remove(&asked);
            }
            page.models.insert(status.model_name, view);
            true
        })
    }

    /// What was said about a server. `false` when it is nothing new.
    pub fn server(&self, namespace: &str, status: &pb::ServerStatusResponse) -> bool {
        use pb::server_status_response::Type;
        self.edit(namespace, |page| {
            let view = page.servers.entry(status.server_name.clone()).or_default();
            let before = view.clone();
            if status.r#type() == Type::ScalingRequest {
                view.wanted = Some(status.expected_replicas);
            } else {
                view.available = status.available_replicas;
                view.expected = status.expected_replicas;
                view.loaded_models = status.num_loaded_model_replicas;
                view.generation = status.kubernetes_meta.as_ref().map(|m| m.generation);
                view.namespace = status.kubernetes_meta.as_ref().map(|m| m.namespace.clone());
                view.manager.clone_from(&status.manager);
            }
            *view != before
        })
    }

    /// A server's wish for replicas was dealt with.
    pub fn granted(&self, key: &Key) {
        self.edit(&key.namespace, |page| {
            if let Some(view) = page.servers.get_mut(&key.name) {
                view.wanted = None;
            }
        });
    }

    /// Remembers what was asked for an object and what came of it.
    pub fn asked(&self, kind: &'static str, key: &Key, errand: Errand, refusal: Option<String>) {
        self.remember(kind, key, Asked { at: Instant::now(), errand, refusal, unanswered: None });
    }

    /// Remembers that what was asked for an object was not answered.
    pub fn unanswered(&self, kind: &'static str, key: &Key, errand: Errand, why: String) {
        self.remember(kind, key, Asked { at: Instant::now(), errand, refusal: None, unanswered: Some(why) });
    }

    fn remember(&self, kind: &'static str, key: &Key, asked: Asked) {
        self.edit(&key.namespace, |page| {
            page.asked.insert((kind, key.name.clone()), asked);
        });
    }

    /// What was asked last for an object, and how long ago.
    pub fn last_asked(&self, kind: &'static str, key: &Key) -> Option<(Asked, Duration)> {
        let asked =
            self.page(&key.namespace, |page| page.asked.get(&(kind, key.name.clone())).cloned()).flatten()?;
        let ago = asked.at.elapsed();
        Some((asked, ago))
    }

    /// An object is gone: what was asked for it does not matter any more.
    pub fn forget_asked(&self, kind: &'static str, key: &Key) {
        if let Some(page) = self.lock().get_mut(&key.namespace) {
            page.asked.remove(&(kind, key.name.clone()));
        }
    }

    /// What a namespace's scheduler has of a model.
    pub fn known_model(&self, key: &Key) -> Known<ModelView> {
        self.known(key, |page| page.models.get(&key.name).cloned())
    }

    /// What it has of a server.
    pub fn known_server(&self, key: &Key) -> Known<ServerView> {
        self.known(key, |page| page.servers.get(&key.name).cloned())
    }

    fn known<T>(&self, key: &Key, get: impl FnOnce(&Page) -> Option<T>) -> Known<T> {
        let known = self.page(&key.namespace, |page| {
            if page.complete {
                get(page).map_or(Known::Absent, Known::Present)
            } else {
                Known::Unknown(page.why.clone())
            }
        });
        known.unwrap_or_else(|| Known::Unknown(NO_SCHEDULER.into()))
    }

    /// How long a namespace's scheduler has not been heard; `None` when it is.
    pub fn silence(&self, namespace: &str) -> Option<Duration> {
        self.page(namespace, |page| page.silent_since.map(|since| since.elapsed())).flatten()
    }

    /// Whether a namespace has a scheduler at all, reachable or not.
    pub fn has_scheduler(&self, namespace: &str) -> bool {
        self.page(namespace, |_| ()).is_some()
    }

    /// Names of the models that a scheduler has and that came from this namespace.
    pub fn models_of(&self, namespace: &str) -> Vec<String> {
        self.page(namespace, |page| {
            let ours = |view: &&ModelView| {
                !view.deleted && view.is_from(namespace) && !mutant::is("forgets_orphans")
            };
            page.models.iter().filter(|(_, v)| ours(v)).map(|(name, _)| name.clone()).collect()
        })
        .unwrap_or_default()
    }

    /// Names of the servers that a scheduler expects because this namespace announced them.
    pub fn servers_of(&self, namespace: &str) -> Vec<String> {
        self.page(namespace, |page| {
            let ours = |view: &&ServerView| {
                view.is_expected_for(namespace) && !mutant::is("forgets_orphaned_servers")
            };
            page.servers.iter().filter(|(_, v)| ours(v)).map(|(name, _)| name.clone()).collect()
        })
        .unwrap_or_default()
    }
}

/// What is said where there is no scheduler to ask.
pub const NO_SCHEDULER: &str = "the namespace has no scheduler: create a SeldonRuntime in it";

impl ServerView {
    /// Whether replicas are expected because a namespace's operator announced them.
    pub fn is_expected_for(&self, namespace: &str) -> bool {
        let named = self.manager.is_empty() || self.manager == format!("operator:{namespace}");
        self.expected > 0 && named && self.namespace.as_deref() == Some(namespace)
    }
}

impl ModelView {
    /// Whether a namespace's operator put it there.
    pub fn is_from(&self, namespace: &str) -> bool {
        let meta = self.latest.as_ref().and_then(|l| l.kubernetes_meta.as_ref());
        let named = self.manager.is_empty() || self.manager == format!("operator:{namespace}");
        named && meta.is_some_and(|m| m.namespace == namespace)
    }

    /// The state that it is in.
    pub fn state(&self) -> pb::model_status::ModelState {
        self.latest
            .as_ref()
            .and_then(|l| l.state.as_ref())
            .map_or_else(Default::default, pb::ModelStatus::state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_namespace_whose_scheduler_went_has_none_whatever_ends_later() {
        let (book, key) = (Book::default(), Key::new("ml", "iris"));
        let errand = || Errand { verb: Verb::Unload, uid: "u".into(), generation: 1 };
        book.open("ml");
        book.begin("ml");
        book.complete("ml");
        assert!(book.has_scheduler("ml") && book.silence("ml").is_none());
        book.asked(Model::KIND, &key, errand(), None);
        assert!(book.last_asked(Model::KIND, &key).is_some());
        book.forget("ml");
        // What a link and a reconciliation may still have had in hand.
        book.unanswered(Model::KIND, &key, errand(), "no answer".into());
        book.model("ml", pb::ModelStatusResponse { model_name: "iris".into(), ..Default::default() });
        book.lost("ml", "the connection broke");
        book.begin("ml");
        book.complete("ml");
        assert!(!book.has_scheduler("ml"));
        assert_eq!(book.known_model(&key), Known::Unknown(NO_SCHEDULER.into()));
    }
}
