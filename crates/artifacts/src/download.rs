//! One file over HTTP: resumed after a cut, restarted when it changed, checked at the end.

use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::Path;

use bytes::Bytes;
use http::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderName, HeaderValue,
    IF_NONE_MATCH, IF_RANGE, LAST_MODIFIED, RANGE,
};
use http::{HeaderMap, StatusCode};
use url::Url;

use crate::auth::Auth;
use crate::cache::Scratch;
use crate::digest::{Announced, Checker, announced};
use crate::error::FetchError;
use crate::net::{Client, Follow, Response};
use crate::progress::Meter;
use crate::retry::RetryPolicy;
use crate::uri::redact;

const WRITE_BATCH: usize = 1 << 20;
const MAX_RESTARTS: u32 = 3;
/// Bytes that must arrive before failures are counted from the beginning again.
const WORTHWHILE: u64 = 256 << 10;

/// What to download, and what is known about it.
pub(crate) struct Wanted<'a> {
    pub(crate) url: Url,
    pub(crate) auth: &'a Auth,
    pub(crate) follow: Follow,
    /// Size by the listing.
    pub(crate) size: Option<u64>,
    /// Checksums by the listing or the URI.
    pub(crate) known: Vec<Announced>,
    /// The tag of a copy that we have already: a 304 then saves the download.
    pub(crate) have: Option<String>,
}

/// The end of a download.
pub(crate) enum Outcome {
    /// The file is complete and checked.
    Complete { bytes: u64, sha256: [u8; 32], etag: Option<String> },
    /// The copy named by `have` is still current.
    NotModified,
}

/// Shared by all downloads of one fetch.
pub(crate) struct Downloader<'a> {
    pub(crate) client: &'a Client,
    pub(crate) retry: RetryPolicy,
    pub(crate) meter: &'a Meter<'a>,
    /// Where the destinations are.
    pub(crate) scratch: &'a Scratch,
}

/// A file being written, with the checksums of what was written.
struct Partial {
    file: File,
    checker: Checker,
}

impl Partial {
    fn write(mut self, chunks: &[Bytes]) -> std::io::Result<Self> {
        for chunk in chunks {
            self.checker.update(chunk);
            self.file.write_all(chunk)?;
        }
        Ok(self)
    }
}

/// Download state between attempts.
struct State {
    partial: Option<Partial>,
    written: u64,
    total: Option<u64>,
    /// A strong `ETag` or a date, for `If-Range`.
    validator: Option<HeaderValue>,
    restarts: u32,
    may_resume: bool,
}

/// Why an attempt ended early.
enum Stop {
    /// Resume.
    Retry(FetchError),
    /// Restart.
    Restart(FetchError),
    /// Fail.
    Fail(FetchError),
}

impl From<FetchError> for Stop {
    fn from(error: FetchError) -> Self {
        if error.is_transient() { Self::Retry(error) } else { Self::Fail(error) }
    }
}

