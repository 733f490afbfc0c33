//! Halves on their way through kernels: widened to f32 before, rounded once after.
//!
//! Backends move elements of every type, and calculate with f32, f64 and integers. So a kernel that only moves halves gets
//! them as they are, and so does every kernel of a backend that [widens what it loads](crate::backend::Backend::takes_halves). For any
//! other, this file takes f32 temporaries from the op's account, as workspace, converts what is read, runs the kernel, and
//! converts what it wrote; what it changes in place is read first. Operands that are no halves, as the f32 statistics of rows of
//! halves, are passed as they are.
//!
//! What is widened follows from the kernel alone, so a dry run takes the same memory. All memory is taken before anything is
//! written that was there before the op. Functions of elements go through large tensors piece by piece ([`pieces`]). Who changes
//! many tensors in place finds out beforehand whether there is memory for all ([`rehearse`]).

mod pieces;
mod rehearsal;

use bfc_core::Category;

pub(crate) use rehearsal::{rehearse, update};

use super::{Buffer, OpContext};
use crate::backend::{Activated, Attention, Distribution, Kernel, Normalised, check};
use crate::error::Result;
use crate::layout::Layout;
use crate::shape::{DType, Shape};
use crate::storage::{View, ViewMut};

/// Runs a kernel on operands of any type.
///
/// # Errors
/// As [`check::run`]; [`Error::Allocation`](crate::Error::Allocation) if there is no memory for a
/// temporary, and nothing is written then.
// Inlined, as is the question below, to which callers know most of the answer.
#[inline(always)]
pub(crate) fn run(ctx: &OpContext<'_>, kernel: Kernel<'_>) -> Result<()> {
    if calculates_with_halves(&kernel) {
        run_halves(ctx, kernel)
    } else {
        check::run(ctx.device().as_ref(), ctx.op(), kernel)
    }
}

/// The same, of a kernel that computes with halves.
#[inline(never)]
fn run_halves(ctx: &OpContext<'_>, kernel: Kernel<'_>) -> Result<()> {
    // Several kernels may stand for this one: it is checked before the first of them writes.
    check::kernel(ctx.device().as_ref(), ctx.op(), &kernel)?;
    if ctx.backend().takes_halves() { as_they_are(ctx, kernel) } else { widened(ctx, kernel) }
}

/// Runs a kernel that itself computes with halves in f32, and rounds what comes out once.
fn as_they_are(ctx: &OpContext<'_>, kernel: Kernel<'_>) -> Result<()> {
    let run = |kernel: Kernel<'_>| check::run(ctx.device().as_ref(), ctx.op(), kernel);
    match kernel {
        // What is added up in memory is not rounded each time. With a workspace it is added up elsewhere.
        Kernel::ScatterAdd { input, indices, axis, workspace: None, out } => {
            let mut out = Write::new(ctx, out)?;
            run(Kernel::ScatterAdd { input, indices, axis, workspace: None, out: out.view_mut() })?;
            out.finish(ctx)
        }
        Kernel::Random { distribution, key, out } => {
            let distribution = rounding_below(distribution, out.dtype());
            run(Kernel::Random { distribution, key, out })
        }
        kernel => run(kernel),
    }
}

