//! Metadata of models on remote servers: `versions` is the version in service, which clients may name in requests.

use super::forward::{Call, Target};
use crate::body::ResponseBody;
use gantry_oip::{
    Code, Error,
    grpc::{SERVICE, decode_frame, encode_frame},
    server::Reply,
};
use gantry_proto::inference::ModelMetadataResponse;
use gantry_transport::BoxError;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use prost::Message as _;

/// Replaces the versions of the server, which counts its own. Other responses are unchanged.
pub(super) async fn with_version(
    call: &Call,
    target: &Target<'_>,
    response: Response<ResponseBody>,
    version: u32,
    limit: usize,
) -> Result<Response<ResponseBody>, Error> {
    match target {
        Target::Rest { tail: "", .. } if response.status() == StatusCode::OK => Ok(rest(response, version)),
        Target::Grpc(uri) if uri.path().strip_prefix(SERVICE) == Some("ModelMetadata") => {
            let collecting = grpc(response, version, limit);
            tokio::time::timeout_at(call.deadline, collecting).await.unwrap_or_else(|_| {
                Err(Error::new(Code::DeadlineExceeded, "the server did not send its metadata in time"))
            })
        }
        _ => Ok(response),
    }
}

fn rest(response: Response<ResponseBody>, version: u32) -> Response<ResponseBody> {
    let (mut head, body) = response.into_parts();
    let ResponseBody::Whole(reply) = &body else { return Response::from_parts(head, body) };
    let Ok(serde_json::Value::Object(mut fields)) = serde_json::from_slice(reply.data()) else {
        return Response::from_parts(head, body);
    };
    if !fields.contains_key("name") {
        return Response::from_parts(head, body);
    }
    fields.insert("versions".into(), serde_json::json!([version.to_string()]));
    head.headers.remove(header::CONTENT_LENGTH);
    let text = serde_json::Value::Object(fields).to_string();
    Response::from_parts(head, ResponseBody::Whole(Reply::new(text.into())))
}

async fn grpc(
    response: Response<ResponseBody>,
    version: u32,
    limit: usize,
) -> Result<Response<ResponseBody>, Error> {
    let (mut head, body) = response.into_parts();
    let collected = body
        .collect()
        .await
        .map_err(|e: BoxError| Error::unavailable(format!("the response ended early: {e}"), 1))?;
    let trailers = collected.trailers().cloned();
    let mut data = collected.to_bytes();
    let encoding = head.headers.get("grpc-encoding").map(HeaderValue::as_bytes);
    if let Ok(message) = decode_frame(&data, encoding, limit)
        && let Ok(mut metadata) = ModelMetadataResponse::decode(message)
    {
        metadata.versions = vec![version.to_string()];
        data = encode_frame(&metadata);
        head.headers.remove("grpc-encoding");
        head.headers.remove(header::CONTENT_LENGTH);
    }
    let reply = Reply::new(data);
    let reply = if let Some(trailers) = trailers { reply.with_trailers(trailers) } else { reply };
    Ok(Response::from_parts(head, ResponseBody::Whole(reply)))
}
