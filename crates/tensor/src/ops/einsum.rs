//! Products of tensors, summed over axes that an equation names: `ij,jk->ik` is a matrix product.
//!
//! Operands are multiplied from left to right, two at a time. Letters that are not needed any more are summed over: in one
//! operand alone by `sum`, in both by a batched matrix product of the two, permuted so that each has the letters of the batch
//! first, then its own, then those summed over. What is taken and saved, and the gradient, are those of `permute`, `reshape`,
//! `sum` and `matmul`; only a permuted operand that does not lie as the product reads it is copied.
//!
//! A letter twice in one operand is its diagonal, a view. Axes under `...` get labels of their own; an operand that has size 1
//! there, where another one has more, goes on without that axis, so that nothing is repeated in memory.

mod equation;

use equation::{Equation, Labels};

use super::{is_number, supported};
use crate::error::{Error, Result};
use crate::shape::DType;
use crate::tensor::Tensor;

const OP: &str = "einsum";

/// A tensor whose axes have letters.
struct Labelled {
    tensor: Tensor,
    labels: Labels,
}

impl Labelled {
    /// A tensor with an axis for each label; those with the same label become one, their diagonal.
    fn new(tensor: &Tensor, mut labels: Labels, equation: &str) -> Result<Self> {
        let (shape, mut tensor) = (tensor.shape(), tensor.unchanged());
        let again = |labels: &Labels| {
            (0..labels.len()).find_map(|axis| {
                labels[..axis].iter().position(|&label| label == labels[axis]).map(|first| [first, axis])
            })
        };
        while let Some([first, second]) = again(&labels) {
            if tensor.dims()[first] != tensor.dims()[second] {
                let (expected, got) = ("of one size for each letter", format!("{shape} for \"{equation}\""));
                return Err(Error::BadArgument { op: OP, argument: "operands", expected, got });
            }
            tensor = tensor.diagonal_in_place(0, [first, second])?;
            labels.remove(second);
        }
        Ok(Self { tensor, labels })
    }

    /// Without the axes of size 1 under `...` along which another operand is larger: what is multiplied with each of its
    /// elements is the same.
    fn without_repeated(mut self, larger: impl Fn(u8) -> bool) -> Result<Self> {
        while let Some(axis) =
            (0..self.labels.len()).find(|&axis| self.tensor.dims()[axis] == 1 && larger(self.labels[axis]))
        {
            self.tensor = self.tensor.squeeze(axis as isize)?;
            self.labels.remove(axis);
        }
        Ok(self)
    }

    /// The tensor with axes in the order of `labels`, which are its own.
    fn in_order(&self, labels: &[u8]) -> Result<Tensor> {
        let place = |label| self.labels.iter().position(|own| own == label);
        let axes: Vec<isize> = labels.iter().filter_map(place).map(|axis| axis as isize).collect();
        self.tensor.permute(&axes)
    }

    /// Without the letters that `is_needed` does not hold for: summed over.
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

    /// The same elements in another type: narrow integers, whose sums are i64, wrap as their products do.
    fn of_type(self, dtype: DType) -> Result<Self> {
        Ok(Self { tensor: self.tensor.to_dtype(dtype)?, ..self })
    }

    /// The sizes of letters, of which this has all.
    fn sizes(&self, labels: &[u8]) -> Vec<usize> {
        let size =
            |label| self.labels.iter().position(|own| own == label).map(|axis| self.tensor.dims()[axis]);
        labels.iter().filter_map(size).collect()
    }

    /// The product with another one, summed over what both have and `is_needed` does not hold for.
    fn times(self, other: Self, is_needed: impl Fn(u8) -> bool) -> Result<Self> {
        let dtype = self.tensor.dtype();
        let lhs = self.summed(|label| other.labels.contains(&label) || is_needed(label))?.of_type(dtype)?;
        let rhs = other.summed(|label| lhs.labels.contains(&label) || is_needed(label))?.of_type(dtype)?;
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
        // Without a batch they are two matrices, and no stacks of one.
        let sizes = |rows: usize, columns: usize| match &batch[..] {
            [] => vec![rows, columns],
            _ => vec![b, rows, columns],
        };
        let left = lhs.in_order(&[&batch[..], &rows, &folded].concat())?.reshape(sizes(m, k))?;
        let right = rhs.in_order(&[&batch[..], &folded, &columns].concat())?.reshape(sizes(k, n))?;
        let product = left.matmul(&right)?.reshape([batch_sizes, row_sizes, column_sizes].concat())?;
        Ok(Self { tensor: product, labels: [batch, rows, columns].concat() })
    }
}

