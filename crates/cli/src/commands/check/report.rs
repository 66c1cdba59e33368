//! One line per step: name, result, hint.

use crate::output::{Style, Tone, emit_line, sanitize};

/// Column of the result.
const RESULT_COLUMN: usize = 46;
/// Messages of the cluster are truncated.
const MAX_MESSAGE_CHARS: usize = 400;

#[derive(Debug)]
pub(super) struct Report {
    lines: Vec<String>,
    failures: usize,
    style: Style,
    print_lines: bool,
}

impl Report {
    /// Prints each line immediately: some steps take seconds.
    pub(super) fn printing() -> Self {
        Self { lines: Vec::new(), failures: 0, style: Style::stdout(), print_lines: true }
    }

    #[cfg(test)]
    pub(super) fn quiet() -> Self {
        Self { lines: Vec::new(), failures: 0, style: Style::plain(), print_lines: false }
    }

    pub(super) const fn failures(&self) -> usize {
        self.failures
    }

    #[cfg(test)]
    pub(super) fn text(&self) -> String {
        self.lines.join("\n")
    }

    pub(super) fn ok(&mut self, step: &str, detail: &str) {
        self.line(step, "ok", Tone::Good, detail);
    }

    /// Informational; not a failure.
    pub(super) fn note(&mut self, step: &str, state: &str, hint: &str) {
        self.line(step, state, Tone::Busy, hint);
    }

    pub(super) fn fail(&mut self, step: &str, state: &str, hint: &str) {
        self.failures += 1;
        self.line(step, state, Tone::Bad, hint);
    }

    /// Free text, such as a migration step.
    pub(super) fn print(&mut self, text: &str) {
        self.add(text.to_owned());
    }

    fn line(&mut self, step: &str, state: &str, tone: Tone, hint: &str) {
        // Leading spaces mark a detail of the line above.
        let step = format!("{}{}", " ".repeat(step.len() - step.trim_start().len()), one_line(step));
        let gap = " ".repeat(RESULT_COLUMN.saturating_sub(step.chars().count() + 2).max(1));
        let mut line = format!("  {step}{gap}{}", self.style.paint(&one_line(state), tone));
        if !hint.is_empty() {
            line += "   ";
            line += &self.style.paint(&one_line(hint), Tone::Faint);
        }
        self.add(line);
    }

    fn add(&mut self, line: String) {
        if self.print_lines {
            // A closed pipe does not change the exit code.
            let _ = emit_line(&line);
        }
        self.lines.push(line);
    }
}

fn one_line(text: &str) -> String {
    let mut short: String =
        sanitize(text).replace('\n', " ").trim().chars().take(MAX_MESSAGE_CHARS).collect();
    if text.trim().chars().count() > MAX_MESSAGE_CHARS {
        short.push('…');
    }
    short
}
