//! Columns that line up, however wide their texts are.

use super::{
    harmless,
    style::{Style, Tone},
};

const GAP: usize = 3;

/// Rows of cells under headings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<(String, Tone)>>,
    widths: Vec<usize>,
}

impl Table {
    /// A table with headings.
    pub(crate) fn new(headings: &[&str]) -> Self {
        let mut table = Self::default();
        table.row(headings.iter().map(|h| ((*h).to_owned(), Tone::Heading)).collect());
        table
    }

    /// A table without headings.
    pub(crate) fn bare() -> Self {
        Self::default()
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: Vec<(String, Tone)>) {
        // One row is one line, whatever stands in a cell.
        let line = |(text, tone): (String, Tone)| (harmless(&text).replace('\n', " "), tone);
        let cells: Vec<(String, Tone)> = cells.into_iter().map(line).collect();
        if self.widths.len() < cells.len() {
            self.widths.resize(cells.len(), 0);
        }
        for (width, (text, _)) in self.widths.iter_mut().zip(&cells) {
            *width = (*width).max(columns(text));
        }
        self.rows.push(cells);
    }

    /// Makes columns at least as wide as those of another table, so that both line up.
    pub(crate) fn align(&mut self, other: &Self) {
        for (width, wide) in self.widths.iter_mut().zip(&other.widths) {
            *width = (*width).max(*wide);
        }
    }

    /// The table as lines, without blanks at their ends.
    pub(crate) fn render(&self, style: Style) -> String {
        let mut text = String::new();
        for row in &self.rows {
            let last = row.iter().rposition(|(cell, _)| !cell.is_empty());
            for (i, ((cell, tone), width)) in row.iter().zip(&self.widths).enumerate() {
                let Some(last) = last.filter(|l| i <= *l) else { break };
                text += &style.paint(cell, *tone);
                if i < last {
                    text += &" ".repeat(width.saturating_sub(columns(cell)) + GAP);
                }
            }
            text.push('\n');
        }
        text
    }
}

/// How many columns a text takes. Names and states are ASCII; reasons may hold anything and stand last.
fn columns(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_end_where_they_end() {
        let mut table = Table::new(&["NAME", "READY", "WHY"]);
        let plain = |cells: &[&str]| cells.iter().map(|c| ((*c).to_owned(), Tone::Plain)).collect();
        table.row(plain(&["a-long-name", "1/1", ""]));
        table.row(plain(&["b", "–", "größer als frei"]));
        insta::assert_snapshot!(table.render(Style::plain()), @r"
        NAME          READY   WHY
        a-long-name   1/1
        b             –       größer als frei
        ");
    }
}
