//! A valid call of every kernel, as a table of operands that tests then change.

use std::sync::Arc;

use highwater_tensor::backend::kernels::{self, AdamRule, OptimizerRule, RmsPropRule, ScanFunction, SgdRule};
use highwater_tensor::backend::{
    Binary, BlockFormat, Compare, Convolution, Distribution, PoolAxis, PoolReduction, PoolWindow, RandomKey,
    Reduce, Unary, Window,
};
use highwater_tensor::{Activation, Buffer, OpContext, RecurrentCell, Result, Scalar, View, ViewMut};

/// An operand's element type, where F stands for the float type under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    /// The float type.
    F,
    /// The type that it is computed with.
    Computed,
    Index,
    Truth,
    /// Bytes of quantized blocks.
    Bytes,
}

/// An operand that a case makes; kernels take those that they write behind those that they read.
#[derive(Clone, Debug)]
pub(crate) struct Operand {
    pub(crate) name: &'static str,
    pub(crate) dims: Vec<usize>,
    pub(crate) dtype: Type,
    pub(crate) written: bool,
}

type Call = dyn Fn(&OpContext<'_>, &[View<'_>], Vec<ViewMut<'_>>) -> Result<()> + Send + Sync;

/// A kernel with operands that fit it.
#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) operands: Vec<Operand>,
    pub(crate) call: Arc<Call>,
}

fn new(
    name: &'static str,
    call: impl Fn(&OpContext<'_>, &[View<'_>], Vec<ViewMut<'_>>) -> Result<()> + Send + Sync + 'static,
) -> Case {
    Case { name, operands: Vec::new(), call: Arc::new(call) }
}

impl Case {
    fn with(mut self, name: &'static str, dims: &[usize], dtype: Type, written: bool) -> Self {
        self.operands.push(Operand { name, dims: dims.to_vec(), dtype, written });
        self
    }

    fn reads(self, name: &'static str, dims: &[usize]) -> Self {
        self.with(name, dims, Type::F, false)
    }

    fn indices(self, name: &'static str, dims: &[usize]) -> Self {
        self.with(name, dims, Type::Index, false)
    }

    fn writes(self, name: &'static str, dims: &[usize]) -> Self {
        self.with(name, dims, Type::F, true)
    }

    fn writes_as(self, name: &'static str, dims: &[usize], dtype: Type) -> Self {
        self.with(name, dims, dtype, true)
    }
}

/// The outputs one after the other.
struct Outputs<'a>(std::vec::IntoIter<ViewMut<'a>>);

impl<'a> Outputs<'a> {
    fn next(&mut self) -> ViewMut<'a> {
        self.0.next().unwrap()
    }
}

