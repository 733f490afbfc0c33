//! Products with quantized matrices: weights that stay in blocks of 8- or 4-bit values.
//!
//! - Shapes: x `[.., columns]` with W `[rows, columns]`: y = x·Wᵀ + b is `[.., rows]`.
//! - With g = ∂L/∂y: ∂L/∂x = g·W, ∂L/∂b = g summed over all rows. W is a constant.
//! - The op allocates one output, and saves W's blocks for the gradient of x. Kernels dequantize W by tile, so that no
//!   dequantized copy of it exists.

use bfc_core::Category;

use super::axes::AxisSet;
use super::index::{as_i64, expect_indices};
use super::{if_needed, promote_factors, promoted, reduce, supported};
use crate::autograd::apply;
use crate::backend::{BlockFormat, Reduce, kernels};
use crate::device::Device;
use crate::error::{Error, Result, ShapeRule};
use crate::op::Saved;
use crate::op::{Buffer, Op, OpContext};
use crate::shape::{DType, Shape};
use crate::storage::{View, ViewMut};
use crate::tensor::Tensor;

const LINEAR: &str = "linear_quantized";
const EMBEDDING: &str = "embedding_quantized";
const QUANTIZE: &str = "quantize";

/// A constant matrix in quantized blocks: the weight of a linear layer, `[outputs, inputs]`, or a table of embeddings.
///
/// Clones share the blocks. Products read the blocks, and dequantize them by tile: see
/// [`Tensor::linear_quantized`].
///
/// ```
/// use highwater::{BlockFormat, Device, QuantizedMatrix, Rng, Tensor};
/// let (device, rng) = (Device::cpu()?, Rng::new(0));
/// let weight = Tensor::uniform(&device, [10, 64], -1.0, 1.0, &rng)?;
/// let quantized = QuantizedMatrix::quantize(&weight, BlockFormat::Q4_0)?;
/// assert_eq!((quantized.rows(), quantized.columns()), (10, 64));
/// assert_eq!(quantized.bytes().elements(), 10 * 64 * 9 / 16); // 4.5 bits per value
///
/// let x = Tensor::ones(&device, [3, 64])?;
/// assert_eq!(x.linear_quantized(&quantized, None)?.dims(), [3, 10]);
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct QuantizedMatrix {
    blocks: Tensor,
    format: BlockFormat,
}

impl QuantizedMatrix {
    /// Quantizes a matrix of floats, `[rows, columns]`. No gradient flows through it.
    ///
    /// ```
    /// use highwater::{BlockFormat, Device, QuantizedMatrix, Tensor};
    /// let matrix = Tensor::full(&Device::cpu()?, [2, 64], 0.5)?;
    /// let quantized = QuantizedMatrix::quantize(&matrix, BlockFormat::Nf4)?;
    /// assert_eq!(quantized.dequantize()?.to_vec::<f32>()?, [0.5; 128]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadRank`] unless the tensor has two axes; [`Error::BadArgument`] unless the columns are whole blocks;
    /// [`Error::UnsupportedDType`] for integers and booleans; [`Error::Allocation`] if there is no memory.
    pub fn quantize(values: &Tensor, format: BlockFormat) -> Result<Self> {
        supported(QUANTIZE, values.dtype(), DType::is_float)?;
        let &[_, columns] = values.dims() else {
            return Err(Error::BadRank { op: QUANTIZE, expected: "a matrix", shape: *values.shape() });
        };
        if format.row_bytes(columns).is_none() {
            let got = format!("{columns} for blocks of {} values of {format}", format.block_values());
            let expected = "whole blocks";
            return Err(Error::BadArgument { op: QUANTIZE, argument: "columns", expected, got });
        }
        Self::from_blocks(apply(Quantize { format }, &[&values.detach()])?, format)
    }

