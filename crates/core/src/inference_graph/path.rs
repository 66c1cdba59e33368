//! Conditions: paths in a subset of gjson's syntax.
//!
//! | path | selects |
//! |---|---|
//! | `a.b` | the member `b` of the member `a` of an object |
//! | `a.0` | the first element of the array `a`; `0` is a key of an object |
//! | `a*`, `a?b` | the first member whose key matches: `*` is any text, `?` any character |
//! | `a\.b` | the key `a.b`; `\` removes the meaning of any character |
//! | `a.#` | the number of elements of an array |
//! | `a.#.b` | the members `b` of all elements; exists for each array |
//! | `a.#(b=="x")` | the first element whose member `b` is `x`; `.c` after it is a member of that element |
//! | `a.#(b=="x")#` | all such elements; exists for each array |
//! | `a.#(>5)` | the first element that is a number above 5 |
//! | `a.#(b)` | the first element that has a member `b` |
//! | `@this` | the document |
//! | `[@this]` | an array with the document: `[@this].#(b=="x")` tests the document |
//!
//! A query is a path, which may have queries itself, an operator and a value. The operators are `==` (or `=`), `!=`, `<`,
//! `<=`, `>`, `>=`, `%` (matches a pattern with `*` and `?`) and `!%`. Text is compared with text, numbers with numbers; `true` is above
//! `false`; objects, arrays and null are never equal to anything. The value may be in quotes.
//!
//! A path exists if it selects something, also null. Pipes, other modifiers, objects and arrays of several paths (`{a,b}`),
//! literals (`!"x"`), `~` in queries and lines (`..`) are not supported.

use super::{
    json::{elements, is_valid, members, unescape},
    pattern::Pattern,
};

/// Longer paths are rejected.
const MAX_LENGTH: usize = 1024;
/// Queries within queries.
const MAX_NESTING: usize = 8;

/// A parsed condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    /// `[@this]`
    Wrapped,
    /// A key, or the index of an element.
    Key(Pattern),
    /// `#`
    Count,
    Query(Query),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Query {
    path: Vec<Part>,
    test: Option<(Operator, String)>,
    is_all: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Like,
    NotLike,
}

/// What a path selects.
enum Found<'a> {
    Value(&'a [u8]),
    Count(usize),
    /// An array of results.
    Results,
}

impl Path {
    /// Parses a path, or says why it is not supported.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MAX_LENGTH {
            return Err(format!("has {} bytes, at most {MAX_LENGTH} are allowed", text.len()));
        }
        Ok(Self { parts: parse(text, MAX_NESTING)? })
    }

    /// Whether the path exists in a document; false if that is not JSON.
    pub fn exists(&self, document: &[u8]) -> bool {
        is_valid(document) && find(document, &self.parts).is_some()
    }
}

fn parse(text: &str, nesting: usize) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    let mut rest = match text.strip_prefix("[@this]") {
        Some(rest) => {
            parts.push(Part::Wrapped);
            rest
        }
        None => match text.strip_prefix("@this") {
            Some(rest) if rest.is_empty() || rest.starts_with('.') => rest,
            _ if text.starts_with("..") => return Err("starts with .., which is not supported".into()),
            _ => {
                let (part, rest) = parse_part(text, nesting)?;
                parts.push(part);
                rest
            }
        },
    };
    while !rest.is_empty() {
        let Some(after) = rest.strip_prefix('.') else {
            return Err(format!(
                "has \"{}\" where a . is expected",
                rest.chars().take(20).collect::<String>()
            ));
        };
        let (part, after) = parse_part(after, nesting)?;
        parts.push(part);
        rest = after;
    }
    Ok(parts)
}

/// The first part, and the text after it.
fn parse_part(text: &str, nesting: usize) -> Result<(Part, &str), String> {
    if let Some(query) = text.strip_prefix("#(").or_else(|| text.strip_prefix("#[")) {
        let close = if text.starts_with("#(") { ')' } else { ']' };
        let end = end_of_query(query, close).ok_or("has a query without an end")?;
        let (inside, after) = query.split_at_checked(end).unwrap_or((query, ""));
        let after = after.get(1..).unwrap_or_default();
        let nesting = nesting.checked_sub(1).ok_or("has too many queries within queries")?;
        let (is_all, after) = after.strip_prefix('#').map_or((false, after), |after| (true, after));
        return Ok((Part::Query(parse_query(inside, nesting, is_all)?), after));
    }
    for (start, name) in
        [('@', "a modifier"), ('{', "several paths"), ('[', "several paths"), ('!', "a literal")]
    {
        if text.starts_with(start) {
            let message = format!(
                "has {name} ({start}), which is not supported: use a form such as [@this].#(key==\"value\")"
            );
            return Err(message);
        }
    }
    let mut end = text.len();
    let mut is_escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '.' => {
                end = at;
                break;
            }
            '|' => return Err("has a pipe (|), which is not supported: use .".into()),
            _ => {}
        }
    }
    let (word, rest) = text.split_at_checked(end).unwrap_or((text, ""));
    Ok((if word == "#" { Part::Count } else { Part::Key(Pattern::parse(word)) }, rest))
}

/// The position of the bracket that closes a query.
fn end_of_query(text: &str, close: char) -> Option<usize> {
    let mut depth = 0_usize;
    let mut is_escaped = false;
    let mut is_quoted = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            _ if is_quoted => {}
            '(' | '[' => depth += 1,
            ')' | ']' if depth > 0 => depth -= 1,
            c if c == close => return Some(at),
            _ => {}
        }
    }
    None
}

