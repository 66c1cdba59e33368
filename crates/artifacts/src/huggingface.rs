//! The Hugging Face hub: a revision is resolved to a commit, the commit is listed, its files are downloaded.

use http::HeaderMap;
use http::header::LINK;
use serde::Deserialize;
use url::Url;

use crate::auth::Auth;
use crate::cloud::too_many;
use crate::digest::{Announced, unhex};
use crate::download_plan::{DownloadPlan, Folders, Item, choose_version, encode_path};
use crate::error::FetchError;
use crate::net::{Client, Follow};
use crate::progress::Meter;
use crate::retry::RetryPolicy;
use crate::secret::Secret;
use crate::uri::{HfUri, redact};

const MAX_ANSWER: usize = 32 << 20;

#[derive(Deserialize)]
struct Revision {
    sha: String,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    kind: String,
    oid: String,
    #[serde(default)]
    size: u64,
    path: String,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

/// A hub endpoint with its credentials.
pub(crate) struct Hub<'a> {
    client: &'a Client,
    endpoint: String,
    auth: Auth,
    retry: RetryPolicy,
    meter: &'a Meter<'a>,
}

impl<'a> Hub<'a> {
    pub(crate) fn open(
        client: &'a Client,
        secret: Option<&Secret>,
        env: &Secret,
        retry: RetryPolicy,
        meter: &'a Meter<'a>,
    ) -> Result<Self, FetchError> {
        let from = secret.unwrap_or(env);
        if secret.is_some() && !from.has_any("hf.") {
            return Err(FetchError::denied("the storage secret has no token for hf://")
                .remedy("add HF_TOKEN to the secret, or remove secretName"));
        }
        let auth = from.get("hf.token").map_or(Ok(Auth::None), Auth::bearer)?;
        let endpoint =
            from.get("hf.endpoint").or_else(|| env.get("hf.endpoint").filter(|_| secret.is_none()));
        let endpoint = endpoint.unwrap_or("https://huggingface.co").trim_end_matches('/').to_owned();
        Ok(Self { client, endpoint, auth, retry, meter })
    }

    /// What to download for the repository or the part of it that the URI names.
    pub(crate) async fn plan(
        self,
        uri: &HfUri,
        wanted: Folders,
        max_files: usize,
    ) -> Result<DownloadPlan, FetchError> {
        let commit = self.commit(uri).await?;
        let entries = self.entries(&uri.repo, &commit, max_files).await?;
        let place = uri.to_string();
        let below = |path: &str| -> Option<String> {
            match uri.path.as_str() {
                "" => Some(path.to_owned()),
                prefix if path == prefix => Some(String::new()),
                prefix => path.strip_prefix(prefix)?.strip_prefix('/').map(str::to_owned),
            }
        };
        let mut files: Vec<(String, Entry)> = entries
            .into_iter()
            .filter(|entry| entry.kind == "file")
            .filter_map(|entry| Some((below(&entry.path)?, entry)))
            .collect();
        let single = files.iter().any(|(rel, _)| rel.is_empty());
        if single {
            files.retain(|(rel, _)| rel.is_empty());
            for (rel, entry) in &mut files {
                entry.path.rsplit('/').next().unwrap_or_default().clone_into(rel);
            }
        }
        // Attributes of the repository itself, never part of a model.
        files.retain(|(rel, _)| rel != ".gitattributes" && rel != ".gitignore");
        if files.is_empty() {
            return Err(FetchError::permanent("no such file or folder in the repository")
                .at(place)
                .remedy("check the path after the model's name"));
        }
        let mut folders: Vec<&str> =
            files.iter().filter_map(|(rel, _)| rel.split_once('/')).map(|(folder, _)| folder).collect();
        folders.sort_unstable();
        folders.dedup();
        let chosen = choose_version(folders.into_iter(), wanted, &place)?;
        if let Some(chosen) = &chosen {
            files.retain(|(rel, _)| rel.split_once('/').is_none_or(|(folder, _)| folder == chosen.folder));
        }
        let items = files
            .into_iter()
            .map(|(rel, entry)| self.item(&uri.repo, &commit, rel, &entry))
            .collect::<Result<_, _>>()?;
        Ok(DownloadPlan {
            items,
            auth: self.auth,
            follow: Follow::Redirects,
            version: chosen.map(|chosen| chosen.number),
            single,
        })
    }

