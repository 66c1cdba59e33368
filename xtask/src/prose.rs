//! `cargo xtask prose`: counts words outside the field's vocabulary in comments, string literals and docs.

use crate::{Failure, metadata};
use std::{collections::BTreeMap, path::Path, process::Command};

/// Words of one habit, and how many per 1,000 words of text the tree may contain.
struct Group {
    name: &'static str,
    words: &'static [&'static str],
    limit: f64,
}

const GROUPS: &[Group] = &[
    Group {
        name: "people for components",
        words: &["somebody", "whoever", "nobody", "everybody", "anybody"],
        limit: 0.1,
    },
    Group { name: "speech for state", words: &["told", "says", "said", "asked"], limit: 0.5 },
    Group {
        name: "metaphors",
        words: &[
            "house",
            "desk",
            "errand",
            "farewell",
            "goodbye",
            "patience",
            "shelf",
            "stranger",
            "strangers",
            "anew",
            "wishes",
            "truthfully",
        ],
        limit: 0.05,
    },
];

/// Starts of function names that state a proverb instead of subject and condition.
const NAME_PREFIXES: &[&str] =
    &["what_", "whoever_", "whatever_", "nobody_", "somebody_", "who_", "everybody_"];

/// Files that are not prose: licences, data, generated code, and this list itself.
const EXCLUDED: &[&str] = &["LICENSE", "xtask/src/prose.rs", "docs/glossary.md", "Cargo.lock"];
const TEXT: &[&str] = &["md", "rs", "py", "sh", "yaml", "yml", "toml", "proto", "tpl"];

#[derive(Default)]
struct Tally {
    words: usize,
    hits: Vec<usize>,
}

pub(crate) fn run(arguments: &[&str]) -> Result<bool, Failure> {
    let list = match arguments {
        [] => false,
        ["--list"] => true,
        _ => return Err("prose takes --list or nothing".into()),
    };
    let root = metadata::root();
    let output = Command::new("git").args(["ls-files", "-z"]).current_dir(&root).output()?;
    let files = String::from_utf8(output.stdout)?;
    let mut areas: BTreeMap<String, Tally> = BTreeMap::new();
    let mut names = Vec::new();
    for file in files.split('\0').filter(|file| is_prose(file)) {
        let Ok(source) = std::fs::read_to_string(root.join(file)) else { continue };
        let text = prose(file, &source);
        let tally = areas.entry(area(file)).or_default();
        tally.hits.resize(GROUPS.len(), 0);
        for (number, line) in text {
            for word in words(&line) {
                tally.words += 1;
                for (group, hits) in GROUPS.iter().zip(&mut tally.hits) {
                    if group.words.contains(&word.as_str()) {
                        *hits += 1;
                        if list {
                            println!("{file}:{number}: {word}: {}", line.trim());
                        }
                    }
                }
            }
        }
        names.extend(proverbs(file, &source));
    }
    for name in &names {
        println!("{name}: name the subject and the condition, such as put_ignores_older_resource_version");
    }
    Ok(report(&areas) && names.is_empty())
}

fn is_prose(file: &str) -> bool {
    let extension = Path::new(file).extension().and_then(|e| e.to_str()).unwrap_or_default();
    TEXT.contains(&extension) && !EXCLUDED.contains(&file) && !file.split('/').any(|part| part == "testdata")
}

/// The crate or top-level directory of a file.
fn area(file: &str) -> String {
    let mut parts = file.split('/');
    match (parts.next(), parts.next(), parts.next()) {
        (Some("crates"), Some(name), Some(_)) => format!("crates/{name}"),
        (Some(directory), Some(_), _) => directory.into(),
        _ => ".".into(),
    }
}

fn report(areas: &BTreeMap<String, Tally>) -> bool {
    print!("{:<20} {:>8}", "per 1,000 words", "words");
    for group in GROUPS {
        print!("  {:>22}", group.name);
    }
    println!();
    let mut total = Tally { words: 0, hits: vec![0; GROUPS.len()] };
    let row = |name: &str, tally: &Tally| {
        print!("{name:<20} {:>8}", tally.words);
        for hits in &tally.hits {
            print!("  {:>22.2}", rate(*hits, tally.words));
        }
        println!();
    };
    for (name, tally) in areas {
        row(name, tally);
        total.words += tally.words;
        total.hits.iter_mut().zip(&tally.hits).for_each(|(sum, hits)| *sum += hits);
    }
    row("all", &total);
    let mut fine = true;
    for (group, hits) in GROUPS.iter().zip(&total.hits) {
        let rate = rate(*hits, total.words);
        if rate > group.limit {
            fine = false;
            println!(
                "{}: {rate:.2} per 1,000 words, limit {} ({}). `cargo xtask prose --list` shows each; docs/glossary.md has \
                 the words to use.",
                group.name,
                group.limit,
                group.words.join(", ")
            );
        }
    }
    fine
}

fn rate(hits: usize, words: usize) -> f64 {
    hits as f64 * 1000.0 / words.max(1) as f64
}

fn words(line: &str) -> impl Iterator<Item = String> {
    line.split(|c: char| !c.is_alphanumeric() && c != '\'')
        .map(|word| word.trim_matches('\'').to_lowercase())
        .filter(|word| !word.is_empty())
}

