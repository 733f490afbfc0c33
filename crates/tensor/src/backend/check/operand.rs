//! Operands as the check compares them, and the comparisons that kernels share.

use crate::backend::{DeviceRef, Workspace};
use crate::error::{Error, OperandError, OperandFault, Result};
use crate::layout::Layout;
use crate::shape::{DType, Shape};
use crate::storage::{View, ViewMut};

/// What all operands of a kernel have to be on, and how errors name the op.
#[derive(Clone, Copy)]
pub(super) struct Rules<'d> {
    pub(super) op: &'static str,
    device: DeviceRef<'d>,
}

/// An operand that is on the kernel's device.
#[derive(Clone, Copy)]
pub(super) struct Operand<'a> {
    name: &'static str,
    dtype: DType,
    layout: &'a Layout,
}

impl<'a> Operand<'a> {
    pub(super) const fn dtype(&self) -> DType {
        self.dtype
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

    /// The same by another name, for an operand that is like this one.
    pub(super) const fn named(self, name: &'static str) -> Self {
        Self { name, ..self }
    }

    /// That so many bytes are as many elements as the operand has.
    pub(super) fn fill_bytes(&self, op: &'static str, bytes: usize) -> Result<()> {
        let (shape, size) = (*self.shape(), self.dtype.size());
        if shape.checked_elements().and_then(|elements| elements.checked_mul(size)) == Some(bytes) {
            return Ok(());
        }
        Err(Error::ElementCount { op, elements: bytes / size, shape })
    }
}

impl<'d> Rules<'d> {
    pub(super) const fn new(op: &'static str, device: DeviceRef<'d>) -> Self {
        Self { op, device }
    }

    /// An operand that is read, in any layout.
    pub(super) fn read<'a>(&self, name: &'static str, view: &View<'a>) -> Result<Operand<'a>> {
        let operand = Operand { name, dtype: view.dtype(), layout: view.layout() };
        if view.storage().device() != self.device.serial {
            return Err(self.elsewhere(&operand));
        }
        Ok(operand)
    }

    /// An operand that is read, and is contiguous.
    pub(super) fn packed<'a>(&self, name: &'static str, view: &View<'a>) -> Result<Operand<'a>> {
        let operand = self.read(name, view)?;
        if !view.layout().is_contiguous() {
            return Err(self.fault(&operand, OperandFault::Strided));
        }
        Ok(operand)
    }

