//! Kernels on quantized matrices: rows of blocks, which products dequantize by tile.

pub(super) mod cpu;
#[cfg(feature = "cuda")]
pub(super) mod cuda;
mod formats;

pub use self::formats::BlockFormat;
use super::{Computation, Workspace};
use crate::cost::{Class, Work, products};
use crate::error::{KernelError, Result};
use crate::layout::Layout;
use crate::operands::{CheckedOperand, Operand, Rules, Visit, checked, field, operands};
use crate::shape::DType;
use crate::storage::{View, ViewMut};

const BLOCKS: &str = "rows of blocks must be [rows, bytes of the columns]";
const FACTORS: &str = "the inner sizes of the product must be equal";
const PRODUCT: &str = "it must have a row for each row of `lhs`, and the columns of the matrix";

/// `out = lhs · Wᵀ + bias` or `out = lhs · W + bias` for a quantized matrix W of `[rows, columns]`. Floats only. Products of
/// 16-bit floats are summed in f32. A CPU rounds W to bf16 for the products of several rows of bf16.
#[derive(Debug)]
pub struct MatMulQuantized<'a> {
    /// The format of the blocks.
    pub format: BlockFormat,
    /// Whether W is transposed: `lhs` then has as many columns as W, else as many columns as W has rows.
    pub transposed: bool,
    /// The bias, of one row of the product.
    pub bias: Option<View<'a>>,
    /// The left matrix.
    pub lhs: View<'a>,
    /// W: rows of blocks, u8.
    pub blocks: View<'a>,
    /// At least as many bytes as [`MatMulQuantizedWorkspace`] requires; `None` if it requires none.
    pub workspace: Option<ViewMut<'a>>,
    /// The product.
    pub out: ViewMut<'a>,
}

impl<'a> Computation<'a> for MatMulQuantized<'a> {
    operands!(Read lhs, ReadContiguous blocks, Read bias, Scratch workspace, Write out);

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        let (lhs, blocks, bias) = checked!(self: lhs, blocks, bias);
        let (workspace, out) = checked!(self: workspace, out);
        rules.same_type(lhs, out)?;
        float(rules, out)?;
        let [rows, bytes] = matrix(rules, blocks)?;
        let (&[height, depth], &[_, width]) = (lhs.dims(), out.dims()) else {
            return Err(rules.mismatch(if lhs.dims().len() == 2 { &out } else { &lhs }, &blocks, PRODUCT));
        };
        let (columns, others, other) =
            if self.transposed { (depth, width, out) } else { (width, depth, lhs) };
        if self.format.row_bytes(columns) != Some(bytes) {
            return Err(rules.mismatch(&blocks, if self.transposed { &lhs } else { &out }, BLOCKS));
        }
        if others != rows {
            return Err(rules.mismatch(&other, &blocks, if self.transposed { PRODUCT } else { FACTORS }));
        }
        if out.dims()[0] != height {
            return Err(rules.mismatch(&out, &lhs, PRODUCT));
        }
        if let Some(bias) = bias {
            rules.same_type(bias, out)?;
            rules.sized(bias, &[width], out, "it must be one row of the product")?;
        }
        let (lhs, transposed, dtype) = (lhs.layout(), self.transposed, out.dtype());
        let of = MatMulQuantizedWorkspace { lhs, outputs: width, transposed, dtype };
        rules.workspace(workspace, &of)
    }

    fn supports_half_on_cpu(&self) -> bool {
        true
    }

    fn work(&self) -> Work {
        let (&[rows, columns], &[_, depth]) =
            (self.out.layout().shape().dims(), self.lhs.layout().shape().dims())
        else {
            return Work::new(Class::Product);
        };
        Work { is_half: self.out.dtype().is_half(), ..products(Class::Product, 1, [rows, columns, depth]) }
    }
}

/// The workspace of a [`MatMulQuantized`].
#[derive(Clone, Copy, Debug)]
pub struct MatMulQuantizedWorkspace<'a> {
    /// The layout of the left factor.
    pub lhs: &'a Layout,
    /// The columns of the product.
    pub outputs: usize,
    /// Whether the quantized matrix is transposed.
    pub transposed: bool,
    /// The element type of the left factor.
    pub dtype: DType,
}