    /// Creates a matrix from rows of blocks, `[rows, bytes of a row]`. The category of the buffer becomes parameter.
    ///
    /// ```
    /// use highwater::{BlockFormat, Device, QuantizedMatrix, Tensor};
    /// let blocks = Tensor::from_slice(&Device::cpu()?, &[0u8; 2 * 34], [1, 2 * 34])?;
    /// assert_eq!(QuantizedMatrix::from_blocks(blocks, BlockFormat::Q8_0)?.columns(), 64);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] unless the elements are of type u8; [`Error::BadRank`] unless the tensor has two axes;
    /// [`Error::BadArgument`] unless the rows are whole blocks; [`Error::Allocation`] for a tensor that is not contiguous, if
    /// there is no memory for a copy.
    pub fn from_blocks(blocks: Tensor, format: BlockFormat) -> Result<Self> {
        const OP: &str = "quantized_matrix";
        supported(OP, blocks.dtype(), |dtype| dtype == DType::U8)?;
        let &[_, bytes] = blocks.dims() else {
            let expected = "rows of blocks: two axes";
            return Err(Error::BadRank { op: OP, expected, shape: *blocks.shape() });
        };
        if !bytes.is_multiple_of(format.block_bytes()) {
            let got = format!("{bytes} bytes for blocks of {} bytes of {format}", format.block_bytes());
            let expected = "rows of whole blocks";
            return Err(Error::BadArgument { op: OP, argument: "blocks", expected, got });
        }
        let blocks = blocks.contiguous()?.detach().with_category(Category::Parameter);
        Ok(Self { blocks, format })
    }

    /// Returns the format of the blocks.
    #[must_use]
    pub const fn format(&self) -> BlockFormat {
        self.format
    }

    /// Returns the number of rows: the outputs of a linear layer.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.blocks.dims().first().copied().unwrap_or(0)
    }

    /// Returns the number of columns: the inputs of a linear layer.
    #[must_use]
    pub fn columns(&self) -> usize {
        let bytes = self.blocks.dims().last().copied().unwrap_or(0);
        bytes / self.format.block_bytes() * self.format.block_values()
    }

    /// Returns the blocks: u8, `[rows, bytes of a row]`.
    #[must_use]
    pub const fn bytes(&self) -> &Tensor {
        &self.blocks
    }

    /// Returns the device of the blocks.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.blocks.device()
    }

    /// Returns the rows and columns as a shape.
    #[must_use]
    pub fn shape(&self) -> Shape {
        Shape::matrix(self.rows(), self.columns())
    }

    /// Returns all values as f32, `[rows, columns]`.
    ///
    /// # Errors
    /// [`Error::Allocation`] if there is no memory.
    pub fn dequantize(&self) -> Result<Tensor> {
        let (format, shape) = (self.format, self.shape());
        apply(Dequantize { op: "dequantize", format, shape }, &[&self.blocks])
    }

    /// Looks up rows by tokens (u8, i32, u32 or i64, any shape). The values of the rows are a new last axis, f32.
    ///
    /// ```
    /// use highwater::{BlockFormat, Device, QuantizedMatrix, Tensor};
    /// let device = Device::cpu()?;
    /// let table = QuantizedMatrix::quantize(&Tensor::ones(&device, [100, 32])?, BlockFormat::Q8_0)?;
    /// let tokens = Tensor::from_slice(&device, &[3i64, 99, 3, 0], [2, 2])?;
    /// assert_eq!(table.embedding(&tokens)?.dims(), [2, 2, 32]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadArgument`] for tokens of another type, [`Error::IndexOutOfRange`] for a token without a row,
    /// [`Error::RankTooLarge`], [`Error::Allocation`] if there is no memory.
    pub fn embedding(&self, tokens: &Tensor) -> Result<Tensor> {
        expect_indices(EMBEDDING, "indices", tokens, &self.blocks)?;
        let shape = Shape::new(&[tokens.dims(), &[self.columns()]].concat())
            .map_err(|error| Error::from(error).in_op(EMBEDDING))?;
        let count = tokens.elements();
        let rows = Shape::matrix(count, self.columns());
        let op = Dequantize { op: EMBEDDING, format: self.format, shape: rows };
        apply(op, &[&self.blocks, &tokens.reshape([count])?])?.reshape(shape)
    }
}

#[derive(Debug)]
struct Quantize {
    format: BlockFormat,
}

impl Op for Quantize {
    fn name(&self) -> &'static str {
        QUANTIZE
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let (format, values) = (self.format, inputs[0]);
        let bytes = format.row_bytes(values.dims()[1]).unwrap_or(0);
        let shape = Shape::matrix(values.dims()[0], bytes);
        let mut out = ctx.buffer(&shape, DType::U8, Category::Parameter)?;
        ctx.compute(kernels::QuantizeRows { format, input: values.view(), out: out.view_mut() })?;
        Ok(out.finish())
    }
}