fn outputs(outputs: Vec<ViewMut<'_>>) -> Outputs<'_> {
    Outputs(outputs.into_iter())
}

const CONVOLUTION: Convolution = Convolution {
    windows: [
        Window { size: 3, stride: 1, padding: 1, dilation: 1 },
        Window { size: 2, stride: 2, padding: 0, dilation: 1 },
    ],
    groups: 2,
};

const POOL: [PoolAxis; 2] = [
    PoolAxis::Sliding(PoolWindow::new(Window { size: 2, stride: 2, padding: 1, dilation: 1 })),
    PoolAxis::Adaptive { outputs: 3 },
];

fn moved() -> Vec<Case> {
    vec![
        new("fill", |ctx, _, to| {
            let mut to = outputs(to);
            ctx.compute(kernels::Fill { value: Scalar::Int(1), out: to.next() })
        })
        .writes("out", &[2, 3]),
        new("arange", |ctx, _, to| {
            let mut to = outputs(to);
            ctx.compute(kernels::Arange { start: Scalar::Int(1), step: Scalar::Int(2), out: to.next() })
        })
        .writes("out", &[6]),
        new("copy", |ctx, from, to| ctx.compute(kernels::Copy { input: from[0], out: outputs(to).next() }))
            .reads("input", &[2, 3])
            .writes("out", &[2, 3]),
        new("flip", |ctx, from, to| {
            ctx.compute(kernels::Flip { input: from[0], axes: &[true, false], out: outputs(to).next() })
        })
        .reads("input", &[2, 3])
        .writes("out", &[2, 3]),
        new("copy_into", |ctx, from, to| {
            ctx.compute(kernels::CopyInto {
                input: from[0],
                axis: 1,
                start: 1,
                step: 2,
                out: outputs(to).next(),
            })
        })
        .reads("input", &[2, 3])
        .writes("out", &[2, 6]),
        new("select", |ctx, from, to| {
            let (condition, lhs, rhs) = (from[0], from[1], from[2]);
            ctx.compute(kernels::Select { condition, lhs, rhs, out: outputs(to).next() })
        })
        .with("condition", &[2, 3], Type::Truth, false)
        .reads("lhs", &[2, 3])
        .reads("rhs", &[2, 3])
        .writes("out", &[2, 3]),
        new("random", |ctx, _, to| {
            let (distribution, key) =
                (Distribution::Uniform { low: 0.0, high: 1.0 }, RandomKey { seed: 1, sequence: 2 });
            ctx.compute(kernels::Random { distribution, key, out: outputs(to).next() })
        })
        .writes("out", &[2, 3]),
    ]
}

fn of_elements() -> Vec<Case> {
    vec![
        new("unary", |ctx, from, to| {
            ctx.compute(kernels::Map { f: Unary::Exp, input: from[0], out: outputs(to).next() })
        })
        .reads("input", &[2, 3])
        .writes("out", &[2, 3]),
        new("unary_grad", |ctx, from, to| {
            let (saved, grad) = (from[0], Some(from[1]));
            ctx.compute(kernels::MapGrad { f: Unary::Exp, saved, grad, out: outputs(to).next() })
        })
        .reads("saved", &[2, 3])
        .reads("grad", &[2, 3])
        .writes("out", &[2, 3]),
        new("unary_grad_in_place", |ctx, from, to| {
            let out = outputs(to).next();
            ctx.compute(kernels::MapGrad { f: Unary::Relu, saved: from[0], grad: None, out })
        })
        .reads("saved", &[2, 3])
        .writes("out", &[2, 3]),
        new("binary", |ctx, from, to| {
            let (lhs, rhs) = (from[0], from[1]);
            ctx.compute(kernels::Zip { f: Binary::Add, lhs, rhs, out: outputs(to).next() })
        })
        .reads("lhs", &[2, 3])
        .reads("rhs", &[2, 3])
        .writes("out", &[2, 3]),
        new("accumulate", |ctx, from, to| {
            ctx.compute(kernels::Accumulate { f: Binary::Add, input: from[0], acc: outputs(to).next() })
        })
        .reads("input", &[2, 3])
        .writes("acc", &[2, 3]),
        new("compare", |ctx, from, to| {
            let (lhs, rhs) = (from[0], from[1]);
            ctx.compute(kernels::Comparison { f: Compare::Lt, lhs, rhs, out: outputs(to).next() })
        })
        .reads("lhs", &[2, 3])
        .reads("rhs", &[2, 3])
        .writes_as("out", &[2, 3], Type::Truth),
        new("clip", |ctx, _, to| {
            ctx.compute(kernels::Clip { low: -1.0, high: 1.0, values: outputs(to).next() })
        })
        .writes("values", &[2, 3]),
        new("scale", |ctx, _, to| ctx.compute(kernels::Scale { factor: 2.0, values: outputs(to).next() }))
            .writes("values", &[2, 3]),
    ]
}

fn folded() -> Vec<Case> {
    vec![
        new("reduce", |ctx, from, to| {
            let (input, axes) = (from[0], &[true, false, true]);
            let (shape, dtype) = (input.layout().shape(), input.dtype());
            let mut workspace = ctx.workspace(kernels::FoldWorkspace { shape, axes, dtype })?;
            let workspace = workspace.as_mut().map(Buffer::view_mut);
            let out = outputs(to).next();
            ctx.compute(kernels::Fold { f: Reduce::Sum, divisor: 2.0, input, axes, workspace, out })
        })
        .reads("input", &[2, 3, 4])
        .writes("out", &[1, 3, 1]),
        new("largest", |ctx, from, to| {
            let (input, axes) = (from[0], &[false, true]);
            let (f, divisor, out) = (Reduce::Max, 1.0, outputs(to).next());
            ctx.compute(kernels::Fold { f, divisor, input, axes, workspace: None, out })
        })
        .reads("input", &[2, 3])
        .writes("out", &[2]),
        new("arg_reduce", |ctx, from, to| {
            let out = outputs(to).next();
            ctx.compute(kernels::ArgReduce { largest: true, input: from[0], axis: 1, out })
        })
        .reads("input", &[2, 3])
        .writes_as("out", &[2, 1], Type::Index),
        new("arg_sort", |ctx, from, to| {
            let input = from[0];
            let mut workspace = ctx.workspace(kernels::ArgSortWorkspace { shape: input.layout().shape() })?;
            let workspace = workspace.as_mut().map(Buffer::view_mut);
            let (descending, first, out) = (true, 9, outputs(to).next());
            ctx.compute(kernels::ArgSort { descending, first, input, workspace, out })
        })
        .reads("input", &[2, 3])
        .writes_as("out", &[2, 3], Type::Index),
        new("running_sum", |ctx, _, to| {
            let (f, out) = (ScanFunction::Sum, outputs(to).next());
            ctx.compute(kernels::Scan { f, axis: 1, reverse: true, out })
        })
        .writes("out", &[2, 3]),
        new("running_product", |ctx, _, to| {
            let (f, out) = (ScanFunction::Product, outputs(to).next());
            ctx.compute(kernels::Scan { f, axis: 0, reverse: false, out })
        })
        .writes("out", &[2, 3]),
    ]
}

fn products() -> Vec<Case> {
    vec![
        new("mat_mul", |ctx, from, to| mat_mul(ctx, None, from, to))
            .reads("lhs", &[2, 3])
            .reads("rhs", &[3, 4])
            .writes("out", &[2, 4]),
        new("mat_mul_sum", mat_mul_sum).reads("lhs", &[2, 3]).reads("rhs", &[3, 2]).writes_as(
            "out",
            &[2, 2],
            Type::Computed,
        ),
        new("stack", |ctx, from, to| mat_mul(ctx, None, from, to))
            .reads("lhs", &[5, 2, 3])
            .reads("rhs", &[5, 3, 4])
            .writes("out", &[5, 2, 4]),
        new("linear", |ctx, from, to| mat_mul(ctx, Some(from[2]), from, to))
            .reads("lhs", &[2, 3])
            .reads("rhs", &[3, 4])
            .reads("bias", &[4])
            .writes("out", &[2, 4])
            .writes("activation", &[2, 4]),
        new("attention", |ctx, from, to| {
            let of = heads(from);
            let mut room = ctx.workspace(attention_room(&of))?;
            let workspace = room.as_mut().map(Buffer::view_mut);
            let mut to = outputs(to);
            ctx.compute(kernels::Attention { of, workspace, out: to.next(), log_sums: to.next() })
        })
        .reads("of.query", &[2, 3, 4])
        .reads("of.key", &[2, 5, 4])
        .reads("of.value", &[2, 5, 6])
        .with("of.mask", &[2, 3, 5], Type::Truth, false)
        .writes("out", &[2, 3, 6])
        .writes_as("log_sums", &[2, 3], Type::Computed),
        new("attention_grad", |ctx, from, to| {
            let of = heads(from);
            let mut room = ctx.workspace(kernels::AttentionGradWorkspace(attention_room(&of)))?;
            let workspace = room.as_mut().map(Buffer::view_mut);
            let mut to = outputs(to);
            ctx.compute(kernels::AttentionGrad {
                of,
                output: from[4],
                log_sums: from[5],
                grad: from[6],
                workspace,
                query_grad: to.next(),
                key_grad: to.next(),
                value_grad: to.next(),
            })
        })
        .reads("of.query", &[2, 3, 4])
        .reads("of.key", &[2, 5, 4])
        .reads("of.value", &[2, 5, 6])
        .reads("of.mask", &[2, 3, 5])
        .reads("output", &[2, 3, 6])
        .with("log_sums", &[2, 3], Type::Computed, false)
        .reads("grad", &[2, 3, 6])
        .writes("query_grad", &[2, 3, 4])
        .writes("key_grad", &[2, 5, 4])
        .writes("value_grad", &[2, 5, 6]),
    ]
}

fn mat_mul_sum(ctx: &OpContext<'_>, from: &[View<'_>], to: Vec<ViewMut<'_>>) -> Result<()> {
    let (lhs, rhs) = (from[0], from[1]);
    let (dtype, out) = (lhs.dtype(), lhs.dtype().computed_as());
    let of = kernels::MatMulWorkspace { lhs: lhs.layout(), rhs: rhs.layout(), dtype, out };
    let mut room = ctx.workspace(of)?;
    let (workspace, out) = (room.as_mut().map(Buffer::view_mut), outputs(to).next());
    ctx.compute(kernels::MatMulSum { accumulate: true, lhs, rhs, workspace, out })
}

