//! Matrix products: by the library for them where there is one that knows how the factors lie, else by a kernel.
//!
//! The library adds its products to the bias, which is copied to all rows before, so that halves are rounded once. With an
//! activation another kernel goes over the products anyway, and adds the bias first. That rounds halves once more.

use bfc_cuda::kernels::{Family, Job, Operand, Output};
use bfc_cuda::{Factor, Product};

use super::elementwise;
use super::launch::{Launcher, element, float, kernel, number, operand, origin, output, over, strided};
use crate::backend::blocks::TILE;
use crate::backend::{Activated, Activation};
use crate::error::Result;
use crate::storage::{View, ViewMut};

/// The most calls of the library for one product of stacks: the kernel computes whole stacks in one.
const MOST_CALLS: usize = 32;

/// What the address of a workspace is a multiple of.
const ALIGNMENT: u64 = 256;

/// What happens to the sums of products.
#[derive(Clone, Copy)]
pub(super) struct After<'a, 'm> {
    pub(super) bias: Option<View<'a>>,
    pub(super) activation: Option<&'a Activated<'m>>,
}

impl<'m> After<'_, 'm> {
    /// The activation, as kernels number it.
    fn function(&self) -> u64 {
        match self.activation.map(|activated| activated.function) {
            None => 0,
            Some(Activation::Relu) => 1,
            Some(Activation::Gelu) => 2,
            Some(Activation::GeluTanh) => 3,
            Some(Activation::Silu) => 4,
        }
    }

    /// What the activation is given goes here, if anybody wants it.
    fn arguments(&self) -> Option<&ViewMut<'m>> {
        self.activation.and_then(|activated| activated.arguments.as_ref())
    }
}

