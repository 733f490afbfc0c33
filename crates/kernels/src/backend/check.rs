//! The check of every kernel, before a backend runs it.
//!
//! Backends trust operands: a GPU kernel writes as many elements as the operands' shapes say. So this module is the only
//! caller of `Backend::run`, `Backend::upload` and `Backend::download`. It compares shapes, element types, devices and
//! kernel parameters first. A kernel that fails the check writes nothing.
//!
//! ```text
//! an op's computation -> check::kernel, then Backend::run
//! ```
//!
//! Two properties hold without a check here. A layout stays within its buffer, because [`View`] and [`ViewMut`] check
//! that when they take another layout. An output overlaps no input, because a `ViewMut` borrows its buffer exclusively.
//! Each backend compares the values of indices with the size of the axis before it writes.

use super::DeviceRef;
use crate::error::Result;
use crate::families::Kernel;
use crate::operands::{CheckedOperand, MAX_OPERANDS, Operand, Rules};
use crate::shape::DType;
use crate::storage::{View, ViewMut};

/// Proof that the operands of a [`Backend`](super::Backend) call passed the check. Only this module creates one.
#[derive(Debug)]
pub struct Checked(());

#[cfg(test)]
impl Checked {
    /// Skips the check, for tests that call a backend with valid operands.
    pub(crate) const fn by_test() -> Self {
        Self(())
    }
}

/// Checks a kernel and returns the proof for the backend. Also returns the type of all operands, if the fast check found
/// it.
///
/// # Errors
/// [`KernelError::Operand`](crate::error::KernelError::Operand) and errors about kernel parameters.
// Inlined, so that the fast check knows the kernel at compile time.
#[inline(always)]
pub fn kernel(
    device: DeviceRef<'_>,
    op: &'static str,
    kernel: &mut Kernel<'_>,
) -> Result<(Checked, Option<DType>)> {
    let dtype = kernel.fast_check(device.serial);
    if dtype.is_none() {
        check(device, op, kernel)?;
    }
    Ok((Checked(()), dtype))
}

/// Checks a kernel and runs it on a device, outside of an op or as a part of an upcast kernel.
///
/// # Errors
/// As [`kernel`], before the backend writes anything; otherwise as [`Backend::run`](super::Backend::run).
pub fn run(device: DeviceRef<'_>, op: &'static str, kernel: &mut Kernel<'_>) -> Result<()> {
    let (checked, _) = self::kernel(device, op, kernel)?;
    device.backend.run(op, kernel, checked)
}

/// Checks kernels that do not depend on each other, and runs them together.
///
/// # Errors
/// As [`kernel`], before the backend writes anything; otherwise as
/// [`Backend::run_together`](super::Backend::run_together).
pub fn run_together(device: DeviceRef<'_>, op: &'static str, kernels: &mut [Kernel<'_>]) -> Result<()> {
    for kernel in &mut *kernels {
        self::kernel(device, op, kernel)?;
    }
    device.backend.run_together(op, kernels, Checked(()))
}

/// Copies values from the host, in logical order, given as raw bytes of the output's element type.
///
/// # Errors
/// [`KernelError::Operand`](crate::error::KernelError::Operand) for an output of another device,
/// [`KernelError::ElementCount`](crate::error::KernelError::ElementCount) for a wrong number of values; otherwise as [`Backend::upload`](super::Backend::upload).
pub fn upload(device: DeviceRef<'_>, op: &'static str, values: &[u8], mut out: ViewMut<'_>) -> Result<()> {
    let operand = Rules::new(op, device.facts(), &[]).check("out", &Operand::Write(&mut out))?;
    operand.check_bytes(op, values.len())?;
    let backend = device.backend;
    backend.upload(op, values, out.reborrow(), Checked(()))?;
    if !backend.is_dry() {
        out.note_indices(values);
    }
    Ok(())
}

/// Copies values to the host, in logical order, as raw bytes.
///
/// # Errors
/// [`KernelError::Operand`](crate::error::KernelError::Operand) for an input of another device,
/// [`KernelError::ElementCount`](crate::error::KernelError::ElementCount) for a wrong number of values; otherwise as [`Backend::download`](super::Backend::download).
pub fn download(
    device: DeviceRef<'_>,
    op: &'static str,
    mut input: View<'_>,
    values: &mut [u8],
) -> Result<()> {
    let operand = Rules::new(op, device.facts(), &[]).check("input", &Operand::Read(&mut input))?;
    operand.check_bytes(op, values.len())?;
    device.backend.download(op, input, values, Checked(()))
}

/// Checks a kernel without running it.
///
/// # Errors
/// As [`run`], before the backend writes anything.
#[inline(never)]
pub fn check(device: DeviceRef<'_>, op: &'static str, kernel: &mut Kernel<'_>) -> Result<()> {
    let facts = device.facts();
    let rules = Rules::new(op, facts, &[]);
    let mut operands = [CheckedOperand::NONE; MAX_OPERANDS];
    let mut count = 0;
    kernel.operands(&mut |name, operand: Operand<'_, '_>| {
        operands[count] = rules.check(name, &operand)?;
        count += 1;
        Ok(())
    })?;
    kernel.check(&Rules::new(op, facts, &operands[..count]))
}
