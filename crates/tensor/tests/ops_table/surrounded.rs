//! Views that lie inside a larger buffer: they do not start at its beginning, and other elements lie around and between theirs.
//!
//! An op that reads a view at the wrong place reads these other elements. Tests give them values that change every answer: NaN, large
//! numbers, indices out of range.

use highwater_tensor::{DType, Device, Element, Result, Tensor};

/// How the elements of a view lie in the larger buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Surrounded {
    /// In order, from an element where no pack of elements may begin.
    Contiguous,
    /// In order, from an element where packs may begin.
    Aligned,
    /// Every second element.
    EverySecond,
    /// In order with the axes reversed.
    Reversed,
}

impl Surrounded {
    pub(crate) const ALL: [Self; 4] = [Self::Contiguous, Self::Aligned, Self::EverySecond, Self::Reversed];

    /// The other elements of the buffer before the first one.
    const fn lead(self) -> usize {
        match self {
            Self::Contiguous | Self::Reversed => 5,
            Self::Aligned => 64,
            Self::EverySecond => 1,
        }
    }

    const fn step(self) -> usize {
        if matches!(self, Self::EverySecond) { 2 } else { 1 }
    }

    /// The values of a buffer in which `values`, as [`place`](Self::place) finds them, lie among copies of `around`.
    fn buffer<T: Copy>(self, values: &[T], dims: &[usize], around: T) -> Vec<T> {
        let (lead, step) = (self.lead(), self.step());
        let mut buffer = vec![around; lead + values.len() * step + 7];
        for (number, &value) in values.iter().enumerate() {
            buffer[lead + step * self.number(number, dims)] = value;
        }
        buffer
    }

    /// Where element `number` of a tensor comes among the elements in the buffer.
    fn number(self, number: usize, dims: &[usize]) -> usize {
        if self != Self::Reversed {
            return number;
        }
        let (mut rest, mut reversed, mut step) = (number, 0, dims.iter().product::<usize>());
        for &size in dims.iter().rev() {
            step /= size;
            reversed += rest % size * step;
            rest /= size;
        }
        reversed
    }

    /// The view of shape `dims` into such a buffer.
    fn view(self, buffer: &Tensor, dims: &[usize]) -> Result<Tensor> {
        let elements: usize = dims.iter().product();
        let (lead, step) = (self.lead(), self.step());
        let row = buffer.slice_step(0, lead..lead + elements * step, step)?;
        let view = if self == Self::Reversed {
            let reversed: Vec<usize> = dims.iter().rev().copied().collect();
            let order: Vec<isize> = (0..dims.len() as isize).rev().collect();
            row.reshape(reversed)?.permute(&order)?
        } else {
            row.reshape(dims)?
        };
        assert!(view.shares_buffer_with(buffer) && view.layout().offset() == lead);
        Ok(view)
    }

    /// A view with these values, among copies of `around`.
    pub(crate) fn tensor<T: Element>(
        self,
        device: &Device,
        values: &[T],
        dims: &[usize],
        around: T,
    ) -> Result<Tensor> {
        let buffer = self.buffer(values, dims, around);
        self.view(&Tensor::from_slice(device, &buffer, buffer.len())?, dims)
    }

    /// The same of any type that the values convert to.
    pub(crate) fn floats(
        self,
        device: &Device,
        values: &[f64],
        dims: &[usize],
        around: f64,
        dtype: DType,
    ) -> Result<Tensor> {
        let buffer = self.buffer(values, dims, around);
        self.view(&Tensor::from_slice(device, &buffer, buffer.len())?.to_dtype(dtype)?, dims)
    }

    /// The same values as a view, among copies of `around`.
    pub(crate) fn copy(self, x: &Tensor, around: f64) -> Result<Tensor> {
        let values = x.to_dtype(DType::F64)?.to_vec::<f64>()?;
        self.floats(x.device(), &values, x.dims(), around, x.dtype())
    }

    /// The elements of `y` in a larger tensor, for which backward hands `y` a gradient that is such a view of the gradient of the
    /// larger one.
    pub(crate) fn into_larger(self, y: &Tensor) -> Result<Tensor> {
        let order: Vec<isize> = (0..y.rank() as isize).rev().collect();
        let row =
            if self == Self::Reversed { y.permute(&order)? } else { y.clone() }.reshape([y.elements()])?;
        let others = |count: usize| Tensor::zeros_of(y.device(), count, y.dtype());
        let row = if self == Self::EverySecond {
            let pairs = Tensor::stack(&[&row, &others(row.elements())?], 1)?;
            pairs.reshape([2 * y.elements()])?
        } else {
            row
        };
        Tensor::concat(&[&others(self.lead())?, &row, &others(7)?], 0)
    }

    /// The gradient of the larger tensor of [`into_larger`](Self::into_larger): `weights` for the elements of `y`, `around` elsewhere.
    pub(crate) fn larger_gradient(self, y: &Tensor, weights: &[f64], around: f64) -> Result<Tensor> {
        let buffer = self.buffer(weights, y.dims(), around);
        Tensor::from_slice(y.device(), &buffer, buffer.len())?.to_dtype(y.dtype())
    }
}

/// A tensor for an op beside `like`: of its own buffer if `like` starts at the beginning of its buffer, else a view that lies as `like`
/// does among copies of `around`.
pub(crate) fn beside<T: Element>(like: &Tensor, values: &[T], dims: &[usize], around: T) -> Result<Tensor> {
    if like.layout().offset() == 0 {
        return Tensor::from_slice(like.device(), values, dims);
    }
    let surrounded =
        if like.layout().is_contiguous() { Surrounded::Contiguous } else { Surrounded::EverySecond };
    surrounded.tensor(like.device(), values, dims, around)
}

/// The same of the type of `like`, which is a float.
pub(crate) fn floats_beside(like: &Tensor, values: &[f64], dims: &[usize]) -> Result<Tensor> {
    if like.layout().offset() == 0 {
        return Tensor::from_slice(like.device(), values, dims)?.to_dtype(like.dtype());
    }
    Surrounded::Contiguous.floats(like.device(), values, dims, f64::NAN, like.dtype())
}
