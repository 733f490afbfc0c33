//! Matrix products: with cuBLAS if it is installed and supports the layouts, otherwise with a tiled kernel.
//!
//! Before cuBLAS runs, the bias is broadcast to the output, to which cuBLAS adds the product. So it rounds 16-bit
//! floats once. With an activation, an epilogue kernel adds the bias, which rounds 16-bit floats once more.

use bfc_cuda::kernels::{Job, JobInput, JobOutput, named};
use bfc_cuda::{Factor, Product};

use super::{MatMul, MatMulSum};
use crate::cuda::Family;
use crate::cuda::launch::{
    Launcher, element_type, job_over, kernel, operand, origin, output, require_float, require_number, strided,
};
use crate::error::Result;
use crate::families;
use crate::families::RunCuda;
use crate::families::copy::cuda::copy;
use crate::families::grid::TILE;
use crate::shape::DType;
use crate::storage::{View, ViewMut};

/// The largest number of cuBLAS calls for one batched product. The tiled kernel computes all matrices in one launch.
const MAX_CALLS: usize = 32;

/// The alignment of the workspace that cuBLAS expects, in bytes.
const ALIGNMENT: u64 = 256;

/// The epilogue of a matrix product: a bias and an activation, or the sum with the output.
#[derive(Clone, Copy, Default)]
pub(crate) struct Epilogue<'a, 'm> {
    /// Whether the product is added to the output; then without a bias and an activation.
    pub(crate) accumulates: bool,
    pub(crate) bias: Option<View<'a>>,
    pub(crate) activation: Option<&'a families::Activated<'m>>,
}

impl<'m> Epilogue<'_, 'm> {
    /// The activation for the kernels; 0 without an activation.
    fn function(&self) -> u64 {
        self.activation.map_or(0, |activated| named(activated.function.name()))
    }

    /// The output for the arguments of the activation, if requested.
    fn arguments(&self) -> Option<&ViewMut<'m>> {
        self.activation.and_then(|activated| activated.arguments.as_ref())
    }
}

