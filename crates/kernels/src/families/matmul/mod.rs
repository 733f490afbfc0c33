//! Matrix products.

pub(super) mod cpu;
#[cfg(feature = "cuda")]
pub(super) mod cuda;

use super::{Computation, Workspace};
use crate::cost::{Class, Work, products};
use crate::error::Result;
use crate::families::{Unary, fast};
use crate::layout::Layout;
use crate::operands::{CheckedOperand, Field, Rules, checked, operands};
use crate::shape::DType;
use crate::storage::{View, ViewMut};

/// An activation that a matrix product can apply to its result in the same pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// [`Unary::Relu`].
    Relu,
    /// [`Unary::Gelu`].
    Gelu,
    /// [`Unary::GeluTanh`].
    GeluTanh,
    /// [`Unary::Silu`].
    Silu,
}

impl Activation {
    /// All activations.
    pub const ALL: [Self; 4] = [Self::Relu, Self::Gelu, Self::GeluTanh, Self::Silu];

    /// The function.
    #[must_use]
    pub const fn function(self) -> Unary {
        match self {
            Self::Relu => Unary::Relu,
            Self::Gelu => Unary::Gelu,
            Self::GeluTanh => Unary::GeluTanh,
            Self::Silu => Unary::Silu,
        }
    }

    /// Returns the function's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.function().name()
    }
}

/// The activation of a product's elements.
#[derive(Debug)]
pub struct Activated<'a> {
    /// The function. It applies to the product rounded to the element type.
    pub function: Activation,
    /// Receives the function's arguments for the backward pass, if requested. Has the product's shape.
    pub arguments: Option<ViewMut<'a>>,
}

/// The operand of an activation is its arguments.
impl<'a> Field<'a> for Option<Activated<'a>> {
    type View = ViewMut<'a>;
    type Checked = Option<CheckedOperand<'a>>;

    #[inline(always)]
    fn view_mut(&mut self) -> Option<&mut ViewMut<'a>> {
        self.as_mut().and_then(|activated| activated.arguments.as_mut())
    }

    fn checked(&self, name: &'static str) -> Option<CheckedOperand<'a>> {
        self.as_ref().and_then(|activated| activated.arguments.checked(name))
    }
}

/// `out[.., i, j] = f(bias[j] + Σₖ lhs[.., i, k] · rhs[.., k, j])`; f requires floats. The factors have the leading
/// axes of the output. 16-bit factors are multiplied and summed in f32. The output has their type, or f32 if there is no bias
/// and no activation.
#[derive(Debug)]
pub struct MatMul<'a> {
    /// The bias, of shape `[j]`.
    pub bias: Option<View<'a>>,
    /// The left matrices.
    pub lhs: View<'a>,
    /// The right matrices.
    pub rhs: View<'a>,
    /// The function f; `None` for the sums themselves.
    pub activation: Option<Activated<'a>>,
    /// At least as many bytes as [`MatMulWorkspace`] requires; `None` if it requires none.
    pub workspace: Option<ViewMut<'a>>,
    /// The product.
    pub out: ViewMut<'a>,
}

const FACTORS: &str = "the factors must be [.., i, k] and [.., k, j]";
const PRODUCT: &str = "the product of [.., i, k] and [.., k, j] must be [.., i, j]";

impl<'a> Computation<'a> for MatMul<'a> {
    operands!(Read lhs, Read rhs, Read bias, Write activation, Scratch workspace, Write out);

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        let (lhs, rhs, out) = checked!(self: lhs, rhs, out);
        rules.same_type(rhs, lhs)?;
        if self.bias.is_some() || self.activation.is_some() || out.dtype() != lhs.dtype().computed_as() {
            rules.same_type(lhs, out)?;
        }
        batched(rules, [lhs, rhs, out])?;
        let (bias, arguments, workspace) = checked!(self: bias, activation, workspace);
        if let Some(bias) = bias {
            rules.same_type(bias, out)?;
            // A product has at least two axes.
            if bias.dims().len() != 1 || bias.dims().last() != out.dims().last() {
                return Err(rules.mismatch(&bias, &out, "it must be one row of the product"));
            }
        }
        if let Some(arguments) = arguments {
            rules.same_shape(arguments, out)?;
            rules.same_type(arguments, out)?;
        }
        // A product without a workspace is valid on every backend.
        if workspace.is_none() {
            return Ok(());
        }
        let (lhs, rhs, dtype, out) = (lhs.layout(), rhs.layout(), lhs.dtype(), out.dtype());
        rules.workspace(workspace, &MatMulWorkspace { lhs, rhs, dtype, out })
    }

    #[inline(always)]
    fn fast_check(&mut self, device: u32) -> Option<DType> {
        let Self { bias, lhs, rhs, activation, workspace: None, out } = self else { return None };
        let arguments = activation.as_ref().and_then(|activated| activated.arguments.as_ref());
        let fits = arguments.is_none()
            && fast::is_written(out, device)
            && fast::is_read(lhs, out, device)
            && fast::is_read(rhs, out, device)
            && is_product([lhs, rhs], bias.as_ref(), out, device);
        fits.then(|| out.dtype())
    }

    fn supports_half_on_cpu(&self) -> bool {
        true
    }

    fn work(&self) -> Work {
        let lhs = self.lhs.layout().shape().dims();
        let (&[ref batch @ .., rows, columns], depth) =
            (self.out.layout().shape().dims(), lhs.last().copied().unwrap_or(0))
        else {
            return Work::new(Class::Product);
        };
        let applied = self.activation.as_ref().is_some_and(|of| !of.function.function().is_light());
        Work {
            is_half: self.rhs.dtype().is_half(),
            elements: if applied { self.out.layout().shape().elements() as u64 } else { 0 },
            ..products(Class::Product, batch.iter().product(), [rows, columns, depth])
        }
    }
}

