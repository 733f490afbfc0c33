//! The parameters of an optimizer, and whether there must be any.

use highwater_tensor::{Error, Parameter, Result};

/// The parameters of an optimizer with their paths. A list of parameters converts to a group, which must not be empty.
///
/// [`Groups::with`](super::Groups::with) and `World::sharded` call a closure with a [part](Self::part) of all parameters,
/// which may be empty. The closure only passes it on:
///
/// ```
/// use highwater::nn::Parameter;
/// use highwater::optim::{AdamW, Groups};
/// let biases: Vec<(String, Parameter)> = Vec::new();
/// assert!(AdamW::new(biases.clone(), 1e-3).is_err());
/// assert!(Groups::new().with(biases, |group| AdamW::new(group, 1e-3)).is_ok());
/// ```
#[derive(Clone, Debug)]
pub struct ParameterGroup {
    parameters: Vec<(String, Parameter)>,
    may_be_empty: bool,
}

impl ParameterGroup {
    /// Creates a group that may be empty, because other optimizers update the other parameters of a model.
    #[must_use]
    pub const fn part(parameters: Vec<(String, Parameter)>) -> Self {
        Self { parameters, may_be_empty: true }
    }

    /// Returns the parameters.
    #[must_use]
    pub fn parameters(&self) -> &[(String, Parameter)] {
        &self.parameters
    }

    /// Returns the parameters for an optimizer.
    ///
    /// # Errors
    /// [`Error::BadArgument`] without parameters, unless the group may be empty.
    pub(super) fn into_parameters(self, op: &'static str) -> Result<Vec<(String, Parameter)>> {
        if self.parameters.is_empty() && !self.may_be_empty {
            let (argument, expected) = ("parameters", "at least one");
            return Err(Error::BadArgument { op, argument, expected, got: "none".to_owned() });
        }
        Ok(self.parameters)
    }
}

impl From<Vec<(String, Parameter)>> for ParameterGroup {
    fn from(parameters: Vec<(String, Parameter)>) -> Self {
        Self { parameters, may_be_empty: false }
    }
}
