//! Divides the gradients of one backward pass among several optimizers.

use super::Gradients;
use crate::autograd::Parameter;

impl Gradients {
    /// Moves the gradients of these parameters to another [`Gradients`], so that parts of a network are
    /// clipped or stepped separately. Skips parameters without a gradient. The other gradients stay.
    ///
    /// Two optimizers, for a head and a backbone with different learning rates:
    ///
    /// ```
    /// use highwater::{Device, Rng, Tensor};
    /// use highwater::nn::{Linear, Module, Relu, Sequential};
    /// use highwater::optim::{AdamW, Optimizer};
    /// let (device, rng) = (Device::cpu()?, Rng::new(0));
    /// let network = Sequential::new()
    ///     .with("backbone", Linear::new(&device, 4, 8, &rng)?)
    ///     .with("relu", Relu)
    ///     .with("head", Linear::new(&device, 8, 2, &rng)?);
    /// let (head, backbone): (Vec<_>, Vec<_>) =
    ///     network.parameters().into_iter().partition(|(path, _)| path.starts_with("head."));
    /// let mut fast = AdamW::new(head.clone(), 1e-2)?;
    /// let mut slow = AdamW::new(backbone, 1e-4)?;
    ///
    /// let loss = network.forward(&Tensor::ones(&device, [3, 4])?)?.square()?.mean_all()?;
    /// let mut gradients = loss.backward()?;
    /// fast.step(gradients.split_off(&head))?;
    /// slow.step(gradients)?;
    /// # Ok::<(), highwater::Error>(())
    /// ```
    #[must_use = "the result owns the gradients"]
    pub fn split_off(&mut self, parameters: &[(String, Parameter)]) -> Self {
        let leaves = parameters.iter().filter_map(|(_, parameter)| parameter.leaf());
        let by_leaf = self.by_leaf.split_off(leaves);
        let origins = self.origins.split_off(by_leaf.iter().map(|(leaf, _)| leaf));
        Self { by_leaf, origins }
    }
}
