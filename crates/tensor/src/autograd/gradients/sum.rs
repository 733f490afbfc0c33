//! Gradient accumulation: sums the gradients of several backward passes, for batches that exceed the memory.

use highwater_tracking::{Phase, phase};

use super::Gradients;
use crate::backend::{Binary, Kernel};
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
        }
        while let Some(leaf) = other.by_leaf.first() {
            let Some(total) = self.by_leaf.get_mut(leaf) else {
                if let Some(addend) = other.by_leaf.remove(leaf) {
                    self.by_leaf.insert(leaf, addend);
                }
                continue;
            };
            let Some(addend) = other.by_leaf.get_mut(leaf) else { break };
            if total.view_mut().is_none() {
                std::mem::swap(total, addend);
            }
            let device = addend.device().clone();
            let ctx = OpContext::backward(OP, &device, device.default_allocator()?);
            let acc = total.view_mut().expect("the loop above made one of the two writable");
            ctx.compute(Kernel::Accumulate { f: Binary::Add, input: addend.view(), acc })?;
            other.by_leaf.remove(leaf);
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
fn make_writable(gradient: &mut Tensor) -> Result<()> {
    if gradient.view_mut().is_none() {
        *gradient = copy(gradient, gradient.dtype())?;
    }
    Ok(())
}

fn copy(gradient: &Tensor, dtype: DType) -> Result<Tensor> {
    let device = gradient.device();
    let ctx = OpContext::backward(OP, device, device.default_allocator()?);
    let mut copy = ctx.output(gradient.shape(), dtype)?;
    ctx.compute(Kernel::Copy { input: gradient.view(), out: copy.view_mut() })?;
    Ok(copy.finish())
}
