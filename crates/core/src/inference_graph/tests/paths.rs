use crate::inference_graph::{Path, is_valid, json::quote};
use proptest::prelude::*;

const DOCUMENT: &str = r##"{
  "name": {"first": "Tom", "last": "Anderson"},
  "age": 37,
  "children": ["Sara", "Alex", "Jack"],
  "fav.movie": "Deer Hunter",
  "ca\u0066e": true,
  "empty": [], "nothing": null, "off": false,
  "#": "hash",
  "friends": [
    {"first": "Dale", "last": "Murphy", "age": 44, "nets": ["ig", "fb", "tw"]},
    {"first": "Roger", "last": "Craig", "age": 68, "nets": ["fb", "tw"]},
    {"first": "Jane", "last": "Murphy", "age": 47, "nets": ["ig", "tw"], "admin": true}
  ],
  "numbers": [1, 2.5, -30, 4e2],
  "matrix": [[1, 2], [3, 4]]
}"##;

#[test]
fn condition_exists_as_in_gjson() {
    for (path, expected) in [
        ("name.last", true),
        ("name.middle", false),
        ("name.last.x", false),
        ("age", true),
        ("Age", false),
        ("nothing", true),
        ("nothing.x", false),
        ("off", true),
        ("cafe", true),
        // Wildcards, also with a mismatch below the first match.
        ("child*", true),
        ("child*.2", true),
        ("c?ildren.0", true),
        ("c?ldren.0", false),
        ("*.first", true),
        ("*.third", false),
        ("na*.la?t", true),
        // Escapes.
        ("fav\\.movie", true),
        ("fav.movie", false),
        ("child\\*", false),
        // Arrays.
        ("children.0", true),
        ("children.3", false),
        ("children.-1", false),
        ("children.first", false),
        ("children.*", false),
        ("children.#", true),
        ("empty.#", true),
        ("empty.0", false),
        ("age.#", false),
        ("#", true),
        ("matrix.1.1", true),
        ("matrix.1.2", false),
        ("friends.#.first", true),
        ("friends.#.none", true),
        ("name.#.none", false),
        ("friends.1.last", true),
        // Queries.
        ("friends.#(last==\"Murphy\")", true),
        ("friends.#(last=\"Murphy\").first", true),
        ("friends.#(last==\"Unknown\")", false),
        ("friends.#(last==\"Murphy\").admin", false),
        ("friends.#(first==\"Jane\").admin", true),
        ("friends.#(last==Craig)", true),
        ("friends.#[last==\"Craig\"]", true),
        ("friends.#( last == \"Craig\" ).age", true),
        ("friends.#(last!=\"Murphy\")", true),
        ("friends.#(age>60)", true),
        ("friends.#(age>68)", false),
        ("friends.#(age>=68)", true),
        ("friends.#(age<44)", false),
        ("friends.#(age<=44)", true),
        ("friends.#(age==\"47\")", true),
        ("friends.#(first%\"D*\").last", true),
        ("friends.#(first%\"X*\").last", false),
        ("friends.#(first!%\"D*\").last", true),
        ("friends.#(admin==true)", true),
        ("friends.#(admin==false)", false),
        ("friends.#(admin)", true),
        ("friends.#(missing)", false),
        ("friends.#(nets.#(==\"ig\"))", true),
        ("friends.#(nets.#(==\"xx\"))", false),
        ("friends.#(nets.#>2)", true),
        ("friends.#(nets.#>3)", false),
        ("friends.#(nets.0==\"fb\")", true),
        ("friends.#(last==\"Unknown\")#", true),
        ("friends.#(last==\"Murphy\")#.first", true),
        ("friends.#(name.x==1)", false),
        ("children.#(==\"Jack\")", true),
        ("children.#(>\"T\")", false),
        ("numbers.#(>300)", true),
        ("numbers.#(<-29.5)", true),
        ("numbers.#(==2.50)", true),
        ("numbers.#(%\"1*\")", false),
        ("friends.#(==1)", false),
        ("name.#(first==\"Tom\")", false),
        // The document.
        ("@this", true),
        ("@this.age", true),
        ("[@this]", true),
        ("[@this].#", true),
        ("[@this].0.age", true),
        ("[@this].1", false),
        ("[@this].#(age==37)", true),
        ("[@this].#(age==38)", false),
        ("[@this].#(children.0==\"Sara\").name.first", true),
        ("[@this].#(name.first==\"Tom\")", true),
    ] {
        let parsed = Path::parse(path).unwrap_or_else(|e| panic!("{path}: {e}"));
        assert_eq!(parsed.exists(DOCUMENT.as_bytes()), expected, "{path}");
    }
}

