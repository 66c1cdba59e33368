//! Matrix products.
//!
//! Everything stays on the calling thread: a serving process runs many requests at once, and handing a few
//! microseconds of work to another thread costs more than the work. A single row goes through the vector kernel of
//! `rten-gemm`, in blocks too small for it to share out; several rows through the inner loop of [`simd`].

use super::simd::{self, Block, Dot};
use super::unary::as_f32;
use crate::native::buffer_pool;
use crate::native::node::{Kernel, Node};
use crate::native::value::{Args, OpError, Value, View, broadcast, broadcast_indices, unsupported_type};
use crate::native::watch::Watch;
use gantry_tensor::Elements;
use rten_gemm::{BiasVector, GemmExecutor, GemmInputA, GemmInputB, GemmOptions};
use rten_simd::SimdOp;
use rten_tensor::NdTensorView;
use std::sync::OnceLock;

/// Columns of a block; `rten-gemm` splits wider matrices over threads.
const BLOCK_COLUMNS: usize = 128;
/// Up to so many columns a row is multiplied column by column: the vector kernel works on many columns at once.
const FEW_COLUMNS: usize = 32;
/// Below this many multiplications a plain loop is faster than preparing a kernel call.
const WORTH_A_KERNEL: usize = 512;
/// Multiplications that are about one unit of work.
const VECTOR: usize = 8;

/// The operators of this file.
pub(crate) fn build(node: &Node<'_>) -> Result<Option<Kernel>, OpError> {
    Ok(Some(match node.proto.op_type {
        "MatMul" => matmul(node)?,
        "Gemm" => gemm(node)?,
        _ => return Ok(None),
    }))
}

/// A matrix of `f32` ready to be multiplied from the left, many times.
pub(crate) struct Weights {
    rows: usize,
    columns: usize,
    plain: Vec<f32>,
    /// Column by column, for single rows times few columns.
    turned: OnceLock<Vec<f32>>,
    /// By panels of columns, each row by row; made when the first batch comes.
    panels: OnceLock<Vec<f32>>,
}

thread_local! {
    /// The fastest kernel for this processor.
    static EXECUTOR: GemmExecutor = GemmExecutor::new();
}

impl Weights {
    /// `data` is `rows` × `columns`, in row-major order.
    pub(crate) fn new(rows: usize, columns: usize, data: Vec<f32>) -> Result<Self, OpError> {
        if rows.checked_mul(columns) != Some(data.len()) {
            return Err(OpError::Shape(format!("{} weights are not {rows}×{columns}", data.len())));
        }
        Ok(Self { rows, columns, plain: data, turned: OnceLock::new(), panels: OnceLock::new() })
    }

    /// Columns in panels as wide as a block of the inner loop; the last is filled up with zeros.
    fn pack(&self) -> Vec<f32> {
        let width = simd::tiling().width;
        let panels = self.columns.div_ceil(width);
        let mut result = vec![0.0; panels * self.rows * width];
        for (k, row) in self.plain.chunks_exact(self.columns.max(1)).enumerate() {
            for (panel, part) in row.chunks(width).enumerate() {
                let start = (panel * self.rows + k) * width;
                if let Some(to) = result.get_mut(start..start + part.len()) {
                    to.copy_from_slice(part);
                }
            }
        }
        result
    }

    /// `x` (`n` rows) times these weights, plus a bias for each column.
    pub(crate) fn multiply(
        &self,
        watch: &Watch<'_>,
        x: &[f32],
        n: usize,
        bias: Option<&[f32]>,
    ) -> Result<Vec<f32>, OpError> {
        let (k, columns) = (self.rows, self.columns);
        if n.checked_mul(k) != Some(x.len()) || bias.is_some_and(|b| b.len() != columns) {
            return Err(OpError::Shape(format!(
                "{} values are not {n} rows of {k}, which the weights {k}×{columns} need",
                x.len()
            )));
        }
        let mut result = buffer_pool::zeros(n * columns);
        if result.is_empty() || k == 0 || k * columns < WORTH_A_KERNEL {
            plain_loop(watch, &mut result, x, &self.plain, k, columns, bias)?;
            return Ok(result);
        }
        if n == 1 {
            self.vector(watch, &mut result, x, bias)?;
            return Ok(result);
        }
        let tile = simd::tiling();
        let panels = self.panels.get_or_init(|| self.pack());
        let taps: Vec<usize> = (0..k).map(|i| i * tile.width).collect();
        let positions = columns.next_multiple_of(tile.lanes);
        let mut sums = buffer_pool::zeros(tile.rows * positions);
        let x = simd::interleave(x, k);
        for (a, rows_out) in x.chunks(tile.rows * k).zip(result.chunks_mut(tile.rows * columns)) {
            let step = k * tile.width;
            let block = Block { a, taps: &taps, b: panels, step, positions, to: &mut sums, watch };
            if !block.dispatch() {
                watch.check()?;
                return Err(OpError::Shape("a matrix product's sizes do not fit".to_owned()));
            }
            for (out, row) in rows_out.chunks_mut(columns).zip(sums.chunks(positions)) {
                match bias {
                    Some(bias) => out.iter_mut().zip(row.iter().zip(bias)).for_each(|(o, (s, b))| *o = s + b),
                    None => out.iter_mut().zip(row).for_each(|(o, s)| *o = *s),
                }
            }
        }
        buffer_pool::put(sums);
        buffer_pool::put(x);
        Ok(result)
    }

