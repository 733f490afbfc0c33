//! Einstein summation: products of tensors, summed over axes. `ij,jk->ik` is a matrix product.
//!
//! The op multiplies the operands from left to right, two at a time. It sums over letters that no later operand and not
//! the result needs: with `sum` for a letter of one operand, with a batched matrix product for a letter of both. For
//! the product it permutes both operands: batch letters first, then their own letters, then the summed letters. Memory
//! and gradients are those of `permute`, `reshape`, `sum` and `matmul`. Only an operand that the product cannot read in
//! its permuted layout is copied.
//!
//! A letter twice in one operand selects its diagonal, a view. Axes under `...` get internal labels. If an operand has
//! size 1 there and another one is larger, the op drops that axis, so nothing is repeated in memory.

mod equation;

use equation::{Equation, Labels};

use super::{is_numeric, promote, promote_factors, supported};
use crate::error::{Error, Result, ShapeRule};
use crate::shape::DType;
use crate::tensor::Tensor;

const OP: &str = "einsum";

/// A tensor with one label per axis.
struct LabeledTensor {
    tensor: Tensor,
    labels: Labels,
}

impl LabeledTensor {
    /// Labels a tensor. Axes with equal labels become one axis, their diagonal.
    fn new(tensor: &Tensor, mut labels: Labels, equation: &str) -> Result<Self> {
        let (shape, mut tensor) = (tensor.shape(), tensor.unchanged());
        let again = |labels: &Labels| {
            (0..labels.len()).find_map(|axis| {
                labels[..axis].iter().position(|&label| label == labels[axis]).map(|first| [first, axis])
            })
        };
        while let Some([first, second]) = again(&labels) {
            if tensor.dims()[first] != tensor.dims()[second] {
                let (expected, got) = ("one size per letter", format!("{shape} for \"{equation}\""));
                return Err(Error::BadArgument { op: OP, argument: "operands", expected, got });
            }
            tensor = tensor.diagonal_in_place(0, [first, second])?;
            labels.remove(second);
        }
        Ok(Self { tensor, labels })
    }

    /// Drops axes of size 1 under `...` along which another operand is larger.
    fn without_broadcast_axes(mut self, larger: impl Fn(u8) -> bool) -> Result<Self> {
        while let Some(axis) =
            (0..self.labels.len()).find(|&axis| self.tensor.dims()[axis] == 1 && larger(self.labels[axis]))
        {
            self.tensor = self.tensor.squeeze(axis as isize)?;
            self.labels.remove(axis);
        }
        Ok(self)
    }

    /// Returns the tensor with its axes in the order of `labels`.
    fn permuted_to(&self, labels: &[u8]) -> Result<Tensor> {
        let place = |label| self.labels.iter().position(|own| own == label);
        let axes: Vec<isize> = labels.iter().filter_map(place).map(|axis| axis as isize).collect();
        self.tensor.permute(&axes)
    }

    /// Sums over the labels for which `is_needed` is false.
    fn summed(self, is_needed: impl Fn(u8) -> bool) -> Result<Self> {
        let (kept, gone): (Vec<usize>, Vec<usize>) =
            (0..self.labels.len()).partition(|&axis| is_needed(self.labels[axis]));
        if gone.is_empty() {
            return Ok(self);
        }
        let axes: Vec<isize> = gone.into_iter().map(|axis| axis as isize).collect();
        let labels = kept.into_iter().map(|axis| self.labels[axis]).collect();
        Ok(Self { tensor: self.tensor.sum(&axes[..])?, labels })
    }

    /// Converts the elements: narrow integers, which `sum` returns as i64, wrap as their products do.
    fn converted(self, dtype: DType) -> Result<Self> {
        Ok(Self { tensor: self.tensor.to_dtype(dtype)?, ..self })
    }

    /// Returns the sizes of labels of this operand.
    fn sizes(&self, labels: &[u8]) -> Vec<usize> {
        let size =
            |label| self.labels.iter().position(|own| own == label).map(|axis| self.tensor.dims()[axis]);
        labels.iter().filter_map(size).collect()
    }

