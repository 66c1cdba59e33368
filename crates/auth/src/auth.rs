//! The configuration in use, kept up to date.

use crate::{
    Clock, ConfigError, Credential, Denied, Principal, Reason,
    config::{Config, KeySource, MAX_CONFIG},
    jwk::{KeySet, MAX_KEY_SET},
    metrics::Metrics,
    rate::Limits,
    sources,
    verifier::{KeySets, Verifier},
};
use arc_swap::ArcSwap;
use futures::future::join_all;
use prometheus_client::registry::Registry;
use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};

/// Contents are compared, not timestamps: the files are small, and a change may swap a symlink.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Between two downloads of one key set: an unknown key requests one early.
const MIN_FETCH_INTERVAL: Duration = Duration::from_secs(10);
/// While none has succeeded.
const FIRST_FETCH_INTERVAL: Duration = Duration::from_secs(2);

/// Authenticates requests by the configuration of a file.
pub struct Auth {
    path: PathBuf,
    clock: Clock,
    current: ArcSwap<Verifier>,
    inputs: Mutex<Inputs>,
    limits: Arc<Limits>,
    metrics: Arc<Metrics>,
}

/// What the verifier is built from.
struct Inputs {
    files: Files,
    config: Arc<Config>,
    key_sets: KeySets,
    /// The last problem, logged once.
    problem: Option<String>,
}

/// Contents of the configuration and of the files with key sets.
#[derive(PartialEq, Eq)]
struct Files {
    config: Vec<u8>,
    key_sets: BTreeMap<PathBuf, Vec<u8>>,
}

/// For a line at start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    pub keys: usize,
    pub issuers: usize,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |n: usize| if n == 1 { "" } else { "s" };
        let Self { keys, issuers } = *self;
        write!(f, "{keys} key{}, {issuers} token issuer{}", plural(keys), plural(issuers))
    }
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Auth").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Auth {
    /// Reads the configuration and the key sets in files. Key sets at URLs are fetched by [`watch`](Self::watch).
    pub fn open(path: &Path, clock: Clock) -> Result<Arc<Self>, ConfigError> {
        let (limits, metrics) = (Arc::default(), Arc::<Metrics>::default());
        let (files, config, key_sets) = load(path)?;
        let now = clock.now();
        let verifier = Verifier::new(&config, key_sets.clone(), &limits, &metrics, now);
        Ok(Arc::new(Self {
            path: path.to_owned(),
            clock,
            current: ArcSwap::from_pointee(verifier),
            inputs: Mutex::new(Inputs { files, config, key_sets, problem: None }),
            limits,
            metrics,
        }))
    }

    pub fn register_metrics(&self, registry: &mut Registry) {
        self.metrics.register(registry);
    }

    pub fn summary(&self) -> Summary {
        let inputs = self.inputs();
        Summary { keys: inputs.config.keys.len(), issuers: inputs.config.issuers.len() }
    }

    /// The principal of a request's credential; takes one request of its rate.
    pub fn authenticate(&self, credential: Option<&Credential>) -> Result<Arc<Principal>, Denied> {
        let Some(credential) = credential else { return Err(Denied::missing()) };
        self.current.load().authenticate(credential, self.clock.now())
    }

    /// Counts a refusal that has no key to count it for.
    pub fn count_refusal(&self, denied: &Denied) {
        if denied.reason != Reason::Limited {
            self.metrics.refused(denied.reason);
        }
    }

    /// Reads the files again; whether the configuration changed. Invalid files leave everything as it is.
    pub fn reload(&self) -> Result<bool, ConfigError> {
        let mut inputs = self.inputs();
        match load_changed(&self.path, &inputs.files) {
            Ok(None) => {
                inputs.problem = None;
                Ok(false)
            }
            Ok(Some((files, config, mut key_sets))) => {
                // Key sets at URLs stay.
                for (source, keys) in &inputs.key_sets {
                    if matches!(source, KeySource::Url { .. }) {
                        key_sets.entry(source.clone()).or_insert_with(|| Arc::clone(keys));
                    }
                }
                key_sets.retain(|source, _| config.issuers.iter().any(|issuer| issuer.key_source == *source));
                *inputs = Inputs { files, config, key_sets, problem: None };
                self.rebuild(&inputs);
                self.metrics.reloaded(true);
                tracing::info!(file = %self.path.display(), "authentication configuration reloaded");
                Ok(true)
            }
            Err(error) => {
                let problem = error.to_string();
                if inputs.problem.as_ref() != Some(&problem) {
                    self.metrics.reloaded(false);
                    tracing::warn!(
                        problem,
                        "authentication configuration is invalid; the last valid one stays in use"
                    );
                    inputs.problem = Some(problem);
                }
                Err(error)
            }
        }
    }

    fn rebuild(&self, inputs: &Inputs) {
        let key_sets = inputs.key_sets.clone();
        let verifier = Verifier::new(&inputs.config, key_sets, &self.limits, &self.metrics, self.clock.now());
        self.current.store(Arc::new(verifier));
    }

    fn inputs(&self) -> std::sync::MutexGuard<'_, Inputs> {
        self.inputs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows the files, and the key sets at URLs, until the last reference is dropped.
    pub fn watch(self: &Arc<Self>) {
        let weak: Weak<Self> = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(POLL_INTERVAL).await;
                let Some(auth) = weak.upgrade() else { return };
                // File IO may block.
                let _ = tokio::task::spawn_blocking(move || auth.reload()).await;
            }
        });
        let weak: Weak<Self> = Arc::downgrade(self);
        tokio::spawn(async move {
            let mut fetched: BTreeMap<KeySource, Instant> = BTreeMap::new();
            loop {
                {
                    let Some(auth) = weak.upgrade() else { return };
                    auth.fetch_due(&mut fetched).await;
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        });
    }

    /// Fetches the key sets that are missing, old, or lack the key of a token.
    async fn fetch_due(&self, fetched: &mut BTreeMap<KeySource, Instant>) {
        let unknown_key = self.current.load().take_unknown_key();
        let due: Vec<KeySource> = {
            let inputs = self.inputs();
            let is_due = |source: &KeySource, refresh: Duration| {
                let interval = match inputs.key_sets.contains_key(source) {
                    false => FIRST_FETCH_INTERVAL,
                    true if unknown_key => MIN_FETCH_INTERVAL,
                    true => refresh,
                };
                fetched.get(source).is_none_or(|at| at.elapsed() >= interval)
            };
            let urls = inputs.config.issuers.iter().filter(|issuer| {
                matches!(issuer.key_source, KeySource::Url { .. })
                    && is_due(&issuer.key_source, issuer.refresh)
            });
            urls.map(|issuer| issuer.key_source.clone()).collect()
        };
        let fetching = due.iter().map(|source| async move { (source, sources::fetch(source).await) });
        for (source, result) in join_all(fetching).await {
            let is_first = fetched.insert(source.clone(), Instant::now()).is_none();
            let keys = result.and_then(|body| KeySet::parse(&body));
            self.metrics.fetched(keys.is_ok());
            let KeySource::Url { url, .. } = source else { continue };
            match keys {
                Ok(keys) => self.set_keys(source, keys),
                Err(problem) => {
                    let state = if is_first { "its tokens are refused" } else { "the last keys stay in use" };
                    tracing::warn!(url, problem, "cannot fetch the keys of a token issuer; {state}");
                }
            }
        }
    }

    fn set_keys(&self, source: &KeySource, keys: KeySet) {
        let mut inputs = self.inputs();
        let is_used = inputs.config.issuers.iter().any(|issuer| issuer.key_source == *source);
        if is_used && inputs.key_sets.get(source).is_none_or(|old| **old != keys) {
            let KeySource::Url { url, .. } = source else { return };
            tracing::info!(url, keys = keys.len(), "keys of a token issuer changed");
            inputs.key_sets.insert(source.clone(), Arc::new(keys));
            self.rebuild(&inputs);
        }
    }
}

