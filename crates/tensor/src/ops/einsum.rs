//! Products of tensors, summed over axes that an equation names: `ij,jk->ik` is a matrix product.
//!
//! Operands are multiplied from left to right, two at a time. Letters that are not needed any more are summed over: in one
//! operand alone by `sum`, in both by a batched matrix product of the two, permuted so that each has the letters of the batch
//! first, then its own, then those summed over. What is taken and saved, and the gradient, are those of `permute`, `reshape`,
//! `sum` and `matmul`; only a permuted operand that does not lie as the product reads it is copied.

mod equation;

use equation::{Equation, Labels};

use super::{same_dtype, supported};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

const OP: &str = "einsum";

/// A tensor whose axes have letters.
struct Labelled {
    tensor: Tensor,
    labels: Labels,
}

impl Labelled {
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

    /// The sizes of letters, of which this has all.
    fn sizes(&self, labels: &[u8]) -> Vec<usize> {
        let size =
            |label| self.labels.iter().position(|own| own == label).map(|axis| self.tensor.dims()[axis]);
        labels.iter().filter_map(size).collect()
    }

    /// The product with another one, summed over what both have and `is_needed` does not hold for.
    fn times(self, other: Self, is_needed: impl Fn(u8) -> bool) -> Result<Self> {
        let lhs = self.summed(|label| other.labels.contains(&label) || is_needed(label))?;
        let rhs = other.summed(|label| lhs.labels.contains(&label) || is_needed(label))?;
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
        let left = lhs.in_order(&[&batch[..], &rows, &folded].concat())?.reshape([b, m, k])?;
        let right = rhs.in_order(&[&batch[..], &folded, &columns].concat())?.reshape([b, k, n])?;
        let product = left.matmul(&right)?.reshape([batch_sizes, row_sizes, column_sizes].concat())?;
        Ok(Self { tensor: product, labels: [batch, rows, columns].concat() })
    }
}

impl Tensor {
    /// Einstein's summation: each axis of each operand has a letter, and the elements at equal letters are multiplied and summed
    /// over the letters that the result does not have. Without `->` the result has the letters that stand there once, in
    /// alphabetical order, as in NumPy. Axes without a letter (`...`) and letters twice in one operand are not supported.
    ///
    /// ```
    /// use highwater_tensor::{Device, Tensor};
    /// let device = Device::cpu()?;
    /// let a = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
    /// let b = Tensor::from_slice(&device, &[1.0f32, 10.0], [2])?;
    /// assert_eq!(Tensor::einsum("ij,j->i", &[&a, &b])?.to_vec::<f32>()?, [21.0, 43.0]);
    /// assert_eq!(Tensor::einsum("ij->ji", &[&a])?.to_vec::<f32>()?, [1.0, 3.0, 2.0, 4.0]);
    /// assert_eq!(Tensor::einsum("ij,ij->", &[&a, &a])?.item::<f32>()?, 30.0);
    /// # Ok::<(), highwater_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadEquation`], which says where; [`Error::BadArgument`] unless there are as many tensors as the equation has
    /// operands; [`Error::BadRank`] for one with another number of axes than letters; [`Error::ShapeMismatch`] if a letter has
    /// two sizes; [`Error::DTypeMismatch`], [`Error::UnsupportedDType`] except for floats, [`Error::DeviceMismatch`];
    /// [`Error::RankTooLarge`] if a product on the way has more axes than a tensor can have; [`Error::Allocation`] if there is
    /// no memory.
    pub fn einsum(equation: &str, operands: &[&Self]) -> Result<Self> {
        let Equation { operands: labels, output } = Equation::parse(equation)?;
        if labels.len() != operands.len() {
            let got = format!("{} for \"{equation}\"", operands.len());
            return Err(Error::BadArgument {
                op: OP,
                argument: "operands",
                expected: "as many as the equation has",
                got,
            });
        }
        let mut left = Vec::new();
        for (&tensor, labels) in operands.iter().zip(labels) {
            supported(OP, tensor.dtype(), DType::is_float)?;
            same_dtype(OP, operands[0], tensor)?;
            if tensor.rank() != labels.len() {
                let (expected, shape) = ("an axis for each letter", *tensor.shape());
                return Err(Error::BadRank { op: OP, expected, shape });
            }
            left.push(Labelled { tensor: tensor.unchanged(), labels });
        }
        one_size_a_letter(&left)?;
        // The parser gives one operand at least.
        let mut product = left.remove(0);
        let mut rest = left.into_iter();
        while let Some(next) = rest.next() {
            let later = rest.as_slice();
            let is_needed =
                |label| output.contains(&label) || later.iter().any(|other| other.labels.contains(&label));
            product = product.times(next, is_needed)?;
        }
        product.summed(|label| output.contains(&label))?.in_order(&output)
    }
}

/// Refuses a letter that has two sizes.
fn one_size_a_letter(operands: &[Labelled]) -> Result<()> {
    for (index, operand) in operands.iter().enumerate() {
        for other in &operands[index + 1..] {
            let shared: Labels =
                operand.labels.iter().copied().filter(|label| other.labels.contains(label)).collect();
            if operand.sizes(&shared) != other.sizes(&shared) {
                let (lhs, rhs) = (*operand.tensor.shape(), *other.tensor.shape());
                return Err(Error::ShapeMismatch { op: OP, lhs, rhs });
            }
        }
    }
    Ok(())
}
