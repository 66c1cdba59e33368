//! REST: the model name is in the path.

use super::{
    Failed, Proxy,
    body::{ResponseBody, SMALL},
    deadline_exceeded, headers,
    send::Call,
};
use gantry_oip::Error;
use gantry_transport::{Protocol, body::Payload};
use http::{Request, Response};
use hyper::body::Incoming;
use std::sync::Arc;
use tokio::{sync::OwnedSemaphorePermit, time::Instant};

#[derive(Debug, PartialEq, Eq)]
struct ModelPath<'a> {
    model: &'a str,
    /// The rest without version: `infer`, `ready` or empty.
    tail: &'a str,
}

fn model_path(path: &str) -> Option<ModelPath<'_>> {
    let rest = path.strip_prefix("/v2/models/")?.trim_end_matches('/');
    let (model, tail) = rest.split_once('/').unwrap_or((rest, ""));
    // The internal name already contains the version.
    let tail = match tail.strip_prefix("versions/") {
        Some(after) => after.split_once('/').map_or("", |(_, tail)| tail),
        None => tail,
    };
    (!model.is_empty()).then_some(ModelPath { model, tail })
}

impl Proxy {
    pub(super) async fn rest(
        self: &Arc<Self>,
        request: Request<Incoming>,
        slot: OwnedSemaphorePermit,
    ) -> Result<Response<ResponseBody>, Failed> {
        let started = Instant::now();
        let deadline = self.deadline(None);
        let (mut parts, body) = request.into_parts();
        let path = parts.uri.path();
        let Some(ModelPath { model, tail }) = model_path(path) else {
            return Err(Error::not_found(format!(
                "{} {path} is not served by the agent: use /v2/models/<model>/infer",
                parts.method
            ))
            .into());
        };
        let internal = headers::internal_model(&parts.headers).unwrap_or_else(|| model.to_owned());
        let slash = if tail.is_empty() { "" } else { "/" };
        let query = parts.uri.query().map(|q| format!("?{q}")).unwrap_or_default();
        let path = format!("/v2/models/{internal}{slash}{tail}{query}");
        let infer = tail.starts_with("infer") || tail.starts_with("generate");
        let internal: Arc<str> = internal.into();
        headers::to_server(&mut parts.headers, &self.ids);
        let reading = Payload::read(body, SMALL, self.limits.max_body);
        let payload =
            tokio::time::timeout_at(deadline, reading).await.map_err(|_| deadline_exceeded(&internal))??;
        let call = Call {
            protocol: Protocol::Rest,
            internal,
            infer,
            method: parts.method,
            path,
            headers: parts.headers,
            started,
            deadline,
            max_body: self.limits.max_body,
            scanner: None,
        };
        self.forward(call, payload, slot).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_path_is_parsed() {
        for (path, expected) in [
            ("/v2/models/m_1/infer", Some(("m_1", "infer"))),
            ("/v2/models/m/versions/7/infer", Some(("m", "infer"))),
            ("/v2/models/m", Some(("m", ""))),
            ("/v2/models/m/", Some(("m", ""))),
            ("/v2/models/m/versions/7", Some(("m", ""))),
            ("/v2/models/m/ready", Some(("m", "ready"))),
            ("/v2/models/m/infer/chat/completions", Some(("m", "infer/chat/completions"))),
            ("/v2/models/", None),
            ("/v2/repository/models/m/load", None),
            ("/v2/health/live", None),
            ("/", None),
        ] {
            let expected = expected.map(|(model, tail)| ModelPath { model, tail });
            assert_eq!(model_path(path), expected, "{path}");
        }
    }
}
