//! Invalid input to ops. The error names the op and the operand that does not fit, and nothing changes.

use crate::ops_table::device;
use highwater_nn::io::Array;
use highwater_nn::modules::{Fans, Init};
use highwater_tensor::{
    CrossEntropyOptions, DType, Device, IntoAxisIndex, Norm, Reduction, Result, Rng, SortOrder, Tensor,
    no_grad,
};
use ndarray::{ArrayD, Axis, Slice};

/// Tensors for the failing calls.
struct Given {
    /// f32 [2, 3]
    matrix: Tensor,
    /// f32 [4]
    vector: Tensor,
    /// f64 [2, 3]
    double: Tensor,
    /// i64 [2]
    ints: Tensor,
    /// bool [2, 3]
    truths: Tensor,
    /// f32 [2, 0]
    empty: Tensor,
}

impl Given {
    fn new(device: &Device) -> Result<Self> {
        let matrix = Tensor::uniform(device, [2, 3], -1.0, 1.0, &Rng::new(1))?;
        Ok(Self {
            vector: Tensor::ones(device, 4)?,
            double: matrix.to_dtype(DType::F64)?,
            ints: Tensor::from_slice(device, &[7i64, -1], 2)?,
            truths: matrix.gt(&Tensor::scalar(device, 0.0f32)?)?,
            empty: Tensor::zeros(device, [2, 0])?,
            matrix: matrix.requiring_grad()?,
        })
    }

    fn values(&self) -> Vec<Vec<f64>> {
        let tensors = [&self.matrix, &self.vector, &self.double, &self.ints, &self.truths, &self.empty];
        tensors.map(|tensor| tensor.to_dtype(DType::F64).unwrap().to_vec().unwrap()).to_vec()
    }
}