fn mat_mul(
    ctx: &OpContext<'_>,
    bias: Option<View<'_>>,
    from: &[View<'_>],
    to: Vec<ViewMut<'_>>,
) -> Result<()> {
    let (lhs, rhs) = (from[0], from[1]);
    let (dtype, out) = (lhs.dtype(), to[0].dtype());
    let mut room =
        ctx.workspace(kernels::MatMulWorkspace { lhs: lhs.layout(), rhs: rhs.layout(), dtype, out })?;
    let mut to = to.into_iter();
    let (out, arguments) = (to.next().unwrap(), to.next());
    let activation = arguments
        .map(|arguments| kernels::Activated { function: Activation::Gelu, arguments: Some(arguments) });
    let workspace = room.as_mut().map(Buffer::view_mut);
    ctx.compute(kernels::MatMul { bias, lhs, rhs, activation, workspace, out })
}

/// Both kernels of an LSTM and of a GRU.
fn recurrent() -> Vec<Case> {
    vec![
        new("lstm", |ctx, from, to| {
            let of = recurrence(RecurrentCell::Lstm, from[0], [Some(from[2]), Some(from[3])]);
            let mut room = ctx.workspace(recurrent_room(&of))?;
            let workspace = room.as_mut().map(Buffer::view_mut);
            let mut to = outputs(to);
            let (gates, extra, out) = (to.next(), Some(to.next()), to.next());
            ctx.compute(kernels::Recurrent { of, bias: from[1], workspace, gates, extra, out })
        })
        .reads("of.weight", &[3, 12])
        .reads("bias", &[12])
        .reads("of.initial_state", &[2, 3])
        .reads("of.initial_cell", &[2, 3])
        .writes("gates", &[4, 12])
        .writes("extra", &[4, 3])
        .writes("out", &[4, 3]),
        new("lstm_grad", |ctx, from, to| {
            let of = recurrence(RecurrentCell::Lstm, from[0], [Some(from[1]), Some(from[2])]);
            let mut room = ctx.workspace(recurrent_room(&of))?;
            let mut to = outputs(to);
            ctx.compute(kernels::RecurrentGrad {
                of,
                states: from[3],
                grad: from[4],
                cell_grad: Some(from[5]),
                workspace: room.as_mut().map(Buffer::view_mut),
                gates: to.next(),
                extra: Some(to.next()),
                initial_state_grad: Some(to.next()),
                initial_cell_grad: Some(to.next()),
            })
        })
        .reads("of.weight", &[3, 12])
        .reads("of.initial_state", &[2, 3])
        .reads("of.initial_cell", &[2, 3])
        .reads("states", &[4, 3])
        .reads("grad", &[4, 3])
        .reads("cell_grad", &[2, 3])
        .writes("gates", &[4, 12])
        .writes("extra", &[4, 3])
        .writes("initial_state_grad", &[2, 3])
        .writes("initial_cell_grad", &[2, 3]),
        new("gru_grad", |ctx, from, to| {
            let of = recurrence(RecurrentCell::Gru, from[0], [Some(from[1]), None]);
            let mut room = ctx.workspace(recurrent_room(&of))?;
            let mut to = outputs(to);
            ctx.compute(kernels::RecurrentGrad {
                of,
                states: from[2],
                grad: from[3],
                cell_grad: None,
                workspace: room.as_mut().map(Buffer::view_mut),
                gates: to.next(),
                extra: Some(to.next()),
                initial_state_grad: Some(to.next()),
                initial_cell_grad: None,
            })
        })
        .reads("of.weight", &[3, 9])
        .reads("of.initial_state", &[2, 3])
        .reads("states", &[4, 3])
        .reads("grad", &[4, 3])
        .writes("gates", &[4, 9])
        .writes("extra", &[4, 3])
        .writes("initial_state_grad", &[2, 3]),
    ]
}

fn recurrence<'a>(
    cell: RecurrentCell,
    weight: View<'a>,
    [initial_state, initial_cell]: [Option<View<'a>>; 2],
) -> kernels::Recurrence<'a> {
    kernels::Recurrence { cell, reverse: false, len: 2, weight, initial_state, initial_cell }
}

