//! Why a text names no device profile.

/// The text names no device profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseProfileError {
    /// There is no profile of that name.
    #[error("there is no device profile {name:?}; there are this, cpu, cuda, {known}")]
    Unknown {
        /// The name, or its beginning.
        name: String,
        /// The names of all GPUs with a profile.
        known: String,
    },
    /// Nothing of that name can be said of a device.
    #[error("{key:?} cannot be said of a device profile; what can: memory, limit, threads, compute")]
    UnknownKey {
        /// What was to be said, or its beginning.
        key: String,
    },
    /// What was said of a device makes no sense.
    #[error("{key}={value:?}: expected {expected}")]
    BadValue {
        /// Of what it was said.
        key: &'static str,
        /// What was said, or its beginning.
        value: String,
        /// What would make sense.
        expected: &'static str,
    },
    /// How much memory the device has was not said.
    #[error("{name} needs its memory, as in {name},memory=24GiB")]
    NoMemory {
        /// The profile's name.
        name: &'static str,
    },
}