/// Whether there are halves among the operands of a kernel that does more than to move them.
#[inline(always)]
fn calculates_with_halves(kernel: &Kernel<'_>) -> bool {
    let dtypes: [DType; 3] = match kernel {
        Kernel::Fill { .. }
        | Kernel::Arange { .. }
        | Kernel::Copy { .. }
        | Kernel::Flip { .. }
        | Kernel::CopyInto { .. }
        | Kernel::Select { .. }
        | Kernel::Gather { .. } => return false,
        Kernel::Unary { input, out, .. } => [input.dtype(), out.dtype(), out.dtype()],
        Kernel::UnaryGrad { saved, grad: Some(grad), out, .. } => [saved.dtype(), grad.dtype(), out.dtype()],
        Kernel::UnaryGrad { saved, grad: None, out, .. } => [saved.dtype(), out.dtype(), out.dtype()],
        Kernel::Binary { lhs, rhs, out, .. } => [lhs.dtype(), rhs.dtype(), out.dtype()],
        Kernel::Accumulate { input, acc, .. } => [input.dtype(), acc.dtype(), acc.dtype()],
        Kernel::Compare { lhs, rhs, .. } => [lhs.dtype(), rhs.dtype(), rhs.dtype()],
        Kernel::Reduce { input, out, .. } => [input.dtype(), out.dtype(), out.dtype()],
        Kernel::ArgReduce { input, .. } => [input.dtype(); 3],
        Kernel::ArgSort { input, .. } => [input.dtype(); 3],
        Kernel::RunningSum { out, .. } => [out.dtype(); 3],
        Kernel::MatMul { out, .. } => [out.dtype(); 3],
        Kernel::Softmax { input, out, .. } => [input.dtype(), out.dtype(), out.dtype()],
        Kernel::SoftmaxGrad { output, grad, out, .. } => [output.dtype(), grad.dtype(), out.dtype()],
        Kernel::LayerNorm { input, out, .. } => [input.dtype(), out.dtype(), out.dtype()],
        Kernel::LayerNormGrad { of, grad, out } => [of.input.dtype(), grad.dtype(), out.dtype()],
        Kernel::LayerNormSums { of, grad, weight, .. } => [of.input.dtype(), grad.dtype(), weight.dtype()],
        Kernel::Conv2d { out, .. } => [out.dtype(); 3],
        Kernel::Conv2dInputGrad { out, .. } => [out.dtype(); 3],
        Kernel::Conv2dWeightGrad { out, .. } => [out.dtype(); 3],
        Kernel::Pool2d { out, .. } => [out.dtype(); 3],
        Kernel::Pool2dGrad { out, .. } => [out.dtype(); 3],
        Kernel::Attention { of, .. } => [of.query.dtype(); 3],
        Kernel::AttentionGrad { of, .. } => [of.query.dtype(); 3],
        Kernel::CrossEntropy { logits, losses, .. } => [logits.dtype(), losses.dtype(), losses.dtype()],
        Kernel::CrossEntropyGrad { logits, grad, out, .. } => [logits.dtype(), grad.dtype(), out.dtype()],
        Kernel::ScatterAdd { input, out, .. } => [input.dtype(), out.dtype(), out.dtype()],
        Kernel::OneHot { out, .. } | Kernel::Random { out, .. } => [out.dtype(); 3],
        Kernel::Clip { values, .. } => [values.dtype(); 3],
        Kernel::Sgd { grad, param, .. }
        | Kernel::Adam { grad, param, .. }
        | Kernel::RmsProp { grad, param, .. }
        | Kernel::Lion { grad, param, .. } => [grad.dtype(), param.dtype(), param.dtype()],
    };
    dtypes.into_iter().any(DType::is_half)
}