fn recurrent_room(of: &kernels::Recurrence<'_>) -> kernels::RecurrentWorkspace {
    kernels::RecurrentWorkspace { cell: of.cell, sizes: [2, of.len, 3], dtype: of.weight.dtype() }
}

fn heads<'a>(from: &[View<'a>]) -> kernels::AttentionInputs<'a> {
    let (query, key, value, mask) = (from[0], from[1], from[2], Some(from[3]));
    kernels::AttentionInputs { scale: 0.5, causal: true, query, key, value, mask }
}

fn attention_room<'a>(of: &kernels::AttentionInputs<'a>) -> kernels::AttentionWorkspace<'a> {
    let (query, value) = (of.query.layout().shape(), of.value.layout().shape());
    kernels::AttentionWorkspace { query, value, dtype: of.query.dtype() }
}

fn rows() -> Vec<Case> {
    vec![
        new("softmax", |ctx, from, to| {
            ctx.compute(kernels::SoftmaxRows { log: false, input: from[0], out: outputs(to).next() })
        })
        .reads("input", &[2, 3])
        .writes("out", &[2, 3]),
        new("softmax_grad", |ctx, from, to| {
            let (output, grad, out) = (from[0], from[1], outputs(to).next());
            ctx.compute(kernels::SoftmaxRowsGrad { log: true, output, grad, out })
        })
        .reads("output", &[2, 3])
        .reads("grad", &[2, 3])
        .writes("out", &[2, 3]),
        new("layer_norm", |ctx, from, to| {
            let (input, weight, bias, mut to) = (from[0], Some(from[1]), Some(from[2]), outputs(to));
            let (out, statistics) = (to.next(), to.next());
            ctx.compute(kernels::NormalizeRows {
                centered: true,
                epsilon: 1e-5,
                input,
                weight,
                bias,
                out,
                statistics,
            })
        })
        .reads("input", &[4, 3])
        .reads("weight", &[4, 3])
        .reads("bias", &[4, 3])
        .writes("out", &[4, 3])
        .writes_as("statistics", &[4, 2], Type::Computed),
        new("layer_norm_grad", |ctx, from, to| {
            let of = kernels::Normalized {
                centered: true,
                input: from[0],
                weight: Some(from[1]),
                statistics: from[2],
            };
            ctx.compute(kernels::NormalizeRowsGrad { of, grad: from[3], out: outputs(to).next() })
        })
        .reads("of.input", &[4, 3])
        .reads("of.weight", &[4, 3])
        .with("of.statistics", &[4, 2], Type::Computed, false)
        .reads("grad", &[4, 3])
        .writes("out", &[4, 3]),
        new("layer_norm_sums", |ctx, from, to| {
            let of =
                kernels::Normalized { centered: true, input: from[0], weight: None, statistics: from[1] };
            let sizes = [4, 3, 1];
            let dtype = from[0].dtype();
            let mut room = ctx.workspace(kernels::NormalizeRowsSumsWorkspace { sizes, sums: 2, dtype })?;
            let workspace = room.as_mut().map(Buffer::view_mut);
            let mut to = outputs(to);
            let (weight, bias) = (to.next(), Some(to.next()));
            ctx.compute(kernels::NormalizeRowsSums { of, grad: from[2], places: 1, workspace, weight, bias })
        })
        .reads("of.input", &[4, 3])
        .with("of.statistics", &[4, 2], Type::Computed, false)
        .reads("grad", &[4, 3])
        .writes("weight", &[3])
        .writes("bias", &[3]),
        new("batch_norm", |ctx, from, to| {
            let (shape, dtype) = (from[0].layout().shape(), from[0].dtype());
            let mut room = ctx.workspace(kernels::NormalizeChannelsWorkspace { shape, dtype })?;
            let mut to = outputs(to);
            ctx.compute(kernels::NormalizeChannels {
                epsilon: 1e-5,
                rectified: true,
                input: from[0],
                weight: from[1],
                bias: from[2],
                fixed_mean: None,
                fixed_variance: None,
                residual: Some(from[3]),
                workspace: room.as_mut().map(Buffer::view_mut),
                out: to.next(),
                statistics: to.next(),
                variance: Some(to.next()),
            })
        })
        .reads("input", &[2, 3, 4])
        .reads("weight", &[3])
        .reads("bias", &[3])
        .reads("residual", &[2, 3, 4])
        .writes("out", &[2, 3, 4])
        .writes_as("statistics", &[3, 2], Type::Computed)
        .writes_as("variance", &[3], Type::Computed),
        new("batch_norm_fixed", |ctx, from, to| {
            let (shape, dtype) = (from[0].layout().shape(), from[0].dtype());
            let mut room = ctx.workspace(kernels::NormalizeChannelsWorkspace { shape, dtype })?;
            let mut to = outputs(to);
            ctx.compute(kernels::NormalizeChannels {
                epsilon: 1e-5,
                rectified: false,
                input: from[0],
                weight: from[1],
                bias: from[2],
                fixed_mean: Some(from[3]),
                fixed_variance: Some(from[4]),
                residual: None,
                workspace: room.as_mut().map(Buffer::view_mut),
                out: to.next(),
                statistics: to.next(),
                variance: None,
            })
        })
        .reads("input", &[2, 3, 4])
        .reads("weight", &[3])
        .reads("bias", &[3])
        .reads("fixed_mean", &[3])
        .reads("fixed_variance", &[3])
        .writes("out", &[2, 3, 4])
        .writes_as("statistics", &[3, 2], Type::Computed),
        new("batch_norm_grad", |ctx, from, to| {
            let (shape, dtype) = (from[0].layout().shape(), from[0].dtype());
            let mut room = ctx.workspace(kernels::NormalizeChannelsWorkspace { shape, dtype })?;
            let mut to = outputs(to);
            ctx.compute(kernels::NormalizeChannelsGrad {
                of_batch: true,
                of: kernels::Normalized {
                    centered: true,
                    input: from[0],
                    weight: Some(from[1]),
                    statistics: from[2],
                },
                grad: from[3],
                output: Some(from[4]),
                workspace: room.as_mut().map(Buffer::view_mut),
                out: Some(to.next()),
                residual: Some(to.next()),
                weight: to.next(),
                bias: to.next(),
            })
        })
        .reads("of.input", &[2, 3, 4])
        .reads("of.weight", &[3])
        .with("of.statistics", &[3, 2], Type::Computed, false)
        .reads("grad", &[2, 3, 4])
        .reads("output", &[2, 3, 4])
        .writes("out", &[2, 3, 4])
        .writes("residual", &[2, 3, 4])
        .writes_as("weight", &[3], Type::Computed)
        .writes_as("bias", &[3], Type::Computed),
        new("cross_entropy", |ctx, from, to| {
            let (logits, targets, losses) = (from[0], from[1], outputs(to).next());
            ctx.compute(kernels::CrossEntropy { logits, targets, losses })
        })
        .reads("logits", &[2, 3])
        .indices("targets", &[2])
        .writes("losses", &[2]),
        new("cross_entropy_grad", |ctx, from, to| {
            let (logits, targets, grad, out) = (from[0], from[1], from[2], outputs(to).next());
            ctx.compute(kernels::CrossEntropyGrad { logits, targets, grad, out })
        })
        .reads("logits", &[2, 3])
        .indices("targets", &[2])
        .reads("grad", &[2])
        .writes("out", &[2, 3]),
        new("cross_entropy_in_place", |ctx, from, to| {
            let (targets, factors, mut to) = (from[0], from[1], outputs(to));
            let (losses, logits) = (to.next(), to.next());
            let smoothing = 0.1;
            ctx.compute(kernels::CrossEntropyInPlace { smoothing, targets, factors, losses, logits })
        })
        .indices("targets", &[2])
        .reads("factors", &[2])
        .writes("losses", &[2])
        .writes("logits", &[2, 3]),
    ]
}

