//! The ops to time, each with its fewest bytes and operations.

use highwater::nn::Parameter;
use highwater::optim::{AdamW, Optimizer};
use highwater::{
    AttentionOptions, Conv2dOptions, DType, Device, Pool2dOptions, Result, Rng, SortOrder, Tensor,
};

use crate::{Case, Sizes};

/// Creates a case for a device.
pub(crate) type Make = fn(&Device, Sizes) -> Result<Case>;

pub(crate) const TABLE: [Make; 35] = [
    |device, sizes| pair(device, sizes, "add", DType::F32, |x, y| x.add(y)),
    |device, sizes| pair(device, sizes, "add", DType::BF16, |x, y| x.add(y)),
    |device, sizes| pair(device, sizes, "add, one transposed", DType::F32, |x, y| x.add(&y.t()?)),
    |device, sizes| pair(device, sizes, "add, a row to each", DType::F32, |x, y| x.add(&y.narrow(0, 0, 1)?)),
    |device, sizes| single(device, sizes, "mul by a number", DType::F32, |x| x.mul_scalar(0.5)),
    |device, sizes| single(device, sizes, "exp", DType::F32, |x| x.exp()),
    |device, sizes| single(device, sizes, "gelu", DType::F32, |x| x.gelu()),
    |device, sizes| single(device, sizes, "gelu", DType::BF16, |x| x.gelu()),
    |device, sizes| single(device, sizes, "a transposed copy", DType::F32, |x| x.t()?.contiguous()),
    |device, sizes| single(device, sizes, "to bf16", DType::F32, |x| x.to_dtype(DType::BF16)),
    |device, sizes| single(device, sizes, "sum of all", DType::F32, |x| x.sum_all()),
    |device, sizes| single(device, sizes, "sum of rows", DType::F32, |x| x.sum(1)),
    |device, sizes| single(device, sizes, "sum of columns", DType::F32, |x| x.sum(0)),
    |device, sizes| single(device, sizes, "max of rows", DType::BF16, |x| x.max(1)),
    |device, sizes| single(device, sizes, "argmax of rows", DType::F32, |x| x.argmax(1)),
    |device, sizes| single(device, sizes, "cumsum of rows", DType::F32, |x| x.cumsum(1)),
    |device, sizes| {
        single(device, sizes, "argsort of rows", DType::F32, |x| x.argsort(1, SortOrder::Ascending))
    },
    |device, sizes| single(device, sizes, "softmax", DType::F32, |x| x.softmax(1)),
    |device, sizes| single(device, sizes, "softmax", DType::BF16, |x| x.softmax(1)),
    |device, sizes| single(device, sizes, "layer_norm", DType::F32, |x| x.layer_norm(None, 1e-5)),
    |device, sizes| single(device, sizes, "dropout", DType::F32, |x| x.dropout(0.1, &Rng::new(1))),
    rows_by_index,
    cross_entropy,
    adamw,
    |device, sizes| matmul(device, 1, sizes.product, DType::F32),
    |device, sizes| matmul(device, 1, sizes.product, DType::BF16),
    |device, sizes| matmul(device, 1, sizes.product, DType::F16),
    |device, sizes| matmul(device, 1, sizes.product / 4, DType::F64),
    |device, sizes| matmul(device, 64, sizes.product / 16, DType::BF16),
    |device, sizes| attention(device, sizes, DType::F32, false),
    |device, sizes| attention(device, sizes, DType::BF16, false),
    |device, sizes| attention(device, sizes, DType::BF16, true),
    |device, sizes| conv2d(device, sizes, false),
    |device, sizes| conv2d(device, sizes, true),
    max_pool2d,
];

fn numbers(device: &Device, shape: &[usize], dtype: DType) -> Result<Tensor> {
    Tensor::uniform(device, shape, 0.5, 1.5, &Rng::new(1))?.to_dtype(dtype)
}

fn bytes_of(tensor: &Tensor) -> f64 {
    (tensor.elements() * tensor.dtype().size()) as f64
}

/// A unary op on a large tensor.
fn single(
    device: &Device,
    sizes: Sizes,
    name: &str,
    dtype: DType,
    f: fn(&Tensor) -> Result<Tensor>,
) -> Result<Case> {
    let x = numbers(device, &[sizes.side; 2], dtype)?;
    let bytes = bytes_of(&x) + bytes_of(&f(&x)?);
    let name = format!("{name}, {dtype}, {0} by {0}", sizes.side);
    Ok(Case { name, bytes, flops: 0.0, call: Box::new(move || f(&x).map(drop)) })
}

/// A binary op on large tensors.
fn pair(
    device: &Device,
    sizes: Sizes,
    name: &str,
    dtype: DType,
    f: fn(&Tensor, &Tensor) -> Result<Tensor>,
) -> Result<Case> {
    let (x, y) = (numbers(device, &[sizes.side; 2], dtype)?, numbers(device, &[sizes.side; 2], dtype)?);
    let second = if name.contains("row") { 0.0 } else { bytes_of(&y) };
    let bytes = bytes_of(&x) + second + bytes_of(&f(&x, &y)?);
    let name = format!("{name}, {dtype}, {0} by {0}", sizes.side);
    Ok(Case { name, bytes, flops: 0.0, call: Box::new(move || f(&x, &y).map(drop)) })
}