    /// One row: every weight is read once, from front to back.
    fn vector(
        &self,
        watch: &Watch<'_>,
        result: &mut [f32],
        x: &[f32],
        bias: Option<&[f32]>,
    ) -> Result<(), OpError> {
        if self.columns <= FEW_COLUMNS {
            let columns = self.turned.get_or_init(|| turned(&self.plain, self.rows, self.columns));
            for (i, (out, column)) in result.iter_mut().zip(columns.chunks_exact(self.rows)).enumerate() {
                *out = Dot(x, column).dispatch() + bias.and_then(|b| b.get(i).copied()).unwrap_or(0.0);
                watch.spend(self.rows / VECTOR)?;
            }
            return Ok(());
        }
        let all = matrix(&self.plain, self.rows, self.columns)?;
        let a = matrix(x, 1, self.rows)?;
        for (i, out) in result.chunks_mut(BLOCK_COLUMNS).enumerate() {
            let start = i * BLOCK_COLUMNS;
            let b = all.slice((.., start..start + out.len()));
            let bias = bias.and_then(|b| b.get(start..start + out.len()));
            kernel(out, GemmInputA::Unpacked(a), GemmInputB::Unpacked(b), bias)?;
            watch.spend(self.rows * out.len() / VECTOR)?;
        }
        Ok(())
    }
}

fn matrix(data: &[f32], rows: usize, columns: usize) -> Result<NdTensorView<'_, f32, 2>, OpError> {
    NdTensorView::try_from_data([rows, columns], data)
        .map_err(|_| OpError::Shape(format!("{} values are not {rows}×{columns}", data.len())))
}

fn kernel(
    to: &mut [f32],
    a: GemmInputA<'_, f32>,
    b: GemmInputB<'_, f32>,
    bias: Option<&[f32]>,
) -> Result<(), OpError> {
    let options = GemmOptions { bias: bias.map(BiasVector::Row), ..Default::default() };
    EXECUTOR.with(|e| e.gemm(to, a, b, options)).map_err(|e| OpError::Value(format!("matrix product: {e}")))
}

fn plain_loop(
    watch: &Watch<'_>,
    to: &mut [f32],
    x: &[f32],
    b: &[f32],
    k: usize,
    columns: usize,
    bias: Option<&[f32]>,
) -> Result<(), OpError> {
    if columns == 0 {
        return Ok(());
    }
    for (i, out) in to.chunks_exact_mut(columns).enumerate() {
        for (&a, row) in x.iter().skip(i * k).take(k).zip(b.chunks_exact(columns)) {
            for (o, &w) in out.iter_mut().zip(row) {
                *o += a * w;
            }
        }
        if let Some(bias) = bias {
            for (o, &b) in out.iter_mut().zip(bias) {
                *o += b;
            }
        }
        watch.spend(k * columns)?;
    }
    Ok(())
}

/// Rows and columns of a matrix that may be stored the other way round.
fn oriented(view: &View<'_>, transposed: bool) -> Result<(usize, usize), OpError> {
    match *view.shape {
        [a, b] if transposed => Ok((b, a)),
        [a, b] => Ok((a, b)),
        _ => Err(OpError::Shape(format!("expected a matrix, got shape {:?}", view.shape))),
    }
}

pub(crate) fn turned<T: Copy>(data: &[T], rows: usize, columns: usize) -> Vec<T> {
    column_by_column(data, rows, columns).collect()
}

fn column_by_column<T: Copy>(data: &[T], rows: usize, columns: usize) -> impl Iterator<Item = T> {
    (0..columns).flat_map(move |c| (0..rows).filter_map(move |r| data.get(r * columns + c).copied()))
}

