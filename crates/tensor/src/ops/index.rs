//! Selection of elements by indices: tensors of u8, i32, u32 or i64.
//!
//! | op | y | ∂L/∂x | saved |
//! |---|---|---|---|
//! | `gather` | `y[.., i, ..] = x[.., indices[.., i, ..], ..]` | ∂L/∂y, added up where it was picked | indices |
//! | `index_select` | `y[.., i, ..] = x[.., indices[i], ..]` | as `gather` | indices |
//! | `embedding` | `y[.., ..] = x[indices[..], ..]` | as `gather`; 0 for the row of the padding | indices |
//! | `one_hot` | `y[.., c]` = 1 where `x[..]` = c, else 0 | | |
//!
//! The op allocates one output. It fails on an index out of range before it writes anything.
//!
//! Kernels read indices as i64. An op converts [other types](as_i64) to a temporary of 8 bytes per index, in the forward
//! pass and again in the backward pass, and saves the indices in their own type.

use super::{bad_dtype, supported};
use crate::autograd::apply;
use crate::backend::kernels;
use crate::error::{Error, Result, ShapeRule};
use crate::op::Saved;
use crate::op::{Buffer, Op, OpContext};
use crate::shape::{DType, Scalar, Shape};
use crate::tensor::Tensor;

const EMBEDDING: &str = "embedding";

/// Whether tensors of this type can be indices.
const fn is_index(dtype: DType) -> bool {
    matches!(dtype, DType::I64 | DType::I32 | DType::U32 | DType::U8)
}

/// Fails unless the element type of an argument is one of indices.
pub(super) fn expect_indices(
    op: &'static str,
    argument: &'static str,
    indices: &Tensor,
    of: &Tensor,
) -> Result<()> {
    if is_index(indices.dtype()) {
        return Ok(());
    }
    Err(bad_dtype(op, argument, "of type u8, i32, u32 or i64", indices, of))
}

/// Returns indices as i64, for kernels. Converts each index of a broadcast tensor once.
pub(super) fn as_i64(ctx: &OpContext<'_>, indices: &Tensor) -> Result<Tensor> {
    if indices.dtype() == DType::I64 {
        return Ok(indices.clone());
    }
    let distinct = indices.layout().distinct();
    let mut converted = ctx.temp(distinct.shape(), DType::I64)?;
    ctx.compute(kernels::Copy { input: indices.view().with_layout(&distinct), out: converted.view_mut() })?;
    // SAFETY: the copy has the same elements.
    unsafe { converted.view_mut().note_indices_of(indices.view()) };
    let converted = converted.finish();
    let layout = converted.layout().broadcast_to(ctx.op(), indices.shape())?;
    Ok(converted.into_layout(layout))
}

#[derive(Debug)]
pub(super) struct Gather {
    pub(super) op: &'static str,
    pub(super) axis: usize,
    /// An index without a gradient.
    pub(super) padding: Option<usize>,
}

impl Op for Gather {
    fn name(&self) -> &'static str {
        self.op
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let (op, [x, indices]) = (ctx.op(), [inputs[0], inputs[1]]);
        expect_indices(op, "indices", indices, x)?;
        let fits = indices.rank() == x.rank()
            && (0..x.rank()).all(|axis| axis == self.axis || indices.dims()[axis] <= x.dims()[axis]);
        if !fits {
            return Err(Error::ShapeMismatch { op, lhs: *x.shape(), rhs: *indices.shape(), rule: INDICES });
        }
        let mut out = ctx.output(indices.shape(), x.dtype())?;
        ctx.compute(kernels::Gather {
            input: x.view(),
            indices: as_i64(ctx, indices)?.view(),
            axis: self.axis,
            out: out.view_mut(),
        })?;
        ctx.save(indices);
        Ok(out.finish())
    }

    fn backward(&self, ctx: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        let mut out = ctx.gradient(0, &saved.input_shape(0), saved.gradient_dtype(0))?;
        scatter_add(ctx, &grad, saved.tensor(0)?, self.axis, &mut out)?;
        if let Some(start) = self.padding {
            let mut zero = ctx.temp(&Shape::SCALAR, out.view().dtype())?;
            ctx.compute(kernels::Fill { value: Scalar::Int(0), out: zero.view_mut() })?;
            let row = saved.input_shape(0).with_dim(self.axis, 1);
            let zeros = zero.view().layout().broadcast_to(self.op, &row)?;
            let input = zero.view().with_layout(&zeros);
            ctx.compute(kernels::CopyInto { input, axis: self.axis, start, step: 1, out: out.view_mut() })?;
        }
        Ok(vec![Some(out.finish()), None])
    }
}

/// The rule for the indices of [`Tensor::gather`] and [`Tensor::scatter_add`].
pub(super) const INDICES: &ShapeRule =
    &ShapeRule::Other("the indices must have as many axes, and at most the same sizes except along the axis");