fn parse_query(text: &str, nesting: usize, is_all: bool) -> Result<Query, String> {
    let mut depth = 0_usize;
    let mut is_escaped = false;
    let mut is_quoted = false;
    let mut at = text.len();
    for (position, c) in text.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            _ if is_quoted => {}
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            '=' | '!' | '<' | '>' | '%' if depth == 0 => {
                at = position;
                break;
            }
            _ => {}
        }
    }
    let (path, test) = text.split_at_checked(at).unwrap_or((text, ""));
    let path = path.trim();
    let path = if path.is_empty() { Vec::new() } else { parse(path, nesting)? };
    let operators = [
        ("==", Operator::Equal),
        ("=", Operator::Equal),
        ("!=", Operator::NotEqual),
        ("<=", Operator::LessOrEqual),
        ("<", Operator::Less),
        (">=", Operator::GreaterOrEqual),
        (">", Operator::Greater),
        ("!%", Operator::NotLike),
        ("%", Operator::Like),
    ];
    let found =
        operators.iter().find_map(|(sign, operator)| Some((*operator, test.strip_prefix(sign)?.trim())));
    let test = match found {
        None if test.is_empty() => None,
        None => return Err("has a query with an unknown operator".into()),
        Some((_, value)) if value.starts_with('~') => {
            return Err("has ~ in a query, which is not supported".into());
        }
        Some((operator, value)) => {
            let quoted = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
            let value = quoted.map_or_else(|| value.to_owned(), |raw| unescape(raw.as_bytes()).into_owned());
            Some((operator, value))
        }
    };
    Ok(Query { path, test, is_all })
}

/// The value at a path. The document is valid.
fn find<'a>(value: &'a [u8], parts: &[Part]) -> Option<Found<'a>> {
    let value = value.trim_ascii();
    let Some((part, rest)) = parts.split_first() else { return Some(Found::Value(value)) };
    match (part, value.first()) {
        (Part::Wrapped, _) => find_in_array(std::iter::once(value), rest),
        (Part::Key(key), Some(b'{')) => {
            let mut found = members(value).filter(|(name, _)| key.matches(&unescape(name)));
            found.find_map(|(_, value)| find(value, rest))
        }
        (Part::Count, Some(b'{')) => {
            members(value).filter(|(name, _)| *name == b"#").find_map(|(_, value)| find(value, rest))
        }
        (_, Some(b'[')) => find_in_array(elements(value), parts),
        _ => None,
    }
}

fn find_in_array<'a>(mut elements: impl Iterator<Item = &'a [u8]>, parts: &[Part]) -> Option<Found<'a>> {
    match parts.split_first() {
        Some((Part::Key(key), rest)) => elements.nth(key.index()?).and_then(|element| find(element, rest)),
        Some((Part::Count, [])) => Some(Found::Count(elements.count())),
        // A list of results exists, even if it is empty.
        None | Some((Part::Count, _)) => Some(Found::Results),
        Some((Part::Query(query), _)) if query.is_all => Some(Found::Results),
        Some((Part::Query(query), rest)) => {
            elements.find(|element| query.matches(element)).and_then(|element| find(element, rest))
        }
        Some((Part::Wrapped, _)) => None,
    }
}

impl Query {
    fn matches(&self, element: &[u8]) -> bool {
        let is_nested = matches!(element.first(), Some(b'{' | b'['));
        // A query without a path is for plain elements, one with a path for the others.
        if is_nested == self.path.is_empty() {
            return false;
        }
        let Some(found) = find(element, &self.path) else { return false };
        let Some((operator, value)) = &self.test else { return true };
        match found {
            Found::Value(found) => compare(found, *operator, value),
            Found::Count(count) => compare_numbers(count as f64, *operator, value),
            Found::Results => false,
        }
    }
}

fn compare(found: &[u8], operator: Operator, value: &str) -> bool {
    match found {
        [b'"', inside @ .., b'"'] => {
            let text = unescape(inside);
            match operator {
                Operator::Like => Pattern::parse(value).matches(&text),
                Operator::NotLike => !Pattern::parse(value).matches(&text),
                _ => operator.accepts(text.as_bytes().cmp(value.as_bytes())),
            }
        }
        b"true" | b"false" => {
            // As in gjson: what is not `true` counts as unequal, and only the other word as below or above.
            let is_true = found == b"true";
            let is_same = value == if is_true { "true" } else { "false" };
            let is_other = value == if is_true { "false" } else { "true" };
            match operator {
                Operator::Equal => is_same,
                Operator::NotEqual => !is_same,
                Operator::Greater => is_true && is_other,
                Operator::GreaterOrEqual => is_true,
                Operator::Less => !is_true && is_other,
                Operator::LessOrEqual => !is_true,
                Operator::Like | Operator::NotLike => false,
            }
        }
        [b'-' | b'0'..=b'9', ..] => {
            let number = std::str::from_utf8(found).ok().and_then(|text| text.parse().ok());
            number.is_some_and(|number| compare_numbers(number, operator, value))
        }
        _ => false,
    }
}

fn compare_numbers(number: f64, operator: Operator, value: &str) -> bool {
    let value: f64 = value.parse().unwrap_or(0.0);
    number.partial_cmp(&value).is_some_and(|order| operator.accepts(order))
}

impl Operator {
    fn accepts(self, order: std::cmp::Ordering) -> bool {
        match self {
            Self::Equal => order.is_eq(),
            Self::NotEqual => order.is_ne(),
            Self::Less => order.is_lt(),
            Self::LessOrEqual => order.is_le(),
            Self::Greater => order.is_gt(),
            Self::GreaterOrEqual => order.is_ge(),
            Self::Like | Self::NotLike => false,
        }
    }
}
