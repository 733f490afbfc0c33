//! Every op, with inputs: one table for the tests of gradients, element types, layouts, memory, and the dry run.
//!
//! [`cases`] has the differentiable ops: the functions of `backend::Unary` and `backend::Binary`, and the rows of [`CASES`].
//! [`others::others`] has ops without a gradient. A row is tested for every property unless it says that it is an exception.

#![allow(clippy::unwrap_used, reason = "these are tests")]
#![allow(dead_code, unused_imports, reason = "each test program uses a part")]

#[cfg(feature = "cuda")]
pub(crate) mod computing;
#[cfg(feature = "cuda")]
pub(crate) mod counting;
mod devices;
pub(crate) mod optimizers;
pub(crate) mod others;
pub(crate) mod surrounded;

use highwater_tensor::backend::{Binary, Compare, GradReads, Unary};
use highwater_tensor::{
    Activation, AttentionOptions, BatchStatistics, BlockFormat, Conv1dOptions, Conv2dOptions,
    CrossEntropyOptions, DType, Device, Interpolation, IntoAxisIndex, LinearCrossEntropyOptions, Norm,
    PadMode, Pool1dOptions, Pool2dOptions, QuantizedMatrix, RecurrentCell, RecurrentWeights, Reduction,
    Result, Rng, SortOrder, Tensor,
};

#[cfg(feature = "cuda")]
pub(crate) use devices::{computed_by, computed_in};
pub(crate) use devices::{device, device_of, dry_device, runtime};
use surrounded::{beside, floats_beside};

/// The range of an input's values. A finite difference must not cross a point where a derivative jumps.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Values {
    /// Between -2 and 2.
    Any,
    /// Between 0.5 and 2.5.
    Positive,
    /// At least 0.2 away from 0.
    NotZero,
    /// Different from one another by at least 0.1, and from those with another offset by 0.05.
    Distinct(f64),
    /// In these ranges.
    In(&'static [(f64, f64)]),
}

/// How an input lies in its buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lies {
    InOrder,
    /// Made with the axes in the opposite order.
    Transposed,
    /// Every second element along the first axis of a larger tensor.
    WithGaps,
}

pub(crate) use Lies::{InOrder, Transposed, WithGaps};
pub(crate) use Values::{Any, Distinct, In, NotZero, Positive};

/// A leaf of a case.
pub(crate) type Input = (&'static [usize], Values, Lies);

/// An op applied to inputs.
#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) inputs: Vec<Input>,
    pub(crate) function: Function,
    pub(crate) properties: Properties,
}

/// The expected properties of an op.
#[derive(Clone, Copy)]
pub(crate) struct Properties {
    /// 16-bit results are f32 results that were rounded once.
    pub(crate) rounds_once: bool,
    /// Operands of different float types are promoted.
    pub(crate) promotes: bool,
    /// The result is a view of the input.
    pub(crate) is_view: bool,
    /// The result is a loss: f32 for 16-bit operands, if it is one number.
    pub(crate) is_loss: bool,
}

impl Properties {
    const USUAL: Self = Self { rounds_once: true, promotes: true, is_view: false, is_loss: false };
}

/// A row of [`CASES`].
struct Row {
    name: &'static str,
    inputs: &'static [Input],
    function: fn(&[Tensor]) -> Result<Tensor>,
    properties: Properties,
}

impl Row {
    /// 16-bit results are rounded after several steps.
    const fn rounding_often(mut self) -> Self {
        self.properties.rounds_once = false;
        self
    }

    /// The operands must have one element type.
    const fn of_one_type(mut self) -> Self {
        self.properties.promotes = false;
        self
    }

    /// The result is a loss.
    const fn loss(mut self) -> Self {
        self.properties.is_loss = true;
        self
    }

    /// The result is a view of the input.
    const fn view(mut self) -> Self {
        self.properties.is_view = true;
        self
    }
}

/// The op of a case.
#[derive(Clone, Copy)]
pub(crate) enum Function {
    /// A row of [`CASES`].
    Ops(fn(&[Tensor]) -> Result<Tensor>),
    Unary(Unary),
    Binary(Binary),
    Compare(Compare),
}

impl Function {
    pub(crate) fn apply(self, x: &[Tensor]) -> Result<Tensor> {
        match self {
            Self::Ops(function) => function(x),
            Self::Unary(f) => x[0].unary(f),
            Self::Binary(f) => x[0].binary(f, &x[1]),
            Self::Compare(f) => x[0].compare(f, &x[1]),
        }
    }
}

impl Case {
    fn of_table(name: impl Into<String>, inputs: &[Input], function: Function) -> Self {
        Self { name: name.into(), inputs: inputs.to_vec(), function, properties: Properties::USUAL }
    }

    pub(crate) fn apply(&self, x: &[Tensor]) -> Result<Tensor> {
        self.function.apply(x)
    }
}

/// Returns the functions of the library's tables that have a gradient, and the rows of [`CASES`].
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for &f in Unary::ALL.iter().filter(|f| f.grad_reads() != GradReads::Flat) {
        cases.push(Case::of_table(f.name(), &[(&[3, 4], In(f.smooth()), Transposed)], Function::Unary(f)));
    }
    for &f in Binary::ALL {
        let ([a, b], function) = (f.smooth().map(In), Function::Binary(f));
        cases.push(Case::of_table(f.name(), &[(&[3, 4], a, Transposed), (&[3, 4], b, WithGaps)], function));
        let inputs: &[Input] = &[(&[2, 1, 4], a, InOrder), (&[3, 1], b, InOrder)];
        cases.push(Case::of_table(format!("{}, broadcast", f.name()), inputs, function));
    }
    cases.extend(CASES.iter().map(|row| Case {
        properties: row.properties,
        ..Case::of_table(row.name, row.inputs, Function::Ops(row.function))
    }));
    cases
}

