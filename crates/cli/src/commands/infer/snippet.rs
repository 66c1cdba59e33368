//! The request as a curl command or a Python program.

use super::{Language, Mode, payload::Payload};
use crate::{client::Address, error::CommandError};
use http::HeaderMap;
use serde_json::Value;

pub(super) fn render(
    language: Language,
    mode: Mode,
    address: &Address,
    model: &str,
    headers: &HeaderMap,
    payload: &Payload,
) -> Result<String, CommandError> {
    // Gantry's gateway routes by path or model name; only Seldon's Envoy needs this header.
    let headers: Vec<(&str, String)> = headers
        .iter()
        .filter(|(name, value)| !(name.as_str() == "seldon-model" && value.as_bytes() == model.as_bytes()))
        .map(|(name, value)| (name.as_str(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
        .collect();
    let json =
        std::str::from_utf8(&payload.json).map_err(|_| CommandError::usage("DATA is not UTF-8 text"))?;
    match (language, mode) {
        (Language::Curl, Mode::Grpc) => {
            Err(CommandError::usage("curl does not support gRPC: remove --mode grpc, or use --show python"))
        }
        (Language::Curl, Mode::Rest) => Ok(curl(address, model, &headers, json)),
        (Language::Python, Mode::Rest) => Ok(python_rest(address, model, &headers, json)),
        (Language::Python, Mode::Grpc) => Ok(python_grpc(address, model, &headers, payload)),
    }
}

fn curl(address: &Address, model: &str, headers: &[(&str, String)], json: &str) -> String {
    let mut args = vec![format!("curl {}/v2/models/{model}/infer", address.url())];
    args.push("-H 'content-type: application/json'".to_owned());
    for (name, value) in headers {
        args.push(format!("-H {}", shell_quote(&format!("{name}: {value}"))));
    }
    args.push(format!("-d {}", shell_quote(json)));
    args.join(" ") + "\n"
}

/// Quotes an argument for POSIX shells.
fn shell_quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn python_rest(address: &Address, model: &str, headers: &[(&str, String)], json: &str) -> String {
    let mut all = vec![r#""content-type": "application/json""#.to_owned()];
    all.extend(headers.iter().map(|(name, value)| format!("{}: {}", python_str(name), python_str(value))));
    format!(
        "import json\nimport urllib.request\n\nrequest = urllib.request.Request(\n    \
         \"{}/v2/models/{model}/infer\",\n    data={}.encode(),\n    headers={{{}}},\n)\n\
         print(json.load(urllib.request.urlopen(request)))\n",
        address.url(),
        python_str(json),
        all.join(", ")
    )
}

fn python_grpc(address: &Address, model: &str, headers: &[(&str, String)], payload: &Payload) -> String {
    let mut text = format!(
        "# pip install tritonclient[grpc]\nimport numpy as np\nimport tritonclient.grpc as triton\n\n\
         client = triton.InferenceServerClient(\"{address}\")\ninputs = []\n"
    );
    for input in payload.inputs() {
        let part = |key: &str| input.get(key).cloned().unwrap_or_default();
        let datatype = part("datatype").as_str().unwrap_or("FP32").to_owned();
        let shape = python(&part("shape"));
        text += &format!(
            "tensor = triton.InferInput({}, {shape}, {})\n\
             tensor.set_data_from_numpy(np.array({}, dtype={}).reshape({shape}))\ninputs.append(tensor)\n",
            python(&part("name")),
            python_str(&datatype),
            python(&part("data")),
            dtype(&datatype)
        );
    }
    let extra = if headers.is_empty() {
        String::new()
    } else {
        let pairs: Vec<String> =
            headers.iter().map(|(n, v)| format!("{}: {}", python_str(n), python_str(v))).collect();
        format!(", headers={{{}}}", pairs.join(", "))
    };
    text + &format!(
        "response = client.infer(\"{model}\", inputs{extra})\nprint(response.get_response(as_json=True))\n"
    )
}

const fn dtype(datatype: &str) -> &'static str {
    match datatype.as_bytes() {
        b"BOOL" => "bool",
        b"UINT8" => "np.uint8",
        b"UINT16" => "np.uint16",
        b"UINT32" => "np.uint32",
        b"UINT64" => "np.uint64",
        b"INT8" => "np.int8",
        b"INT16" => "np.int16",
        b"INT32" => "np.int32",
        b"INT64" => "np.int64",
        b"FP16" => "np.float16",
        b"FP64" => "np.float64",
        b"BYTES" => "np.object_",
        // tritonclient converts float32 to BF16.
        _ => "np.float32",
    }
}

/// A Python literal.
fn python(value: &Value) -> String {
    match value {
        Value::Null => "None".into(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::Number(n) => n.to_string(),
        Value::String(text) => python_str(text),
        Value::Array(items) => format!("[{}]", items.iter().map(python).collect::<Vec<_>>().join(", ")),
        Value::Object(map) => {
            let pairs: Vec<String> =
                map.iter().map(|(k, v)| format!("{}: {}", python_str(k), python(v))).collect();
            format!("{{{}}}", pairs.join(", "))
        }
    }
}

/// A Python string literal in single quotes, so that JSON in it stays readable.
fn python_str(text: &str) -> String {
    let mut out = String::from("'");
    for c in text.chars() {
        match c {
            '\'' => out += "\\'",
            '\\' => out += "\\\\",
            c if c.is_control() => out += &format!("\\u{:04x}", c as u32),
            c => out.push(c),
        }
    }
    out + "'"
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn quoting_escapes_special_characters() {
        assert_eq!(shell_quote("it's $HOME `x`"), r"'it'\''s $HOME `x`'");
        assert_eq!(python_str("a'b\\c\n"), r"'a\'b\\c\u000a'");
    }

    #[test]
    fn snippets_contain_headers_and_data() {
        let payload = Payload {
            json: Bytes::from_static(
                br#"{"inputs":[{"name":"X","shape":[1,2],"datatype":"FP32","data":[1,true]}]}"#,
            ),
        };
        let address = Address::parse("127.0.0.1:9000", 9000, "").unwrap();
        let mut headers = HeaderMap::new();
        headers.insert("seldon-model", "iris".parse().unwrap());
        headers.insert("x-a", "b".parse().unwrap());
        let rendered = |language, mode| render(language, mode, &address, "iris", &headers, &payload).unwrap();
        insta::assert_snapshot!(rendered(Language::Curl, Mode::Rest).trim_end(), @r#"curl http://127.0.0.1:9000/v2/models/iris/infer -H 'content-type: application/json' -H 'x-a: b' -d '{"inputs":[{"name":"X","shape":[1,2],"datatype":"FP32","data":[1,true]}]}'"#);
        let rest = rendered(Language::Python, Mode::Rest);
        assert!(rest.contains("headers={\"content-type\": \"application/json\", 'x-a': 'b'},"), "{rest}");
        let grpc = rendered(Language::Python, Mode::Grpc);
        assert!(grpc.contains("np.array([1, True], dtype=np.float32).reshape([1, 2])"), "{grpc}");
        assert!(grpc.contains("headers={'x-a': 'b'}"), "{grpc}");
        assert!(render(Language::Curl, Mode::Grpc, &address, "iris", &headers, &payload).is_err());
    }
}