/// `out = lhs · rhs` or `out += lhs · rhs` for one pair of matrices. The output has the type of the sums: f32 for 16-bit
/// factors. So the product of matrices that exist in parts, one after the other, is rounded once.
#[derive(Debug)]
pub struct MatMulSum<'a> {
    /// Whether the product is added to the output.
    pub accumulate: bool,
    /// The left matrix.
    pub lhs: View<'a>,
    /// The right matrix.
    pub rhs: View<'a>,
    /// At least as many bytes as [`MatMulWorkspace`] requires; `None` if it requires none.
    pub workspace: Option<ViewMut<'a>>,
    /// The sums.
    pub out: ViewMut<'a>,
}

impl<'a> Computation<'a> for MatMulSum<'a> {
    operands!(Read lhs, Read rhs, Scratch workspace, Update out);

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        let (lhs, rhs, workspace, out) = checked!(self: lhs, rhs, workspace, out);
        rules.same_type(rhs, lhs)?;
        rules.typed(out, lhs.dtype().computed_as())?;
        if lhs.dims().len() != 2 {
            return Err(rules.mismatch(&lhs, &rhs, FACTORS));
        }
        batched(rules, [lhs, rhs, out])?;
        let (lhs, rhs, dtype, out) = (lhs.layout(), rhs.layout(), lhs.dtype(), out.dtype());
        rules.workspace(workspace, &MatMulWorkspace { lhs, rhs, dtype, out })
    }

    fn supports_half_on_cpu(&self) -> bool {
        true
    }

    fn work(&self) -> Work {
        let (Some([rows, columns]), Some([_, depth])) =
            (self.out.layout().shape().as_matrix(), self.lhs.layout().shape().as_matrix())
        else {
            return Work::new(Class::Product);
        };
        Work { is_half: self.rhs.dtype().is_half(), ..products(Class::Product, 1, [rows, columns, depth]) }
    }
}

/// Checks the shapes of a batched matrix product.
fn batched(rules: &Rules<'_>, [lhs, rhs, out]: [CheckedOperand<'_>; 3]) -> Result<()> {
    let [left, right, product] = [lhs, rhs, out].map(|operand| operand.dims().split_last_chunk::<2>());
    let (Some((batch, &[rows, depth])), Some((other, &[inner, columns]))) = (left, right) else {
        return Err(rules.mismatch(&lhs, &rhs, FACTORS));
    };
    if batch != other || depth != inner {
        return Err(rules.mismatch(&rhs, &lhs, FACTORS));
    }
    if product != Some((batch, &[rows, columns])) {
        return Err(rules.mismatch(&out, &lhs, PRODUCT));
    }
    Ok(())
}

/// Whether `out` has the shape of the product of two matrices, and the bias that of its rows.
#[inline(always)]
fn is_product([lhs, rhs]: [&View<'_>; 2], bias: Option<&View<'_>>, out: &ViewMut<'_>, device: u32) -> bool {
    let [lhs, rhs] = [lhs, rhs].map(|factor| factor.layout().shape().as_matrix());
    let (Some([rows, depth]), Some([inner, columns]), Some(product)) =
        (lhs, rhs, out.layout().shape().as_matrix())
    else {
        return false;
    };
    let is_row =
        |bias: &View<'_>| fast::is_read(bias, out, device) && bias.layout().shape().is_row_of(columns);
    depth == inner && product == [rows, columns] && bias.is_none_or(is_row)
}

/// The workspace of a [`MatMul`] or a [`MatMulSum`].
#[derive(Clone, Copy, Debug)]
pub struct MatMulWorkspace<'a> {
    /// The layout of the left factor.
    pub lhs: &'a Layout,
    /// The layout of the right factor.
    pub rhs: &'a Layout,
    /// The element type of the factors.
    pub dtype: DType,
    /// The element type of the product.
    pub out: DType,
}

impl Workspace for MatMulWorkspace<'_> {
    fn cpu_bytes(&self) -> usize {
        cpu::workspace(self.lhs, self.rhs, self.dtype, self.out)
    }

    /// The memory of cuBLAS, whether or not it is installed.
    ///
    /// cuBLAS keeps the partial products of split-K there: one for each 256 of the depth, at most eight. It gets at least
    /// 16 KiB and at most 4 MiB, the range from which it profits.
    fn gpu_bytes(&self) -> usize {
        // cuBLAS multiplies floats only.
        if !self.dtype.is_float() {
            return 0;
        }
        let &[.., rows, depth] = self.lhs.shape().dims() else { return 0 };
        let columns = self.rhs.shape().dims().last().copied().unwrap_or(0);
        if [rows, depth, columns].contains(&0) {
            return 0;
        }
        let parts = rows.saturating_mul(columns).saturating_mul((depth / 256).min(8) * size_of::<f32>());
        parts.clamp(16 << 10, 4 << 20).next_multiple_of(256)
    }
}