type Loaded = (Files, Arc<Config>, KeySets);

fn load(path: &Path) -> Result<Loaded, ConfigError> {
    let text = read(path, MAX_CONFIG)?;
    build(path, text)
}

/// `None` if nothing changed.
fn load_changed(path: &Path, before: &Files) -> Result<Option<Loaded>, ConfigError> {
    let text = read(path, MAX_CONFIG)?;
    let is_same = text == before.config
        && before.key_sets.iter().all(|(file, old)| read(file, MAX_KEY_SET).is_ok_and(|now| now == *old));
    if is_same { Ok(None) } else { build(path, text).map(Some) }
}

fn build(path: &Path, text: Vec<u8>) -> Result<Loaded, ConfigError> {
    let utf8 = std::str::from_utf8(&text).map_err(|_| error(path, "is not UTF-8"))?;
    let config = Config::parse(utf8, path)?;
    let mut files = Files { config: Vec::new(), key_sets: BTreeMap::new() };
    let mut key_sets = KeySets::new();
    for issuer in &config.issuers {
        if let KeySource::File(file) = &issuer.key_source {
            let content = read(file, MAX_KEY_SET)?;
            let keys = KeySet::parse(&content).map_err(|message| error(file, message))?;
            key_sets.insert(issuer.key_source.clone(), Arc::new(keys));
            files.key_sets.insert(file.clone(), content);
        }
    }
    files.config = text;
    Ok((files, Arc::new(config), key_sets))
}

fn read(path: &Path, limit: usize) -> Result<Vec<u8>, ConfigError> {
    sources::read(path, limit).map_err(|message| error(path, message))
}

fn error(file: &Path, message: impl Into<String>) -> ConfigError {
    ConfigError { file: file.to_owned(), line: None, message: message.into() }
}
