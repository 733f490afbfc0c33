//! Names of devices.

use std::fmt;
use std::str::FromStr;

/// The kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum DeviceKind {
    /// The host's processors.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
    /// A dry device: computes and stores nothing, and predicts the memory of a run.
    Dry,
    /// A [simulated device](crate::sim), for tests.
    Sim,
}

impl DeviceKind {
    pub(crate) const ALL: [Self; 4] = [Self::Cpu, Self::Cuda, Self::Dry, Self::Sim];

    /// Returns the kind's name in device names.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
            Self::Dry => "dry",
            Self::Sim => "sim",
        }
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The name of a device, such as `cuda:0`.
///
/// ```
/// use bfc_core::{DeviceId, DeviceKind};
/// assert_eq!("cuda:1".parse(), Ok(DeviceId::new(DeviceKind::Cuda, 1)));
/// assert_eq!("cpu".parse(), Ok(DeviceId::CPU));
/// assert_eq!(DeviceId::CPU.to_string(), "cpu:0");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId {
    /// The kind of device.
    pub kind: DeviceKind,
    /// The index among the devices of its kind, from 0.
    pub ordinal: u32,
}

impl DeviceId {
    /// The host's processors, which every process has.
    pub const CPU: Self = Self::new(DeviceKind::Cpu, 0);

    /// Creates the name of the device of this kind and index.
    #[must_use]
    pub const fn new(kind: DeviceKind, ordinal: u32) -> Self {
        Self { kind, ordinal }
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}:{}", self.kind, self.ordinal))
    }
}

/// A text that names no device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a device: expected cpu, cuda, dry or sim, with or without a number, as in cuda:0")]
#[non_exhaustive]
pub struct ParseDeviceError {
    /// The text.
    pub text: String,
}

impl FromStr for DeviceId {
    type Err = ParseDeviceError;

    /// Parses a kind and an index, which is 0 by default.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseDeviceError { text: text.chars().take(64).collect() };
        let (name, number) = text.split_once(':').unwrap_or((text, "0"));
        let kind = DeviceKind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(error)?;
        // Checked by hand: `parse` also accepts a sign.
        if !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(error());
        }
        number.parse().map(|ordinal| Self { kind, ordinal }).map_err(|_| error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for kind in DeviceKind::ALL {
            for ordinal in [0, 7, u32::MAX] {
                let device = DeviceId { kind, ordinal };
                assert_eq!(device.to_string().parse(), Ok(device));
            }
            assert_eq!(kind.name().parse(), Ok(DeviceId { kind, ordinal: 0 }));
        }
    }

    #[test]
    fn what_is_not_a_name_is_refused_with_what_was_given() {
        for bad in
            ["", "gpu:0", "CPU:0", "cpu:", "cpu:x", "cpu:+1", "cpu:-1", "cpu:4294967296", "cpu:0:0", " cpu"]
        {
            assert_eq!(bad.parse::<DeviceId>(), Err(ParseDeviceError { text: bad.to_owned() }));
        }
        let error = "gpu:0".parse::<DeviceId>().unwrap_err();
        assert!(error.to_string().starts_with("\"gpu:0\" is not a device"));
    }
}
