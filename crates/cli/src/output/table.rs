//! Tables with aligned columns.

use super::{
    sanitize,
    style::{Style, Tone},
};

const GAP: usize = 3;

#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<(String, Tone)>>,
    widths: Vec<usize>,
}

impl Table {
    pub(crate) fn new(headings: &[&str]) -> Self {
        let mut table = Self::default();
        table.row(headings.iter().map(|h| ((*h).to_owned(), Tone::Heading)).collect());
        table
    }

    pub(crate) fn without_headings() -> Self {
        Self::default()
    }

    pub(crate) fn row(&mut self, cells: Vec<(String, Tone)>) {
        // One row is one line, whatever a cell contains.
        let line = |(text, tone): (String, Tone)| (sanitize(&text).replace('\n', " "), tone);
        let cells: Vec<(String, Tone)> = cells.into_iter().map(line).collect();
        if self.widths.len() < cells.len() {
            self.widths.resize(cells.len(), 0);
        }
        for (width, (text, _)) in self.widths.iter_mut().zip(&cells) {
            *width = (*width).max(columns(text));
        }
        self.rows.push(cells);
    }

    /// Widens columns to those of another table.
    pub(crate) fn align(&mut self, other: &Self) {
        for (width, wide) in self.widths.iter_mut().zip(&other.widths) {
            *width = (*width).max(*wide);
        }
    }

    /// Lines without trailing spaces.
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

/// Display width. Characters are enough: names and states are ASCII, and free text is in the last column.
fn columns(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn render_aligns_columns_without_trailing_spaces() {
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
