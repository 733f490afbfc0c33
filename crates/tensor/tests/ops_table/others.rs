//! Ops without a gradient, or with a result of integers or booleans.

use highwater_tensor::backend::{Compare, GradReads, Unary};
use highwater_tensor::{DType, Device, IntoAxisIndex, Norm, Result, Rng, SortOrder, Tensor};

use super::surrounded::Surrounded;
use super::{Function, classes, indices, mask};

/// Returns the two inputs of every op here.
pub(crate) fn inputs(device: &Device, dtype: DType) -> Result<[Tensor; 2]> {
    let make = |factor: u32| {
        let values: Vec<f64> = (0..12).map(|i| f64::from(i * factor % 12) / 4.0 - 1.25).collect();
        Tensor::from_slice(device, &values, [3, 4])?.to_dtype(dtype)
    };
    Ok([make(5)?, make(7)?])
}

/// Returns the functions and comparisons of the library's tables without a gradient, and the rows of this table.
pub(crate) fn others() -> Vec<(&'static str, Function)> {
    let flat = Unary::ALL.iter().filter(|f| f.grad_reads() == GradReads::Flat);
    let flat = flat.map(|&f| (f.name(), Function::Unary(f)));
    let comparisons = Compare::ALL.iter().map(|&f| (f.name(), Function::Compare(f)));
    flat.chain(comparisons)
        .chain(OTHERS.iter().map(|&(name, function)| (name, Function::Ops(function))))
        .collect()
}

fn integers(like: &Tensor, dtype: DType) -> Result<Tensor> {
    let places: Vec<i64> = (0..12).map(|i| i * 7 % 12 + 1).collect();
    let around = if dtype == DType::U8 { 200 } else { 1 << 30 };
    if like.layout().offset() == 0 {
        return Tensor::from_slice(like.device(), &places, [3, 4])?.to_dtype(dtype);
    }
    let floats: Vec<f64> = places.iter().map(|&place| place as f64).collect();
    Surrounded::EverySecond.floats(like.device(), &floats, &[3, 4], f64::from(around), dtype)
}

fn truths(like: &Tensor) -> Result<Tensor> {
    let values = [true, false, false, true, false, false, false, false, true, true, false, true];
    mask(like, &values, &[3, 4])
}

