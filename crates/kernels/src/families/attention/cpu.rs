//! Scaled dot-product attention in tiles (FlashAttention), without storing the matrix of scores.
//!
//! The forward pass keeps the running maximum and sum of the softmax of each query (Milakov and Gimelshein 2018; Dao et
//! al. 2022). It returns the logarithm of the sum, from which the backward pass recomputes each tile. In the forward
//! pass, one thread computes a head. In the backward pass, one thread computes all heads that share keys.

use self::softmax::{Rows, RunningSoftmax, row_products, softmax_grad_tile, softmax_tile};
use super::{Attention, AttentionGrad};
use crate::cpu::dispatch::{contiguous, float, host, host_mut, scratch};
use crate::cpu::gemm::{Output, scratch_elements};
use crate::cpu::number::Number;
use crate::cpu::parallel::Workers;
use crate::cpu::simd;
use crate::error::Result;
use crate::families;
use crate::families::RunCpu;
use crate::families::matmul::cpu::{Gemm, Matrix, multiply};
use crate::layout::Layout;
use crate::shape::{DType, RawElement};
use crate::storage::{View, ViewMut};

mod softmax;

/// The number of queries, and of keys, in a tile.
const TILE: usize = 64;

/// The elements of two tiles of scores.
const TILES: usize = 2 * TILE * TILE;

/// The largest number of heads that are computed at a time. Each has its own tiles in the workspace.
const SLOTS: usize = 8;

/// The sizes of an attention, from the shapes `[heads, queries, width]` of the query and `[key heads, keys, values]` of
/// the value.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    heads: usize,
    /// The number of heads that share keys and values.
    group: usize,
    queries: usize,
    keys: usize,
    width: usize,
    values: usize,
}

impl Sizes {
    fn new(query: &[usize], value: &[usize]) -> Self {
        let size = |dims: &[usize], axis: usize| dims.get(axis).copied().unwrap_or(0);
        Self {
            heads: size(query, 0),
            group: super::group_of(size(query, 0), size(value, 0)).unwrap_or(1),
            queries: size(query, 1),
            keys: size(value, 1),
            width: size(query, 2),
            values: size(value, 2),
        }
    }

    /// The number of heads of the forward pass, or of key heads of the backward pass, that one slot computes.
    fn per_slot(heads: usize) -> usize {
        heads.div_ceil(SLOTS).max(1)
    }

    fn slots(&self) -> usize {
        let slots = |heads: usize| heads.div_ceil(Self::per_slot(heads));
        slots(self.heads).max(slots(self.key_heads()))
    }

    fn key_heads(&self) -> usize {
        self.heads / self.group
    }

    /// The number of workspace elements for one head: two tiles of scores, and the panels of a product.
    fn scratch(&self) -> usize {
        let wide = TILE.max(self.width).max(self.values);
        TILES + scratch_elements([TILE, wide, wide])
    }

    fn is_empty(&self) -> bool {
        self.heads == 0 || self.queries == 0 || self.keys == 0 || self.width == 0 || self.values == 0
    }
}

/// See [`AttentionWorkspace`](crate::families::AttentionWorkspace).
pub(crate) fn workspace(query: &[usize], value: &[usize], dtype: DType) -> usize {
    let sizes = Sizes::new(query, value);
    sizes.slots().saturating_mul(sizes.scratch() * dtype.size())
}

/// The causal mask and the optional mask tensor.
#[derive(Clone, Copy, Debug)]
struct Mask<'a, T> {
    causal: bool,
    queries: usize,
    keys: usize,
    table: MaskValues<'a, T>,
}

/// The elements of a mask tensor of shape `[heads, queries, keys]`, in any layout.
#[derive(Clone, Copy, Debug)]
enum MaskValues<'a, T> {
    None,
    /// Booleans: whether a query attends to a key.
    Allowed(&'a [u8], &'a Layout),
    /// Numbers that are added to the scores.
    Added(&'a [T], &'a Layout),
}

impl<'a, T: Gemm> Mask<'a, T> {
    fn new(op: &'static str, of: &'a families::AttentionInputs<'_>) -> Result<Self> {
        let table = match &of.mask {
            None => MaskValues::None,
            Some(mask) if mask.dtype() == DType::Bool => {
                MaskValues::Allowed(host::<u8>(op, mask)?, mask.layout())
            }
            Some(mask) => MaskValues::Added(host::<T>(op, mask)?, mask.layout()),
        };
        let rows = |view: &View<'_>| view.layout().shape().dims().get(1).copied().unwrap_or(0);
        Ok(Self { causal: of.causal, queries: rows(&of.query), keys: rows(&of.key), table })
    }

