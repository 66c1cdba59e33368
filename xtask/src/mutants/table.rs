//! The table of mutants: reading it and applying its edits.

use crate::Failure;
use std::{collections::BTreeMap, fs, ops::Range, path::Path};
use toml::{Table, Value};

/// A known defect.
#[derive(Debug)]
pub(super) struct Mutant {
    pub(super) name: String,
    pub(super) effect: String,
    /// Empty when an edit of another mutant contains this one's branch, too.
    edits: Vec<Edit>,
    pub(super) detector: Detector,
}

/// What has to detect a mutant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Detector {
    Simulation,
    /// Any test of a target, or the named one.
    Tests {
        package: String,
        target: String,
        test: Option<String>,
    },
}

#[derive(Debug)]
struct Edit {
    file: String,
    find: String,
    replace: String,
}

impl Detector {
    pub(super) fn test(&self) -> Option<&str> {
        match self {
            Self::Tests { test, .. } => test.as_deref(),
            Self::Simulation => None,
        }
    }
}

impl Mutant {
    fn read(group: &str, entry: &Table) -> Result<Self, String> {
        let name = text(entry, "name")?;
        let edit = |entry: &Table| -> Result<Edit, String> {
            let [file, find, replace] = ["file", "find", "replace"].map(|key| text(entry, key));
            Ok(Edit { file: file?, find: find?, replace: replace? })
        };
        let listed = entry.get("edits").and_then(Value::as_array).into_iter().flatten();
        let mut edits: Vec<Edit> = listed
            .map(|value| edit(value.as_table().ok_or("an edit is no table")?))
            .collect::<Result<_, _>>()
            .map_err(|error| format!("{name}: {error}"))?;
        if entry.contains_key("find") {
            edits.push(edit(entry).map_err(|error| format!("{name}: {error}"))?);
        }
        let detector = match group {
            _ if entry.contains_key("test") => {
                let [package, target, test] = ["package", "target", "test"].map(|key| text(entry, key));
                Detector::Tests { package: package?, target: target?, test: Some(test?) }
            }
            "core" | "scheduler" | "gateway" => Detector::Simulation,
            "operator" => {
                Detector::Tests { package: "gantry-operator".into(), target: "it".into(), test: None }
            }
            _ => return Err(format!("{name}: `package`, `target` and `test` are missing")),
        };
        Ok(Self { effect: text(entry, "effect")?, name, edits, detector })
    }
}

fn text(entry: &Table, key: &str) -> Result<String, String> {
    entry.get(key).and_then(Value::as_str).map(str::to_owned).ok_or_else(|| format!("`{key}` is missing"))
}

/// Reads the tables of a workspace.
pub(super) fn load(root: &Path) -> Result<Vec<Mutant>, Failure> {
    let mut mutants = Vec::new();
    let mut paths: Vec<_> = fs::read_dir(root.join("crates/sim/mutants"))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "toml"))
        .collect();
    paths.sort();
    for path in paths {
        let group = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let table: Table = fs::read_to_string(&path)?.parse()?;
        for entry in table.get("mutant").and_then(Value::as_array).into_iter().flatten() {
            let entry = entry.as_table().ok_or("a mutant is no table")?;
            mutants.push(Mutant::read(&group, entry).map_err(|e| format!("{}: {e}", path.display()))?);
        }
    }
    Ok(mutants)
}

/// The mutated text of each file with edits, by path within the workspace.
pub(super) fn mutated(root: &Path, mutants: &[Mutant]) -> Result<BTreeMap<String, String>, Failure> {
    let mut by_file: BTreeMap<&str, Vec<(&str, &Edit)>> = BTreeMap::new();
    for mutant in mutants {
        for edit in &mutant.edits {
            by_file.entry(&edit.file).or_default().push((&mutant.name, edit));
        }
    }
    let mut files = BTreeMap::new();
    let mut problems = Vec::new();
    for (file, edits) in by_file {
        let source = fs::read_to_string(root.join(file)).unwrap_or_default();
        let mut places: Vec<(Range<usize>, &str)> = Vec::new();
        for (name, edit) in edits {
            match locate(&source, &edit.find).as_slice() {
                [place] => places.push((place.clone(), &edit.replace)),
                found => problems.push(format!(
                    "{name}: {file} contains the text `{}` {} times instead of once",
                    edit.find.trim(),
                    found.len()
                )),
            }
        }
        places.sort_by_key(|(place, _)| place.start);
        if places.windows(2).any(|pair| matches!(pair, [a, b] if a.0.end > b.0.start)) {
            problems.push(format!("{file}: two edits overlap; put both branches into one of them"));
            continue;
        }
        let mut text = source;
        for (place, replace) in places.into_iter().rev() {
            text.replace_range(place, replace.trim_start_matches('\n'));
        }
        files.insert(file.to_owned(), text);
    }
    for mutant in mutants {
        let branch = format!("mutant::is(\"{}\")", mutant.name);
        if !mutants.iter().flat_map(|m| &m.edits).any(|edit| edit.replace.contains(&branch)) {
            problems.push(format!("{}: no edit contains {branch}", mutant.name));
        }
    }
    if problems.is_empty() {
        return Ok(files);
    }
    let remedy = "update `file`, `find` and `replace` in crates/sim/mutants to the current source";
    Err(format!("{}\n{remedy}", problems.join("\n")).into())
}

/// Occurrences of a text, in which any run of whitespace equals any other.
fn locate(source: &str, find: &str) -> Vec<Range<usize>> {
    let Some(first) = find.split_whitespace().next() else { return Vec::new() };
    let end = |start: usize| -> Option<usize> {
        let mut at = start;
        for (number, word) in find.split_whitespace().enumerate() {
            let rest = source.get(at..)?;
            let skipped = rest.len() - rest.trim_start().len();
            if (number > 0) != (skipped > 0) {
                return None;
            }
            at += skipped;
            at += source.get(at..)?.starts_with(word).then_some(word.len())?;
        }
        Some(at)
    };
    source.match_indices(first).filter_map(|(start, _)| Some(start..end(start)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutant_applies_to_the_current_source() {
        let root = crate::metadata::root();
        let mutants = load(&root).unwrap();
        assert!(mutants.len() > 90, "{}", mutants.len());
        if let Err(problems) = mutated(&root, &mutants) {
            panic!("{problems}");
        }
    }

    #[test]
    fn locate_ignores_line_breaks() {
        let source = "if a\n    && b {\n} if a && c";
        assert_eq!(locate(source, "if a && b"), vec![0..13]);
        assert_eq!(locate(source, "if a &&").len(), 2);
        assert!(locate(source, "if a&& b").is_empty());
    }
}
