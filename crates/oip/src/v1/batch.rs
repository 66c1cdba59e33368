//! Several V1 requests as one: instances are joined, predictions are split. Values stay as they were written.

use crate::{
    Error, Limits,
    json::{Cursor, write_string},
};
use bytes::Bytes;
use std::ops::Range;

/// The instances of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instances {
    /// The elements of the array, with commas between them.
    pub elements: Bytes,
    /// At least one.
    pub count: usize,
    /// The other members of the body: only requests with equal ones can be joined.
    pub others: Vec<u8>,
}

/// Reads a request: a JSON object with a non-empty array `instances`.
pub fn read_instances(body: &Bytes, limits: &Limits) -> Result<Instances, Error> {
    let (elements, others) = member(body, "instances", limits)?;
    let (Some(first), Some(last)) = (elements.first(), elements.last()) else {
        return Err(Error::invalid("\"instances\" is empty: send at least one instance"));
    };
    Ok(Instances { elements: body.slice(first.start..last.end), count: elements.len(), others })
}

/// The request with the instances of all of them. Their other members are equal.
pub fn join_instances<'a>(all: impl IntoIterator<Item = &'a Instances>) -> Bytes {
    let mut body = b"{\"instances\":[".to_vec();
    let mut others: &[u8] = &[];
    for (index, instances) in all.into_iter().enumerate() {
        if index > 0 {
            body.push(b',');
        }
        body.extend_from_slice(&instances.elements);
        others = &instances.others;
    }
    body.push(b']');
    body.extend_from_slice(others);
    body.push(b'}');
    body.into()
}

/// The predictions of each request, in the order of the instances: the elements of an array, with commas between them.
pub fn split_predictions(body: &Bytes, counts: &[usize], limits: &Limits) -> Result<Vec<Bytes>, Error> {
    let (elements, _) = member(body, "predictions", limits)?;
    let wanted: usize = counts.iter().sum();
    if elements.len() != wanted {
        let message = format!("the response has {} predictions for {wanted} instances", elements.len());
        return Err(Error::internal(message));
    }
    let mut left = elements.as_slice();
    let split = counts.iter().map(|count| {
        let (own, rest) = left.split_at_checked(*count).unwrap_or((left, &[]));
        left = rest;
        match (own.first(), own.last()) {
            (Some(first), Some(last)) => body.slice(first.start..last.end),
            _ => Bytes::new(),
        }
    });
    Ok(split.collect())
}

/// The response to one request of a batch, with the fields of KServe's batcher.
pub fn encode_batched(message: &str, batch_id: &str, predictions: Option<&[u8]>) -> Bytes {
    let mut body = b"{\"message\":".to_vec();
    write_string(&mut body, message);
    body.extend_from_slice(b",\"batchId\":");
    write_string(&mut body, batch_id);
    body.extend_from_slice(b",\"predictions\":");
    match predictions {
        None => body.extend_from_slice(b"null"),
        Some(elements) => {
            body.push(b'[');
            body.extend_from_slice(elements);
            body.push(b']');
        }
    }
    body.push(b'}');
    body.into()
}

