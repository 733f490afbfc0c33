//! Scaled dot-product attention in tiles (FlashAttention), without storing the matrix of scores.
//!
//! The forward pass keeps the running maximum and sum of the softmax of each query (Milakov and Gimelshein 2018; Dao et
//! al. 2022). It returns the logarithm of the sum, from which the backward pass recomputes each tile. In the forward
//! pass, one thread computes a head. In the backward pass, one thread computes all heads that share keys.

use self::elements::Attended;
use self::softmax::{Rows, RunningSoftmax, row_products, softmax_grad_tile, softmax_tile};
use super::{Attention, AttentionGrad};
use crate::cpu::dispatch::{by_type, contiguous, host, host_mut, scratch, unsupported};
use crate::cpu::gemm::{Output, scratch_elements};
use crate::cpu::number::{Float, Number};
use crate::cpu::parallel::Workers;
use crate::cpu::simd;
use crate::error::Result;
use crate::families;
use crate::families::RunCpu;
use crate::families::matmul::cpu::Matrix;
use crate::layout::Layout;
use crate::shape::{DType, RawElement};
use crate::storage::{View, ViewMut};

mod elements;
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

    /// The number of workspace elements for one head: two tiles of scores, the panels of a product, and `sums`.
    fn scratch(&self, sums: usize) -> usize {
        let wide = TILE.max(self.width).max(self.values);
        (TILES + scratch_elements([TILE, wide, wide])).saturating_add(sums)
    }

    /// The number of sums of the forward pass: those of a tile of 16-bit results.
    const fn sums(&self, is_half: bool) -> usize {
        if is_half { TILE * self.values } else { 0 }
    }

    /// The number of sums of the backward pass for 16-bit floats: the gradients of a tile of queries, and of a head's keys and
    /// values.
    const fn gradient_sums(&self, is_half: bool) -> usize {
        if is_half { (TILE + self.keys) * self.width + self.keys * self.values } else { 0 }
    }

    fn is_empty(&self) -> bool {
        self.heads == 0 || self.queries == 0 || self.keys == 0 || self.width == 0 || self.values == 0
    }
}

/// See [`AttentionWorkspace`](crate::families::AttentionWorkspace).
pub(crate) fn workspace(query: &[usize], value: &[usize], dtype: DType) -> usize {
    let sizes = Sizes::new(query, value);
    let scratch = sizes.scratch(sizes.sums(dtype.is_half()));
    sizes.slots().saturating_mul(scratch).saturating_mul(dtype.computed_as().size())
}

/// See [`AttentionGradWorkspace`](crate::families::AttentionGradWorkspace).
pub(crate) fn workspace_of_gradients(query: &[usize], value: &[usize], dtype: DType) -> usize {
    let sizes = Sizes::new(query, value);
    let scratch = sizes.scratch(sizes.gradient_sums(dtype.is_half()));
    sizes.slots().saturating_mul(scratch).saturating_mul(dtype.computed_as().size())
}

