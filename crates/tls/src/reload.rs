//! Configuration reloaded when its files change.

use crate::Error;
use arc_swap::ArcSwap;
use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

/// Contents are compared, not timestamps: the files are small, and a renewal may swap a symlink.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// The contents of every file, in the order of the paths.
pub(crate) type Contents = Vec<Vec<u8>>;
type Build<C> = dyn Fn(&Contents) -> Result<C, Error> + Send + Sync;

/// The current configuration and the files it is built from.
pub(crate) struct Reloading<C> {
    paths: Vec<PathBuf>,
    build: Box<Build<C>>,
    current: ArcSwap<C>,
    state: Mutex<State>,
}

struct State {
    loaded: Contents,
    /// Why the last contents were rejected, and whether that was logged.
    rejected: Option<(String, bool)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReloadOutcome {
    Unchanged,
    Reloaded,
    Rejected(String),
}

impl<C> fmt::Debug for Reloading<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reloading").field("paths", &self.paths).finish_non_exhaustive()
    }
}

impl<C: Send + Sync + 'static> Reloading<C> {
    pub(crate) fn open(
        paths: Vec<PathBuf>,
        build: impl Fn(&Contents) -> Result<C, Error> + Send + Sync + 'static,
    ) -> Result<Arc<Self>, Error> {
        let loaded = read(&paths)?;
        let current = ArcSwap::from_pointee(build(&loaded)?);
        let state = Mutex::new(State { loaded, rejected: None });
        Ok(Arc::new(Self { paths, build: Box::new(build), current, state }))
    }

    pub(crate) fn current(&self) -> Arc<C> {
        self.current.load_full()
    }

    /// Reads the files and swaps the configuration in if they changed and are valid.
    pub(crate) fn reload(&self) -> ReloadOutcome {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let built = read(&self.paths).and_then(|contents| {
            if contents == state.loaded {
                Ok(None)
            } else {
                (self.build)(&contents).map(|c| Some((c, contents)))
            }
        });
        match built {
            Ok(None) => {
                state.rejected = None;
                ReloadOutcome::Unchanged
            }
            Ok(Some((config, contents))) => {
                self.current.store(Arc::new(config));
                *state = State { loaded: contents, rejected: None };
                tracing::info!(files = %self.names(), "certificates reloaded");
                ReloadOutcome::Reloaded
            }
            Err(error) => {
                let reason = error.to_string();
                // Certificate and key are written one after the other and mismatch in between: a failure is logged
                // once, and only if the next poll sees it again.
                let (repeated, logged) = match state.rejected.take() {
                    Some((before, logged)) => (before == reason, logged && before == reason),
                    None => (false, false),
                };
                if repeated && !logged {
                    tracing::warn!(reason, "certificate reload failed; keeping the last valid certificates");
                }
                state.rejected = Some((reason.clone(), repeated));
                ReloadOutcome::Rejected(reason)
            }
        }
    }

    /// Polls the files until the last reference is dropped.
    pub(crate) fn watch(self: &Arc<Self>) {
        let weak: Weak<Self> = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(POLL_INTERVAL).await;
                let Some(reloading) = weak.upgrade() else { return };
                // File IO may block.
                let _ = tokio::task::spawn_blocking(move || reloading.reload()).await;
            }
        });
    }

    fn names(&self) -> String {
        let names: Vec<String> = self.paths.iter().map(|p| p.display().to_string()).collect();
        names.join(", ")
    }
}

fn read(paths: &[PathBuf]) -> Result<Contents, Error> {
    let one = |path: &PathBuf| std::fs::read(path).map_err(|source| read_error(path, source));
    paths.iter().map(one).collect()
}

fn read_error(path: &Path, source: std::io::Error) -> Error {
    Error::Read { path: path.to_owned(), source }
}