impl Tensor {
    /// Einstein's summation: each axis of each operand has a letter, and the elements at equal letters are multiplied and summed
    /// over the letters that the result does not have. A letter twice in one operand takes the diagonal of those axes. `...`
    /// stands for any number of axes without letters, which are broadcast and which the result has too, unless there are none.
    /// Without `->` the result has first the axes under `...`, then the letters that stand there once, in alphabetical order.
    /// All is as in NumPy, but that a letter has one size, also where that is 1. Products of integers wrap in their own type,
    /// and operands of different types are promoted as in [`DType`](crate::DType)'s table; one operand alone is summed as by [`sum`](Self::sum).
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
    /// [`Error::BadEquation`], which says where; [`Error::BadArgument`] unless there are as many tensors as the equation has
    /// operands, and if a letter has two sizes in one of them; [`Error::BadRank`] for one with another number of axes than letters
    /// (with `...` fewer); [`Error::ShapeMismatch`] if a letter has two sizes, or axes under `...` do not broadcast;
    /// [`Error::UnsupportedDType`] for several booleans, [`Error::DeviceMismatch`];
    /// [`Error::RankTooLarge`] if a product on the way has more axes than a tensor can have; [`Error::Allocation`] if there is
    /// no memory.
    pub fn einsum(equation: &str, operands: &[&Self]) -> Result<Self> {
        let parsed = Equation::parse(equation)?;
        if parsed.operands.len() != operands.len() {
            let got = format!("{} for \"{equation}\"", operands.len());
            return Err(Error::BadArgument {
                op: OP,
                argument: "operands",
                expected: "as many as the equation has",
                got,
            });
        }
        let dtype = operands.iter().fold(operands[0].dtype(), |dtype, tensor| dtype.promote(tensor.dtype()));
        // One alone is not multiplied, but seen otherwise and summed.
        supported(OP, dtype, |dtype| is_number(dtype) || operands.len() == 1)?;
        for (&tensor, labels) in operands.iter().zip(&parsed.operands) {
            if !Equation::fits(labels, tensor.rank()) {
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
        let Equation { operands: labels, output } = parsed.spelled_out(equation, &ranks)?;
        let labelled =
            operands.iter().zip(labels).map(|(tensor, labels)| Labelled::new(tensor, labels, equation));
        let labelled = labelled.collect::<Result<Vec<_>>>()?;
        let mut left = broadcast(labelled)?;
        one_size_a_label(&left, operands)?;
        // The parser gives one operand at least.
        let mut product = left.remove(0);
        let mut rest = left.into_iter();
        while let Some(next) = rest.next() {
            let later = rest.as_slice();
            let is_needed =
                |label| output.contains(&label) || later.iter().any(|other| other.labels.contains(&label));
            product = product.times(next, is_needed)?;
        }
        let result = product.summed(|label| output.contains(&label))?;
        // What one operand alone is summed to is as `sum` has it.
        let result = if operands.len() == 1 { result } else { result.of_type(operands[0].dtype())? };
        result.in_order(&output)
    }
}

/// The operands without the axes under `...` that are broadcast.
fn broadcast(operands: Vec<Labelled>) -> Result<Vec<Labelled>> {
    let large = |of: &Labelled| {
        let axes = of.labels.iter().zip(of.tensor.dims());
        axes.filter(|&(label, &size)| !label.is_ascii_alphabetic() && size != 1)
            .map(|(&label, _)| label)
            .collect()
    };
    let large: Vec<Labels> = operands.iter().map(large).collect();
    let is_large = |label| large.iter().any(|of| of.contains(&label));
    operands.into_iter().map(|operand| operand.without_repeated(is_large)).collect()
}

/// Refuses a label that has two sizes; the error names the shapes as they were `given`.
fn one_size_a_label(operands: &[Labelled], given: &[&Tensor]) -> Result<()> {
    for (index, operand) in operands.iter().enumerate() {
        for (place, other) in operands.iter().enumerate().skip(index + 1) {
            let shared: Labels =
                operand.labels.iter().copied().filter(|label| other.labels.contains(label)).collect();
            if operand.sizes(&shared) != other.sizes(&shared) {
                let (lhs, rhs) = (*given[index].shape(), *given[place].shape());
                return Err(Error::ShapeMismatch { op: OP, lhs, rhs });
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
            let numbers = Tensor::arange(&device, dims.iter().product()).unwrap();
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
