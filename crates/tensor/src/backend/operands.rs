//! The operands of every kernel, in one list.
//!
//! [`Kernel::operands`] is the only place that knows which fields of a kernel are operands and how the kernel accesses
//! them. The check of operands and the upcast of 16-bit floats are loops over this list.

use super::{Attention, Kernel, Normalized, Recurrence};
use crate::error::Result;
use crate::layout::Layout;
use crate::shape::DType;
use crate::storage::{Storage, View, ViewMut};

/// An operand of a kernel with its kind of access.
pub(crate) enum Operand<'k, 'a> {
    /// An input in any layout.
    Read(&'k mut View<'a>),
    /// An input that must be contiguous.
    ReadContiguous(&'k mut View<'a>),
    /// An output that the kernel overwrites. It must be contiguous from the start of its buffer.
    Write(&'k mut ViewMut<'a>),
    /// An output in any layout of which the kernel overwrites a part.
    WritePart(&'k mut ViewMut<'a>),
    /// An operand that the kernel updates in place. It must be contiguous from the start of its buffer.
    Update(&'k mut ViewMut<'a>),
}

impl<'a> Operand<'_, 'a> {
    /// The buffer.
    #[inline(always)]
    pub(crate) fn storage(&self) -> &Storage {
        match self {
            Self::Read(view) | Self::ReadContiguous(view) => view.storage(),
            Self::Write(view) | Self::WritePart(view) | Self::Update(view) => view.storage(),
        }
    }

    /// The layout of the elements in the buffer.
    #[inline(always)]
    pub(crate) const fn layout(&self) -> &'a Layout {
        match self {
            Self::Read(view) | Self::ReadContiguous(view) => view.layout(),
            Self::Write(view) | Self::WritePart(view) | Self::Update(view) => view.layout(),
        }
    }

    /// The element type.
    #[inline(always)]
    pub(crate) fn dtype(&self) -> DType {
        self.storage().dtype()
    }

    /// Whether the layout fits the kind of access.
    #[inline(always)]
    pub(crate) fn has_valid_layout(&self) -> bool {
        let layout = self.layout();
        match self {
            Self::Read(_) | Self::WritePart(_) => true,
            Self::ReadContiguous(_) => layout.is_contiguous(),
            Self::Write(_) | Self::Update(_) => layout.offset() == 0 && layout.is_contiguous(),
        }
    }
}

/// The largest number of operands of a kernel.
pub(crate) const MAX_OPERANDS: usize = 11;

impl<'a> Kernel<'a> {
    /// Whether the kernel copies elements without computing with them.
    #[inline(always)]
    pub(crate) const fn only_copies(&self) -> bool {
        matches!(
            self,
            Self::Fill { .. }
                | Self::Arange { .. }
                | Self::Copy { .. }
                | Self::Flip { .. }
                | Self::CopyInto { .. }
                | Self::Select { .. }
                | Self::Gather { .. }
        )
    }

    /// Whether the kernel computes each element from the elements at the same index, in any number type. Every backend
    /// accepts 16-bit floats in these kernels, also mixed with f32.
    #[inline(always)]
    pub(crate) const fn is_elementwise(&self) -> bool {
        matches!(
            self,
            Self::Unary { .. }
                | Self::UnaryGrad { .. }
                | Self::Binary { .. }
                | Self::Accumulate { .. }
                | Self::Scale { .. }
                | Self::Clip { .. }
                | Self::Sgd { .. }
                | Self::Adam { .. }
                | Self::RmsProp { .. }
                | Self::Lion { .. }
        )
    }

