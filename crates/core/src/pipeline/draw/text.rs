//! Drawing for a terminal.

#![allow(clippy::indexing_slicing, reason = "the canvas has the size of the layout")]

use super::{
    Picture,
    layout::{Cell, Layout, layout},
};
use crate::pipeline::Graph;

const MAX_WIDTH: usize = 160;
const MAX_ROWS: usize = 40;

/// Lines for inputs, from left to right, and notes below, such as for triggers. Where lines would be ambiguous or the
/// drawing too large, one line per step with its sources.
pub fn text(graph: &Graph) -> String {
    let picture = Picture::new(graph);
    let layout = layout(&picture, |edge| !edge.trigger);
    let mut lines = draw(&picture, &layout).unwrap_or_else(|| list(&picture));
    for (from, to) in &layout.back {
        lines.push(format!("cycle: {} ─▶ {}", picture.name(*from), picture.name(*to)));
    }
    lines.extend(picture.notes);
    lines.iter().fold(String::new(), |text, line| text + "  " + line.trim_end() + "\n")
}

fn list(picture: &Picture<'_>) -> Vec<String> {
    let ends = 1..picture.names.len();
    ends.map(|end| {
        let inputs = picture.edges.iter().filter(|edge| edge.to == end && !edge.trigger);
        let names: Vec<_> = inputs.map(|edge| picture.origin(edge)).collect();
        format!("{} ─▶ {}", names.join(", "), picture.name(end))
    })
    .collect()
}

/// Lines between two columns that belong together: each of these sources leads to each of these targets.
struct Net {
    sources: Vec<usize>,
    targets: Vec<usize>,
}

impl Net {
    fn is_straight(&self) -> bool {
        matches!((&*self.sources, &*self.targets), ([source], [target]) if source == target)
    }

    fn rows(&self) -> impl Iterator<Item = usize> {
        self.sources.iter().chain(&self.targets).copied()
    }
}

fn draw(picture: &Picture<'_>, layout: &Layout) -> Option<Vec<String>> {
    let rows = layout.columns.iter().flatten().map(|cell| cell.row + 1).max()?;
    let mut canvas = Canvas { rows: vec![Vec::new(); rows] };
    if rows > MAX_ROWS {
        return None;
    }
    for (index, column) in layout.columns.iter().enumerate() {
        canvas.column(picture, column);
        if let Some(next) = layout.columns.get(index + 1) {
            canvas.channel(column, next)?;
        }
        if canvas.width() > MAX_WIDTH {
            return None;
        }
    }
    Some(canvas.rows.into_iter().map(String::from_iter).collect())
}

struct Canvas {
    rows: Vec<Vec<char>>,
}

impl Canvas {
    fn width(&self) -> usize {
        self.rows.iter().map(Vec::len).max().unwrap_or_default()
    }

    fn pad(&mut self, width: usize) {
        for row in &mut self.rows {
            row.resize(width, ' ');
        }
    }

    fn column(&mut self, picture: &Picture<'_>, column: &[Cell]) {
        let start = self.width();
        let name = |cell: &Cell| if cell.passes { "" } else { picture.name(cell.end) };
        let longest = column.iter().map(|cell| name(cell).chars().count()).max().unwrap_or_default();
        self.pad(start);
        for cell in column {
            let row = &mut self.rows[cell.row];
            row.extend(name(cell).chars());
            if !cell.targets.is_empty() {
                row.extend(if cell.passes { "" } else { " " }.chars());
                row.resize(start + longest + 1, '─');
            }
        }
        self.pad(start + longest + 1);
    }

    /// Draws the lines between two columns, or nothing if they would be ambiguous.
    fn channel(&mut self, from: &[Cell], to: &[Cell]) -> Option<()> {
        let nets = nets(from, to)?;
        let lanes: Vec<&Net> = lanes(nets.iter().filter(|net| !net.is_straight()).collect())?;
        let start = self.width();
        // One lane in every other place, after and before a line.
        let width = 2 * lanes.len() + 1;
        self.pad(start + width);
        let lane_of = |lane: usize| start + 2 * lane + 1;
        for net in nets.iter().filter(|net| net.is_straight()) {
            for row in &net.sources {
                self.rows[*row][start..].fill('─');
            }
        }
        for (lane, net) in lanes.iter().enumerate() {
            for &row in &net.sources {
                self.rows[row][start..lane_of(lane)].fill('─');
            }
            for &row in &net.targets {
                self.rows[row][lane_of(lane)..].fill('─');
            }
        }
        for (lane, net) in lanes.iter().enumerate() {
            let (top, bottom) = (net.rows().min()?, net.rows().max()?);
            for row in top..=bottom {
                let (left, right) = (net.sources.contains(&row), net.targets.contains(&row));
                self.rows[row][lane_of(lane)] = corner((left, right), (row > top, row < bottom));
            }
        }
        for cell in to {
            self.rows[cell.row].extend(if cell.passes { "───" } else { "─▶ " }.chars().skip(1));
        }
        Some(())
    }
}

/// Groups lines by their targets. None if two groups share a target.
fn nets(from: &[Cell], to: &[Cell]) -> Option<Vec<Net>> {
    let mut nets: Vec<Net> = Vec::new();
    let mut taken = vec![false; to.len()];
    for cell in from.iter().filter(|cell| !cell.targets.is_empty()) {
        let targets: Vec<_> = cell.targets.iter().map(|&target| to[target].row).collect();
        if let Some(net) = nets.iter_mut().find(|net| net.targets == targets) {
            net.sources.push(cell.row);
            continue;
        }
        for &target in &cell.targets {
            if std::mem::replace(&mut taken[target], true) {
                return None;
            }
        }
        nets.push(Net { sources: vec![cell.row], targets });
    }
    Some(nets)
}

/// Orders nets from left to right, so that the line to a target starts after the line from a source in the same row ends.
fn lanes(mut nets: Vec<&Net>) -> Option<Vec<&Net>> {
    let mut ordered: Vec<&Net> = Vec::new();
    while !nets.is_empty() {
        let blocks = |other: &Net, net: &Net| other.sources.iter().any(|row| net.targets.contains(row));
        let free = |net: &&Net| !nets.iter().any(|other| !std::ptr::eq(*other, *net) && blocks(other, net));
        let next = nets.iter().position(free)?;
        ordered.push(nets.remove(next));
    }
    Some(ordered)
}

fn corner((left, right): (bool, bool), (up, down): (bool, bool)) -> char {
    match (left, right, up, down) {
        (true, true, true, true) => '┼',
        (true, true, true, false) => '┴',
        (true, true, false, true) => '┬',
        (true, false, true, true) => '┤',
        (false, true, true, true) => '├',
        (true, false, true, false) => '┘',
        (true, false, false, true) => '┐',
        (false, true, true, false) => '└',
        (false, true, false, true) => '┌',
        // Another line passes behind.
        (false, false, ..) => '│',
        _ => '─',
    }
}
