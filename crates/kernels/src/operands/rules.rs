//! Checked operands, and the rules that several kernels share.

use bfc_core::DeviceId;

use crate::error::{KernelError, OperandError, OperandFault, Result};
use crate::layout::Layout;
use crate::operands::Operand;
use crate::rules::DeviceRules;
use crate::shape::{DType, Shape};
use crate::workspace::Workspace;

/// The rules that several kernels share, for one kernel.
#[derive(Clone, Copy)]
pub(crate) struct Rules<'d> {
    /// The op's name, for errors.
    pub(crate) op: &'static str,
    /// The device that all operands must be on, for errors.
    device: DeviceId,
    /// The number by which buffers identify the device.
    serial: u32,
    /// The facts of the device that workspaces depend on.
    facts: DeviceRules,
    /// All operands of the kernel, in order.
    pub(crate) operands: &'d [CheckedOperand<'d>],
}

/// An operand that is on the kernel's device, in a layout that the kernel accepts.
#[derive(Clone, Copy)]
pub(crate) struct CheckedOperand<'a> {
    name: &'static str,
    dtype: DType,
    layout: &'a Layout,
}

impl<'a> CheckedOperand<'a> {
    pub(crate) const NONE: Self = Self::new("", DType::U8, &Layout::SCALAR);

    pub(crate) const fn new(name: &'static str, dtype: DType, layout: &'a Layout) -> Self {
        Self { name, dtype, layout }
    }

    pub(crate) const fn dtype(&self) -> DType {
        self.dtype
    }

    pub(crate) const fn layout(&self) -> &'a Layout {
        self.layout
    }

    pub(crate) const fn shape(&self) -> &'a Shape {
        self.layout.shape()
    }

    pub(crate) fn dims(&self) -> &'a [usize] {
        self.layout.shape().dims()
    }

    pub(crate) fn elements(&self) -> usize {
        self.layout.shape().elements()
    }

    /// Returns the operand with another name.
    const fn named(self, name: &'static str) -> Self {
        Self { name, ..self }
    }

    /// Checks that a host buffer of `bytes` bytes has as many elements as the operand.
    pub(crate) fn check_bytes(&self, op: &'static str, bytes: usize) -> Result<()> {
        let (shape, size) = (*self.shape(), self.dtype.size());
        if shape.checked_elements().and_then(|elements| elements.checked_mul(size)) == Some(bytes) {
            return Ok(());
        }
        Err(KernelError::ElementCount { op, elements: bytes / size, shape })
    }
}