/// See [`MatMul`](crate::families::MatMul).
pub(crate) fn matmul(
    device: &Launcher,
    op: &'static str,
    epilogue: Epilogue<'_, '_>,
    factors: [View<'_>; 2],
    workspace: Option<&ViewMut<'_>>,
    out: &ViewMut<'_>,
) -> Result<()> {
    // Activations require floats.
    if epilogue.activation.is_some() {
        require_float(op, out.dtype())?
    } else {
        require_number(op, out.dtype())?
    }
    if out.layout().shape().elements() == 0 {
        // The product of the other sizes may overflow.
        return Ok(());
    }
    if out.dtype().is_float()
        && device.has_products()
        && matmul_cublas(device, op, epilogue, (factors, workspace), out)?
    {
        return Ok(());
    }
    matmul_tiled(device, op, epilogue, factors, out)
}

/// Computes the product with cuBLAS. Returns false if cuBLAS does not support it; the output is then arbitrary.
fn matmul_cublas(
    device: &Launcher,
    op: &'static str,
    epilogue: Epilogue<'_, '_>,
    (factors, workspace): ([View<'_>; 2], Option<&ViewMut<'_>>),
    out: &ViewMut<'_>,
) -> Result<bool> {
    let dims = out.layout().shape().dims();
    let [lhs, rhs] = factors;
    let (Some(batch), Some(&depth)) = (dims.len().checked_sub(2), lhs.layout().shape().dims().last()) else {
        return Ok(false);
    };
    let [rows, columns] = [dims[batch], dims[batch + 1]];
    let strides = [lhs.layout().strides(), rhs.layout().strides()];
    let batches = BatchAxes::new(&dims[..batch], strides.map(|strides| &strides[..batch]));
    let Some((&(count, steps), outer)) = batches.axes.split_first() else { return Ok(false) };
    let calls = outer.iter().map(|(size, _)| size).product::<usize>();
    let [size, out_size] = [lhs.dtype(), out.dtype()].map(DType::size);
    let factor = |n: usize, address: u64, sizes| {
        Factor::new(address, sizes, [strides[n][batch], strides[n][batch + 1]], steps[n])
    };
    let (Some(left), Some(right)) =
        (factor(0, origin(&lhs), [rows, depth]), factor(1, origin(&rhs), [depth, columns]))
    else {
        return Ok(false);
    };
    let sizes = [rows, columns, depth, count].map(i32::try_from);
    let [Ok(rows), Ok(columns), Ok(depth), Ok(batch)] = sizes else { return Ok(false) };
    if [rows, columns, depth, batch].contains(&0) || calls > MAX_CALLS {
        return Ok(false);
    }
    let start = epilogue.bias.filter(|_| epilogue.activation.is_none());
    if let Some(bias) = start {
        let spread = bias.layout().broadcast_to(op, out.layout().shape())?;
        copy(device, op, bias.with_layout(&spread), out)?;
    }
    let room = workspace.map_or((0, 0), |room| (room.storage().address(), room.storage().bytes() as u64));
    let workspace = aligned(room.0, room.1);
    for call in 0..calls {
        let moved = |n: usize, factor: Factor| Factor {
            address: factor.address + (batches.offset(call, n) * size) as u64,
            ..factor
        };
        let product = Product {
            element: element_type(lhs.dtype()),
            out_element: element_type(out.dtype()),
            rows,
            columns,
            depth,
            batch,
            lhs: moved(0, left),
            rhs: moved(1, right),
            out: output(out).address
                + (call * count * dims[dims.len() - 2] * dims[dims.len() - 1] * out_size) as u64,
            accumulate: start.is_some() || epilogue.accumulates,
            workspace,
        };
        if !device.multiply(op, &product)? {
            return Ok(false);
        }
    }
    if epilogue.activation.is_some() {
        apply_epilogue(device, op, epilogue, out)?;
    }
    Ok(true)
}

/// Adds the bias and applies the activation in place.
fn apply_epilogue(
    device: &Launcher,
    op: &'static str,
    epilogue: Epilogue<'_, '_>,
    out: &ViewMut<'_>,
) -> Result<()> {
    let mut job = job_over(out.layout());
    job.inputs[0] = operand(&out.as_view());
    if let Some(bias) = epilogue.bias {
        (job.also[0], job.counts[1]) = (origin(&bias), bias.layout().strides()[0] as u64);
    }
    job.counts[0] = out.layout().shape().dims().last().copied().unwrap_or(1) as u64;
    (job.outputs[0], job.outputs[1]) =
        (output(out), epilogue.arguments().map_or_else(JobOutput::default, output));
    job.function = epilogue.function();
    device.launch_elementwise(op, kernel(Family::Float, "bias_activation", out.dtype()), job.count, &job)
}

/// The aligned part of a workspace, as address and size. Not every allocator aligns to [`ALIGNMENT`].
const fn aligned(address: u64, bytes: u64) -> (u64, u64) {
    let start = address.next_multiple_of(ALIGNMENT);
    (start, bytes.saturating_sub(start - address))
}

/// The batch axes of a product, innermost first: the size, and the stride in each factor. Adjacent axes with compatible
/// strides are merged.
struct BatchAxes {
    axes: Vec<(usize, [usize; 2])>,
}

impl BatchAxes {
    fn new(dims: &[usize], strides: [&[usize]; 2]) -> Self {
        let mut axes: Vec<(usize, [usize; 2])> = vec![(1, [0, 0])];
        for (axis, &size) in dims.iter().enumerate().rev().filter(|&(_, &size)| size != 1) {
            let steps = strides.map(|strides| strides[axis]);
            match axes.last_mut() {
                Some(inner) if inner.0 == 1 => *inner = (size, steps),
                Some((count, inner)) if (0..2).all(|n| steps[n] == inner[n] * *count) => *count *= size,
                _ => axes.push((size, steps)),
            }
        }
        Self { axes }
    }

    /// The offset in factor `n`, in elements, of innermost batch number `call`.
    fn offset(&self, call: usize, n: usize) -> usize {
        let outer = self.axes[1..].iter();
        let (_, offset) = outer
            .fold((call, 0), |(rest, offset), (size, steps)| (rest / size, offset + rest % size * steps[n]));
        offset
    }
}

/// Computes the product with the tiled kernel.
fn matmul_tiled(
    device: &Launcher,
    op: &'static str,
    epilogue: Epilogue<'_, '_>,
    factors: [View<'_>; 2],
    out: &ViewMut<'_>,
) -> Result<()> {
    let dims = out.layout().shape().dims();
    let [lhs, rhs] = factors;
    let Some(batch) = dims.len().checked_sub(2) else { return Ok(()) };
    let (rows, columns) = (dims[batch] as u64, dims[batch + 1] as u64);
    let depth = lhs.layout().shape().dims().last().copied().unwrap_or(0) as u64;
    let mut job = Job::over(dims[..batch].iter().product::<usize>() as u64, &dims[..batch]);
    let of_batch = |view: &View<'_>| JobInput::strided(origin(view), &view.layout().strides()[..batch]);
    let stride = |n: usize, axis: usize| factors[n].layout().strides()[batch + axis] as u64;
    (job.inputs[0], job.inputs[1]) = (of_batch(&lhs), of_batch(&rhs));
    (job.outputs[0], job.outputs[1]) =
        (output(out), epilogue.arguments().map_or_else(JobOutput::default, output));
    job.function = epilogue.function();
    job.counts = [rows, columns, depth, stride(0, 0), stride(0, 1), stride(1, 0)];
    job.integers = [stride(1, 1) as i64, i64::from(epilogue.accumulates)];
    if let Some(bias) = epilogue.bias {
        job.inputs[2] = strided(&bias);
    }
    let tiles = rows.div_ceil(TILE as u64) * columns.div_ceil(TILE as u64);
    device.launch_blocks(op, kernel(Family::Matmul, "matmul", lhs.dtype()), tiles * job.count, &job)
}

impl RunCuda for MatMul<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let epilogue = Epilogue { bias: self.bias, activation: self.activation.as_ref(), accumulates: false };
        let factors = [self.lhs, self.rhs];
        matmul(device, op, epilogue, factors, self.workspace.as_ref(), &self.out)
    }
}

impl RunCuda for MatMulSum<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let epilogue = Epilogue { accumulates: self.accumulate, ..Epilogue::default() };
        let factors = [self.lhs, self.rhs];
        matmul(device, op, epilogue, factors, self.workspace.as_ref(), &self.out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_of_cublas_is_aligned() {
        assert_eq!(aligned(4096, 1000), (4096, 1000));
        assert_eq!(aligned(4096 + 64, 1000), (4352, 1000 - 192));
        assert_eq!(aligned(4096 + 64, 100), (4352, 0));
    }

    #[test]
    fn adjacent_batch_axes_with_compatible_strides_merge() {
        // The left factor has [2, 3, 4] matrices of 10 elements. The right factor is broadcast along the first two axes.
        let batches = BatchAxes::new(&[2, 3, 4], [&[120, 40, 10], &[0, 0, 6]]);
        assert_eq!(batches.axes, [(4, [10, 6]), (6, [40, 0])]);
        let begins = |n| (0..6).map(|call| batches.offset(call, n)).collect::<Vec<_>>();
        assert_eq!(begins(0), [0, 40, 80, 120, 160, 200]);
        assert_eq!(begins(1), [0; 6]);
        assert_eq!(BatchAxes::new(&[2, 1, 4], [&[40, 7, 10], &[24, 9, 6]]).axes, [(8, [10, 6])]);
        assert_eq!(BatchAxes::new(&[], [&[], &[]]).axes, [(1, [0, 0])]);
    }

    #[test]
    fn permuted_batch_axes_do_not_merge() {
        // [2, 5, 3, 8] transposed to [2, 3, 5, 8], as the heads of attention.
        let batches = BatchAxes::new(&[2, 3], [&[120, 8], &[120, 8]]);
        assert_eq!(batches.axes, [(3, [8, 8]), (2, [120, 120])]);
        assert_eq!((batches.offset(0, 0), batches.offset(1, 1)), (0, 120));
    }
}