fn widened(ctx: &OpContext<'_>, kernel: Kernel<'_>) -> Result<()> {
    let read = |view| Read::new(ctx, view);
    let run = |kernel: Kernel<'_>| check::run(ctx.device().as_ref(), ctx.op(), kernel);
    match kernel {
        Kernel::Fill { .. }
        | Kernel::Arange { .. }
        | Kernel::Copy { .. }
        | Kernel::Flip { .. }
        | Kernel::CopyInto { .. }
        | Kernel::Select { .. }
        | Kernel::Gather { .. } => run(kernel),
        Kernel::Unary { f, input, mut out } => {
            if pieces::run(ctx, [input], &mut out, |[input], out| Kernel::Unary { f, input, out })? {
                return Ok(());
            }
            let (input, mut out) = (read(input)?, Write::new(ctx, out)?);
            run(Kernel::Unary { f, input: input.view(), out: out.view_mut() })?;
            out.finish(ctx)
        }
        Kernel::UnaryGrad { f, saved, grad: Some(grad), mut out } => {
            if pieces::run(ctx, [saved, grad], &mut out, |[saved, grad], out| Kernel::UnaryGrad {
                f,
                saved,
                grad: Some(grad),
                out,
            })? {
                return Ok(());
            }
            let (saved, grad, mut out) = (read(saved)?, read(grad)?, Write::new(ctx, out)?);
            let grad = Some(grad.view());
            run(Kernel::UnaryGrad { f, saved: saved.view(), grad, out: out.view_mut() })?;
            out.finish(ctx)
        }
        Kernel::UnaryGrad { f, saved, grad: None, out } => {
            let (saved, mut out) = (read(saved)?, Write::in_place(ctx, out)?);
            run(Kernel::UnaryGrad { f, saved: saved.view(), grad: None, out: out.view_mut() })?;
            out.finish(ctx)
        }
        Kernel::Binary { f, lhs, rhs, mut out } => {
            if pieces::run(ctx, [lhs, rhs], &mut out, |[lhs, rhs], out| Kernel::Binary { f, lhs, rhs, out })?
            {
                return Ok(());
            }
            let (lhs, rhs, mut out) = (read(lhs)?, read(rhs)?, Write::new(ctx, out)?);
            run(Kernel::Binary { f, lhs: lhs.view(), rhs: rhs.view(), out: out.view_mut() })?;
            out.finish(ctx)
        }
        Kernel::Accumulate { f, input, acc } => {
            let (input, mut acc) = (read(input)?, Write::in_place(ctx, acc)?);
            run(Kernel::Accumulate { f, input: input.view(), acc: acc.view_mut() })?;
            acc.finish(ctx)
        }
        Kernel::Compare { f, lhs, rhs, out } => {
            let (lhs, rhs) = (read(lhs)?, read(rhs)?);
            run(Kernel::Compare { f, lhs: lhs.view(), rhs: rhs.view(), out })
        }
        Kernel::Reduce { f, divisor, input, axes, workspace, out } => {
            let (input, mut out) = (read(input)?, Write::new(ctx, out)?);
            let (input, result) = (input.view(), out.view_mut());
            run(Kernel::Reduce { f, divisor, input, axes, workspace, out: result })?;
            out.finish(ctx)
        }
        Kernel::ArgReduce { largest, input, axis, out } => {
            run(Kernel::ArgReduce { largest, input: read(input)?.view(), axis, out })
        }
        Kernel::ArgSort { descending, first, input, workspace, out } => {
            run(Kernel::ArgSort { descending, first, input: read(input)?.view(), workspace, out })
        }
        Kernel::RunningSum { axis, reverse, out } => {
            let mut out = Write::in_place(ctx, out)?;
            run(Kernel::RunningSum { axis, reverse, out: out.view_mut() })?;
            out.finish(ctx)
        }
        Kernel::MatMul { bias, lhs, rhs, activation: Some(activated), workspace, out } => {
            // What is rounded to a half is what the function gets.
            let Activated { function, arguments } = activated;
            let own = || ctx.buffer(out.layout().shape(), out.dtype(), Category::Workspace);
            let mut own = arguments.is_none().then(own).transpose()?;
            let Some(mut sums) = arguments.or(own.as_mut().map(Buffer::view_mut)) else { return Ok(()) };
            let (activation, product) = (None, sums.reborrow());
            widened(ctx, Kernel::MatMul { bias, lhs, rhs, activation, workspace, out: product })?;
            widened(ctx, Kernel::Unary { f: function.function(), input: sums.as_view(), out })
        }
        Kernel::MatMul { bias, lhs, rhs, activation: None, workspace, out } => {
            let (bias, lhs, rhs) = (Read::option(ctx, bias)?, read(lhs)?, read(rhs)?);
            let (bias, mut out) = (bias.as_ref().map(Read::view), Write::new(ctx, out)?);
            let (lhs, rhs) = (lhs.view(), rhs.view());
            run(Kernel::MatMul { bias, lhs, rhs, activation: None, workspace, out: out.view_mut() })?;
            out.finish(ctx)
        }
        Kernel::Softmax { log, input, out } => {
            let (input, mut out) = (read(input)?, Write::new(ctx, out)?);
            run(Kernel::Softmax { log, input: input.view(), out: out.view_mut() })?;
            out.finish(ctx)
        }
        Kernel::SoftmaxGrad { log, output, grad, out } => {
            let (output, grad, mut out) = (read(output)?, read(grad)?, Write::new(ctx, out)?);
            run(Kernel::SoftmaxGrad { log, output: output.view(), grad: grad.view(), out: out.view_mut() })?;
            out.finish(ctx)
        }
        Kernel::LayerNorm { centred, epsilon, input, affine, out, statistics } => {
            let (input, weight, bias) =
                (read(input)?, Read::option(ctx, affine[0])?, Read::option(ctx, affine[1])?);
            let (mut out, mut statistics) = (Write::new(ctx, out)?, Write::new(ctx, statistics)?);
            run(Kernel::LayerNorm {
                centred,
                epsilon,
                input: input.view(),
                affine: &[weight.as_ref().map(Read::view), bias.as_ref().map(Read::view)],
                out: out.view_mut(),
                statistics: statistics.view_mut(),
            })?;
            out.finish(ctx)?;
            statistics.finish(ctx)
        }
        Kernel::LayerNormGrad { of, grad, out } => {
            let (of, grad, mut out) = (ReadNormalised::new(ctx, of)?, read(grad)?, Write::new(ctx, out)?);
            run(Kernel::LayerNormGrad { of: &of.views(), grad: grad.view(), out: out.view_mut() })?;
            out.finish(ctx)
        }
        Kernel::LayerNormSums { of, grad, places, workspace, weight, bias } => {
            let (of, grad, mut weight) =
                (ReadNormalised::new(ctx, of)?, read(grad)?, Write::new(ctx, weight)?);
            let mut bias = bias.map(|bias| Write::new(ctx, bias)).transpose()?;
            run(Kernel::LayerNormSums {
                of: &of.views(),
                grad: grad.view(),
                places,
                workspace,
                weight: weight.view_mut(),
                bias: bias.as_mut().map(Write::view_mut),
            })?;
            weight.finish(ctx)?;
            bias.map_or(Ok(()), |bias| bias.finish(ctx))
        }
        Kernel::Conv2d { conv, input, weight, workspace, out } => {
            let (input, weight, mut out) = (read(input)?, read(weight)?, Write::new(ctx, out)?);
            let (input, weight) = (input.view(), weight.view());
            run(Kernel::Conv2d { conv, input, weight, workspace, out: out.view_mut() })?;
            out.finish(ctx)
        }
        Kernel::Conv2dInputGrad { conv, weight, grad, workspace, out } => {
            let (weight, grad, mut out) = (read(weight)?, read(grad)?, Write::new(ctx, out)?);
            let (weight, grad) = (weight.view(), grad.view());
            run(Kernel::Conv2dInputGrad { conv, weight, grad, workspace, out: out.view_mut() })?;
            out.finish(ctx)
        }
        Kernel::Conv2dWeightGrad { conv, input, grad, workspace, out } => {
            let (input, grad, mut out) = (read(input)?, read(grad)?, Write::new(ctx, out)?);
            let (input, grad) = (input.view(), grad.view());
            run(Kernel::Conv2dWeightGrad { conv, input, grad, workspace, out: out.view_mut() })?;
            out.finish(ctx)
        }
        Kernel::Pool2d { pool, axes, input, out } => {
            let (input, mut out) = (read(input)?, Write::new(ctx, out)?);
            run(Kernel::Pool2d { pool, axes, input: input.view(), out: out.view_mut() })?;
            out.finish(ctx)
        }
        Kernel::Pool2dGrad { pool, axes, input, grad, out } => {
            let (input, grad, mut out) = (Read::option(ctx, input)?, read(grad)?, Write::new(ctx, out)?);
            let (input, grad) = (input.as_ref().map(Read::view), grad.view());
            run(Kernel::Pool2dGrad { pool, axes, input, grad, out: out.view_mut() })?;
            out.finish(ctx)
        }
        Kernel::Attention { of, workspace, out, log_sums } => {
            let of = ReadAttention::new(ctx, of)?;
            let (mut out, mut log_sums) = (Write::new(ctx, out)?, Write::new(ctx, log_sums)?);
            run(Kernel::Attention {
                of: &of.views(),
                workspace,
                out: out.view_mut(),
                log_sums: log_sums.view_mut(),
            })?;
            out.finish(ctx)?;
            log_sums.finish(ctx)
        }
        Kernel::AttentionGrad {
            of,
            results: &[output, log_sums],
            grad,
            workspace,
            out: [query, key, value],
        } => {
            let (of, output, log_sums) = (ReadAttention::new(ctx, of)?, read(output)?, read(log_sums)?);
            let grad = read(grad)?;
            let (mut query, mut key) = (Write::new(ctx, query)?, Write::new(ctx, key)?);
            let mut value = Write::new(ctx, value)?;
            run(Kernel::AttentionGrad {
                of: &of.views(),
                results: &[output.view(), log_sums.view()],
                grad: grad.view(),
                workspace,
                out: [query.view_mut(), key.view_mut(), value.view_mut()],
            })?;
            query.finish(ctx)?;
            key.finish(ctx)?;
            value.finish(ctx)
        }
        Kernel::CrossEntropy { logits, targets, losses } => {
            let (logits, mut losses) = (read(logits)?, Write::new(ctx, losses)?);
            run(Kernel::CrossEntropy { logits: logits.view(), targets, losses: losses.view_mut() })?;
            losses.finish(ctx)
        }
        Kernel::CrossEntropyGrad { logits, targets, grad, out } => {
            let (logits, grad, mut out) = (read(logits)?, read(grad)?, Write::new(ctx, out)?);
            let (logits, grad) = (logits.view(), grad.view());
            run(Kernel::CrossEntropyGrad { logits, targets, grad, out: out.view_mut() })?;
            out.finish(ctx)
        }
        Kernel::ScatterAdd { input, indices, axis, workspace, out } => {
            let (input, mut out) = (read(input)?, Write::new(ctx, out)?);
            let (input, sums) = (input.view(), out.view_mut());
            run(Kernel::ScatterAdd { input, indices, axis, workspace, out: sums })?;
            out.finish(ctx)
        }
        Kernel::OneHot { indices, out } => {
            let mut out = Write::new(ctx, out)?;
            run(Kernel::OneHot { indices, out: out.view_mut() })?;
            out.finish(ctx)
        }
        Kernel::Random { distribution, key, out } => {
            let distribution = rounding_below(distribution, out.dtype());
            let mut out = Write::new(ctx, out)?;
            run(Kernel::Random { distribution, key, out: out.view_mut() })?;
            out.finish(ctx)
        }
        Kernel::Clip { scale, low, high, values } => {
            let mut values = Write::in_place(ctx, values)?;
            run(Kernel::Clip { scale, low, high, values: values.view_mut() })?;
            values.finish(ctx)
        }
        Kernel::Sgd { step, grad, momentum, param } => {
            let (grad, mut param) = (read(grad)?, Write::in_place(ctx, param)?);
            let mut momentum = momentum.map(|momentum| Write::in_place(ctx, momentum)).transpose()?;
            let changed = momentum.as_mut().map(Write::view_mut);
            run(Kernel::Sgd { step, grad: grad.view(), momentum: changed, param: param.view_mut() })?;
            momentum.map_or(Ok(()), |momentum| momentum.finish(ctx))?;
            param.finish(ctx)
        }
        Kernel::Adam { step, grad, mean, variance, param } => {
            let (grad, mut param) = (read(grad)?, Write::in_place(ctx, param)?);
            let (mut mean, mut variance) = (Write::in_place(ctx, mean)?, Write::in_place(ctx, variance)?);
            run(Kernel::Adam {
                step,
                grad: grad.view(),
                mean: mean.view_mut(),
                variance: variance.view_mut(),
                param: param.view_mut(),
            })?;
            mean.finish(ctx)?;
            variance.finish(ctx)?;
            param.finish(ctx)
        }
        Kernel::RmsProp { step, grad, variance, momentum, param } => {
            let (grad, mut param) = (read(grad)?, Write::in_place(ctx, param)?);
            let mut variance = Write::in_place(ctx, variance)?;
            let mut momentum = momentum.map(|momentum| Write::in_place(ctx, momentum)).transpose()?;
            run(Kernel::RmsProp {
                step,
                grad: grad.view(),
                variance: variance.view_mut(),
                momentum: momentum.as_mut().map(Write::view_mut),
                param: param.view_mut(),
            })?;
            variance.finish(ctx)?;
            momentum.map_or(Ok(()), |momentum| momentum.finish(ctx))?;
            param.finish(ctx)
        }
        Kernel::Lion { step, grad, mean, param } => {
            let (grad, mut param) = (read(grad)?, Write::in_place(ctx, param)?);
            let mut mean = Write::in_place(ctx, mean)?;
            run(Kernel::Lion { step, grad: grad.view(), mean: mean.view_mut(), param: param.view_mut() })?;
            mean.finish(ctx)?;
            param.finish(ctx)
        }
    }
}