fn gemm(node: &Node<'_>) -> Result<Kernel, OpError> {
    let (alpha, beta) = (node.float("alpha", 1.0)?, node.float("beta", 1.0)?);
    let (turn_a, turn_b) = (node.int("transA", 0)? != 0, node.int("transB", 0)? != 0);
    let ready = match node.constant(1).map(|b| (b, &b.data)) {
        Some((b, Elements::Fp32(_))) => {
            node.absorb(1);
            Some(gemm_weights(b.view(), turn_b, alpha)?)
        }
        _ => None,
    };
    Ok(Box::new(move |args| {
        let a = args.get(0)?;
        if let Elements::Fp64(_) = a.data {
            return gemm_double(args, turn_a, turn_b, f64::from(alpha), f64::from(beta));
        }
        let x = as_f32(&a, 0)?;
        let (n, k) = oriented(&a, turn_a)?;
        let made;
        let weights = if let Some(ready) = &ready {
            ready
        } else {
            made = gemm_weights(args.get(1)?, turn_b, alpha)?;
            args.watch.spend(made.plain.len())?;
            &made
        };
        let columns = weights.columns;
        if weights.rows != k {
            return Err(OpError::Shape(format!("{n}×{k} times {}×{columns}", weights.rows)));
        }
        args.room(&[n, columns])?;
        let turned_x;
        let x = if turn_a {
            turned_x = args.watch.polled(column_by_column(x, k, n)).collect::<Vec<_>>();
            args.watch.check()?;
            &turned_x
        } else {
            x
        };
        let Some(c) = args.optional(2).filter(|_| beta != 0.0) else {
            return Ok(vec![Value::f32([n, columns], weights.multiply(args.watch, x, n, None)?)]);
        };
        let bias = as_f32(&c, 2)?;
        #[allow(clippy::float_cmp, reason = "the attribute is exactly 1 when it is not given")]
        if bias.len() == columns && c.shape.last() == Some(&columns) && beta == 1.0 {
            let product = weights.multiply(args.watch, x, n, Some(bias))?;
            return Ok(vec![Value::f32([n, columns], product)]);
        }
        let mut product = weights.multiply(args.watch, x, n, None)?;
        for (o, i) in product.iter_mut().zip(bias_indices(args.watch, c.shape, n, columns)?) {
            *o += beta * bias.get(i).copied().unwrap_or(0.0);
        }
        Ok(vec![Value::f32([n, columns], product)])
    }))
}

fn bias_indices(watch: &Watch<'_>, shape: &[usize], n: usize, columns: usize) -> Result<Vec<usize>, OpError> {
    let result = [n, columns];
    if broadcast(shape, &result)? != result {
        return Err(OpError::Shape(format!("a bias of shape {shape:?} for {n}×{columns}")));
    }
    Ok(broadcast_indices(watch, shape, &result))
}

fn gemm_weights(b: View<'_>, turn: bool, alpha: f32) -> Result<Weights, OpError> {
    let data = as_f32(&b, 1)?;
    let (k, columns) = oriented(&b, turn)?;
    let mut plain = if turn { turned(data, columns, k) } else { data.to_vec() };
    #[allow(clippy::float_cmp, reason = "the attribute is exactly 1 when it is not given")]
    if alpha != 1.0 {
        for w in &mut plain {
            *w *= alpha;
        }
    }
    Weights::new(k, columns, plain)
}

fn gemm_double(
    args: &Args<'_>,
    turn_a: bool,
    turn_b: bool,
    alpha: f64,
    beta: f64,
) -> Result<Vec<Value>, OpError> {
    let (a, b) = (args.get(0)?, args.get(1)?);
    let (Elements::Fp64(x), Elements::Fp64(y)) = (a.data, b.data) else {
        return Err(unsupported_type(1, &b));
    };
    let ((n, k), (rows, columns)) = (oriented(&a, turn_a)?, oriented(&b, turn_b)?);
    if rows != k {
        return Err(OpError::Shape(format!("{n}×{k} times {rows}×{columns}")));
    }
    let total = args.room(&[n, columns])?;
    let x = if turn_a { turned(x, k, n) } else { x.clone() };
    let y = if turn_b { turned(y, columns, k) } else { y.clone() };
    let mut product = vec![0.0; total];
    double_loop(args.watch, &mut product, &x, &y, k, columns)?;
    for v in &mut product {
        *v *= alpha;
    }
    if let Some(c) = args.optional(2) {
        let Elements::Fp64(bias) = c.data else {
            return Err(unsupported_type(2, &c));
        };
        for (o, i) in product.iter_mut().zip(bias_indices(args.watch, c.shape, n, columns)?) {
            *o += beta * bias.get(i).copied().unwrap_or(0.0);
        }
    }
    Ok(vec![Value::new([n, columns], Elements::Fp64(product))])
}