    /// The number of keys that any query below `queries` attends to.
    fn visible(&self, queries: usize) -> usize {
        if self.causal {
            (queries + self.keys).saturating_sub(self.queries).min(self.keys)
        } else {
            self.keys
        }
    }

    /// The number of leading keys of a tile that the causal mask allows for a query.
    fn visible_in_tile(&self, query: usize, key: usize, keys: usize) -> usize {
        self.visible(query + 1).saturating_sub(key).min(keys)
    }

    /// Applies the mask tensor to the scores of the tile that starts at `query` and `key`: sets masked scores to -∞, or
    /// adds the mask.
    fn apply(&self, scores: &mut [T], head: usize, [query, key]: [usize; 2], keys: usize) {
        let rows = |layout: &Layout| {
            let (strides, offset) = ([layout.strides()[1], layout.strides()[2]], layout.offset());
            let first = offset + head * layout.strides()[0] + query * strides[0] + key * strides[1];
            move |row: usize| (0..keys).map(move |column| first + row * strides[0] + column * strides[1])
        };
        match self.table {
            MaskValues::None => {}
            MaskValues::Allowed(values, layout) => {
                let places = rows(layout);
                for (row, scores) in scores.chunks_mut(keys).enumerate() {
                    for (score, place) in scores.iter_mut().zip(places(row)) {
                        if values[place] == 0 {
                            *score = T::LOWEST;
                        }
                    }
                }
            }
            MaskValues::Added(values, layout) => {
                let places = rows(layout);
                for (row, scores) in scores.chunks_mut(keys).enumerate() {
                    for (score, place) in scores.iter_mut().zip(places(row)) {
                        *score += values[place];
                    }
                }
            }
        }
    }
}

/// At most [`TILE`] rows of a matrix, from `first` to below `end`.
fn tile<T>(data: &[T], width: usize, first: usize, end: usize) -> Matrix<'_, T> {
    let rows = TILE.min(end - first);
    Matrix::rows(&data[first * width..][..rows * width], rows, width)
}

/// The heads of keys or values, whose rows are contiguous.
#[derive(Clone, Copy)]
struct Heads<'a, T> {
    /// The buffer from the first head on.
    data: &'a [T],
    stride: usize,
    /// The number of elements of a head.
    len: usize,
}

impl<'a, T: RawElement> Heads<'a, T> {
    fn new(op: &'static str, view: &View<'a>) -> Result<Self> {
        let layout = view.layout();
        let len = layout.shape().dims().iter().skip(1).product();
        let stride = layout.strides().first().copied().unwrap_or(0);
        Ok(Self { data: &host::<T>(op, view)?[layout.offset()..], stride, len })
    }

    fn at(&self, head: usize) -> &'a [T] {
        &self.data[head * self.stride..][..self.len]
    }
}

/// Part number `number` of `data`, in parts of `len` elements.
fn nth<T>(data: &[T], number: usize, len: usize) -> &[T] {
    &data[number * len..][..len]
}

/// See [`Attention`](crate::families::Attention).
#[inline(never)]
pub(crate) fn forward(
    workers: &Workers,
    op: &'static str,
    of: &families::AttentionInputs<'_>,
    workspace: &mut Option<ViewMut<'_>>,
    [out, log_sums]: [&mut ViewMut<'_>; 2],
) -> Result<()> {
    let sizes = Sizes::new(of.query.layout().shape().dims(), of.value.layout().shape().dims());
    float!(op, out.dtype(), T => {
        let (out, log_sums) = (host_mut::<T>(op, out)?, host_mut::<T>(op, log_sums)?);
        let mask = Mask::<T>::new(op, of)?;
        if sizes.is_empty() {
            out.fill(T::ZERO);
            log_sums.fill(T::LOWEST);
            return Ok(());
        }
        let query = contiguous::<T>(op, &of.query)?;
        let (keys, values) = (Heads::<T>::new(op, &of.key)?, Heads::<T>::new(op, &of.value)?);
        let scratch = scratch::<T>(op, workspace, sizes.slots() * sizes.scratch())?;
        let scale = T::from_f64(of.scale);
        let per_slot = Sizes::per_slot(sizes.heads);
        let of = |len: usize| per_slot * len;
        let chunks = [of(sizes.queries * sizes.values), of(sizes.queries), sizes.scratch()];
        workers.zipped([out, log_sums, scratch], chunks, &|slot, [out, log_sums, scratch]| {
            let outs = out.chunks_mut(sizes.queries * sizes.values);
            for (number, (out, log_sums)) in outs.zip(log_sums.chunks_mut(sizes.queries)).enumerate() {
                let head = slot * per_slot + number;
                let head = Head {
                    sizes,
                    mask,
                    scale,
                    number: head,
                    query: nth(query, head, sizes.queries * sizes.width),
                    key: keys.at(head / sizes.group),
                    value: values.at(head / sizes.group),
                };
                head.forward(out, log_sums, scratch);
            }
        });
        Ok(())
    })
}

/// The matrices of one head.
struct Head<'a, T> {
    sizes: Sizes,
    mask: Mask<'a, T>,
    scale: T,
    number: usize,
    query: &'a [T],
    key: &'a [T],
    value: &'a [T],
}