fn windows() -> Vec<Case> {
    // Of 4 channels in 2 groups, images of 5 by 6 become images of 5 by 3.
    let (large, filters, small) = (&[2, 4, 5, 6], &[6, 2, 3, 2], &[2, 6, 5, 3]);
    vec![
        new("conv2d", |ctx, from, to| {
            let (conv, input, weight, out) = (&CONVOLUTION, from[0], from[1], outputs(to).next());
            let dtype = input.dtype();
            let (from, to) = (input.layout().shape(), out.layout().shape());
            let mut room = ctx.workspace(kernels::Conv2dWorkspace { conv, input: from, out: to, dtype })?;
            let (conv, workspace) = (CONVOLUTION, room.as_mut().map(Buffer::view_mut));
            ctx.compute(kernels::Conv2d { conv, input, weight, workspace, out })
        })
        .reads("input", large)
        .reads("weight", filters)
        .writes("out", small),
        new("conv2d_input_grad", |ctx, from, to| {
            let (conv, weight, grad, out) = (&CONVOLUTION, from[0], from[1], outputs(to).next());
            let dtype = grad.dtype();
            let (from, to) = (out.layout().shape(), grad.layout().shape());
            let mut room =
                ctx.workspace(kernels::Conv2dInputGradWorkspace { conv, input: from, out: to, dtype })?;
            let (conv, workspace) = (CONVOLUTION, room.as_mut().map(Buffer::view_mut));
            ctx.compute(kernels::Conv2dInputGrad { conv, weight, grad, workspace, out })
        })
        .reads("weight", filters)
        .reads("grad", small)
        .writes("out", large),
        new("conv2d_weight_grad", |ctx, from, to| {
            let (conv, input, grad, out) = (CONVOLUTION, from[0], from[1], outputs(to).next());
            let mut room = ctx.workspace(kernels::Conv2dWeightGradWorkspace {
                conv: &conv,
                input: input.layout().shape(),
                out: grad.layout().shape(),
                dtype: input.dtype(),
                weight_dtype: out.dtype(),
            })?;
            let workspace = room.as_mut().map(Buffer::view_mut);
            ctx.compute(kernels::Conv2dWeightGrad { conv, input, grad, workspace, out })
        })
        .reads("input", large)
        .reads("grad", small)
        .writes("out", filters),
        new("pool2d", |ctx, from, to| {
            let (pool, axes, input) = (PoolReduction::Max, POOL, from[0]);
            ctx.compute(kernels::Pool2d { pool, axes, input, out: outputs(to).next() })
        })
        .reads("input", &[2, 4, 5])
        .writes("out", &[2, 3, 3]),
        new("pool2d_grad", |ctx, from, to| {
            let (pool, axes, input, grad) = (PoolReduction::Max, POOL, Some(from[0]), from[1]);
            ctx.compute(kernels::Pool2dGrad { pool, axes, input, grad, out: outputs(to).next() })
        })
        .reads("input", &[2, 4, 5])
        .reads("grad", &[2, 3, 3])
        .writes("out", &[2, 4, 5]),
    ]
}

