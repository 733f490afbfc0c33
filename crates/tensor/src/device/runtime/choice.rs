//! Which device a program computes on where it leaves that open.

use bfc_core::{DeviceId, DeviceKind};

use super::{Care, Runtime};
use crate::device::Device;
use crate::error::{Error, Result};

/// The device that is chosen automatically if it can run every op.
const GPU: DeviceId = DeviceId::new(DeviceKind::Cuda, 0);

/// A device and the reason why it was chosen.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Choice {
    /// The device.
    pub device: Device,
    /// Why this one, in words.
    pub reason: String,
    /// Why `cuda:0` was not taken, where the choice was automatic and it was not: [`Error::NoDevice`] most often.
    pub passed_over: Option<Error>,
}

impl Runtime {
    /// The best device that can run every op.
    ///
    /// # Errors
    /// As [`Runtime::choose`].
    pub fn best(&self) -> Result<Device> {
        self.choose(None).map(|choice| choice.device)
    }

    /// The device asked for, or the best one, with the reason.
    ///
    /// Where none is asked for, it is the one that the variable `HIGHWATER_DEVICE` of the [environment](bfc_core::environment)
    /// names; else `cuda:0`, if it has shown that it computes; else `cpu:0`. A device shows that by a few numbers, which it copies, scales,
    /// sums and multiplies before it is given anything else: the driver, the compiler and the libraries are all found out that way. That
    /// is done once, when it is first asked for, and takes the time in which kernels are compiled or read. Nothing stays on a device
    /// that was not taken.
    ///
    /// ```
    /// use highwater::Runtime;
    /// let choice = Runtime::global().choose(None)?;
    /// println!("{}: {}", choice.device, choice.reason);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Runtime::device`], for a device that was asked for, by code or by the variable. An automatic choice fails only if
    /// the CPU cannot be had.
    pub fn choose(&self, wanted: Option<DeviceId>) -> Result<Choice> {
        let asked_for = |id, by: &str| {
            Ok(Choice { device: self.device(id)?, reason: format!("asked for{by}"), passed_over: None })
        };
        if let Some(id) = wanted {
            return asked_for(id, "");
        }
        if let Some(id) = self.0.wanted {
            return asked_for(id, " by HIGHWATER_DEVICE");
        }
        let reason = "chosen automatically";
        match self.0.gpu.get_or_init(|| self.open(GPU, Care::Checked).map(drop)) {
            Ok(()) => {
                let device = self.device(GPU)?;
                let remark = device.backend().remark().map(|remark| format!("; {remark}"));
                let reason = format!("{reason}{}", remark.unwrap_or_default());
                Ok(Choice { device, reason, passed_over: None })
            }
            Err(error) => {
                let why = match error {
                    Error::NoDevice { reason, .. } => reason.to_string(),
                    error => error.to_string(),
                };
                let passed_over = Some(error.clone());
                Ok(Choice { device: self.cpu()?, reason: format!("{reason}; {GPU}: {why}"), passed_over })
            }
        }
    }
}
