//! A subset of kubectl's JSONPath templates: text with expressions such as `{.a.b[0].c}`.
//!
//! Supported: `.name`, `['name']`, `[2]`, `[-1]`, `[*]`, `.*`, `\.` within a name, and literals such as `{"\n"}`.
//! Missing values are omitted; several values are joined by a space.

use serde_json::Value;

const MAX_TEMPLATE_BYTES: usize = 4096;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JsonPath {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Path(Vec<Step>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Field(String),
    Index(i64),
    All,
}

impl JsonPath {
    /// A template without braces is one path.
    pub(crate) fn parse(template: &str) -> Result<Self, String> {
        if template.len() > MAX_TEMPLATE_BYTES {
            return Err(format!(
                "path has {} bytes, at most {MAX_TEMPLATE_BYTES} are accepted",
                template.len()
            ));
        }
        if template.trim().is_empty() {
            return Err("path missing: write jsonpath={.status.version}".into());
        }
        if !template.contains('{') {
            return Ok(Self { parts: vec![Part::Path(steps(template)?)] });
        }
        let mut parts = Vec::new();
        let mut rest = template;
        while let Some((text, after)) = rest.split_once('{') {
            if !text.is_empty() {
                parts.push(Part::Text(unescape(text)));
            }
            let end = closing_brace(after).ok_or_else(|| format!("\"{{{after}\" has no closing brace"))?;
            let (inside, next) = after.split_at(end);
            parts.push(expression(inside.trim())?);
            rest = next.get(1..).unwrap_or_default();
        }
        if !rest.is_empty() {
            parts.push(Part::Text(unescape(rest)));
        }
        Ok(Self { parts })
    }

    pub(crate) fn render(&self, value: &Value) -> String {
        let part = |p: &Part| match p {
            Part::Text(text) => text.clone(),
            Part::Path(steps) => find(value, steps).into_iter().map(display).collect::<Vec<_>>().join(" "),
        };
        self.parts.iter().map(part).collect()
    }
}

/// Index of the first `}` outside quotes.
fn closing_brace(text: &str) -> Option<usize> {
    let mut quote = None;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (None, '}') => return Some(at),
            (None, '"' | '\'') => quote = Some(c),
            (Some(q), c) if q == c => quote = None,
            _ => {}
        }
    }
    None
}

fn expression(text: &str) -> Result<Part, String> {
    let quoted = ['"', '\''].iter().find_map(|&q| text.strip_prefix(q).and_then(|t| t.strip_suffix(q)));
    if let Some(literal) = quoted {
        return Ok(Part::Text(unescape(literal)));
    }
    if let Some(keyword) = ["range", "end", "if"].iter().find(|k| text.split_whitespace().next() == Some(**k))
    {
        return Err(format!("{{{keyword}}} is not supported: use [*], or -o json with jq"));
    }
    steps(text).map(Part::Path)
}

fn steps(text: &str) -> Result<Vec<Step>, String> {
    let wrong = |what: &str| format!("{what} in path \"{text}\": write it like {{.a.b[0].c}}");
    let mut rest = text.trim().strip_prefix(['$', '@']).unwrap_or(text.trim());
    if !rest.starts_with(['.', '[']) && !rest.is_empty() {
        return Err(wrong("missing dot"));
    }
    let mut steps = Vec::new();
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('[') {
            let (inside, next) = after.split_once(']').ok_or_else(|| wrong("\"[\" is not closed"))?;
            let inside = inside.trim();
            let quoted =
                ['"', '\''].iter().find_map(|&q| inside.strip_prefix(q).and_then(|t| t.strip_suffix(q)));
            steps.push(match (inside, quoted) {
                ("*", _) => Step::All,
                (_, Some(name)) => Step::Field(name.to_owned()),
                _ => Step::Index(
                    inside.parse().map_err(|_| wrong(&format!("\"[{inside}]\" is not an index")))?,
                ),
            });
            rest = next;
        } else if let Some(after) = rest.strip_prefix('.') {
            let (name, next) = field(after);
            match name.as_str() {
                "" if next.is_empty() && steps.is_empty() => {}
                "" if next.starts_with('[') => {}
                "" => return Err(wrong("missing name")),
                "*" => steps.push(Step::All),
                _ => steps.push(Step::Field(name)),
            }
            rest = next;
        } else {
            return Err(wrong("missing dot"));
        }
    }
    Ok(steps)
}

