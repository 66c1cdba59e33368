//! The loops that run rows through a forest.
#![allow(
    clippy::indexing_slicing,
    reason = "every node, child, column, word and leaf index was proven in range when the forest was built, \
              and the shape of the rows when they were borrowed"
)]

use super::{COLUMN_MASK, Forest, LANES, MISSING_YES, Node, Real, SPECIAL, TopSplit, TreeSpan, WIDE_LANES};
use crate::error::PredictError;
use crate::rows::{Rows, Values};
use std::sync::atomic::{AtomicBool, Ordering};

/// Row and tree pairs below which a second thread costs more than it brings.
const PAIRS_PER_THREAD: usize = 20_000;
/// Most values that one call returns, two gigabytes in double precision.
const MAX_OUTPUTS: usize = 1 << 28;
/// Rows left over from full blocks that are still worth a block of their own.
const MIN_BLOCK_ROWS: usize = 9;
/// Trees that a single row walks down together.
const TREES_AT_ONCE: usize = 8;

/// Row and tree pairs between two calls of [`Execution::stop`]: about a millisecond.
const PAIRS_PER_POLL: usize = 1 << 17;

/// How rows are evaluated.
pub(crate) struct Execution<'a> {
    pub(crate) threads: usize,
    /// Polled now and then; `true` ends the evaluation early.
    pub(crate) stop: &'a (dyn Fn() -> bool + Sync),
    stopped: AtomicBool,
}

impl<'a> Execution<'a> {
    pub(crate) const fn new(threads: usize, stop: &'a (dyn Fn() -> bool + Sync)) -> Self {
        Self { threads, stop, stopped: AtomicBool::new(false) }
    }

    /// An error if the outputs are incomplete.
    pub(crate) fn check(&self) -> Result<(), PredictError> {
        if self.stopped.load(Ordering::Relaxed) { Err(PredictError::Stopped) } else { Ok(()) }
    }
}

/// The work of one thread since it polled last.
struct Poll<'a> {
    execution: &'a Execution<'a>,
    left: usize,
}

impl<'a> Poll<'a> {
    const fn new(execution: &'a Execution<'a>) -> Self {
        Self { execution, left: PAIRS_PER_POLL }
    }

    /// Accounts for row and tree pairs; `false` when the evaluation has to stop.
    #[inline]
    fn spend(&mut self, pairs: usize) -> bool {
        match self.left.checked_sub(pairs) {
            Some(left) => {
                self.left = left;
                true
            }
            None => self.poll(),
        }
    }

    #[cold]
    fn poll(&mut self) -> bool {
        self.left = PAIRS_PER_POLL;
        let stopped = &self.execution.stopped;
        if !stopped.load(Ordering::Relaxed) && (self.execution.stop)() {
            stopped.store(true, Ordering::Relaxed);
        }
        !stopped.load(Ordering::Relaxed)
    }
}

/// Consumer of the leaves that rows end in.
pub(crate) trait Sink<T>: Sync {
    /// The type of one output.
    type Out: Copy + Default + Send;

    /// Outputs per row.
    fn width(&self) -> usize;
    /// The value of an output before any tree.
    fn start(&self, output: usize) -> Self::Out;
    /// Adds the leaves of one tree, one per lane, to the outputs.
    fn take<const L: usize>(
        &self,
        tree: usize,
        leaves: &[u32; L],
        block: &[[T; L]],
        sums: &mut [[Self::Out; L]],
    );
}

/// Rejects disproportionate outputs: a small file and few rows must not exhaust the memory.
pub(crate) fn check_output(rows: usize, outputs: usize) -> Result<(), PredictError> {
    match rows.checked_mul(outputs) {
        Some(count) if count <= MAX_OUTPUTS => Ok(()),
        _ => Err(PredictError::TooLarge { rows, outputs }),
    }
}

/// Evaluates all rows; the caller has checked that they have all features of the forest, and [`check_output`].
pub(crate) fn run<T: Real, S: Sink<T>>(
    forest: &Forest<T>,
    sink: &S,
    rows: &Rows<'_>,
    execution: &Execution<'_>,
) -> Vec<S::Out> {
    debug_assert!(rows.features() >= forest.features());
    let (width, count) = (sink.width(), rows.rows());
    let mut out = vec![S::Out::default(); count * width];
    if width == 0 || count == 0 {
        return out;
    }
    let useful =
        (count.saturating_mul(forest.trees.len()) / PAIRS_PER_THREAD).clamp(1, count.div_ceil(LANES));
    let threads = execution.threads.clamp(1, useful);
    let part = count.div_ceil(threads).next_multiple_of(LANES);
    if threads == 1 || part >= count {
        run_range(forest, sink, rows, 0, &mut out, execution);
        return out;
    }
    std::thread::scope(|scope| {
        let mut parts = out.chunks_mut(part * width).enumerate();
        let own = parts.next();
        for (index, chunk) in parts {
            scope.spawn(move || run_range(forest, sink, rows, index * part, chunk, execution));
        }
        if let Some((_, chunk)) = own {
            run_range(forest, sink, rows, 0, chunk, execution);
        }
    });
    out
}

