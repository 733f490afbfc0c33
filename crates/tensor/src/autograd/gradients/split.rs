//! The gradients of one backward pass in several hands.

use super::Gradients;
use crate::autograd::Parameter;

impl Gradients {
    /// Takes the gradients of these parameters out, as gradients of their own: for parts of a network that are clipped or stepped each in
    /// its way. Those that have none are passed over; what was not taken stays.
    ///
    /// Two optimisers, for a head that learns and a backbone that follows slowly:
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
    #[must_use = "the gradients taken out are nowhere else"]
    pub fn split_off(&mut self, parameters: &[(String, Parameter)]) -> Self {
        let leaves = parameters.iter().filter_map(|(_, parameter)| parameter.leaf());
        Self { by_leaf: self.by_leaf.split_off(leaves) }
    }
}
