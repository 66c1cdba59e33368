//! Which objects came from which path, so that a file that vanished between two runs takes its model with it.

use gantry_api::Kind;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

const FILE: &str = "sources.json";

/// Objects by kind and name, with the paths that asked for them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Record {
    file: PathBuf,
    roots: BTreeMap<String, Vec<PathBuf>>,
}

fn key(kind: Kind, name: &str) -> String {
    format!("{}/{name}", kind.name())
}

impl Record {
    /// The record of the last run. A damaged one is as good as none: it only tells what to clean up.
    pub(crate) fn open(state_dir: &Path) -> Self {
        let file = state_dir.join(FILE);
        let roots =
            std::fs::read(&file).ok().and_then(|b| serde_json::from_slice(&b).ok()).unwrap_or_default();
        Self { file, roots }
    }

    /// What the last run with the same paths asked for, and this one does not.
    pub(crate) fn vanished<'a>(
        &'a self,
        roots: &'a [PathBuf],
        asked: &'a BTreeMap<(Kind, String), gantry_api::Object>,
    ) -> impl Iterator<Item = (Kind, String)> + 'a {
        self.roots
            .iter()
            .filter(move |(_, known)| !known.is_empty() && known.iter().all(|r| roots.contains(r)))
            .filter_map(|(key, _)| {
                let (kind, name) = key.split_once('/')?;
                let key = (Kind::from_word(kind)?, name.to_owned());
                (!asked.contains_key(&key)).then_some(key)
            })
    }

    /// Notes what is asked for now.
    pub(crate) fn write(&mut self, roots: &[PathBuf], asked: impl Iterator<Item = (Kind, String)>) {
        let mut next = self.roots.clone();
        next.retain(|_, known| !known.iter().all(|r| roots.contains(r)));
        next.extend(asked.map(|(kind, name)| (key(kind, &name), roots.to_vec())));
        if next == self.roots {
            return;
        }
        self.roots = next;
        let written = serde_json::to_vec_pretty(&self.roots).map(|bytes| {
            let draft = self.file.with_extension("new");
            std::fs::write(&draft, bytes).and_then(|()| std::fs::rename(&draft, &self.file))
        });
        if let Ok(Err(error)) = written {
            tracing::warn!(%error, "what the files asked for could not be noted");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_vanished_is_remembered_for_its_own_path_only() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (vec![PathBuf::from("/one")], vec![PathBuf::from("/two")]);
        let asked = |names: &[&str]| names.iter().map(|n| (Kind::Model, (*n).to_owned())).collect::<Vec<_>>();
        let mut record = Record::open(dir.path());
        record.write(&one, asked(&["a", "b"]).into_iter());
        record.write(&two, asked(&["c"]).into_iter());
        let record = Record::open(dir.path());
        let none = BTreeMap::new();
        assert_eq!(record.vanished(&one, &none).collect::<Vec<_>>(), asked(&["a", "b"]));
        assert_eq!(record.vanished(&two, &none).collect::<Vec<_>>(), asked(&["c"]));
        assert_eq!(record.vanished(&[], &none).count(), 0);
    }
}