    /// An operand that is written, in any layout.
    pub(super) fn placed<'a>(&self, name: &'static str, view: &'a ViewMut<'_>) -> Result<Operand<'a>> {
        let operand = Operand { name, dtype: view.dtype(), layout: view.layout() };
        if view.storage().device() != self.device.serial {
            return Err(self.elsewhere(&operand));
        }
        Ok(operand)
    }

    /// An operand that is written, and is contiguous from the start of its buffer.
    pub(super) fn written<'a>(&self, name: &'static str, view: &'a ViewMut<'_>) -> Result<Operand<'a>> {
        let operand = self.placed(name, view)?;
        if view.layout().offset() != 0 || !view.layout().is_contiguous() {
            return Err(self.strided(&operand));
        }
        Ok(operand)
    }

    /// That both have one shape.
    pub(super) fn same_shape(&self, operand: Operand<'_>, other: Operand<'_>) -> Result<()> {
        if operand.shape() == other.shape() {
            return Ok(());
        }
        Err(self.misfit(&operand, &other, "their shapes must be the same"))
    }

    /// That an operand has these sizes, which follow from another one.
    pub(super) fn sized(
        &self,
        operand: Operand<'_>,
        dims: &[usize],
        other: Operand<'_>,
        rule: &'static str,
    ) -> Result<()> {
        if operand.dims() == dims { Ok(()) } else { Err(self.misfit(&operand, &other, rule)) }
    }

    /// That both have one element type.
    pub(super) fn same_type(&self, operand: Operand<'_>, other: Operand<'_>) -> Result<()> {
        self.typed(operand, other.dtype)
    }

    /// That an operand has this element type.
    pub(super) fn typed(&self, operand: Operand<'_>, expected: DType) -> Result<()> {
        if operand.dtype == expected { Ok(()) } else { Err(self.mistyped(&operand, expected)) }
    }

    /// That operands have one element type, or are of one 16-bit float type and of the f32 that kernels compute it with.
    pub(super) fn same_computed<const N: usize>(&self, operands: [Operand<'_>; N]) -> Result<()> {
        if operands.iter().all(|operand| operand.dtype == operands[0].dtype) {
            return Ok(());
        }
        self.mixed(&operands)
    }

    /// That an operand has the element type of another one, or the type that this is computed with.
    pub(super) fn computed_like(&self, operand: Operand<'_>, other: Operand<'_>) -> Result<()> {
        if operand.dtype == other.dtype { Ok(()) } else { self.typed(operand, other.dtype.computed_as()) }
    }

    fn mixed(&self, operands: &[Operand<'_>]) -> Result<()> {
        let Some(first) = operands.first() else { return Ok(()) };
        let half = operands.iter().map(Operand::dtype).find(|dtype| dtype.is_half());
        let expected = half.unwrap_or(first.dtype);
        let fits = |operand: &&Operand<'_>| [expected, expected.computed_as()].contains(&operand.dtype);
        match operands.iter().find(|operand| !fits(operand)) {
            None => Ok(()),
            Some(operand) => Err(self.mistyped(operand, expected)),
        }
    }

    /// That there is such an axis.
    pub(super) fn axis(&self, axis: usize, of: Operand<'_>) -> Result<()> {
        if axis < of.shape().rank() {
            return Ok(());
        }
        let axis = isize::try_from(axis).unwrap_or(isize::MAX);
        Err(Error::AxisOutOfRange { op: self.op, axis, shape: *of.shape() })
    }

    /// That there is a flag for each axis.
    pub(super) fn flags(&self, axes: &[bool], of: Operand<'_>) -> Result<()> {
        if axes.len() == of.shape().rank() { Ok(()) } else { Err(self.bad_flags(axes, &of)) }
    }

    /// The memory that a kernel takes while it runs, if there is any.
    pub(super) fn room<'a>(&self, workspace: Option<&'a ViewMut<'_>>) -> Result<Option<Operand<'a>>> {
        workspace.map(|workspace| self.written("workspace", workspace)).transpose()
    }

    /// That a workspace is as large as the backend's kernel takes.
    pub(super) fn workspace(&self, workspace: Option<Operand<'_>>, of: Workspace<'_>) -> Result<()> {
        let required = self.device.backend.workspace(of.of_computed());
        let Some(operand) = workspace else {
            let missing = Operand { name: "workspace", dtype: DType::U8, layout: &Layout::SCALAR };
            let fault = OperandFault::Workspace { bytes: 0, required };
            return if required == 0 { Ok(()) } else { Err(self.fault(&missing, fault)) };
        };
        self.typed(operand, DType::U8)?;
        // Of the type above, elements are bytes.
        let bytes = operand.elements();
        if bytes >= required {
            return Ok(());
        }
        Err(self.fault(&operand, OperandFault::Workspace { bytes, required }))
    }

    /// That an optimizer's state is like its parameter, in the type that steps are computed in.
    pub(super) fn state(&self, name: &'static str, state: &ViewMut<'_>, param: Operand<'_>) -> Result<()> {
        let state = self.written(name, state)?;
        self.same_shape(state, param)?;
        self.computed_like(state, param)
    }

    /// That momentum is there if and only if the step has some.
    pub(super) fn momentum(
        &self,
        factor: f64,
        momentum: Option<&ViewMut<'_>>,
        param: Operand<'_>,
    ) -> Result<()> {
        match momentum {
            None if factor == 0.0 => Ok(()),
            Some(momentum) if factor != 0.0 => self.state("momentum", momentum, param),
            _ => {
                Err(self.fault(&param.named("momentum"), OperandFault::Presence { required: factor != 0.0 }))
            }
        }
    }

    pub(super) fn fault(&self, operand: &Operand<'_>, fault: OperandFault) -> Error {
        let (op, operand, shape) = (self.op, operand.name, *operand.shape());
        Error::Operand(Box::new(OperandError { op, operand, shape, fault }))
    }

    pub(super) fn misfit(&self, operand: &Operand<'_>, other: &Operand<'_>, rule: &'static str) -> Error {
        let (other, other_shape) = (other.name, *other.shape());
        self.fault(operand, OperandFault::Shape { other, other_shape, rule })
    }

    pub(super) fn mistyped(&self, operand: &Operand<'_>, expected: DType) -> Error {
        self.fault(operand, OperandFault::DType { dtype: operand.dtype, expected })
    }

    fn elsewhere(&self, operand: &Operand<'_>) -> Error {
        self.fault(operand, OperandFault::Device { device: self.device.id.to_string() })
    }

    fn strided(&self, operand: &Operand<'_>) -> Error {
        self.fault(operand, OperandFault::Strided)
    }

    fn bad_flags(&self, axes: &[bool], of: &Operand<'_>) -> Error {
        let got = format!("{} for `{}` of shape {}", axes.len(), of.name, of.shape());
        Error::BadArgument { op: self.op, argument: "axes", expected: "one flag for each axis", got }
    }
}