type Attempt = (fn(&Given) -> Result<Tensor>, &'static str);

/// Runs each attempt and compares its message. The attempts must not change the pool or the tensors.
fn assert_refused(attempts: &[Attempt]) {
    let device = device();
    let given = Given::new(&device).unwrap();
    let in_use = || device.default_allocator().unwrap().stats().bytes_in_use;
    let (bytes, values) = (in_use(), given.values());
    for (attempt, message) in attempts {
        assert_eq!(attempt(&given).unwrap_err().to_string(), *message);
        assert_eq!(in_use(), bytes, "{message}");
    }
    assert_eq!(given.values(), values);
}

#[test]
fn windows_that_do_not_fit_are_told_in_words() {
    assert_refused(&[
        (
            |g| g.matrix.max_pool2d(3),
            "max_pool2d: options must be a window that fits at least once, \
             got size 3, stride 3, padding 0 for a tensor of shape [2, 3]",
        ),
        (
            |g| g.vector.max_pool1d(5),
            "max_pool1d: options must be a window that fits at least once, \
             got size 5, stride 5, padding 0 for a tensor of shape [4]",
        ),
        (
            |g| g.matrix.adaptive_avg_pool2d([0, 0]),
            "adaptive_avg_pool2d: options must be a window that fits at least once, \
             got 0 outputs for a tensor of shape [2, 3]",
        ),
    ]);
}

#[test]
fn shapes_that_do_not_match_are_both_named() {
    assert_refused(&[
        (
            |g| g.matrix.add(&g.vector),
            "add: shapes [2, 3] and [4] do not match: axis -1 has sizes 3 and 4, which must be equal, or one of them 1",
        ),
        (
            |g| &g.matrix - &g.vector,
            "sub: shapes [2, 3] and [4] do not match: axis -1 has sizes 3 and 4, which must be equal, or one of them 1",
        ),
        (
            |g| g.vector.maximum(&g.matrix),
            "maximum: shapes [4] and [2, 3] do not match: axis -1 has sizes 4 and 3, which must be equal, or one of them 1",
        ),
        (
            |g| g.matrix.lt(&g.vector),
            "lt: shapes [2, 3] and [4] do not match: axis -1 has sizes 3 and 4, which must be equal, or one of them 1",
        ),
        (
            |g| g.truths.where_(&g.vector, &g.vector),
            "where: shapes [2, 3] and [4] do not match: axis -1 has sizes 3 and 4, which must be equal, or one of them 1",
        ),
        (
            |g| g.matrix.matmul(&g.matrix),
            "matmul: shapes [2, 3] and [2, 3] do not match: the inner sizes 3 and 2 must be equal",
        ),
        (
            |g| g.matrix.matmul(&g.vector),
            "matmul: shapes [2, 3] and [4] do not match: the inner sizes 3 and 4 must be equal",
        ),
        (
            |g| g.matrix.broadcast_to([3, 3]),
            "broadcast_to: shapes [2, 3] and [3, 3] do not match: each size of the first must be that of the second or 1",
        ),
        (
            |g| g.matrix.sum_to(2),
            "sum_to: shapes [2, 3] and [2] do not match: each size of the second must be that of the first or 1",
        ),
        (
            |g| Tensor::concat(&[&g.matrix, &g.empty], 0),
            "concat: shapes [2, 3] and [2, 0] do not match: all sizes must be equal except along the axis",
        ),
        (
            |g| Tensor::stack(&[&g.matrix, &g.vector], 0),
            "stack: shapes [2, 3] and [4] do not match: they must be equal",
        ),
        (
            |g| g.matrix.mse_loss(&g.vector),
            "mse_loss: shapes [2, 3] and [4] do not match: they must be equal",
        ),
        (
            |g| g.vector.cross_entropy(&g.ints),
            "cross_entropy: shapes [4] and [2] do not match: there must be one target per row of logits, and per position of [n, classes, ..]",
        ),
        (
            |g| g.matrix.unsqueeze(0)?.cross_entropy(&g.ints.unsqueeze(0)?),
            "cross_entropy: shapes [1, 2, 3] and [1, 2] do not match: there must be one target per row of logits, and per position of [n, classes, ..]",
        ),
        (
            |g| g.matrix.gather(0, &g.ints),
            "gather: shapes [2, 3] and [2] do not match: the indices must have as many axes, and at most the same sizes except along the axis",
        ),
        (
            |g| g.matrix.l1_loss_with(&g.vector, Reduction::Sum),
            "l1_loss: shapes [2, 3] and [4] do not match: they must be equal",
        ),
        (
            |g| {
                let (targets, class_weights) = (Tensor::arange(g.matrix.device(), 0, 2)?, Some(&g.vector));
                let options = CrossEntropyOptions { class_weights, ..Default::default() };
                g.matrix.cross_entropy_with(&targets, options)
            },
            "cross_entropy: shapes [2, 3] and [4] do not match: there must be one weight per class",
        ),
        (
            |g| g.matrix.masked_fill(&g.truths.t()?, 0),
            "masked_fill: shapes [2, 3] and [3, 2] do not match: axis -1 has sizes 3 and 2, which must be equal, or one of them 1",
        ),
        (
            |g| g.vector.masked_fill(&g.truths, 0),
            "masked_fill: shapes [4] and [2, 3] do not match: axis -1 has sizes 4 and 3, which must be equal, or one of them 1",
        ),
        (
            |g| g.matrix.scatter_add(0, &g.ints, &g.vector.narrow(0, 0, 2)?),
            "scatter_add: shapes [2, 3] and [2] do not match: the indices must have as many axes, and at most the same sizes except along the axis",
        ),
        (
            |g| g.matrix.scatter_add(0, &g.ints, &g.vector),
            "scatter_add: shapes [2] and [4] do not match: they must be equal",
        ),
        (
            |g| Tensor::einsum("ij,j->i", &[&g.matrix, &g.vector]),
            "einsum: shapes [2, 3] and [4] do not match: each letter must have one size, and axes under ... must broadcast",
        ),
        (
            |g| Tensor::einsum("...,...", &[&g.matrix.unsqueeze(0)?, &g.vector]),
            "einsum: shapes [1, 2, 3] and [4] do not match: each letter must have one size, and axes under ... must broadcast",
        ),
        (
            |g| g.matrix.reshape([4, 2]),
            "reshape: shape [4, 2] does not match 6 elements; the sizes must multiply to that number",
        ),
    ]);
}

#[test]
fn element_types_that_do_not_match_are_named_with_both_shapes() {
    assert_refused(&[
        (
            |g| g.matrix.scatter_add(0, &g.matrix.to_dtype(DType::I64)?, &g.double),
            "scatter_add: element types f32 and f64 differ (shapes [2, 3] and [2, 3]); convert one of them with `to_dtype`",
        ),
        (
            |g| g.double.rms_norm(Some(&g.vector), 0.1),
            "rms_norm: element types f64 and f32 differ (shapes [2, 3] and [4]); convert one of them with `to_dtype`",
        ),
        (
            |g| g.matrix.where_(&g.matrix, &g.matrix),
            "where: condition must be of type bool, got f32 of shape [2, 3] for a tensor of shape [2, 3]",
        ),
        (
            |g| g.matrix.cross_entropy(&g.vector),
            "cross_entropy: targets must be of type u8, i32, u32 or i64, got f32 of shape [4] for a tensor of shape [2, 3]",
        ),
        (
            |g| g.matrix.index_select(0, &g.vector),
            "index_select: indices must be of type u8, i32, u32 or i64, got f32 of shape [4] for a tensor of shape [2, 3]",
        ),
    ]);
}

#[test]
fn element_types_that_an_op_is_not_defined_for_are_named() {
    assert_refused(&[
        (|g| g.truths.add(&g.truths), "add: does not support element type bool; convert with `to_dtype`"),
        (|g| g.truths.neg(), "neg: does not support element type bool; convert with `to_dtype`"),
        (|g| g.ints.sqrt(), "sqrt: does not support element type i64; convert with `to_dtype`"),
        (|g| g.ints.mean_all(), "mean: does not support element type i64; convert with `to_dtype`"),
        (|g| g.truths.argmax(0), "argmax: does not support element type bool; convert with `to_dtype`"),
        (
            |g| g.truths.matmul(&g.truths),
            "matmul: does not support element type bool; convert with `to_dtype`",
        ),
        (|g| g.ints.softmax(0), "softmax: does not support element type i64; convert with `to_dtype`"),
        (
            |g| g.ints.dropout(0.5, &Rng::new(1)),
            "dropout: does not support element type i64; convert with `to_dtype`",
        ),
        (|g| g.vector.one_hot(2), "one_hot: does not support element type f32; convert with `to_dtype`"),
        (|g| g.ints.kl_div(&g.ints), "kl_div: does not support element type i64; convert with `to_dtype`"),
        (|g| g.ints.std_all(1), "std: does not support element type i64; convert with `to_dtype`"),
        (|g| g.ints.logsumexp(0), "logsumexp: does not support element type i64; convert with `to_dtype`"),
        (|g| g.ints.norm(Norm::L2, 0), "norm: does not support element type i64; convert with `to_dtype`"),
        (
            |g| g.truths.argsort(0, SortOrder::Ascending),
            "argsort: does not support element type bool; convert with `to_dtype`",
        ),
        (
            |g| Tensor::einsum("ij,ij->", &[&g.truths, &g.truths]),
            "einsum: does not support element type bool; convert with `to_dtype`",
        ),
        (
            |g| g.truths.scatter_add(0, &Tensor::zeros_of(g.truths.device(), [2, 3], DType::I64)?, &g.truths),
            "scatter_add: does not support element type bool; convert with `to_dtype`",
        ),
        (
            |g| g.ints.clone().requiring_grad(),
            "requiring_grad: does not support element type i64; convert with `to_dtype`",
        ),
    ]);
}

#[test]
fn axes_and_ranges_that_are_not_there_are_named() {
    assert_refused(&[
        (|g| g.matrix.sum(2), "sum: axis 2 is out of range for shape [2, 3]"),
        (|g| g.matrix.mean_keepdim([0, -3]), "mean: axis -3 is out of range for shape [2, 3]"),
        (|g| g.matrix.max([1, 1]), "max: axes must be different axes, got [1, 1] for shape [2, 3]"),
        (|g| g.matrix.argmin(5), "argmin: axis 5 is out of range for shape [2, 3]"),
        (|g| g.matrix.softmax(2), "softmax: axis 2 is out of range for shape [2, 3]"),
        (|g| g.matrix.transpose(0, -3), "transpose: axis -3 is out of range for shape [2, 3]"),
        (|g| g.matrix.gather(2, &g.ints), "gather: axis 2 is out of range for shape [2, 3]"),
        (|g| Tensor::concat(&[&g.matrix], 2), "concat: axis 2 is out of range for shape [2, 3]"),
        (|g| g.matrix.flatten_from(2), "flatten_from: axis 2 is out of range for shape [2, 3]"),
        (
            |g| g.matrix.narrow(1, 2, 2),
            "narrow: range 2..4 with step 1 is out of bounds for axis 1 of shape [2, 3]",
        ),
        (|g| g.matrix.prod([0, 2]), "prod: axis 2 is out of range for shape [2, 3]"),
        (|g| g.matrix.var([0, 0], 1), "var: axes must be different axes, got [0, 0] for shape [2, 3]"),
        (|g| g.matrix.cumsum(2), "cumsum: axis 2 is out of range for shape [2, 3]"),
        (|g| g.matrix.roll(1, -3), "roll: axis -3 is out of range for shape [2, 3]"),
        (|g| g.matrix.flip([1, -1]), "flip: axes must be different axes, got [1, -1] for shape [2, 3]"),
        (|g| g.matrix.repeat_interleave(2, 2), "repeat_interleave: axis 2 is out of range for shape [2, 3]"),
        (|g| g.matrix.argsort(2, SortOrder::Ascending), "argsort: axis 2 is out of range for shape [2, 3]"),
        (
            |g| g.matrix.at((.., 1..4)),
            "at: range 1..4 with step 1 is out of bounds for axis 1 of shape [2, 3]",
        ),
        (
            |g| g.matrix.at(g.matrix.rank()..1),
            "at: range 2..1 with step 1 is out of bounds for axis 0 of shape [2, 3]",
        ),
        (
            |g| g.matrix.at((..).every(0)),
            "at: range 0..2 with step 0 is out of bounds for axis 0 of shape [2, 3]",
        ),
        (|g| g.empty.norm(Norm::Max, 1), "norm: cannot reduce zero elements along an axis of shape [2, 0]"),
        (|g| g.vector.tril(0), "tril: expected at least two axes, got shape [4]"),
        (
            |g| Tensor::einsum("i->", &[&g.matrix]),
            "einsum: expected an axis for each letter, got shape [2, 3]",
        ),
        (
            |g| Tensor::einsum("ijk...->...", &[&g.matrix]),
            "einsum: expected an axis for each letter, got shape [2, 3]",
        ),
        (|g| g.empty.max(1), "max: cannot reduce zero elements along an axis of shape [2, 0]"),
        (|g| g.vector.t(), "t: expected at least two axes, got shape [4]"),
    ]);
}

#[test]
fn indices_that_point_outside_are_named() {
    assert_refused(&[
        (|g| g.matrix.cross_entropy(&g.ints), "cross_entropy: index 7 is out of range for length 3"),
        (|g| g.matrix.index_select(0, &g.ints), "index_select: index 7 is out of range for length 2"),
        (|g| g.ints.one_hot(8), "one_hot: index -1 is out of range for length 8"),
        (
            |g| {
                let options = CrossEntropyOptions { ignore_index: Some(-1), ..Default::default() };
                g.matrix.cross_entropy_with(&g.ints, options)
            },
            "cross_entropy: index 7 is out of range for length 3",
        ),
        (
            |g| g.vector.scatter_add(0, &g.ints, &g.vector.narrow(0, 0, 2)?),
            "scatter_add: index 7 is out of range for length 4",
        ),
        (|g| g.matrix.at((0, 3)), "at: index 3 is out of range for length 3"),
        (|g| g.matrix.at(-3), "at: index -3 is out of range for length 2"),
        (|g| g.matrix.at((.., -4..)), "at: index -4 is out of range for length 3"),
    ]);
}

#[test]
fn arguments_that_an_op_cannot_follow_are_named() {
    let parts = |parts: Result<Vec<Tensor>>| parts.map(|mut parts| parts.remove(0));
    let message = |result: Result<Tensor>| result.unwrap_err().to_string();
    let given = Given::new(&device()).unwrap();
    let (x, v) = (&given.matrix, &given.vector);
    for (result, expected) in [
        (x.huber_loss(x, 0.0), "huber_loss: delta must be above 0, got 0"),
        (x.huber_loss(x, f64::NAN), "huber_loss: delta must be above 0, got NaN"),
        (v.clamp(2, 1.5), "clamp: bounds must be numbers with low <= high, got 2 and 1.5"),
        (parts(x.split(0, 0)), "split: size must be at least 1, got 0 for shape [2, 3]"),
        (parts(x.chunk(1, 0)), "chunk: count must be at least 1, got 0 for shape [2, 3]"),
        (
            parts(x.split_sizes(1, [1, usize::MAX])),
            "split_sizes: sizes must be sizes that add up to the size of the axis, got [1, 18446744073709551615] for axis 1 of \
             shape [2, 3]",
        ),
        (x.pad([(1, 1)], 0), "pad: widths must be one pair per axis, got 1 for shape [2, 3]"),
        (
            given.ints.pad([(1, 1)], 0.5),
            "pad: scalar must be a whole number for a tensor of integers, got 0.5 for a tensor of i64",
        ),
        (x.tile([2]), "tile: times must be at least one number per axis, got 1 for shape [2, 3]"),
        (
            x.masked_fill(&given.double, 0),
            "masked_fill: mask must be of type bool, got f64 of shape [2, 3] for a tensor of shape [2, 3]",
        ),
        (
            x.top_k(4, 1, SortOrder::Descending).map(|(values, _)| values),
            "top_k: k must be at most the axis's size, got 4 for axis 1 of shape [2, 3]",
        ),
        (x.at((1, 1, 1)), "at: parts must be at most one per axis, got 3 for shape [2, 3]"),
        (
            Tensor::einsum("ij,j", &[x]),
            "einsum: operands must be as many as the equation has operands, got 1 for \"ij,j\"",
        ),
        (
            Tensor::einsum("ij->ik", &[x]),
            "einsum: a letter of the result that no operand has at position 5 of \"ij->ik\"",
        ),
        (
            Tensor::einsum("ii->i", &[x]),
            "einsum: operands must be one size per letter, got [2, 3] for \"ii->i\"",
        ),
        (
            Tensor::einsum("i...->i", &[x]),
            "einsum: the result has no ... for axes that operands have at position 7 of \"i...->i\"",
        ),
        (v.pad([(usize::MAX, 1)], 0), "pad: shape [18446744073709551615] of f32 exceeds the address space"),
        (v.tile([usize::MAX]), "tile: shape [18446744073709551615, 4] of f32 exceeds the address space"),
    ] {
        assert_eq!(message(result), expected);
    }
    for label_smoothing in [-0.1, 1.1, f64::NAN] {
        let options = CrossEntropyOptions { label_smoothing, ..Default::default() };
        let error = x.cross_entropy_with(&given.ints, options).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("cross_entropy: label_smoothing must be from 0 to 1, got {label_smoothing}")
        );
    }
}

