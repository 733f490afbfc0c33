//! Errors of parsing a device profile.

use bfc_core::{did_you_mean, printable};

/// The options of a device profile.
const OPTIONS: [&str; 7] = ["memory", "limit", "threads", "compute", "tflops", "bf16-tflops", "bandwidth"];

/// A text that does not describe a device profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseProfileError {
    /// No profile has this name.
    #[error(
        "unknown device profile {name:?}{}; known profiles: this, cpu, cuda, {known}",
        did_you_mean(name, ["this", "cpu", "cuda"].into_iter().chain(known.split(", "))),
        known = printable(known)
    )]
    Unknown {
        /// The name, or its beginning.
        name: String,
        /// The names of all GPUs with a profile.
        known: String,
    },
    /// A device profile has no option of this name.
    #[error(
        "a device profile has no option {key:?}{}; its options: {}", did_you_mean(key, OPTIONS), OPTIONS.join(", ")
    )]
    UnknownKey {
        /// The option, or its beginning.
        key: String,
    },
    /// The value of an option is invalid.
    #[error("{key}={value:?}: expected {expected}")]
    BadValue {
        /// The option.
        key: &'static str,
        /// The value, or its beginning.
        value: String,
        /// The expected value.
        expected: &'static str,
    },
    /// A GPU has some of the options from which its speed follows, but not all.
    #[error("the speed of {name} requires tflops, as in tflops=82.6, and bandwidth, as in bandwidth=1008", name = printable(name))]
    NoSpeed {
        /// The profile's name.
        name: String,
    },
    /// The amount of memory is missing.
    #[error("{name} requires the amount of memory, as in {name},memory=24GiB")]
    NoMemory {
        /// The profile's name.
        name: &'static str,
    },
}