/// Converts all rows of blocks, or those of the indices.
#[derive(Debug)]
struct Dequantize {
    op: &'static str,
    format: BlockFormat,
    shape: Shape,
}

impl Op for Dequantize {
    fn name(&self) -> &'static str {
        self.op
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let mut out = ctx.output(&self.shape, DType::F32)?;
        let indices = inputs.get(1).map(|indices| as_i64(ctx, indices)).transpose()?;
        ctx.compute(kernels::DequantizeRows {
            format: self.format,
            blocks: inputs[0].view(),
            indices: indices.as_ref().map(Tensor::view),
            out: out.view_mut(),
        })?;
        Ok(out.finish())
    }
}

/// The factors of a product with a quantized matrix, for ops.
#[derive(Clone, Copy)]
pub(super) struct Product<'a> {
    pub(super) format: BlockFormat,
    /// Rows of blocks.
    pub(super) blocks: View<'a>,
    /// The left matrix.
    pub(super) lhs: View<'a>,
    /// Whether the quantized matrix is transposed.
    pub(super) transposed: bool,
}

impl Product<'_> {
    /// Computes the product, in an output of the element type of `lhs`. Allocates the workspace of the kernel.
    pub(super) fn compute(
        &self,
        ctx: &OpContext<'_>,
        bias: Option<View<'_>>,
        out: ViewMut<'_>,
    ) -> Result<()> {
        let Self { format, blocks, lhs, transposed } = *self;
        let dtype = lhs.dtype();
        let outputs = out.layout().shape().dims().last().copied().unwrap_or(0);
        let mut workspace = ctx.workspace(kernels::MatMulQuantizedWorkspace {
            lhs: lhs.layout(),
            outputs,
            transposed,
            dtype,
        })?;
        let workspace = workspace.as_mut().map(Buffer::view_mut);
        ctx.compute(kernels::MatMulQuantized { format, transposed, bias, lhs, blocks, workspace, out })
    }
}

/// The op on a matrix of rows, the blocks of W, and b if present.
#[derive(Clone, Copy, Debug)]
struct LinearQuantized {
    format: BlockFormat,
}

impl Op for LinearQuantized {
    fn name(&self) -> &'static str {
        LINEAR
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let (x, blocks, bias) = (inputs[0], inputs[1], inputs.get(2).map(|bias| bias.view()));
        let mut out = ctx.output(&Shape::matrix(x.dims()[0], blocks.dims()[0]), x.dtype())?;
        let (format, transposed) = (self.format, true);
        let product = Product { format, blocks: blocks.view(), lhs: x.view(), transposed };
        product.compute(ctx, bias, out.view_mut())?;
        if x.requires_grad() {
            ctx.save(blocks);
        }
        Ok(out.finish())
    }

    fn backward(&self, ctx: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        let to_x = if_needed(saved, 0, || {
            let mut out = ctx.gradient(0, &saved.input_shape(0), grad.dtype())?;
            let (format, blocks, lhs) = (self.format, saved.tensor(0)?.view(), grad.view());
            Product { format, blocks, lhs, transposed: false }.compute(ctx, None, out.view_mut())?;
            Ok(out.finish())
        })?;
        let mut gradients = vec![to_x, None];
        if saved.inputs() > 2 {
            gradients.push(if_needed(saved, 2, || {
                let mut rows = AxisSet::none(2);
                rows.insert(0);
                let out = ctx.gradient(2, &saved.input_shape(2), grad.dtype())?;
                reduce::share_into(ctx, (Reduce::Sum, 1.0), grad.view(), &rows, out)
            })?);
        }
        Ok(gradients)
    }
}