/// Function names that begin with a relative clause, as `file:line: name`.
fn proverbs(file: &str, source: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in source.lines().enumerate() {
        let line = line.trim_start();
        let name = line.strip_prefix("fn ").or_else(|| line.strip_prefix("async fn "));
        let name = name.or_else(|| line.strip_prefix("def test_")).and_then(|rest| rest.split('(').next());
        if let Some(name) = name.filter(|name| NAME_PREFIXES.iter().any(|prefix| name.starts_with(prefix))) {
            found.push(format!("{file}:{}: {name}", number + 1));
        }
    }
    found
}

/// The text that people read in a file, with line numbers: all of a document; of a program its comments and string literals.
fn prose(file: &str, source: &str) -> Vec<(usize, String)> {
    let extension = Path::new(file).extension().and_then(|e| e.to_str()).unwrap_or_default();
    match extension {
        "md" => source.lines().enumerate().map(|(i, line)| (i + 1, line.to_owned())).collect(),
        "rs" | "proto" => literals(source, "//", false),
        "py" => literals(source, "#", true),
        _ => source
            .lines()
            .enumerate()
            .filter_map(|(i, line)| line.split_once('#').map(|(_, comment)| (i + 1, comment.to_owned())))
            .collect(),
    }
}

/// Comments and string literals of a source file.
fn literals(source: &str, comment: &str, single_quotes: bool) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let (mut rest, mut number) = (source, 1);
    while let Some(character) = rest.chars().next() {
        let (text, length) = if rest.starts_with(comment) {
            let end = rest.find('\n').unwrap_or(rest.len());
            (Some((comment.len(), end)), end)
        } else if let Some((start, end, length)) = string(rest, single_quotes) {
            (Some((start, end)), length)
        } else if !single_quotes && let Some(length) = char_literal(rest) {
            (None, length)
        } else {
            (None, character.len_utf8())
        };
        if let Some(text) = text.and_then(|(start, end)| rest.get(start..end)) {
            found.extend(text.lines().enumerate().map(|(i, line)| (number + i, line.to_owned())));
        }
        let Some((passed, after)) = rest.split_at_checked(length) else { break };
        number += passed.matches('\n').count();
        rest = after;
    }
    found
}

/// Where the content of a string literal starts and ends, and its whole length, if one begins here.
fn string(rest: &str, single_quotes: bool) -> Option<(usize, usize, usize)> {
    if let Some(raw) = rest.strip_prefix('r').filter(|_| !single_quotes) {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            let (start, close) = (hashes + 2, format!("\"{}", "#".repeat(hashes)));
            let end = start + rest[start..].find(&close)?;
            return Some((start, end, end + close.len()));
        }
    }
    let quotes: &[&str] = if single_quotes { &["\"\"\"", "'''", "\"", "'"] } else { &["\""] };
    let quote = quotes.iter().find(|quote| rest.starts_with(**quote))?;
    let mut at = quote.len();
    while let Some(tail) = rest.get(at..) {
        if tail.starts_with(*quote) {
            return Some((quote.len(), at, at + quote.len()));
        }
        let mut characters = tail.chars();
        match characters.next()? {
            '\\' => at += 1 + characters.next().map_or(0, char::len_utf8),
            other => at += other.len_utf8(),
        }
    }
    None
}

/// The length of a character literal such as `'"'`, if one begins here; a lifetime is none.
fn char_literal(rest: &str) -> Option<usize> {
    let inner = rest.strip_prefix('\'')?;
    let mut characters = inner.chars();
    let first = characters.next()?;
    let body = if first == '\\' { 1 + characters.next()?.len_utf8() } else { first.len_utf8() };
    inner[body..].starts_with('\'').then_some(body + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(file: &str, source: &str) -> Vec<(usize, String)> {
        prose(file, source)
    }

    #[test]
    fn rust_comments_and_strings_are_prose_and_code_is_not() {
        let source = "// one\nlet said = \"two \\\" three\"; /* */\nlet c = '\"'; // four\nlet r: &'a str = r#\"five\nsix\"#;";
        let expected = [(1, " one"), (2, "two \\\" three"), (3, " four"), (4, "five"), (5, "six")];
        assert_eq!(texts("a.rs", source), expected.map(|(line, text)| (line, text.to_owned())));
    }

    #[test]
    fn python_docstrings_and_comments_are_prose() {
        let source = "def f():\n    \"\"\"One\n    two\"\"\"\n    x = 'three'  # four\n";
        let lines: Vec<usize> = texts("a.py", source).iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [2, 3, 4, 4]);
    }

    #[test]
    fn proverb_test_names_are_reported() {
        let found = proverbs("a.rs", "    fn what_is_older_is_ignored() {}\n    fn whatsoever() {}\n");
        assert_eq!(found, ["a.rs:1: what_is_older_is_ignored"]);
    }

    #[test]
    fn words_are_lowercase_without_quotes() {
        assert_eq!(words("It's 'Told', `said`.").collect::<Vec<_>>(), ["it's", "told", "said"]);
    }
}