/// See [`Kernel::MatMul`](crate::backend::Kernel::MatMul).
pub(super) fn matmul(
    device: &Launcher,
    op: &'static str,
    after: After<'_, '_>,
    factors: [View<'_>; 2],
    workspace: Option<&ViewMut<'_>>,
    out: &ViewMut<'_>,
) -> Result<()> {
    // The library knows none but floats, and neither do activations.
    if after.activation.is_some() {
        float(op, out.dtype())?
    } else {
        number(op, out.dtype())?
    }
    if out.layout().shape().elements() == 0 {
        // The other sizes may overflow when multiplied.
        return Ok(());
    }
    if out.dtype().is_float()
        && device.has_products()
        && by_library(device, op, after, factors, workspace, out)?
    {
        return Ok(());
    }
    by_kernel(device, op, after, factors, out)
}

/// False if the library does not know how to; the output is to be computed anew then.
fn by_library(
    device: &Launcher,
    op: &'static str,
    after: After<'_, '_>,
    [lhs, rhs]: [View<'_>; 2],
    workspace: Option<&ViewMut<'_>>,
    out: &ViewMut<'_>,
) -> Result<bool> {
    let dims = out.layout().shape().dims();
    let (Some(batch), Some(&depth)) = (dims.len().checked_sub(2), lhs.layout().shape().dims().last()) else {
        return Ok(false);
    };
    let [rows, columns] = [dims[batch], dims[batch + 1]];
    let strides = [lhs.layout().strides(), rhs.layout().strides()];
    let stacks = Stacks::new(&dims[..batch], strides.map(|strides| &strides[..batch]));
    let Some((&(count, steps), outer)) = stacks.axes.split_first() else { return Ok(false) };
    let calls = outer.iter().map(|(size, _)| size).product::<usize>();
    let size = out.dtype().size();
    let factor = |n: usize, view: &View<'_>, sizes| {
        Factor::new(origin(view), sizes, [strides[n][batch], strides[n][batch + 1]], steps[n])
    };
    let (Some(left), Some(right)) = (factor(0, &lhs, [rows, depth]), factor(1, &rhs, [depth, columns]))
    else {
        return Ok(false);
    };
    let sizes = [rows, columns, depth, count].map(i32::try_from);
    let [Ok(rows), Ok(columns), Ok(depth), Ok(batch)] = sizes else { return Ok(false) };
    if [rows, columns, depth, batch].contains(&0) || calls > MOST_CALLS {
        return Ok(false);
    }
    let start = after.bias.filter(|_| after.activation.is_none());
    if let Some(bias) = start {
        let spread = bias.layout().broadcast_to(op, out.layout().shape())?;
        elementwise::copy(device, op, bias.with_layout(&spread), out)?;
    }
    let workspace =
        workspace.map_or((0, 0), |room| aligned(room.storage().address(), room.storage().bytes() as u64));
    for call in 0..calls {
        let moved = |n: usize, factor: Factor| Factor {
            address: factor.address + (stacks.offset(call, n) * size) as u64,
            ..factor
        };
        let product = Product {
            element: element(out.dtype()),
            rows,
            columns,
            depth,
            batch,
            lhs: moved(0, left),
            rhs: moved(1, right),
            out: output(out).address
                + (call * count * dims[dims.len() - 2] * dims[dims.len() - 1] * size) as u64,
            accumulate: start.is_some(),
            workspace,
        };
        if !device.multiply(op, &product)? {
            return Ok(false);
        }
    }
    if after.activation.is_some() {
        activate(device, op, after, out)?;
    }
    Ok(true)
}

/// Adds the bias to products, and computes the activation, where they lie.
fn activate(device: &Launcher, op: &'static str, after: After<'_, '_>, out: &ViewMut<'_>) -> Result<()> {
    let mut job = over(out.layout());
    job.inputs[0] = operand(&out.as_view());
    if let Some(bias) = after.bias {
        (job.also[0], job.counts[1]) = (origin(&bias), bias.layout().strides()[0] as u64);
    }
    job.counts[0] = out.layout().shape().dims().last().copied().unwrap_or(1) as u64;
    (job.outputs[0], job.outputs[1]) = (output(out), after.arguments().map_or_else(Output::default, output));
    job.function = after.function();
    device.ahead(op, kernel(Family::Float, "bias_activation", out.dtype()), job.count, &job)
}

/// The part of a workspace that begins as the library wants it, which not every allocator does by itself.
const fn aligned(address: u64, bytes: u64) -> (u64, u64) {
    let start = address.next_multiple_of(ALIGNMENT);
    (start, bytes.saturating_sub(start - address))
}

/// The axes that matrices are stacked along, innermost first: how many, and from one to the next in each factor. Neighbours
/// that one stride leads through are one axis.
struct Stacks {
    axes: Vec<(usize, [usize; 2])>,
}

impl Stacks {
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

    /// Where in factor `n` the innermost stack number `call` begins, in elements.
    fn offset(&self, call: usize, n: usize) -> usize {
        let outer = self.axes[1..].iter();
        let (_, offset) = outer
            .fold((call, 0), |(rest, offset), (size, steps)| (rest / size, offset + rest % size * steps[n]));
        offset
    }
}

fn by_kernel(
    device: &Launcher,
    op: &'static str,
    after: After<'_, '_>,
    [lhs, rhs]: [View<'_>; 2],
    out: &ViewMut<'_>,
) -> Result<()> {
    let dims = out.layout().shape().dims();
    let Some(batch) = dims.len().checked_sub(2) else { return Ok(()) };
    let (rows, columns) = (dims[batch] as u64, dims[batch + 1] as u64);
    let depth = lhs.layout().shape().dims().last().copied().unwrap_or(0) as u64;
    let mut job = Job::over(dims[..batch].iter().product::<usize>() as u64, &dims[..batch]);
    let stride = |view: &View<'_>, axis: usize| view.layout().strides()[batch + axis] as u64;
    job.inputs[0] = Operand::strided(origin(&lhs), &lhs.layout().strides()[..batch]);
    job.inputs[1] = Operand::strided(origin(&rhs), &rhs.layout().strides()[..batch]);
    (job.outputs[0], job.outputs[1]) = (output(out), after.arguments().map_or_else(Output::default, output));
    job.function = after.function();
    job.counts = [rows, columns, depth, stride(&lhs, 0), stride(&lhs, 1), stride(&rhs, 0)];
    job.integers[0] = stride(&rhs, 1) as i64;
    if let Some(bias) = after.bias {
        job.inputs[2] = strided(&bias);
    }
    let tiles = rows.div_ceil(TILE as u64) * columns.div_ceil(TILE as u64);
    device.blocks(op, kernel(Family::Matmul, "matmul", out.dtype()), tiles * job.count, &job)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workspace_begins_where_the_library_wants_it() {
        assert_eq!(aligned(4096, 1000), (4096, 1000));
        assert_eq!(aligned(4096 + 64, 1000), (4352, 1000 - 192));
        assert_eq!(aligned(4096 + 64, 100), (4352, 0));
    }

    #[test]
    fn axes_that_one_stride_leads_through_are_one() {
        // [2, 3, 4] matrices of 10 elements on the left, and of one that is repeated along the first two axes on the right.
        let stacks = Stacks::new(&[2, 3, 4], [&[120, 40, 10], &[0, 0, 6]]);
        assert_eq!(stacks.axes, [(4, [10, 6]), (6, [40, 0])]);
        let begins = |n| (0..6).map(|call| stacks.offset(call, n)).collect::<Vec<_>>();
        assert_eq!(begins(0), [0, 40, 80, 120, 160, 200]);
        assert_eq!(begins(1), [0; 6]);
        assert_eq!(Stacks::new(&[2, 1, 4], [&[40, 7, 10], &[24, 9, 6]]).axes, [(8, [10, 6])]);
        assert_eq!(Stacks::new(&[], [&[], &[]]).axes, [(1, [0, 0])]);
    }

    #[test]
    fn axes_in_another_order_are_gone_through_one_by_one() {
        // Heads of [2, 5, 3, 8] seen as [2, 3, 5, 8].
        let stacks = Stacks::new(&[2, 3], [&[120, 8], &[120, 8]]);
        assert_eq!(stacks.axes, [(3, [8, 8]), (2, [120, 120])]);
        assert_eq!((stacks.offset(0, 0), stacks.offset(1, 1)), (0, 120));
    }
}
