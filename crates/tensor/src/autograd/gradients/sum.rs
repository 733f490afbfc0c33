//! Gradient accumulation: sums the gradients of several backward passes, for batches that exceed the memory.

use highwater_tracking::{Phase, phase};

use super::Gradients;
use super::origin::Sum;
use crate::backend::{Binary, kernels};
use crate::error::Result;
use crate::op::OpContext;
use crate::shape::DType;
use crate::tensor::Tensor;

const OP: &str = "accumulate_gradients";

impl Gradients {
    /// Adds the gradients of another backward pass and removes them from `other`. Sums are in place if no
    /// other tensor shares the buffer. Sums of 16-bit floats are f32, which optimizers accept.
    ///
    /// A batch in four parts requires memory for the activations of one part, and yields the gradients of the
    /// whole batch:
    ///
    /// ```
    /// use highwater::{Device, Gradients, Tensor};
    /// use highwater::tensor::Parameter;
    /// let device = Device::cpu()?;
    /// let weight = Parameter::new(Tensor::ones(&device, [1])?)?;
    /// let mut gradients = Gradients::default();
    /// for part in [1.0f32, 2.0, 3.0, 4.0] {
    ///     let loss = weight.tensor().mul_scalar(part)?.square()?.sum_all()?;
    ///     gradients.accumulate(&mut loss.backward()?)?;
    /// }
    /// gradients.scale(1.0 / 4.0)?;
    /// assert_eq!(gradients.get(&weight.tensor()).unwrap().to_vec::<f32>()?, [15.0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Allocation`](crate::Error::Allocation) if the allocation of a copy of a shared buffer
    /// fails; both are unchanged then. If a device fails, some gradients may be summed; the
    /// others remain in `other`.
    pub fn accumulate(&mut self, other: &mut Self) -> Result<()> {
        if self.is_empty() {
            std::mem::swap(self, other);
            return Ok(());
        }
        let _phase = phase(Phase::Backward);
        // Allocates all memory before the first change.
        for (leaf, addend) in other.by_leaf.iter_mut() {
            let Some(total) = self.by_leaf.get_mut(leaf) else { continue };
            // A sum of 16-bit floats would lose addends below half a unit in its last place.
            for half in [&mut *total, &mut *addend].into_iter().filter(|half| half.dtype().is_half()) {
                *half = copy(half, DType::F32)?;
            }
            // If only `addend` is writable, it will receive the sum.
            if total.view_mut().is_none() && addend.view_mut().is_none() {
                make_writable(total)?;
            }
            let sum = Sum::of([self.origins.get(leaf), other.origins.get(leaf)]);
            for (gradient, factor) in [total, addend].into_iter().zip(sum.factors) {
                if factor != 1.0 {
                    make_writable(gradient)?;
                }
            }
        }
        while let Some(leaf) = other.by_leaf.first() {
            let Some(total) = self.by_leaf.get_mut(leaf) else {
                self.origins.set(leaf, other.origins.get(leaf));
                if let Some(addend) = other.remove(leaf) {
                    self.by_leaf.insert(leaf, addend);
                }
                continue;
            };
            let Some(addend) = other.by_leaf.get_mut(leaf) else { break };
            let sum = Sum::of([self.origins.get(leaf), other.origins.get(leaf)]);
            scale(total, sum.factors[0])?;
            scale(addend, sum.factors[1])?;
            self.origins.set(leaf, sum.origin);
            if total.view_mut().is_none() {
                std::mem::swap(total, addend);
            }
            let device = addend.device().clone();
            let ctx = OpContext::backward(OP, &device, device.default_allocator()?);
            let acc = total.view_mut().expect("the loop above made one of the two writable");
            ctx.compute(kernels::Accumulate { f: Binary::Add, input: addend.view(), acc })?;
            other.remove(leaf);
        }
        Ok(())
    }

    /// Makes every gradient writable in place.
    ///
    /// # Errors
    /// [`Error::Allocation`](crate::Error::Allocation) if the allocation of a copy fails; no value has
    /// changed.
    pub(super) fn make_writable(&mut self) -> Result<()> {
        self.iter_mut().try_for_each(make_writable)
    }
}

/// Replaces a gradient with a shared buffer by a copy.
pub(super) fn make_writable(gradient: &mut Tensor) -> Result<()> {
    if gradient.view_mut().is_none() {
        *gradient = copy(gradient, gradient.dtype())?;
    }
    Ok(())
}

/// Multiplies a writable gradient by a factor.
pub(super) fn scale(gradient: &mut Tensor, factor: f64) -> Result<()> {
    if factor == 1.0 {
        return Ok(());
    }
    let device = gradient.device().clone();
    let ctx = OpContext::backward(OP, &device, device.default_allocator()?);
    let values = gradient.view_mut().expect("the caller has made it writable");
    ctx.compute(kernels::Scale { factor, values })
}

fn copy(gradient: &Tensor, dtype: DType) -> Result<Tensor> {
    let device = gradient.device();
    let ctx = OpContext::backward(OP, device, device.default_allocator()?);
    let mut copy = ctx.output(gradient.shape(), dtype)?;
    ctx.compute(kernels::Copy { input: gradient.view(), out: copy.view_mut() })?;
    Ok(copy.finish())
}