/// Locations of the elements of an array of the body, and the other members as `,"name":value` each.
fn member(body: &[u8], name: &str, limits: &Limits) -> Result<(Vec<Range<usize>>, Vec<u8>), Error> {
    let mut cursor = Cursor::new(body);
    if !cursor.eat(b'{') {
        return Err(Error::invalid(format!("the body must be a JSON object with \"{name}\"")));
    }
    let (mut found, mut others, mut first) = (None, Vec::new(), true);
    while let Some(key) = cursor.next_key(&mut first)? {
        cursor.peek();
        let start = cursor.position();
        if key != name {
            cursor.skip(limits.depth)?;
            others.push(b',');
            write_string(&mut others, &key);
            others.push(b':');
            others.extend_from_slice(body.get(start..cursor.position()).unwrap_or_default());
            continue;
        }
        if found.is_some() {
            return Err(Error::invalid(format!("the body has \"{name}\" twice")));
        }
        if !cursor.eat(b'[') {
            return Err(Error::invalid(format!("\"{name}\" must be an array")));
        }
        let (mut elements, mut is_first) = (Vec::new(), true);
        while cursor.next_element(&mut is_first)? {
            cursor.peek();
            let start = cursor.position();
            cursor.skip(limits.depth)?;
            elements.push(start..cursor.position());
        }
        found = Some(elements);
    }
    cursor.end()?;
    let elements = found.ok_or_else(|| Error::invalid(format!("the body has no \"{name}\"")))?;
    Ok((elements, others))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn read(text: &str) -> Result<Instances, Error> {
        read_instances(&Bytes::copy_from_slice(text.as_bytes()), &Limits::default())
    }

    #[test]
    fn instances_keep_their_text_and_other_members() {
        let one = read(
            r#" { "a" : {"b": 1}, "instances" : [ [1.50, 12345678901234567890] , {"x":"]"} ], "c":2 } "#,
        );
        let one = one.unwrap();
        assert_eq!(one.elements, r#"[1.50, 12345678901234567890] , {"x":"]"}"#);
        assert_eq!((one.count, one.others.as_slice()), (2, br#","a":{"b": 1},"c":2"#.as_slice()));
        let two = Instances { elements: "3".into(), count: 1, ..one.clone() };
        let joined = join_instances([&one, &two]);
        let expected = r#"{"instances":[[1.50, 12345678901234567890] , {"x":"]"},3],"a":{"b": 1},"c":2}"#;
        assert_eq!(joined, expected);
    }

    #[test]
    fn bodies_without_instances_are_invalid() {
        for (body, message) in [
            ("", "JSON object with \"instances\""),
            ("[]", "JSON object with \"instances\""),
            ("{}", "no \"instances\""),
            (r#"{"instances":[]}"#, "at least one instance"),
            (r#"{"instances":{}}"#, "must be an array"),
            (r#"{"instances":null}"#, "must be an array"),
            (r#"{"instances":[1],"instances":[2]}"#, "twice"),
            (r#"{"instances":[1,]}"#, "not valid JSON"),
            (r#"{"instances":[1]} x"#, "not valid JSON"),
            (r#"{"instances":["\x"]}"#, "not valid JSON"),
            (r#"{"instances":[1]"#, "not valid JSON"),
        ] {
            let error = read(body).unwrap_err();
            assert!(error.message.contains(message), "{body}: {error}");
        }
        assert!(read(&format!("{{\"instances\":{}", "[".repeat(100_000))).is_err());
    }

    #[test]
    fn predictions_that_do_not_match_the_instances_are_an_error() {
        for (body, message) in [
            (r#"{"predictions":[1,2]}"#, "has 2 predictions for 3 instances"),
            (r#"{"predictions":[1,2,3,4]}"#, "has 4 predictions for 3 instances"),
            (r#"{"outputs":[1,2,3]}"#, "no \"predictions\""),
            ("oops", "JSON object"),
        ] {
            let error = split_predictions(&Bytes::from(body), &[1, 2], &Limits::default()).unwrap_err();
            assert!(error.message.contains(message), "{body}: {error}");
        }
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[ -~é\"\\\\\n]{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-z]{1,3}", inner, 0..3).prop_map(|m| json!(m)),
            ]
        })
    }

    proptest! {
        /// A model that returns its instances: every request gets its own back, in order.
        #[test]
        fn joined_requests_get_their_own_predictions(
            requests in prop::collection::vec(prop::collection::vec(value(), 1..5), 1..6),
        ) {
            let read = |instances: &Vec<Value>| {
                let body = Bytes::from(json!({ "instances": instances }).to_string());
                read_instances(&body, &Limits::default()).unwrap()
            };
            let parsed: Vec<Instances> = requests.iter().map(read).collect();
            let joined: Value = serde_json::from_slice(&join_instances(&parsed)).unwrap();
            prop_assert_eq!(&joined["instances"], &json!(requests.concat()));
            let response = Bytes::from(json!({ "predictions": joined["instances"] }).to_string());
            let counts: Vec<usize> = parsed.iter().map(|instances| instances.count).collect();
            let split = split_predictions(&response, &counts, &Limits::default()).unwrap();
            prop_assert_eq!(split.len(), requests.len());
            for (own, request) in split.iter().zip(&requests) {
                let batched: Value = serde_json::from_slice(&encode_batched("", "b", Some(own))).unwrap();
                prop_assert_eq!(batched, json!({ "message": "", "batchId": "b", "predictions": request }));
            }
        }

        #[test]
        fn any_bytes_are_answered(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let body = Bytes::from(bytes);
            let _ = read_instances(&body, &Limits::default());
            let _ = split_predictions(&body, &[1], &Limits::default());
        }
    }
}
