//! The choice of a device when the program does not name one.

use bfc_core::{DeviceId, DeviceKind};

use super::{OpenCheck, Runtime};
use crate::device::Device;
use crate::error::{Error, Result};

/// The device that is chosen automatically if it passes its self-check.
const GPU: DeviceId = DeviceId::new(DeviceKind::Cuda, 0);

/// A device and the reason for its choice.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Choice {
    /// The device.
    pub device: Device,
    /// The reason, as text.
    pub reason: String,
    /// The error of `cuda:0` if an automatic choice rejected it, usually [`Error::NoDevice`].
    pub gpu_error: Option<Error>,
}

impl Runtime {
    /// Returns the best usable device.
    ///
    /// # Errors
    /// As [`Runtime::choose`].
    pub fn best(&self) -> Result<Device> {
        self.choose(None).map(|choice| choice.device)
    }

    /// Returns the requested device or the best one, with the reason.
    ///
    /// Without a request, the order is: the device named by the variable `HIGHWATER_DEVICE` of the
    /// [environment](bfc_core::environment), `cuda:0` if it passes its self-check, `cpu:0`.
    ///
    /// The self-check copies, scales, sums and multiplies a few numbers, which verifies the driver, the
    /// compiler and the libraries. It runs once, on the first request. It takes the time to compile or load
    /// the kernels. A rejected device keeps no resources.
    ///
    /// ```
    /// use highwater::Runtime;
    /// let choice = Runtime::global().choose(None)?;
    /// println!("{}: {}", choice.device, choice.reason);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Runtime::device`], for a device that the code or the variable requests. An automatic choice fails
    /// only if the CPU is unavailable.
    pub fn choose(&self, requested: Option<DeviceId>) -> Result<Choice> {
        let by_request = |id, by: &str| {
            Ok(Choice { device: self.device(id)?, reason: format!("requested{by}"), gpu_error: None })
        };
        if let Some(id) = requested {
            return by_request(id, "");
        }
        if let Some(id) = self.0.environment_device {
            return by_request(id, " by HIGHWATER_DEVICE");
        }
        let reason = "chosen automatically";
        match self.0.gpu.get_or_init(|| self.open(GPU, OpenCheck::SelfCheck).map(drop)) {
            Ok(()) => {
                let device = self.device(GPU)?;
                let remark = device.backend().remark().map(|remark| format!("; {remark}"));
                let reason = format!("{reason}{}", remark.unwrap_or_default());
                Ok(Choice { device, reason, gpu_error: None })
            }
            Err(error) => {
                let why = match error {
                    Error::NoDevice { reason, .. } => reason.to_string(),
                    error => error.to_string(),
                };
                let gpu_error = Some(error.clone());
                Ok(Choice { device: self.cpu()?, reason: format!("{reason}; {GPU}: {why}"), gpu_error })
            }
        }
    }
}