impl<T: Gemm> Head<'_, T> {
    /// Computes the masked scores of a tile of queries and keys. Returns them and the number of keys.
    fn scores<'s>(
        &self,
        scores: &'s mut [T],
        query: usize,
        [key, end]: [usize; 2],
        panels: &mut [T],
    ) -> (&'s mut [T], usize) {
        let queries = tile(self.query, self.sizes.width, query, self.sizes.queries);
        let keys = tile(self.key, self.sizes.width, key, end);
        let (rows, columns) = (queries.row_count(), keys.row_count());
        let scores = &mut scores[..rows * columns];
        multiply(queries, keys.transposed(), scores, Output::Overwrite, panels);
        simd::each(scores, |score| *score *= self.scale);
        self.mask.apply(scores, self.number, [query, key], columns);
        (scores, columns)
    }

    fn forward(&self, out: &mut [T], log_sums: &mut [T], scratch: &mut [T]) {
        let values = self.sizes.values;
        let (scratch, panels) = scratch.split_at_mut(TILES);
        let tiles = out.chunks_mut(TILE * values).zip(log_sums.chunks_mut(TILE)).enumerate();
        for (number, (out, log_sums)) in tiles {
            let query = number * TILE;
            let rows = log_sums.len();
            let (mut largest, mut sums) = ([T::LOWEST; TILE], [T::ZERO; TILE]);
            let end = self.mask.visible(query + rows);
            for key in (0..end).step_by(TILE) {
                let (scores, columns) = self.scores(scratch, query, [key, end], panels);
                let visible = |row: usize| self.mask.visible_in_tile(query + row, key, columns);
                let (largest, sums) = (&mut largest[..rows], &mut sums[..rows]);
                softmax_tile(
                    Rows { scores, columns, visible },
                    RunningSoftmax { largest, sums, out, values },
                );
                let weights = Matrix::rows(&*scores, rows, columns);
                multiply(weights, tile(self.value, values, key, end), out, output_mode(key == 0), panels);
            }
            for (row, out) in out.chunks_mut(values).enumerate() {
                // A query that attends to no key returns 0.
                if sums[row] > T::ZERO || sums[row].is_nan() {
                    simd::each(out, |out| *out = *out / sums[row]);
                } else {
                    // Discards NaN from infinite values with weight 0.
                    out.fill(T::ZERO);
                }
                log_sums[row] = largest[row] + sums[row].ln();
            }
        }
    }

    /// Overwrites the gradient of the query, and overwrites or adds to those of key and value. `grad` is the gradient of
    /// the output.
    fn backward(
        &self,
        [out, log_sums, grad]: [&[T]; 3],
        [to_query, to_key, to_value]: [&mut [T]; 3],
        overwrites_keys: bool,
        scratch: &mut [T],
    ) {
        let (width, values) = (self.sizes.width, self.sizes.values);
        let (first, scratch) = scratch.split_at_mut(TILE * TILE);
        let (second, panels) = scratch.split_at_mut(TILE * TILE);
        // The first tile of queries that attends to a tile of keys computes it in full.
        let whole_tiles = |keys: usize| keys.next_multiple_of(TILE).min(self.sizes.keys);
        let mut seen = 0;
        for query in (0..self.sizes.queries).step_by(TILE) {
            let grads = tile(grad, values, query, self.sizes.queries);
            let rows = grads.row_count();
            let mut along = [T::ZERO; TILE];
            let here = query * values..(query + rows) * values;
            row_products(&mut along[..rows], [&out[here.clone()], &grad[here]], values);
            let end = whole_tiles(self.mask.visible(query + rows));
            if end == 0 {
                to_query[query * width..][..rows * width].fill(T::ZERO);
            }
            for key in (0..end).step_by(TILE) {
                let (scores, columns) = self.scores(first, query, [key, end], panels);
                let to_scores = &mut second[..rows * columns];
                let values_here = tile(self.value, values, key, end);
                multiply(grads, values_here.transposed(), to_scores, Output::Overwrite, panels);
                let visible = |row: usize| self.mask.visible_in_tile(query + row, key, columns);
                let known = [&log_sums[query..query + rows], &along[..rows]];
                softmax_grad_tile(Rows { scores, columns, visible }, to_scores, known, self.scale);
                let weights = Matrix::rows(&*scores, rows, columns);
                let to_scores = Matrix::rows(&*to_scores, rows, columns);
                // The first tile of queries that attends to these keys overwrites their gradients.
                let first_here = output_mode(overwrites_keys && key >= seen);
                let part = &mut to_value[key * values..][..columns * values];
                multiply(weights.transposed(), grads, part, first_here, panels);
                let part = &mut to_query[query * width..][..rows * width];
                multiply(to_scores, tile(self.key, width, key, end), part, output_mode(key == 0), panels);
                let queries = tile(self.query, width, query, self.sizes.queries);
                let part = &mut to_key[key * width..][..columns * width];
                multiply(to_scores.transposed(), queries, part, first_here, panels);
            }
            seen = end;
        }
    }
}