/// A generator whose values are the same in every run.
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// SplitMix64 (Steele, Lea and Flood 2014).
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Uniform in [0, 1).
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (2..=items.len()).rev() {
            items.swap(end - 1, self.below(end));
        }
    }
}

fn values(count: usize, values: Values, numbers: &mut Numbers) -> Vec<f64> {
    let mut drawn: Vec<f64> = match values {
        Any => (0..count).map(|_| numbers.unit() * 4.0 - 2.0).collect(),
        Positive => (0..count).map(|_| numbers.unit() * 2.0 + 0.5).collect(),
        NotZero => (0..count)
            .map(|_| (0.2 + numbers.unit() * 1.5) * if numbers.below(2) == 0 { 1.0 } else { -1.0 })
            .collect(),
        In(ranges) => (0..count)
            .map(|i| {
                let (low, high) = ranges[i % ranges.len()];
                low + (high - low) * numbers.unit()
            })
            .collect(),
        Distinct(offset) => (0..count).map(|i| (i as f64 - (count / 2) as f64) * 0.1 + offset).collect(),
    };
    numbers.shuffle(&mut drawn);
    drawn
}

/// Returns a case's inputs on a device.
pub(crate) fn inputs(case: &Case, device: &Device, dtype: DType) -> Vec<Tensor> {
    let mut numbers = Numbers::new(17);
    let mut make = |&(shape, kind, lies): &Input| -> Result<Tensor> {
        let order: Vec<isize> = (0..shape.len() as isize).rev().collect();
        let stored: Vec<usize> = match lies {
            InOrder => shape.to_vec(),
            Transposed => shape.iter().rev().copied().collect(),
            WithGaps => [&[shape[0] * 2], &shape[1..]].concat(),
        };
        let drawn = values(stored.iter().product(), kind, &mut numbers);
        let tensor = Tensor::from_slice(device, &drawn, stored)?.to_dtype(dtype)?;
        match lies {
            InOrder => Ok(tensor),
            Transposed => tensor.permute(&order),
            WithGaps => tensor.slice_step(0, 1.., 2),
        }
    };
    case.inputs.iter().map(|input| make(input).unwrap()).collect()
}

/// The name, the inputs and the op of a case.
const fn case(
    name: &'static str,
    inputs: &'static [Input],
    function: fn(&[Tensor]) -> Result<Tensor>,
) -> Row {
    Row { name, inputs, function, properties: Properties::USUAL }
}

const MATRIX: &[Input] = &[(&[3, 4], Any, InOrder)];
const STRIDED: &[Input] = &[(&[3, 4], Any, Transposed)];
const CUBE: &[Input] = &[(&[2, 3, 4], Any, InOrder)];
const STRIDED_CUBE: &[Input] = &[(&[2, 3, 4], Any, WithGaps)];
const KINKED: &[Input] = &[(&[3, 4], NotZero, Transposed)];
const RANKED: &[Input] = &[(&[2, 3, 4], Distinct(0.0), InOrder)];
const STRIDED_RANKED: &[Input] = &[(&[3, 4], Distinct(0.0), Transposed)];
const PROJECTED: &[Input] = &[(&[3, 4], Any, Transposed), (&[4, 5], Any, WithGaps)];
const PROJECTED_BY_TABLE: &[Input] = &[(&[3, 4], Any, WithGaps), (&[5, 4], Any, InOrder)];
const PAIR: &[Input] = &[(&[3, 4], Any, InOrder), (&[3, 4], Any, Transposed)];
const BROADCAST: &[Input] = &[(&[2, 1, 4], Any, InOrder), (&[3, 1], Any, InOrder)];
const NORMED: &[Input] = &[(&[2, 3, 4], Any, Transposed), (&[4], Any, InOrder), (&[4], Any, WithGaps)];
const HEADS: &[Input] =
    &[(&[2, 2, 3, 4], Any, InOrder), (&[2, 2, 5, 4], Any, Transposed), (&[2, 2, 5, 3], Any, WithGaps)];
const GROUPED: &[Input] =
    &[(&[4, 2, 3], Any, Transposed), (&[2, 4, 3], Any, InOrder), (&[2, 4, 2], Any, WithGaps)];
const BIASED: &[Input] = &[
    (&[2, 2, 3, 4], Any, InOrder),
    (&[2, 2, 5, 4], Any, Transposed),
    (&[2, 2, 5, 3], Any, WithGaps),
    (&[2, 1, 5], Any, InOrder),
];
const APART: &[Input] = &[(&[3, 4], Distinct(0.0), Transposed), (&[3, 4], Distinct(0.05), InOrder)];
const LIKELY: &[Input] = &[(&[3, 4], Any, Transposed), (&[3, 4], Positive, WithGaps)];
const TRIPLET: &[Input] =
    &[(&[3, 4], Any, InOrder), (&[3, 4], Any, Transposed), (&[3, 4], Positive, WithGaps)];
const LAYER: &[Input] = &[(&[2, 3], Any, Transposed), (&[3, 4], Any, InOrder), (&[4], Any, WithGaps)];
const SCALED: &[Input] = &[(&[], Any, InOrder), (&[3, 4], Any, InOrder)];

/// The elements around the indices are out of range.
const BAD_INDEX: i64 = i64::MIN;

/// Returns indices with the layout of `like`.
pub(crate) fn indices(like: &Tensor, values: &[i64], dims: &[usize]) -> Result<Tensor> {
    beside(like, values, dims, BAD_INDEX)
}