/// # Quantized linear map
impl Tensor {
    /// Linear map x·Wᵀ + b over the last axis, for a quantized W.
    ///
    /// Shapes: x (`self`) `[.., columns]`, W `[rows, columns]`, `bias` `[rows]`; the result is `[.., rows]`. It has the element
    /// type of x; x and a bias of another type are promoted (see [`DType`]). Products of 16-bit floats are computed in f32. x
    /// and the bias have gradients, and W has none.
    ///
    /// W is dequantized by tile, so that the op needs no memory for a dequantized copy.
    ///
    /// ```
    /// use highwater::{BlockFormat, Device, QuantizedMatrix, Tensor};
    /// let device = Device::cpu()?;
    /// let weight = QuantizedMatrix::quantize(&Tensor::ones(&device, [2, 32])?, BlockFormat::Q4_1)?;
    /// let x = Tensor::ones(&device, [1, 32])?.requiring_grad()?;
    /// let y = x.linear_quantized(&weight, Some(&Tensor::ones(&device, [2])?))?;
    /// assert_eq!(y.to_vec::<f32>()?, [33.0, 33.0]);
    /// let gradients = y.sum_all()?.backward()?;
    /// assert_eq!(gradients.get(&x).unwrap().to_vec::<f32>()?, [2.0; 32]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadRank`] for a scalar, and unless `bias` has one axis; [`Error::ShapeMismatch`] if sizes differ;
    /// [`Error::UnsupportedDType`] unless the elements are floats; [`Error::Allocation`] if there is no memory.
    pub fn linear_quantized(&self, weight: &QuantizedMatrix, bias: Option<&Self>) -> Result<Self> {
        supported(LINEAR, self.dtype(), DType::is_float)?;
        let dtype = promote_factors(self.dtype(), self.dtype());
        if self.dtype() != dtype {
            return self.to_dtype(dtype)?.linear_quantized(weight, bias);
        }
        let [leading @ .., inputs] = self.dims() else {
            return Err(Error::BadRank { op: LINEAR, expected: "at least one axis", shape: *self.shape() });
        };
        let (outputs, op) = (weight.rows(), LINEAR);
        if *inputs != weight.columns() {
            let rule = &ShapeRule::Other("the input must have one element per column of the matrix");
            return Err(Error::ShapeMismatch { op, lhs: *self.shape(), rhs: weight.shape(), rule });
        }
        if let Some(bias) = bias {
            if bias.rank() != 1 {
                return Err(Error::BadRank { op, expected: "a bias of 1 axis", shape: *bias.shape() });
            }
            if bias.dims()[0] != outputs {
                let rule = &ShapeRule::Other("the bias must have one element per row of the matrix");
                return Err(Error::ShapeMismatch { op, lhs: weight.shape(), rhs: *bias.shape(), rule });
            }
            if bias.dtype() != self.dtype() {
                let [x, bias] = promoted(self, bias)?;
                return x.linear_quantized(weight, Some(&bias));
            }
        }
        let (op, blocks) = (LinearQuantized { format: weight.format }, &weight.blocks);
        let run = |x: &Self| match bias {
            Some(bias) => apply(op, &[x, blocks, bias]),
            None => apply(op, &[x, blocks]),
        };
        if leading.len() == 1 {
            return run(self);
        }
        // The number of rows without elements may overflow.
        let Some(rows) = Shape::new(leading)?.checked_elements() else {
            return Err(Error::TooManyElements { op: LINEAR, shape: *self.shape(), dtype: self.dtype() });
        };
        run(&self.reshape([rows, *inputs])?)?.reshape([leading, &[outputs]].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::autograd::{GradCheck, check_gradients, mixed};
    use crate::device::Runtime;
    use crate::tensor::Rng;

    fn cpu() -> Device {
        Runtime::builder().threads(2).build().unwrap().cpu().unwrap()
    }

    fn noise(device: &Device, dims: &[usize]) -> Tensor {
        Tensor::uniform(device, dims, -1.0, 1.0, &Rng::new(7)).unwrap()
    }

    fn assert_close(a: &Tensor, b: &Tensor, tolerance: f32, what: &str) {
        assert_eq!(a.dims(), b.dims(), "{what}");
        let [a, b] = [a, b].map(|x| x.to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap());
        assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= tolerance * b.abs().max(1.0)), "{what}");
    }