/// Memory for the elements of a half as f32.
fn temporary(ctx: &OpContext<'_>, shape: &Shape) -> Result<Buffer> {
    ctx.buffer(shape, DType::F32, Category::Workspace)
}

/// What a kernel reads.
#[allow(clippy::large_enum_variant, reason = "it lives on the stack of one call")]
enum Read<'a> {
    AsItIs(View<'a>),
    /// The elements once each, and how the view repeats them.
    Widened(Buffer, Layout),
}

impl<'a> Read<'a> {
    fn new(ctx: &OpContext<'_>, view: View<'a>) -> Result<Self> {
        if !view.dtype().is_half() {
            return Ok(Self::AsItIs(view));
        }
        let once = view.layout().distinct();
        let mut values = temporary(ctx, once.shape())?;
        let input = view.with_layout(&once);
        check::run(ctx.device().as_ref(), ctx.op(), Kernel::Copy { input, out: values.view_mut() })?;
        let layout = values.view().layout().broadcast_to(ctx.op(), view.layout().shape())?;
        Ok(Self::Widened(values, layout))
    }

    fn option(ctx: &OpContext<'_>, view: Option<View<'a>>) -> Result<Option<Self>> {
        view.map(|view| Self::new(ctx, view)).transpose()
    }

    fn view(&self) -> View<'_> {
        match self {
            Self::AsItIs(view) => *view,
            Self::Widened(values, layout) => values.view().with_layout(layout),
        }
    }
}