#[test]
fn bounds_that_exclude_every_number_are_errors_for_all_types() {
    let device = device();
    for dtype in DType::ALL.into_iter().filter(|&dtype| dtype != DType::Bool) {
        let x = Tensor::ones_of(&device, [0], dtype).unwrap();
        let not_a_number = [(f64::NAN, 1.0), (0.0, f64::NAN), (f64::NAN, f64::NAN)];
        for (low, high) in [(2.0, 1.0), (1.0, 0.0)].into_iter().chain(not_a_number) {
            for result in [x.clamp(low, high), no_grad(|| x.clamp(low, high))] {
                assert_eq!(
                    result.unwrap_err().to_string(),
                    format!("clamp: bounds must be numbers with low <= high, got {low} and {high}")
                );
            }
        }
        assert!(x.clamp(1, 1).is_ok());
    }
}

#[test]
fn one_value_is_read_from_one_element() {
    let device = device();
    let item = |dims: &[usize]| Tensor::ones(&device, dims).unwrap().item::<f32>();
    assert_eq!(item(&[1, 1]), Ok(1.0));
    for (dims, shape) in [(&[3, 4][..], "[3, 4]"), (&[0], "[0]")] {
        assert_eq!(
            item(dims).unwrap_err().to_string(),
            format!("item: needs one element, got shape {shape}; read several with `to_vec`")
        );
    }
}