/// Evaluates an expression with `$S` as the element type.
macro_rules! attended {
    ($op:expr, $dtype:expr, $S:ident => $body:expr) => {
        by_type!($dtype, $S => $body,
            [F32: f32, F64: f64, F16: half::f16, BF16: half::bf16],
            dtype => Err(unsupported($op, dtype)))
    };
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

impl<'a, T: Attended> Mask<'a, T> {
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
    fn apply(&self, scores: &mut [T::Sum], head: usize, [query, key]: [usize; 2], keys: usize) {
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
                            *score = T::Sum::LOWEST;
                        }
                    }
                }
            }
            MaskValues::Added(values, layout) => {
                let places = rows(layout);
                for (row, scores) in scores.chunks_mut(keys).enumerate() {
                    for (score, place) in scores.iter_mut().zip(places(row)) {
                        *score += values[place].widen();
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
    attended!(op, out.dtype(), T => forward_of::<T>(workers, op, of, workspace, [out, log_sums]))
}

fn forward_of<T: Attended>(
    workers: &Workers,
    op: &'static str,
    of: &families::AttentionInputs<'_>,
    workspace: &mut Option<ViewMut<'_>>,
    [out, log_sums]: [&mut ViewMut<'_>; 2],
) -> Result<()> {
    let sizes = Sizes::new(of.query.layout().shape().dims(), of.value.layout().shape().dims());
    let (out, log_sums) = (host_mut::<T>(op, out)?, host_mut::<T::Sum>(op, log_sums)?);
    let mask = Mask::<T>::new(op, of)?;
    if sizes.is_empty() {
        // 0
        out.fill(T::default());
        log_sums.fill(T::Sum::LOWEST);
        return Ok(());
    }
    let query = contiguous::<T>(op, &of.query)?;
    let (keys, values) = (Heads::<T>::new(op, &of.key)?, Heads::<T>::new(op, &of.value)?);
    let of_slot = sizes.scratch(sizes.sums(T::IS_HALF));
    let scratch = scratch::<T::Sum>(op, workspace, sizes.slots() * of_slot)?;
    let scale = T::Sum::from_f64(of.scale);
    let per_slot = Sizes::per_slot(sizes.heads);
    let outs = per_slot * sizes.queries * sizes.values;
    let chunks =
        [bytes_of::<T>(outs), bytes_of::<T::Sum>(per_slot * sizes.queries), bytes_of::<T::Sum>(of_slot)];
    let slices = [as_bytes(out), as_bytes(log_sums), as_bytes(scratch)];
    workers.zipped(slices, chunks, &|slot, [out, log_sums, scratch]| {
        let (out, log_sums, scratch): (&mut [T], &mut [T::Sum], _) =
            (from_bytes(out), from_bytes(log_sums), from_bytes(scratch));
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
}

/// The size of elements.
const fn bytes_of<T>(elements: usize) -> usize {
    elements * size_of::<T>()
}

/// Slices of several types are split together as bytes.
fn as_bytes<T: RawElement>(values: &mut [T]) -> &mut [u8] {
    bytemuck::cast_slice_mut(values)
}

/// The values of [`as_bytes`], or of a part that starts between two values.
fn from_bytes<T: RawElement>(bytes: &mut [u8]) -> &mut [T] {
    bytemuck::cast_slice_mut(bytes)
}

/// The matrices of one head.
struct Head<'a, T: Attended> {
    sizes: Sizes,
    mask: Mask<'a, T>,
    scale: T::Sum,
    number: usize,
    query: &'a [T],
    key: &'a [T],
    value: &'a [T],
}

impl<T: Attended> Head<'_, T> {
    /// Computes the masked scores of a tile of queries and keys. Returns them and the number of keys.
    fn scores<'s>(
        &self,
        scores: &'s mut [T::Sum],
        query: usize,
        [key, end]: [usize; 2],
        panels: &mut [T::Sum],
    ) -> (&'s mut [T::Sum], usize) {
        let queries = tile(self.query, self.sizes.width, query, self.sizes.queries);
        let keys = tile(self.key, self.sizes.width, key, end);
        let (rows, columns) = (queries.row_count(), keys.row_count());
        let scores = &mut scores[..rows * columns];
        T::multiply(queries, keys.transposed(), scores, Output::Overwrite, panels);
        simd::each(scores, |score| *score *= self.scale);
        self.mask.apply(scores, self.number, [query, key], columns);
        (scores, columns)
    }

    fn forward(&self, out: &mut [T], log_sums: &mut [T::Sum], scratch: &mut [T::Sum]) {
        let values = self.sizes.values;
        let (scratch, rest) = scratch.split_at_mut(TILES);
        let (sums, panels) = rest.split_at_mut(self.sizes.sums(T::IS_HALF));
        let tiles = out.chunks_mut(TILE * values).zip(log_sums.chunks_mut(TILE)).enumerate();
        for (number, (out, log_sums)) in tiles {
            T::with_sums(out, sums, |out| self.forward_tile(number * TILE, out, log_sums, scratch, panels));
        }
    }

    /// Computes a tile of queries.
    fn forward_tile(
        &self,
        query: usize,
        out: &mut [T::Sum],
        log_sums: &mut [T::Sum],
        scratch: &mut [T::Sum],
        panels: &mut [T::Sum],
    ) {
        let values = self.sizes.values;
        let rows = log_sums.len();
        let (mut largest, mut sums) = ([T::Sum::LOWEST; TILE], [T::Sum::ZERO; TILE]);
        let end = self.mask.visible(query + rows);
        for key in (0..end).step_by(TILE) {
            let (scores, columns) = self.scores(scratch, query, [key, end], panels);
            let visible = |row: usize| self.mask.visible_in_tile(query + row, key, columns);
            let (largest, sums) = (&mut largest[..rows], &mut sums[..rows]);
            softmax_tile(Rows { scores, columns, visible }, RunningSoftmax { largest, sums, out, values });
            let weights = Matrix::rows(&*scores, rows, columns);
            let values = tile(self.value, values, key, end);
            T::multiply_weights(weights, values, out, output_mode(key == 0), panels);
        }
        for (row, out) in out.chunks_mut(values).enumerate() {
            // A query that attends to no key returns 0.
            if sums[row] > T::Sum::ZERO || sums[row].is_nan() {
                simd::each(out, |out| *out = *out / sums[row]);
            } else {
                // Discards NaN from infinite values with weight 0.
                out.fill(T::Sum::ZERO);
            }
            log_sums[row] = largest[row] + sums[row].ln();
        }
    }

    /// Overwrites the gradient of the query, and overwrites or adds to the sums of those of key and value. `grad` is the
    /// gradient of the output.
    fn backward(
        &self,
        ([out, grad], log_sums): ([&[T]; 2], &[T::Sum]),
        to_query: &mut [T],
        [to_key, to_value]: [&mut [T::Sum]; 2],
        overwrites_keys: bool,
        scratch: &mut [T::Sum],
    ) {
        let (width, values) = (self.sizes.width, self.sizes.values);
        let (first, scratch) = scratch.split_at_mut(TILE * TILE);
        let (second, scratch) = scratch.split_at_mut(TILE * TILE);
        let (sums, panels) = scratch.split_at_mut(if T::IS_HALF { TILE * width } else { 0 });
        // The first tile of queries that attends to a tile of keys computes it in full.
        let whole_tiles = |keys: usize| keys.next_multiple_of(TILE).min(self.sizes.keys);
        let mut seen = 0;
        for (number, to_query) in to_query.chunks_mut(TILE * width).enumerate() {
            let query = number * TILE;
            let grads = tile(grad, values, query, self.sizes.queries);
            let rows = grads.row_count();
            let mut along = [T::Sum::ZERO; TILE];
            let here = query * values..(query + rows) * values;
            row_products(&mut along[..rows], [&out[here.clone()], &grad[here]], values);
            let end = whole_tiles(self.mask.visible(query + rows));
            T::with_sums(to_query, sums, |to_query| {
                if end == 0 {
                    to_query.fill(T::Sum::ZERO);
                }
                for key in (0..end).step_by(TILE) {
                    let (scores, columns) = self.scores(first, query, [key, end], panels);
                    let to_scores = &mut second[..rows * columns];
                    let values_here = tile(self.value, values, key, end);
                    T::multiply(grads, values_here.transposed(), to_scores, Output::Overwrite, panels);
                    let visible = |row: usize| self.mask.visible_in_tile(query + row, key, columns);
                    let known = [&log_sums[query..query + rows], &along[..rows]];
                    softmax_grad_tile(Rows { scores, columns, visible }, to_scores, known, self.scale);
                    let weights = Matrix::rows(&*scores, rows, columns);
                    let to_scores = Matrix::rows(&*to_scores, rows, columns);
                    // The first tile of queries that attends to these keys overwrites their gradients.
                    let first_here = output_mode(overwrites_keys && key >= seen);
                    let part = &mut to_value[key * values..][..columns * values];
                    T::multiply_exactly(weights.transposed(), grads, part, first_here, panels);
                    let keys = tile(self.key, width, key, end);
                    T::multiply_exactly(to_scores, keys, to_query, output_mode(key == 0), panels);
                    let queries = tile(self.query, width, query, self.sizes.queries);
                    let part = &mut to_key[key * width..][..columns * width];
                    T::multiply_exactly(to_scores.transposed(), queries, part, first_here, panels);
                }
            });
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
    ([result, grad], log_sums): ([View<'_>; 2], View<'_>),
    workspace: &mut Option<ViewMut<'_>>,
    [to_query, to_key, to_value]: [&mut ViewMut<'_>; 3],
) -> Result<()> {
    attended!(op, to_query.dtype(), T => {
        let outputs = [to_query, to_key, to_value];
        backward_of::<T>(workers, op, of, ([result, grad], log_sums), workspace, outputs)
    })
}

fn backward_of<T: Attended>(
    workers: &Workers,
    op: &'static str,
    of: &families::AttentionInputs<'_>,
    ([result, grad], log_sums): ([View<'_>; 2], View<'_>),
    workspace: &mut Option<ViewMut<'_>>,
    [to_query, to_key, to_value]: [&mut ViewMut<'_>; 3],
) -> Result<()> {
    let sizes = Sizes::new(of.query.layout().shape().dims(), of.value.layout().shape().dims());
    let mask = Mask::<T>::new(op, of)?;
    let to_query = host_mut::<T>(op, to_query)?;
    let to_key = host_mut::<T>(op, to_key)?;
    let to_value = host_mut::<T>(op, to_value)?;
    if sizes.is_empty() {
        // 0
        [to_query, to_key, to_value].into_iter().for_each(|out| out.fill(T::default()));
        return Ok(());
    }
    let query = contiguous::<T>(op, &of.query)?;
    let (keys, values) = (Heads::<T>::new(op, &of.key)?, Heads::<T>::new(op, &of.value)?);
    let (result, grad) = (contiguous::<T>(op, &result)?, contiguous::<T>(op, &grad)?);
    let log_sums = contiguous::<T::Sum>(op, &log_sums)?;
    let of_slot = sizes.scratch(sizes.gradient_sums(T::IS_HALF));
    let scratch = scratch::<T::Sum>(op, workspace, sizes.slots() * of_slot)?;
    let scale = T::Sum::from_f64(of.scale);
    let (rows, columns, wide) =
        (sizes.queries * sizes.width, sizes.keys * sizes.width, sizes.keys * sizes.values);
    let outs = sizes.queries * sizes.values;
    let (per_slot, group) = (Sizes::per_slot(sizes.key_heads()), sizes.group);
    let chunks = [
        bytes_of::<T>(per_slot * group * rows),
        bytes_of::<T>(per_slot * columns),
        bytes_of::<T>(per_slot * wide),
        bytes_of::<T::Sum>(of_slot),
    ];
    let slices = [as_bytes(to_query), as_bytes(to_key), as_bytes(to_value), as_bytes(scratch)];
    workers.zipped(slices, chunks, &|slot, [to_query, to_key, to_value, scratch]| {
        let (to_query, to_key, to_value): (&mut [T], &mut [T], &mut [T]) =
            (from_bytes(to_query), from_bytes(to_key), from_bytes(to_value));
        let sums = if T::IS_HALF { [columns, wide] } else { [0; 2] };
        let (key_sums, scratch) = from_bytes::<T::Sum>(scratch).split_at_mut(sums[0]);
        let (value_sums, scratch) = scratch.split_at_mut(sums[1]);
        let of_keys = to_key.chunks_mut(columns).zip(to_value.chunks_mut(wide));
        for (key_head, (to_query, (to_key, to_value))) in
            to_query.chunks_mut(group * rows).zip(of_keys).enumerate()
        {
            let mut backward = |to_key: &mut [T::Sum], to_value: &mut [T::Sum]| {
                for (number, to_query) in to_query.chunks_mut(rows).enumerate() {
                    let head = (slot * per_slot + key_head) * group + number;
                    let whole = Head {
                        sizes,
                        mask,
                        scale,
                        number: head,
                        query: nth(query, head, rows),
                        key: keys.at(head / group),
                        value: values.at(head / group),
                    };
                    let known = (
                        [nth(result, head, outs), nth(grad, head, outs)],
                        nth(log_sums, head, sizes.queries),
                    );
                    whole.backward(known, to_query, [&mut *to_key, &mut *to_value], number == 0, scratch);
                }
            };
            T::with_sums(to_key, key_sums, |to_key| {
                T::with_sums(to_value, value_sums, |to_value| backward(to_key, to_value));
            });
        }
    });
    Ok(())
}

impl RunCpu for Attention<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let outputs = [&mut self.out, &mut self.log_sums];
        forward(workers, op, &self.of, &mut self.workspace, outputs)
    }
}

impl RunCpu for AttentionGrad<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let inputs = ([self.output, self.grad], self.log_sums);
        let outputs = [&mut self.query_grad, &mut self.key_grad, &mut self.value_grad];
        backward(workers, op, &self.of, inputs, &mut self.workspace, outputs)
    }
}