impl Workspace for MatMulQuantizedWorkspace<'_> {
    fn cpu_bytes(&self) -> usize {
        cpu::workspace(self)
    }

    /// The kernel dequantizes tiles to shared memory.
    fn gpu_bytes(&self) -> usize {
        0
    }
}

/// `out[i, ..] = W[indices[i], ..]` for a quantized matrix W, or all rows without indices. An index out of range is
/// [`KernelError::IndexOutOfRange`], before the kernel writes anything.
#[derive(Debug)]
pub struct DequantizeRows<'a> {
    /// The format of the blocks.
    pub format: BlockFormat,
    /// W: rows of blocks, u8.
    pub blocks: View<'a>,
    /// The rows to convert, i64, of one axis; `None` for all rows.
    pub indices: Option<View<'a>>,
    /// Has a row for each index, and the columns of W. Floats.
    pub out: ViewMut<'a>,
}

impl<'a> Computation<'a> for DequantizeRows<'a> {
    const SUPPORTS_HALF: bool = true;

    fn operands<'k>(&'k mut self, visit: &mut impl Visit<'k, 'a>) -> Result<()>
    where
        'a: 'k,
    {
        let dims = self.blocks.layout().shape().dims();
        let read = match (&self.indices, dims) {
            (Some(indices), [_, bytes]) => indices.layout().shape().elements().saturating_mul(*bytes),
            _ => self.blocks.layout().shape().elements(),
        };
        if self.blocks.layout().is_contiguous() {
            visit(field!(self.blocks), Operand::ReadPart(&mut self.blocks, read))?;
        } else {
            visit(field!(self.blocks), Operand::ReadContiguous(&mut self.blocks))?;
        }
        let name = field!(self.indices);
        if let Some(indices) = &mut self.indices {
            visit(name, Operand::Read(indices))?;
        }
        visit(field!(self.out), Operand::Write(&mut self.out))
    }

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        let (blocks, indices, out) = checked!(self: blocks, indices, out);
        float(rules, out)?;
        let [rows, bytes] = matrix(rules, blocks)?;
        let count = match indices {
            None => rows,
            Some(indices) => {
                rules.typed(indices, DType::I64)?;
                match indices.dims() {
                    &[count] => count,
                    _ => return Err(rules.mismatch(&indices, &blocks, "they must have one axis")),
                }
            }
        };
        match out.dims() {
            &[height, columns] if height == count && self.format.row_bytes(columns) == Some(bytes) => Ok(()),
            _ => Err(rules.mismatch(
                &out,
                &blocks,
                "it must have the columns of the matrix, and a row for each",
            )),
        }
    }

    fn work(&self) -> Work {
        Work::over(Class::Gather, self.out.layout())
    }
}

/// `out = quantized input`, row by row.
#[derive(Debug)]
pub struct QuantizeRows<'a> {
    /// The format of the blocks.
    pub format: BlockFormat,
    /// The values: floats, of two axes.
    pub input: View<'a>,
    /// Rows of blocks, u8.
    pub out: ViewMut<'a>,
}

impl<'a> Computation<'a> for QuantizeRows<'a> {
    const SUPPORTS_HALF: bool = true;

    operands!(Read input, Write out);

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        let (input, out) = checked!(self: input, out);
        float(rules, input)?;
        let [rows, bytes] = matrix(rules, out)?;
        match input.dims() {
            &[height, columns] if height == rows && self.format.row_bytes(columns) == Some(bytes) => Ok(()),
            _ => Err(rules.mismatch(&out, &input, BLOCKS)),
        }
    }

    fn work(&self) -> Work {
        Work::over(Class::Function, self.input.layout())
    }
}

/// Checks that an operand has floats.
fn float(rules: &Rules<'_>, operand: CheckedOperand<'_>) -> Result<()> {
    match operand.dtype() {
        dtype if dtype.is_float() => Ok(()),
        dtype => Err(KernelError::UnsupportedDType { op: rules.op, dtype }),
    }
}

/// Checks that an operand has rows of blocks, and returns the number of rows and their bytes.
fn matrix(rules: &Rules<'_>, blocks: CheckedOperand<'_>) -> Result<[usize; 2]> {
    rules.typed(blocks, DType::U8)?;
    match blocks.dims() {
        &[rows, bytes] => Ok([rows, bytes]),
        _ => Err(rules.mismatch(&blocks, &blocks, BLOCKS)),
    }
}
