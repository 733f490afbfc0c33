//! Gradient clipping (Pascanu, Mikolov and Bengio 2013), with the results of PyTorch's functions.

use highwater_tracking::{Phase, phase};

use super::Gradients;
use crate::autograd::{Parameter, passes};
use crate::backend::{Binary, Kernel, kernels};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::op::OpContext;
use crate::op::no_grad;
use crate::shape::DType;
use crate::storage::ViewMut;
use crate::tensor::Tensor;

/// Added to the norm to avoid a division by 0.
const EPSILON: f64 = 1e-6;

impl Gradients {
    /// Returns the L2 norm of all gradients as one vector. Returns 0 on a dry device.
    ///
    /// Waits for the device. Allocates as much memory as the largest gradient.
    ///
    /// # Errors
    /// [`Error::Allocation`] if an allocation fails.
    pub fn norm(&self) -> Result<f64> {
        let _phase = phase(Phase::Optimizer);
        no_grad(|| {
            // One read per device.
            let sums = self.sums_of_squares()?;
            let squares = sums.iter().map(|sum| sum.item_or(0.0f64));
            // The empty sum is -0, whose square root is -0.
            Ok((0.0 + squares.sum::<Result<f64>>()?).sqrt())
        })
    }

    /// Returns the sum of all squares on each device, as f64.
    fn sums_of_squares(&self) -> Result<Vec<Tensor>> {
        let mut sums: Vec<Tensor> = Vec::new();
        for gradient in self.iter() {
            let square = square(gradient)?;
            match sums.iter_mut().find(|sum| sum.device() == gradient.device()) {
                Some(sum) => *sum = sum.add(&square)?,
                None => sums.push(square),
            }
        }
        Ok(sums)
    }

    /// Scales all gradients by one factor so that their [norm](Self::norm) is at most `max`. Returns the norm
    /// before scaling.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let x = Tensor::from_slice(&Device::cpu()?, &[1.5f32, 2.0], [2])?.requiring_grad()?;
    /// let mut gradients = x.square()?.sum_all()?.backward()?;
    /// assert_eq!(gradients.clip_norm(1.0)?, 5.0);
    /// let clipped = gradients.get(&x).unwrap().to_vec::<f32>()?;
    /// assert!((clipped[0] - 0.6).abs() < 1e-6 && (clipped[1] - 0.8).abs() < 1e-6);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless `max` is finite and above 0, and if the gradients do not include all
    /// processes that train; [`Error::NotFinite`] if a gradient is infinite or NaN, so that the caller can
    /// skip the step; [`Error::Allocation`] if an allocation fails. All gradients are unchanged then.
    pub fn clip_norm(&mut self, max: f64) -> Result<f64> {
        const OP: &str = "clip_norm";
        check_positive(OP, max)?;
        self.check_whole(OP)?;
        let norm = self.norm()?;
        self.clip_known_norm(norm, max)?;
        Ok(norm)
    }

    /// Scales all gradients as [`clip_norm`](Self::clip_norm) does, with a known norm. For gradients that are a part of
    /// those with this norm.
    ///
    /// # Errors
    /// As [`clip_norm`](Self::clip_norm).
    pub fn clip_known_norm(&mut self, norm: f64, max: f64) -> Result<()> {
        const OP: &str = "clip_norm";
        check_positive(OP, max)?;
        self.check_not_local(OP)?;
        if !norm.is_finite() {
            return Err(Error::NotFinite { op: OP, norm });
        }
        let factor = (max / (norm + EPSILON)).min(1.0);
        self.change_in_place(OP, |values| kernels::Scale { factor, values }.into())
    }

    /// Returns the sum of the squares of a parameter's gradient, or `None` without a gradient. The [norm](Self::norm) is
    /// the square root of their sum in the order of the parameters' [numbers](Parameter::number). Returns 0 on a dry
    /// device.
    ///
    /// # Errors
    /// [`Error::Allocation`] if an allocation fails.
    pub fn sum_of_squares(&self, parameter: &Parameter) -> Result<Option<f64>> {
        let _phase = phase(Phase::Optimizer);
        let gradient = parameter.leaf().and_then(|leaf| self.by_leaf.get(leaf));
        no_grad(|| gradient.map(|gradient| square(gradient)?.item_or(0.0)).transpose())
    }