    #[test]
    fn it_equals_the_dense_product_of_the_dequantized_matrix() {
        let device = cpu();
        for format in BlockFormat::ALL {
            let weight = QuantizedMatrix::quantize(&noise(&device, &[70, 128]), format).unwrap();
            let dense = weight.dequantize().unwrap().t().unwrap();
            let bias = noise(&device, &[70]);
            let x = noise(&device, &[6, 5, 128]);
            let inputs = [
                ("contiguous", x.clone()),
                ("one row", noise(&device, &[1, 128])),
                ("a vector", noise(&device, &[128])),
                ("transposed", noise(&device, &[128, 6]).t().unwrap()),
                ("permuted", x.permute([1, 0, 2]).unwrap()),
                ("from an offset on", x.slice_step(0, 1.., 2).unwrap()),
                ("broadcast rows", noise(&device, &[1, 128]).broadcast_to([9, 128]).unwrap()),
                ("broadcast columns", noise(&device, &[9, 1]).broadcast_to([9, 128]).unwrap()),
                ("no rows", x.narrow(0, 0, 0).unwrap()),
            ];
            for (what, x) in inputs {
                let result = x.linear_quantized(&weight, Some(&bias)).unwrap();
                let expected = x.matmul(&dense).unwrap().add(&bias).unwrap();
                assert_close(&result, &expected, 1e-5, &format!("{format}, {what}"));
                let _mixed = mixed(DType::BF16).unwrap();
                let result = x.linear_quantized(&weight, None).unwrap();
                let expected = x.matmul(&dense).unwrap();
                assert_close(&result, &expected, 5e-2, &format!("{format}, {what}, mixed"));
            }
        }
    }

    #[test]
    fn gradients_of_the_input_and_bias_are_those_of_the_dense_product() {
        let device = cpu();
        for format in BlockFormat::ALL {
            let weight = QuantizedMatrix::quantize(&noise(&device, &[64, 192]), format).unwrap();
            let dense = weight.dequantize().unwrap().t().unwrap();
            for dims in [&[1, 192][..], &[7, 192], &[3, 40, 192]] {
                let leaf = |dims: &[usize]| noise(&device, dims).requiring_grad().unwrap();
                let (x, bias) = (leaf(dims), leaf(&[64]));
                let gradients = |y: Tensor| {
                    let gradients = y.square().unwrap().sum_all().unwrap().backward().unwrap();
                    [&x, &bias].map(|leaf| gradients.get(leaf).unwrap().clone())
                };
                let result = gradients(x.linear_quantized(&weight, Some(&bias)).unwrap());
                let expected = gradients(x.matmul(&dense).unwrap().add(&bias).unwrap());
                for (result, expected) in result.iter().zip(&expected) {
                    assert_close(result, expected, 1e-4, &format!("{format} of {dims:?}"));
                }
            }
            let wide = |dims: &[usize]| noise(&device, dims).to_dtype(DType::F64).unwrap();
            let (x, bias) = (wide(&[2, 192]), wide(&[64]));
            let map = |x: &[Tensor]| x[0].linear_quantized(&weight, Some(&x[1]));
            check_gradients(map, &[x, bias], GradCheck::for_dtype(DType::F64)).unwrap();
        }
    }

    #[test]
    fn no_dense_copy_of_the_matrix_exists_at_any_time() {
        let device = cpu();
        let [rows, columns, height] = [2048, 1024, 40];
        let weight = QuantizedMatrix::quantize(&noise(&device, &[rows, columns]), BlockFormat::Q4_0).unwrap();
        let x = noise(&device, &[height, columns]).requiring_grad().unwrap();
        let memory = device.default_allocator().unwrap();
        memory.clear_stats();
        let before = memory.stats().bytes_in_use;
        let y = x.linear_quantized(&weight, None).unwrap();
        let gradients = y.sum_all().unwrap().backward().unwrap();
        let peak = memory.stats().peak_bytes_in_use - before;
        assert_eq!(gradients.get(&x).unwrap().dims(), [height, columns]);
        // Panels and results, of at most a fifth of the matrix in f32.
        assert!(peak < (rows * columns * 4 * 9 / 10) as u64, "{peak}");
        let panels = 8 * 256 * (48 + 512) * 4;
        let results = (3 * height * rows + height * columns) * 4;
        assert!(peak <= (panels + results + 4096) as u64, "{peak}");
    }