/// Kernels on matrices of five rows of 64 values in blocks.
fn quantized() -> Vec<Case> {
    const FORMAT: BlockFormat = BlockFormat::Q8_0;
    vec![
        new("quantized_product", |ctx, from, to| {
            let (lhs, transposed) = (from[0], true);
            let (outputs, dtype) = (to[0].layout().shape().dims().last().copied().unwrap_or(0), lhs.dtype());
            let layout = lhs.layout();
            let of = kernels::MatMulQuantizedWorkspace { lhs: layout, outputs, transposed, dtype };
            let mut room = ctx.workspace(of)?;
            ctx.compute(kernels::MatMulQuantized {
                format: FORMAT,
                transposed,
                bias: Some(from[2]),
                lhs,
                blocks: from[1],
                workspace: room.as_mut().map(Buffer::view_mut),
                out: self::outputs(to).next(),
            })
        })
        .reads("lhs", &[3, 64])
        .with("blocks", &[5, 68], Type::Bytes, false)
        .reads("bias", &[5])
        .writes("out", &[3, 5]),
        new("dequantize_rows", |ctx, from, to| {
            let (blocks, indices) = (from[0], Some(from[1]));
            let out = outputs(to).next();
            ctx.compute(kernels::DequantizeRows { format: FORMAT, blocks, indices, out })
        })
        .with("blocks", &[5, 68], Type::Bytes, false)
        .indices("indices", &[4])
        .writes("out", &[4, 64]),
        new("quantize_rows", |ctx, from, to| {
            let out = outputs(to).next();
            ctx.compute(kernels::QuantizeRows { format: FORMAT, input: from[0], out })
        })
        .reads("input", &[5, 64])
        .writes_as("out", &[5, 68], Type::Bytes),
    ]
}

