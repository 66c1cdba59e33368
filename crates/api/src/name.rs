//! Object name validation.

use crate::validation::CelRule;

/// As in Kubernetes.
const MAX_LENGTH: usize = 253;

/// Why a name is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidName(String);

impl std::fmt::Display for InvalidName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidName {}

/// Checks that a name is made of `a-z`, `0-9` and `-`, and starts and ends with a letter or a digit.
///
/// Dots and underscores are rejected: `model.pipeline` and `model_1` have a meaning in routes.
pub fn check_name(name: &str) -> Result<(), InvalidName> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    if name.is_empty() {
        return Err(InvalidName("is empty: give the object a name".into()));
    }
    if name.len() > MAX_LENGTH {
        return Err(InvalidName(format!("has {} characters, at most {MAX_LENGTH} are allowed", name.len())));
    }
    let shown = name.escape_debug();
    if let Some(bad) = name.chars().find(|&c| !allowed(c) && c != '-') {
        let hint = suggest_name(name).map(|p| format!(", for example \"{p}\"")).unwrap_or_default();
        return Err(InvalidName(format!(
            "\"{shown}\" contains {bad:?}: use lower-case letters, digits and '-'{hint}"
        )));
    }
    if name.starts_with('-') || name.ends_with('-') {
        return Err(InvalidName(format!("\"{shown}\" must start and end with a letter or a digit")));
    }
    Ok(())
}

/// [`check_name`] as CEL. Only names with a dot reach it: the API server has rejected all other invalid names.
pub(crate) const NAME_RULE: CelRule = CelRule {
    at: "",
    field: "metadata.name",
    rule: "self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
    message: "contains a '.': use lower-case letters, digits and '-'",
    values: &[],
    ratchet: "oldSelf.hasValue()",
};

/// Checks the name of an object that is not part of any route: a DNS subdomain, so dots are allowed.
pub(crate) fn check_object_name(name: &str) -> Result<(), InvalidName> {
    if name.len() > MAX_LENGTH || !name.contains('.') {
        return check_name(name);
    }
    if name.split('.').any(str::is_empty) {
        return Err(InvalidName(format!(
            "\"{}\" has an empty label: remove the extra '.'",
            name.escape_debug()
        )));
    }
    name.split('.').try_for_each(check_name)
}

/// The closest valid name.
pub(crate) fn suggest_name(name: &str) -> Option<String> {
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
    fn check_name_accepts_dns_labels_only() {
        for good in ["a", "iris", "iris-2", "0", "a--b", &"a".repeat(253)] {
            assert_eq!(check_name(good), Ok(()), "{good}");
        }
        for (bad, expected) in [
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
            assert!(problem.contains(expected), "{bad:?}: {problem}");
        }
    }

    #[test]
    fn check_object_name_accepts_dns_subdomains() {
        for good in ["a", "mlserver-1.7", "a.b.c"] {
            assert_eq!(check_object_name(good), Ok(()), "{good}");
        }
        for bad in ["", ".", "a.", ".a", "a..b", "a.B", "a.-b", "a_b", &"a.".repeat(127)] {
            assert!(check_object_name(bad).is_err(), "{bad}");
        }
    }

    proptest::proptest! {
        #[test]
        fn suggested_name_is_valid(name in ".{1,40}") {
            if let Some(proposed) = suggest_name(&name) {
                proptest::prop_assert_eq!(check_name(&proposed), Ok(()));
            }
        }
    }
}