/// The first product of a sum overwrites the output; the others accumulate.
const fn output_mode(is_first: bool) -> Output {
    if is_first { Output::Overwrite } else { Output::Accumulate }
}

/// See [`AttentionGrad`](crate::families::AttentionGrad).
#[inline(never)]
pub(crate) fn backward(
    workers: &Workers,
    op: &'static str,
    of: &families::AttentionInputs<'_>,
    ([result, log_sums], grad): ([View<'_>; 2], View<'_>),
    workspace: &mut Option<ViewMut<'_>>,
    [to_query, to_key, to_value]: [&mut ViewMut<'_>; 3],
) -> Result<()> {
    let sizes = Sizes::new(of.query.layout().shape().dims(), of.value.layout().shape().dims());
    float!(op, to_query.dtype(), T => {
        let mask = Mask::<T>::new(op, of)?;
        let to_query = host_mut::<T>(op, to_query)?;
        let to_key = host_mut::<T>(op, to_key)?;
        let to_value = host_mut::<T>(op, to_value)?;
        if sizes.is_empty() {
            to_query.fill(T::ZERO);
            to_key.fill(T::ZERO);
            to_value.fill(T::ZERO);
            return Ok(());
        }
        let query = contiguous::<T>(op, &of.query)?;
        let (keys, values) = (Heads::<T>::new(op, &of.key)?, Heads::<T>::new(op, &of.value)?);
        let result = contiguous::<T>(op, &result)?;
        let (log_sums, grad) = (contiguous::<T>(op, &log_sums)?, contiguous::<T>(op, &grad)?);
        let scratch = scratch::<T>(op, workspace, sizes.slots() * sizes.scratch())?;
        let scale = T::from_f64(of.scale);
        let (rows, columns, wide) =
            (sizes.queries * sizes.width, sizes.keys * sizes.width, sizes.keys * sizes.values);
        let outs = sizes.queries * sizes.values;
        let (per_slot, group) = (Sizes::per_slot(sizes.key_heads()), sizes.group);
        let chunks = [per_slot * group * rows, per_slot * columns, per_slot * wide, sizes.scratch()];
        workers.zipped([to_query, to_key, to_value, scratch], chunks, &|slot, [to_query, to_key, to_value, scratch]| {
            for (number, to_query) in to_query.chunks_mut(rows).enumerate() {
                let key_head = number / group;
                let head = slot * per_slot * group + number;
                let whole = Head {
                    sizes,
                    mask,
                    scale,
                    number: head,
                    query: nth(query, head, rows),
                    key: keys.at(head / group),
                    value: values.at(head / group),
                };
                let known =
                    [nth(result, head, outs), nth(log_sums, head, sizes.queries), nth(grad, head, outs)];
                let to_key = &mut to_key[key_head * columns..][..columns];
                let to_value = &mut to_value[key_head * wide..][..wide];
                whole.backward(known, [to_query, to_key, to_value], number % group == 0, scratch);
            }
        });
        Ok(())
    })
}

impl RunCpu for Attention<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let outputs = [&mut self.out, &mut self.log_sums];
        forward(workers, op, &self.of, &mut self.workspace, outputs)
    }
}

impl RunCpu for AttentionGrad<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let inputs = ([self.output, self.log_sums], self.grad);
        let outputs = [&mut self.query_grad, &mut self.key_grad, &mut self.value_grad];
        backward(workers, op, &self.of, inputs, &mut self.workspace, outputs)
    }
}
