//! Drawing as SVG.

#![allow(clippy::indexing_slicing, reason = "ends index tables of their number")]

use super::{
    Picture,
    layout::{Cell, layout},
};
use crate::pipeline::Graph;
use std::collections::BTreeMap;

const ROW: usize = 56;
const HEIGHT: usize = 32;
const GAP: usize = 56;
const MARGIN: usize = 16;
const CHARACTER: usize = 8;
/// Of a line that leads back, from the lower edge of a step.
const BELOW: usize = 10;
const SHIFTS: [isize; 3] = [0, 6, -6];

/// A self-contained SVG image with a title, boxes for the steps and curves; triggers are dashed.
pub fn svg(graph: &Graph) -> String {
    let picture = Picture::new(graph);
    let layout = layout(&picture, |_| true);
    let width_of = |cell: &Cell| {
        if cell.passes { 0 } else { (picture.name(cell.end).chars().count() + 2) * CHARACTER }
    };
    // The place of each end, and of the columns that a line passes.
    let mut ends = vec![(0, 0, 0); picture.names.len()];
    let mut rights = vec![0; picture.names.len()];
    let mut passes: Vec<Vec<(usize, usize, usize)>> = vec![Vec::new(); picture.names.len()];
    let mut x = MARGIN;
    let mut bottom = 0;
    for column in &layout.columns {
        let widest = column.iter().map(width_of).max().unwrap_or_default();
        for cell in column {
            let y = MARGIN + cell.row * ROW + HEIGHT / 2;
            bottom = bottom.max(y + HEIGHT / 2);
            if cell.passes {
                passes[cell.end].push((x, x + widest, y));
            } else {
                ends[cell.end] = (x, width_of(cell), y);
                rights[cell.end] = x + widest;
            }
        }
        x += widest + GAP;
    }
    let notes = bottom + GAP / 2;
    let height = notes + picture.notes.len() * 20;
    let longest = picture.notes.iter().map(|note| note.chars().count() * CHARACTER).max().unwrap_or_default();
    let width = (x - GAP).max(longest + MARGIN) + MARGIN;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"13\">\n<title>pipeline {}</title>\n\
         <defs><marker id=\"arrow\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerWidth=\"8\" markerHeight=\"8\" \
         orient=\"auto\"><path d=\"M0 0 8 4 0 8z\" fill=\"#555\"/></marker></defs>\n",
        escape(&graph.name)
    );
    let mut drawn: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    for edge in &picture.edges {
        let (from, to) = (ends[edge.from], ends[edge.to]);
        let (start, end) = (from.0 + from.1, to.0);
        // Lines between the same ends, such as an input and a trigger, lie beside each other.
        let beside = drawn.entry((edge.from, edge.to)).or_default();
        let shift = SHIFTS[*beside % SHIFTS.len()];
        *beside += 1;
        let (from_y, to_y) = (from.2.saturating_add_signed(shift), to.2.saturating_add_signed(shift));
        let mut path = format!("M{start} {from_y}");
        if end <= start {
            // Between the lower row and the next one, where no step is.
            let below = (from_y.max(to_y) + HEIGHT / 2 + BELOW).saturating_add_signed(shift);
            let (right, left) = (start + GAP / 2, end.saturating_sub(GAP / 2));
            path.push_str(&format!(
                " C{right} {from_y} {right} {below} {start} {below} H{end} C{left} {below} {left} {to_y} {end} {to_y}"
            ));
        } else {
            // Bends where the column ends: not across a wider step of it.
            let (mut last, mut y) = (rights[edge.from], from_y);
            if last > start {
                path.push_str(&format!(" H{last}"));
            }
            for &(left, right, row) in passes[edge.from].iter().filter(|p| p.0 >= start && p.1 <= end) {
                let row = row.saturating_add_signed(shift);
                path.push_str(&format!("{} H{right}", curve(last, y, left, row)));
                (last, y) = (right, row);
            }
            path.push_str(&curve(last, y, end, to_y));
        }
        let dash = if edge.trigger { " stroke-dasharray=\"4 3\"" } else { "" };
        svg.push_str(&format!(
            "<path d=\"{path}\" fill=\"none\" stroke=\"#555\"{dash} marker-end=\"url(#arrow)\"><title>{}</title></path>\n",
            escape(&picture.sources(edge).join(", "))
        ));
    }
    for (end, name) in picture.names.iter().enumerate() {
        let (left, width, y) = ends[end];
        let is_step = (1..=usize::from(graph.step_count)).contains(&end);
        let (round, fill) = if is_step { (4, "#eef4ff") } else { (HEIGHT / 2, "#f4f4f4") };
        svg.push_str(&format!(
            "<rect x=\"{left}\" y=\"{}\" width=\"{width}\" height=\"{HEIGHT}\" rx=\"{round}\" fill=\"{fill}\" \
             stroke=\"#555\"/>\n<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
            y - HEIGHT / 2,
            left + width / 2,
            y + 4,
            escape(name)
        ));
    }
    for (line, note) in picture.notes.iter().enumerate() {
        let y = notes + line * 20;
        svg.push_str(&format!("<text x=\"{MARGIN}\" y=\"{y}\" fill=\"#555\">{}</text>\n", escape(note)));
    }
    svg.push_str("</svg>\n");
    svg
}

/// A curve that leaves and arrives horizontally.
fn curve(x: usize, y: usize, to_x: usize, to_y: usize) -> String {
    format!(" C{} {y} {} {to_y} {to_x} {to_y}", x + GAP / 2, to_x.saturating_sub(GAP / 2))
}

fn escape(text: &str) -> String {
    let escape = |c: char| match c {
        '&' => "&amp;".to_owned(),
        '<' => "&lt;".to_owned(),
        '>' => "&gt;".to_owned(),
        '"' => "&quot;".to_owned(),
        c if c.is_control() => " ".to_owned(),
        c => c.to_string(),
    };
    text.chars().map(escape).collect()
}