/// Rows of a table, as in an embedding.
fn rows_by_index(device: &Device, sizes: Sizes) -> Result<Case> {
    let table = numbers(device, &[sizes.side; 2], DType::F32)?;
    let rows: Vec<i64> = (0..sizes.side as i64).map(|row| row * 7919 % sizes.side as i64).collect();
    let rows = Tensor::from_slice(device, &rows, rows.len())?;
    let name = format!("index_select of rows, f32, {0} by {0}", sizes.side);
    let bytes = 2.0 * bytes_of(&table) + bytes_of(&rows);
    Ok(Case { name, bytes, flops: 0.0, call: Box::new(move || table.index_select(0, &rows).map(drop)) })
}

/// The loss and its gradient.
fn cross_entropy(device: &Device, sizes: Sizes) -> Result<Case> {
    let x = numbers(device, &[sizes.side; 2], DType::F32)?.requiring_grad()?;
    let targets: Vec<i64> = (0..sizes.side as i64).collect();
    let targets = Tensor::from_slice(device, &targets, targets.len())?;
    let name = format!("cross_entropy and its gradient, f32, {0} by {0}", sizes.side);
    // Read twice, written once.
    let bytes = 3.0 * bytes_of(&x);
    let call = Box::new(move || x.cross_entropy(&targets)?.backward().map(drop));
    Ok(Case { name, bytes, flops: 0.0, call })
}

/// An optimizer step with the gradient of a sum, which is ones.
fn adamw(device: &Device, sizes: Sizes) -> Result<Case> {
    let weight = Parameter::new(numbers(device, &[sizes.side; 2], DType::F32)?)?;
    let mut optimizer = AdamW::new(vec![("weight".to_owned(), weight.clone())], 1e-3)?;
    let bytes = 9.0 * bytes_of(&weight.tensor());
    let name = format!("AdamW step of a sum's gradient, {0} by {0}", sizes.side);
    let call = Box::new(move || optimizer.step(weight.tensor().sum_all()?.backward()?));
    Ok(Case { name, bytes, flops: 0.0, call })
}

fn matmul(device: &Device, batch: usize, side: usize, dtype: DType) -> Result<Case> {
    let shape = if batch == 1 { vec![side; 2] } else { vec![batch, side, side] };
    let (x, y) = (numbers(device, &shape, dtype)?, numbers(device, &shape, dtype)?);
    let name = format!("matmul, {dtype}, {batch} of {side} by {side}");
    let (bytes, flops) = (3.0 * bytes_of(&x), 2.0 * (batch * side * side * side) as f64);
    Ok(Case { name, bytes, flops, call: Box::new(move || x.matmul(&y).map(drop)) })
}

/// Causal attention with heads of width 64; with gradients about 3.5 times the work.
fn attention(device: &Device, sizes: Sizes, dtype: DType, backward: bool) -> Result<Case> {
    let [heads, length] = sizes.attention;
    let x = numbers(device, &[heads, length, 64], dtype)?;
    let x = if backward { x.requiring_grad()? } else { x };
    let options = AttentionOptions { causal: true, ..AttentionOptions::default() };
    // Two products; the causal mask skips one in two scores.
    let flops = 2.0 * (heads * length * length * 64) as f64 * if backward { 3.5 } else { 1.0 };
    let with = if backward { " and gradients" } else { "" };
    let name = format!("attention{with}, {dtype}, {heads} of {length}");
    let call = move || {
        let y = x.attention(&x, &x, None, options)?;
        if backward { y.sum_all()?.backward().map(drop) } else { Ok(()) }
    };
    Ok(Case { name, bytes: 0.0, flops, call: Box::new(call) })
}

/// A 3×3 convolution with equal channels; with both gradients.
fn conv2d(device: &Device, sizes: Sizes, backward: bool) -> Result<Case> {
    let [images, channels] = sizes.images;
    let (x, w) = (
        numbers(device, &[images, channels, 56, 56], DType::F32)?,
        numbers(device, &[channels, channels, 3, 3], DType::F32)?,
    );
    let (x, w) = if backward { (x.requiring_grad()?, w.requiring_grad()?) } else { (x, w) };
    let flops = 2.0 * (images * 56 * 56 * channels * channels * 9) as f64 * if backward { 3.0 } else { 1.0 };
    let with = if backward { " and gradients" } else { "" };
    let name = format!("conv2d 3 by 3{with}, f32, {images} of {channels} by 56 by 56");
    let call = move || {
        let y = x.conv2d(&w, Conv2dOptions::padded(1))?;
        if backward { y.sum_all()?.backward().map(drop) } else { Ok(()) }
    };
    Ok(Case { name, bytes: 0.0, flops, call: Box::new(call) })
}

fn max_pool2d(device: &Device, sizes: Sizes) -> Result<Case> {
    let [images, channels] = sizes.images;
    let x = numbers(device, &[images, channels, 56, 56], DType::F32)?;
    let bytes = 1.25 * bytes_of(&x);
    let name = format!("max_pool2d 2 by 2, f32, {images} of {channels} by 56 by 56");
    let call = move || x.max_pool2d(Pool2dOptions::square(2)).map(drop);
    Ok(Case { name, bytes, flops: 0.0, call: Box::new(call) })
}
