//! The permanent failure of a device.

use std::sync::OnceLock;

use crate::source::error::SourceError;

/// Stores the first permanent failure of a device, for implementations of [`Driver`](super::Driver).
///
/// ```
/// use bfc_core::{Poison, SourceError};
/// let poison = Poison::default();
/// assert_eq!(poison.check(), Ok(()));
/// let error = poison.strike("sim:0", "launch", "illegal address".to_owned());
/// assert_eq!(error.to_string(), "sim:0 is lost to this process: launch failed with illegal address");
/// // Whatever fails afterwards is a consequence.
/// assert_eq!(poison.strike("sim:0", "free", "illegal address".to_owned()), error);
/// assert_eq!(poison.check(), Err(error));
/// ```
#[derive(Debug, Default)]
pub struct Poison(OnceLock<SourceError>);

impl Poison {
    /// Records a permanent failure. Returns the error of the first one.
    pub fn strike(&self, device: &str, call: &'static str, reason: String) -> SourceError {
        self.0.get_or_init(|| SourceError::Poisoned { device: device.to_owned(), call, reason }).clone()
    }

    /// Fails after a permanent failure. Otherwise costs one load.
    ///
    /// # Errors
    /// Fails with the first recorded failure.
    #[inline]
    pub fn check(&self) -> Result<(), SourceError> {
        self.0.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Returns the first recorded failure.
    #[must_use]
    pub fn get(&self) -> Option<SourceError> {
        self.0.get().cloned()
    }
}
