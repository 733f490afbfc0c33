//! The inputs of an op's backward pass: saved tensors, and properties of the op's inputs.

use crate::device::Device;
use crate::error::{Error, Result, ShapeRule};
use crate::shape::{DType, Shape};
use crate::tensor::Tensor;
use crate::tensor::edge::GradEdge;

/// The data for a backward pass: the tensors that the forward pass saved, and properties of the op's inputs.
#[derive(Debug)]
pub struct Saved {
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) inputs: Vec<Input>,
    /// The device of all inputs, if it differs from the output's.
    pub(crate) device: Option<Device>,
    /// The existing gradient of the op's only input, for an op that [adds to
    /// it](crate::Op::adds_to_gradient).
    pub(crate) total: Option<Tensor>,
    /// Whether the op took the existing gradient.
    pub(crate) took_total: bool,
}

/// Properties of an input of an op.
#[derive(Debug)]
pub(crate) struct Input {
    pub(crate) shape: Shape,
    pub(crate) dtype: DType,
    /// The destination of the input's gradient; `None` if the gradient is not required.
    pub(crate) edge: Option<GradEdge>,
}

impl Input {
    /// Returns whether the gradient may be in f32: it reaches an f32 leaf unchanged.
    pub(crate) fn takes_f32(&self) -> bool {
        match &self.edge {
            Some(GradEdge::Leaf(_)) => self.dtype == DType::F32,
            Some(GradEdge::Node(node)) => node.takes_f32(),
            None => false,
        }
    }
}

impl Saved {
    /// Returns the `index`-th saved tensor.
    ///
    /// # Errors
    /// [`Error::BadArgument`] if the forward pass saved fewer tensors.
    pub fn tensor(&self, index: usize) -> Result<&Tensor> {
        self.tensors.get(index).ok_or_else(|| Error::BadArgument {
            op: "backward",
            argument: "index",
            expected: "the index of a saved tensor",
            got: format!("{index} of {}", self.tensors.len()),
        })
    }

    /// Takes the last saved tensor, to free it early or to reuse its buffer.
    ///
    /// # Errors
    /// As [`tensor`](Self::tensor), if no tensor remains.
    pub fn take_last(&mut self) -> Result<Tensor> {
        match self.tensors.pop() {
            Some(tensor) => Ok(tensor),
            None => self.tensor(0).cloned(),
        }
    }

    /// Returns the gradient edge of the input, if there is exactly one input and its gradient is required.
    pub(crate) fn only_edge(&self) -> Option<&GradEdge> {
        match &self.inputs[..] {
            [Input { edge, .. }] => edge.as_ref(),
            _ => None,
        }
    }

    /// Takes the existing gradient of the only input, for an op that [adds to it](crate::Op::adds_to_gradient). The op must
    /// then return the sum, because no other place holds this gradient. `None` if the input has no gradient yet, and for
    /// other ops.
    pub const fn take_total(&mut self) -> Option<Tensor> {
        self.took_total |= self.total.is_some();
        self.total.take()
    }

    pub(crate) fn set_total(&mut self, total: Option<Tensor>) {
        self.total = total;
    }

    /// Returns whether the gradient of the `index`-th input is required.
    #[must_use]
    pub fn needs_grad(&self, index: usize) -> bool {
        self.inputs.get(index).is_some_and(|input| input.edge.is_some())
    }

    /// Returns the number of inputs of the op.
    #[must_use]
    pub const fn inputs(&self) -> usize {
        self.inputs.len()
    }

    /// Returns the shape of the `index`-th input; a scalar shape if the index is out of range.
    #[must_use]
    pub fn input_shape(&self, index: usize) -> Shape {
        self.inputs.get(index).map_or(Shape::SCALAR, |input| input.shape)
    }

    /// Returns the element type of the `index`-th input; `f32` if the index is out of range.
    #[must_use]
    pub fn input_dtype(&self, index: usize) -> DType {
        self.inputs.get(index).map_or(DType::F32, |input| input.dtype)
    }

    /// Returns the element type for the gradient of the `index`-th input: f32 for a 16-bit copy of an f32 parameter, else that
    /// of the input. The gradient may also have the input's type; the backward pass converts it then.
    #[must_use]
    pub fn gradient_dtype(&self, index: usize) -> DType {
        if self.takes_f32(index) { DType::F32 } else { self.input_dtype(index) }
    }

    /// Returns whether the gradient of an input may be in f32.
    pub(crate) fn takes_f32(&self, index: usize) -> bool {
        self.inputs.get(index).is_some_and(Input::takes_f32)
    }

    /// Checks the gradients of an output on `device`: one entry per input. Each required gradient must match
    /// its input in shape, type and device.
    pub(crate) fn check(
        &self,
        op: &'static str,
        gradients: &[Option<Tensor>],
        device: &Device,
    ) -> Result<()> {
        let device = self.device.as_ref().unwrap_or(device);
        if gradients.len() != self.inputs.len() {
            return Err(Error::BadArgument {
                op,
                argument: "gradients",
                expected: "one entry per input",
                got: format!("{} for {} inputs", gradients.len(), self.inputs.len()),
            });
        }
        if self.took_total && gradients.iter().all(Option::is_none) {
            return Err(Error::BadArgument {
                op,
                argument: "gradients",
                expected: "the sum with the gradient that `take_total` returned",
                got: "none".to_owned(),
            });
        }
        for (gradient, input) in gradients.iter().zip(&self.inputs) {
            let Some(gradient) = gradient.as_ref().filter(|_| input.edge.is_some()) else { continue };
            if gradient.device() != device {
                let (lhs, rhs) = (gradient.device().to_string(), device.to_string());
                return Err(Error::DeviceMismatch { op, lhs, rhs });
            }
            let is_sum = gradient.dtype() == DType::F32 && input.takes_f32();
            if gradient.dtype() != input.dtype && !is_sum {
                let (lhs, rhs) = (gradient.dtype(), input.dtype);
                let (lhs_shape, rhs_shape) = (*gradient.shape(), input.shape);
                return Err(Error::DTypeMismatch { op, lhs, rhs, lhs_shape, rhs_shape });
            }
            if *gradient.shape() != input.shape {
                return Err(Error::ShapeMismatch {
                    op,
                    lhs: *gradient.shape(),
                    rhs: input.shape,
                    rule: &ShapeRule::Same,
                });
            }
        }
        Ok(())
    }

    /// Frees the saved tensors, then passes each gradient along the edge of its input, after an existing gradient that the op
    /// did not take.
    pub(crate) fn deliver(
        mut self,
        gradients: Vec<Option<Tensor>>,
        mut to: impl FnMut(GradEdge, Tensor) -> Result<()>,
    ) -> Result<()> {
        self.tensors.clear();
        // An op that left the existing gradient returned only its own part.
        if let Some(total) = self.total.take()
            && let Some(edge) = self.only_edge()
        {
            to(edge.clone(), total)?;
        }
        for (input, gradient) in self.inputs.into_iter().zip(gradients) {
            if let (Some(edge), Some(gradient)) = (input.edge, gradient) {
                to(edge, gradient)?;
            }
        }
        Ok(())
    }
}
