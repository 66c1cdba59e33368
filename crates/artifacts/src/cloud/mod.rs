//! Object stores: credentials and listings by `object_store`, bodies by our own downloader.

mod connector;
mod open;

use std::sync::Arc;

use futures_util::TryStreamExt as _;
use object_store::ObjectStore;
use object_store::path::Path;
use url::Url;

pub(crate) use connector::store_error;
pub(crate) use open::open;

use crate::auth::Auth;
use crate::download_plan::{DownloadPlan, Folders, Item, Layer, choose_version, encode_path};
use crate::error::{ErrorKind, FetchError};
use crate::net::Follow;
use crate::progress::Meter;
use crate::retry::RetryPolicy;

/// An opened bucket.
pub(crate) struct Store {
    listing: Arc<dyn ObjectStore>,
    auth: Auth,
    /// The address of the bucket, without a slash at its end.
    base: Url,
}

impl Store {
    /// What to download for `path`, which is an object or a folder.
    pub(crate) async fn plan(
        self,
        path: &str,
        wanted: Folders,
        max_files: usize,
        retry: RetryPolicy,
        meter: &Meter<'_>,
    ) -> Result<DownloadPlan, FetchError> {
        let place = self.url(path)?;
        let prefix = (!path.is_empty()).then(|| Path::parse(path)).transpose();
        let prefix = prefix.map_err(|_| {
            FetchError::permanent("the path has a name that object stores do not accept").at(place.as_str())
        })?;
        let mut attempt = 0;
        let layer = loop {
            match self.layer(prefix.as_ref(), wanted, max_files, place.as_str()).await {
                Ok(layer) => break layer,
                // A public object may be readable where the listing is not.
                Err(error)
                    if error.kind() == ErrorKind::Denied
                        && error.status().is_some()
                        && !path.is_empty()
                        && !matches!(wanted, Folders::Version(_)) =>
                {
                    meter.note("the folder cannot be listed; trying it as one file");
                    break Layer::default();
                }
                Err(error) if retry.pause(attempt, &error, meter).await => attempt += 1,
                Err(error) => return Err(error),
            }
        };
        if layer.objects.is_empty() {
            if path.is_empty() {
                return Err(FetchError::permanent("the bucket is empty").at(place.as_str()));
            }
            if matches!(wanted, Folders::Version(_)) {
                return Err(FetchError::permanent("no version folders found")
                    .at(place.as_str())
                    .remedy("remove artifactVersion or check storageUri"));
            }
            let name = path.rsplit('/').next().unwrap_or(path).to_owned();
            let item = Item { rel: name, url: place, size: None, tag: None, known: Vec::new() };
            return Ok(DownloadPlan {
                items: vec![item],
                auth: self.auth,
                follow: Follow::Nothing,
                version: None,
                single: true,
            });
        }
        let mut items = Vec::with_capacity(layer.objects.len());
        for (rel, size, tag) in layer.objects {
            let key = if path.is_empty() { rel.clone() } else { format!("{path}/{rel}") };
            items.push(Item { url: self.url(&key)?, rel, size: Some(size), tag, known: Vec::new() });
        }
        Ok(DownloadPlan {
            items,
            auth: self.auth,
            follow: Follow::Nothing,
            version: layer.version,
            single: false,
        })
    }

    /// The objects of the requested version.
    async fn layer(
        &self,
        prefix: Option<&Path>,
        wanted: Folders,
        max_files: usize,
        place: &str,
    ) -> Result<Layer, FetchError> {
        let failed = |error: object_store::Error| store_error(&error).at(place);
        let top = self.listing.list_with_delimiter(prefix).await.map_err(failed)?;
        let relative = |location: &Path| -> Option<String> {
            let raw = location.as_ref();
            match prefix {
                Some(prefix) => raw.strip_prefix(prefix.as_ref())?.strip_prefix('/').map(str::to_owned),
                None => Some(raw.to_owned()),
            }
        };
        let folders: Vec<String> = top.common_prefixes.iter().filter_map(&relative).collect();
        let files = top.objects.iter().filter(|object| {
            object.size > 0 || relative(&object.location).is_some_and(|rel| !folders.contains(&rel))
        });
        let mut objects: Vec<_> = files
            .filter_map(|object| {
                relative(&object.location).map(|rel| (rel, object.size, object.e_tag.clone()))
            })
            .collect();
        if objects.is_empty() && folders.is_empty() {
            return Ok(Layer::default());
        }
        let chosen = choose_version(folders.iter().map(String::as_str), wanted, place)?;
        for folder in folders {
            if chosen.as_ref().is_some_and(|chosen| chosen.folder != folder) {
                continue;
            }
            let below = match prefix {
                Some(prefix) => format!("{}/{folder}", prefix.as_ref()),
                None => folder,
            };
            let below = Path::parse(below)
                .map_err(|_| FetchError::permanent("a folder has a name that cannot be used").at(place))?;
            let mut stream = self.listing.list(Some(&below));
            while let Some(object) = stream.try_next().await.map_err(failed)? {
                if let Some(rel) = relative(&object.location) {
                    objects.push((rel, object.size, object.e_tag));
                }
                if objects.len() > max_files {
                    return Err(too_many(max_files).at(place));
                }
            }
        }
        drop_folder_markers(&mut objects);
        Ok(Layer { objects, version: chosen.map(|chosen| chosen.number) })
    }

    fn url(&self, key: &str) -> Result<Url, FetchError> {
        let text = format!("{}/{}", self.base.as_str().trim_end_matches('/'), encode_path(key));
        Url::parse(&text).map_err(|_| FetchError::permanent("the endpoint of the store is not a URL"))
    }
}

/// Consoles create empty objects that stand for folders; a file of that name cannot exist beside the folder.
fn drop_folder_markers(objects: &mut Vec<(String, u64, Option<String>)>) {
    let mut names: Vec<String> = objects.iter().map(|(rel, ..)| format!("{rel}/")).collect();
    names.sort();
    objects.retain(|(rel, size, _)| {
        let own = format!("{rel}/");
        let next = names.partition_point(|name| *name <= own);
        *size > 0 || !names.get(next).is_some_and(|name| name.starts_with(&own))
    });
}

pub(crate) fn too_many(max_files: usize) -> FetchError {
    FetchError::too_large(format!("the artifact has more than {max_files} files"))
        .remedy("point storageUri at the folder of one model, or raise the limit for artifact files")
}
