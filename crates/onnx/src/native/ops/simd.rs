//! The inner loop of matrix products and convolutions, for the widest vectors that the processor has.
//!
//! Both are the same sum: `out[r][o] = Σ_j a[r][j] · b[taps[j] + o]`. In a matrix product tap `j` is row `j` of the
//! right matrix; in a convolution it is a pixel of the kernel, an offset into the padded image. Blocks of rows
//! (`a`, interleaved) and of positions `o` keep their sums in registers.

#![allow(
    clippy::inline_always,
    reason = "the loops must be compiled into the function that switches the vector instructions on"
)]

use crate::native::buffer_pool;
use crate::native::watch::Watch;
use rten_simd::ops::{BitOps, NumOps};
use rten_simd::{Isa, Simd, SimdOp};
use std::sync::OnceLock;

/// Vectors that a block of positions is wide.
const WIDE: usize = 2;
/// Rows of a block with 32 vector registers. More fit, but networks have multiples of eight channels.
const WIDE_ROWS: usize = 8;
/// Rows of a block with 16 vector registers.
const NARROW_ROWS: usize = 4;

/// How the work is cut for this processor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tiling {
    /// Rows of a block.
    pub rows: usize,
    /// Positions of a block.
    pub width: usize,
    /// Positions of one vector: the last block may be as narrow.
    pub lanes: usize,
}

struct Lanes;

impl SimdOp for Lanes {
    type Output = usize;

    #[inline(always)]
    fn eval<I: Isa>(self, isa: I) -> usize {
        isa.f32().len()
    }
}

/// The tiling for this processor: as many sums as fit its registers.
pub(crate) fn tiling() -> Tiling {
    static TILING: OnceLock<Tiling> = OnceLock::new();
    *TILING.get_or_init(|| {
        let lanes = Lanes.dispatch();
        Tiling { rows: if lanes >= 16 { WIDE_ROWS } else { NARROW_ROWS }, width: lanes * WIDE, lanes }
    })
}

/// Rows in the layout of the inner loop: blocks of [`Tiling::rows`] rows, each block column by column. The last
/// block is filled up with zeros.
pub(crate) fn interleave(rows: &[f32], columns: usize) -> Vec<f32> {
    match tiling().rows {
        WIDE_ROWS => interleaved::<WIDE_ROWS>(rows, columns),
        _ => interleaved::<NARROW_ROWS>(rows, columns),
    }
}

fn interleaved<const R: usize>(rows: &[f32], columns: usize) -> Vec<f32> {
    if columns == 0 {
        return Vec::new();
    }
    let count = rows.len() / columns;
    let mut result = buffer_pool::zeros(count.div_ceil(R) * R * columns);
    for (block, to) in rows.chunks(R * columns).zip(result.chunks_exact_mut(R * columns)) {
        let to = to.as_chunks_mut::<R>().0;
        for (r, row) in block.chunks_exact(columns).enumerate() {
            for (to, &v) in to.iter_mut().zip(row) {
                if let Some(to) = to.get_mut(r) {
                    *to = v;
                }
            }
        }
    }
    result
}

/// One block of rows against all blocks of positions.
pub(crate) struct Block<'a> {
    /// A block of interleaved rows: as many columns as there are taps.
    pub a: &'a [f32],
    pub taps: &'a [usize],
    pub b: &'a [f32],
    /// How far apart two blocks of positions are in `b`.
    pub step: usize,
    /// Where the sums go: [`Tiling::rows`] rows of this many positions, a multiple of [`Tiling::lanes`].
    pub positions: usize,
    pub to: &'a mut [f32],
    pub watch: &'a Watch<'a>,
}

impl SimdOp for Block<'_> {
    type Output = bool;

    #[inline(always)]
    fn eval<I: Isa>(self, isa: I) -> bool {
        if isa.f32().len() >= 16 { self.sums::<I, WIDE_ROWS>(isa) } else { self.sums::<I, NARROW_ROWS>(isa) }
    }
}

impl Block<'_> {
    /// Computes all sums; `false` when the sizes do not fit each other, or the run has to stop.
    #[inline(always)]
    fn sums<I: Isa, const R: usize>(mut self, isa: I) -> bool {
        let lanes = isa.f32().len();
        let width = lanes * WIDE;
        let sized = self.a.len() == R * self.taps.len()
            && self.positions.is_multiple_of(lanes)
            && self.to.len() == R * self.positions;
        if !sized {
            return false;
        }
        let blocks = self.positions / width;
        let watch = self.watch;
        // A vector of each row is about a unit of work.
        let work = R * WIDE * self.taps.len();
        let whole = (0..blocks)
            .all(|block| self.block::<I, R, WIDE>(isa, block).is_some() && watch.spend(work).is_ok());
        let narrow = !self.positions.is_multiple_of(width);
        whole && (!narrow || self.block::<I, R, 1>(isa, blocks).is_some())
    }

    /// The sums of one block of `W` vectors; `None` when a tap leads out of `b`.
    #[inline(always)]
    fn block<I: Isa, const R: usize, const W: usize>(&mut self, isa: I, block: usize) -> Option<()> {
        let ops = isa.f32();
        let lanes = ops.len();
        let width = lanes * W;
        let b = self.b.get(block * self.step..)?;
        let mut sums = [[ops.zero(); W]; R];
        for (weights, &tap) in self.a.as_chunks::<R>().0.iter().zip(self.taps) {
            let x: [_; W] = ops.load_many(b.get(tap..tap + width)?);
            for (sum, &weight) in sums.iter_mut().zip(weights) {
                let weight = ops.splat(weight);
                for (s, &x) in sum.iter_mut().zip(&x) {
                    *s = ops.mul_add(x, weight, *s);
                }
            }
        }
        let start = block * lanes * WIDE;
        for (row, sum) in self.to.chunks_exact_mut(self.positions).zip(sums) {
            let row = row.get_mut(start..start + width)?;
            for (to, sum) in row.chunks_exact_mut(lanes).zip(sum) {
                ops.store(sum, to);
            }
        }
        Some(())
    }
}

/// The sum of products of two slices.
pub(crate) struct Dot<'a>(pub &'a [f32], pub &'a [f32]);

impl SimdOp for Dot<'_> {
    type Output = f32;

    #[inline(always)]
    fn eval<I: Isa>(self, isa: I) -> f32 {
        let ops = isa.f32();
        let width = ops.len() * 4;
        let mut sums = [ops.zero(); 4];
        let (x, y) = (self.0.chunks_exact(width), self.1.chunks_exact(width));
        let rest: f32 = x.remainder().iter().zip(y.remainder()).map(|(a, b)| a * b).sum();
        for (x, y) in x.zip(y) {
            let (x, y): ([_; 4], [_; 4]) = (ops.load_many(x), ops.load_many(y));
            for ((sum, x), y) in sums.iter_mut().zip(x).zip(y) {
                *sum = ops.mul_add(x, y, *sum);
            }
        }
        let [a, b, c, d] = sums;
        let total = ops.add(ops.add(a, b), ops.add(c, d));
        rest + total.to_array().into_iter().sum::<f32>()
    }
}
