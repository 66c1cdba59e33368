//! A configuration that follows its files.

use crate::Error;
use arc_swap::ArcSwap;
use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

/// How often the files are looked at. They are read, not only dated: they are small, and a renewal may swap a link.
const PERIOD: Duration = Duration::from_secs(2);

/// The text of every file, in the order of the paths.
pub(crate) type Texts = Vec<Vec<u8>>;
type Build<C> = dyn Fn(&Texts) -> Result<C, Error> + Send + Sync;

/// What is in use, and the files it comes from.
pub(crate) struct Live<C> {
    paths: Vec<PathBuf>,
    build: Box<Build<C>>,
    current: ArcSwap<C>,
    seen: Mutex<Seen>,
}

/// What the last looks at the files saw.
struct Seen {
    used: Texts,
    /// Something that differs from what is used and cannot be used; whether that was told.
    refused: Option<(String, bool)>,
}

/// What a look at the files led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// They are as they were.
    Same,
    /// What they say now is in use.
    Renewed,
    /// What they say now cannot be used.
    Refused(String),
}

impl<C> fmt::Debug for Live<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").field("paths", &self.paths).finish_non_exhaustive()
    }
}

impl<C: Send + Sync + 'static> Live<C> {
    pub(crate) fn open(
        paths: Vec<PathBuf>,
        build: impl Fn(&Texts) -> Result<C, Error> + Send + Sync + 'static,
    ) -> Result<Arc<Self>, Error> {
        let used = read(&paths)?;
        let current = ArcSwap::from_pointee(build(&used)?);
        let seen = Mutex::new(Seen { used, refused: None });
        Ok(Arc::new(Self { paths, build: Box::new(build), current, seen }))
    }

    pub(crate) fn current(&self) -> Arc<C> {
        self.current.load_full()
    }

    /// Reads the files again and uses what they say, if it is new and good.
    pub(crate) fn look(&self) -> Look {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let built = read(&self.paths).and_then(|texts| {
            if texts == seen.used { Ok(None) } else { (self.build)(&texts).map(|c| Some((c, texts))) }
        });
        match built {
            Ok(None) => {
                seen.refused = None;
                Look::Same
            }
            Ok(Some((config, texts))) => {
                self.current.store(Arc::new(config));
                *seen = Seen { used: texts, refused: None };
                tracing::info!(files = %self.names(), "the certificates were renewed");
                Look::Renewed
            }
            Err(error) => {
                let reason = error.to_string();
                // A certificate and its key are two files: between the two writes they do not belong together. What
                // is wrong is told when it is still so at the next look, and then once.
                let (known, told) = match seen.refused.take() {
                    Some((before, told)) => (before == reason, told && before == reason),
                    None => (false, false),
                };
                if known && !told {
                    tracing::warn!(%reason, "the new certificates cannot be used: the last good ones stay in use");
                }
                seen.refused = Some((reason.clone(), known));
                Look::Refused(reason)
            }
        }
    }

    /// Looks at the files now and then, for as long as somebody uses what they say.
    pub(crate) fn follow(self: &Arc<Self>) {
        let weak: Weak<Self> = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(PERIOD).await;
                let Some(live) = weak.upgrade() else { return };
                // Files may be on a disk that is slow to answer.
                let _ = tokio::task::spawn_blocking(move || live.look()).await;
            }
        });
    }

    fn names(&self) -> String {
        let names: Vec<String> = self.paths.iter().map(|p| p.display().to_string()).collect();
        names.join(", ")
    }
}

fn read(paths: &[PathBuf]) -> Result<Texts, Error> {
    let one = |path: &PathBuf| std::fs::read(path).map_err(|source| read_error(path, source));
    paths.iter().map(one).collect()
}

fn read_error(path: &Path, source: std::io::Error) -> Error {
    Error::Read { path: path.to_owned(), source }
}
