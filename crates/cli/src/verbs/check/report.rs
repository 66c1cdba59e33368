//! One line a step: what was looked at, how it is, and what to do about it.

use crate::output::{Style, Tone, emit_line, harmless};

/// Where the answers begin.
const COLUMN: usize = 46;
/// Of a message that a cluster wrote, no more than this.
const LONGEST: usize = 400;

/// What was found so far.
#[derive(Debug)]
pub(super) struct Report {
    lines: Vec<String>,
    wrongs: usize,
    style: Style,
    prints: bool,
}

impl Report {
    /// Prints each line as it is found: some take a while.
    pub(super) fn printing() -> Self {
        Self { lines: Vec::new(), wrongs: 0, style: Style::stdout(), prints: true }
    }

    /// Keeps the lines.
    #[cfg(test)]
    pub(super) fn quiet() -> Self {
        Self { lines: Vec::new(), wrongs: 0, style: Style::plain(), prints: false }
    }

    /// How many steps are wrong.
    pub(super) const fn wrongs(&self) -> usize {
        self.wrongs
    }

    /// All lines.
    #[cfg(test)]
    pub(super) fn text(&self) -> String {
        self.lines.join("\n")
    }

    /// As it should be.
    pub(super) fn ok(&mut self, what: &str, detail: &str) {
        self.line(what, "ok", Tone::Good, detail);
    }

    /// Neither right nor wrong.
    pub(super) fn note(&mut self, what: &str, state: &str, hint: &str) {
        self.line(what, state, Tone::Busy, hint);
    }

    /// Wrong, and what to do.
    pub(super) fn wrong(&mut self, what: &str, state: &str, hint: &str) {
        self.wrongs += 1;
        self.line(what, state, Tone::Bad, hint);
    }

    /// Something to read, such as a step of a recipe.
    pub(super) fn say(&mut self, text: &str) {
        self.add(text.to_owned());
    }

    fn line(&mut self, what: &str, state: &str, tone: Tone, hint: &str) {
        // Blanks in front of it make it a part of the line before.
        let what = format!("{}{}", " ".repeat(what.len() - what.trim_start().len()), one_line(what));
        let gap = " ".repeat(COLUMN.saturating_sub(what.chars().count() + 2).max(1));
        let mut line = format!("  {what}{gap}{}", self.style.paint(&one_line(state), tone));
        if !hint.is_empty() {
            line += "   ";
            line += &self.style.paint(&one_line(hint), Tone::Faint);
        }
        self.add(line);
    }

    fn add(&mut self, line: String) {
        if self.prints {
            // Whoever reads may have seen enough; the exit code still says how it is.
            let _ = emit_line(&line);
        }
        self.lines.push(line);
    }
}

/// What a cluster says may be long and have many lines.
fn one_line(text: &str) -> String {
    let mut short: String = harmless(text).replace('\n', " ").trim().chars().take(LONGEST).collect();
    if text.trim().chars().count() > LONGEST {
        short.push('…');
    }
    short
}
