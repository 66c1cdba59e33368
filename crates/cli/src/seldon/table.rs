//! Columns aligned with tabs at multiples of eight.

/// A table with underlined headings.
#[derive(Debug)]
pub(super) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(headings: &[&str]) -> Self {
        let lines = headings.iter().map(|h| "-".repeat(h.len())).collect();
        Self { rows: vec![headings.iter().map(|h| (*h).to_owned()).collect(), lines] }
    }

    pub(super) fn row<const N: usize>(&mut self, cells: [&str; N]) {
        // Newlines and tabs would break the layout.
        let plain = |c: &&str| c.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        self.rows.push(cells.iter().map(plain).collect());
    }

    pub(super) fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let wide = |column: usize| {
            let widest =
                self.rows.iter().filter_map(|r| r.get(column)).map(|c| c.chars().count()).max().unwrap_or(0);
            (widest + 1).div_ceil(8) * 8
        };
        let widths: Vec<usize> = (0..columns).map(wide).collect();
        let mut text = String::new();
        for row in &self.rows {
            for (i, (cell, width)) in row.iter().zip(&widths).enumerate() {
                text += cell;
                if i + 1 < row.len() {
                    text += &"\t".repeat(width.saturating_sub(cell.chars().count()).div_ceil(8).max(1));
                }
            }
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn render_aligns_columns_at_tab_stops() {
        let mut table = Table::new(&["model", "state", "reason"]);
        table.row(["tfsimple1", "ModelAvailable", ""]);
        table.row(["iris", "ModelProgressing", "a\tb"]);
        assert_eq!(
            table.render(),
            "model\t\tstate\t\t\treason\n-----\t\t-----\t\t\t------\n\
             tfsimple1\tModelAvailable\t\t\niris\t\tModelProgressing\ta b\n"
        );
        let mut servers = Table::new(&["server", "replicas", "models"]);
        servers.row(["mlserver", "1", "2"]);
        assert_eq!(
            servers.render(),
            "server\t\treplicas\tmodels\n------\t\t--------\t------\nmlserver\t1\t\t2\n"
        );
    }
}