/// Adds the elements of `source` to those elements of `out` that have their index along `axis`.
pub(super) fn scatter_add(
    ctx: &OpContext<'_>,
    source: &Tensor,
    indices: &Tensor,
    axis: usize,
    out: &mut Buffer,
) -> Result<()> {
    let indices = as_i64(ctx, indices)?;
    let mut workspace = ctx.workspace(kernels::ScatterAddWorkspace { indices: indices.layout(), axis })?;
    let (workspace, out) = (workspace.as_mut().map(Buffer::view_mut), out.view_mut());
    ctx.compute(kernels::ScatterAdd { input: source.view(), indices: indices.view(), axis, workspace, out })
}

#[derive(Debug)]
struct OneHot {
    classes: usize,
}

impl Op for OneHot {
    fn name(&self) -> &'static str {
        "one_hot"
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        supported(ctx.op(), inputs[0].dtype(), is_index)?;
        let shape = Shape::new(&[inputs[0].dims(), &[self.classes]].concat())?;
        let mut out = ctx.output(&shape, DType::F32)?;
        ctx.compute(kernels::OneHot { indices: as_i64(ctx, inputs[0])?.view(), out: out.view_mut() })?;
        Ok(out.finish())
    }
}

/// # Index by tensors
///
/// Indices are of type u8, i32, u32 or i64. For other types than i64, an op allocates a temporary of 8 bytes per index.
impl Tensor {
    /// Selects elements by index along an axis, as PyTorch's `gather`: `y[.., i, ..] = x[.., indices[.., i, ..], ..]`.
    ///
    /// The result has the shape of `indices`. Except along `axis`, that shape must not exceed this tensor's.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let device = Device::cpu()?;
    /// let x = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
    /// let last_and_first = Tensor::from_slice(&device, &[1u8, 0], [2, 1])?;
    /// assert_eq!(x.gather(1, &last_and_first)?.to_vec::<f32>()?, [2.0, 3.0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`], [`Error::ShapeMismatch`] if `indices` has another rank or is larger,
    /// [`Error::BadArgument`] unless it is u8, i32, u32 or i64, [`Error::IndexOutOfRange`] for an index outside of the
    /// axis, also a negative one, [`Error::Allocation`] if there is no memory.
    #[doc(alias("take_along_axis"))]
    pub fn gather(&self, axis: isize, indices: &Self) -> Result<Self> {
        let op = "gather";
        let axis = self.shape().axis(op, axis)?;
        apply(Gather { op, axis, padding: None }, &[self, indices])
    }

    /// Selects slices along `axis` by an index vector (`[n]`), for example rows of a table.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] unless `indices` has one axis; otherwise see [`Tensor::gather`].
    #[doc(alias("take"))]
    pub fn index_select(&self, axis: isize, indices: &Self) -> Result<Self> {
        self.slices("index_select", axis, indices, None)
    }

    /// Looks up rows of this embedding table, as PyTorch's `functional.embedding`. The rows are a new last axis.
    ///
    /// # Errors
    /// [`Error::BadRank`] for a table without axes; otherwise see [`Tensor::gather`].
    pub fn embedding(&self, indices: &Self) -> Result<Self> {
        self.rows(indices, None)
    }

    /// Looks up rows as [`embedding`](Self::embedding) does. The row `padding_idx` gets a gradient of 0, as with the
    /// argument of PyTorch's `functional.embedding`.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let device = Device::cpu()?;
    /// let table = Tensor::ones(&device, [3, 1])?.requiring_grad()?;
    /// let tokens = Tensor::from_slice(&device, &[2u8, 0, 2], [3])?;
    /// let gradients = table.embedding_with_padding(&tokens, 0)?.sum_all()?.backward()?;
    /// assert_eq!(gradients.get(&table).unwrap().to_vec::<f32>()?, [0.0, 0.0, 2.0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::IndexOutOfRange`] unless the table has a row `padding_idx`; otherwise see [`Tensor::embedding`].
    pub fn embedding_with_padding(&self, indices: &Self, padding_idx: usize) -> Result<Self> {
        let len = self.dims().first().copied().unwrap_or(0);
        if self.rank() > 0 && padding_idx >= len {
            let index = i64::try_from(padding_idx).unwrap_or(i64::MAX);
            return Err(Error::IndexOutOfRange { op: EMBEDDING, index, len });
        }
        self.rows(indices, Some(padding_idx))
    }

    fn rows(&self, indices: &Self, padding: Option<usize>) -> Result<Self> {
        let [_, row @ ..] = self.dims() else {
            return Err(Error::BadRank { op: EMBEDDING, expected: "a table of rows", shape: *self.shape() });
        };
        let shape = Shape::new(&[indices.dims(), row].concat())
            .map_err(|error| Error::from(error).in_op(EMBEDDING))?;
        self.slices(EMBEDDING, 0, &indices.reshape([indices.elements()])?, padding)?.reshape(shape)
    }

