//! gRPC: the model name is the first field of the message.

use super::{
    Proxy,
    body::{ResponseBody, SMALL},
    headers,
    send::Call,
};
use bytes::{BufMut as _, Bytes, BytesMut};
use gantry_oip::{
    Code, Error,
    grpc::{PREFIX, SERVICE, decode_frame, frame_message, peek_name, replace_name},
};
use gantry_transport::{Protocol, body::Payload};
use http::{HeaderValue, Method, Request, Response};
use hyper::body::Incoming;
use std::sync::Arc;
use tokio::{sync::OwnedSemaphorePermit, time::Instant};

/// One-byte protobuf length.
const MAX_NAME_LEN: usize = 127;

impl Proxy {
    pub(super) async fn grpc(
        self: &Arc<Self>,
        request: Request<Incoming>,
        slot: OwnedSemaphorePermit,
    ) -> Result<Response<ResponseBody>, Error> {
        let started = Instant::now();
        let deadline = self.deadline(gantry_transport::headers::grpc_timeout(request.headers()));
        let (mut parts, body) = request.into_parts();
        let path = parts.uri.path().to_owned();
        let infer = match path.strip_prefix(SERVICE) {
            Some("ModelInfer") => true,
            Some("ModelReady" | "ModelMetadata" | "ModelStatistics") => false,
            _ => {
                let message = format!("{path} is not served by the agent: use ModelInfer");
                return Err(Error::new(Code::Unimplemented, message));
            }
        };
        let requested = headers::internal_model(&parts.headers);
        let encoding = parts.headers.remove("grpc-encoding");
        let naming = name(body, requested, encoding.as_ref(), self.limits.max_body);
        let (payload, internal) = tokio::time::timeout_at(deadline, naming)
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
        };
        self.forward(call, payload, slot).await
    }
}

/// Replaces the model name in the message; large messages stay partial. Returns the internal name, too.
async fn name(
    body: Incoming,
    requested: Option<String>,
    encoding: Option<&HeaderValue>,
    limit: usize,
) -> Result<(Payload, String), Error> {
    let payload = Payload::read(body, SMALL, limit).await?;
    if let (Payload::Partial { first, .. }, Some(internal)) = (&payload, &requested)
        && let Some(renamed) = renamed_start(first, internal)
        && let Payload::Partial { rest, .. } = payload
    {
        return Ok((Payload::Partial { first: renamed, rest }, internal.clone()));
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
    Ok((Payload::Whole(frame_message(&renamed)), internal))
}

/// Replaces the name at the start of a partial message; `None` if it is not the first field.
fn renamed_start(first: &Bytes, name: &str) -> Option<Bytes> {
    let (&[flag, a, b, c, d], message) = first.split_first_chunk::<PREFIX>()?;
    let (&tag, rest) = message.split_first()?;
    let (&length, rest) = rest.split_first()?;
    let old = usize::from(length);
    if flag != 0 || tag != 0x0a || old > MAX_NAME_LEN || name.len() > MAX_NAME_LEN || rest.len() < old {
        return None;
    }
    let whole = u32::from_be_bytes([a, b, c, d]) as usize;
    let renamed = u32::try_from((whole + name.len()).checked_sub(old)?).ok()?;
    let mut out = BytesMut::with_capacity(first.len() + name.len());
    out.put_u8(0);
    out.put_u32(renamed);
    out.put_slice(&[0x0a, u8::try_from(name.len()).ok()?]);
    out.put_slice(name.as_bytes());
    out.put_slice(rest.get(old..)?);
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