    #[test]
    fn blocks_count_as_parameters() {
        let device = cpu();
        let weight = QuantizedMatrix::quantize(&noise(&device, &[64, 64]), BlockFormat::Q8_0).unwrap();
        let x = noise(&device, &[2, 64]).requiring_grad().unwrap();
        let y = x.linear_quantized(&weight, None).unwrap();
        assert_eq!(weight.bytes().view().storage().category(), Some(Category::Parameter));
        assert_eq!(weight.bytes().elements(), 64 * 68);
        drop(y);
    }

    #[test]
    fn operands_that_do_not_fit_are_named() {
        let device = cpu();
        let weight = QuantizedMatrix::quantize(&noise(&device, &[5, 64]), BlockFormat::Nf4).unwrap();
        let message = |result: Result<Tensor>| result.unwrap_err().to_string();
        let x = noise(&device, &[2, 32]);
        assert_eq!(
            message(x.linear_quantized(&weight, None)),
            "linear_quantized: shapes [2, 32] and [5, 64] do not match: the input must have one element per column of the matrix"
        );
        let x = noise(&device, &[2, 64]);
        assert_eq!(
            message(x.linear_quantized(&weight, Some(&noise(&device, &[4])))),
            "linear_quantized: shapes [5, 64] and [4] do not match: the bias must have one element per row of the matrix"
        );
        let bad = x.linear_quantized(&weight, Some(&noise(&device, &[1, 5])));
        assert!(matches!(bad, Err(Error::BadRank { op: LINEAR, .. })));
        let scalar = Tensor::scalar(&device, 1.0f32).unwrap();
        assert!(matches!(scalar.linear_quantized(&weight, None), Err(Error::BadRank { op: LINEAR, .. })));
        let integers = Tensor::zeros_of(&device, [2, 64], DType::I64).unwrap();
        let refused = integers.linear_quantized(&weight, None);
        assert_eq!(refused.unwrap_err(), Error::UnsupportedDType { op: LINEAR, dtype: DType::I64 });

        let quantize = |values: &Tensor| QuantizedMatrix::quantize(values, BlockFormat::Nf4).unwrap_err();
        assert_eq!(
            quantize(&noise(&device, &[5, 96])).to_string(),
            "quantize: columns must be whole blocks, got 96 for blocks of 64 values of NF4"
        );
        assert!(matches!(quantize(&noise(&device, &[64])), Error::BadRank { op: QUANTIZE, .. }));
        assert_eq!(quantize(&integers), Error::UnsupportedDType { op: QUANTIZE, dtype: DType::I64 });
        let blocks = Tensor::zeros_of(&device, [2, 33], DType::U8).unwrap();
        let refused = QuantizedMatrix::from_blocks(blocks, BlockFormat::Q8_0).unwrap_err();
        assert!(matches!(refused, Error::BadArgument { argument: "blocks", .. }), "{refused}");
        let refused = QuantizedMatrix::from_blocks(integers, BlockFormat::Q8_0).unwrap_err();
        assert!(matches!(refused, Error::UnsupportedDType { dtype: DType::I64, .. }), "{refused}");
    }

    #[test]
    fn embeddings_are_rows_of_the_dequantized_matrix() {
        let device = cpu();
        for format in BlockFormat::ALL {
            let table = QuantizedMatrix::quantize(&noise(&device, &[9, 64]), format).unwrap();
            let dense = table.dequantize().unwrap();
            for dtype in [DType::U8, DType::I32, DType::U32, DType::I64] {
                let tokens = Tensor::from_slice(&device, &[8i64, 0, 8, 3, 1, 1], [2, 3]).unwrap();
                let tokens = tokens.to_dtype(dtype).unwrap();
                for tokens in [tokens.clone(), tokens.t().unwrap()] {
                    let [rows, expected] =
                        [table.embedding(&tokens).unwrap(), dense.embedding(&tokens).unwrap()];
                    assert_eq!(rows.dims(), expected.dims());
                    assert_eq!(rows.to_vec::<f32>().unwrap(), expected.to_vec::<f32>().unwrap());
                }
            }
            let beyond = Tensor::from_slice(&device, &[9i64], [1]).unwrap();
            let refused = table.embedding(&beyond).unwrap_err();
            assert_eq!(refused, Error::IndexOutOfRange { op: EMBEDDING, index: 9, len: 9 });
        }
    }
}