    /// Multiplies two operands and sums over the labels that both have and `is_needed` rejects.
    fn multiply(self, other: Self, is_needed: impl Fn(u8) -> bool) -> Result<Self> {
        let dtype = self.tensor.dtype();
        let lhs = self.summed(|label| other.labels.contains(&label) || is_needed(label))?.converted(dtype)?;
        let rhs = other.summed(|label| lhs.labels.contains(&label) || is_needed(label))?.converted(dtype)?;
        let shared = |label: &u8| lhs.labels.contains(label) && rhs.labels.contains(label);
        let of = |labels: &Labels, wanted: &dyn Fn(&u8) -> bool| -> Labels {
            labels.iter().copied().filter(|label| wanted(label)).collect()
        };
        let batch = of(&lhs.labels, &|label| shared(label) && is_needed(*label));
        let folded = of(&lhs.labels, &|label| shared(label) && !is_needed(*label));
        let rows = of(&lhs.labels, &|label| !shared(label));
        let columns = of(&rhs.labels, &|label| !shared(label));

        let count = |sizes: &[usize]| sizes.iter().fold(1usize, |count, &size| count.saturating_mul(size));
        let [batch_sizes, folded_sizes, row_sizes] = [&batch, &folded, &rows].map(|labels| lhs.sizes(labels));
        let column_sizes = rhs.sizes(&columns);
        let [b, k, m, n] = [&batch_sizes, &folded_sizes, &row_sizes, &column_sizes].map(|sizes| count(sizes));
        // Without a batch, both operands are plain matrices.
        let sizes = |rows: usize, columns: usize| match &batch[..] {
            [] => vec![rows, columns],
            _ => vec![b, rows, columns],
        };
        let left = lhs.permuted_to(&[&batch[..], &rows, &folded].concat())?.reshape(sizes(m, k))?;
        let right = rhs.permuted_to(&[&batch[..], &folded, &columns].concat())?.reshape(sizes(k, n))?;
        let product = left.matmul(&right)?.reshape([batch_sizes, row_sizes, column_sizes].concat())?;
        Ok(Self { tensor: product, labels: [batch, rows, columns].concat() })
    }
}

/// # Einstein summation
impl Tensor {
    /// Einstein summation, as NumPy's `einsum`: multiplies the operands and sums over the letters that the result
    /// omits.
    ///
    /// Each axis of each operand has a letter. A letter twice in one operand takes the diagonal of those axes. `...`
    /// stands for any number of axes without letters; they are broadcast and kept in the result. Without `->`, the
    /// result has first the axes under `...`, then the letters that occur once, in alphabetical order.
    ///
    /// Unlike in NumPy, a letter has one size, even where that size is 1. Integer products wrap in their own type.
    /// Operands of different types are promoted (see [`DType`](crate::DType)). A single operand is summed as by
    /// [`sum`](Self::sum).
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let device = Device::cpu()?;
    /// let a = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
    /// let b = Tensor::from_slice(&device, &[1.0f32, 10.0], [2])?;
    /// assert_eq!(Tensor::einsum("ij,j->i", &[&a, &b])?.to_vec::<f32>()?, [21.0, 43.0]);
    /// assert_eq!(Tensor::einsum("ij->ji", &[&a])?.to_vec::<f32>()?, [1.0, 3.0, 2.0, 4.0]);
    /// assert_eq!(Tensor::einsum("ij,ij->", &[&a, &a])?.item::<f32>()?, 30.0);
    /// assert_eq!(Tensor::einsum("ii->i", &[&a])?.to_vec::<f32>()?, [1.0, 4.0]);
    /// assert_eq!(Tensor::einsum("...i,i", &[&a, &b])?.to_vec::<f32>()?, [21.0, 43.0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::BadEquation`] for an invalid equation; the error contains the position
    /// - [`Error::BadArgument`] if the number of operands differs from the equation's
    /// - [`Error::BadArgument`] if a letter has two sizes in one operand
    /// - [`Error::BadRank`] if the number of axes differs from the number of letters (with `...`: is less)
    /// - [`Error::ShapeMismatch`] if a letter has two sizes in two operands
    /// - [`Error::ShapeMismatch`] if axes under `...` do not broadcast
    /// - [`Error::UnsupportedDType`] for several booleans
    /// - [`Error::DeviceMismatch`] for operands on different devices
    /// - [`Error::RankTooLarge`] if an intermediate product has too many axes
    /// - [`Error::Allocation`] if there is no memory
    pub fn einsum(equation: &str, operands: &[&Self]) -> Result<Self> {
        let parsed = Equation::parse(equation)?;
        if parsed.operands.len() != operands.len() {
            let got = format!("{} for \"{equation}\"", operands.len());
            return Err(Error::BadArgument {
                op: OP,
                argument: "operands",
                expected: "as many as the equation has operands",
                got,
            });
        }
        let combine = if operands.len() == 1 { promote } else { promote_factors };
        let dtype = operands.iter().fold(operands[0].dtype(), |dtype, tensor| combine(dtype, tensor.dtype()));
        // A single operand needs no product, only views and sums.
        supported(OP, dtype, |dtype| is_numeric(dtype) || operands.len() == 1)?;
        for (&tensor, labels) in operands.iter().zip(&parsed.operands) {
            if !Equation::accepts_rank(labels, tensor.rank()) {
                let (expected, shape) = ("an axis for each letter", *tensor.shape());
                return Err(Error::BadRank { op: OP, expected, shape });
            }
        }
        if operands.iter().any(|tensor| tensor.dtype() != dtype) {
            let promoted =
                operands.iter().map(|tensor| tensor.to_dtype(dtype)).collect::<Result<Vec<_>>>()?;
            return Self::einsum(equation, &promoted.iter().collect::<Vec<_>>());
        }
        let ranks: Vec<usize> = operands.iter().map(|tensor| tensor.rank()).collect();
        let Equation { operands: labels, output } = parsed.with_ellipsis_labels(equation, &ranks)?;
        let labelled =
            operands.iter().zip(labels).map(|(tensor, labels)| LabeledTensor::new(tensor, labels, equation));
        let labelled = labelled.collect::<Result<Vec<_>>>()?;
        let mut left = broadcast(labelled)?;
        check_label_sizes(&left, operands)?;
        // The parser returns at least one operand.
        let mut product = left.remove(0);
        let mut rest = left.into_iter();
        while let Some(next) = rest.next() {
            let later = rest.as_slice();
            let is_needed =
                |label| output.contains(&label) || later.iter().any(|other| other.labels.contains(&label));
            product = product.multiply(next, is_needed)?;
        }
        let result = product.summed(|label| output.contains(&label))?;
        // A single operand is summed with the result type of `sum`.
        let result = if operands.len() == 1 { result } else { result.converted(operands[0].dtype())? };
        result.permuted_to(&output)
    }
}