/// Evaluates the rows from `first` on that `out` has room for.
fn run_range<T: Real, S: Sink<T>>(
    forest: &Forest<T>,
    sink: &S,
    rows: &Rows<'_>,
    first: usize,
    out: &mut [S::Out],
    execution: &Execution<'_>,
) {
    let mut poll = Poll::new(execution);
    match rows.values() {
        Values::F32(values) => {
            let matrix = Matrix { values, stride: rows.features(), convert: T::from_f32 };
            run_values(forest, sink, &matrix, first, out, &mut poll);
        }
        Values::F64(values) => {
            let matrix = Matrix { values, stride: rows.features(), convert: T::from_f64 };
            run_values(forest, sink, &matrix, first, out, &mut poll);
        }
    }
}

/// The input of one loop: values, values per row, and how they become numbers of the forest's type.
struct Matrix<'a, V, F> {
    values: &'a [V],
    stride: usize,
    convert: F,
}

fn run_values<T: Real, V: Copy, S: Sink<T>>(
    forest: &Forest<T>,
    sink: &S,
    matrix: &Matrix<'_, V, impl Fn(V) -> T + Copy>,
    first: usize,
    out: &mut [S::Out],
    poll: &mut Poll<'_>,
) {
    let Matrix { values, stride, convert } = *matrix;
    let width = sink.width();
    let count = out.len() / width;
    // In double precision a wide block would not fit into the registers.
    let wide = if size_of::<T>() == 4 { count - count % WIDE_LANES } else { 0 };
    let tail = (count - wide) % LANES;
    let blocked = if tail >= MIN_BLOCK_ROWS { count } else { count - tail };
    let (out, out_single) = out.split_at_mut(blocked * width);
    let (out_wide, out_narrow) = out.split_at_mut(wide * width);
    let rows = |from: usize, to: usize| {
        let values = &values[(first + from) * stride..(first + to) * stride];
        Matrix { values, stride, convert }
    };
    run_blocks::<T, V, S, WIDE_LANES>(forest, sink, &rows(0, wide), out_wide, poll);
    run_blocks::<T, V, S, LANES>(forest, sink, &rows(wide, blocked), out_narrow, poll);
    run_single(forest, sink, &rows(blocked, count), out_single, poll);
}

/// Evaluates row by row, several trees at a time.
fn run_single<T: Real, V: Copy, S: Sink<T>>(
    forest: &Forest<T>,
    sink: &S,
    matrix: &Matrix<'_, V, impl Fn(V) -> T + Copy>,
    out: &mut [S::Out],
    poll: &mut Poll<'_>,
) {
    if out.is_empty() {
        return;
    }
    let Matrix { values, stride, convert } = *matrix;
    let width = sink.width();
    let mut block = vec![[T::default()]; forest.columns.len()];
    let mut sums = vec![[S::Out::default()]; width];
    let mut leaves = vec![0; forest.trees.len()];
    for (row, out) in out.chunks_exact_mut(width).enumerate() {
        let rows = Matrix { values: &values[row * stride..(row + 1) * stride], stride, convert };
        let missing = fill(forest, &rows, &mut block);
        for numbers in forest.by_depth.chunks(TREES_AT_ONCE) {
            if !poll.spend(TREES_AT_ONCE) {
                return;
            }
            let mut at = [0; TREES_AT_ONCE];
            let (mut depth, mut has_tests) = (0, false);
            for (at, number) in at.iter_mut().zip(numbers) {
                let tree = &forest.trees[*number as usize];
                *at = tree.root;
                depth = tree.depth;
                has_tests |= tree.has_tests;
            }
            match (missing, has_tests) {
                (false, false) => walk::<T, 1, TREES_AT_ONCE, false, false>(forest, depth, &block, &mut at),
                (true, false) => walk::<T, 1, TREES_AT_ONCE, true, false>(forest, depth, &block, &mut at),
                (_, true) => walk::<T, 1, TREES_AT_ONCE, true, true>(forest, depth, &block, &mut at),
            }
            for (at, number) in at.iter().zip(numbers) {
                leaves[*number as usize] = forest.payload[*at as usize];
            }
        }
        for (output, sums) in sums.iter_mut().enumerate() {
            *sums = [sink.start(output)];
        }
        for (number, leaf) in leaves.iter().enumerate() {
            sink.take(number, &[*leaf], &block, &mut sums);
        }
        for (value, [sum]) in out.iter_mut().zip(&sums) {
            *value = *sum;
        }
    }
}