fn double_loop(
    watch: &Watch<'_>,
    to: &mut [f64],
    x: &[f64],
    b: &[f64],
    k: usize,
    columns: usize,
) -> Result<(), OpError> {
    if columns == 0 {
        return Ok(());
    }
    for (i, out) in to.chunks_exact_mut(columns).enumerate() {
        for (&a, row) in x.iter().skip(i * k).take(k).zip(b.chunks_exact(columns)) {
            for (o, &w) in out.iter_mut().zip(row) {
                *o += a * w;
            }
            watch.spend(columns)?;
        }
    }
    Ok(())
}

fn matmul(node: &Node<'_>) -> Result<Kernel, OpError> {
    let ready = match node.constant(1).map(|b| (b.shape.as_slice(), &b.data)) {
        Some((&[k, columns], Elements::Fp32(data))) => {
            node.absorb(1);
            Some(Weights::new(k, columns, data.clone())?)
        }
        _ => None,
    };
    Ok(Box::new(move |args| {
        let a = args.get(0)?;
        if let (Some(weights), Elements::Fp32(x)) = (&ready, a.data)
            && let Some((&k, outer)) = a.shape.split_last()
        {
            if k != weights.rows {
                return Err(OpError::Shape(format!(
                    "shape {:?} times {}×{}",
                    a.shape, weights.rows, weights.columns
                )));
            }
            let mut shape = outer.to_vec();
            shape.push(weights.columns);
            args.room(&shape)?;
            let product = weights.multiply(args.watch, x, outer.iter().product(), None)?;
            return Ok(vec![Value::f32(shape, product)]);
        }
        matmul_any(args)
    }))
}

/// Any ranks, any operands: the outer dimensions are broadcast, the last two multiplied.
fn matmul_any(args: &Args<'_>) -> Result<Vec<Value>, OpError> {
    let (a, b) = (args.get(0)?, args.get(1)?);
    let widen = |shape: &[usize], front: bool| match *shape {
        [n] if front => vec![1, n],
        [n] => vec![n, 1],
        _ => shape.to_vec(),
    };
    let (left, right) = (widen(a.shape, true), widen(b.shape, false));
    let fault = || OpError::Shape(format!("shapes {:?} and {:?} do not multiply", a.shape, b.shape));
    let ([outer_a @ .., n, k], [outer_b @ .., rows, columns]) = (left.as_slice(), right.as_slice()) else {
        return Err(fault());
    };
    let (n, k, columns) = (*n, *k, *columns);
    if *rows != k {
        return Err(fault());
    }
    let outer = broadcast(outer_a, outer_b)?;
    let mut shape = outer.clone();
    shape.extend([n, columns]);
    let total = args.room(&shape)?;
    let indices = |shape: &[usize]| broadcast_indices(args.watch, shape, &outer).into_iter();
    let pairs = indices(outer_a).zip(indices(outer_b));
    let data = match (a.data, b.data) {
        (Elements::Fp32(x), Elements::Fp32(y)) => {
            let mut result = Vec::with_capacity(total);
            for (i, j) in pairs {
                let weights = y.get(j * k * columns..(j + 1) * k * columns).ok_or_else(fault)?;
                let weights = Weights::new(k, columns, weights.to_vec())?;
                let x = x.get(i * n * k..(i + 1) * n * k).ok_or_else(fault)?;
                args.watch.spend(weights.plain.len())?;
                result.extend(weights.multiply(args.watch, x, n, None)?);
            }
            Elements::Fp32(result)
        }
        (Elements::Fp64(x), Elements::Fp64(y)) => {
            let mut result = vec![0.0; total];
            for ((i, j), to) in pairs.zip(result.chunks_mut((n * columns).max(1))) {
                let x = x.get(i * n * k..(i + 1) * n * k).ok_or_else(fault)?;
                let y = y.get(j * k * columns..(j + 1) * k * columns).ok_or_else(fault)?;
                double_loop(args.watch, to, x, y, k, columns)?;
            }
            Elements::Fp64(result)
        }
        _ => return Err(unsupported_type(0, &a)),
    };
    // The dimensions that were put in for vectors go again.
    if b.rank() == 1 {
        shape.pop();
    }
    if a.rank() == 1 {
        let at = shape.len().saturating_sub(if b.rank() == 1 { 1 } else { 2 });
        shape.remove(at);
    }
    Ok(vec![Value::new(shape, data)])
}
