//! Order of steps and search for cycles, in linear time and without recursion.

#![allow(clippy::indexing_slicing, reason = "edges connect steps below `steps`, the length of all tables")]

/// An edge between two steps: the second reads the first.
pub(super) type Edge = (usize, usize);

/// Steps in topological order. Steps on a cycle or after one are left out.
pub(super) fn order(steps: usize, edges: &[Edge]) -> Vec<usize> {
    let mut unread = vec![0_usize; steps];
    let mut end = vec![0_usize; steps];
    for &(from, to) in edges {
        unread[to] += 1;
        end[from] += 1;
    }
    let mut sum = 0;
    for end in &mut end {
        sum += *end;
        *end = sum;
    }
    // Filled from the back, `end` becomes the start of each step's readers.
    let mut start = end;
    let mut readers = vec![0; edges.len()];
    for &(from, to) in edges {
        start[from] -= 1;
        readers[start[from]] = to;
    }
    let mut order: Vec<usize> = (0..steps).filter(|&step| unread[step] == 0).collect();
    let mut done = 0;
    while let Some(&step) = order.get(done) {
        done += 1;
        let end = start.get(step + 1).copied().unwrap_or(readers.len());
        for &reader in &readers[start[step]..end] {
            unread[reader] -= 1;
            if unread[reader] == 0 {
                order.push(reader);
            }
        }
    }
    order
}

/// The steps of one cycle in the order of the data, the first of the definition first, if there is a cycle.
pub(super) fn cycle(steps: usize, edges: &[Edge]) -> Option<Vec<usize>> {
    let mut remains = vec![true; steps];
    for step in order(steps, edges) {
        remains[step] = false;
    }
    // Each remaining step reads a remaining step, so the way back over the sources ends in a cycle.
    let mut source = vec![0; steps];
    for &(from, to) in edges {
        if remains[from] && remains[to] {
            source[to] = from;
        }
    }
    let mut step = remains.iter().position(|&remains| remains)?;
    let mut visited = vec![false; steps];
    while !std::mem::replace(&mut visited[step], true) {
        step = source[step];
    }
    let mut cycle = vec![step];
    loop {
        let before = source[cycle[cycle.len() - 1]];
        if before == step {
            break;
        }
        cycle.push(before);
    }
    cycle.reverse();
    let first = (0..cycle.len()).min_by_key(|&position| cycle[position]).unwrap_or_default();
    cycle.rotate_left(first);
    Some(cycle)
}
