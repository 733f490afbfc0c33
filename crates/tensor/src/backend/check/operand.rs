//! Checked operands, and the rules that several kernels share.

use crate::backend::operands::{MAX_OPERANDS, Operand};
use crate::backend::{DeviceRef, Precision, Workspace};
use crate::error::{Error, OperandError, OperandFault, Result};
use crate::layout::Layout;
use crate::shape::{DType, Shape};

/// The shared rules: the device that all operands must be on, and the op's name for errors.
#[derive(Clone, Copy)]
pub(super) struct Rules<'d> {
    pub(super) op: &'static str,
    device: DeviceRef<'d>,
}

/// An operand that is on the kernel's device, in a layout that the kernel accepts.
#[derive(Clone, Copy)]
pub(super) struct CheckedOperand<'a> {
    name: &'static str,
    dtype: DType,
    layout: &'a Layout,
}

impl<'a> CheckedOperand<'a> {
    pub(super) const NONE: Self = Self { name: "", dtype: DType::U8, layout: &Layout::SCALAR };

    pub(super) const fn dtype(&self) -> DType {
        self.dtype
    }

    pub(super) const fn layout(&self) -> &'a Layout {
        self.layout
    }

    pub(super) const fn shape(&self) -> &'a Shape {
        self.layout.shape()
    }

    pub(super) fn dims(&self) -> &'a [usize] {
        self.layout.shape().dims()
    }

    pub(super) fn elements(&self) -> usize {
        self.layout.shape().elements()
    }

    /// Returns the operand with another name.
    pub(super) const fn named(self, name: &'static str) -> Self {
        Self { name, ..self }
    }

    /// Checks that a host buffer of `bytes` bytes has as many elements as the operand.
    pub(super) fn check_bytes(&self, op: &'static str, bytes: usize) -> Result<()> {
        let (shape, size) = (*self.shape(), self.dtype.size());
        if shape.checked_elements().and_then(|elements| elements.checked_mul(size)) == Some(bytes) {
            return Ok(());
        }
        Err(Error::ElementCount { op, elements: bytes / size, shape })
    }
}

/// The operands of one kernel, in the order of [`Kernel::operands`](crate::backend::Kernel::operands).
pub(super) struct CheckedOperands<'a> {
    operands: [CheckedOperand<'a>; MAX_OPERANDS],
    count: usize,
}

impl<'a> CheckedOperands<'a> {
    pub(super) const fn new() -> Self {
        Self { operands: [CheckedOperand::NONE; MAX_OPERANDS], count: 0 }
    }

    pub(super) const fn push(&mut self, operand: CheckedOperand<'a>) {
        self.operands[self.count] = operand;
        self.count += 1;
    }

    pub(super) fn all(&self) -> &[CheckedOperand<'a>] {
        &self.operands[..self.count]
    }

    /// The first `N` operands, for kernels that always have at least `N`.
    pub(super) fn first<const N: usize>(&self) -> [CheckedOperand<'a>; N] {
        std::array::from_fn(|place| self.operands[place])
    }

    /// The last operand.
    pub(super) const fn last(&self) -> CheckedOperand<'a> {
        self.operands[self.count - 1]
    }

    /// The operand with this name, if present.
    pub(super) fn named(&self, name: &str) -> Option<CheckedOperand<'a>> {
        self.all().iter().find(|operand| operand.name == name).copied()
    }

    /// The operand with this name, which the kernel always has.
    pub(super) fn required(&self, name: &'static str) -> CheckedOperand<'a> {
        // The fallback fails every rule, so that the first test detects a wrong name.
        self.named(name).unwrap_or(CheckedOperand::NONE.named(name))
    }
}

impl<'d> Rules<'d> {
    pub(super) const fn new(op: &'static str, device: DeviceRef<'d>) -> Self {
        Self { op, device }
    }

