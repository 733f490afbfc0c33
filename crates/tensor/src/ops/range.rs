//! Creation of ranges and of the identity matrix: `arange`, `linspace`, `eye`.
//!
//! Each op allocates one output. `linspace` and `eye` also need a temporary of one element.

use super::create::{TensorOptions, create};
use crate::backend::kernels;
use crate::device::Place;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::shape::{DType, Scalar, Shape};
use crate::tensor::Tensor;

/// Fails unless a bound or a step is a finite number.
fn finite(op: &'static str, argument: &'static str, value: Scalar) -> Result<f64> {
    match value.as_f64() {
        number if number.is_finite() => Ok(number),
        number => {
            Err(Error::BadArgument { op, argument, expected: "a finite number", got: number.to_string() })
        }
    }
}

/// The number of steps from `start` to before `end`. Saturates, which is more elements than a tensor can have.
fn steps(start: Scalar, end: Scalar, step: Scalar) -> usize {
    if let (Scalar::Int(start), Scalar::Int(end), Scalar::Int(step)) = (start, end, step) {
        let [start, end, step] = [start, end, step].map(i128::from);
        let distance = (end - start) * step.signum();
        let count = (distance.max(0) + step.abs() - 1) / step.abs();
        return usize::try_from(count).unwrap_or(usize::MAX);
    }
    // A cast saturates: below 0 to 0.
    ((end.as_f64() - start.as_f64()) / step.as_f64()).ceil() as usize
}

/// # Ranges and the identity
impl Tensor {
    /// Creates the range `start`, `start` + 1, … below `end`, as PyTorch's `arange`. The type of the numbers decides the
    /// element type: `i64` for integers, `f32` if one of them is a float.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let device = Device::cpu()?;
    /// assert_eq!(Tensor::arange(&device, 0, 4)?.to_vec::<i64>()?, [0, 1, 2, 3]);
    /// assert_eq!(Tensor::arange(&device, 0.5, 3.0)?.to_vec::<f32>()?, [0.5, 1.5, 2.5]);
    /// assert_eq!(Tensor::arange_step(&device, 9, 0, -3)?.to_vec::<i64>()?, [9, 6, 3]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadArgument`] for a number that is not finite; [`Error::TooManyElements`] for counts that cannot be
    /// addressed; [`Error::Allocation`] if there is no memory.
    #[doc(alias("range"))]
    pub fn arange(place: &impl Place, start: impl Into<Scalar>, end: impl Into<Scalar>) -> Result<Self> {
        Self::arange_step(place, start, end, 1)
    }

    /// Creates the range `start`, `start` + `step`, … before `end`: see [`arange`](Self::arange). A range that leads away
    /// from `end` is empty, as in NumPy.
    ///
    /// # Errors
    /// See [`arange`](Self::arange); [`Error::BadArgument`] also for a step of 0.
    #[doc(alias("range"))]
    pub fn arange_step(
        place: &impl Place,
        start: impl Into<Scalar>,
        end: impl Into<Scalar>,
        step: impl Into<Scalar>,
    ) -> Result<Self> {
        const OP: &str = "arange";
        let (start, end, step) = (start.into(), end.into(), step.into());
        finite(OP, "start", start)?;
        finite(OP, "end", end)?;
        if finite(OP, "step", step)? == 0.0 {
            let (argument, expected, got) = ("step", "another number than 0", step.to_string());
            return Err(Error::BadArgument { op: OP, argument, expected, got });
        }
        let is_integer = [start, end, step].iter().all(|number| matches!(number, Scalar::Int(_)));
        let dtype = if is_integer { DType::I64 } else { DType::F32 };
        let options = TensorOptions { dtype, ..TensorOptions::default() };
        create(OP, place, steps(start, end, step), options, |ctx, out| {
            ctx.compute(kernels::Arange { start, step, out })
        })
    }

    /// Creates `count` evenly spaced values from `start` to `end`, both included (`f32`), as PyTorch's `linspace`. A single
    /// value is `start`.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let x = Tensor::linspace(&Device::cpu()?, 0, 1, 5)?;
    /// assert_eq!(x.to_vec::<f32>()?, [0.0, 0.25, 0.5, 0.75, 1.0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`arange`](Self::arange).
    pub fn linspace(
        place: &impl Place,
        start: impl Into<Scalar>,
        end: impl Into<Scalar>,
        count: usize,
    ) -> Result<Self> {
        const OP: &str = "linspace";
        let (start, end) = (finite(OP, "start", start.into())?, finite(OP, "end", end.into())?);
        let gaps = count.saturating_sub(1);
        // Divides before the subtraction, which could overflow.
        let step = end / gaps.max(1) as f64 - start / gaps.max(1) as f64;
        create(OP, place, count, TensorOptions::default(), |ctx, mut out| {
            let [first, step] = [start, step].map(Scalar::Float);
            ctx.compute(kernels::Arange { start: first, step, out: out.reborrow() })?;
            if gaps == 0 {
                return Ok(());
            }
            // The sum could miss the end by a rounding error.
            let mut last = ctx.temp(&Shape::row(1), DType::F32)?;
            ctx.compute(kernels::Fill { value: Scalar::Float(end), out: last.view_mut() })?;
            ctx.compute(kernels::CopyInto { input: last.view(), axis: 0, start: gaps, step: 1, out })
        })
    }

