//! Minimal parser of Triton's `config.pbtxt`: name, backend, instance counts.

use std::ops::Range;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    Text(&'a str),
    Mark(u8),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Range of the top-level `name` value, including quotes.
    name: Option<Range<usize>>,
    /// Count per CPU instance group.
    pub(super) cpu_instances: Vec<u32>,
    /// Top-level `backend`, or `platform`.
    pub(super) backend: String,
}

/// Tolerant: invalid input is left for the server to reject.
pub(super) fn read(text: &str) -> Found {
    let mut found = Found::default();
    let mut path: Vec<&str> = Vec::new();
    let mut field = "";
    let mut group = Group::default();
    let mut expects_value = false;
    for (token, range) in tokens(text) {
        match token {
            Token::Mark(b'{' | b'<') => {
                if path.is_empty() && field == "instance_group" {
                    group = Group::default();
                }
                path.push(field);
                expects_value = false;
            }
            Token::Mark(b'}' | b'>') => {
                path.pop();
                if path.is_empty() && group.open {
                    found.cpu_instances.extend(group.cpu());
                    group = Group::default();
                }
                // In a list, the next message belongs to the same field.
                field = path.last().copied().unwrap_or("instance_group");
                expects_value = false;
            }
            Token::Mark(b':') => expects_value = true,
            Token::Mark(_) => {}
            Token::Word(word) if !expects_value => {
                field = word;
                group.open |= path.as_slice() == ["instance_group"];
            }
            Token::Word(word) | Token::Text(word) => {
                match (path.as_slice(), field) {
                    ([], "name") => found.name = Some(range),
                    ([], "backend") => word.clone_into(&mut found.backend),
                    ([], "platform") if found.backend.is_empty() => word.clone_into(&mut found.backend),
                    (["instance_group"], "count") => group.count = word.parse().ok(),
                    (["instance_group"], "kind") => group.gpu = word == "KIND_GPU",
                    _ => {}
                }
                expects_value = false;
            }
        }
    }
    found
}

#[derive(Default)]
struct Group {
    open: bool,
    count: Option<u32>,
    gpu: bool,
}

impl Group {
    fn cpu(&self) -> Option<u32> {
        (!self.gpu).then(|| self.count.unwrap_or(1).max(1))
    }
}

pub(super) fn renamed(text: &str, found: &Found, name: &str) -> String {
    let value = format!("\"{name}\"");
    let parts = found.name.clone().and_then(|range| Some((text.get(..range.start)?, text.get(range.end..)?)));
    match parts {
        Some((before, after)) => format!("{before}{value}{after}"),
        None => format!("name: {value}\n{text}"),
    }
}

fn tokens(text: &str) -> impl Iterator<Item = (Token<'_>, Range<usize>)> {
    let bytes = text.as_bytes();
    let mut at = 0;
    std::iter::from_fn(move || {
        loop {
            let byte = *bytes.get(at)?;
            let start = at;
            match byte {
                b'#' => at = until(bytes, at, |b| b == b'\n'),
                b'"' | b'\'' => {
                    at += 1;
                    while let Some(&next) = bytes.get(at) {
                        at += if next == b'\\' { 2 } else { 1 };
                        if next == byte {
                            break;
                        }
                    }
                    at = at.min(bytes.len());
                    let inner = text.get(start + 1..at.saturating_sub(1)).unwrap_or_default();
                    return Some((Token::Text(inner), start..at));
                }
                b if is_word(b) => {
                    at = until(bytes, at, |b| !is_word(b));
                    return Some((Token::Word(text.get(start..at)?), start..at));
                }
                b if b.is_ascii_whitespace() => at += 1,
                mark => {
                    at += 1;
                    return Some((Token::Mark(mark), start..at));
                }
            }
        }
    })
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-' | b'+')
}

fn until(bytes: &[u8], from: usize, end: impl Fn(u8) -> bool) -> usize {
    let rest = bytes.get(from..).unwrap_or_default();
    from + rest.iter().position(|b| end(*b)).unwrap_or(rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn read_finds_name_and_instances() {
        for (text, expected, instances) in [
            ("name: \"a\"\nbackend: \"python\"", "name: \"m_1\"\nbackend: \"python\"", &[][..]),
            ("name: 'it\\'s' platform: \"x\"", "name: \"m_1\" platform: \"x\"", &[]),
            ("backend: \"python\"", "name: \"m_1\"\nbackend: \"python\"", &[]),
            ("", "name: \"m_1\"\n", &[]),
            (
                "input [ { name: \"X\" dims: [ 4 ] } ]",
                "name: \"m_1\"\ninput [ { name: \"X\" dims: [ 4 ] } ]",
                &[],
            ),
            ("# name: \"no\"\nname : \"a\" # yes", "# name: \"no\"\nname : \"m_1\" # yes", &[]),
            (
                "input { name: \"X\" }\nname: \"a\"\ninstance_group [ { count: 3 kind: KIND_CPU } ]",
                "input { name: \"X\" }\nname: \"m_1\"\ninstance_group [ { count: 3 kind: KIND_CPU } ]",
                &[3],
            ),
            (
                "name: \"a\" instance_group [ { kind: KIND_GPU count: 2 }, { count: 5 } ] parameters { key: \"k\" }",
                "name: \"m_1\" instance_group [ { kind: KIND_GPU count: 2 }, { count: 5 } ] parameters { key: \"k\" }",
                &[5],
            ),
            ("instance_group { kind: KIND_CPU }", "name: \"m_1\"\ninstance_group { kind: KIND_CPU }", &[1]),
        ] {
            let found = read(text);
            assert_eq!(renamed(text, &found, "m_1"), expected);
            assert_eq!(found.cpu_instances, instances, "{text}");
        }
    }

    proptest! {
        #[test]
        fn read_accepts_any_text(text in "\\PC{0,200}") {
            let renamed = renamed(&text, &read(&text), "m_1");
            prop_assert!(renamed.contains("\"m_1\""));
        }

        #[test]
        fn renamed_replaces_top_level_name_once(
            message in proptest::collection::vec("(name: \"a\"|x \\{ name: \"b\" \\}|y: 1|# name: \"c\"\n)", 0..8)
        ) {
            let text = message.join("\n");
            let renamed = renamed(&text, &read(&text), "m_1");
            prop_assert_eq!(renamed.matches("\"m_1\"").count(), 1);
            prop_assert_eq!(renamed.matches("\"b\"").count(), text.matches("\"b\"").count());
        }
    }
}