    /// Calls `visit` with the name and the access of each operand; stops at the first error. Inputs precede outputs.
    // Inlined, because most callers know the kernel at compile time.
    #[inline(always)]
    pub(crate) fn operands<'k>(
        &'k mut self,
        mut visit: impl FnMut(&'static str, Operand<'k, 'a>) -> Result<()>,
    ) -> Result<()> {
        use Operand::{Read, ReadContiguous, Update, Write, WritePart};
        let visit = &mut visit;
        match self {
            Self::Fill { out, .. } | Self::Arange { out, .. } | Self::Random { out, .. } => {
                visit("out", Write(out))
            }
            Self::Copy { input, out }
            | Self::Flip { input, out, .. }
            | Self::Unary { input, out, .. }
            | Self::ArgReduce { input, out, .. }
            | Self::Softmax { input, out, .. } => {
                visit("input", Read(input))?;
                visit("out", Write(out))
            }
            Self::CopyInto { input, out, .. } => {
                visit("input", Read(input))?;
                visit("out", WritePart(out))
            }
            Self::UnaryGrad { saved, grad, out, .. } => {
                visit("saved", Read(saved))?;
                match grad {
                    Some(grad) => {
                        visit("grad", Read(grad))?;
                        visit("out", Write(out))
                    }
                    None => visit("out", Update(out)),
                }
            }
            Self::Binary { lhs, rhs, out, .. } | Self::Compare { lhs, rhs, out, .. } => {
                visit("lhs", Read(lhs))?;
                visit("rhs", Read(rhs))?;
                visit("out", Write(out))
            }
            Self::Accumulate { input, acc, .. } => {
                visit("input", Read(input))?;
                visit("acc", Update(acc))
            }
            Self::Select { condition, lhs, rhs, out } => {
                visit("condition", Read(condition))?;
                visit("lhs", Read(lhs))?;
                visit("rhs", Read(rhs))?;
                visit("out", Write(out))
            }
            Self::Reduce { input, workspace, out, .. } | Self::ArgSort { input, workspace, out, .. } => {
                visit("input", Read(input))?;
                optional(visit, "workspace", workspace)?;
                visit("out", Write(out))
            }
            Self::RunningSum { out, .. } => visit("out", Update(out)),
            Self::MatMul { bias, lhs, rhs, activation, workspace, out, .. } => {
                visit("lhs", Read(lhs))?;
                visit("rhs", Read(rhs))?;
                if let Some(bias) = bias {
                    visit("bias", Read(bias))?;
                }
                if let Some(activated) = activation {
                    optional(visit, "arguments", &mut activated.arguments)?;
                }
                optional(visit, "workspace", workspace)?;
                visit("out", Write(out))
            }
            Self::SoftmaxGrad { output, grad, out, .. } => {
                visit("output", Read(output))?;
                visit("grad", Read(grad))?;
                visit("out", Write(out))
            }
            Self::LayerNorm { input, affine: [weight, bias], out, statistics, .. } => {
                visit("input", Read(input))?;
                for (name, parameter) in [("affine.0", weight), ("affine.1", bias)] {
                    if let Some(parameter) = parameter {
                        visit(name, Read(parameter))?;
                    }
                }
                visit("out", Write(out))?;
                visit("statistics", Write(statistics))
            }
            Self::LayerNormGrad { of, grad, out } => {
                normalized(visit, of)?;
                visit("grad", Read(grad))?;
                visit("out", Write(out))
            }
            Self::LayerNormSums { of, grad, workspace, weight, bias, .. } => {
                normalized(visit, of)?;
                visit("grad", Read(grad))?;
                optional(visit, "workspace", workspace)?;
                visit("weight", Write(weight))?;
                optional(visit, "bias", bias)
            }
            Self::BatchNorm { input, affine: [weight, bias], out, statistics, variance, .. } => {
                visit("input", ReadContiguous(input))?;
                visit("affine.0", ReadContiguous(weight))?;
                visit("affine.1", ReadContiguous(bias))?;
                visit("out", Write(out))?;
                visit("statistics", Write(statistics))?;
                visit("variance", Write(variance))
            }
            Self::BatchNormGrad { of, grad, out, weight, bias } => {
                visit("input", ReadContiguous(&mut of.input))?;
                if let Some(weight) = &mut of.weight {
                    visit("of.weight", ReadContiguous(weight))?;
                }
                visit("statistics", ReadContiguous(&mut of.statistics))?;
                visit("grad", ReadContiguous(grad))?;
                optional(visit, "out", out)?;
                visit("weight", Write(weight))?;
                visit("bias", Write(bias))
            }
            Self::Conv2d { input, weight: other, workspace, out, .. } => {
                visit("input", ReadContiguous(input))?;
                visit("weight", ReadContiguous(other))?;
                optional(visit, "workspace", workspace)?;
                visit("out", Write(out))
            }
            Self::Conv2dInputGrad { weight, grad, workspace, out, .. } => {
                visit("weight", ReadContiguous(weight))?;
                visit("grad", ReadContiguous(grad))?;
                optional(visit, "workspace", workspace)?;
                visit("out", Write(out))
            }
            Self::Conv2dWeightGrad { input, grad, workspace, out, .. } => {
                visit("input", ReadContiguous(input))?;
                visit("grad", ReadContiguous(grad))?;
                optional(visit, "workspace", workspace)?;
                visit("out", Write(out))
            }
            Self::Pool2d { input, out, .. } => {
                visit("input", ReadContiguous(input))?;
                visit("out", Write(out))
            }
            Self::Pool2dGrad { input, grad, out, .. } => {
                if let Some(input) = input {
                    visit("input", ReadContiguous(input))?;
                }
                visit("grad", ReadContiguous(grad))?;
                visit("out", Write(out))
            }
            Self::Attention { of, workspace, out, log_sums } => {
                attention(visit, of)?;
                optional(visit, "workspace", workspace)?;
                visit("out", Write(out))?;
                visit("log_sums", Write(log_sums))
            }
            Self::AttentionGrad { of, results: [output, log_sums], grad, workspace, out: [q, k, v] } => {
                attention(visit, of)?;
                visit("results.0", ReadContiguous(output))?;
                visit("results.1", ReadContiguous(log_sums))?;
                visit("grad", ReadContiguous(grad))?;
                optional(visit, "workspace", workspace)?;
                visit("out.0", Write(q))?;
                visit("out.1", Write(k))?;
                visit("out.2", Write(v))
            }
            Self::Recurrent { of, bias, workspace, gates, extra, out } => {
                recurrence(visit, of)?;
                visit("bias", Read(bias))?;
                optional(visit, "workspace", workspace)?;
                visit("gates", Update(gates))?;
                optional(visit, "extra", extra)?;
                visit("out", Write(out))
            }
            Self::RecurrentGrad {
                of,
                states,
                grad,
                cell_grad,
                workspace,
                gates,
                extra,
                initial_grads: [state_grad, cell],
            } => {
                recurrence(visit, of)?;
                visit("states", Read(states))?;
                visit("grad", Read(grad))?;
                if let Some(grad) = cell_grad {
                    visit("cell_grad", Read(grad))?;
                }
                optional(visit, "workspace", workspace)?;
                visit("gates", Update(gates))?;
                if let Some(extra) = extra {
                    visit("extra", Update(extra))?;
                }
                optional(visit, "initial_grads.0", state_grad)?;
                optional(visit, "initial_grads.1", cell)
            }
            Self::CrossEntropy { logits, targets, losses } => {
                visit("logits", Read(logits))?;
                visit("targets", Read(targets))?;
                visit("losses", Write(losses))
            }
            Self::CrossEntropyGrad { logits, targets, grad, out } => {
                visit("logits", Read(logits))?;
                visit("targets", Read(targets))?;
                visit("grad", Read(grad))?;
                visit("out", Write(out))
            }
            Self::Gather { input, indices, out, .. } => {
                visit("input", Read(input))?;
                visit("indices", Read(indices))?;
                visit("out", Write(out))
            }
            Self::ScatterAdd { input, indices, workspace, out, .. } => {
                visit("input", Read(input))?;
                visit("indices", Read(indices))?;
                optional(visit, "workspace", workspace)?;
                visit("out", Write(out))
            }
            Self::OneHot { indices, out } => {
                visit("indices", Read(indices))?;
                visit("out", Write(out))
            }
            Self::Scale { values, .. } | Self::Clip { values, .. } => visit("values", Update(values)),
            Self::Sgd { grad, momentum, param, .. } => {
                visit("grad", Read(grad))?;
                if let Some(momentum) = momentum {
                    visit("momentum", Update(momentum))?;
                }
                visit("param", Update(param))
            }
            Self::Adam { grad, mean, variance, max_variance, param, .. } => {
                visit("grad", Read(grad))?;
                visit("mean", Update(mean))?;
                visit("variance", Update(variance))?;
                if let Some(max_variance) = max_variance {
                    visit("max_variance", Update(max_variance))?;
                }
                visit("param", Update(param))
            }
            Self::RmsProp { grad, variance, momentum, param, .. } => {
                visit("grad", Read(grad))?;
                visit("variance", Update(variance))?;
                if let Some(momentum) = momentum {
                    visit("momentum", Update(momentum))?;
                }
                visit("param", Update(param))
            }
            Self::Lion { grad, mean, param, .. } => {
                visit("grad", Read(grad))?;
                visit("mean", Update(mean))?;
                visit("param", Update(param))
            }
        }
    }
}