/// A name up to the next dot or bracket; a backslash escapes the next character.
fn field(text: &str) -> (String, &str) {
    let mut name = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => name.extend(chars.next().map(|(_, c)| c)),
            '.' | '[' => return (name, text.get(at..).unwrap_or_default()),
            _ => name.push(c),
        }
    }
    (name, "")
}

fn unescape(text: &str) -> String {
    text.replace("\\n", "\n").replace("\\t", "\t")
}

fn find<'a>(value: &'a Value, steps: &[Step]) -> Vec<&'a Value> {
    let mut found = vec![value];
    for step in steps {
        found = found
            .into_iter()
            .flat_map(|value| -> Vec<&Value> {
                match (step, value) {
                    (Step::Field(name), Value::Object(map)) => map.get(name).into_iter().collect(),
                    (Step::Index(index), Value::Array(items)) => {
                        let at = if *index < 0 { *index + items.len() as i64 } else { *index };
                        usize::try_from(at).ok().and_then(|at| items.get(at)).into_iter().collect()
                    }
                    (Step::All, Value::Array(items)) => items.iter().collect(),
                    (Step::All, Value::Object(map)) => map.values().collect(),
                    _ => Vec::new(),
                }
            })
            .collect();
    }
    found
}

fn display(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn templates_render_selected_values() {
        let value = json!({
            "a": {"b": [{"c": 1}, {"c": "two"}], "x.y": true, "n": null, "l": [1, 2]},
        });
        for (path, expected) in [
            ("{.a.b[0].c}", "1"),
            (".a.b[1].c", "two"),
            ("{.a.b[-1].c}", "two"),
            ("{.a.b[*].c}", "1 two"),
            ("{$.a['x.y']}", "true"),
            ("{.a.x\\.y}", "true"),
            ("{.a.l}", "[1,2]"),
            ("{.a.n}", "null"),
            ("{.a.missing.deeper}", ""),
            ("{.a.b[9].c}", ""),
            ("{.a.b.c}", ""),
            ("c is {.a.b[0].c}{\"\\n\"}", "c is 1\n"),
            ("{.a.b[0].c}/{.a.b[1].c}", "1/two"),
            ("{'}'}", "}"),
        ] {
            assert_eq!(JsonPath::parse(path).unwrap().render(&value), expected, "{path}");
        }
        assert_eq!(JsonPath::parse("{.}").unwrap().render(&json!({"a": 1})), "{\"a\":1}");
    }

    #[test]
    fn invalid_template_is_an_error() {
        for (path, expected) in [
            ("", "path missing"),
            ("{.a", "no closing brace"),
            ("{a.b}", "missing dot"),
            ("{.a..b}", "missing name"),
            ("{.a[}", "is not closed"),
            ("{.a[x]}", "is not an index"),
            ("{range .items[*]}", "not supported"),
            ("{.a]b[0]x}", "missing dot"),
        ] {
            let error = JsonPath::parse(path).unwrap_err();
            assert!(error.contains(expected), "{path}: {error}");
        }
        assert!(JsonPath::parse(&"{.a}".repeat(2000)).is_err());
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_template_does_not_panic(template in "[{}.a\\[\\]'\"0-9*\\\\ ]{0,40}") {
            if let Ok(path) = JsonPath::parse(&template) {
                path.render(&json!({"a": [{"a": 1}]}));
            }
        }
    }
}