/// Drops the broadcast axes under `...` of each operand.
fn broadcast(operands: Vec<LabeledTensor>) -> Result<Vec<LabeledTensor>> {
    let large = |of: &LabeledTensor| {
        let axes = of.labels.iter().zip(of.tensor.dims());
        axes.filter(|&(label, &size)| !label.is_ascii_alphabetic() && size != 1)
            .map(|(&label, _)| label)
            .collect()
    };
    let large: Vec<Labels> = operands.iter().map(large).collect();
    let is_large = |label| large.iter().any(|of| of.contains(&label));
    operands.into_iter().map(|operand| operand.without_broadcast_axes(is_large)).collect()
}

/// Fails if a label has two sizes; the error names the `given` shapes.
fn check_label_sizes(operands: &[LabeledTensor], given: &[&Tensor]) -> Result<()> {
    for (index, operand) in operands.iter().enumerate() {
        for (place, other) in operands.iter().enumerate().skip(index + 1) {
            let shared: Labels =
                operand.labels.iter().copied().filter(|label| other.labels.contains(label)).collect();
            if operand.sizes(&shared) != other.sizes(&shared) {
                let (lhs, rhs) = (*given[index].shape(), *given[place].shape());
                return Err(Error::ShapeMismatch {
                    op: OP,
                    lhs,
                    rhs,
                    rule: &ShapeRule::Other(
                        "each letter must have one size, and axes under ... must broadcast",
                    ),
                });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Runtime;
    use crate::shape::DType;

    #[test]
    fn operands_in_another_order_are_multiplied_where_they_lie() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let counting = |dims: &[usize]| {
            let numbers = Tensor::arange(&device, 0, dims.iter().product::<usize>()).unwrap();
            numbers.to_dtype(DType::F32).unwrap().reshape(dims).unwrap()
        };
        let taken = |equation: &str, a: &Tensor, b: &Tensor| {
            let memory = device.default_allocator().unwrap();
            let before = memory.stats().num_allocs;
            let result = Tensor::einsum(equation, &[a, b]).unwrap();
            (memory.stats().num_allocs - before, result)
        };
        let (a, b) = (counting(&[3, 4]), counting(&[5, 4]));
        let (count, product) = taken("ij,kj->ik", &a, &b);
        assert_eq!((count, product.dims()), (1, &[3, 5][..]));
        let expected = a.matmul(&b.t().unwrap()).unwrap();
        assert_eq!(product.to_vec::<f32>().unwrap(), expected.to_vec::<f32>().unwrap());
        // Several letters of a stack are merged where one step leads through all.
        let (stack, other) = (counting(&[2, 3, 4]), counting(&[2, 5, 4]));
        assert_eq!(taken("bij,bkj->bik", &stack, &other).0, 1);
        assert_eq!(taken("xyj,kj->xyk", &stack, &b).0, 1);
    }
}