impl<'d> Rules<'d> {
    pub(crate) const fn new(
        op: &'static str,
        (device, serial, facts): (DeviceId, u32, DeviceRules),
        operands: &'d [CheckedOperand<'d>],
    ) -> Self {
        Self { op, device, serial, facts, operands }
    }

    /// Checks that an operand is on the device and has a layout that fits its access.
    #[inline]
    pub(crate) fn check<'a>(
        &self,
        name: &'static str,
        operand: &Operand<'_, 'a>,
    ) -> Result<CheckedOperand<'a>> {
        let checked = CheckedOperand::new(name, operand.dtype(), operand.layout());
        if operand.storage().device() != self.serial {
            return Err(self.wrong_device(&checked));
        }
        if !operand.has_valid_layout() {
            return Err(self.fault(&checked, OperandFault::Strided));
        }
        Ok(checked)
    }

    /// Checks that all operands have one shape.
    pub(crate) fn same_shapes(&self, operands: &[CheckedOperand<'_>]) -> Result<()> {
        let Some((first, others)) = operands.split_first() else { return Ok(()) };
        others.iter().try_for_each(|operand| self.same_shape(*operand, *first))
    }

    /// Checks that two operands have one shape.
    pub(crate) fn same_shape(&self, operand: CheckedOperand<'_>, other: CheckedOperand<'_>) -> Result<()> {
        if operand.shape() == other.shape() {
            return Ok(());
        }
        Err(self.mismatch(&operand, &other, "their shapes must be equal"))
    }

    /// Checks that an operand has these sizes, which follow from another operand.
    pub(crate) fn sized(
        &self,
        operand: CheckedOperand<'_>,
        dims: &[usize],
        other: CheckedOperand<'_>,
        rule: &'static str,
    ) -> Result<()> {
        if operand.dims() == dims { Ok(()) } else { Err(self.mismatch(&operand, &other, rule)) }
    }

    /// Checks that two operands have one element type.
    pub(crate) fn same_type(&self, operand: CheckedOperand<'_>, other: CheckedOperand<'_>) -> Result<()> {
        self.typed(operand, other.dtype)
    }

    /// Checks that an operand has this element type.
    pub(crate) fn typed(&self, operand: CheckedOperand<'_>, expected: DType) -> Result<()> {
        if operand.dtype == expected { Ok(()) } else { Err(self.mistyped(&operand, expected)) }
    }

    /// Checks that operands have one element type, or mix one 16-bit float type with f32, the type of its computation.
    pub(crate) fn same_computed(&self, operands: &[CheckedOperand<'_>]) -> Result<()> {
        let Some((first, others)) = operands.split_first() else { return Ok(()) };
        if others.iter().all(|operand| operand.dtype == first.dtype) {
            return Ok(());
        }
        let half = operands.iter().map(CheckedOperand::dtype).find(|dtype| dtype.is_half());
        let expected = half.unwrap_or(first.dtype);
        let fits =
            |operand: &&CheckedOperand<'_>| [expected, expected.computed_as()].contains(&operand.dtype);
        match operands.iter().find(|operand| !fits(operand)) {
            None => Ok(()),
            Some(operand) => Err(self.mistyped(operand, expected)),
        }
    }

    /// Checks that an operand has the element type of another operand, or the type of its computation.
    pub(crate) fn computed_like(&self, operand: CheckedOperand<'_>, other: CheckedOperand<'_>) -> Result<()> {
        if operand.dtype == other.dtype { Ok(()) } else { self.typed(operand, other.dtype.computed_as()) }
    }

    /// Checks that the axis exists.
    pub(crate) fn axis(&self, axis: usize, of: CheckedOperand<'_>) -> Result<()> {
        if axis < of.shape().rank() {
            return Ok(());
        }
        let axis = isize::try_from(axis).unwrap_or(isize::MAX);
        Err(KernelError::AxisOutOfRange { op: self.op, axis, shape: *of.shape() })
    }

    /// Checks that there is a flag for each axis.
    pub(crate) fn flags(&self, axes: &[bool], of: CheckedOperand<'_>) -> Result<()> {
        if axes.len() == of.shape().rank() { Ok(()) } else { Err(self.bad_flags(axes, &of)) }
    }

    /// Checks a kernel whose operands have one shape, and one type in which it computes.
    pub(crate) fn elementwise(&self) -> Result<()> {
        self.same_shapes(self.operands)?;
        self.same_computed(self.operands)
    }

    /// Checks that a workspace is as large as the kernel requires.
    pub(crate) fn workspace(&self, workspace: Option<CheckedOperand<'_>>, of: &impl Workspace) -> Result<()> {
        let required = of.bytes(self.facts);
        let Some(workspace) = workspace else {
            let missing = CheckedOperand::NONE.named("workspace");
            let fault = OperandFault::Workspace { bytes: 0, required };
            return if required == 0 { Ok(()) } else { Err(self.fault(&missing, fault)) };
        };
        self.typed(workspace, DType::U8)?;
        // Elements of U8 are bytes.
        let bytes = workspace.elements();
        if bytes >= required {
            return Ok(());
        }
        Err(self.fault(&workspace, OperandFault::Workspace { bytes, required }))
    }

    /// Checks that an optional operand is present if and only if it is required. Errors show the shape of `other`.
    pub(crate) fn present(
        &self,
        name: &'static str,
        operand: Option<CheckedOperand<'_>>,
        required: bool,
        other: CheckedOperand<'_>,
    ) -> Result<()> {
        if required == operand.is_some() {
            return Ok(());
        }
        Err(self.fault(&other.named(name), OperandFault::Presence { required }))
    }

    pub(crate) fn fault(&self, operand: &CheckedOperand<'_>, fault: OperandFault) -> KernelError {
        let (op, operand, shape) = (self.op, operand.name, *operand.shape());
        KernelError::Operand(Box::new(OperandError { op, operand, shape, fault }))
    }

    pub(crate) fn mismatch(
        &self,
        operand: &CheckedOperand<'_>,
        other: &CheckedOperand<'_>,
        rule: &'static str,
    ) -> KernelError {
        let (other, other_shape) = (other.name, *other.shape());
        self.fault(operand, OperandFault::Shape { other, other_shape, rule })
    }

    pub(crate) fn mistyped(&self, operand: &CheckedOperand<'_>, expected: DType) -> KernelError {
        self.fault(operand, OperandFault::DType { dtype: operand.dtype, expected })
    }

    fn wrong_device(&self, operand: &CheckedOperand<'_>) -> KernelError {
        self.fault(operand, OperandFault::Device { device: self.device.to_string() })
    }

    fn bad_flags(&self, axes: &[bool], of: &CheckedOperand<'_>) -> KernelError {
        let got = format!("{} for `{}` of shape {}", axes.len(), of.name, of.shape());
        KernelError::BadArgument { op: self.op, argument: "axes", expected: "one flag for each axis", got }
    }
}