/// Returns a matrix of three rows of 64 values in blocks.
fn quantized(like: &Tensor, format: BlockFormat) -> Result<QuantizedMatrix> {
    let values: Vec<f32> = (0..3 * 64).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
    let bytes = 64 / format.block_values() * format.block_bytes();
    let mut blocks = vec![0; 3 * bytes];
    format.quantize(&values, &mut blocks);
    QuantizedMatrix::from_blocks(beside(like, &blocks, &[3, bytes], u8::MAX)?, format)
}

pub(crate) fn classes(like: &Tensor, values: &[i64]) -> Result<Tensor> {
    indices(like, values, &[values.len()])
}

/// Returns a mask with the layout of `like`. The elements around it are all true, unlike those in the mask.
pub(crate) fn mask(like: &Tensor, values: &[bool], dims: &[usize]) -> Result<Tensor> {
    beside(like, values, dims, true)
}

/// Returns a mask of the shape of `of` with the layout of `like`.
fn checkers(like: &Tensor, of: &[usize]) -> Result<Tensor> {
    let values: Vec<bool> = (0..of.iter().product::<usize>()).map(|i| i % 3 == 0).collect();
    mask(like, &values, of)
}

/// The ops that are no functions of the library's tables, and special cases of such functions. See [`cases`].
const CASES: &[Row] = &[
    case("prelu", &[(&[3, 4], NotZero, Transposed), (&[4], Any, WithGaps)], |x| x[0].prelu(&x[1])),
    case("prelu, one slope", &[(&[2, 3, 4], NotZero, WithGaps), (&[1], Any, InOrder)], |x| x[0].prelu(&x[1])),
    case("powf, of negative numbers", STRIDED, |x| x[0].powf(3.0)),
    case("clamp, between negative numbers", RANKED, |x| x[0].clamp(-0.55, -0.15)),
    case("sub_scalar", STRIDED, |x| x[0].sub_scalar(2.5)),
    case("add, to itself", MATRIX, |x| x[0].add(&x[0])),
    case("mul, by a scalar tensor", SCALED, |x| x[0].mul(&x[1])),
    case("where", PAIR, |x| checkers(&x[0], x[0].dims())?.where_(&x[0], &x[1])),
    case("where, broadcast", BROADCAST, |x| {
        let condition = checkers(&x[0], &[2, 3, 4])?;
        condition.where_(&x[0], &x[1])
    }),
    case("sum", CUBE, |x| x[0].sum(1)),
    case("sum, strided", STRIDED_CUBE, |x| x[0].sum([0, -1])),
    case("sum, twice", CUBE, |x| x[0].sum(0)?.sum(0)).rounding_often(),
    case("sum_keepdim", STRIDED, |x| x[0].sum_keepdim(0)),
    case("sum_all", STRIDED, |x| x[0].sum_all()),
    case("mean", STRIDED_CUBE, |x| x[0].mean([0, 2])),
    case("mean_keepdim", CUBE, |x| x[0].mean_keepdim(1)),
    case("mean_all", CUBE, |x| x[0].mean_all()),
    case("max", RANKED, |x| x[0].max([0, 2])),
    case("max_keepdim", STRIDED_RANKED, |x| x[0].max_keepdim(1)),
    case("max_all", RANKED, |x| x[0].max_all()),
    case("min", STRIDED_RANKED, |x| x[0].min(0)),
    case("min_keepdim", RANKED, |x| x[0].min_keepdim([1])),
    case("min_all", RANKED, |x| x[0].min_all()),
    case("sum_to", CUBE, |x| x[0].sum_to([3, 1])),
    case("broadcast_to", MATRIX, |x| x[0].broadcast_to([2, 3, 4])).view(),
    case("matmul", &[(&[2, 3], Any, InOrder), (&[3, 4], Any, InOrder)], |x| x[0].matmul(&x[1])),
    case("matmul, strided", &[(&[2, 3], Any, Transposed), (&[3, 4], Any, WithGaps)], |x| x[0].matmul(&x[1])),
    case("matmul, vector and matrix", &[(&[3], Any, InOrder), (&[2, 3, 4], Any, InOrder)], |x| {
        x[0].matmul(&x[1])
    }),
    case("matmul, matrix and vector", &[(&[2, 4, 3], Any, Transposed), (&[3], Any, WithGaps)], |x| {
        x[0].matmul(&x[1])
    }),
    case("matmul, vectors", &[(&[3], Any, InOrder), (&[3], Any, WithGaps)], |x| x[0].matmul(&x[1])),
    case("matmul, a stack by a matrix", &[(&[2, 2, 3], Any, InOrder), (&[3, 4], Any, InOrder)], |x| {
        x[0].matmul(&x[1])
    }),
    case("linear", &[(&[2, 3], Any, InOrder), (&[3, 4], Any, InOrder), (&[4], Any, InOrder)], |x| {
        x[0].linear(&x[1], &x[2])
    }),
    case(
        "linear, strided",
        &[(&[2, 3], Any, Transposed), (&[3, 4], Any, WithGaps), (&[4], Any, WithGaps)],
        |x| x[0].linear(&x[1], &x[2]),
    ),
    case(
        "linear, a stack",
        &[(&[2, 2, 3], Any, InOrder), (&[3, 4], Any, Transposed), (&[4], Any, InOrder)],
        |x| x[0].linear(&x[1], &x[2]),
    ),
    // A CPU rounds the matrix to bf16 for the products of several rows of bf16.
    case("linear_quantized", &[(&[2, 64], Any, InOrder), (&[3], Any, InOrder)], |x| {
        x[0].linear_quantized(&quantized(&x[0], BlockFormat::Q8_0)?, Some(&x[1]))
    })
    .rounding_often(),
    case("linear_quantized, strided, without a bias", &[(&[3, 64], Any, Transposed)], |x| {
        x[0].linear_quantized(&quantized(&x[0], BlockFormat::Nf4)?, None)
    })
    .rounding_often(),
    case("linear_quantized, a stack", &[(&[2, 2, 64], Any, WithGaps), (&[3], Any, InOrder)], |x| {
        x[0].linear_quantized(&quantized(&x[0], BlockFormat::Q4_1)?, Some(&x[1]))
    })
    .rounding_often(),
    case("linear_activation, relu", LAYER, |x| x[0].linear_activation(&x[1], &x[2], Activation::Relu)),
    case("linear_activation, gelu", LAYER, |x| x[0].linear_activation(&x[1], &x[2], Activation::Gelu)),
    case("linear_activation, gelu_tanh", LAYER, |x| {
        x[0].linear_activation(&x[1], &x[2], Activation::GeluTanh)
    }),
    case("linear_activation, silu", LAYER, |x| x[0].linear_activation(&x[1], &x[2], Activation::Silu)),
    case("matmul, stacks", &[(&[2, 1, 2, 3], Any, InOrder), (&[3, 3, 2], Any, Transposed)], |x| {
        x[0].matmul(&x[1])
    }),
    case("reshape", CUBE, |x| x[0].reshape([4, 6])).view(),
    case("reshape, strided", STRIDED, |x| x[0].reshape([2, 6])),
    case("flatten_from", CUBE, |x| x[0].flatten_from(1)).view(),
    case("transpose", CUBE, |x| x[0].transpose(0, 2)).view(),
    case("t", MATRIX, |x| x[0].t()).view(),
    case("permute", CUBE, |x| x[0].permute([2, 0, 1])).view(),
    case("squeeze", &[(&[3, 1, 2], Any, Transposed)], |x| x[0].squeeze(1)).view(),
    case("unsqueeze", STRIDED, |x| x[0].unsqueeze(1)).view(),
    case("contiguous", STRIDED, |x| x[0].contiguous()),
    case("slice", CUBE, |x| x[0].slice(1, 1..)).view(),
    case("slice_step", STRIDED, |x| x[0].slice_step(1, .., 3)).view(),
    case("narrow", MATRIX, |x| x[0].narrow(0, 1, 2)).view(),
    case("concat", PAIR, |x| Tensor::concat(&[&x[0], &x[1], &x[0]], 1)),
    case("stack", PAIR, |x| Tensor::stack(&[&x[0], &x[1]], -1)),
    case("softmax", CUBE, |x| x[0].softmax(-1)),
    case("softmax, first axis", STRIDED, |x| x[0].softmax(0)),
    case("log_softmax", STRIDED, |x| x[0].log_softmax(-1)),
    case("log_softmax, middle axis", CUBE, |x| x[0].log_softmax(1)),
    case("cross_entropy", STRIDED, |x| x[0].cross_entropy(&classes(&x[0], &[3, 0, 2])?)).loss(),
    case("cross_entropy, at positions", CUBE, |x| {
        let targets = indices(&x[0], &[2, 0, 1, 1, 2, 0, 0, 2], &[2, 4])?;
        x[0].cross_entropy(&targets)
    })
    .loss(),
    case("cross_entropy, at positions with options", CUBE, |x| {
        let targets = indices(&x[0], &[2, 0, 1, -7, 2, 0, 0, 2], &[2, 4])?;
        let options = CrossEntropyOptions {
            label_smoothing: 0.2,
            ignore_index: Some(-7),
            reduction: Reduction::None,
            ..Default::default()
        };
        x[0].cross_entropy_with(&targets, options)
    })
    .loss(),
    case("linear_cross_entropy", PROJECTED, |x| {
        x[0].linear_cross_entropy(&x[1], &classes(&x[0], &[3, 0, 2])?, Reduction::Mean)
    })
    .loss(),
    case("linear_cross_entropy, by chunks with options", PROJECTED_BY_TABLE, |x| {
        let options = LinearCrossEntropyOptions {
            label_smoothing: 0.2,
            ignore_index: Some(-7),
            reduction: Reduction::Mean,
            chunk: Some(2),
        };
        x[0].linear_cross_entropy(&x[1].t()?, &classes(&x[0], &[3, -7, 1])?, options)
    })
    .loss(),
    case("mse_loss", PAIR, |x| x[0].mse_loss(&x[1])).loss(),
    case("mse_loss, summed", PAIR, |x| x[0].mse_loss_with(&x[1], Reduction::Sum)).loss(),
    case("mse_loss, of each", PAIR, |x| x[0].mse_loss_with(&x[1], Reduction::None)).loss(),
    case("cross_entropy, summed", STRIDED, |x| {
        let options = CrossEntropyOptions { reduction: Reduction::Sum, ..Default::default() };
        x[0].cross_entropy_with(&classes(&x[0], &[3, 0, 2])?, options)
    })
    .loss(),
    case("cross_entropy, with all options", MATRIX, |x| {
        let weights = floats_beside(&x[0], &[0.5, 2.0, 0.0, 1.5], &[4])?;
        let options = CrossEntropyOptions {
            label_smoothing: 0.2,
            ignore_index: Some(-7),
            class_weights: Some(&weights),
            reduction: Reduction::Mean,
        };
        x[0].cross_entropy_with(&classes(&x[0], &[3, -7, 1])?, options)
    })
    .loss(),
    case("l1_loss", APART, |x| x[0].l1_loss(&x[1])).loss(),
    case("huber_loss", APART, |x| x[0].huber_loss_with(&x[1], 0.33, Reduction::Sum)).loss(),
    case("bce_with_logits", LIKELY, |x| x[0].bce_with_logits_with(&x[1], Reduction::None)).loss(),
    case("kl_div", LIKELY, |x| x[0].kl_div(&x[1])).loss(),
    case("poisson_nll_loss", LIKELY, |x| x[0].poisson_nll_loss(&x[1])).loss(),
    case("cosine_embedding_loss", PAIR, |x| {
        let alike = indices(&x[0], &[1, -1, 1], &[3])?;
        x[0].cosine_embedding_loss_with(&x[1], &alike, -0.9, Reduction::None)
    })
    .loss(),
    case("triplet_margin_loss", TRIPLET, |x| x[0].triplet_margin_loss(&x[1], &x[2], 9.0)).loss(),
    case("prod", STRIDED_CUBE, |x| x[0].prod([0, 2])),
    case("prod, with zeros", CUBE, |x| {
        // A row without a zero, with one, and with two.
        let holes = [false, false, false, false, true, false, false, false, true, false, true, false];
        let holes = mask(&x[0], &holes, &[3, 4])?;
        x[0].masked_fill(&holes, 0)?.prod_keepdim(2)
    }),
    case("prod_all", MATRIX, |x| x[0].prod_all()),
    case("var", STRIDED_CUBE, |x| x[0].var([0, 2], 1)),
    case("var_keepdim", CUBE, |x| x[0].var_keepdim(1, 0)),
    case("var_all", STRIDED, |x| x[0].var_all(0)),
    case("std", STRIDED_CUBE, |x| x[0].std(-1, 1)),
    case("std_keepdim", CUBE, |x| x[0].std_keepdim([0, 1], 0)),
    case("std_all", STRIDED, |x| x[0].std_all(1)),
    case("logsumexp", STRIDED_CUBE, |x| x[0].logsumexp([0, 2])),
    case("logsumexp_keepdim", MATRIX, |x| x[0].logsumexp_keepdim(1)),
    case("cumsum", CUBE, |x| x[0].cumsum(1)),
    case("cumsum, last axis", STRIDED, |x| x[0].cumsum(-1)),
    case("cumprod", CUBE, |x| x[0].cumprod(1)),
    case("cumprod, last axis", STRIDED, |x| x[0].cumprod(-1)),
    case("norm, L1", KINKED, |x| x[0].norm(Norm::L1, 0)),
    case("norm, L2", CUBE, |x| x[0].norm(Norm::L2, [0, 2])),
    case("norm, Max", &[(&[3, 4], Distinct(0.03), Transposed)], |x| x[0].norm_keepdim(Norm::Max, 1)),
    case("split", STRIDED, |x| x[0].split(1, 3)?[1].add(&x[0].chunk(1, 4)?[0])),
    case("pad", STRIDED, |x| x[0].pad([(1, 2), (0, 3)], 0.5)),
    case("pad_with, reflect", STRIDED_CUBE, |x| x[0].pad_with([(1, 0), (2, 2), (0, 3)], PadMode::Reflect)),
    case("pad_with, replicate", STRIDED_CUBE, |x| {
        x[0].pad_with([(0, 5), (1, 2), (3, 0)], PadMode::Replicate)
    }),
    case("pad_with, circular", STRIDED, |x| x[0].pad_with([(3, 1), (2, 4)], PadMode::Circular)),
    case("flip", STRIDED_CUBE, |x| x[0].flip([0, -1])),
    case("roll", STRIDED, |x| x[0].roll(-1, 1)),
    case("tile", STRIDED, |x| x[0].tile([2, 1, 3])),
    case("repeat_interleave", STRIDED, |x| x[0].repeat_interleave(0, 2)),
    case("tile, highest rank", MATRIX, |x| {
        let x = x[0].reshape([1, 3, 1, 1, 1, 4, 1, 1])?.transpose(1, 5)?;
        x.tile([1, 2, 1, 1, 1, 3, 2, 1])
    }),
    case("repeat_interleave, highest rank", MATRIX, |x| {
        x[0].reshape([1, 3, 1, 1, 1, 4, 1, 1])?.transpose(1, 5)?.repeat_interleave(5, 2)
    }),
    case("tril", STRIDED_CUBE, |x| x[0].tril(1)),
    case("triu", STRIDED, |x| x[0].triu(-1)),
    case("masked_fill", STRIDED, |x| x[0].masked_fill(&checkers(&x[0], x[0].dims())?, -2.0)),
    case("scatter_add", &[(&[3, 4], Any, InOrder), (&[5, 4], Any, Transposed)], |x| {
        let places = (0..20).map(|i| i * i % 3).collect::<Vec<i64>>();
        x[0].scatter_add(0, &indices(&x[0], &places, &[5, 4])?, &x[1])
    })
    .of_one_type()
    .rounding_often(),
    case("at", CUBE, |x| x[0].at((-1, (..).every(2), 1..3))),
    case("sort", RANKED, |x| x[0].sort(1, SortOrder::Descending).map(|(values, _)| values)),
    case("top_k", STRIDED_RANKED, |x| x[0].top_k(2, 0, SortOrder::Descending).map(|(values, _)| values)),
    case("einsum", PAIR, |x| Tensor::einsum("ij,kj->ki", &[&x[0], &x[1]])),
    case("einsum, elementwise", PAIR, |x| Tensor::einsum("ij,ij->j", &[&x[0], &x[1]])),
    case("einsum, diagonal", &[(&[3, 2, 3, 3], Any, Transposed), (&[3, 2], Any, InOrder)], |x| {
        Tensor::einsum("iaij,jb->ab", &[&x[0], &x[1]])
    }),
    case(
        "einsum, axes without letters",
        &[(&[2, 1, 3, 4], Any, Transposed), (&[4, 2, 5], Any, WithGaps)],
        |x| Tensor::einsum("...ij,j...->i...", &[&x[0], &x[1]]),
    ),
    case(
        "einsum, three operands",
        &[(&[3, 4], Any, Transposed), (&[4], Any, InOrder), (&[3], Any, WithGaps)],
        |x| Tensor::einsum("ik,k,i->k", &[&x[0], &x[1], &x[2]]),
    )
    .rounding_often(),
    case("diagonal", CUBE, |x| x[0].diagonal(1, -1, 0)),
    case("diagonal, below", STRIDED, |x| x[0].diagonal(-1, 0, 1)),
    case("gather", MATRIX, |x| x[0].gather(1, &indices(&x[0], &[3, 3, 0, 1], &[2, 2])?)),
    case("index_select", STRIDED, |x| x[0].index_select(0, &classes(&x[0], &[2, 0, 2, 2])?)),
    case("layer_norm", CUBE, |x| x[0].layer_norm(None, 1e-5)),
    case("layer_norm, affine", NORMED, |x| x[0].layer_norm(Some((&x[1], &x[2])), 1e-5)).of_one_type(),
    case("rms_norm", STRIDED, |x| x[0].rms_norm(None, 1e-5)),
    case("rms_norm, scaled", &[(&[2, 3, 4], Any, InOrder), (&[4], Any, WithGaps)], |x| {
        x[0].rms_norm(Some(&x[1]), 1e-5)
    })
    .of_one_type(),
    case("group_norm", &[(&[2, 4, 3], Any, Transposed), (&[4], Any, InOrder), (&[4], Any, InOrder)], |x| {
        x[0].group_norm(2, Some((&x[1], &x[2])), 1e-5)
    })
    .of_one_type(),
    case("batch_norm", &[(&[3, 4, 2], Any, Transposed), (&[4], Any, InOrder), (&[4], Any, WithGaps)], |x| {
        x[0].batch_norm(&x[1], &x[2], BatchStatistics::Batch { running: None }, 1e-5)
    })
    .of_one_type(),
    case("batch_norm, fixed", &[(&[3, 4], Any, InOrder), (&[4], Any, InOrder), (&[4], Any, InOrder)], |x| {
        let of_channels = |values: [f32; 4]| Tensor::from_slice(x[0].device(), &values, 4);
        let (mean, variance) = (of_channels([0.0, 0.1, -0.2, 0.3])?, of_channels([0.5, 1.0, 1.5, 2.0])?);
        x[0].batch_norm(&x[1], &x[2], BatchStatistics::Fixed { mean: &mean, variance: &variance }, 1e-1)
    })
    .of_one_type(),
    // The sign of the bias, or of the residual, is that of the sum, so that no difference crosses 0.
    case(
        "batch_norm_relu",
        &[
            (&[3, 4, 2], Any, Transposed),
            (&[4], In(&[(0.1, 0.3)]), InOrder),
            (&[4], In(&[(1.0, 1.5), (-1.5, -1.0)]), WithGaps),
        ],
        |x| x[0].batch_norm_relu(&x[1], &x[2], BatchStatistics::Batch { running: None }, 1e-5),
    )
    .of_one_type(),
    case(
        "batch_norm_add_relu",
        &[
            (&[3, 4, 2], Any, Transposed),
            (&[4], In(&[(0.02, 0.05)]), InOrder),
            (&[4], In(&[(-0.03, 0.03)]), WithGaps),
            (&[3, 4, 2], NotZero, WithGaps),
        ],
        |x| x[0].batch_norm_add_relu(&x[1], &x[2], &x[3], BatchStatistics::Batch { running: None }, 1e-5),
    )
    .of_one_type(),
    case(
        "batch_norm_add_relu, fixed",
        &[
            (&[3, 4], Any, InOrder),
            (&[4], In(&[(0.02, 0.05)]), InOrder),
            (&[4], In(&[(-0.03, 0.03)]), InOrder),
            (&[3, 4], NotZero, Transposed),
        ],
        |x| {
            let of_channels = |values: [f32; 4]| Tensor::from_slice(x[0].device(), &values, 4);
            let (mean, variance) = (of_channels([0.0, 0.1, -0.2, 0.3])?, of_channels([0.5, 1.0, 1.5, 2.0])?);
            let fixed = BatchStatistics::Fixed { mean: &mean, variance: &variance };
            x[0].batch_norm_add_relu(&x[1], &x[2], &x[3], fixed, 1e-1)
        },
    )
    .of_one_type(),
    case("conv2d", &[(&[2, 3, 5, 4], Any, InOrder), (&[4, 3, 3, 2], Any, InOrder)], |x| {
        x[0].conv2d(&x[1], Conv2dOptions::default())
    }),
    case(
        "conv2d, with all options",
        &[(&[2, 4, 7, 6], Any, Transposed), (&[6, 2, 3, 2], Any, WithGaps)],
        |x| {
            x[0].conv2d(
                &x[1],
                Conv2dOptions {
                    stride: [2, 1],
                    padding: [2, 1].into(),
                    dilation: [1, 2],
                    groups: 2,
                    ..Default::default()
                },
            )
        },
    ),
    case("conv2d, same", &[(&[2, 3, 5, 4], Any, Transposed), (&[4, 3, 4, 3], Any, WithGaps)], |x| {
        x[0].conv2d(&x[1], Conv2dOptions::same())
    }),
    case("conv1d", &[(&[2, 2, 9], Any, Transposed), (&[3, 2, 3], Any, InOrder)], |x| {
        x[0].conv1d(&x[1], Conv1dOptions { stride: 2, ..Conv1dOptions::padded(1) })
    }),
    case("conv_transpose2d", &[(&[2, 4, 3, 2], Any, Transposed), (&[4, 3, 2, 3], Any, InOrder)], |x| {
        let options = Conv2dOptions {
            stride: [2, 3],
            padding: [1, 0].into(),
            dilation: [2, 1],
            groups: 2,
            output_padding: [1, 2],
        };
        x[0].conv_transpose2d(&x[1], options)
    }),
    case("max_pool2d", &[(&[2, 2, 4, 4], Distinct(0.0), Transposed)], |x| {
        x[0].max_pool2d(Pool2dOptions::square(2))
    }),
    case("max_pool2d, overlapping", &[(&[2, 5, 6], Distinct(0.0), InOrder)], |x| {
        x[0].max_pool2d(Pool2dOptions {
            size: [3, 2],
            stride: [2, 1],
            padding: [1, 1],
            ..Pool2dOptions::square(1)
        })
    }),
    case("max_pool2d, ceil", &[(&[2, 6, 7], Distinct(0.0), Transposed)], |x| {
        x[0].max_pool2d(Pool2dOptions { stride: [2, 3], ceil_mode: true, ..Pool2dOptions::square(3) })
    }),
    case("avg_pool2d, ceil", &[(&[2, 6, 7], Any, Transposed)], |x| {
        let options = Pool2dOptions { padding: [1, 0], ceil_mode: true, ..Pool2dOptions::square(3) };
        x[0].avg_pool2d(options)
    }),
    case("avg_pool2d, without padding", &[(&[2, 5, 6], Any, InOrder)], |x| {
        let options = Pool2dOptions { stride: [2, 1], padding: [1, 1], ..Pool2dOptions::square(3) };
        x[0].avg_pool2d(Pool2dOptions { ceil_mode: true, count_include_pad: false, ..options })
    }),
    case("avg_pool2d", &[(&[2, 5, 6], Any, WithGaps)], |x| {
        x[0].avg_pool2d(Pool2dOptions {
            size: [3, 2],
            stride: [2, 1],
            padding: [1, 1],
            ..Pool2dOptions::square(1)
        })
    }),
    case("adaptive_avg_pool2d", &[(&[2, 5, 3], Any, InOrder)], |x| x[0].adaptive_avg_pool2d([3, 5])),
    case("adaptive_max_pool2d", &[(&[2, 5, 3], Distinct(0.0), InOrder)], |x| {
        x[0].adaptive_max_pool2d([3, 5])
    }),
    case("select", STRIDED_CUBE, |x| x[0].select(1, -1)),
    case("reshape, inferred", STRIDED, |x| x[0].reshape((2, -1))),
    case("max_pool1d", &[(&[2, 3, 7], Distinct(0.0), Transposed)], |x| {
        x[0].max_pool1d(Pool1dOptions { stride: 2, padding: 1, ..Pool1dOptions::new(3) })
    }),
    case("avg_pool1d", &[(&[2, 3, 7], Any, WithGaps)], |x| x[0].avg_pool1d(3)),
    case("unfold", STRIDED_CUBE, |x| x[0].unfold(1, 2, 1)).view(),
    case("unfold, with gaps between windows", CUBE, |x| x[0].unfold(2, 1, 3)),
    case("unfold2d", &[(&[2, 2, 5, 4], Any, Transposed)], |x| {
        let options = Conv2dOptions { stride: [2, 1], dilation: [1, 2], ..Conv2dOptions::padded(1) };
        x[0].unfold2d([3, 2], options)
    }),
    case("pixel_shuffle", &[(&[2, 8, 2, 3], Any, WithGaps)], |x| x[0].pixel_shuffle(2)),
    case("pixel_unshuffle", &[(&[1, 2, 4, 2], Any, Transposed)], |x| x[0].pixel_unshuffle(2)),
    case("interpolate, nearest", &[(&[1, 2, 3, 4], Any, Transposed)], |x| {
        x[0].interpolate([5, 3], Interpolation::Nearest)
    }),
    case("interpolate, bilinear", &[(&[2, 1, 3, 4], Any, WithGaps)], |x| {
        x[0].interpolate(1.7, Interpolation::Bilinear { align_corners: false })
    }),
    case("interpolate, bilinear, aligned", &[(&[1, 2, 3, 4], Any, Transposed)], |x| {
        x[0].interpolate([2, 7], Interpolation::Bilinear { align_corners: true })
    }),
    case(
        "instance_norm",
        &[(&[2, 2, 4], Any, Transposed), (&[2], Any, InOrder), (&[2], Any, WithGaps)],
        |x| x[0].instance_norm(Some((&x[1], &x[2])), 1e-5),
    )
    .of_one_type(),
    case("cosine_similarity", &[(&[3, 4], Positive, Transposed), (&[3, 4], Positive, WithGaps)], |x| {
        x[0].cosine_similarity(&x[1], 1, 1e-8)
    }),
    case(
        "cosine_similarity, broadcast",
        &[(&[2, 3, 4], Positive, InOrder), (&[3, 1], Positive, InOrder)],
        |x| x[0].cosine_similarity(&x[1], 1, 1e-8),
    ),
    case("attention", HEADS, |x| x[0].attention(&x[1], &x[2], None, AttentionOptions::default()))
        .of_one_type()
        .rounding_often(),
    case("attention, causal", HEADS, |x| {
        x[0].attention(&x[1], &x[2], None, AttentionOptions { causal: true, scale: Some(0.7) })
    })
    .of_one_type()
    .rounding_often(),
    case("attention, grouped heads, causal", GROUPED, |x| {
        x[0].attention(&x[1], &x[2], None, AttentionOptions { causal: true, scale: Some(0.7) })
    })
    .of_one_type()
    .rounding_often(),
    case("self_attention", &[(&[2, 3, 12], Any, InOrder)], |x| {
        x[0].self_attention(2, AttentionOptions::default())
    })
    .rounding_often(),
    case("self_attention, causal", &[(&[2, 2, 3, 6], Any, Transposed)], |x| {
        x[0].self_attention(1, AttentionOptions { causal: true, scale: Some(0.7) })
    })
    .rounding_often(),
    case("attention, masked", HEADS, |x| {
        let seen =
            [true, false, true, true, false, true, false, true, false, false, true, true, true, true, true];
        let mask = mask(&x[0], &seen, &[3, 5])?;
        x[0].attention(&x[1], &x[2], Some(&mask), AttentionOptions::default())
    })
    .of_one_type()
    .rounding_often(),
    case("attention, with a mask that is added", BIASED, |x| {
        x[0].attention(&x[1], &x[2], Some(&x[3]), AttentionOptions::default())
    })
    .of_one_type()
    .rounding_often(),
    case("attention, with a mask that is added, causal", BIASED, |x| {
        x[0].attention(&x[1], &x[2], Some(&x[3]), AttentionOptions { causal: true, scale: Some(0.7) })
    })
    .of_one_type()
    .rounding_often(),
    case("attention_with_dropout", HEADS, |x| {
        x[0].attention_with_dropout(&x[1], &x[2], None, AttentionOptions::default(), 0.25, &Rng::new(3))
    })
    .of_one_type()
    .rounding_often(),
    case("attention_with_dropout, masked", BIASED, |x| {
        let mask = x[3].detach().le(&x[3].detach().mul_scalar(-1.0)?)?;
        let added = x[0].attention_with_dropout(
            &x[1],
            &x[2],
            Some(&x[3]),
            AttentionOptions::default(),
            0.5,
            &Rng::new(4),
        )?;
        added.add(&x[0].attention_with_dropout(
            &x[1],
            &x[2],
            Some(&mask),
            AttentionOptions::default(),
            0.5,
            &Rng::new(5),
        )?)
    })
    .of_one_type()
    .rounding_often(),
    case("dropout", MATRIX, |x| x[0].dropout(0.5, &Rng::new(3))),
    case("lstm", LSTM, |x| x[0].recurrent(RecurrentCell::Lstm, weights(x), &[&x[5], &x[6]], false))
        .of_one_type()
        .rounding_often(),
    case("lstm, reverse, from zeros", LSTM_OF_FIVE, |x| {
        x[0].recurrent(RecurrentCell::Lstm, weights(x), &[], true)
    })
    .of_one_type()
    .rounding_often(),
    case("lstm, states and cell", LSTM, |x| {
        let (states, cell) = x[0].lstm(weights(x), Some((&x[5], &x[6])), true)?;
        states.sum([1])?.mul(&cell)
    })
    .of_one_type()
    .rounding_often(),
    case("gru", GRU, |x| x[0].recurrent(RecurrentCell::Gru, weights(x), &[&x[5]], false))
        .of_one_type()
        .rounding_often(),
    case("gru, reverse", GRU, |x| x[0].recurrent(RecurrentCell::Gru, weights(x), &[&x[5]], true))
        .of_one_type()
        .rounding_often(),
    case("gru, from zeros", GRU, |x| {
        x[0].recurrent(RecurrentCell::Gru, weights(x), &[], false)?.add(&x[5].unsqueeze(1)?)
    })
    .of_one_type()
    .rounding_often(),
    case("rnn", RNN, |x| x[0].recurrent(RecurrentCell::Tanh, weights(x), &[&x[5]], false))
        .of_one_type()
        .rounding_often(),
    case("rnn, relu", RNN, |x| x[0].recurrent(RecurrentCell::Relu, weights(x), &[&x[5]], true))
        .of_one_type()
        .rounding_often(),
];