    /// Selects slices along `axis` on behalf of an op. The index `padding` gets no gradient.
    fn slices(&self, op: &'static str, axis: isize, indices: &Self, padding: Option<usize>) -> Result<Self> {
        let axis = self.shape().axis(op, axis)?;
        expect_indices(op, "indices", indices, self)?;
        let [n] = *indices.dims() else {
            return Err(Error::ShapeMismatch {
                op,
                lhs: *self.shape(),
                rhs: *indices.shape(),
                rule: &ShapeRule::Other("the indices must have one axis"),
            });
        };
        // Repeats the indices along the other axes, as a view.
        let lone = Shape::new(&vec![1; self.rank()])?.with_dim(axis, n);
        let everywhere = indices.reshape(lone)?.broadcast_to(self.shape().with_dim(axis, n))?;
        apply(Gather { op, axis, padding }, &[self, &everywhere])
    }

    /// One-hot encoding: returns a new last axis of `classes` elements (f32), with 1 at the index and 0 elsewhere.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] unless this tensor is u8, i32, u32 or i64, [`Error::IndexOutOfRange`] for an index
    /// outside of the classes, also a negative one, [`Error::RankTooLarge`], [`Error::Allocation`] if there is no memory.
    pub fn one_hot(&self, classes: usize) -> Result<Self> {
        apply(OneHot { classes }, &[self])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Device, Runtime};

    fn cpu() -> Device {
        Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
    }

    fn indices(device: &Device, values: &[i64]) -> Tensor {
        Tensor::from_slice(device, values, values.len()).unwrap()
    }

    #[test]
    fn selected_rows_keep_their_order_and_sum_gradients() {
        let device = cpu();
        let x = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [3, 2]).unwrap();
        let x = x.requiring_grad().unwrap();
        let rows = x.index_select(0, &indices(&device, &[2, 0, 2, 2])).unwrap();
        assert_eq!(rows.to_vec::<f32>().unwrap(), [5.0, 6.0, 1.0, 2.0, 5.0, 6.0, 5.0, 6.0]);
        let gradients = rows.sum_all().unwrap().backward().unwrap();
        assert_eq!(gradients.get(&x).unwrap().to_vec::<f32>().unwrap(), [1.0, 1.0, 0.0, 0.0, 3.0, 3.0]);
        let columns = x.index_select(-1, &indices(&device, &[1])).unwrap();
        assert_eq!((columns.dims(), columns.to_vec::<f32>().unwrap()), (&[3, 1][..], vec![2.0, 4.0, 6.0]));
        assert_eq!(x.index_select(0, &indices(&device, &[])).unwrap().dims(), [0, 2]);
    }

    #[test]
    fn the_padding_of_an_embedding_has_values_and_no_gradient() {
        let device = cpu();
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            let table = Tensor::full_of(&device, [3, 2], 7.0, dtype).unwrap().requiring_grad().unwrap();
            let rows = table.embedding_with_padding(&indices(&device, &[1, 2, 1, 2, 0]), 1).unwrap();
            let wide = |x: &Tensor| x.to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap();
            assert_eq!(wide(&rows), [7.0; 10]);
            let gradients = rows.sum_all().unwrap().backward().unwrap();
            assert_eq!(wide(gradients.get(&table).unwrap()), [1.0, 1.0, 0.0, 0.0, 2.0, 2.0], "{dtype}");
            let refused = table.embedding_with_padding(&indices(&device, &[0]), 3);
            assert_eq!(refused.unwrap_err(), Error::IndexOutOfRange { op: "embedding", index: 3, len: 3 });
        }
    }

    #[test]
    fn one_hot_rows_have_a_single_one() {
        let rows = indices(&cpu(), &[2, 0]).one_hot(3).unwrap();
        assert_eq!((rows.dims(), rows.dtype()), (&[2, 3][..], DType::F32));
        assert_eq!(rows.to_vec::<f32>().unwrap(), [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn indices_that_do_not_fit_are_named() {
        let device = cpu();
        let x = Tensor::zeros(&device, [2, 3]).unwrap();
        let message = |result: Result<Tensor>| result.unwrap_err().to_string();
        let two = indices(&device, &[0, 1]);
        assert_eq!(
            message(x.gather(0, &two)),
            "gather: shapes [2, 3] and [2] do not match: the indices must have as many axes, and at most the same sizes except along the axis"
        );
        let tall = two.reshape([2, 1]).unwrap();
        let wide = tall.broadcast_to([2, 4]).unwrap();
        assert_eq!(
            message(x.gather(0, &wide)),
            "gather: shapes [2, 3] and [2, 4] do not match: the indices must have as many axes, and at most the same sizes except along the axis"
        );
        assert_eq!(x.gather(1, &wide).unwrap().dims(), [2, 4]);
        assert_eq!(
            message(x.index_select(0, &tall)),
            "index_select: shapes [2, 3] and [2, 1] do not match: the indices must have one axis"
        );
        assert_eq!(
            message(x.gather(0, &x)),
            "gather: indices must be of type u8, i32, u32 or i64, got f32 of shape [2, 3] for a tensor of shape [2, 3]"
        );
        assert_eq!(
            message(x.index_select(0, &indices(&device, &[0, 2]))),
            "index_select: index 2 is out of range for length 2"
        );
        assert_eq!(message(two.one_hot(1)), "one_hot: index 1 is out of range for length 1");
        assert_eq!(
            message(x.one_hot(3)),
            "one_hot: does not support element type f32; convert with `to_dtype`"
        );
    }
}
