//! Gradients of several backward passes as one: what a batch gives that is too large for memory.

use highwater_tracking::{Phase, phase};

use super::Gradients;
use crate::backend::{Binary, Kernel};
use crate::error::Result;
use crate::op::OpContext;
use crate::op::upcast;
use crate::tensor::Tensor;

const OP: &str = "accumulate_gradients";

impl Gradients {
    /// Adds the gradients of another backward pass, which are taken out of `other`, in place where nobody else looks into
    /// a buffer.
    ///
    /// A batch in four parts takes the memory of the activations of one part, and gives the gradients of the whole:
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
    /// [`Error::Allocation`](crate::Error::Allocation) if a buffer that others look into has to be copied, or halves are to
    /// be computed with, and there is no memory: both are as they were then. A device that fails on the way leaves some
    /// gradients summed, and the others in `other`.
    pub fn accumulate(&mut self, other: &mut Self) -> Result<()> {
        if self.is_empty() {
            std::mem::swap(self, other);
            return Ok(());
        }
        let _phase = phase(Phase::Backward);
        // All memory first.
        for (leaf, theirs) in other.by_leaf.iter_mut() {
            let Some(ours) = self.by_leaf.get_mut(leaf) else { continue };
            // Where only theirs can be written, ours is added to it.
            if ours.view_mut().is_none() && theirs.view_mut().is_none() {
                make_writable(ours)?;
            }
        }
        let pair = |(leaf, theirs): (_, &Tensor)| Some([self.by_leaf.get(leaf)?.clone(), theirs.clone()]);
        upcast::reserve(OP, other.by_leaf.iter().filter_map(pair))?;
        while let Some(leaf) = other.by_leaf.first() {
            let Some(ours) = self.by_leaf.get_mut(leaf) else {
                if let Some(theirs) = other.by_leaf.remove(leaf) {
                    self.by_leaf.insert(leaf, theirs);
                }
                continue;
            };
            let Some(theirs) = other.by_leaf.get_mut(leaf) else { break };
            if ours.view_mut().is_none() {
                std::mem::swap(ours, theirs);
            }
            let device = theirs.device().clone();
            let ctx = OpContext::backward(OP, &device, device.default_allocator()?);
            let acc = ours.view_mut().expect("one of the two was writable above");
            ctx.compute(Kernel::Accumulate { f: Binary::Add, input: theirs.view(), acc })?;
            other.by_leaf.remove(leaf);
        }
        Ok(())
    }

    /// Sees to it that every gradient can be written where it lies.
    ///
    /// # Errors
    /// [`Error::Allocation`](crate::Error::Allocation) if one has to be copied and there is no memory; no value has changed.
    pub(super) fn make_writable(&mut self) -> Result<()> {
        self.iter_mut().try_for_each(make_writable)
    }
}

/// Replaces a gradient whose buffer others look into by a copy.
fn make_writable(gradient: &mut Tensor) -> Result<()> {
    if gradient.view_mut().is_some() {
        return Ok(());
    }
    let device = gradient.device().clone();
    let ctx = OpContext::backward(OP, &device, device.default_allocator()?);
    let mut copy = ctx.output(gradient.shape(), gradient.dtype())?;
    ctx.compute(Kernel::Copy { input: gradient.view(), out: copy.view_mut() })?;
    *gradient = copy.finish();
    Ok(())
}
