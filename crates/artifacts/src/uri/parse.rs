//! The grammar of `storageUri`.

use std::path::PathBuf;

use url::Url;

use super::{BucketUri, HfUri, HttpUri, KNOWN, Uri, UriError};

const SCHEMES: [&str; 10] = ["file", "http", "https", "s3", "gs", "az", "azure", "abfs", "abfss", "hf"];

pub(super) fn parse(text: &str) -> Result<Uri, UriError> {
    if text.trim().is_empty() {
        return Err(UriError::Empty);
    }
    let length = text.chars().count();
    if length > 4096 {
        return Err(UriError::TooLong(length));
    }
    check_characters(text)?;
    let Some((scheme, rest)) = split_scheme(text) else { return local(text) };
    let lower = scheme.to_ascii_lowercase();
    let slashes = rest.starts_with("//");
    let after = rest.strip_prefix("//").unwrap_or(rest);
    match (lower.as_str(), slashes) {
        ("file", _) => file(rest),
        ("http" | "https", true) => http(text),
        ("http" | "https", false) => {
            let hint = format!("write {lower}://host/path");
            Err(UriError::UnknownScheme { scheme: format!("{scheme}:"), hint })
        }
        ("hf", _) => hf(after),
        ("s3", _) => bucket("s3", scheme, after),
        ("gs" | "gcs", _) => bucket("gs", scheme, after),
        ("az" | "azure" | "azureblob", _) => bucket("az", scheme, after),
        ("abfs" | "abfss", true) => abfs(scheme, after),
        (_, true) => Err(unknown_scheme(scheme)),
        (_, false) => bucket(scheme, scheme, after),
    }
}

fn check_characters(text: &str) -> Result<(), UriError> {
    for (index, c) in text.chars().enumerate() {
        if c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
        {
            return Err(UriError::BadCharacter {
                what: "a control or invisible character",
                position: index + 1,
            });
        }
    }
    if text.trim() != text {
        let position = if text.trim_start() == text { text.trim_end().chars().count() + 1 } else { 1 };
        return Err(UriError::BadCharacter { what: "white space", position });
    }
    Ok(())
}

/// The part before the first colon, when it looks like a scheme or the name of a remote.
fn split_scheme(text: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = text.split_once(':')?;
    let looks_like_one = scheme.starts_with(|c: char| c.is_ascii_alphanumeric())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '.' | '-' | '_'));
    looks_like_one.then_some((scheme, rest))
}

fn local(text: &str) -> Result<Uri, UriError> {
    if text == "~" || text.starts_with("~/") {
        let why = "`~` is not expanded; write the full path";
        return Err(UriError::BadPart { part: "path", value: text.to_owned(), why });
    }
    Ok(Uri::Local(PathBuf::from(text)))
}

fn file(rest: &str) -> Result<Uri, UriError> {
    let path = match rest.strip_prefix("//") {
        Some(after) => after.strip_prefix("localhost").filter(|path| path.starts_with('/')).unwrap_or(after),
        None => rest,
    };
    if !path.starts_with('/') {
        return Err(UriError::Missing {
            scheme: "file".into(),
            missing: "an absolute path and no host",
            example: "file:///models/iris, or a plain relative path",
        });
    }
    let decoded = percent_decode(path).ok_or_else(|| UriError::BadPart {
        part: "path",
        value: path.to_owned(),
        why: "its percent-encoding is not UTF-8",
    })?;
    check_characters(&decoded)?;
    local(&decoded)
}

