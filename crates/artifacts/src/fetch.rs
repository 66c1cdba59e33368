//! The fetcher: from a request to a leased directory in the cache.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OnceCell;

use crate::cache::{Cache, Lease, Placed};
use crate::download_plan::Folders;
use crate::error::FetchError;
use crate::file_tree::Limits;
use crate::net::{Client, Resolve, SystemResolver, Timeouts};
use crate::network_policy::{NetPolicy, NetRule};
use crate::progress::ProgressSink;
use crate::retry::RetryPolicy;
use crate::secret::Secret;
use crate::uri::Uri;

/// Reads an environment variable by its name.
pub type Env = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// Where Kubernetes and container engines mount credentials, and where the system shows the environment of processes.
const SECRET_PATHS: [&str; 3] = ["/proc", "/run/secrets", "/var/run/secrets"];

/// Variables that name a file with credentials.
const SECRET_FILE_VARIABLES: [&str; 3] =
    ["GOOGLE_APPLICATION_CREDENTIALS", "AWS_WEB_IDENTITY_TOKEN_FILE", "AZURE_FEDERATED_TOKEN_FILE"];

/// Configuration of a [`Fetcher`]; start from [`Config::new`].
pub struct Config {
    /// Where the cache is; created if it does not exist.
    pub cache_dir: PathBuf,
    /// Bytes that the cache may hold; artifacts in use do not count as removable.
    pub cache_limit: u64,
    /// Limits for one artifact.
    pub limits: Limits,
    /// Non-public networks and hosts that downloads may reach.
    pub allow: Vec<NetRule>,
    /// Whether downloads may reach this machine.
    pub allow_loopback: bool,
    /// When set, local sources must be below one of these directories.
    pub local_roots: Option<Vec<PathBuf>>,
    /// Files and directories with credentials: never a source, also not through a link.
    pub secret_paths: Vec<PathBuf>,
    /// How long to wait for servers.
    pub timeouts: Timeouts,
    /// How transient failures are retried.
    pub retry: RetryPolicy,
    /// Files downloaded at the same time for one artifact.
    pub parallel: usize,
    /// Whether to ask the cloud's metadata service for credentials when there are no others.
    pub instance_credentials: bool,
    /// Whether the last fetched copy is used when its source cannot be reached.
    pub use_stale: bool,
    /// Root certificates in PEM, in addition to the public ones; without them the file that `SSL_CERT_FILE` names.
    pub extra_roots_pem: Option<Vec<u8>>,
    /// Reads an environment variable.
    pub env: Env,
    /// Resolves host names.
    pub resolver: Arc<dyn Resolve>,
}

impl Config {
    /// Defaults that protect: public addresses only, 64 GiB per artifact, 100 GiB of cache.
    pub fn new(cache_dir: impl Into<PathBuf>) -> Self {
        Self {
            cache_dir: cache_dir.into(),
            cache_limit: 100 << 30,
            limits: Limits::default(),
            allow: Vec::new(),
            allow_loopback: false,
            local_roots: None,
            secret_paths: SECRET_PATHS.iter().map(PathBuf::from).collect(),
            timeouts: Timeouts::default(),
            retry: RetryPolicy::default(),
            parallel: 4,
            instance_credentials: false,
            use_stale: true,
            extra_roots_pem: None,
            env: Arc::new(|name| std::env::var(name).ok()),
            resolver: Arc::new(SystemResolver),
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("cache_dir", &self.cache_dir)
            .field("cache_limit", &self.cache_limit)
            .field("limits", &self.limits)
            .field("allow", &self.allow)
            .field("allow_loopback", &self.allow_loopback)
            .field("local_roots", &self.local_roots)
            .field("secret_paths", &self.secret_paths)
            .finish_non_exhaustive()
    }
}

/// What to fetch.
#[derive(Debug, Clone)]
pub struct Request {
    /// The source.
    pub uri: Uri,
    /// The version folder (`artifactVersion`).
    pub artifact_version: Option<u32>,
    /// Whether the source is taken as it is: all version folders, and the top folder of an archive.
    pub keep_layout: bool,
    /// The credentials that `secretName` stands for; without it the environment is used.
    pub secret: Option<Secret>,
    /// A name for the current content: content once fetched under it is returned even if the source has changed
    /// since.
    pub pin: Option<String>,
}

impl Request {
    /// The newest version of a source, with credentials from the environment.
    pub fn new(uri: Uri) -> Self {
        Self { uri, artifact_version: None, keep_layout: false, secret: None, pin: None }
    }

    /// What makes two requests the same; never shown, since it may contain a signed query.
    fn key(&self) -> String {
        let secret = self.secret.as_ref().map(Secret::fingerprint).unwrap_or_default();
        let pin = self.pin.as_deref().map(|pin| format!("\n{pin}")).unwrap_or_default();
        let layout = if self.keep_layout { "\nlayout" } else { "" };
        format!("{}\n{:?}\n{secret}{pin}{layout}", self.uri.identity(), self.artifact_version)
    }