    /// Creates the identity matrix with `size` rows and columns (`f32`): 1 on the diagonal, 0 elsewhere.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// assert_eq!(Tensor::eye(&Device::cpu()?, 2)?.to_vec::<f32>()?, [1.0, 0.0, 0.0, 1.0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::TooManyElements`] for sizes that cannot be addressed; [`Error::Allocation`] if there is no memory.
    #[doc(alias("identity"))]
    pub fn eye(place: &impl Place, size: usize) -> Result<Self> {
        create("eye", place, [size, size], TensorOptions::default(), |ctx, mut out| {
            ctx.compute(kernels::Fill { value: Scalar::Int(0), out: out.reborrow() })?;
            let mut one = ctx.temp(&Shape::SCALAR, DType::F32)?;
            ctx.compute(kernels::Fill { value: Scalar::Int(1), out: one.view_mut() })?;
            // As one row, the diagonal is every (size + 1)-th element.
            let row = Layout::row_major(&Shape::row(size * size));
            let ones = one.view().layout().broadcast_to("eye", &Shape::row(size))?;
            let input = one.view().with_layout(&ones);
            ctx.compute(kernels::CopyInto {
                input,
                axis: 0,
                start: 0,
                step: size + 1,
                out: out.with_layout(&row),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Device, Runtime};

    fn cpu() -> Device {
        Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
    }

    #[test]
    fn ranges_end_before_their_end() {
        let device = cpu();
        let whole = |start, end, step| {
            Tensor::arange_step(&device, start, end, step).unwrap().to_vec::<i64>().unwrap()
        };
        assert_eq!(whole(2i64, 9, 3), [2, 5, 8]);
        assert_eq!(whole(2, 8, 3), [2, 5]);
        assert_eq!(whole(3, -3, -2), [3, 1, -1]);
        assert_eq!(whole(3, 3, 1), [0i64; 0]);
        assert_eq!(whole(0, 3, -1), [0i64; 0]);
        assert_eq!(whole(i64::MAX - 1, i64::MAX, i64::MAX), [i64::MAX - 1]);
        assert_eq!(whole(i64::MIN, i64::MAX, i64::MAX), [i64::MIN, -1, i64::MAX - 1]);
        let tenths = Tensor::arange_step(&device, 0, 1, 0.1).unwrap().to_vec::<f32>().unwrap();
        assert_eq!(tenths.len(), 10);
        assert_eq!(tenths[3], 0.3);
        assert_eq!(Tensor::arange(&device, 0, 5usize).unwrap().dtype(), DType::I64);
        assert_eq!(Tensor::arange(&device, 0, 2.5).unwrap().to_vec::<f32>().unwrap(), [0.0, 1.0, 2.0]);
    }

    #[test]
    fn ranges_without_a_count_are_errors() {
        let device = cpu();
        let message = |result: Result<Tensor>| result.unwrap_err().to_string();
        assert_eq!(
            message(Tensor::arange_step(&device, 0, 3, 0)),
            "arange: step must be another number than 0, got 0"
        );
        assert_eq!(
            message(Tensor::arange(&device, 0, f64::NAN)),
            "arange: end must be a finite number, got NaN"
        );
        for end in [Scalar::Int(i64::MAX), Scalar::Float(f64::MAX)] {
            let huge = Tensor::arange(&device, -1, end);
            assert!(matches!(huge, Err(Error::TooManyElements { op: "arange", .. })), "{huge:?}");
        }
        assert!(matches!(
            Tensor::arange_step(&device, f64::MAX, f64::MIN, -1e-300),
            Err(Error::TooManyElements { .. })
        ));
        assert!(Tensor::linspace(&device, f64::INFINITY, 0, 2).is_err());
    }

    #[test]
    fn spaced_values_contain_both_ends() {
        let device = cpu();
        let spaced = |start, end, count| {
            Tensor::linspace(&device, start, end, count).unwrap().to_vec::<f32>().unwrap()
        };
        assert_eq!(spaced(-1.0, 1.0, 5), [-1.0, -0.5, 0.0, 0.5, 1.0]);
        assert_eq!(spaced(3.0, 4.0, 1), [3.0]);
        assert_eq!(spaced(3.0, 4.0, 0), [0.0; 0]);
        assert_eq!(spaced(2.0, -2.0, 3), [2.0, 0.0, -2.0]);
        assert_eq!(*spaced(-1e10, 0.1, 7).last().unwrap(), 0.1);
        assert_eq!(spaced(f64::from(f32::MIN), f64::from(f32::MAX), 3), [f32::MIN, 0.0, f32::MAX]);
    }

    #[test]
    fn the_identity_has_ones_on_its_diagonal() {
        let device = cpu();
        let eye = Tensor::eye(&device, 3).unwrap();
        assert_eq!(eye.to_vec::<f32>().unwrap(), [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]);
        assert_eq!(Tensor::eye(&device, 0).unwrap().dims(), [0, 0]);
        assert!(matches!(Tensor::eye(&device, usize::MAX), Err(Error::TooManyElements { .. })));
    }
}
