//! Requests and responses of steps on remote replicas.

use crate::{
    body::ResponseBody,
    serve::{SMALL, memory_exhausted},
};
use bytes::Bytes;
use gantry_oip::{Code, Error, InferRequest, InferResponse, Limits, grpc, rest};
use gantry_transport::{
    Protocol,
    body::too_large,
    memory::{ConnectionMemory, Reservation},
};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body::Body;
use http_body_util::BodyExt as _;
use std::sync::Arc;

/// Runs work on `bytes` bytes; off the event loop unless it is short.
pub(crate) async fn off_the_event_loop<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    if bytes <= SMALL {
        return work();
    }
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|_| Err(Error::internal("the tensors could not be converted; see the log")))
}

/// Encodes a request with raw contents, and sets the headers of its form.
pub(super) async fn encode(
    protocol: Protocol,
    bytes: usize,
    request: InferRequest,
    headers: &mut HeaderMap,
) -> Result<Bytes, Error> {
    match protocol {
        Protocol::Grpc => {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
            headers.insert(header::TE, HeaderValue::from_static("trailers"));
            let encode = move || {
                let message = grpc::encode_request(InferRequest { raw_contents: true, ..request });
                Ok(grpc::encode_frame(&message))
            };
            off_the_event_loop(bytes, encode).await
        }
        Protocol::Rest => {
            // Elements that are no text, which JSON cannot carry, become binary data.
            let encode = move || {
                rest::encode_request(&request, false).or_else(|_| rest::encode_request(&request, true))
            };
            let encoded = off_the_event_loop(bytes, encode).await?;
            encoded.set_headers(headers);
            Ok(encoded.body)
        }
    }
}

/// Reads and decodes the response of a replica; it is charged until then.
pub(crate) async fn decode(
    protocol: Protocol,
    response: Response<ResponseBody>,
    limits: Limits,
    memory: &Arc<ConnectionMemory>,
) -> Result<InferResponse, Error> {
    let (head, body) = response.into_parts();
    let (data, trailers) = read_response(body, limits.body, memory).await?;
    off_the_event_loop(data.len(), move || match protocol {
        Protocol::Grpc => grpc::decode_infer_answer(&head.headers, trailers.as_ref(), &data, &limits),
        Protocol::Rest if head.status != StatusCode::OK => Err(rest_error(head.status, &data)),
        Protocol::Rest => {
            let length = head.headers.get(rest::HEADER_LENGTH).and_then(|n| n.to_str().ok()?.parse().ok());
            rest::decode_response(data, length, &limits).map_err(|e| e.at("response"))
        }
    })
    .await
}

/// Reads a whole response, with its trailers; it is charged while it arrives.
pub(crate) async fn read_response<B>(
    mut body: B,
    limit: usize,
    memory: &Arc<ConnectionMemory>,
) -> Result<(Bytes, Option<HeaderMap>), Error>
where
    B: Body<Data = Bytes, Error: std::fmt::Display> + Unpin,
{
    let mut reserved = Reservation::new(memory);
    let (mut parts, mut length) = (Vec::new(), 0);
    let mut trailers = None;
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|error| Error::unavailable(format!("the response ended early: {error}"), 1))?;
        match frame.into_data() {
            Ok(data) => {
                length += data.len();
                if length > limit {
                    return Err(too_large(limit));
                }
                reserved.grow_to(length).map_err(|_| memory_exhausted(Protocol::Rest))?;
                parts.push(data);
            }
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
    let data = if let [single] = parts.as_slice() { single.clone() } else { parts.concat().into() };
    Ok((data, trailers))
}

/// The error of a server; its text is in `error`, else it is the whole body.
fn rest_error(status: StatusCode, body: &[u8]) -> Error {
    let code = match status {
        StatusCode::TOO_MANY_REQUESTS => Code::ResourceExhausted,
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE => Code::Unavailable,
        StatusCode::GATEWAY_TIMEOUT => Code::DeadlineExceeded,
        status if status.is_client_error() => Code::InvalidArgument,
        _ => Code::Internal,
    };
    let parsed: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let text = parsed.as_ref().and_then(|fields| fields.get("error")?.as_str());
    let text = text.map_or_else(|| String::from_utf8_lossy(body).into_owned(), str::to_owned);
    Error::new(code, text.chars().take(1000).collect::<String>())
}