/// Visits an optional output.
#[inline(always)]
fn optional<'k, 'a>(
    visit: &mut impl FnMut(&'static str, Operand<'k, 'a>) -> Result<()>,
    name: &'static str,
    view: &'k mut Option<ViewMut<'a>>,
) -> Result<()> {
    view.as_mut().map_or(Ok(()), |view| visit(name, Operand::Write(view)))
}

fn normalized<'k, 'a>(
    visit: &mut impl FnMut(&'static str, Operand<'k, 'a>) -> Result<()>,
    of: &'k mut Normalized<'a>,
) -> Result<()> {
    visit("input", Operand::Read(&mut of.input))?;
    if let Some(weight) = &mut of.weight {
        visit("of.weight", Operand::Read(weight))?;
    }
    visit("statistics", Operand::ReadContiguous(&mut of.statistics))
}

fn attention<'k, 'a>(
    visit: &mut impl FnMut(&'static str, Operand<'k, 'a>) -> Result<()>,
    of: &'k mut Attention<'a>,
) -> Result<()> {
    visit("query", Operand::ReadContiguous(&mut of.query))?;
    visit("key", Operand::ReadContiguous(&mut of.key))?;
    visit("value", Operand::ReadContiguous(&mut of.value))?;
    of.mask.as_mut().map_or(Ok(()), |mask| visit("mask", Operand::Read(mask)))
}

fn recurrence<'k, 'a>(
    visit: &mut impl FnMut(&'static str, Operand<'k, 'a>) -> Result<()>,
    of: &'k mut Recurrence<'a>,
) -> Result<()> {
    visit("weight", Operand::Read(&mut of.weight))?;
    for (name, initial) in ["initial.0", "initial.1"].into_iter().zip(&mut of.initial) {
        if let Some(initial) = initial {
            visit(name, Operand::Read(initial))?;
        }
    }
    Ok(())
}
