//! The estimated time of kernels, by what limits it.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};

use serde::{Deserialize, Serialize};

/// The estimated time of the kernels of a dry run.
///
/// The time of a kernel consists of a fixed part (`launch_seconds`), and of the longer of its computation and its memory
/// traffic. So `seconds` is the sum of the three parts.
///
/// ```
/// use highwater_kernels::step_time::{Limit, StepTime};
/// let mut time = StepTime::default();
/// (time.seconds, time.memory_seconds, time.launch_seconds) = (0.0123, 0.0113, 0.001);
/// assert_eq!((time.limit(), time.to_string()), (Limit::Memory, "12.3 ms (bandwidth)".to_owned()));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StepTime {
    /// The estimated time in seconds.
    pub seconds: f64,
    /// The time of kernels that computation limits.
    pub compute_seconds: f64,
    /// The time of kernels that memory traffic limits, and of uploads.
    pub memory_seconds: f64,
    /// The fixed time of kernels: calls, allocations and launches.
    pub launch_seconds: f64,
    /// The multiply-adds of products, convolutions, attention and recurrent layers.
    pub multiply_adds: u64,
    /// The bytes that kernels read and write.
    pub bytes: u64,
    /// The number of kernels.
    pub kernels: u64,
}

/// The resource that takes the largest share of a step's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Limit {
    /// Arithmetic.
    Compute,
    /// Memory bandwidth.
    Memory,
    /// The fixed time of kernels: the step has many small ones.
    Launch,
}

impl StepTime {
    /// Returns the resource that takes the largest share of the time.
    #[must_use]
    pub fn limit(&self) -> Limit {
        let Self { compute_seconds, memory_seconds, launch_seconds, .. } = *self;
        if launch_seconds > compute_seconds.max(memory_seconds) {
            Limit::Launch
        } else if memory_seconds > compute_seconds {
            Limit::Memory
        } else {
            Limit::Compute
        }
    }
}

impl Add for StepTime {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            seconds: self.seconds + other.seconds,
            compute_seconds: self.compute_seconds + other.compute_seconds,
            memory_seconds: self.memory_seconds + other.memory_seconds,
            launch_seconds: self.launch_seconds + other.launch_seconds,
            multiply_adds: self.multiply_adds.saturating_add(other.multiply_adds),
            bytes: self.bytes.saturating_add(other.bytes),
            kernels: self.kernels.saturating_add(other.kernels),
        }
    }
}

impl AddAssign for StepTime {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sum for StepTime {
    fn sum<I: Iterator<Item = Self>>(times: I) -> Self {
        times.fold(Self::default(), Add::add)
    }
}

/// The time between two readings of one device. Counts do not fall below 0.
impl Sub for StepTime {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            seconds: self.seconds - earlier.seconds,
            compute_seconds: self.compute_seconds - earlier.compute_seconds,
            memory_seconds: self.memory_seconds - earlier.memory_seconds,
            launch_seconds: self.launch_seconds - earlier.launch_seconds,
            multiply_adds: self.multiply_adds.saturating_sub(earlier.multiply_adds),
            bytes: self.bytes.saturating_sub(earlier.bytes),
            kernels: self.kernels.saturating_sub(earlier.kernels),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Compute => "compute",
            Self::Memory => "bandwidth",
            Self::Launch => "launch",
        })
    }
}

impl fmt::Display for StepTime {
    /// Prints the time and the limit, as in `12.3 ms (compute)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, unit) = match self.seconds {
            seconds if seconds >= 1.0 => (seconds, "s"),
            seconds if seconds >= 1e-3 => (seconds * 1e3, "ms"),
            seconds => (seconds * 1e6, "µs"),
        };
        let digits = usize::from(value < 100.0);
        write!(f, "{value:.digits$} {unit} ({})", self.limit())
    }
}
