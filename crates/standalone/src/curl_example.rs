//! A curl command with a valid request for a model.

use gantry_oip::{Limits, rest, server::InferenceServer as _};
use gantry_runtime::Runtime;
use http::Request;

/// The curl command for a model, from its metadata; `None` if the inputs are too large or unknown.
pub(crate) async fn curl(
    runtime: &Runtime,
    model: &str,
    version: u32,
    address: &str,
    data: Option<&str>,
) -> Option<String> {
    let uri = format!("/v2/models/{model}_{version}");
    let reply = runtime.call(Request::get(&uri).body(bytes::Bytes::new()).ok()?).await;
    let metadata: serde_json::Value = serde_json::from_slice(reply.body().data()).ok()?;
    let mut inputs = Vec::new();
    for (i, input) in metadata.get("inputs")?.as_array()?.iter().enumerate() {
        let shape: Vec<i64> =
            input.get("shape")?.as_array()?.iter().map(|d| d.as_i64().unwrap_or(1).max(1)).collect();
        let count: i64 = shape.iter().product();
        let datatype = input.get("datatype")?.as_str()?;
        let given = data.filter(|_| i == 0).and_then(|d| serde_json::from_str::<serde_json::Value>(d).ok());
        let values = given.unwrap_or_else(|| zeros(datatype, count.clamp(0, 64)));
        if count > 64 {
            return None;
        }
        // Formatted by hand to keep the order of the keys.
        let name = input.get("name")?;
        let (shape, datatype) = (serde_json::json!(shape), serde_json::json!(datatype));
        inputs
            .push(format!("{{\"name\":{name},\"shape\":{shape},\"datatype\":{datatype},\"data\":{values}}}"));
    }
    let body = format!("{{\"inputs\":[{}]}}", inputs.join(","));
    // Never print a command that fails.
    rest::decode_request(body.clone().into(), None, &Limits::default()).ok()?;
    let quoted = body.replace('\'', "'\\''");
    Some(format!("curl {address}/v2/models/{model}/infer -d '{quoted}'"))
}

fn zeros(datatype: &str, count: i64) -> serde_json::Value {
    let zero = match datatype {
        "BOOL" => serde_json::json!(false),
        "BYTES" => serde_json::json!(""),
        "FP16" | "BF16" | "FP32" | "FP64" => serde_json::json!(0.0),
        _ => serde_json::json!(0),
    };
    serde_json::Value::Array(vec![zero; usize::try_from(count).unwrap_or(0)])
}
