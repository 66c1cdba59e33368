//! The configuration file: types, and the checks of their values.

use crate::{
    access::{Access, Allow},
    jwk::Algorithm,
    key::{Digest, parse_digest},
    rate::Rate,
};
use jiff::{Timestamp, civil::Date, tz::TimeZone};
use serde::Deserialize;
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

pub(crate) const MAX_CONFIG: usize = 4 << 20;
const MAX_ENTRIES: usize = 10_000;
const MAX_ISSUERS: usize = 32;

/// Why a configuration is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{}: {message}", file.display(), line.map(|line| format!(":{line}")).unwrap_or_default())]
pub struct ConfigError {
    pub file: PathBuf,
    pub line: Option<u64>,
    pub message: String,
}

/// A checked configuration.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) keys: Vec<Key>,
    pub(crate) issuers: Vec<Issuer>,
}

#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) digest: Digest,
    /// Seconds since 1970.
    pub(crate) expires: Option<u64>,
    pub(crate) grant: Grant,
}

/// What one entry grants.
#[derive(Debug)]
pub(crate) struct Grant {
    /// Unique.
    pub(crate) name: Arc<str>,
    pub(crate) access: Arc<Access>,
    pub(crate) rate: Option<Rate>,
}

#[derive(Debug)]
pub(crate) struct Issuer {
    pub(crate) name: String,
    pub(crate) audiences: Vec<String>,
    pub(crate) algorithms: Vec<Algorithm>,
    pub(crate) key_source: KeySource,
    pub(crate) refresh: Duration,
    /// Seconds that clocks may differ.
    pub(crate) leeway: u64,
    pub(crate) grants: Vec<ClaimGrant>,
}

/// Where the keys of an issuer are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum KeySource {
    File(PathBuf),
    Url { url: String, ca: Option<PathBuf> },
}

