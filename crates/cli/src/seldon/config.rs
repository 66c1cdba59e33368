//! `config`: named configuration files with addresses and TLS settings.

use super::{error, files, table::Table};
use crate::{
    error::{CommandError, Exit},
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

const MAX_CONFIG_BYTES: u64 = 1 << 20;

#[derive(Debug, Subcommand)]
pub(crate) enum Config {
    /// Add a named configuration file
    Add { name: String, path: PathBuf },
    /// Remove a configuration; its file is kept
    Remove { name: String },
    /// Make a configuration the active one
    Activate { name: String },
    /// Deactivate a configuration
    Deactivate { name: String },
    /// List configurations, or print one
    List { name: Option<String> },
}

/// `configs.json`.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Names {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    configs: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    active: Option<String>,
}

/// The fields of a configuration file that Gantry uses.
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
    /// The active configuration, else `config.json`, else the default.
    pub(super) fn active() -> Result<Self, CommandError> {
        let Some(folder) = files::directory() else { return Ok(Self::default()) };
        let names = Names::load()?;
        if let Some(path) = names.active.as_ref().and_then(|a| names.configs.get(a)) {
            return Self::load(Path::new(path));
        }
        let path = folder.join("config.json");
        if path.exists() { Self::load(&path) } else { Ok(Self::default()) }
    }

    fn load(path: &Path) -> Result<Self, CommandError> {
        let text = read_text(path)?;
        serde_json::from_str(&text).map_err(|e| error::usage(format!("{}: {e}", path.display())))
    }

    pub(super) fn scheduler(&self) -> Option<String> {
        self.controlplane.as_ref().map(|p| p.scheduler_host.clone()).filter(|h| !h.is_empty())
    }

    /// `None` for plaintext.
    pub(super) fn scheduler_tls(&self) -> Result<Option<Client>, CommandError> {
        let Some(plane) = self.controlplane.as_ref().filter(|p| p.tls) else { return Ok(None) };
        if plane.ca_path.as_os_str().is_empty() {
            return Err(error::usage("the active configuration sets controlplane.tls without caPath"));
        }
        let pair = (plane.crt_path.clone(), plane.key_path.clone());
        let identity =
            Some(pair).filter(|(crt, key)| !crt.as_os_str().is_empty() && !key.as_os_str().is_empty());
        let files = ClientFiles { ca: plane.ca_path.clone(), identity, server_name: None };
        Client::read(files).map(Some).map_err(error::usage)
    }

    /// The gateway address. Never falls back to plaintext if the configuration requires TLS.
    pub(super) fn inference(&self) -> Result<Option<String>, CommandError> {
        let Some(plane) = &self.dataplane else { return Ok(None) };
        if plane.tls {
            return Err(error::usage(
                "the active configuration sets dataplane.tls, which the gateway does not support: terminate TLS in a \
                 proxy, or set it to false",
            ));
        }
        Ok(Some(plane.infer_host.clone()).filter(|h| !h.is_empty()))
    }
}

fn read_text(path: &Path) -> Result<String, CommandError> {
    let unreadable = |e: &dyn std::fmt::Display| error::usage(format!("{}: {e}", path.display()));
    let metadata = std::fs::metadata(path).map_err(|e| unreadable(&e))?;
    if metadata.len() > MAX_CONFIG_BYTES {
        return Err(unreadable(&format!("has more than {MAX_CONFIG_BYTES} bytes")));
    }
    std::fs::read_to_string(path).map_err(|e| unreadable(&e))
}

impl Names {
    fn path() -> Result<PathBuf, CommandError> {
        let folder =
            files::directory().ok_or_else(|| error::usage("HOME is not set: no configuration directory"))?;
        Ok(folder.join("configs.json"))
    }

    fn load() -> Result<Self, CommandError> {
        let path = Self::path()?;
        if !path.exists() {
            return Ok(Self::default());
        }
        let text = read_text(&path)?;
        serde_json::from_str(&text)
            .map_err(|e| error::usage(format!("{}: {e}; fix or remove the file", path.display())))
    }

    fn save(&self) -> Result<(), CommandError> {
        let path = Self::path()?;
        let text = serde_json::to_vec(self).map_err(error::failed)?;
        files::replace(&path, &text).map_err(|e| error::failed(format!("{}: {e}", path.display())))
    }

    /// The file of an existing configuration.
    fn path_of(&self, name: &str) -> Result<&str, CommandError> {
        self.configs.get(name).map(String::as_str).ok_or_else(|| {
            let hint = nearest(name, self.configs.keys().map(String::as_str))
                .map(|n| format!(". Did you mean {n}?"))
                .unwrap_or_default();
            let message = format!("Error: configuration {} not found{hint}", name.escape_debug());
            CommandError::new(Exit::NotFound, message)
        })
    }
}

pub(super) fn run(command: &Config) -> Result<(), CommandError> {
    let mut names = Names::load()?;
    match command {
        Config::Add { name, path } => {
            // Validate before saving.
            Settings::load(path)?;
            let absolute = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            names.configs.insert(name.clone(), absolute.display().to_string());
            names.save()
        }
        Config::Remove { name } => {
            names.path_of(name)?;
            names.configs.remove(name);
            names.active = names.active.filter(|a| a != name);
            names.save()
        }
        Config::Activate { name } => {
            names.path_of(name)?;
            names.active = Some(name.clone());
            names.save()
        }
        Config::Deactivate { name } => {
            names.path_of(name)?;
            names.active = names.active.filter(|a| a != name);
            names.save()
        }
        Config::List { name: Some(name) } => {
            let text = read_text(Path::new(names.path_of(name)?))?;
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
