//! Compares gradients with finite differences, for built-in and user-defined ops.

use crate::error::{Error, Result};
use crate::shape::{DType, Element};
use crate::tensor::Tensor;

/// Options of a gradient check.
#[derive(Clone, Copy, Debug)]
pub struct GradCheck {
    /// The step of the finite differences.
    pub step: f64,
    /// The relative tolerance, with respect to the larger of the two gradients.
    pub relative: f64,
    /// The absolute tolerance.
    pub absolute: f64,
}

impl GradCheck {
    /// Returns options for inputs of this type, for values and gradients near 1.
    #[must_use]
    pub const fn for_dtype(dtype: DType) -> Self {
        match dtype {
            DType::F64 => Self { step: 1e-5, relative: 1e-6, absolute: 1e-7 },
            _ => Self { step: 1e-2, relative: 2e-2, absolute: 5e-3 },
        }
    }
}

/// The result of a failed gradient check.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GradCheckError {
    /// The function or its backward pass failed.
    #[error(transparent)]
    Failed(#[from] Error),
    /// The gradients of an element differ by more than the tolerance.
    #[error(
        "gradient of input {input}, element {element}: backward computed {backward}, finite differences {numeric}"
    )]
    Differs {
        /// The index of the input.
        input: usize,
        /// The index of the element in logical order.
        element: usize,
        /// The gradient from the backward pass.
        backward: f64,
        /// The gradient from finite differences.
        numeric: f64,
    },
    /// The check does not support inputs of this type.
    #[error("check_gradients: expected inputs of f32 or f64, got {dtype}; convert with `to_dtype`")]
    NotFloat {
        /// The input's element type.
        dtype: DType,
    },
}

bfc_core::debug_as_message!(GradCheckError);

/// Compares the gradients of `function` at `inputs` with central differences.
///
/// The function's result may have any shape. The check sums its elements with different weights, so that
/// errors do not cancel. The function must be smooth around the inputs and must not be random.
///
/// ```
/// use highwater::{Device, DType, GradCheck, Tensor, check_gradients};
/// let x = Tensor::from_slice(&Device::cpu()?, &[0.3f64, -1.2], [2])?;
/// check_gradients(|inputs| inputs[0].tanh(), &[x], GradCheck::for_dtype(DType::F64)).unwrap();
/// # Ok::<(), highwater::Error>(())
/// ```
///
/// # Errors
/// [`GradCheckError::Differs`] names the first element beyond the tolerance.
pub fn check_gradients(
    function: impl Fn(&[Tensor]) -> Result<Tensor>,
    inputs: &[Tensor],
    options: GradCheck,
) -> Result<(), GradCheckError> {
    let dtype = inputs.first().map_or(DType::F64, Tensor::dtype);
    match dtype {
        DType::F32 => check::<f32>(function, inputs, options),
        DType::F64 => check::<f64>(function, inputs, options),
        dtype => Err(GradCheckError::NotFloat { dtype }),
    }
}

fn check<T: Element + Into<f64>>(
    function: impl Fn(&[Tensor]) -> Result<Tensor>,
    inputs: &[Tensor],
    options: GradCheck,
) -> Result<(), GradCheckError> {
    let leaves: Vec<Tensor> =
        inputs.iter().map(|input| input.detach().requiring_grad()).collect::<Result<_>>()?;
    let output = function(&leaves)?;
    let weights = weights(&output)?;
    let gradients = output.mul(&weights)?.sum_all()?.backward()?;
    let loss = |moved: &[Tensor]| -> Result<f64> {
        let outputs = function(moved)?.to_vec::<T>()?;
        let weights = weights.to_vec::<T>()?;
        Ok(outputs.into_iter().zip(weights).map(|(value, weight)| value.into() * weight.into()).sum())
    };
    for (index, leaf) in leaves.iter().enumerate() {
        let computed = match gradients.get(leaf) {
            Some(gradient) => gradient.to_vec::<T>()?.into_iter().map(Into::into).collect(),
            None => vec![0.0; leaf.elements()],
        };
        for (element, &backward) in computed.iter().enumerate() {
            let at = |delta: f64| -> Result<f64> {
                let mut moved: Vec<Tensor> = inputs.iter().map(Tensor::detach).collect();
                moved[index] = nudge(&inputs[index], element, delta)?;
                loss(&moved)
            };
            let numeric = (at(options.step)? - at(-options.step)?) / (2.0 * options.step);
            let scale = f64::abs(backward).max(numeric.abs());
            let close = (backward - numeric).abs() <= options.absolute + options.relative * scale;
            // NaN fails the comparison.
            if !close {
                return Err(GradCheckError::Differs { input: index, element, backward, numeric });
            }
        }
    }
    Ok(())
}

/// Returns weights near 1 that differ between neighboring elements.
fn weights(like: &Tensor) -> Result<Tensor> {
    let values: Vec<f64> = (0..like.elements()).map(|i| 0.5 + 0.25 * ((i * 7 % 11) as f64 / 11.0)).collect();
    Tensor::from_slice(like.device(), &values, like.shape())?.to_dtype(like.dtype())
}

/// Returns the tensor with one element shifted.
fn nudge(tensor: &Tensor, element: usize, delta: f64) -> Result<Tensor> {
    let mut values = tensor.to_dtype(DType::F64)?.to_vec::<f64>()?;
    values[element] += delta;
    Tensor::from_slice(tensor.device(), &values, tensor.shape())?.to_dtype(tensor.dtype())
}