fn http(text: &str) -> Result<Uri, UriError> {
    let (body, fragment) = match text.split_once('#') {
        Some((body, fragment)) => (body, Some(fragment)),
        None => (text, None),
    };
    if let Some(position) = body.chars().position(|c| c == '\\') {
        return Err(UriError::BadCharacter { what: "a backslash", position: position + 1 });
    }
    let authority_and_path = body.split_once("://").map_or("", |(_, rest)| rest);
    let authority = authority_and_path.split(['/', '?']).next().unwrap_or_default();
    if authority.contains('@') {
        return Err(UriError::Credentials);
    }
    let missing = |scheme: &str| UriError::Missing {
        scheme: scheme.to_owned(),
        missing: "a host",
        example: "https://host/path/model.onnx",
    };
    // The URL parser would take the first path segment for the host.
    if authority.is_empty() {
        return Err(missing(body.split(':').next().unwrap_or("http")));
    }
    let path = authority_and_path.split('?').next().unwrap_or_default();
    if path.split('/').skip(1).any(is_dot_dot) {
        return Err(dot_dot(path));
    }
    let url = Url::parse(body).map_err(|error| UriError::BadUrl(error.to_string()))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(UriError::Credentials);
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err(missing(url.scheme()));
    }
    let sha256 = fragment.map(sha256_fragment).transpose()?;
    Ok(Uri::Http(HttpUri { url, sha256 }))
}

fn sha256_fragment(fragment: &str) -> Result<[u8; 32], UriError> {
    let digits = fragment.strip_prefix("sha256=").ok_or(UriError::BadFragment)?;
    crate::digest::unhex(digits).and_then(|bytes| bytes.try_into().ok()).ok_or(UriError::BadFragment)
}

fn bucket(remote: &str, scheme: &str, after: &str) -> Result<Uri, UriError> {
    let (bucket, path) = after.split_once('/').unwrap_or((after, ""));
    if bucket.contains('@') {
        return Err(UriError::Credentials);
    }
    if bucket.is_empty() {
        return Err(UriError::Missing {
            scheme: scheme.to_owned(),
            missing: if remote == "az" { "a container" } else { "a bucket" },
            example: match remote {
                "gs" => "gs://bucket/folder",
                "az" => "az://container/folder",
                "s3" => "s3://bucket/folder",
                _ => "remote:bucket/folder",
            },
        });
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '$');
    if !bucket.chars().all(allowed) || bucket.len() > 222 || bucket.chars().all(|c| c == '.') {
        return Err(UriError::BadPart {
            part: "bucket",
            value: bucket.to_owned(),
            why: "a bucket has letters, digits, `.`, `-` and `_` only",
        });
    }
    let path = key(path)?;
    Ok(Uri::Bucket(BucketUri { remote: remote.to_owned(), account: None, bucket: bucket.to_owned(), path }))
}

fn abfs(scheme: &str, after: &str) -> Result<Uri, UriError> {
    let (authority, path) = after.split_once('/').unwrap_or((after, ""));
    let Some((container, host)) = authority.split_once('@') else { return bucket("az", scheme, after) };
    // `container@account` is Azure's own spelling; a colon in front of `@` is a password.
    if container.contains(':') || host.contains('@') {
        return Err(UriError::Credentials);
    }
    let account = host.split('.').next().unwrap_or_default();
    let account_ok = (3..=24).contains(&account.len())
        && account.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    let host_ok = host == account
        || host == format!("{account}.dfs.core.windows.net")
        || host == format!("{account}.blob.core.windows.net");
    if !account_ok || !host_ok {
        return Err(UriError::BadPart {
            part: "storage account",
            value: host.to_owned(),
            why: "write abfss://container@account.dfs.core.windows.net/path, the account in 3 to 24 lower-case letters and digits",
        });
    }
    match bucket("az", scheme, &format!("{container}/{path}"))? {
        Uri::Bucket(parsed) => Ok(Uri::Bucket(BucketUri { account: Some(account.to_owned()), ..parsed })),
        other => Ok(other),
    }
}