    /// Resolves a branch or tag to a commit, so that all files are of one version.
    async fn commit(&self, uri: &HfUri) -> Result<String, FetchError> {
        let revision = uri.revision();
        if is_commit(revision) {
            return Ok(revision.to_owned());
        }
        let url = format!(
            "{}/api/models/{}/revision/{}",
            self.endpoint,
            uri.repo,
            encode_path(revision).replace('/', "%2F")
        );
        let (body, _) = self.get(&url).await?;
        let answer: Revision = serde_json::from_slice(&body).map_err(|_| unreadable(&url))?;
        if is_commit(&answer.sha) { Ok(answer.sha) } else { Err(unreadable(&url)) }
    }

    async fn entries(&self, repo: &str, commit: &str, max_files: usize) -> Result<Vec<Entry>, FetchError> {
        let mut url = format!("{}/api/models/{repo}/tree/{commit}?recursive=true", self.endpoint);
        let mut all: Vec<Entry> = Vec::new();
        loop {
            let (body, headers) = self.get(&url).await?;
            let page: Vec<Entry> = serde_json::from_slice(&body).map_err(|_| unreadable(&url))?;
            let empty = page.is_empty();
            all.extend(page);
            // Folders are listed too, hence the margin.
            if all.len() > max_files.saturating_mul(2) {
                return Err(too_many(max_files).at(&url));
            }
            match next_page(&headers) {
                Some(next) if !empty => url = self.same_hub(&next)?,
                _ => return Ok(all),
            }
        }
    }

    /// The token must not follow a link to another server.
    fn same_hub(&self, next: &str) -> Result<String, FetchError> {
        let origin = |text: &str| Url::parse(text).map(|url| url.origin()).ok();
        if origin(next).is_some_and(|next| Some(next) == origin(&self.endpoint)) {
            Ok(next.to_owned())
        } else {
            Err(FetchError::denied("the listing continues on another server").at(&self.endpoint))
        }
    }

    async fn get(&self, url: &str) -> Result<(Vec<u8>, HeaderMap), FetchError> {
        let parsed = Url::parse(url)
            .map_err(|_| FetchError::permanent("HF_ENDPOINT is not a URL").remedy("write https://host"))?;
        let place = redact(&parsed);
        let mut attempt = 0;
        loop {
            let result = async {
                let (url, headers) = self.auth.apply(parsed.clone(), HeaderMap::new()).await?;
                let response = self.client.get(&url, headers, Follow::Redirects).await?;
                Ok((response.body.collect(MAX_ANSWER).await?, response.headers))
            };
            match result.await {
                Ok(answer) => return Ok(answer),
                Err(error) => {
                    let error: FetchError = error;
                    let error = error.at(&place);
                    if !self.retry.pause(attempt, &error, self.meter).await {
                        return Err(match error.status() {
                            Some(401 | 403 | 404) => {
                                error.remedy("the repository may be private or gated; set HF_TOKEN")
                            }
                            _ => error,
                        });
                    }
                    attempt += 1;
                }
            }
        }
    }

    fn item(&self, repo: &str, commit: &str, rel: String, entry: &Entry) -> Result<Item, FetchError> {
        let text = format!("{}/{repo}/resolve/{commit}/{}", self.endpoint, encode_path(&entry.path));
        let url = Url::parse(&text).map_err(|_| FetchError::permanent("HF_ENDPOINT is not a URL"))?;
        let (tag, size, known) = match &entry.lfs {
            Some(lfs) => {
                let sha256 = unhex(&lfs.oid).and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
                (
                    lfs.oid.clone(),
                    lfs.size,
                    sha256.map(|sha256| Announced::sha256("the hub's listing", sha256)),
                )
            }
            None => (entry.oid.clone(), entry.size, None),
        };
        Ok(Item { rel, url, size: Some(size), tag: Some(tag), known: known.into_iter().collect() })
    }
}

pub(crate) fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|b| b.is_ascii_hexdigit())
}

fn unreadable(url: &str) -> FetchError {
    FetchError::permanent("the answer of the hub cannot be read").at(url).remedy("check HF_ENDPOINT")
}

/// `Link: <url>; rel="next"`.
fn next_page(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(LINK)?.to_str().ok()?;
    text.split(',').find_map(|link| {
        let (target, parameters) = link.split_once('>')?;
        parameters.contains("rel=\"next\"").then(|| target.trim().trim_start_matches('<').to_owned())
    })
}