    /// Clips by the norm as [`clip_norm`](Self::clip_norm) does, without waiting for the device. Returns the
    /// norm as a tensor of one f64, or `None` if there are no gradients. Infinite or NaN gradients are not
    /// detected: they become NaN, and the others 0 or NaN, as with PyTorch's function.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let x = Tensor::from_slice(&Device::cpu()?, &[1.5f32, 2.0], [2])?.requiring_grad()?;
    /// let mut gradients = x.square()?.sum_all()?.backward()?;
    /// let norm = gradients.clip_norm_unread(1.0)?.expect("there is one gradient");
    /// assert_eq!(norm.item::<f64>()?, 5.0);
    /// let clipped = gradients.get(&x).unwrap().to_vec::<f32>()?;
    /// assert!((clipped[0] - 0.6).abs() < 1e-6 && (clipped[1] - 0.8).abs() < 1e-6);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless `max` is finite and above 0; [`Error::DeviceMismatch`] if the gradients
    /// are on several devices; [`Error::Allocation`] if an allocation fails. All gradients are unchanged
    /// then.
    pub fn clip_norm_unread(&mut self, max: f64) -> Result<Option<Tensor>> {
        const OP: &str = "clip_norm_unread";
        check_positive(OP, max)?;
        self.check_whole(OP)?;
        let _phase = phase(Phase::Optimizer);
        no_grad(|| {
            let sums = self.sums_of_squares()?;
            let sum = match sums.as_slice() {
                [] => return Ok(None),
                [sum] => sum,
                [first, second, ..] => {
                    let (lhs, rhs) = (first.device().to_string(), second.device().to_string());
                    return Err(Error::DeviceMismatch { op: OP, lhs, rhs });
                }
            };
            let norm = sum.sqrt()?;
            let most = Tensor::full_of(norm.device(), norm.dims(), max, DType::F64)?;
            let factor = most.div(&norm.add_scalar(EPSILON)?)?.clamp(f64::NEG_INFINITY, 1.0)?;
            let factors = [factor.to_dtype(DType::F32)?, factor];
            self.make_writable()?;
            for gradient in self.iter_mut() {
                let [single, double] = &factors;
                let factor = if gradient.dtype() == DType::F64 { double } else { single };
                let spread = factor.layout().broadcast_to(OP, gradient.shape())?;
                let (input, device) = (factor.view().with_layout(&spread), gradient.device().clone());
                let ctx = OpContext::backward(OP, &device, device.default_allocator()?);
                let acc = gradient.view_mut().expect("`make_writable` succeeded");
                ctx.compute(kernels::Accumulate { f: Binary::Mul, input, acc })?;
            }
            Ok(Some(norm))
        })
    }

    /// Clips the elements of all gradients to the range from `-max` to `max`.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let x = Tensor::from_slice(&Device::cpu()?, &[-3.0f32, 0.1], [2])?.requiring_grad()?;
    /// let mut gradients = x.square()?.sum_all()?.backward()?;
    /// gradients.clip_value(0.5)?;
    /// assert_eq!(gradients.get(&x).unwrap().to_vec::<f32>()?, [-0.5, 0.2]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless `max` is finite and above 0, and if the gradients do not include all
    /// processes that train; [`Error::Allocation`] if the allocation of a copy of a shared buffer fails. All
    /// gradients are unchanged then.
    pub fn clip_value(&mut self, max: f64) -> Result<()> {
        const OP: &str = "clip_value";
        check_positive(OP, max)?;
        self.check_not_local(OP)?;
        self.change_in_place(OP, |values| kernels::Clip { low: -max, high: max, values }.into())
    }

    /// Multiplies all gradients by a number, such as 1 / n after the sum of n passes, or the inverse of a
    /// loss scale.
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless `factor` is finite; [`Error::Allocation`] if the allocation of a copy of
    /// a shared buffer fails. All gradients are unchanged then.
    pub fn scale(&mut self, factor: f64) -> Result<()> {
        const OP: &str = "scale_gradients";
        if !factor.is_finite() {
            let (argument, expected, got) = ("factor", "finite", factor.to_string());
            return Err(Error::BadArgument { op: OP, argument, expected, got });
        }
        self.change_in_place(OP, |values| kernels::Scale { factor, values }.into())?;
        passes::note_scale(factor);
        Ok(())
    }

    /// Runs an in-place kernel on all gradients, together on each device. All gradients change, or none.
    fn change_in_place(
        &mut self,
        op: &'static str,
        kernel: impl for<'a> Fn(ViewMut<'a>) -> Kernel<'a>,
    ) -> Result<()> {
        let _phase = phase(Phase::Optimizer);
        self.make_writable()?;
        let mut by_device: Vec<(Device, Vec<Kernel<'_>>)> = Vec::new();
        for gradient in self.iter_mut() {
            let device = gradient.device().clone();
            let values = gradient.view_mut().expect("`make_writable` succeeded");
            match by_device.iter_mut().find(|(known, _)| *known == device) {
                Some((_, kernels)) => kernels.push(kernel(values)),
                None => by_device.push((device, vec![kernel(values)])),
            }
        }
        by_device.into_iter().try_for_each(|(device, kernels)| {
            OpContext::backward(op, &device, device.default_allocator()?).compute_together(kernels)
        })
    }
}

fn square(gradient: &Tensor) -> Result<Tensor> {
    // Squares of f16 overflow from 256 on.
    gradient.upcast()?.sum_of_squares()?.to_dtype(DType::F64)
}

fn check_positive(op: &'static str, max: f64) -> Result<()> {
    if max.is_finite() && max > 0.0 {
        return Ok(());
    }
    Err(Error::BadArgument { op, argument: "max", expected: "finite and above 0", got: max.to_string() })
}