    /// Checks that an operand is on the device and has a layout that fits its access.
    #[inline]
    pub(super) fn check<'a>(
        &self,
        name: &'static str,
        operand: &Operand<'_, 'a>,
    ) -> Result<CheckedOperand<'a>> {
        let checked = CheckedOperand { name, dtype: operand.dtype(), layout: operand.layout() };
        if operand.storage().device() != self.device.serial {
            return Err(self.wrong_device(&checked));
        }
        if !operand.has_valid_layout() {
            return Err(self.fault(&checked, OperandFault::Strided));
        }
        Ok(checked)
    }

    /// Checks that all operands have one shape.
    pub(super) fn same_shapes(&self, operands: &[CheckedOperand<'_>]) -> Result<()> {
        let Some((first, others)) = operands.split_first() else { return Ok(()) };
        others.iter().try_for_each(|operand| self.same_shape(*operand, *first))
    }

    /// Checks that two operands have one shape.
    pub(super) fn same_shape(&self, operand: CheckedOperand<'_>, other: CheckedOperand<'_>) -> Result<()> {
        if operand.shape() == other.shape() {
            return Ok(());
        }
        Err(self.misfit(&operand, &other, "their shapes must be equal"))
    }

    /// Checks that an operand has these sizes, which follow from another operand.
    pub(super) fn sized(
        &self,
        operand: CheckedOperand<'_>,
        dims: &[usize],
        other: CheckedOperand<'_>,
        rule: &'static str,
    ) -> Result<()> {
        if operand.dims() == dims { Ok(()) } else { Err(self.misfit(&operand, &other, rule)) }
    }

    /// Checks that two operands have one element type.
    pub(super) fn same_type(&self, operand: CheckedOperand<'_>, other: CheckedOperand<'_>) -> Result<()> {
        self.typed(operand, other.dtype)
    }

    /// Checks that an operand has this element type.
    pub(super) fn typed(&self, operand: CheckedOperand<'_>, expected: DType) -> Result<()> {
        if operand.dtype == expected { Ok(()) } else { Err(self.mistyped(&operand, expected)) }
    }

    /// Checks that the products of a kernel with this output support the precision.
    pub(super) fn precise(&self, precision: Precision, out: CheckedOperand<'_>) -> Result<()> {
        match precision {
            Precision::Full => Ok(()),
            Precision::BF16 => self.typed(out, DType::F32),
        }
    }

    /// Checks that operands have one element type, or mix one 16-bit float type with f32, the type of its computation.
    pub(super) fn same_computed(&self, operands: &[CheckedOperand<'_>]) -> Result<()> {
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
    pub(super) fn computed_like(&self, operand: CheckedOperand<'_>, other: CheckedOperand<'_>) -> Result<()> {
        if operand.dtype == other.dtype { Ok(()) } else { self.typed(operand, other.dtype.computed_as()) }
    }

    /// Checks that the axis exists.
    pub(super) fn axis(&self, axis: usize, of: CheckedOperand<'_>) -> Result<()> {
        if axis < of.shape().rank() {
            return Ok(());
        }
        let axis = isize::try_from(axis).unwrap_or(isize::MAX);
        Err(Error::AxisOutOfRange { op: self.op, axis, shape: *of.shape() })
    }

    /// Checks that there is a flag for each axis.
    pub(super) fn flags(&self, axes: &[bool], of: CheckedOperand<'_>) -> Result<()> {
        if axes.len() == of.shape().rank() { Ok(()) } else { Err(self.bad_flags(axes, &of)) }
    }

    /// Checks that a workspace is as large as the backend's kernel requires.
    pub(super) fn workspace(&self, operands: &CheckedOperands<'_>, of: Workspace<'_>) -> Result<()> {
        let required = self.device.backend.workspace(of.of_computed());
        let Some(workspace) = operands.named("workspace") else {
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

    /// Checks an optimizer step: the gradient and the states fit the parameter, and the optional state is present if and
    /// only if it is required.
    pub(super) fn optimizer(
        &self,
        operands: &CheckedOperands<'_>,
        (state, required): (&'static str, bool),
    ) -> Result<()> {
        self.same_shapes(operands.all())?;
        let ([grad], param) = (operands.first(), operands.last());
        self.same_computed(&[param, grad])?;
        let states = &operands.all()[1..operands.count - 1];
        states.iter().try_for_each(|state| self.computed_like(*state, param))?;
        if required == operands.named(state).is_some() {
            return Ok(());
        }
        Err(self.fault(&param.named(state), OperandFault::Presence { required }))
    }

    pub(super) fn fault(&self, operand: &CheckedOperand<'_>, fault: OperandFault) -> Error {
        let (op, operand, shape) = (self.op, operand.name, *operand.shape());
        Error::Operand(Box::new(OperandError { op, operand, shape, fault }))
    }

    pub(super) fn misfit(
        &self,
        operand: &CheckedOperand<'_>,
        other: &CheckedOperand<'_>,
        rule: &'static str,
    ) -> Error {
        let (other, other_shape) = (other.name, *other.shape());
        self.fault(operand, OperandFault::Shape { other, other_shape, rule })
    }

    pub(super) fn mistyped(&self, operand: &CheckedOperand<'_>, expected: DType) -> Error {
        self.fault(operand, OperandFault::DType { dtype: operand.dtype, expected })
    }

    fn wrong_device(&self, operand: &CheckedOperand<'_>) -> Error {
        self.fault(operand, OperandFault::Device { device: self.device.id.to_string() })
    }

    fn bad_flags(&self, axes: &[bool], of: &CheckedOperand<'_>) -> Error {
        let got = format!("{} for `{}` of shape {}", axes.len(), of.name, of.shape());
        Error::BadArgument { op: self.op, argument: "axes", expected: "one flag for each axis", got }
    }
}
