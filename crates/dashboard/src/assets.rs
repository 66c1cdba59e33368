//! The pages: files that are part of the program.

use axum::{Router, response::IntoResponse as _, routing::get};
use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io::Write as _,
    sync::OnceLock,
};

struct Asset {
    path: &'static str,
    content_type: &'static str,
    content: &'static [u8],
    compressed: OnceLock<Compressed>,
}

struct Compressed {
    gzip: Bytes,
    etag: HeaderValue,
}

macro_rules! asset {
    ($path:literal, $file:literal, $content_type:literal) => {
        Asset {
            path: $path,
            content_type: $content_type,
            content: include_bytes!(concat!("../assets/", $file)),
            compressed: OnceLock::new(),
        }
    };
}

/// Built from `web` by `cargo xtask dashboard`.
static ASSETS: [Asset; 4] = [
    asset!("/", "index.html", "text/html; charset=utf-8"),
    asset!("/assets/app.js", "app.js", "text/javascript; charset=utf-8"),
    asset!("/assets/app.css", "app.css", "text/css; charset=utf-8"),
    asset!("/assets/icon.svg", "icon.svg", "image/svg+xml"),
];

/// Nothing but the files above and the API of this origin: no frame, no form target, no inline script.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub(crate) fn routes() -> Router {
    ASSETS.iter().fold(Router::new(), |router, asset| {
        router.route(asset.path, get(move |headers: HeaderMap| async move { asset.response(&headers) }))
    })
}

/// Sent with every response of the dashboard.
pub(crate) fn secure(headers: &mut HeaderMap) {
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (header::HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

impl Asset {
    fn compressed(&self) -> &Compressed {
        self.compressed.get_or_init(|| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
            // Writes to memory do not fail.
            let gzip = encoder.write_all(self.content).and_then(|()| encoder.finish()).unwrap_or_default();
            let mut hasher = DefaultHasher::new();
            self.content.hash(&mut hasher);
            let etag = HeaderValue::from_str(&format!("\"{:016x}\"", hasher.finish()));
            Compressed { gzip: gzip.into(), etag: etag.unwrap_or_else(|_| HeaderValue::from_static("\"0\"")) }
        })
    }

    fn response(&self, request: &HeaderMap) -> Response<axum::body::Body> {
        let Compressed { gzip, etag } = self.compressed();
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        headers.insert(header::ETAG, etag.clone());
        // Always asked again: the files change with the program, and loopback is near.
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
        if lists(request, &header::IF_NONE_MATCH, etag.to_str().unwrap_or_default()) {
            return (StatusCode::NOT_MODIFIED, headers).into_response();
        }
        if lists(request, &header::ACCEPT_ENCODING, "gzip") {
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            return (headers, gzip.clone()).into_response();
        }
        (headers, Bytes::from_static(self.content)).into_response()
    }
}

/// Whether a comma-separated header has this item, with a weight or without.
fn lists(headers: &HeaderMap, name: &header::HeaderName, item: &str) -> bool {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|listed| {
        let mut parts = listed.split(';').map(str::trim);
        let refused = parts.clone().any(|part| part == "q=0");
        parts.next() == Some(item) && !refused
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_compressed_are_below_200_kilobytes() {
        let total: usize = ASSETS.iter().map(|asset| asset.compressed().gzip.len()).sum();
        assert!(total < 200_000, "{total} bytes");
        assert!(ASSETS.iter().all(|asset| !asset.compressed().gzip.is_empty()));
    }

    #[test]
    fn files_name_no_other_origin() {
        for asset in &ASSETS {
            let text = String::from_utf8_lossy(asset.content);
            for (at, scheme) in text.match_indices("://") {
                let before = &text[..at];
                let rest: String = text[at + scheme.len()..].chars().take(40).collect();
                // Names of XML namespaces, and addresses built at run time.
                let allowed = ["www.w3.org/", "${", "\"", "`", "'"];
                assert!(
                    allowed.iter().any(|start| rest.starts_with(start)),
                    "{}: …{}://{rest}",
                    asset.path,
                    &before[before.len().saturating_sub(8)..]
                );
            }
        }
    }

    #[test]
    fn unchanged_file_is_not_sent_again() {
        let asset = &ASSETS[0];
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT_ENCODING, "br, gzip;q=0.8".parse().unwrap());
        let first = asset.response(&headers);
        assert_eq!(
            (first.status(), &first.headers()["content-encoding"]),
            (StatusCode::OK, &"gzip".parse().unwrap())
        );
        headers.insert(header::IF_NONE_MATCH, first.headers()[header::ETAG].clone());
        assert_eq!(asset.response(&headers).status(), StatusCode::NOT_MODIFIED);
        headers.clear();
        headers.insert(header::ACCEPT_ENCODING, "gzip;q=0".parse().unwrap());
        assert!(!asset.response(&headers).headers().contains_key(header::CONTENT_ENCODING));
    }
}