#[test]
fn element_counts_that_overflow_are_errors() {
    const HUGE: usize = 1 << 40;
    assert_refused(&[
        (
            |g| Tensor::zeros(g.matrix.device(), [HUGE, HUGE]),
            "zeros: shape [1099511627776, 1099511627776] of f32 exceeds the address space",
        ),
        (
            |g| Tensor::arange(g.matrix.device(), 0, i64::MAX),
            "arange: shape [9223372036854775807] of i64 exceeds the address space",
        ),
        (
            |g| g.vector.slice(0, ..1)?.broadcast_to([HUGE, HUGE]),
            "broadcast_to: shape [1099511627776, 1099511627776] of f32 exceeds the address space",
        ),
        (
            // Both views are valid, but their sum is too large.
            |g| {
                let one = g.vector.slice(0, ..1)?;
                one.broadcast_to([HUGE, 1])?.add(&one.broadcast_to([1, HUGE])?)
            },
            "add: shape [1099511627776, 1099511627776] of f32 exceeds the address space",
        ),
        (
            |g| Tensor::from_slice(g.matrix.device(), &[1.0f32], [HUGE, HUGE]),
            "from_slice: shape [1099511627776, 1099511627776] does not match 1 elements; the sizes must multiply to that number",
        ),
        (
            |g| Tensor::zeros(g.matrix.device(), [1; 9]),
            "zeros: a shape has 9 axes, but tensors support at most 8",
        ),
    ]);
}