/// The weights of a recurrent layer, after the sequences.
fn weights(x: &[Tensor]) -> RecurrentWeights<'_> {
    RecurrentWeights { input: &x[1], hidden: &x[2], input_bias: &x[3], hidden_bias: &x[4] }
}

const LSTM: &[Input] = &[
    (&[2, 3, 4], Any, Transposed),
    (&[4, 12], Any, WithGaps),
    (&[3, 12], Any, Transposed),
    (&[12], Any, WithGaps),
    (&[12], Any, InOrder),
    (&[2, 3], Any, Transposed),
    (&[2, 3], Any, WithGaps),
];

const LSTM_OF_FIVE: &[Input] = &[
    LSTM[0],
    (&[4, 20], Any, InOrder),
    (&[5, 20], Any, InOrder),
    (&[20], Any, InOrder),
    (&[20], Any, WithGaps),
];

const GRU: &[Input] = &[
    (&[3, 2, 4], Any, WithGaps),
    (&[4, 15], Any, InOrder),
    (&[5, 15], Any, WithGaps),
    (&[15], Any, InOrder),
    (&[15], Any, InOrder),
    (&[3, 5], Any, Transposed),
];

const RNN: &[Input] = &[
    (&[2, 3, 4], Any, InOrder),
    (&[4, 3], Any, Transposed),
    (&[3, 3], Any, InOrder),
    (&[3], Any, InOrder),
    (&[3], Any, InOrder),
    (&[2, 3], Any, InOrder),
];
