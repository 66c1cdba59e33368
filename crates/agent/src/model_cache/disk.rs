//! Model files on disk, with records that survive a restart.
//!
//! ```text
//! <models>/<model>_<version>/          files in the server's layout; created and removed by rename
//! <models>/.placing-<model>_<version>  incomplete, or being removed
//! <records>/<model>_<version>          the load order
//! ```

use crate::{
    backend::{Arranged, plain_name, remove_tree},
    model_server::LoadError,
};
use gantry_proto::agent::ModelOperationMessage;
use prost::Message as _;
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

const PLACING: &str = ".placing-";
const LEAVING: &str = ".leaving-";

#[derive(Clone, Debug)]
pub(crate) struct DiskRecords {
    models: PathBuf,
    records: PathBuf,
}

impl DiskRecords {
    /// Creates the directories if needed and removes leftovers of an interrupted process.
    pub(crate) fn open(models: &Path, records: &Path) -> Result<Self, String> {
        let prepared = |path: &Path| {
            fs::create_dir_all(path).map_err(|e| format!("{} cannot be created: {e}", path.display()))?;
            // Fail at startup if the directory is not writable.
            let probe = path.join(".probe");
            fs::write(&probe, []).map_err(|e| format!("{} cannot be written to: {e}", path.display()))?;
            let _ = fs::remove_file(probe);
            path.canonicalize().map_err(|e| format!("{} cannot be opened: {e}", path.display()))
        };
        let opened = Self { models: prepared(models)?, records: prepared(records)? };
        for entry in fs::read_dir(&opened.models).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(PLACING) || name.starts_with(LEAVING) {
                let _ = remove_tree(&entry.path());
            }
        }
        Ok(opened)
    }

    /// Installed models by name. Records without files and files without a record are removed.
    pub(crate) fn known(&self) -> BTreeMap<String, ModelOperationMessage> {
        let mut known = BTreeMap::new();
        for entry in fs::read_dir(&self.records).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let order = fs::read(entry.path()).ok().and_then(|bytes| {
                ModelOperationMessage::decode(&*bytes).ok().filter(|o| o.model_version.is_some())
            });
            match order {
                Some(order) if plain_name(&name) && self.models.join(&name).is_dir() => {
                    known.insert(name, order);
                }
                _ => {
                    let _ = fs::remove_file(entry.path());
                }
            }
        }
        for entry in fs::read_dir(&self.models).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if is_versioned(&name) && !known.contains_key(&name) {
                tracing::warn!(model = %name, "removing files without a record");
                let _ = self.remove(&name);
            }
        }
        known
    }

    /// Installs a model's files atomically and records the order. Blocking.
    pub(crate) fn install(
        &self,
        name: &str,
        order: &ModelOperationMessage,
        arrange: impl FnOnce(&Path) -> Result<Arranged, LoadError>,
    ) -> Result<Arranged, LoadError> {
        if !plain_name(name) {
            let message = format!("\"{}\" is not a valid model name", name.escape_debug());
            return Err(LoadError::permanent(message));
        }
        let staging = self.models.join(format!("{PLACING}{name}"));
        let failed = |e: io::Error| {
            LoadError::transient(format!("failed to install files in {}: {e}", self.models.display()))
        };
        remove_tree(&staging).map_err(failed)?;
        let arranged = arrange(&staging).and_then(|arranged| {
            self.remove(name).map_err(failed)?;
            fs::rename(&staging, self.models.join(name)).map_err(failed)?;
            Ok(arranged)
        });
        let arranged = arranged.inspect_err(|_| drop(remove_tree(&staging)))?;
        let mut order = order.clone();
        if let Some(spec) = spec_of(&mut order) {
            spec.model_runtime_info.clone_from(&arranged.runtime_info);
        }
        self.write(name, &order.encode_to_vec()).map_err(failed)?;
        Ok(arranged)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let draft = self.records.join(format!("{PLACING}{name}"));
        fs::write(&draft, bytes)?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            // Orders may contain credentials.
            fs::set_permissions(&draft, fs::Permissions::from_mode(0o600))?;
        }
        fs::rename(draft, self.records.join(name))
    }

    /// Idempotent. Blocking.
    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.records.join(name)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let leaving = self.models.join(format!("{LEAVING}{name}"));
        remove_tree(&leaving)?;
        match fs::rename(self.models.join(name), &leaving) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        remove_tree(&leaving)
    }
}

/// Whether a folder name is `<model>_<version>`.
fn is_versioned(name: &str) -> bool {
    let version = name.rsplit_once('_').map_or("", |(_, version)| version);
    plain_name(name) && !version.is_empty() && version.bytes().all(|b| b.is_ascii_digit())
}

pub(crate) fn spec_of(order: &mut ModelOperationMessage) -> Option<&mut gantry_proto::scheduler::ModelSpec> {
    order.model_version.as_mut()?.model.as_mut()?.model_spec.as_mut()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_proto::{agent::ModelVersion, scheduler::Model};

    fn order(version: u32) -> ModelOperationMessage {
        let model = Some(Model::default());
        ModelOperationMessage { model_version: Some(ModelVersion { model, version }), ..Default::default() }
    }

    #[allow(clippy::unnecessary_wraps, reason = "signature of a fallible callback")]
    fn files(target: &Path, text: &str) -> Result<Arranged, LoadError> {
        fs::create_dir_all(target).unwrap();
        fs::write(target.join("model"), text).unwrap();
        Ok(Arranged { platform: String::new(), runtime_info: None })
    }

    #[test]
    fn open_restores_installed_models_and_removes_leftovers() {
        let dir = tempfile::tempdir().unwrap();
        let (models, notes) = (dir.path().join("models"), dir.path().join("records"));
        let records = DiskRecords::open(&models, &notes).unwrap();
        records.install("a_1", &order(1), |p| files(p, "one")).unwrap();
        records.install("a_1", &order(1), |p| files(p, "again")).unwrap();
        records.install("b_2", &order(2), |p| files(p, "two")).unwrap();
        assert_eq!(fs::read_to_string(models.join("a_1/model")).unwrap(), "again");
        let failed = records.install("a_1", &order(1), |p| {
            files(p, "half").unwrap();
            Err(LoadError::permanent("broken"))
        });
        assert_eq!(failed.unwrap_err(), LoadError::permanent("broken"));
        assert_eq!(
            fs::read_to_string(models.join("a_1/model")).unwrap(),
            "again",
            "the installed files stay"
        );
        // An interrupted install, a foreign folder, files without a record, a record without files.
        fs::create_dir_all(models.join(".placing-x_1")).unwrap();
        fs::create_dir_all(models.join("mine")).unwrap();
        fs::create_dir_all(models.join("c_1")).unwrap();
        fs::remove_dir_all(models.join("b_2")).unwrap();
        fs::write(notes.join("d_1"), "\u{1}nonsense").unwrap();
        let known = DiskRecords::open(&models, &notes).unwrap().known();
        assert_eq!(known.keys().collect::<Vec<_>>(), ["a_1"]);
        assert_eq!(known["a_1"].model_version.as_ref().unwrap().version, 1);
        let mut left: Vec<_> =
            fs::read_dir(&models).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        left.sort();
        assert_eq!(left, ["a_1", "mine"]);
        assert!(records.install("../x_1", &order(1), |p| files(p, "")).is_err());
        records.remove("a_1").unwrap();
        records.remove("a_1").unwrap();
        assert!(records.known().is_empty());
    }
}
