//! Gradients of parameters that an optimizer does not hold.

use std::collections::HashSet;

use super::Gradients;
use crate::autograd::Parameter;
use crate::error::{Error, Result, UnknownGradient, UnknownGradients};
use crate::storage::leaf::LeafId;
use crate::tensor::Tensor;

impl UnknownGradient {
    fn of(gradient: &Tensor) -> Self {
        let allocation = gradient.storage().allocation();
        let tag = allocation.allocator().tag(&allocation.block());
        // The tag's owner is an op; its parent is the module.
        let module = tag.map_or_else(|_| String::new(), |tag| tag.owner.parent().path());
        Self { shape: *gradient.shape(), dtype: gradient.dtype(), module }
    }
}

impl Gradients {
    /// Checks that each gradient of a parameter belongs to one of `parameters`, frozen or not. Gradients of
    /// plain tensors, such as adversarial inputs, always pass. Implementations of `Optimizer::step` call this
    /// before they change anything.
    ///
    /// ```
    /// use highwater::{Device, Error, Tensor};
    /// use highwater::tensor::Parameter;
    /// let device = Device::cpu()?;
    /// let [own, other] = [2.0, 3.0].map(|value| Parameter::new(Tensor::full(&device, [1], value)?));
    /// let (own, other) = (own?, other?);
    /// let gradients = own.tensor().mul(&other.tensor())?.sum_all()?.backward()?;
    /// let mut held = vec![("own".to_owned(), own)];
    /// assert!(matches!(gradients.check_parameters("mine", &held), Err(Error::UnknownParameters { .. })));
    /// held.push(("other".to_owned(), other));
    /// gradients.check_parameters("mine", &held)?;
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnknownParameters`], which counts and describes the unknown gradients.
    pub fn check_parameters(&self, op: &'static str, parameters: &[(String, Parameter)]) -> Result<()> {
        self.check_held(op, parameters.iter().map(|(_, parameter)| parameter))
    }

    /// Checks the gradients as [`check_parameters`](Self::check_parameters) does.
    #[cold]
    pub(crate) fn check_held<'a>(
        &self,
        op: &'static str,
        held: impl Iterator<Item = &'a Parameter>,
    ) -> Result<()> {
        let held: HashSet<u64> = held.filter_map(Parameter::leaf).map(LeafId::identity).collect();
        let is_unknown = |leaf: LeafId| leaf.is_parameter() && !held.contains(&leaf.identity());
        let unknown = self.by_leaf.iter().filter(|(leaf, _)| is_unknown(*leaf));
        let unknown: Vec<_> = unknown.map(|(_, gradient)| UnknownGradient::of(gradient)).collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let gradients = Box::new(UnknownGradients { unknown, total: self.len() });
        Err(Error::UnknownParameters { op, gradients })
    }
}