/// What a kernel writes.
#[allow(clippy::large_enum_variant, reason = "it lives on the stack of one call")]
enum Write<'a> {
    AsItIs(ViewMut<'a>),
    /// The elements, and where they go when the kernel has run.
    Widened(Buffer, ViewMut<'a>),
}

impl<'a> Write<'a> {
    /// What is written without being read.
    fn new(ctx: &OpContext<'_>, out: ViewMut<'a>) -> Result<Self> {
        if !out.dtype().is_half() {
            return Ok(Self::AsItIs(out));
        }
        Ok(Self::Widened(temporary(ctx, out.layout().shape())?, out))
    }

    /// What is read, changed and written.
    fn in_place(ctx: &OpContext<'_>, out: ViewMut<'a>) -> Result<Self> {
        let mut made = Self::new(ctx, out)?;
        if let Self::Widened(values, out) = &mut made {
            check::run(
                ctx.device().as_ref(),
                ctx.op(),
                Kernel::Copy { input: out.as_view(), out: values.view_mut() },
            )?;
        }
        Ok(made)
    }

    fn view_mut(&mut self) -> ViewMut<'_> {
        match self {
            Self::AsItIs(out) => out.reborrow(),
            Self::Widened(values, _) => values.view_mut(),
        }
    }

    /// Rounds what the kernel has written.
    fn finish(self, ctx: &OpContext<'_>) -> Result<()> {
        match self {
            Self::AsItIs(_) => Ok(()),
            Self::Widened(values, out) => {
                check::run(ctx.device().as_ref(), ctx.op(), Kernel::Copy { input: values.view(), out })
            }
        }
    }
}