#[test]
fn more_axes_than_there_can_be_are_an_error_of_the_op() {
    let device = device();
    let x = Tensor::ones(&device, [1; 8]).unwrap();
    let classes = Tensor::from_slice(&device, &[0i64], [1; 8]).unwrap();
    let numbers = ArrayD::<f32>::zeros(vec![2; 9]);
    let fans = Fans { inputs: 1, outputs: 1 };
    let parameter = Init::Zeros.parameter(&device, [1; 9], DType::F32, fans, &Rng::new(0));
    for (result, op) in [
        (Tensor::zeros(&device, [1; 9]), "zeros"),
        (Tensor::from_slice(&device, &[1.0f32], [1; 9]), "from_slice"),
        (x.reshape([1; 9]), "reshape"),
        (x.unsqueeze(0), "unsqueeze"),
        (x.broadcast_to([1; 9]), "broadcast_to"),
        (classes.one_hot(2), "one_hot"),
        (Tensor::stack(&[&x, &x], 0), "stack"),
        (Tensor::from_ndarray(&device, &numbers), "from_ndarray"),
        (
            Tensor::from_ndarray(&device, &numbers.slice_axis(Axis(0), Slice::new(0, None, -1))),
            "from_ndarray",
        ),
        (Array::from_slice(&[1.0f32], [1; 9]).and_then(|array| array.to_tensor(&device)), "array"),
        (parameter.map(|parameter| parameter.tensor()), "init"),
    ] {
        let message = result.unwrap_err().to_string();
        assert_eq!(message, format!("{op}: a shape has 9 axes, but tensors support at most 8"));
    }
}
