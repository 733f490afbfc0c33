//! What the backward of an op reads: saved tensors, and facts about the inputs.

use crate::device::Device;
use crate::error::{Error, Result};
use crate::shape::{DType, Shape};
use crate::tensor::Tensor;
use crate::tensor::edge::GradEdge;

/// What a backward reads: the tensors that forward saved, and facts about its inputs.
#[derive(Debug)]
pub struct Saved {
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) inputs: Vec<Input>,
    /// Where all inputs were, if not where the output is.
    pub(crate) device: Option<Device>,
    /// The gradient that the op's only input already has, for an op that
    /// [adds to it](crate::op::BuiltinOp::adds_to_gradient).
    pub(crate) total: Option<Tensor>,
}

/// Facts about an input of an op, for its backward.
#[derive(Debug)]
pub(crate) struct Input {
    pub(crate) shape: Shape,
    pub(crate) dtype: DType,
    /// Where its gradient goes; `None` if nobody asks for one.
    pub(crate) edge: Option<GradEdge>,
}

impl Saved {
    /// The `index`-th tensor that forward saved.
    ///
    /// # Errors
    /// [`Error::BadArgument`] if forward saved fewer.
    pub fn tensor(&self, index: usize) -> Result<&Tensor> {
        self.tensors.get(index).ok_or_else(|| Error::BadArgument {
            op: "backward",
            argument: "index",
            expected: "that of a saved tensor",
            got: format!("{index} of {}", self.tensors.len()),
        })
    }

    /// Takes the tensor that was saved last, to free it early or to write over it.
    ///
    /// # Errors
    /// As [`tensor`](Self::tensor), if nothing is left.
    pub(crate) fn take_last(&mut self) -> Result<Tensor> {
        match self.tensors.pop() {
            Some(tensor) => Ok(tensor),
            None => self.tensor(0).cloned(),
        }
    }

    /// Where the gradient of the input goes, if there is exactly one input and its gradient is requested.
    pub(crate) fn only_edge(&self) -> Option<&GradEdge> {
        match &self.inputs[..] {
            [Input { edge, .. }] => edge.as_ref(),
            _ => None,
        }
    }

    /// Takes the gradient that the only input already has. Backward then returns the sum.
    pub(crate) const fn take_total(&mut self) -> Option<Tensor> {
        self.total.take()
    }

    pub(crate) fn set_total(&mut self, total: Option<Tensor>) {
        self.total = total;
    }

    /// Whether anybody asks for the gradient of the `index`-th input.
    #[must_use]
    pub fn needs_grad(&self, index: usize) -> bool {
        self.inputs.get(index).is_some_and(|input| input.edge.is_some())
    }

    /// How many inputs the op had.
    #[must_use]
    pub const fn inputs(&self) -> usize {
        self.inputs.len()
    }

    /// The shape of the `index`-th input; that of a scalar past the last.
    #[must_use]
    pub fn input_shape(&self, index: usize) -> Shape {
        self.inputs.get(index).map_or(Shape::SCALAR, |input| input.shape)
    }

    /// The element type of the `index`-th input; `f32` past the last.
    #[must_use]
    pub fn input_dtype(&self, index: usize) -> DType {
        self.inputs.get(index).map_or(DType::F32, |input| input.dtype)
    }

    /// Checks what the backward of an output on `device` returned: an entry per input, each gradient that is asked for being
    /// like its input.
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
        for (gradient, input) in gradients.iter().zip(&self.inputs) {
            let Some(gradient) = gradient.as_ref().filter(|_| input.edge.is_some()) else { continue };
            if gradient.device() != device {
                let (lhs, rhs) = (gradient.device().to_string(), device.to_string());
                return Err(Error::DeviceMismatch { op, lhs, rhs });
            }
            if gradient.dtype() != input.dtype {
                let (lhs, rhs) = (gradient.dtype(), input.dtype);
                let (lhs_shape, rhs_shape) = (*gradient.shape(), input.shape);
                return Err(Error::DTypeMismatch { op, lhs, rhs, lhs_shape, rhs_shape });
            }
            if *gradient.shape() != input.shape {
                return Err(Error::ShapeMismatch { op, lhs: *gradient.shape(), rhs: input.shape });
            }
        }
        Ok(())
    }

    /// Frees the saved tensors, then passes each gradient to where that of its input goes.
    pub(crate) fn deliver(
        mut self,
        gradients: Vec<Option<Tensor>>,
        mut to: impl FnMut(GradEdge, Tensor) -> Result<()>,
    ) -> Result<()> {
        self.tensors.clear();
        for (input, gradient) in self.inputs.into_iter().zip(gradients) {
            if let (Some(edge), Some(gradient)) = (input.edge, gradient) {
                to(edge, gradient)?;
            }
        }
        Ok(())
    }
}
