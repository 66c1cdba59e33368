//! The work behind a fetch, by kind of source.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::{StreamExt as _, TryStreamExt as _};

use crate::archive::{self, Format, format_of};
use crate::auth::Auth;
use crate::cache::{Placed, Scratch, SourceRecord};
use crate::cloud;
use crate::digest::{Announced, hex};
use crate::download::{Downloader, Outcome, Wanted};
use crate::download_plan::{DownloadPlan, Folders, Item, choose_version};
use crate::error::FetchError;
use crate::fetch::{Got, Request, Shared};
use crate::file_tree::{Names, Record};
use crate::huggingface::{Hub, is_commit};
use crate::local::{self, Access, Local};
use crate::net::Follow;
use crate::progress::{Meter, ProgressSink};
use crate::uri::{HttpUri, Uri};

impl Shared {
    /// Fetches, and falls back to the last copy when the source cannot be reached.
    pub(crate) async fn fetch(
        &self,
        request: &Request,
        key: &str,
        progress: &dyn ProgressSink,
    ) -> Result<Got, FetchError> {
        let place = request.uri.to_string();
        if request.pin.is_some()
            && let Some(got) = self.last_copy(key).await
        {
            return Ok(got);
        }
        if let Uri::Local(path) = &request.uri {
            return self.fetch_local(path.clone(), request.folders(), key, progress).await;
        }
        if is_immutable(&request.uri)
            && let Some(got) = self.last_copy(key).await
        {
            return Ok(got);
        }
        match self.fetch_remote(request, key, progress).await {
            Err(error) if error.is_transient() && self.config.use_stale => match self.last_copy(key).await {
                Some(got) => {
                    let text = format!("{error}; the copy of an earlier fetch is used");
                    tracing::warn!(target: "gantry::artifacts", source = place, "{text}");
                    progress.note(&text);
                    Ok(Got { stale: true, ..got })
                }
                None => Err(error.at(place)),
            },
            other => other.map_err(|error| error.at(place)),
        }
    }

    async fn last_copy(&self, key: &str) -> Option<Got> {
        let cache = Arc::clone(&self.cache);
        let key = key.to_owned();
        let found = run(move || {
            let known = cache.source_record(&key)?;
            let placed = cache.lease(&known.digest)?;
            Some(Got { placed, version: known.version, from_cache: true, stale: false })
        });
        found.await.ok().flatten()
    }

    async fn fetch_remote(
        &self,
        request: &Request,
        key: &str,
        progress: &dyn ProgressSink,
    ) -> Result<Got, FetchError> {
        let meter = Meter::new(progress, self.config.limits.bytes);
        let plan = self.plan(request, &meter).await?;
        if let [item] = plan.items.as_slice()
            && plan.single
        {
            archive::check_supported(&item.rel)?;
        }
        let fingerprint = plan.fingerprint();
        let cache = Arc::clone(&self.cache);
        let index_key = key.to_owned();
        let (known, cached) = run(move || {
            let known = cache.source_record(&index_key);
            let cached = known.as_ref().and_then(|known| cache.lease(&known.digest));
            (known, cached)
        })
        .await?;
        if let (Some(known), Some(placed)) = (&known, &cached)
            && fingerprint.is_some()
            && known.fingerprint == fingerprint
        {
            return Ok(Got {
                placed: placed.clone(),
                version: known.version,
                from_cache: true,
                stale: false,
            });
        }
        let have =
            known.as_ref().filter(|_| cached.is_some() && plan.single).and_then(|known| known.etag.clone());
        if let Some(total) = plan.total() {
            meter.expect(total)?;
        }
        let cache = Arc::clone(&self.cache);
        let scratch = run(move || cache.scratch()).await??;
        let Some((records, etag)) = self.download(&plan, &scratch, have, &meter).await? else {
            let (Some(known), Some(placed)) = (known, cached) else {
                return Err(FetchError::transient("the server returned 304, but nothing is cached"));
            };
            return Ok(Got { placed, version: known.version, from_cache: true, stale: false });
        };
        if records.iter().all(|record| record.bytes == 0) {
            return Err(
                FetchError::permanent("the source is empty: 0 bytes").remedy("upload the model again")
            );
        }
        let source = request.uri.to_string();
        let version = plan.version;
        let format = plan.items.first().filter(|_| plan.single).and_then(|item| format_of(&item.rel));
        let (placed, version) =
            self.settle(scratch, source.clone(), records, format, request.folders(), version, &meter).await?;
        let known = SourceRecord { source, digest: placed.digest.clone(), fingerprint, etag, version };
        self.remember(key, known).await?;
        Ok(Got { placed, version, from_cache: false, stale: false })
    }

