//! Applied objects by source path, persisted: an object whose file vanished between two runs is removed.

use gantry_api::Kind;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

const FILE: &str = "sources.json";

/// Source paths by `Kind/name`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct AppliedSources {
    file: PathBuf,
    roots: BTreeMap<String, Vec<PathBuf>>,
}

impl AppliedSources {
    /// Reads the file of the previous run. It only serves clean-up: a damaged file counts as empty.
    pub(crate) fn open(state_dir: &Path) -> Self {
        let file = state_dir.join(FILE);
        let roots =
            std::fs::read(&file).ok().and_then(|b| serde_json::from_slice(&b).ok()).unwrap_or_default();
        Self { file, roots }
    }

    /// Objects of the same source paths that are no longer desired.
    pub(crate) fn vanished<'a>(
        &'a self,
        roots: &'a [PathBuf],
        desired: &'a BTreeMap<(Kind, String), gantry_api::Object>,
    ) -> impl Iterator<Item = (Kind, String)> + 'a {
        self.roots
            .iter()
            .filter(move |(_, known)| !known.is_empty() && known.iter().all(|r| roots.contains(r)))
            .filter_map(|(key, _)| {
                let (kind, name) = key.split_once('/')?;
                let key = (Kind::from_word(kind)?, name.to_owned());
                (!desired.contains_key(&key)).then_some(key)
            })
    }

    /// Replaces the objects of these source paths.
    pub(crate) fn write(&mut self, roots: &[PathBuf], objects: impl Iterator<Item = (Kind, String)>) {
        let mut next = self.roots.clone();
        next.retain(|_, known| !known.iter().all(|r| roots.contains(r)));
        next.extend(objects.map(|(kind, name)| (format!("{}/{name}", kind.name()), roots.to_vec())));
        if next == self.roots {
            return;
        }
        self.roots = next;
        if let Err(error) = write_json(&self.file, &self.roots) {
            tracing::warn!(%error, file = %self.file.display(), "failed to write applied sources");
        }
    }
}

/// Replaces a file atomically.
pub(crate) fn write_json(file: &Path, value: &impl serde::Serialize) -> std::io::Result<()> {
    let draft = file.with_extension("new");
    std::fs::write(&draft, serde_json::to_vec_pretty(value)?)?;
    std::fs::rename(&draft, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vanished_objects_are_reported_for_their_own_paths_only() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (vec![PathBuf::from("/one")], vec![PathBuf::from("/two")]);
        let models =
            |names: &[&str]| names.iter().map(|n| (Kind::Model, (*n).to_owned())).collect::<Vec<_>>();
        let mut sources = AppliedSources::open(dir.path());
        sources.write(&one, models(&["a", "b"]).into_iter());
        sources.write(&two, models(&["c"]).into_iter());
        let sources = AppliedSources::open(dir.path());
        let none = BTreeMap::new();
        assert_eq!(sources.vanished(&one, &none).collect::<Vec<_>>(), models(&["a", "b"]));
        assert_eq!(sources.vanished(&two, &none).collect::<Vec<_>>(), models(&["c"]));
        assert_eq!(sources.vanished(&[], &none).count(), 0);
    }
}
