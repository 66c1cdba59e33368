//! Colour, on a terminal and without `NO_COLOR` only.

use std::io::IsTerminal as _;

/// The meaning of a text; determines its colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tone {
    #[default]
    Plain,
    Heading,
    Good,
    Busy,
    Bad,
    Faint,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    coloured: bool,
}

impl Style {
    pub(crate) fn stdout() -> Self {
        Self::choose(
            std::io::stdout().is_terminal(),
            std::env::var("NO_COLOR").ok().as_deref(),
            std::env::var("TERM").ok().as_deref(),
        )
    }

    #[cfg(test)]
    pub(crate) const fn plain() -> Self {
        Self { coloured: false }
    }

    fn choose(terminal: bool, no_color: Option<&str>, term: Option<&str>) -> Self {
        let disabled = no_color.is_some_and(|v| !v.is_empty()) || term == Some("dumb");
        Self { coloured: terminal && !disabled }
    }

    pub(crate) fn paint(self, text: &str, tone: Tone) -> String {
        let code = match tone {
            _ if !self.coloured || text.is_empty() => return text.to_owned(),
            Tone::Plain => return text.to_owned(),
            Tone::Heading => "1",
            Tone::Good => "32",
            Tone::Busy => "33",
            Tone::Bad => "31",
            Tone::Faint => "2",
        };
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    }
}

/// Whether stdout is a terminal that can be redrawn.
pub(crate) fn is_terminal() -> bool {
    std::io::stdout().is_terminal() && std::env::var("TERM").is_ok_and(|t| t != "dumb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_requires_a_terminal_without_no_color() {
        for (terminal, no_color, term, coloured) in [
            (true, None, Some("xterm"), true),
            (true, None, None, true),
            (true, Some(""), Some("xterm"), true),
            (true, Some("1"), Some("xterm"), false),
            (true, None, Some("dumb"), false),
            (false, None, Some("xterm"), false),
        ] {
            let painted = Style::choose(terminal, no_color, term).paint("x", Tone::Good);
            assert_eq!(painted != "x", coloured, "{terminal} {no_color:?} {term:?}");
        }
    }
}