    async fn plan(&self, request: &Request, meter: &Meter<'_>) -> Result<DownloadPlan, FetchError> {
        let wanted = request.folders();
        let secret = request.secret.as_ref();
        let max_files = self.config.limits.files;
        match &request.uri {
            Uri::Http(http) => http_plan(http, request),
            Uri::Bucket(bucket) => {
                let store = cloud::open(
                    bucket,
                    secret,
                    &self.env,
                    Arc::clone(&self.client),
                    self.config.instance_credentials,
                    max_files,
                )?;
                store.plan(&bucket.path, wanted, max_files, self.config.retry, meter).await
            }
            Uri::Hf(hf) => {
                Hub::open(&self.client, secret, &self.env, self.config.retry, meter)?
                    .plan(hf, wanted, max_files)
                    .await
            }
            Uri::Local(_) => Err(FetchError::permanent("a local source is not downloaded")),
        }
    }

    /// Downloads every file of a plan; `None` when the copy that we have is still current.
    async fn download(
        &self,
        plan: &DownloadPlan,
        scratch: &Scratch,
        have: Option<String>,
        meter: &Meter<'_>,
    ) -> Result<Option<(Vec<Record>, Option<String>)>, FetchError> {
        let downloader = Downloader { client: &self.client, retry: self.config.retry, meter, scratch };
        let root = scratch.files();
        let mut names = Names::new(self.config.limits);
        let mut jobs = Vec::with_capacity(plan.items.len());
        for item in &plan.items {
            let rel = names.file(&item.rel).map_err(|error| error.at(crate::uri::redact(&item.url)))?;
            jobs.push((item, root.join(rel)));
        }
        // Made before they are streamed: a closure over references in the stream would not be `Send`.
        let downloads: Vec<_> = jobs
            .into_iter()
            .map(|(item, dest)| download_file(&downloader, plan, item, dest, have.clone()))
            .collect();
        let downloads = futures_util::stream::iter(downloads).buffer_unordered(self.config.parallel.max(1));
        let done: Vec<_> = downloads.try_collect().await?;
        let etag = match done.as_slice() {
            [Some((_, etag))] => etag.clone(),
            _ => None,
        };
        let records: Option<Vec<Record>> =
            done.into_iter().map(|one| one.map(|(record, _)| record)).collect();
        Ok(records.map(|records| (records, etag)))
    }

