//! Versions: of the driver and of a device's instruction set.

use std::fmt;

/// NVIDIA's compute capability: the instructions that a device supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ComputeCapability {
    /// The major version.
    pub major: u32,
    /// The minor version.
    pub minor: u32,
}

impl fmt::Display for ComputeCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The newest CUDA version that the installed driver supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DriverVersion {
    /// As in CUDA 13.
    pub major: u32,
    /// As in CUDA 12.8.
    pub minor: u32,
}

impl DriverVersion {
    /// The oldest version with all functions that this crate calls.
    pub const OLDEST: Self = Self { major: 12, minor: 0 };

    /// Decodes the driver's version number, 1000 × major + 10 × minor.
    pub(super) const fn from_number(number: u32) -> Self {
        Self { major: number / 1000, minor: number % 1000 / 10 }
    }
}

impl fmt::Display for DriverVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_version_number_splits_into_major_and_minor() {
        assert_eq!(DriverVersion::from_number(12_080), DriverVersion { major: 12, minor: 8 });
        assert_eq!(DriverVersion::from_number(13_000).to_string(), "13.0");
    }
}
