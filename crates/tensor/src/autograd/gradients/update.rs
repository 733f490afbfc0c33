//! Updates of parameters by an optimizer. Matches gradients with parameters before any value changes.

use super::Gradients;
use crate::autograd::Parameter;
use crate::error::Result;
use crate::shape::DType;
use crate::tensor::Tensor;

impl Gradients {
    /// Prepares the update of `parameters`, each given once with its path. Implementations of an optimizer
    /// call this before they change anything.
    ///
    /// Finds the gradient of each parameter, and copies each parameter whose buffer other tensors share. The
    /// copy counts toward the module of the path. Returns the element type of each parameter that has a
    /// gradient; `None` for others and for frozen parameters.
    ///
    /// ```
    /// use highwater::alloc::Category;
    /// use highwater::backend::kernels::{OptimizerStep, SgdRule};
    /// use highwater::tensor::{Device, OpContext, Parameter, Tensor};
    /// let device = Device::cpu()?;
    /// let weight = Parameter::new(Tensor::ones(&device, [2])?)?;
    /// let mut gradients = weight.tensor().square()?.sum_all()?.backward()?;
    /// assert!(gradients.prepare_update("plain", [("weight", &weight)])?[0].is_some());
    /// let ctx = OpContext::create("plain", &device, device.default_allocator()?, Category::Parameter);
    /// let gradient = gradients.take_of(&weight).expect("it was found above");
    /// let rule = SgdRule { lr: 0.25, ..SgdRule::DEFAULT };
    /// weight.apply_gradient(gradient.view(), |grad, param| {
    ///     ctx.compute(OptimizerStep::stateless(rule, grad, param))
    /// })?;
    /// assert_eq!(weight.value().to_vec::<f32>()?, [0.5, 0.5]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnknownParameters`](crate::Error::UnknownParameters) if a gradient belongs to another
    /// parameter; [`Error::StaleGradient`](crate::Error::StaleGradient) if a parameter was converted after
    /// its forward pass; [`Error::Allocation`](crate::Error::Allocation) if an allocation fails. No value has
    /// changed then.
    pub fn prepare_update<'a>(
        &self,
        op: &'static str,
        parameters: impl IntoIterator<Item = (&'a str, &'a Parameter)>,
    ) -> Result<Vec<Option<DType>>> {
        let parameters: Vec<_> = parameters.into_iter().collect();
        let mut dtypes = Vec::with_capacity(parameters.len());
        let mut cursor = self.cursor();
        for &(path, parameter) in &parameters {
            let ready = parameter.prepare_update(op, path, self, &mut cursor)?;
            dtypes.push(ready.map(|(_, dtype)| dtype));
        }
        // Each parameter has its own leaf, and each leaf at most one gradient. So equal counts mean that no
        // gradient is unknown.
        if dtypes.iter().flatten().count() != self.len() {
            self.check_held(op, parameters.iter().map(|(_, parameter)| *parameter))?;
        }
        Ok(dtypes)
    }

    /// Removes and returns the gradient of a parameter. It may be changed and [inserted](Self::insert) again.
    pub fn take_of(&mut self, parameter: &Parameter) -> Option<Tensor> {
        self.by_leaf.remove(parameter.leaf()?)
    }
}
