//! Which requests reach the dashboard: not those of other sites, nor of a name that another site's server resolves to this
//! machine (DNS rebinding).

use crate::assets;
use axum::{
    extract::{ConnectInfo, Request, State},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use http::{HeaderMap, Method, StatusCode, header, uri::Authority};
use std::net::{IpAddr, SocketAddr};

/// Required for everything but reading. Another origin cannot set it without a preflight request, which is not answered.
pub const HEADER: &str = "x-gantry-dashboard";

/// Layer of the dashboard's routes. Without `remote`, other machines are refused.
pub(crate) async fn check(State(remote): State<bool>, request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(peer)| *peer);
    let authority = request.uri().authority();
    let elsewhere = peer.filter(|_| !remote).and_then(other_machine);
    let refusal = elsewhere.or_else(|| refusal(peer, request.method(), authority, request.headers()));
    let mut response = match refusal {
        Some(reason) => (StatusCode::FORBIDDEN, format!("{reason}\n")).into_response(),
        None => next.run(request).await,
    };
    assets::secure(response.headers_mut());
    response
}

fn is_local(peer: SocketAddr) -> bool {
    peer.ip().to_canonical().is_loopback()
}

/// Why a caller on another machine is refused. A forwarded port is one on this machine.
fn other_machine(peer: SocketAddr) -> Option<String> {
    (!is_local(peer)).then(|| {
        "the dashboard is served to this machine only: use kubectl port-forward, or start with --remote-logs".into()
    })
}

/// Why a request is refused, if it is.
fn refusal(
    peer: Option<SocketAddr>,
    method: &Method,
    authority: Option<&Authority>,
    headers: &HeaderMap,
) -> Option<String> {
    let host = host(authority, headers);
    if let Some(reason) = foreign_host(peer, host) {
        return Some(reason);
    }
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    // Links of other sites may lead to the page; their scripts may not read its data.
    let navigates = text("sec-fetch-mode") == Some("navigate") && *method == Method::GET;
    if matches!(text("sec-fetch-site"), Some("cross-site" | "same-site")) && !navigates {
        return Some("requests of other sites are refused".into());
    }
    if matches!(*method, Method::GET | Method::HEAD) {
        return None;
    }
    if let Some(origin) = headers.get(header::ORIGIN) {
        let of_origin = origin.to_str().ok().and_then(|o| o.split_once("://")).map(|(_, host)| host);
        if of_origin.is_none() || of_origin != host {
            return Some("the origin of the request is another site".into());
        }
    }
    (!headers.contains_key(HEADER)).then(|| format!("the request needs the header {HEADER}: 1"))
}

fn host<'a>(authority: Option<&'a Authority>, headers: &'a HeaderMap) -> Option<&'a str> {
    authority.map(Authority::as_str).or_else(|| headers.get(header::HOST)?.to_str().ok())
}

/// Why a request of this machine is refused for its host. It must be an address or `localhost`: other names may be those of
/// a site whose server resolves them to this machine, to read with a browser here what it may not read itself.
pub fn foreign_host(peer: Option<SocketAddr>, host: Option<&str>) -> Option<String> {
    let host = host.filter(|_| peer.is_none_or(is_local))?;
    let name = host.parse::<Authority>().ok();
    let name = name.as_ref().map_or("", |authority| authority.host());
    let is_address = name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    let is_localhost =
        name.eq_ignore_ascii_case("localhost") || name.to_ascii_lowercase().ends_with(".localhost");
    let shown: String = host.chars().take(100).collect();
    (!is_address && !is_localhost)
        .then(|| format!("the host {shown:?} is refused on this machine: use localhost or the address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: &str = "127.0.0.1:50000";

    fn refused(peer: &str, method: &Method, fields: &[(&'static str, &str)]) -> bool {
        let fields = fields.iter().map(|(name, value)| {
            (header::HeaderName::from_static(name), value.parse::<http::HeaderValue>().unwrap())
        });
        refusal(Some(peer.parse().unwrap()), method, None, &fields.collect()).is_some()
    }

    #[test]
    fn other_machines_are_refused() {
        for (peer, expected) in
            [(LOCAL, false), ("[::1]:1", false), ("[::ffff:127.0.0.1]:1", false), ("10.0.0.7:1", true)]
        {
            assert_eq!(other_machine(peer.parse().unwrap()).is_some(), expected, "{peer}");
        }
    }

    #[test]
    fn names_of_other_sites_are_refused_on_this_machine() {
        for (host, expected) in [
            ("127.0.0.1:9003", false),
            ("localhost:9003", false),
            ("LOCALHOST", false),
            ("gantry.localhost:80", false),
            ("[::1]:9003", false),
            ("192.0.2.4:9003", false),
            ("evil.example:9003", true),
            ("127.0.0.1.evil.example", true),
            ("localhost.evil.example", true),
            ("", true),
        ] {
            assert_eq!(refused(LOCAL, &Method::GET, &[("host", host)]), expected, "{host}");
        }
        let service = [("host", "gantry-gateway.ml.svc:9003")];
        assert!(!refused("10.0.0.7:1", &Method::GET, &service), "other machines use the name of the Service");
        assert!(refused("[::ffff:127.0.0.1]:1", &Method::GET, &service));
    }

    #[test]
    fn requests_of_other_sites_are_refused() {
        let host = ("host", "localhost:9003");
        let own = ("origin", "http://localhost:9003");
        let (get, post) = (&Method::GET, &Method::POST);
        for (method, fields, expected) in [
            (get, vec![], false),
            (get, vec![("sec-fetch-site", "same-origin")], false),
            (get, vec![("sec-fetch-site", "none")], false),
            (get, vec![("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "cors")], true),
            (get, vec![("sec-fetch-site", "same-site"), ("sec-fetch-mode", "no-cors")], true),
            (get, vec![("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")], false),
            (post, vec![], true),
            (post, vec![(HEADER, "1")], false),
            (post, vec![own], true),
            (post, vec![own, (HEADER, "1")], false),
            (post, vec![("origin", "http://evil.example"), (HEADER, "1")], true),
            (post, vec![("origin", "null"), (HEADER, "1")], true),
            (post, vec![("origin", "http://localhost:9000"), (HEADER, "1")], true),
            (&Method::DELETE, vec![], true),
        ] {
            let fields: Vec<_> = [host].into_iter().chain(fields).collect();
            assert_eq!(refused(LOCAL, method, &fields), expected, "{method} {fields:?}");
        }
    }
}
