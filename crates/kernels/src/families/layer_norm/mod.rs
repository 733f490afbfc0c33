//! Normalization of rows: layer, group and RMS normalization.

pub(super) mod cpu;
#[cfg(feature = "cuda")]
pub(super) mod cuda;

use super::{Computation, Workspace};
use crate::cost::{Class, Work};
use crate::error::Result;
use crate::families::grid::split_rows;
use crate::operands::{CheckedOperand, Rules, checked, operands};
use crate::shape::DType;
use crate::storage::{View, ViewMut};

/// The operands that the gradients of a normalization share.
#[derive(Clone, Copy, Debug)]
pub struct Normalized<'a> {
    /// Whether the mean was subtracted.
    pub centered: bool,
    /// The input of the normalization.
    pub input: View<'a>,
    /// The weight, broadcast to the input's shape.
    pub weight: Option<View<'a>>,
    /// Shape `[rows, 2]`: μ and s, contiguous from the buffer's start.
    pub statistics: View<'a>,
}

const STATISTICS: &str = "it must be [rows, 2], where a row spans one or several of the last axes";

/// `out = (input - μ) · s · weight + bias` for each row (PyTorch's `layer_norm`, `group_norm` and `rms_norm`).
///
/// μ is the mean (0 unless centered), σ² the mean of (input - μ)², and s = 1/√(σ² + epsilon). A row spans one or
/// several of the last axes: its length is the number of elements divided by the number of rows of `statistics`.
#[derive(Debug)]
pub struct NormalizeRows<'a> {
    /// Whether the mean is subtracted.
    pub centered: bool,
    /// Added to the variance.
    pub epsilon: f64,
    /// The elements to normalize.
    pub input: View<'a>,
    /// The weight, if any, broadcast to the input's shape.
    pub weight: Option<View<'a>>,
    /// The bias, if any, broadcast to the input's shape.
    pub bias: Option<View<'a>>,
    /// The output.
    pub out: ViewMut<'a>,
    /// Shape `[rows, 2]`: μ and s.
    pub statistics: ViewMut<'a>,
}

impl<'a> Computation<'a> for NormalizeRows<'a> {
    operands!(Read input, Read weight, Read bias, Write out, Write statistics);

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        let (input, weight, bias, out, statistics) = checked!(self: input, weight, bias, out, statistics);
        rules.same_shape(out, input)?;
        rules.same_computed(&[out, input])?;
        parameter(rules, weight, input)?;
        parameter(rules, bias, input)?;
        row_length(rules, input, statistics).map(drop)
    }

    fn supports_half_on_cpu(&self) -> bool {
        true
    }

    fn work(&self) -> Work {
        Work::over(Class::Norm, self.out.layout())
    }
}

/// Checks a parameter, which is broadcast to the input.
fn parameter(
    rules: &Rules<'_>,
    parameter: Option<CheckedOperand<'_>>,
    input: CheckedOperand<'_>,
) -> Result<()> {
    let Some(parameter) = parameter else { return Ok(()) };
    rules.same_shape(parameter, input)?;
    rules.computed_like(parameter, input)
}

/// The number of elements of a row; 0 if there are no rows.
fn row_length(rules: &Rules<'_>, input: CheckedOperand<'_>, statistics: CheckedOperand<'_>) -> Result<usize> {
    rules.typed(statistics, input.dtype().computed_as())?;
    let elements = input.elements();
    let is_row = |length: usize| {
        let mut size = 1;
        input.dims().iter().rev().any(|&axis| {
            size = usize::saturating_mul(size, axis);
            size == length
        })
    };
    match *statistics.dims() {
        [0, 2] if elements == 0 => Ok(0),
        [rows, 2] if rows > 0 && elements.is_multiple_of(rows) && elements > 0 && is_row(elements / rows) => {
            Ok(elements / rows)
        }
        _ => Err(rules.mismatch(&statistics, &input, STATISTICS)),
    }
}

/// `out = s · (h - mean(h) - x̂ · mean(h x̂))` with x̂ = (input - μ) · s and h = grad · weight: the input gradient of
/// [`NormalizeRows`]. Without mean(h) unless centered.
#[derive(Debug)]
pub struct NormalizeRowsGrad<'a> {
    /// The normalization.
    pub of: Normalized<'a>,
    /// The gradient of the output.
    pub grad: View<'a>,
    /// The gradient of the input.
    pub out: ViewMut<'a>,
}

