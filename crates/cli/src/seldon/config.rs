//! `config`: named files that say where scheduler and data plane are.

use super::{failure, files, table::Table};
use crate::{
    failure::{Exit, Failure},
    output::emit,
};
use clap::Subcommand;
use gantry_api::nearest;
use gantry_tls::{Client, ClientFiles};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// Largest configuration that is read.
const LARGEST: u64 = 1 << 20;

#[derive(Debug, Subcommand)]
pub(crate) enum Config {
    /// Give a configuration file a name
    Add {
        /// The name
        name: String,
        /// The file
        path: PathBuf,
    },
    /// Forget a configuration; its file stays
    Remove {
        /// The name
        name: String,
    },
    /// Use a configuration from now on
    Activate {
        /// The name
        name: String,
    },
    /// Use no configuration from now on
    Deactivate {
        /// The name
        name: String,
    },
    /// List the configurations, or show one
    List {
        /// The name
        name: Option<String>,
    },
}

/// The names that were given, and which one is used.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Names {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    configs: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    active: Option<String>,
}

/// What a configuration file says, as far as it concerns us.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Settings {
    #[serde(default)]
    controlplane: Option<ControlPlane>,
    #[serde(default)]
    dataplane: Option<DataPlane>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ControlPlane {
    scheduler_host: String,
    tls: bool,
    key_path: PathBuf,
    crt_path: PathBuf,
    ca_path: PathBuf,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DataPlane {
    infer_host: String,
    tls: bool,
}

impl Settings {
    /// The configuration in use: the active one, else `config.json`, else none.
    pub(super) fn in_use() -> Result<Self, Failure> {
        let Some(folder) = files::directory() else { return Ok(Self::default()) };
        let names = Names::load()?;
        if let Some(path) = names.active.as_ref().and_then(|a| names.configs.get(a)) {
            return Self::load(Path::new(path));
        }
        let path = folder.join("config.json");
        if path.exists() { Self::load(&path) } else { Ok(Self::default()) }
    }

    fn load(path: &Path) -> Result<Self, Failure> {
        let text = text_of(path)?;
        serde_json::from_str(&text).map_err(|e| failure::usage(format!("{}: {e}", path.display())))
    }

    /// Where the scheduler is.
    pub(super) fn scheduler(&self) -> Option<String> {
        self.controlplane.as_ref().map(|p| p.scheduler_host.clone()).filter(|h| !h.is_empty())
    }

    /// The certificates with which it is reached; `None` for plain text.
    pub(super) fn scheduler_tls(&self) -> Result<Option<Client>, Failure> {
        let Some(plane) = self.controlplane.as_ref().filter(|p| p.tls) else { return Ok(None) };
        if plane.ca_path.as_os_str().is_empty() {
            return Err(failure::usage(
                "the configuration in use asks for TLS in controlplane.tls without a caPath",
            ));
        }
        let pair = (plane.crt_path.clone(), plane.key_path.clone());
        let identity =
            Some(pair).filter(|(crt, key)| !crt.as_os_str().is_empty() && !key.as_os_str().is_empty());
        let files = ClientFiles { ca: plane.ca_path.clone(), identity, server_name: None };
        Client::read(files).map(Some).map_err(failure::usage)
    }

    /// Where the data plane is. With TLS asked for, plain text is never a substitute.
    pub(super) fn inference(&self) -> Result<Option<String>, Failure> {
        let Some(plane) = &self.dataplane else { return Ok(None) };
        if plane.tls {
            return Err(failure::usage(
                "the configuration in use asks for TLS in dataplane.tls, which the data plane does not speak: put it \
                 behind something that does, or set it to false",
            ));
        }
        Ok(Some(plane.infer_host.clone()).filter(|h| !h.is_empty()))
    }
}

fn text_of(path: &Path) -> Result<String, Failure> {
    let unreadable = |e: &dyn std::fmt::Display| failure::usage(format!("{}: {e}", path.display()));
    let about = std::fs::metadata(path).map_err(|e| unreadable(&e))?;
    if about.len() > LARGEST {
        return Err(unreadable(&format!("has more than {LARGEST} bytes")));
    }
    std::fs::read_to_string(path).map_err(|e| unreadable(&e))
}

impl Names {
    fn path() -> Result<PathBuf, Failure> {
        let folder = files::directory()
            .ok_or_else(|| failure::usage("HOME is not set, so there is no place for configurations"))?;
        Ok(folder.join("configs.json"))
    }

    fn load() -> Result<Self, Failure> {
        let path = Self::path()?;
        if !path.exists() {
            return Ok(Self::default());
        }
        let text = text_of(&path)?;
        serde_json::from_str(&text).map_err(|e| {
            failure::usage(format!("{}: {e}; mend it, or remove it to begin anew", path.display()))
        })
    }

    fn save(&self) -> Result<(), Failure> {
        let path = Self::path()?;
        let text = serde_json::to_vec(self).map_err(failure::failed)?;
        files::replace(&path, &text).map_err(|e| failure::failed(format!("{}: {e}", path.display())))
    }

    /// The file of a name that must be known.
    fn known(&self, name: &str) -> Result<&str, Failure> {
        self.configs.get(name).map(String::as_str).ok_or_else(|| {
            let meant = nearest(name, self.configs.keys().map(String::as_str))
                .map(|n| format!(". Did you mean {n}?"))
                .unwrap_or_default();
            let words = format!("Error: there is no configuration {}{meant}", name.escape_debug());
            Failure::new(Exit::NotFound, words)
        })
    }
}

pub(super) fn run(verb: &Config) -> Result<(), Failure> {
    let mut names = Names::load()?;
    match verb {
        Config::Add { name, path } => {
            // Read once, so that a mistake is found now and not at the next use.
            Settings::load(path)?;
            let whole = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            names.configs.insert(name.clone(), whole.display().to_string());
            names.save()
        }
        Config::Remove { name } => {
            names.known(name)?;
            names.configs.remove(name);
            names.active = names.active.filter(|a| a != name);
            names.save()
        }
        Config::Activate { name } => {
            names.known(name)?;
            names.active = Some(name.clone());
            names.save()
        }
        Config::Deactivate { name } => {
            names.known(name)?;
            names.active = names.active.filter(|a| a != name);
            names.save()
        }
        Config::List { name: Some(name) } => {
            let text = text_of(Path::new(names.known(name)?))?;
            emit(if text.ends_with('\n') { text } else { text + "\n" })
        }
        Config::List { name: None } => {
            let mut table = Table::new(&["config", "path", "active"]);
            for (name, path) in &names.configs {
                let active = if names.active.as_ref() == Some(name) { "*" } else { "" };
                table.row([name.as_str(), path.as_str(), active]);
            }
            emit(table.render())
        }
    }
}