/// The name of an op, and the op.
type Row = (&'static str, fn(&[Tensor]) -> Result<Tensor>);

/// The rows, for two tensors of shape `[3, 4]`.
const OTHERS: &[Row] = &[
    ("argmax, first axis", |x| x[0].argmax(0)),
    ("argmax, last axis", |x| x[0].argmax(-1)),
    ("argmax, all", |x| x[0].argmax([0, 1])),
    ("argmin", |x| x[0].argmin(1)),
    ("argsort", |x| x[0].argsort(1, SortOrder::Ascending)),
    ("argsort, first axis", |x| x[0].argsort(0, SortOrder::Descending)),
    ("indices of top_k", |x| Ok(x[0].top_k(2, 1, SortOrder::Descending)?.1)),
    ("eq, broadcast", |x| x[0].eq(&x[1].narrow(0, 1, 1)?)),
    ("lt, a number", |x| x[0].lt(0)),
    ("gt, integers and a number", |x| integers(&x[0], DType::I64)?.gt(7.0)),
    ("le, integers", |x| integers(&x[0], DType::I32)?.le(&integers(&x[0], DType::I32)?.flip(0)?)),
    ("ne, integers and floats", |x| integers(&x[0], DType::U8)?.ne(&x[1])),
    ("is_nan", |x| x[0].is_nan()),
    ("is_finite", |x| x[0].is_finite()),
    ("logical_and", |x| truths(&x[0])?.logical_and(&x[0].gt(&x[1])?)),
    ("logical_or", |x| truths(&x[0])?.logical_or(&x[0].gt(&x[1])?)),
    ("logical_xor", |x| truths(&x[0])?.logical_xor(&truths(&x[0])?.t()?.reshape([3, 4])?)),
    ("logical_not", |x| truths(&x[0])?.logical_not()),
    ("any", |x| truths(&x[0])?.any([0])),
    ("all", |x| truths(&x[0])?.all([1])),
    ("count_nonzero", |x| x[0].sub(&x[1])?.count_nonzero(0)),
    ("sum of booleans", |x| truths(&x[0])?.sum(1)),
    ("one_hot", |x| classes(&x[0], &[3, 0, 2])?.one_hot(4)),
    ("categorical", |x| x[0].categorical(&Rng::new(3))),
    ("sum of bytes", |x| integers(&x[0], DType::U8)?.sum(0)),
    ("sum of integers", |x| integers(&x[0], DType::I64)?.sum(1)),
    ("prod of integers", |x| integers(&x[0], DType::I32)?.prod(1)),
    ("max of integers", |x| integers(&x[0], DType::I32)?.max(1)),
    ("argmax of bytes", |x| integers(&x[0], DType::U8)?.argmax(0)),
    ("sort of integers", |x| Ok(integers(&x[0], DType::I64)?.sort(1, SortOrder::Ascending)?.0)),
    ("cumsum of integers", |x| integers(&x[0], DType::I32)?.cumsum(1)),
    ("cumprod of integers", |x| integers(&x[0], DType::I32)?.cumprod(0)),
    ("add of integers", |x| integers(&x[0], DType::I64)?.add(&integers(&x[0], DType::I32)?)),
    ("pow of integers", |x| integers(&x[0], DType::I64)?.pow(&integers(&x[0], DType::I64)?)),
    ("matmul of integers", |x| integers(&x[0], DType::I64)?.matmul(&integers(&x[0], DType::I64)?.t()?)),
    ("where of integers", |x| {
        truths(&x[0])?.where_(&integers(&x[0], DType::U8)?, &integers(&x[0], DType::I32)?)
    }),
    ("gather of booleans", |x| truths(&x[0])?.gather(1, &indices(&x[0], &[3, 3, 0, 1, 2, 2], &[3, 2])?)),
    ("scatter_add of integers", |x| {
        integers(&x[0], DType::I64)?.scatter_add(
            1,
            &indices(&x[0], &[3, 3, 0, 1, 2, 2], &[3, 2])?,
            &integers(&x[0], DType::I64)?.narrow(1, 1, 2)?,
        )
    }),
    ("concat of views", |x| Tensor::concat(&[&x[0].narrow(1, 1, 2)?, &x[1].narrow(1, 3, 1)?], 1)),
    ("parts of a view", |x| x[0].at((1.., (1..).every(2)))),
    ("rows of a long table", |x| {
        // Enough indices that a GPU sorts them.
        let rows: Vec<i64> = (0..40).map(|i| i * i % 3).collect();
        let picked = classes(&x[0], &rows)?;
        let table = x[0].detach().requiring_grad()?;
        let gradients = table.index_select(0, &picked)?.square()?.sum_all()?.backward()?;
        Ok(gradients.get(&table).unwrap().clone())
    }),
    ("sum over a view in place", |x| x[0].mul_scalar(2.0)? + &x[1]),
    ("quotient by a view in place", |x| x[0].mul_scalar(2.0)? / &x[1].square()?.add_scalar(1.0)?),
    ("product of a view and what is given away", |x| &x[0] * x[1].mul_scalar(2.0)?),
    ("norm of the maximum", |x| x[0].norm(Norm::Max, [0, 1])),
    ("to bool", |x| x[0].gt(&x[1])?.to_dtype(DType::Bool)),
    ("to i64", |x| x[0].to_dtype(DType::I64)),
    ("to i32", |x| x[0].to_dtype(DType::I32)),
    ("to u8", |x| x[0].to_dtype(DType::U8)),
    ("to f16", |x| x[0].to_dtype(DType::F16)),
    ("to bf16", |x| x[0].to_dtype(DType::BF16)),
    ("to f32", |x| x[0].to_dtype(DType::F32)),
    ("to f64", |x| x[0].to_dtype(DType::F64)),
];
