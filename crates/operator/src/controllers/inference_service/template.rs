//! Placeholders such as `{{ .Name }}` in host names and in containers of runtimes.

use serde_json::Value;
use std::collections::BTreeMap;

/// The values of placeholders.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placeholders<'a> {
    pub name: &'a str,
    pub namespace: &'a str,
    pub ingress_domain: &'a str,
    pub labels: &'a BTreeMap<String, String>,
    pub annotations: &'a BTreeMap<String, String>,
}

impl Placeholders<'_> {
    /// Replaces all placeholders; the error names the one that is not known.
    pub(super) fn fill(&self, template: &str) -> Result<String, String> {
        let mut filled = String::new();
        let mut rest = template;
        while let Some((before, after)) = rest.split_once("{{") {
            let (expression, after) =
                after.split_once("}}").ok_or_else(|| format!("\"{template}\" has {{{{ without }}}}"))?;
            filled.push_str(before);
            filled.push_str(self.value(expression.trim_matches(['-', ' ', '\t']))?);
            rest = after;
        }
        filled.push_str(rest);
        Ok(filled)
    }

    /// Replaces the placeholders of every text in a value.
    pub(super) fn fill_value(&self, value: &Value) -> Result<Value, String> {
        Ok(match value {
            Value::String(text) if text.contains("{{") => Value::String(self.fill(text)?),
            Value::Array(items) => {
                Value::Array(items.iter().map(|item| self.fill_value(item)).collect::<Result<_, _>>()?)
            }
            Value::Object(fields) => {
                let filled = fields.iter().map(|(k, v)| Ok((k.clone(), self.fill_value(v)?)));
                Value::Object(filled.collect::<Result<_, String>>()?)
            }
            plain => plain.clone(),
        })
    }

    fn value(&self, expression: &str) -> Result<&str, String> {
        let entry = |prefix: &str| expression.strip_prefix(prefix);
        match expression {
            ".Name" => Ok(self.name),
            ".Namespace" => Ok(self.namespace),
            ".IngressDomain" => Ok(self.ingress_domain),
            _ => match (entry(".Labels."), entry(".Annotations.")) {
                (Some(key), _) => Ok(self.labels.get(key).map(String::as_str).unwrap_or_default()),
                (_, Some(key)) => Ok(self.annotations.get(key).map(String::as_str).unwrap_or_default()),
                _ => Err(format!(
                    "{{{{ {expression} }}}} is not known: use .Name, .Namespace, .IngressDomain, .Labels.x or .Annotations.x"
                )),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn placeholders_are_filled_or_named() {
        let labels = BTreeMap::from([("team".to_owned(), "a&b".to_owned())]);
        let placeholders = Placeholders {
            name: "iris",
            namespace: "ml",
            ingress_domain: "example.com",
            labels: &labels,
            annotations: &BTreeMap::new(),
        };
        for (template, expected) in [
            ("{{ .Name }}-{{ .Namespace }}.{{ .IngressDomain }}", Ok("iris-ml.example.com")),
            ("{{.Name}}/{{ .Labels.team }}", Ok("iris/a&b")),
            ("{{.Annotations.none}}", Ok("")),
            ("plain", Ok("plain")),
            ("{{ .Uid }}", Err(".Uid")),
            ("{{ .Name", Err("without }}")),
        ] {
            match (placeholders.fill(template), expected) {
                (Ok(filled), Ok(expected)) => assert_eq!(filled, expected),
                (Err(error), Err(part)) => assert!(error.contains(part), "{error}"),
                (result, _) => panic!("{template}: {result:?}"),
            }
        }
        let container = json!({ "args": ["--name={{ .Name }}", 7], "env": [{ "value": "{{.Namespace}}" }] });
        let expected = json!({ "args": ["--name=iris", 7], "env": [{ "value": "ml" }] });
        assert_eq!(placeholders.fill_value(&container), Ok(expected));
    }
}
