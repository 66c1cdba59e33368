//! Columns and rows of a drawing.

#![allow(clippy::indexing_slicing, reason = "ends and columns index tables of their number")]

use super::{Edge, INPUTS, Picture};

/// An end or a line that passes a column.
pub(super) struct Cell {
    /// The end, or the start of the line.
    pub(super) end: usize,
    pub(super) passes: bool,
    pub(super) row: usize,
    /// Cells of the next column.
    pub(super) targets: Vec<usize>,
}

pub(super) struct Layout {
    pub(super) columns: Vec<Vec<Cell>>,
    /// Lines that lead back to an earlier column.
    pub(super) back: Vec<(usize, usize)>,
}

/// Places the ends of a picture; only lines that are `drawn` count.
pub(super) fn layout(picture: &Picture<'_>, drawn: fn(&Edge<'_>) -> bool) -> Layout {
    let count = picture.names.len();
    let drawn = picture.edges.iter().filter(|edge| drawn(edge));
    let mut edges: Vec<_> = drawn.map(|edge| (edge.from, edge.to)).collect();
    edges.sort_unstable();
    edges.dedup();
    let (column, back) = columns(count, &edges);
    edges.retain(|edge| back.binary_search(edge).is_err());

    let width = column.iter().max().map_or(0, |last| last + 1);
    let mut columns: Vec<Vec<Cell>> = (0..width).map(|_| Vec::new()).collect();
    let cell = |end, passes| Cell { end, passes, row: 0, targets: Vec::new() };
    for end in 0..count {
        columns[column[end]].push(cell(end, false));
        let last = edges.iter().filter(|edge| edge.0 == end).map(|edge| column[edge.1]).max();
        for passed in columns.iter_mut().take(last.unwrap_or_default()).skip(column[end] + 1) {
            passed.push(cell(end, true));
        }
    }
    for next in 1..width {
        let (before, after) = columns.split_at_mut(next);
        let (before, after) = (&mut before[next - 1], &mut after[0]);
        let leads = |from: &Cell, to: &Cell| {
            if to.passes { from.end == to.end } else { edges.binary_search(&(from.end, to.end)).is_ok() }
        };
        for to in after.iter_mut() {
            to.row =
                before.iter().filter(|from| leads(from, to)).map(|from| from.row).min().unwrap_or_default();
        }
        after.sort_by_key(|cell| (cell.row, cell.passes, cell.end));
        let mut free = 0;
        for to in after.iter_mut() {
            to.row = to.row.max(free);
            free = to.row + 1;
        }
        for from in before.iter_mut() {
            from.targets = (0..after.len()).filter(|&to| leads(from, &after[to])).collect();
        }
    }
    Layout { columns, back }
}

/// The column of each end: one more than the last end it reads. Where all ends that are left wait for each other, the
/// first of the definition comes next, and what it still waits for leads back.
fn columns(count: usize, edges: &[(usize, usize)]) -> (Vec<usize>, Vec<(usize, usize)>) {
    let mut sources: Vec<Vec<usize>> = vec![Vec::new(); count];
    for &(from, to) in edges {
        sources[to].push(from);
    }
    let mut column: Vec<Option<usize>> = vec![None; count];
    let mut back = Vec::new();
    for _ in 0..count {
        let open = || (0..count).filter(|&end| column[end].is_none());
        let is_free = |&end: &usize| sources[end].iter().all(|&source| column[source].is_some());
        let is_near = |&end: &usize| sources[end].iter().any(|&source| column[source].is_some());
        let next = open().find(is_free).or_else(|| open().find(is_near)).or_else(|| open().next());
        let Some(next) = next else { break };
        let known = sources[next].iter().filter_map(|&source| column[source]).max();
        back.extend(
            sources[next].iter().filter(|&&source| column[source].is_none()).map(|&source| (source, next)),
        );
        // Only the inputs of the pipeline are in the first column.
        column[next] = Some(known.map_or(usize::from(next != INPUTS), |known| known + 1));
    }
    back.sort_unstable();
    (column.into_iter().map(Option::unwrap_or_default).collect(), back)
}