impl<'a> Computation<'a> for NormalizeRowsGrad<'a> {
    operands!(Read of.input, Read of.weight, ReadContiguous of.statistics, Read grad, Write out);

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        let (input, weight, statistics) = checked!(self: of.input, of.weight, of.statistics);
        let (grad, out) = checked!(self: grad, out);
        parameter(rules, weight, input)?;
        rules.same_shape(grad, input)?;
        row_length(rules, input, statistics)?;
        rules.same_shape(out, input)?;
        rules.same_computed(&[input, grad, out])
    }

    fn supports_half_on_cpu(&self) -> bool {
        true
    }

    fn work(&self) -> Work {
        Work::over(Class::NormGrad, self.out.layout())
    }
}

/// `weight = Σ x̂ · grad` and `bias = Σ grad` over all rows: the parameter gradients of [`NormalizeRows`].
///
/// The elements have the shape `[rows, parameters, places]`. A row of the normalization is a whole row of it, or
/// the part of a row that belongs to some of the parameters (the channels of a group).
#[derive(Debug)]
pub struct NormalizeRowsSums<'a> {
    /// The normalization, whose weight is ignored.
    pub of: Normalized<'a>,
    /// The gradient of the output.
    pub grad: View<'a>,
    /// The number of neighboring elements that share one parameter.
    pub places: usize,
    /// At least as many bytes as [`NormalizeRowsSumsWorkspace`] requires; `None` if
    /// it requires none.
    pub workspace: Option<ViewMut<'a>>,
    /// The weight's gradient, with one element per parameter.
    pub weight: ViewMut<'a>,
    /// The bias's gradient, if there is a bias.
    pub bias: Option<ViewMut<'a>>,
}

impl<'a> Computation<'a> for NormalizeRowsSums<'a> {
    operands!(
        Read of.input, Read of.weight, ReadContiguous of.statistics, Read grad,
        Scratch workspace, Write weight, Write bias,
    );

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        let (input, normalized_weight, statistics) = checked!(self: of.input, of.weight, of.statistics);
        let (grad, weight, bias, workspace) = checked!(self: grad, weight, bias, workspace);
        parameter(rules, normalized_weight, input)?;
        rules.same_shape(grad, input)?;
        let length = row_length(rules, input, statistics)?;
        rules.same_computed(&[input, grad, weight])?;
        if let Some(bias) = bias {
            rules.same_shape(bias, weight)?;
            rules.same_type(bias, weight)?;
        }
        let (elements, parameters, places) = (input.elements(), weight.elements(), self.places);
        let row = parameters.checked_mul(places).filter(|&row| row > 0);
        let rows = match row {
            _ if elements == 0 => 0,
            // A row of the normalization is one row, or the part that belongs to some of the parameters.
            Some(row)
                if elements.is_multiple_of(row)
                    && row.is_multiple_of(length)
                    && length.is_multiple_of(places) =>
            {
                elements / row
            }
            _ => {
                let rule =
                    "elements must be [rows, parameters, places], and it must have one for each parameter";
                return Err(rules.mismatch(&weight, &input, rule));
            }
        };
        let sums = 1 + usize::from(bias.is_some());
        let of = NormalizeRowsSumsWorkspace { sizes: [rows, parameters, places], sums, dtype: input.dtype() };
        rules.workspace(workspace, &of)
    }

    /// The CPU returns f32 sums.
    fn supports_half_on_cpu(&self) -> bool {
        !self.weight.dtype().is_half()
    }

    fn work(&self) -> Work {
        Work::over(Class::NormSums, self.grad.layout())
    }
}

/// The workspace of [`NormalizeRowsSums`].
#[derive(Clone, Copy, Debug)]
pub struct NormalizeRowsSumsWorkspace {
    /// Rows, parameters, and elements per row and parameter.
    pub sizes: [usize; 3],
    /// The number of gradients: 2, or 1 without a bias.
    pub sums: usize,
    /// The element type.
    pub dtype: DType,
}

impl Workspace for NormalizeRowsSumsWorkspace {
    fn cpu_bytes(&self) -> usize {
        cpu::workspace(self.sizes, self.sums, self.dtype.computed_as())
    }

    fn gpu_bytes(&self) -> usize {
        let slabs = split_rows(self.sizes).0;
        let size = self.sums * self.dtype.computed_as().size();
        if slabs == 1 { 0 } else { slabs.saturating_mul(self.sizes[1]).saturating_mul(size) }
    }
}
