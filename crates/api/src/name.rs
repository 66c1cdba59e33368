//! The rules for names.

use crate::rules::Text;

/// Longest name: what Kubernetes allows for an object's name.
const LONGEST: usize = 253;

/// Why a name is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameProblem(String);

impl std::fmt::Display for NameProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NameProblem {}

/// Checks that a name is made of `a-z`, `0-9` and `-`, and starts and ends with a letter or a digit.
///
/// Dots and underscores are refused because `model.pipeline` and `model_1` mean something in routes.
pub fn check_name(name: &str) -> Result<(), NameProblem> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    if name.is_empty() {
        return Err(NameProblem("is empty: give the object a name".into()));
    }
    if name.len() > LONGEST {
        return Err(NameProblem(format!("has {} characters, at most {LONGEST} are allowed", name.len())));
    }
    let shown = name.escape_debug();
    if let Some(bad) = name.chars().find(|&c| !allowed(c) && c != '-') {
        let hint = proposal(name).map(|p| format!(", for example \"{p}\"")).unwrap_or_default();
        return Err(NameProblem(format!(
            "\"{shown}\" contains {bad:?}: use lower-case letters, digits and '-'{hint}"
        )));
    }
    if name.starts_with('-') || name.ends_with('-') {
        return Err(NameProblem(format!("\"{shown}\" must start and end with a letter or a digit")));
    }
    Ok(())
}

/// [`check_name`] as the API server has it, where a name has at most 253 characters in any case. Only a dot gets as far
/// as this: everything else is no name in Kubernetes.
pub(crate) const OF_OBJECT: Text = Text {
    at: "",
    field: "metadata.name",
    cel: "self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
    says: "contains a '.': use lower-case letters, digits and '-'",
    values: &[],
    excuse: "oldSelf.hasValue()",
};

/// Checks the name of an object that is no part of any route: dots are allowed between labels, as Kubernetes allows
/// them.
pub(crate) fn check_object_name(name: &str) -> Result<(), NameProblem> {
    if name.len() > LONGEST || !name.contains('.') {
        return check_name(name);
    }
    if name.split('.').any(str::is_empty) {
        return Err(NameProblem(format!("\"{}\" has a '.' without a word beside it", name.escape_debug())));
    }
    name.split('.').try_for_each(check_name)
}

/// The nearest name that the rule allows.
fn proposal(name: &str) -> Option<String> {
    if name.len() > 64 {
        return None;
    }
    let replaced: String = name
        .chars()
        .map(|c| {
            let c = c.to_ascii_lowercase();
            if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' }
        })
        .collect();
    let trimmed = replaced.trim_matches('-');
    (!trimmed.is_empty()).then(|| trimmed.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for good in ["a", "iris", "iris-2", "0", "a--b", &"a".repeat(253)] {
            assert_eq!(check_name(good), Ok(()), "{good}");
        }
        for (bad, says) in [
            ("", "is empty"),
            ("Iris", "for example \"iris\""),
            ("id1_node", "for example \"id1-node\""),
            ("a.b", "contains '.'"),
            ("../x", "contains '.'"),
            ("a/b", "contains '/'"),
            ("%2e%2e", "contains '%'"),
            ("-a", "start and end"),
            ("a-", "start and end"),
            ("iris\r\nx-evil: 1", "contains '\\r'"),
            ("ірис", "contains 'і'"),
            (&"a".repeat(254), "254 characters"),
        ] {
            let problem = check_name(bad).unwrap_err().to_string();
            assert!(problem.contains(says), "{bad:?} said: {problem}");
        }
    }

    #[test]
    fn names_with_dots() {
        for good in ["a", "mlserver-1.7", "a.b.c"] {
            assert_eq!(check_object_name(good), Ok(()), "{good}");
        }
        for bad in ["", ".", "a.", ".a", "a..b", "a.B", "a.-b", "a_b", &"a.".repeat(127)] {
            assert!(check_object_name(bad).is_err(), "{bad}");
        }
    }

    proptest::proptest! {
        #[test]
        fn a_proposed_name_is_always_a_good_one(name in ".{1,40}") {
            if let Some(proposed) = proposal(&name) {
                proptest::prop_assert_eq!(check_name(&proposed), Ok(()));
            }
        }
    }
}
