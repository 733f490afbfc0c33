//! A device that failed for good.

use std::sync::OnceLock;

use crate::source::error::SourceError;

/// Remembers the first failure that a device does not recover from, for implementations of [`Driver`](super::Driver).
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
    /// Notes such a failure, and returns the error to tell: that of the first one.
    pub fn strike(&self, device: &str, call: &'static str, reason: String) -> SourceError {
        self.0.get_or_init(|| SourceError::Poisoned { device: device.to_owned(), call, reason }).clone()
    }

    /// Fails once the device has failed. One load as long as it has not.
    ///
    /// # Errors
    /// The failure noted first.
    #[inline]
    pub fn check(&self) -> Result<(), SourceError> {
        self.0.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// The failure noted first.
    #[must_use]
    pub fn get(&self) -> Option<SourceError> {
        self.0.get().cloned()
    }
}