    /// Unpacks an archive, chooses the version inside it, and places the result.
    #[allow(
        clippy::too_many_arguments,
        reason = "the parts of one step that runs on a blocking thread; a struct would only rename them"
    )]
    async fn settle(
        &self,
        scratch: Scratch,
        source: String,
        records: Vec<Record>,
        format: Option<Format>,
        wanted: Folders,
        version: Option<u32>,
        meter: &Meter<'_>,
    ) -> Result<(Placed, Option<u32>), FetchError> {
        if format.is_some() {
            meter.note("unpacking");
        }
        let cache = Arc::clone(&self.cache);
        let limits = self.config.limits;
        run(move || {
            let Some(format) = format else {
                return Ok((cache.place(&scratch, &source, records)?, version));
            };
            let packed = records.first().map(|record| scratch.files().join(&record.path)).unwrap_or_default();
            let unpacked = cache.scratch()?;
            let records = archive::unpack(&packed, format, &unpacked.files(), limits)?;
            drop(scratch);
            let (records, version) = settle_folders(&unpacked.files(), records, wanted, &source)?;
            Ok((cache.place(&unpacked, &source, records)?, version))
        })
        .await?
    }

    async fn fetch_local(
        &self,
        path: PathBuf,
        wanted: Folders,
        key: &str,
        progress: &dyn ProgressSink,
    ) -> Result<Got, FetchError> {
        let limits = self.config.limits;
        let access =
            Access { roots: self.config.local_roots.clone(), secrets: self.config.secret_paths.clone() };
        let cache = Arc::clone(&self.cache);
        let index_key = key.to_owned();
        let source = path.display().to_string();
        let is_archive =
            path.file_name().and_then(|name| name.to_str()).is_some_and(|name| format_of(name).is_some())
                && path.is_file();
        let survey = move || -> Result<(Local, Option<Got>), FetchError> {
            // The version of an archive is chosen after it is unpacked.
            let found =
                local::survey(&path, if is_archive { Folders::Newest } else { wanted }, limits, &access)?;
            let known = cache
                .source_record(&index_key)
                .filter(|known| found.fingerprint.is_some() && known.fingerprint == found.fingerprint);
            let got = known.and_then(|known| {
                let placed = cache.lease(&known.digest)?;
                Some(Got { placed, version: known.version, from_cache: true, stale: false })
            });
            Ok((found, got))
        };
        let (found, got) = run(survey).await??;
        if let Some(got) = got {
            return Ok(got);
        }
        if matches!(wanted, Folders::Version(_)) && found.single && !is_archive {
            return Err(single_file_has_no_versions(&source));
        }
        if let Some((_, name)) = found.only_file() {
            archive::check_supported(name).map_err(|error| error.at(&source))?;
        }
        let meter = Meter::new(progress, limits.bytes);
        meter.expect(found.bytes)?;
        let cache = Arc::clone(&self.cache);
        let name = source.clone();
        let fingerprint = found.fingerprint.clone();
        // The copy runs on a blocking thread, the progress is reported here; when the receiver is dropped, it stops.
        let (counted, mut counts) = tokio::sync::mpsc::unbounded_channel();
        let copy = move || -> Result<(Placed, Option<u32>), FetchError> {
            let scratch = cache.scratch()?;
            let only = found.only_file().map(|(path, name)| (path.to_owned(), format_of(name)));
            if let Some((packed, Some(format))) = only {
                let records = archive::unpack(&packed, format, &scratch.files(), limits)
                    .map_err(|error| error.at(&name))?;
                let (records, version) = settle_folders(&scratch.files(), records, wanted, &name)?;
                return Ok((cache.place(&scratch, &name, records)?, version));
            }
            let records = found.copy(&scratch.files(), |bytes| {
                counted.send(bytes).map_err(|_| FetchError::transient("the fetch was given up"))
            })?;
            Ok((cache.place(&scratch, &name, records)?, found.version))
        };
        let copying = tokio::task::spawn_blocking(copy);
        while let Some(bytes) = counts.recv().await {
            meter.add(bytes)?;
        }
        let (placed, version) = copying.await.map_err(|_| interrupted())??;
        let known = SourceRecord { source, digest: placed.digest.clone(), fingerprint, etag: None, version };
        self.remember(key, known).await?;
        Ok(Got { placed, version, from_cache: false, stale: false })
    }

    async fn remember(&self, key: &str, known: SourceRecord) -> Result<(), FetchError> {
        let cache = Arc::clone(&self.cache);
        let key = key.to_owned();
        run(move || cache.remember(&key, &known)).await
    }
}

/// One file of a plan; `None` when the copy that we have is still current.
async fn download_file(
    downloader: &Downloader<'_>,
    plan: &DownloadPlan,
    item: &Item,
    dest: PathBuf,
    have: Option<String>,
) -> Result<Option<(Record, Option<String>)>, FetchError> {
    if let Some(parent) = dest.parent() {
        std::fs::create_dir_all(parent)
            .map_err(|error| FetchError::io("cannot create a directory", parent, &error))?;
    }
    let wanted = Wanted {
        url: item.url.clone(),
        auth: &plan.auth,
        follow: plan.follow,
        size: item.size,
        known: item.known.clone(),
        have,
    };
    match downloader.download(&wanted, &dest).await? {
        Outcome::NotModified => Ok(None),
        Outcome::Complete { bytes, sha256, etag } => {
            Ok(Some((Record { path: item.rel.clone(), bytes, sha256: hex(&sha256) }, etag)))
        }
    }
}