fn hf(after: &str) -> Result<Uri, UriError> {
    let missing = || UriError::Missing {
        scheme: "hf".into(),
        missing: "an organisation and a model",
        example: "hf://organisation/model, hf://organisation/model@revision/folder",
    };
    let mut parts = after.splitn(3, '/');
    let (Some(org), Some(model)) =
        (parts.next().filter(|s| !s.is_empty()), parts.next().filter(|s| !s.is_empty()))
    else {
        return Err(missing());
    };
    let rest = parts.next().unwrap_or_default();
    if org.contains(['@', ':']) {
        return Err(UriError::Credentials);
    }
    let (model, revision) = match model.split_once(['@', ':']) {
        Some((model, revision)) => (model, Some(revision)),
        None => (model, None),
    };
    for name in [org, model] {
        let characters_ok = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'));
        if name.is_empty()
            || name.len() > 96
            || name.starts_with('.')
            || name.contains("..")
            || !characters_ok
        {
            return Err(UriError::BadPart {
                part: "repository name",
                value: name.to_owned(),
                why: "it has letters, digits, `.`, `-` and `_` only, and does not begin with `.`",
            });
        }
    }
    let revision = revision.map(hf_revision).transpose()?;
    Ok(Uri::Hf(HfUri { repo: format!("{org}/{model}"), revision, path: key(rest)? }))
}

fn hf_revision(text: &str) -> Result<String, UriError> {
    let bad = |why| UriError::BadPart { part: "revision", value: text.to_owned(), why };
    let decoded = percent_decode(text).ok_or_else(|| bad("its percent-encoding is not UTF-8"))?;
    let characters_ok =
        decoded.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '/'));
    if decoded.is_empty()
        || !characters_ok
        || decoded.split('/').any(|part| part.is_empty() || is_dot_dot(part) || part == ".")
    {
        return Err(bad("a revision is a branch, a tag or a commit; write the slashes of a branch as %2F"));
    }
    Ok(decoded)
}

/// The part below a bucket or repository, without slashes around it.
fn key(text: &str) -> Result<String, UriError> {
    let trimmed = text.trim_matches('/');
    let bad = |why| UriError::BadPart { part: "path", value: trimmed.to_owned(), why };
    if trimmed.is_empty() {
        return Ok(String::new());
    }
    if trimmed.contains(['?', '#', '\\']) {
        return Err(UriError::BadPart {
            part: "path",
            // What follows may be a signature.
            value: trimmed.split(['?', '#', '\\']).next().unwrap_or_default().to_owned(),
            why: "`?`, `#` and `\\` have no meaning after a bucket; remove what follows",
        });
    }
    for segment in trimmed.split('/') {
        if is_dot_dot(segment) {
            return Err(dot_dot(trimmed));
        }
        if segment.is_empty() || segment == "." {
            return Err(bad("it has an empty or `.` folder; write single slashes"));
        }
        if segment.len() > 255 {
            return Err(bad("a folder or file name is longer than 255 bytes"));
        }
    }
    Ok(trimmed.to_owned())
}

fn is_dot_dot(segment: &str) -> bool {
    segment.len() <= 6 && segment.to_ascii_lowercase().replace("%2e", ".") == ".."
}

fn dot_dot(path: &str) -> UriError {
    UriError::BadPart {
        part: "path",
        value: path.to_owned(),
        why: "`..` is not allowed; write the path without it",
    }
}

fn unknown_scheme(scheme: &str) -> UriError {
    let lower = scheme.to_ascii_lowercase();
    let mounted = "mount it and write the local path";
    let hint = match lower.as_str() {
        "pvc" | "hdfs" | "webhdfs" | "nfs" | "smb" => mounted.to_owned(),
        "ftp" | "sftp" | "ssh" | "git" | "oci" | "docker" => {
            "copy the files to an object store or to a local path".to_owned()
        }
        _ => {
            let nearest = SCHEMES.iter().map(|known| (strsim::levenshtein(&lower, known), known)).min();
            match nearest {
                Some((edits, known)) if edits <= 1 || (edits == 2 && lower.len() > 3) => {
                    format!("did you mean {known}://? Supported are {KNOWN}")
                }
                _ => format!(
                    "known are {KNOWN}. A remote that a storage secret defines is written {lower}:bucket/path"
                ),
            }
        }
    };
    UriError::UnknownScheme { scheme: scheme.to_owned(), hint }
}

/// The text behind percent-encoding; `None` when that is broken or not UTF-8.
pub(crate) fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let pair = [bytes.next()?, bytes.next()?];
            let value = u8::from_str_radix(std::str::from_utf8(&pair).ok()?, 16).ok()?;
            out.push(value);
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).ok()
}