impl Downloader<'_> {
    /// Downloads into `dest`, which must not exist.
    pub(crate) async fn download(&self, wanted: &Wanted<'_>, dest: &Path) -> Result<Outcome, FetchError> {
        let place = redact(&wanted.url);
        let mut state =
            State { partial: None, written: 0, total: None, validator: None, restarts: 0, may_resume: true };
        let mut attempt = 0;
        loop {
            let before = state.written;
            let error = match self.attempt(wanted, dest, &mut state).await {
                Ok(outcome) => return Ok(outcome),
                Err(Stop::Fail(error)) => return Err(error.at(place)),
                Err(Stop::Retry(error)) => error.at(&place),
                Err(Stop::Restart(error)) => {
                    self.meter.take_back(state.written);
                    state = State {
                        restarts: state.restarts + 1,
                        written: 0,
                        partial: None,
                        total: None,
                        validator: None,
                        ..state
                    };
                    let error = error.at(&place);
                    if state.restarts > MAX_RESTARTS {
                        return Err(error
                            .with_kind(crate::ErrorKind::Permanent)
                            .remedy("the source keeps changing or its server is broken"));
                    }
                    self.meter.note(&format!("{error}; starting again"));
                    tracing::warn!(target: "gantry::artifacts", "{error}; starting again");
                    continue;
                }
            };
            // A server that sends a few bytes per connection must not reset the retry count for ever.
            if state.written >= before.saturating_add(WORTHWHILE) {
                attempt = 0;
            }
            if !self.retry.pause(attempt, &error, self.meter).await {
                return Err(error);
            }
            attempt += 1;
        }
    }

    async fn attempt(&self, wanted: &Wanted<'_>, dest: &Path, state: &mut State) -> Result<Outcome, Stop> {
        let resume = state.written > 0 && state.may_resume && state.validator.is_some();
        if state.written > 0 && !resume {
            self.meter.take_back(state.written);
            *state = State { written: 0, partial: None, total: None, validator: None, ..*state };
        }
        let headers = request_headers(wanted, state, resume);
        let (url, headers) = wanted.auth.apply(wanted.url.clone(), headers).await?;
        let mut response = match self.client.get(&url, headers, wanted.follow).await {
            Err(error) if resume && error.status() == Some(416) => {
                state.may_resume = false;
                return Err(Stop::Restart(FetchError::transient(
                    "the server no longer has the rest of the file",
                )));
            }
            other => other?,
        };
        if response.status == StatusCode::NOT_MODIFIED {
            return match wanted.have {
                Some(_) => Ok(Outcome::NotModified),
                None => Err(Stop::Fail(FetchError::permanent(
                    "the server answers 304 to an unconditional request",
                ))),
            };
        }
        self.begin(wanted, dest, state, &response, resume).await?;
        self.receive(dest, state, &mut response).await?;
        if state.total.is_some_and(|total| total != state.written) {
            return Err(Stop::Retry(FetchError::transient(format!(
                "the file ended after {} of {} bytes",
                state.written,
                state.total.unwrap_or_default()
            ))));
        }
        let etag = response.headers.get(ETAG).and_then(|value| value.to_str().ok()).map(str::to_owned);
        finish(dest, state, etag).await
    }

    /// Checks the header of the answer and prepares the file for what follows.
    async fn begin(
        &self,
        wanted: &Wanted<'_>,
        dest: &Path,
        state: &mut State,
        response: &Response,
        resume: bool,
    ) -> Result<(), Stop> {
        let headers = &response.headers;
        if headers.get(CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
            return Err(Stop::Fail(FetchError::permanent(
                "the server compressed the file although Accept-Encoding is identity",
            )));
        }
        let length = headers
            .get(CONTENT_LENGTH)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.parse::<u64>().ok());
        if response.status == StatusCode::PARTIAL_CONTENT {
            let honest = resume && is_continuation(headers, state, length);
            if honest {
                return Ok(());
            }
            state.may_resume = false;
            return Err(Stop::Restart(FetchError::transient(
                "the server sent a byte range that was not requested",
            )));
        }
        // A complete answer: either the first one, or the file changed (or the server cannot resume).
        if state.written > 0 {
            self.meter.note("the file changed or cannot be resumed; starting again");
            self.meter.take_back(state.written);
            state.written = 0;
            state.restarts += 1;
            if state.restarts > MAX_RESTARTS {
                return Err(Stop::Fail(FetchError::permanent(
                    "the source keeps changing during the download",
                )));
            }
        }
        let total = length.or(wanted.size);
        if let (Some(length), Some(size)) = (length, wanted.size)
            && length != size
        {
            return Err(Stop::Restart(FetchError::transient(format!(
                "the file has {length} bytes, its listing states {size}"
            ))));
        }
        if let Some(total) = total
            && !self.meter.has_total()
        {
            self.meter.expect(total)?;
        }
        let mut checks = wanted.known.clone();
        checks.extend(announced(headers, wanted.auth.etag_is_md5()));
        let (scratch, path) = (self.scratch.clone(), dest.to_owned());
        let create = move || {
            let file = File::create(path);
            drop(scratch);
            file
        };
        let file = blocking(create).await.map_err(|error| FetchError::io("cannot write", dest, &error))?;
        let validator = headers
            .get(ETAG)
            .filter(|etag| !etag.as_bytes().starts_with(b"W/"))
            .or_else(|| headers.get(LAST_MODIFIED))
            .cloned();
        *state = State {
            partial: Some(Partial { file, checker: Checker::new(checks) }),
            written: 0,
            total,
            validator,
            ..*state
        };
        Ok(())
    }

    async fn receive(&self, dest: &Path, state: &mut State, response: &mut Response) -> Result<(), Stop> {
        let mut batch = Vec::new();
        let mut pending = 0;
        loop {
            let next = response.body.chunk().await;
            let (chunk, failure) = match next {
                Ok(chunk) => (chunk, None),
                Err(error) => (None, Some(error)),
            };
            let ended = chunk.is_none();
            if let Some(chunk) = chunk {
                pending += chunk.len();
                if state.total.is_some_and(|total| state.written + pending as u64 > total) {
                    return Err(Stop::Restart(FetchError::transient(
                        "the server sends more bytes than it announced",
                    )));
                }
                batch.push(chunk);
            }
            if pending >= WRITE_BATCH || (ended && pending > 0) {
                let Some(partial) = state.partial.take() else {
                    return Err(Stop::Fail(FetchError::permanent("the partial file was lost")));
                };
                let chunks = std::mem::take(&mut batch);
                let written = blocking(move || partial.write(&chunks)).await;
                state.partial = Some(written.map_err(|error| FetchError::io("cannot write", dest, &error))?);
                state.written += pending as u64;
                self.meter.add(pending as u64)?;
                pending = 0;
            }
            if let Some(failure) = failure {
                return Err(failure.into());
            }
            if ended {
                return Ok(());
            }
        }
    }
}