fn chosen() -> Vec<Case> {
    vec![
        new("gather", |ctx, from, to| {
            let (input, indices, axis) = (from[0], from[1], 1);
            ctx.compute(kernels::Gather { input, indices, axis, out: outputs(to).next() })
        })
        .reads("input", &[2, 3])
        .indices("indices", &[2, 5])
        .writes("out", &[2, 5]),
        new("scatter_add", |ctx, from, to| {
            let (input, indices, axis) = (from[0], from[1], 1);
            let mut room = ctx.workspace(kernels::ScatterAddWorkspace { indices: indices.layout(), axis })?;
            let workspace = room.as_mut().map(Buffer::view_mut);
            ctx.compute(kernels::ScatterAdd { input, indices, axis, workspace, out: outputs(to).next() })
        })
        .reads("input", &[2, 5])
        .indices("indices", &[2, 5])
        .writes("out", &[2, 3]),
        new("one_hot", |ctx, from, to| {
            ctx.compute(kernels::OneHot { indices: from[0], out: outputs(to).next() })
        })
        .indices("indices", &[2])
        .writes("out", &[2, 3]),
    ]
}

/// A step of each rule, and of options that require further states.
fn steps() -> Vec<Case> {
    let further = [
        SgdRule { momentum: 0.9, ..SgdRule::DEFAULT }.into(),
        AdamRule { amsgrad: true, ..AdamRule::DEFAULT }.into(),
        RmsPropRule { momentum: 0.9, ..RmsPropRule::DEFAULT }.into(),
    ];
    OptimizerRule::all().chain(further).map(step).collect()
}

fn step(rule: OptimizerRule) -> Case {
    let case = new(rule.name(), move |ctx, from, to| {
        let mut to = outputs(to);
        let param = to.next();
        let states = rule.states().map(|state| state.initial.map(|_| to.next()));
        ctx.compute(kernels::OptimizerStep { rule, number: 1, grad: from[0], states, param })
    });
    let states = rule.states().into_iter().filter(|state| state.initial.is_some());
    let case = case.reads("grad", &[2, 3]).writes("param", &[2, 3]);
    states.fold(case, |case, state| case.writes_as(state.name, &[2, 3], Type::Computed))
}

/// A call of every kernel.
pub(crate) fn all() -> Vec<Case> {
    [
        moved(),
        of_elements(),
        folded(),
        products(),
        recurrent(),
        rows(),
        windows(),
        quantized(),
        chosen(),
        steps(),
    ]
    .concat()
}