    pub(crate) const fn folders(&self) -> Folders {
        match self.artifact_version {
            Some(version) => Folders::Version(version),
            None if self.keep_layout => Folders::All,
            None => Folders::Newest,
        }
    }
}

/// A fetched artifact. It stays in the cache as long as this value, or its lease, is held.
#[derive(Debug, Clone)]
pub struct Fetched {
    /// The directory with the files. Read-only.
    pub path: PathBuf,
    /// SHA-256 over the names and contents of all files, in hexadecimal.
    pub digest: String,
    /// Size of all files.
    pub bytes: u64,
    /// Whether nothing had to be downloaded or copied.
    pub from_cache: bool,
    /// Whether the source was unreachable and this is the copy of an earlier fetch.
    pub stale: bool,
    /// The version folder that was taken, below `path`.
    pub version: Option<u32>,
    /// Keeps the artifact in the cache.
    pub lease: Arc<Lease>,
}

impl Fetched {
    /// The directory with the model itself: the version folder if there is one.
    pub fn model_dir(&self) -> PathBuf {
        let Some(version) = self.version else { return self.path.clone() };
        let plain = self.path.join(version.to_string());
        if plain.is_dir() {
            return plain;
        }
        // A folder such as `01`.
        let entries = std::fs::read_dir(&self.path).into_iter().flatten().flatten();
        let padded = entries.map(|entry| entry.path()).find(|path| folder_number(path) == Some(version));
        padded.unwrap_or_else(|| self.path.clone())
    }
}

fn folder_number(path: &Path) -> Option<u32> {
    path.is_dir().then(|| path.file_name()?.to_str()?.parse().ok()).flatten()
}

/// A cache entry and its origin.
#[derive(Debug, Clone)]
pub(crate) struct Got {
    pub(crate) placed: Placed,
    pub(crate) version: Option<u32>,
    pub(crate) from_cache: bool,
    pub(crate) stale: bool,
}

type Flight = Arc<OnceCell<Result<Got, FetchError>>>;

/// Turns sources into directories. Cheap to clone; all clones share one cache.
#[derive(Clone)]
pub struct Fetcher {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) cache: Arc<Cache>,
    pub(crate) client: Arc<Client>,
    pub(crate) env: Secret,
    flights: Mutex<HashMap<String, Flight>>,
}

impl fmt::Debug for Fetcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fetcher").field("config", &self.shared.config).finish_non_exhaustive()
    }
}

impl Fetcher {
    /// Opens the cache and reads credentials from the environment.
    pub fn new(mut config: Config) -> Result<Self, FetchError> {
        let files = SECRET_FILE_VARIABLES.iter().filter_map(|name| (config.env)(name)).map(PathBuf::from);
        let files: Vec<PathBuf> = files.collect();
        config.secret_paths.extend(files);
        let cache = Arc::new(Cache::open(&config.cache_dir, config.cache_limit)?);
        let policy = NetPolicy::new(config.allow.clone(), config.allow_loopback);
        let extra_roots =
            match (&config.extra_roots_pem, (config.env)("SSL_CERT_FILE")) {
                (Some(pem), _) => Some(pem.clone()),
                (None, Some(path)) => Some(std::fs::read(&path).map_err(|error| {
                    FetchError::io("SSL_CERT_FILE cannot be read", Path::new(&path), &error)
                })?),
                (None, None) => None,
            };
        let client =
            Client::new(policy, Arc::clone(&config.resolver), config.timeouts, extra_roots.as_deref())?;
        let env = Secret::from_env(&*config.env);
        let shared = Shared { config, cache, client: Arc::new(client), env, flights: Mutex::default() };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Fetches an artifact, or finds it in the cache. Equal requests at the same time share one download.
    pub async fn fetch(&self, request: &Request, progress: &dyn ProgressSink) -> Result<Fetched, FetchError> {
        let key = request.key();
        let flight = {
            let mut flights = self.shared.flights.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(flights.entry(key.clone()).or_default())
        };
        let _landing = Landing { shared: &self.shared, key: &key, flight: &flight };
        let got = flight.get_or_init(|| self.shared.fetch(request, &key, progress)).await.clone()?;
        Ok(Fetched {
            path: got.placed.path,
            digest: got.placed.digest,
            bytes: got.placed.bytes,
            from_cache: got.from_cache,
            stale: got.stale,
            version: got.version,
            lease: got.placed.lease,
        })
    }
}

/// Removes a shared download when it has ended or its last waiter is dropped.
struct Landing<'a> {
    shared: &'a Shared,
    key: &'a str,
    flight: &'a Flight,
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        let mut flights = self.shared.flights.lock().unwrap_or_else(PoisonError::into_inner);
        let same = flights.get(self.key).is_some_and(|current| Arc::ptr_eq(current, self.flight));
        // Two owners: the map and this call.
        if same && (self.flight.initialized() || Arc::strong_count(self.flight) == 2) {
            flights.remove(self.key);
        }
    }
}