fn request_headers(wanted: &Wanted<'_>, state: &State, resume: bool) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    if wanted.auth.etag_is_md5() {
        headers.insert(HeaderName::from_static("x-amz-checksum-mode"), HeaderValue::from_static("ENABLED"));
    }
    if resume {
        if let Ok(range) = HeaderValue::from_str(&format!("bytes={}-", state.written)) {
            headers.insert(RANGE, range);
        }
        if let Some(validator) = &state.validator {
            headers.insert(IF_RANGE, validator.clone());
        }
    } else if let Some(have) = wanted.have.as_deref().and_then(|have| HeaderValue::from_str(have).ok()) {
        headers.insert(IF_NONE_MATCH, have);
    }
    headers
}

/// Whether a 206 continues exactly where we stopped, in the same version of the file.
fn is_continuation(headers: &HeaderMap, state: &State, length: Option<u64>) -> bool {
    let range = headers
        .get(CONTENT_RANGE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.strip_prefix("bytes "));
    let Some(((start, end), total)) = range
        .and_then(|range| range.split_once('/'))
        .and_then(|(span, total)| Some((span.split_once('-')?, total)))
    else {
        return false;
    };
    let (Ok(start), Ok(end)) = (start.parse::<u64>(), end.parse::<u64>()) else { return false };
    let total_agrees = match (total.parse::<u64>().ok(), state.total) {
        (Some(total), Some(known)) => total == known && end.checked_add(1) == Some(total),
        (Some(total), None) => end.checked_add(1) == Some(total),
        (None, _) => total == "*",
    };
    let length_agrees = length
        .is_none_or(|length| end.checked_sub(start).and_then(|span| span.checked_add(1)) == Some(length));
    let same_version = headers.get(ETAG).is_none_or(|etag| {
        state
            .validator
            .as_ref()
            .is_none_or(|validator| etag == validator || !validator.as_bytes().starts_with(b"\""))
    });
    start == state.written && total_agrees && length_agrees && same_version
}

async fn finish(dest: &Path, state: &mut State, etag: Option<String>) -> Result<Outcome, Stop> {
    let Some(mut partial) = state.partial.take() else {
        return Err(Stop::Fail(FetchError::permanent("the partial file was lost")));
    };
    let end = state.written;
    let result = blocking(move || {
        // The file on disk has exactly what was hashed: nothing wrote beyond it.
        let position = partial.file.seek(SeekFrom::End(0))?;
        partial.file.sync_all()?;
        Ok((position, partial.checker.finish()))
    })
    .await;
    let (position, checked) = result.map_err(|error| FetchError::io("cannot write", dest, &error))?;
    if position != end {
        return Err(Stop::Restart(FetchError::transient("the partial file was changed from outside")));
    }
    match checked {
        Ok(sha256) => Ok(Outcome::Complete { bytes: end, sha256, etag }),
        Err(mismatch) => Err(Stop::Restart(FetchError::transient(mismatch.to_string()))),
    }
}

/// File work off the async threads.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(std::io::Error::other(error)),
    }
}
