//! A command line as words: blanks separate, quotes hold together, a backslash takes the next letter as it is. No
//! shell: nothing is expanded.

/// The words of a text, or what is wrong with it.
pub(super) fn split(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote: Option<char> = None;
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match (letter, quote) {
            ('\\', None | Some('"')) => match letters.next() {
                Some(next) => word.get_or_insert_default().push(next),
                None => return Err("ends with a backslash".into()),
            },
            (_, Some(open)) if letter == open => quote = None,
            ('"' | '\'', None) => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (blank, None) if blank.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(letter),
        }
    }
    if let Some(open) = quote {
        return Err(format!("has a {open} that is not closed"));
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn words_and_quotes() {
        for (text, expected) in [
            ("mlserver start {models_dir}", &["mlserver", "start", "{models_dir}"][..]),
            ("  a\n  b ", &["a", "b"]),
            (r#"sh -c "echo 'hi there'""#, &["sh", "-c", "echo 'hi there'"]),
            (r"a\ b '' c\\d", &["a b", "", r"c\d"]),
            ("--x='1 2'", &["--x=1 2"]),
            ("", &[]),
        ] {
            assert_eq!(split(text).unwrap(), expected, "{text}");
        }
        assert_eq!(split("a 'b").unwrap_err(), "has a ' that is not closed");
        assert_eq!(split("a\\").unwrap_err(), "ends with a backslash");
    }

    proptest! {
        #[test]
        fn quoted_words_come_back(words in prop::collection::vec("[^']*", 0..5)) {
            let text: Vec<String> = words.iter().map(|w| format!("'{w}'")).collect();
            prop_assert_eq!(split(&text.join(" ")).unwrap(), words);
        }
    }
}
