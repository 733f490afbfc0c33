//! Partial restore of a module from a checkpoint.

use std::mem::take;

use highwater_tensor::{Result, error::Mismatch};

use super::{Checkpoint, expected};
use crate::io::mismatch;
use crate::modules::Module;

/// The differences between a module and a checkpoint: see [`Checkpoint::restore_partly`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartlyRestored {
    /// Parameters of the module that are not in the checkpoint. They did not change.
    pub missing: Vec<String>,
    /// Parameters of the checkpoint that are not in the module. They were ignored.
    pub unexpected: Vec<String>,
}

impl Checkpoint {
    /// Restores the parameters that the module and the checkpoint share by name, as PyTorch's
    /// `load_state_dict(strict=False)`. Returns the names that only one of them has.
    ///
    /// A network that was trained on ten classes continues with two:
    ///
    /// ```
    /// use highwater::{Device, Result, Rng};
    /// use highwater::io::Checkpoint;
    /// use highwater::nn::{Linear, Module, Relu, Sequential};
    /// let (device, rng) = (Device::cpu()?, Rng::new(0));
    /// let network = |classes| -> Result<Sequential> {
    ///     let fc = Linear::new(&device, 8, 16, &rng)?;
    ///     let head = Linear::new(&device, 16, classes, &rng)?;
    ///     Ok(Sequential::new().with("fc", fc).with("relu", Relu).with("head", head))
    /// };
    /// let learnt = Checkpoint::of(&network(10)?)?;
    /// let network = network(2)?;
    /// // The head is of another shape, which is an error unless it is left out.
    /// let without_head = learnt.renamed(|name| (!name.starts_with("head.")).then(|| name.to_owned()))?;
    /// let restored = without_head.restore_partly(&network)?;
    /// assert_eq!(restored.missing, ["head.bias", "head.weight"]);
    /// assert!(restored.unexpected.is_empty());
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Mismatch`](highwater_tensor::Error::Mismatch) names parameters of another shape or element type, and
    /// all parameters if the two share none; otherwise see [`restore`](Self::restore).
    pub fn restore_partly(&self, module: &(impl Module + ?Sized)) -> Result<PartlyRestored> {
        let expected = expected(module);
        let mut mismatch = mismatch::between(Mismatch::PARAMETERS, &expected, &self.parameters);
        let nothing_in_common = mismatch.missing.len() == expected.len() && !expected.is_empty();
        if nothing_in_common {
            mismatch.skipped.clone_from(&self.skipped);
            return Err(Box::new(mismatch).into());
        }
        let (missing, unexpected) = (take(&mut mismatch.missing), take(&mut mismatch.unexpected));
        if !mismatch.different.is_empty() {
            return Err(Box::new(mismatch).into());
        }
        self.apply(module)?;
        Ok(PartlyRestored { missing, unexpected })
    }
}