#[test]
fn unsupported_paths_have_a_reason() {
    for (path, reason) in [
        ("{ .input.userId == 1 }", "has several paths ({), which is not supported"),
        ("[a,b]", "has several paths ([)"),
        ("a.{b,c}", "has several paths ({)"),
        ("a|b", "has a pipe (|), which is not supported: use ."),
        ("a.@reverse", "has a modifier (@)"),
        ("@thisx", "has a modifier (@)"),
        ("!\"x\"", "has a literal (!)"),
        ("..#.a", "starts with .."),
        ("a.#(b==1", "has a query without an end"),
        ("a.#(b==1)c", "has \"c\" where a . is expected"),
        ("a.#(b==~true)", "has ~ in a query"),
        ("a.#(b!1)", "has a query with an unknown operator"),
        ("#(#(#(#(#(#(#(#(#(a)))))))))", "has too many queries within queries"),
        (&"a".repeat(1025), "has 1025 bytes, at most 1024 are allowed"),
    ] {
        let error = Path::parse(path).expect_err(path);
        assert!(error.starts_with(reason), "{path}: {error}");
    }
}

#[test]
fn condition_does_not_exist_in_a_document_that_is_not_json() {
    let path = Path::parse("a").unwrap();
    for document in ["", "{", "{\"a\":1", "{\"a\":1}x", "{\"a\":1,}", "a", "{'a':1}"] {
        assert!(!path.exists(document.as_bytes()), "{document}");
    }
    assert!(!is_valid("[".repeat(100_000).as_bytes()));
    let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(is_valid(deep(500).as_bytes()));
    assert!(!is_valid(deep(600).as_bytes()));
}

fn json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i32>().prop_map(Into::into),
        (-1.0e9..1.0e9_f64).prop_map(Into::into),
        ".{0,6}".prop_map(Into::into),
    ];
    leaf.prop_recursive(4, 40, 5, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Into::into),
            proptest::collection::btree_map("[a-c.*\"\\\\é#]{0,2}", inner, 0..5)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    })
}

/// The paths of all values, in our syntax.
fn paths(value: &serde_json::Value, path: &str, found: &mut Vec<String>) {
    let join = |part: &str| if path.is_empty() { part.to_owned() } else { format!("{path}.{part}") };
    let below: Vec<(String, &serde_json::Value)> = match value {
        serde_json::Value::Object(map) => map
            .iter()
            .map(|(key, value)| (key.chars().flat_map(|c| ['\\', c]).collect::<String>(), value))
            .collect(),
        serde_json::Value::Array(items) => {
            items.iter().enumerate().map(|(i, item)| (i.to_string(), item)).collect()
        }
        _ => Vec::new(),
    };
    for (part, value) in below.iter().filter(|(part, _)| !part.is_empty()) {
        let path = join(part);
        paths(value, &path, found);
        found.push(path);
    }
}

proptest! {
    #[test]
    fn validity_agrees_with_serde(text in "[{}\\[\\]:,\"\\\\a0-9.eE+tnu -]{0,12}") {
        let theirs = match serde_json::from_str::<serde_json::Value>(&text) {
            Ok(_) => true,
            // Its numbers have a range.
            Err(error) => error.to_string().contains("number out of range"),
        };
        prop_assert_eq!(is_valid(text.as_bytes()), theirs, "{}", text);
    }

    #[test]
    fn every_value_of_a_document_is_found(value in json(), pretty in any::<bool>()) {
        let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
        prop_assert!(is_valid(text.as_bytes()));
        let mut found = Vec::new();
        paths(&value, "", &mut found);
        for path in found.iter().filter(|path| path.len() < 1024) {
            prop_assert!(Path::parse(path).unwrap().exists(text.as_bytes()), "{path} in {text}");
        }
    }

    #[test]
    fn any_path_and_any_bytes_have_an_answer(
        path in "[a#()\\[\\]@this.*?\\\\\"=!<>%~|{}0-2é]{0,24}",
        document in proptest::collection::vec(any::<u8>(), 0..64),
        value in json(),
    ) {
        if let Ok(path) = Path::parse(&path) {
            path.exists(&document);
            path.exists(value.to_string().as_bytes());
        }
        is_valid(&document);
    }

    #[test]
    fn quoted_text_is_json(text in ".{0,20}") {
        prop_assert_eq!(serde_json::from_str::<String>(&quote(&text)).unwrap(), text);
    }
}
