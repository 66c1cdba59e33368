//! What a browser or a person with curl finds first: the page at `/`, the list of models, the description of the API.

use super::{
    Worker,
    client::Exchange,
    endpoints::{ENDPOINTS, Group, openapi},
    rest::json_response,
};
use crate::body::ResponseBody;
use bytes::Bytes;
use gantry_oip::{Error, server};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header, request::Parts};
use serde_json::json;
use std::sync::OnceLock;

/// Names in one response.
const MAX_NAMES: usize = 1000;
/// Nothing is loaded, and nothing of the page comes from a request.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}\
     code{font:13px ui-monospace,monospace}td{padding:2px 1rem 2px 0;vertical-align:top}h2{font-size:1rem;margin:1.5rem 0 .25rem}";

/// Whether the client prefers a page to JSON: browsers name `text/html`, probes and KServe's clients do not.
pub(super) fn wants_page(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted.flat_map(|value| value.split(',')).any(|kind| kind.trim().starts_with("text/html"))
}

impl Worker {
    pub(super) fn landing_page(&self) -> Response<ResponseBody> {
        let dashboard = self.shared.dashboard.get().map_or_else(String::new, |at| {
            format!("<p><a href=\"http://{at}/\">Dashboard and API browser</a> on the admin port, {at}.</p>")
        });
        let mut tables = String::new();
        for group in Group::ALL {
            tables += &format!("<h2>{}</h2><table>", group.name());
            for endpoint in ENDPOINTS.iter().filter(|endpoint| endpoint.group == group) {
                let method = endpoint.method().map(|method| method.to_string()).unwrap_or_default();
                tables += &format!(
                    "<tr><td><code>{method} {}</code></td><td>{}</td></tr>",
                    endpoint.path, endpoint.summary
                );
            }
            tables += "</table>";
        }
        let page = format!(
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width\"><meta name=\"color-scheme\" content=\"light dark\">\
             <title>Gantry</title><style>{STYLE}</style></head><body><h1>Gantry {}</h1>\
             <p>Inference over REST and gRPC: {} models. <a href=\"/v2/models\">Models</a> · \
             <a href=\"/openapi.json\">OpenAPI description</a></p>{dashboard}{tables}</body></html>\n",
            env!("CARGO_PKG_VERSION"),
            self.shared.routes.len(),
        );
        let mut response = json_response(page);
        let headers = response.headers_mut();
        for (name, value) in [
            (header::CONTENT_TYPE, "text/html; charset=utf-8"),
            (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::VARY, "accept"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        response
    }

    /// Names with readiness, in order. `next` continues a list that was cut.
    pub(super) fn model_list(
        &self,
        parts: &Parts,
        exchange: &Exchange,
    ) -> Result<Response<ResponseBody>, Error> {
        let (mut after, mut limit) = (String::new(), MAX_NAMES);
        for pair in parts.uri.query().unwrap_or_default().split('&') {
            match pair.split_once('=') {
                Some(("after", name)) => name.clone_into(&mut after),
                Some(("limit", text)) => {
                    let parsed = text.parse().ok().filter(|limit| (1..=MAX_NAMES).contains(limit));
                    limit = parsed.ok_or_else(|| {
                        Error::invalid(format!("limit must be an integer from 1 to {MAX_NAMES}"))
                    })?;
                }
                _ => {}
            }
        }
        let mut found =
            self.shared.routes.readiness(|name| name > after.as_str() && exchange.access.sees(name));
        let is_cut = found.len() > limit;
        found.truncate(limit);
        let next = found.last().filter(|_| is_cut).map(|(name, _)| name.clone());
        let models: Vec<_> =
            found.iter().map(|(name, ready)| json!({ "name": &**name, "ready": ready })).collect();
        let mut body = json!({ "models": models });
        if let (Some(next), Some(fields)) = (next, body.as_object_mut()) {
            fields.insert("next".into(), (*next).into());
        }
        Ok(json_response(body.to_string()))
    }

    pub(super) fn openapi_response() -> Response<ResponseBody> {
        static TEXT: OnceLock<Bytes> = OnceLock::new();
        let text = TEXT.get_or_init(|| openapi().to_string().into()).clone();
        super::local_response::from_reply(server::json(StatusCode::OK, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_browsers_get_the_page() {
        for (accept, expected) in [
            ("text/html,application/xhtml+xml,*/*;q=0.8", true),
            ("application/json, text/html;q=0.9", true),
            ("*/*", false),
            ("application/json", false),
        ] {
            let headers = HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static(accept))]);
            assert_eq!(wants_page(&headers), expected, "{accept}");
        }
        assert!(!wants_page(&HeaderMap::new()));
    }
}