/// Evaluates full blocks, and a last one of which some lanes may be idle.
fn run_blocks<T: Real, V: Copy, S: Sink<T>, const L: usize>(
    forest: &Forest<T>,
    sink: &S,
    matrix: &Matrix<'_, V, impl Fn(V) -> T + Copy>,
    out: &mut [S::Out],
    poll: &mut Poll<'_>,
) {
    if out.is_empty() {
        return;
    }
    let Matrix { values, stride, convert } = *matrix;
    let width = sink.width();
    let mut block = vec![[T::default(); L]; forest.columns.len()];
    let mut sums = vec![[S::Out::default(); L]; width];
    for (index, out) in out.chunks_mut(L * width).enumerate() {
        let used = out.len() / width;
        let start = index * L * stride;
        let rows = Matrix { values: &values[start..start + used * stride], stride, convert };
        let missing = fill(forest, &rows, &mut block);
        for (output, sums) in sums.iter_mut().enumerate() {
            *sums = [sink.start(output); L];
        }
        for (number, tree) in forest.trees.iter().enumerate() {
            if !poll.spend(L) {
                return;
            }
            let mut at = exits(forest, tree, &block);
            if tree.steps_left > 0 {
                match (missing, tree.has_tests) {
                    (false, false) => walk::<T, L, L, false, false>(forest, tree.steps_left, &block, &mut at),
                    (true, false) => walk::<T, L, L, true, false>(forest, tree.steps_left, &block, &mut at),
                    (_, true) => walk::<T, L, L, true, true>(forest, tree.steps_left, &block, &mut at),
                }
                for at in &mut at {
                    *at = forest.payload[*at as usize];
                }
            }
            sink.take(number, &at, &block, &mut sums);
        }
        for (lane, row) in out.chunks_exact_mut(width).enumerate() {
            for (value, sums) in row.iter_mut().zip(&sums) {
                *value = sums[lane];
            }
        }
    }
}

/// Copies rows into the lanes of a block, and returns whether any value is missing.
fn fill<T: Real, V: Copy, const L: usize>(
    forest: &Forest<T>,
    rows: &Matrix<'_, V, impl Fn(V) -> T + Copy>,
    block: &mut [[T; L]],
) -> bool {
    let mut missing = false;
    if rows.stride == 0 {
        return missing;
    }
    for (lane, row) in rows.values.chunks_exact(rows.stride).enumerate() {
        for (column, lanes) in forest.columns.iter().zip(block.iter_mut()) {
            let mut value = (rows.convert)(row[column.feature as usize]);
            if column.zero_is_missing && value.is_zero() {
                value = T::NAN;
            }
            missing |= value.is_nan();
            lanes[lane] = value;
        }
    }
    missing
}

/// Takes steps down from the nodes in `at`; leaves stay where they are.
///
/// Either there is a node per lane of the block, or the block has one lane that all nodes look at.
#[inline]
fn walk<T: Real, const L: usize, const N: usize, const MISSING: bool, const TESTS: bool>(
    forest: &Forest<T>,
    steps: u32,
    block: &[[T; L]],
    at: &mut [u32; N],
) {
    for _ in 0..steps {
        for (index, at) in at.iter_mut().enumerate() {
            let Node { threshold, column, next } = forest.nodes[*at as usize];
            let value = block[(column & COLUMN_MASK) as usize][if L == 1 { 0 } else { index }];
            let mut yes = value <= threshold;
            if MISSING {
                yes |= value.is_nan() && column & MISSING_YES != 0;
            }
            if TESTS && column & SPECIAL != 0 && !value.is_nan() {
                yes = forest.tests[forest.payload[*at as usize] as usize].accepts(value.to_f64());
            }
            *at = next + u32::from(!yes);
        }
    }
}

/// Clears the exits that each split of the top rules out; the lowest one left is where a row goes on.
#[inline]
fn exits<T: Real, const L: usize>(forest: &Forest<T>, tree: &TreeSpan, block: &[[T; L]]) -> [u32; L] {
    let mut live = [u32::MAX; L];
    for split in &forest.top_splits[tree.top_start as usize..tree.top_missing_yes as usize] {
        let TopSplit { threshold, column, keep } = *split;
        for (live, value) in live.iter_mut().zip(&block[column as usize]) {
            *live &= keep | if *value <= threshold { u32::MAX } else { 0 };
        }
    }
    for split in &forest.top_splits[tree.top_missing_yes as usize..tree.top_end as usize] {
        let TopSplit { threshold, column, keep } = *split;
        for (live, value) in live.iter_mut().zip(&block[column as usize]) {
            *live &= keep | if *value > threshold { 0 } else { u32::MAX };
        }
    }
    for test in &forest.top_tests[tree.tests_start as usize..tree.tests_end as usize] {
        for (live, value) in live.iter_mut().zip(&block[test.column as usize]) {
            let yes = if value.is_nan() {
                test.missing_yes
            } else {
                forest.tests[test.test as usize].accepts(value.to_f64())
            };
            *live &= test.keep | if yes { u32::MAX } else { 0 };
        }
    }
    let exits = &forest.exits[tree.first_exit as usize..];
    // A loop, because `map` on an array of this length is not inlined.
    for live in &mut live {
        *live = exits[live.trailing_zeros() as usize];
    }
    live
}
