//! The same request as a curl command or a Python program.

use super::{Language, Mode, payload::Payload};
use crate::{client::Address, failure::Failure};
use http::HeaderMap;
use serde_json::Value;

/// What would ask the same.
pub(super) fn show(
    language: Language,
    mode: Mode,
    address: &Address,
    model: &str,
    headers: &HeaderMap,
    payload: &Payload,
) -> Result<String, Failure> {
    // Our own gateway routes by path or by name; the header is for a mesh that does not.
    let headers: Vec<(&str, String)> = headers
        .iter()
        .filter(|(name, value)| !(name.as_str() == "seldon-model" && value.as_bytes() == model.as_bytes()))
        .map(|(name, value)| (name.as_str(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
        .collect();
    let json = std::str::from_utf8(&payload.json).map_err(|_| Failure::usage("DATA is not text in UTF-8"))?;
    match (language, mode) {
        (Language::Curl, Mode::Grpc) => {
            Err(Failure::usage("curl speaks REST: leave --mode grpc out, or use --show python"))
        }
        (Language::Curl, Mode::Rest) => Ok(curl(address, model, &headers, json)),
        (Language::Python, Mode::Rest) => Ok(python_rest(address, model, &headers, json)),
        (Language::Python, Mode::Grpc) => Ok(python_grpc(address, model, &headers, payload)),
    }
}

fn curl(address: &Address, model: &str, headers: &[(&str, String)], json: &str) -> String {
    let mut words = vec![format!("curl {}/v2/models/{model}/infer", address.url())];
    words.push("-H 'content-type: application/json'".to_owned());
    for (name, value) in headers {
        words.push(format!("-H {}", shell(&format!("{name}: {value}"))));
    }
    words.push(format!("-d {}", shell(json)));
    words.join(" ") + "\n"
}

/// A word for a shell, whatever is in it.
fn shell(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn python_rest(address: &Address, model: &str, headers: &[(&str, String)], json: &str) -> String {
    let mut all = vec![r#""content-type": "application/json""#.to_owned()];
    all.extend(headers.iter().map(|(name, value)| format!("{}: {}", python_text(name), python_text(value))));
    format!(
        "import json\nimport urllib.request\n\nrequest = urllib.request.Request(\n    \
         \"{}/v2/models/{model}/infer\",\n    data={}.encode(),\n    headers={{{}}},\n)\n\
         print(json.load(urllib.request.urlopen(request)))\n",
        address.url(),
        python_text(json),
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
            python_text(&datatype),
            python(&part("data")),
            dtype(&datatype)
        );
    }
    let extra = if headers.is_empty() {
        String::new()
    } else {
        let pairs: Vec<String> =
            headers.iter().map(|(n, v)| format!("{}: {}", python_text(n), python_text(v))).collect();
        format!(", headers={{{}}}", pairs.join(", "))
    };
    text + &format!(
        "answer = client.infer(\"{model}\", inputs{extra})\nprint(answer.get_response(as_json=True))\n"
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
        // The client turns 32-bit floats into BF16 itself.
        _ => "np.float32",
    }
}

/// A value as Python writes it.
fn python(value: &Value) -> String {
    match value {
        Value::Null => "None".into(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::Number(n) => n.to_string(),
        Value::String(text) => python_text(text),
        Value::Array(items) => format!("[{}]", items.iter().map(python).collect::<Vec<_>>().join(", ")),
        Value::Object(map) => {
            let pairs: Vec<String> =
                map.iter().map(|(k, v)| format!("{}: {}", python_text(k), python(v))).collect();
            format!("{{{}}}", pairs.join(", "))
        }
    }
}

/// A text as Python writes it; single quotes, so that JSON in it stays readable.
fn python_text(text: &str) -> String {
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
    fn nothing_escapes_from_its_quotes() {
        assert_eq!(shell("it's $HOME `x`"), r"'it'\''s $HOME `x`'");
        assert_eq!(python_text("a'b\\c\n"), r"'a\'b\\c\u000a'");
    }

    #[test]
    fn programs_ask_the_same() {
        let payload = Payload {
            json: Bytes::from_static(
                br#"{"inputs":[{"name":"X","shape":[1,2],"datatype":"FP32","data":[1,true]}]}"#,
            ),
        };
        let address = Address::parse("127.0.0.1:9000", 9000, "").unwrap();
        let mut headers = HeaderMap::new();
        headers.insert("seldon-model", "iris".parse().unwrap());
        headers.insert("x-a", "b".parse().unwrap());
        let shown = |language, mode| show(language, mode, &address, "iris", &headers, &payload).unwrap();
        insta::assert_snapshot!(shown(Language::Curl, Mode::Rest).trim_end(), @r#"curl http://127.0.0.1:9000/v2/models/iris/infer -H 'content-type: application/json' -H 'x-a: b' -d '{"inputs":[{"name":"X","shape":[1,2],"datatype":"FP32","data":[1,true]}]}'"#);
        let rest = shown(Language::Python, Mode::Rest);
        assert!(rest.contains("headers={\"content-type\": \"application/json\", 'x-a': 'b'},"), "{rest}");
        let grpc = shown(Language::Python, Mode::Grpc);
        assert!(grpc.contains("np.array([1, True], dtype=np.float32).reshape([1, 2])"), "{grpc}");
        assert!(grpc.contains("headers={'x-a': 'b'}"), "{grpc}");
        assert!(show(Language::Curl, Mode::Grpc, &address, "iris", &headers, &payload).is_err());
    }
}
