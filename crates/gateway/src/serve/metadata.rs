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

/// The metadata of a model as the part of Triton's configuration that clients read: names, datatypes and shapes.
pub(super) fn config(response: Response<ResponseBody>) -> Result<Response<ResponseBody>, Error> {
    if response.status() != StatusCode::OK {
        return Ok(response);
    }
    let (mut head, body) = response.into_parts();
    let ResponseBody::Whole(reply) = &body else {
        return Err(Error::internal("the metadata of the model is too large for a configuration"));
    };
    let metadata: serde_json::Value = serde_json::from_slice(reply.data())
        .map_err(|_| Error::unavailable("the server sent no metadata of the model", 1))?;
    head.headers.remove(header::CONTENT_LENGTH);
    let text = model_config(&metadata).to_string();
    Ok(Response::from_parts(head, ResponseBody::Whole(Reply::new(text.into()))))
}

fn model_config(metadata: &serde_json::Value) -> serde_json::Value {
    let field = |name: &str| metadata.get(name).cloned().unwrap_or_default();
    let tensors = |name: &str| {
        let tensors = metadata.get(name).and_then(serde_json::Value::as_array);
        let tensors = tensors.into_iter().flatten().map(|tensor| {
            let datatype = match tensor.get("datatype").and_then(serde_json::Value::as_str) {
                Some("BYTES") => "STRING",
                Some(datatype) => datatype,
                None => "INVALID",
            };
            serde_json::json!({
                "name": tensor.get("name"),
                "data_type": format!("TYPE_{datatype}"),
                "dims": tensor.get("shape"),
            })
        });
        tensors.collect::<serde_json::Value>()
    };
    // Batches have no dimension of their own: shapes are those of the metadata.
    serde_json::json!({
        "name": field("name"),
        "platform": field("platform"),
        "max_batch_size": 0,
        "input": tensors("inputs"),
        "output": tensors("outputs"),
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_has_the_tensors_of_the_metadata() {
        let metadata = serde_json::json!({
            "name": "iris", "platform": "onnx",
            "inputs": [{ "name": "X", "datatype": "FP32", "shape": [-1, 4] }],
            "outputs": [{ "name": "label", "datatype": "BYTES", "shape": [-1] }],
        });
        let expected = serde_json::json!({
            "name": "iris", "platform": "onnx", "max_batch_size": 0,
            "input": [{ "name": "X", "data_type": "TYPE_FP32", "dims": [-1, 4] }],
            "output": [{ "name": "label", "data_type": "TYPE_STRING", "dims": [-1] }],
        });
        assert_eq!(model_config(&metadata), expected);
    }
}
