//! "Did you mean …?" suggestions.

/// Longer words are never compared: they are not typos of each other, and this bounds the work.
const MAX_LENGTH: usize = 64;

/// The candidate closest to `word`, ignoring case, if at most a third of the letters differ.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let is_short = |text: &str| text.chars().count() <= MAX_LENGTH;
    if !is_short(word) {
        return None;
    }
    let lower = word.to_lowercase();
    let limit = (word.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .filter(|candidate| is_short(candidate))
        .map(|candidate| (strsim::osa_distance(&lower, &candidate.to_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_finds_typos_and_ignores_unrelated_words() {
        let fields = ["storageUri", "secretName", "server", "replicas", "minReplicas"];
        for (word, expected) in [
            ("storagUri", Some("storageUri")),
            ("storageURI", Some("storageUri")),
            ("sotrageUri", Some("storageUri")),
            ("replica", Some("replicas")),
            ("minreplicas", Some("minReplicas")),
            ("banana", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, fields), expected, "{word}");
        }
    }
}
