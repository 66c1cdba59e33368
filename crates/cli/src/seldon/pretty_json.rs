//! JSON indented by tabs, with key order and number formatting preserved.

/// Returns invalid JSON unchanged.
pub(super) fn indent(json: &[u8]) -> Vec<u8> {
    if serde_json::from_slice::<serde::de::IgnoredAny>(json).is_err() {
        return json.to_vec();
    }
    let mut out = Vec::with_capacity(json.len() * 2);
    let mut depth = 0usize;
    let mut in_text = false;
    let mut escaped = false;
    // Directly after an opening bracket: an empty list or object stays on one line.
    let mut opened = false;
    for &byte in json {
        if in_text {
            out.push(byte);
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_text = false,
                _ => {}
            }
            continue;
        }
        if byte.is_ascii_whitespace() {
            continue;
        }
        let closes = matches!(byte, b'}' | b']');
        if closes {
            depth = depth.saturating_sub(1);
        }
        if opened != closes {
            new_line(&mut out, depth);
        }
        opened = matches!(byte, b'{' | b'[');
        out.push(byte);
        match byte {
            b'"' => in_text = true,
            b'{' | b'[' => depth += 1,
            b',' => new_line(&mut out, depth),
            b':' => out.push(b' '),
            _ => {}
        }
    }
    out
}

fn new_line(out: &mut Vec<u8>, depth: usize) {
    out.push(b'\n');
    out.resize(out.len() + depth, b'\t');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn indent_preserves_keys_and_numbers() {
        let text = br#"{"b":1.50,"a":[[1, 2],[],{}],"t":"x\"{,}\\"}"#;
        let indented = String::from_utf8(indent(text)).unwrap();
        assert_eq!(
            indented,
            "{\n\t\"b\": 1.50,\n\t\"a\": [\n\t\t[\n\t\t\t1,\n\t\t\t2\n\t\t],\n\t\t[],\n\t\t{}\n\t],\n\t\"t\": \"x\\\"{,}\\\\\"\n}"
        );
        for plain in ["oops", "", "7", "{\"a\":"] {
            assert_eq!(indent(plain.as_bytes()), plain.as_bytes());
        }
    }

    fn json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            ".*".prop_map(serde_json::Value::String),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::Array),
                prop::collection::btree_map(".*", inner, 0..4)
                    .prop_map(|m| serde_json::Value::Object(m.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn indent_preserves_the_value(value in json()) {
            let text = indent(value.to_string().as_bytes());
            prop_assert_eq!(serde_json::from_slice::<serde_json::Value>(&text).unwrap(), value);
        }
    }
}