/// What layer normalisation has worked on.
struct ReadNormalised<'a> {
    centred: bool,
    input: Read<'a>,
    weight: Option<Read<'a>>,
    statistics: Read<'a>,
}

impl<'a> ReadNormalised<'a> {
    fn new(ctx: &OpContext<'_>, of: &Normalised<'a>) -> Result<Self> {
        let (input, weight) = (Read::new(ctx, of.input)?, Read::option(ctx, of.weight)?);
        Ok(Self { centred: of.centred, input, weight, statistics: Read::new(ctx, of.statistics)? })
    }

    fn views(&self) -> Normalised<'_> {
        let (input, weight) = (self.input.view(), self.weight.as_ref().map(Read::view));
        Normalised { centred: self.centred, input, weight, statistics: self.statistics.view() }
    }
}

/// The operands of attention.
struct ReadAttention<'a> {
    of: Attention<'a>,
    query: Read<'a>,
    key: Read<'a>,
    value: Read<'a>,
    mask: Option<Read<'a>>,
}

impl<'a> ReadAttention<'a> {
    fn new(ctx: &OpContext<'_>, of: &Attention<'a>) -> Result<Self> {
        let read = |view| Read::new(ctx, view);
        let mask = Read::option(ctx, of.mask)?;
        Ok(Self { of: *of, query: read(of.query)?, key: read(of.key)?, value: read(of.value)?, mask })
    }

    fn views(&self) -> Attention<'_> {
        let (query, key, value) = (self.query.view(), self.key.view(), self.value.view());
        Attention { query, key, value, mask: self.mask.as_ref().map(Read::view), ..self.of }
    }
}

/// A distribution whose f32 samples stay in its range when they are rounded to a half: uniform ones end halfway below the
/// end, as what lies above would be rounded to it.
fn rounding_below(distribution: Distribution, dtype: DType) -> Distribution {
    let Distribution::Uniform { low, high } = distribution else { return distribution };
    // The steps between halves below `high`, relative to the power of two at or below it, and the least there are.
    let (digits, least) = if dtype == DType::F16 { (11, -24) } else { (8, -133) };
    let size = if high > 0.0 { high.next_down() } else { -high };
    // Of 0 the logarithm is -∞, which becomes the least exponent.
    let exponent = (size.log2().floor() as i32).max(least + digits - 1);
    let step = 2f64.powi(exponent - digits + 1);
    Distribution::Uniform { low, high: (high - step / 2.0).max(low) }
}
