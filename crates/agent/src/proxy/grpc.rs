//! gRPC: the model name is the first field of the message.

use super::{
    Failed, Proxy,
    body::{ResponseBody, SMALL},
    headers,
    send::Call,
};
use bytes::{BufMut as _, Bytes, BytesMut};
use gantry_oip::{
    Code, Error,
    grpc::{
        NameScanner, PREFIX, SERVICE, decode_frame, frame_message, peek_name, replace_leading_name,
        replace_name,
    },
};
use gantry_transport::{
    Protocol,
    body::{BodyError, Payload, SharedScanner},
};
use http::{HeaderValue, Method, Request, Response, request::Parts};
use hyper::body::Incoming;
use std::sync::{Arc, Mutex};
use tokio::{sync::OwnedSemaphorePermit, time::Instant};

impl Proxy {
    pub(super) async fn grpc(
        self: &Arc<Self>,
        request: Request<Incoming>,
        slot: OwnedSemaphorePermit,
    ) -> Result<Response<ResponseBody>, Failed> {
        let started = Instant::now();
        let deadline = self.deadline(gantry_transport::headers::grpc_timeout(request.headers()));
        let (mut parts, body) = request.into_parts();
        let path = parts.uri.path().to_owned();
        let infer = match path.strip_prefix(SERVICE) {
            Some("ModelInfer") => true,
            Some("ModelStreamInfer") if self.limits.supports_streams => {
                return self.stream(parts, path, body, slot).await;
            }
            Some("ModelReady" | "ModelMetadata" | "ModelStatistics") => false,
            _ => {
                let message = format!("{path} is not served by the agent: use ModelInfer");
                return Err(Error::new(Code::Unimplemented, message).into());
            }
        };
        let requested = headers::internal_model(&parts.headers);
        let encoding = parts.headers.remove("grpc-encoding");
        let naming = name(body, requested, encoding.as_ref(), self.limits.max_body);
        let Named { payload, internal, scanner } = tokio::time::timeout_at(deadline, naming)
            .await
            .map_err(|_| Error::new(Code::DeadlineExceeded, "the message did not arrive in time"))??;
        headers::to_server(&mut parts.headers, &self.ids);
        let call = Call {
            protocol: Protocol::Grpc,
            internal: internal.into(),
            infer,
            method: Method::POST,
            path,
            headers: parts.headers,
            started,
            deadline,
            max_body: self.limits.max_body,
            scanner,
        };
        self.forward(call, payload, slot).await
    }

    /// A stream of messages for one model; the gateway has set its name in each.
    async fn stream(
        self: &Arc<Self>,
        mut parts: Parts,
        path: String,
        body: Incoming,
        slot: OwnedSemaphorePermit,
    ) -> Result<Response<ResponseBody>, Failed> {
        let Some(internal) = headers::internal_model(&parts.headers) else {
            return Err(Error::invalid("ModelStreamInfer needs the header seldon-internal-model").into());
        };
        headers::to_server(&mut parts.headers, &self.ids);
        let call = Call {
            protocol: Protocol::Grpc,
            internal: internal.into(),
            infer: true,
            method: Method::POST,
            path,
            headers: parts.headers,
            started: Instant::now(),
            deadline: self.deadline(Some(self.limits.max_timeout)),
            max_body: usize::MAX,
            scanner: None,
        };
        self.forward(call, Payload::Partial { first: Bytes::new(), rest: body }, slot).await
    }
}

/// A message with the internal model name.
struct Named {
    payload: Payload,
    internal: String,
    /// For the rest of a partial message.
    scanner: Option<SharedScanner>,
}

/// Replaces the model name in the message and clears its version; large messages stay partial.
async fn name(
    body: Incoming,
    requested: Option<String>,
    encoding: Option<&HeaderValue>,
    limit: usize,
) -> Result<Named, Error> {
    let payload = Payload::read(body, SMALL, limit).await?;
    if let (Payload::Partial { first, .. }, Some(internal)) = (&payload, &requested)
        && let Some(renamed) = renamed_start(first, internal)
        && let Payload::Partial { rest, .. } = payload
    {
        let mut scanner = NameScanner::default();
        if !scanner.scan(renamed.get(PREFIX..).unwrap_or_default()) {
            return Err(Error::invalid(BodyError::RepeatedName.to_string()));
        }
        let payload = Payload::Partial { first: renamed, rest };
        let scanner = Some(Arc::new(Mutex::new(scanner)));
        return Ok(Named { payload, internal: internal.clone(), scanner });
    }
    // Small, or the name is not the first field: the whole message is needed.
    let whole = payload.into_bytes(limit).await?;
    let message = decode_frame(&whole, encoding.map(HeaderValue::as_bytes), limit)?;
    let invalid = || Error::invalid("the message is not valid protobuf");
    let internal = match requested {
        Some(internal) => internal,
        None => peek_name(&message).ok_or_else(invalid)?.to_owned(),
    };
    let renamed = replace_name(&message, &internal).ok_or_else(invalid)?;
    Ok(Named { payload: Payload::Whole(frame_message(&renamed)), internal, scanner: None })
}

/// Replaces the name at the start of a partial message; `None` if it is compressed or the name is not the first field.
fn renamed_start(first: &Bytes, name: &str) -> Option<Bytes> {
    let (&[flag, a, b, c, d], message) = first.split_first_chunk::<PREFIX>()?;
    if flag != 0 {
        return None;
    }
    let renamed = replace_leading_name(message, name)?;
    let whole = u32::from_be_bytes([a, b, c, d]) as usize;
    let length = u32::try_from((whole + renamed.len()).checked_sub(message.len())?).ok()?;
    let mut out = BytesMut::with_capacity(PREFIX + renamed.len());
    out.put_u8(0);
    out.put_u32(length);
    out.put_slice(&renamed);
    Some(out.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_proto::inference::ModelInferRequest;
    use prost::Message as _;

    #[test]
    fn renamed_start_replaces_leading_name() {
        let request = |name: &str| ModelInferRequest {
            model_name: name.into(),
            model_version: if name == "iris" { "1".into() } else { String::new() },
            id: "7".into(),
            raw_input_contents: vec![Bytes::from_static(&[9; 4000])],
            ..Default::default()
        };
        let body = frame_message(&request("iris").encode_to_vec());
        let (first, rest) = body.split_at(1000);
        let start = renamed_start(&Bytes::copy_from_slice(first), "iris_12").unwrap();
        let whole: Bytes = [&start, rest].concat().into();
        let message = decode_frame(&whole, None, 1 << 20).unwrap();
        assert_eq!(ModelInferRequest::decode(message).unwrap(), request("iris_12"));
        for odd in
            [&b"\x01\0\0\0\x05\x0a\x01a"[..], b"\0\0\0\0\x05\x12\x01a", b"\0\0\0\0\x05\x0a\x7fa", b"\0\0"]
        {
            assert_eq!(renamed_start(&Bytes::from_static(odd), "b"), None);
        }
    }
}