/// Whether the URI itself fixes the content, so that a cached copy needs no revalidation.
fn is_immutable(uri: &Uri) -> bool {
    match uri {
        Uri::Http(http) => http.sha256.is_some(),
        Uri::Hf(hf) => is_commit(hf.revision()),
        Uri::Bucket(_) | Uri::Local(_) => false,
    }
}

fn single_file_has_no_versions(place: &str) -> FetchError {
    FetchError::permanent("artifactVersion is set, but the source is one file")
        .at(place)
        .remedy("point storageUri at the folder that has the version folders")
}

fn http_plan(http: &HttpUri, request: &Request) -> Result<DownloadPlan, FetchError> {
    let name = http.url.path_segments().and_then(|mut segments| segments.next_back()).unwrap_or_default();
    let name = crate::uri::percent_decode(name)
        .filter(|name| !name.contains('/'))
        .filter(|name| Names::new(crate::Limits::default()).file(name).is_ok());
    let name = name.unwrap_or_else(|| "model".to_owned());
    if request.artifact_version.is_some() && format_of(&name).is_none() {
        return Err(single_file_has_no_versions(&request.uri.to_string()));
    }
    let known = http.sha256.map(|sha256| Announced::sha256("#sha256 of storageUri", sha256));
    let item =
        Item { rel: name, url: http.url.clone(), size: None, tag: None, known: known.into_iter().collect() };
    let auth = Auth::http(request.secret.as_ref(), &http.url)?;
    Ok(DownloadPlan { items: vec![item], auth, follow: Follow::Redirects, version: None, single: true })
}

/// Most archives pack one folder; its content is the artifact. A folder with a number is a version and stays.
fn strip_top_folder(files: &Path, records: Vec<Record>) -> Result<Vec<Record>, FetchError> {
    let mut tops = records.iter().map(|record| record.path.split_once('/').map(|(top, _)| top));
    let Some(Some(top)) = tops.next() else { return Ok(records) };
    if top.bytes().all(|b| b.is_ascii_digit()) || !tops.all(|other| other == Some(top)) {
        return Ok(records);
    }
    let failed = |error: std::io::Error| FetchError::io("cannot move the unpacked files", files, &error);
    let top = top.to_owned();
    let aside = files.with_extension("top");
    std::fs::rename(files.join(&top), &aside).map_err(failed)?;
    std::fs::remove_dir_all(files).map_err(failed)?;
    std::fs::rename(&aside, files).map_err(failed)?;
    let stripped = records.into_iter().map(|record| {
        let path =
            record.path.split_once('/').map_or_else(|| record.path.clone(), |(_, rest)| rest.to_owned());
        Record { path, ..record }
    });
    Ok(stripped.collect())
}

/// The folders of an unpacked archive that are taken.
fn settle_folders(
    files: &Path,
    records: Vec<Record>,
    wanted: Folders,
    place: &str,
) -> Result<(Vec<Record>, Option<u32>), FetchError> {
    if wanted == Folders::All {
        return Ok((records, None));
    }
    let records = strip_top_folder(files, records)?;
    keep_version(files, records, wanted, place)
}

/// Keeps the wanted version folder and the files beside it.
fn keep_version(
    files: &Path,
    mut records: Vec<Record>,
    wanted: Folders,
    place: &str,
) -> Result<(Vec<Record>, Option<u32>), FetchError> {
    let mut folders: Vec<String> = records
        .iter()
        .filter_map(|record| record.path.split_once('/'))
        .map(|(top, _)| top.to_owned())
        .collect();
    folders.sort_unstable();
    folders.dedup();
    let Some(chosen) = choose_version(folders.iter().map(String::as_str), wanted, place)? else {
        return Ok((records, None));
    };
    for folder in folders.iter().filter(|folder| **folder != chosen.folder) {
        let path = files.join(folder);
        std::fs::remove_dir_all(&path)
            .map_err(|error| FetchError::io("cannot remove another version", &path, &error))?;
    }
    records.retain(|record| record.path.split_once('/').is_none_or(|(top, _)| top == chosen.folder));
    Ok((records, Some(chosen.number)))
}

/// Blocking work on its own thread.
async fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, FetchError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| interrupted())
}

fn interrupted() -> FetchError {
    FetchError::transient("the work was interrupted")
}