#[derive(Debug)]
pub(crate) struct ClaimGrant {
    /// A claim and its values; without one, all tokens of the issuer.
    pub(crate) claim: Option<(String, Vec<String>)>,
    pub(crate) grant: Grant,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawConfig {
    #[serde(default)]
    keys: Vec<RawKey>,
    #[serde(default)]
    issuers: Vec<RawIssuer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawKey {
    name: String,
    sha256: String,
    expires: Option<String>,
    allow: Allow,
    rate: Option<Rate>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawIssuer {
    issuer: String,
    audience: OneOrMore,
    #[serde(default = "default_algorithms")]
    algorithms: Vec<String>,
    jwks: String,
    ca: Option<PathBuf>,
    #[serde(default = "default_refresh")]
    refresh_seconds: u64,
    #[serde(default = "default_leeway")]
    leeway_seconds: u64,
    grants: Vec<RawGrant>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawGrant {
    name: String,
    claim: Option<String>,
    values: Option<Vec<String>>,
    allow: Allow,
    rate: Option<Rate>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

fn default_algorithms() -> Vec<String> {
    Algorithm::ALL.map(|algorithm| algorithm.name().to_owned()).to_vec()
}

const fn default_refresh() -> u64 {
    300
}

const fn default_leeway() -> u64 {
    30
}

impl Config {
    /// `file` is named in errors; paths in it are relative to its directory.
    pub(crate) fn parse(text: &str, file: &Path) -> Result<Self, ConfigError> {
        let at = |line, message| ConfigError { file: file.to_owned(), line, message };
        if text.len() > MAX_CONFIG {
            return Err(at(None, format!("is larger than {MAX_CONFIG} bytes")));
        }
        let raw: RawConfig = serde_saphyr::from_str(text).map_err(|error| {
            let line = error.location().map(|location| location.line());
            // Without the lines of the file: a key may be on one.
            let full = error.without_snippet().to_string();
            at(line, full.lines().next().unwrap_or("is not valid YAML").to_owned())
        })?;
        raw.check(file.parent().unwrap_or(Path::new(""))).map_err(|message| at(None, message))
    }
}

/// Checks the text of a configuration.
pub fn check(text: &str) -> Result<(), ConfigError> {
    Config::parse(text, Path::new("")).map(drop)
}

impl RawConfig {
    fn check(self, directory: &Path) -> Result<Config, String> {
        let entries = self.keys.len() + self.issuers.iter().map(|i| i.grants.len()).sum::<usize>();
        if entries == 0 {
            return Err(
                "has no keys and no issuers: `gantry auth create-key NAME` prints an entry".to_owned()
            );
        }
        if entries > MAX_ENTRIES || self.issuers.len() > MAX_ISSUERS {
            return Err(format!(
                "has {entries} keys and grants and {} issuers: at most {MAX_ENTRIES} and {MAX_ISSUERS}",
                self.issuers.len()
            ));
        }
        let mut names = BTreeSet::new();
        let mut digests = BTreeSet::new();
        let mut keys = Vec::new();
        for (index, raw) in self.keys.into_iter().enumerate() {
            let at = |error: String| format!("keys[{index}]: {error}");
            let key = raw.check().map_err(at)?;
            unique(&mut names, &key.grant.name).map_err(at)?;
            if !digests.insert(key.digest) {
                return Err(at("sha256 is that of another entry: make a key for each".to_owned()));
            }
            keys.push(key);
        }
        let mut issuers: Vec<Issuer> = Vec::new();
        for (index, raw) in self.issuers.into_iter().enumerate() {
            let at = |error: String| format!("issuers[{index}]: {error}");
            let issuer = raw.check(directory, &mut names).map_err(at)?;
            if issuers.iter().any(|other| other.name == issuer.name) {
                return Err(at("issuer is that of another entry: join their grants".to_owned()));
            }
            issuers.push(issuer);
        }
        Ok(Config { keys, issuers })
    }
}

fn unique(names: &mut BTreeSet<Arc<str>>, name: &Arc<str>) -> Result<(), String> {
    if names.insert(Arc::clone(name)) {
        return Ok(());
    }
    Err(format!("name {name:?} is used twice: metrics and rates are counted by name"))
}

impl RawKey {
    fn check(self) -> Result<Key, String> {
        let grant = Grant::check(&self.name, &self.allow, self.rate)?;
        let digest = parse_digest(&self.sha256).ok_or_else(|| {
            format!(
                "sha256 of {:?} must be 64 hexadecimal digits, and not the key itself: `gantry auth create-key` prints it",
                grant.name
            )
        })?;
        let expires = self.expires.as_deref().map(parse_expiry).transpose()?;
        Ok(Key { digest, expires, grant })
    }
}

impl Grant {
    fn check(name: &str, allow: &Allow, rate: Option<Rate>) -> Result<Self, String> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._:/@-".contains(c);
        if name.is_empty() || name.len() > 100 || !name.chars().all(is_plain) {
            return Err("name must have 1 to 100 letters, digits and ._:/@-".to_owned());
        }
        let access = Access::new(allow).map_err(|e| format!("allow of {name:?}: {e}"))?;
        let rate = rate.map(|rate| rate.check().map_err(|e| format!("{name:?}: {e}"))).transpose()?;
        Ok(Self { name: name.into(), access: Arc::new(access), rate })
    }
}

/// A day, whose end counts, or a point in time.
fn parse_expiry(text: &str) -> Result<u64, String> {
    let day = || {
        let day: Date = text.parse().ok()?;
        day.tomorrow().ok()?.to_zoned(TimeZone::UTC).ok().map(|zoned| zoned.timestamp())
    };
    let timestamp: Option<Timestamp> = text.parse().ok().or_else(day);
    timestamp.and_then(|t| u64::try_from(t.as_second()).ok()).ok_or_else(|| {
        "expires must be a day such as 2027-01-31 (UTC, inclusive) or a time such as 2027-01-31T12:00:00Z"
            .to_owned()
    })
}

impl RawIssuer {
    fn check(self, directory: &Path, names: &mut BTreeSet<Arc<str>>) -> Result<Issuer, String> {
        if self.issuer.is_empty() {
            return Err("issuer is empty: set it to the claim iss of the tokens".to_owned());
        }
        let audiences = match self.audience {
            OneOrMore::One(one) => vec![one],
            OneOrMore::More(more) => more,
        };
        if audiences.is_empty() || audiences.iter().any(String::is_empty) {
            return Err("audience is empty: set it to the claim aud of the tokens".to_owned());
        }
        let parse = |name: &String| {
            Algorithm::parse(name).ok_or_else(|| "algorithms may be RS256, ES256 and EdDSA".to_owned())
        };
        let algorithms: Vec<Algorithm> = self.algorithms.iter().map(parse).collect::<Result<_, _>>()?;
        if algorithms.is_empty() {
            return Err("algorithms is empty: use RS256, ES256 or EdDSA".to_owned());
        }
        if !(10..=86_400).contains(&self.refresh_seconds) {
            return Err("refreshSeconds must be between 10 and 86400".to_owned());
        }
        if self.leeway_seconds > 300 {
            return Err("leewaySeconds must be at most 300".to_owned());
        }
        let key_source = key_source(&self.jwks, self.ca, directory)?;
        if self.grants.is_empty() {
            return Err("grants is empty: without one, no token of the issuer has a right".to_owned());
        }
        let mut grants = Vec::new();
        for (index, raw) in self.grants.into_iter().enumerate() {
            let at = |error: String| format!("grants[{index}]: {error}");
            let grant = raw.check().map_err(at)?;
            unique(names, &grant.grant.name).map_err(at)?;
            grants.push(grant);
        }
        Ok(Issuer {
            name: self.issuer,
            audiences,
            algorithms,
            key_source,
            refresh: Duration::from_secs(self.refresh_seconds),
            leeway: self.leeway_seconds,
            grants,
        })
    }
}

/// `http` is for tests and sidecars on the same machine only: the server of that URL decides which tokens are valid.
fn key_source(jwks: &str, ca: Option<PathBuf>, directory: &Path) -> Result<KeySource, String> {
    let Some((scheme, _)) = jwks.split_once("://") else {
        if jwks.is_empty() || ca.is_some() {
            return Err("jwks must be a file or an https:// URL; ca belongs to a URL".to_owned());
        }
        return Ok(KeySource::File(directory.join(jwks)));
    };
    let uri: http::Uri = jwks.parse().map_err(|_| "jwks is not a valid URL".to_owned())?;
    let has_password = uri.authority().is_some_and(|a| a.as_str().contains('@'));
    let host = uri.host().unwrap_or_default();
    let is_local = matches!(host, "localhost" | "127.0.0.1" | "[::1]");
    match scheme {
        _ if host.is_empty() || has_password => {
            Err("jwks must be a URL with a host and without a password".to_owned())
        }
        "https" => Ok(KeySource::Url { url: jwks.to_owned(), ca: ca.map(|ca| directory.join(ca)) }),
        "http" if is_local => Ok(KeySource::Url { url: jwks.to_owned(), ca: None }),
        _ => Err("jwks must use https://, because these keys decide which tokens are valid".to_owned()),
    }
}

impl RawGrant {
    fn check(self) -> Result<ClaimGrant, String> {
        let grant = Grant::check(&self.name, &self.allow, self.rate)?;
        let claim = match (self.claim, self.values) {
            (None, None) => None,
            (Some(claim), Some(values)) if !claim.is_empty() && !values.is_empty() => Some((claim, values)),
            _ => {
                return Err(format!(
                    "{:?} needs claim and values, or neither for all tokens of the issuer",
                    grant.name
                ));
            }
        };
        Ok(ClaimGrant { claim, grant })
    }
}
