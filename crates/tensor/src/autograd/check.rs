//! Gradients checked against differences: for every op of this crate, and for those that users write.

use crate::error::{Error, Result};
use crate::shape::{DType, Element};
use crate::tensor::Tensor;

/// How finely to look.
#[derive(Clone, Copy, Debug)]
pub struct GradCheck {
    /// The distance by which each element is moved up and down.
    pub step: f64,
    /// The difference allowed, relative to the larger of the two gradients.
    pub relative: f64,
    /// The difference always allowed.
    pub absolute: f64,
}

impl GradCheck {
    /// Fit for inputs of this type whose values and gradients are of order one.
    #[must_use]
    pub const fn for_dtype(dtype: DType) -> Self {
        match dtype {
            DType::F64 => Self { step: 1e-5, relative: 1e-6, absolute: 1e-7 },
            _ => Self { step: 1e-2, relative: 2e-2, absolute: 5e-3 },
        }
    }
}

/// Where the two gradients differ.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GradCheckError {
    /// The function or its backward failed.
    #[error(transparent)]
    Failed(#[from] Error),
    /// An element whose gradients differ too much.
    #[error(
        "gradient of input {input}, element {element}: backward says {backward}, differences say {numeric}"
    )]
    Differs {
        /// The input's place among the inputs.
        input: usize,
        /// The element's place in logical order.
        element: usize,
        /// What the backward pass computed.
        backward: f64,
        /// What moving the element up and down shows.
        numeric: f64,
    },
    /// The check cannot be made on inputs of this type.
    #[error("gradients of {dtype} inputs cannot be checked")]
    NotFloat {
        /// The input's element type.
        dtype: DType,
    },
}

/// Compares the gradients that backward computes for `function` at `inputs` with central differences.
///
/// The function's result may have any shape; its elements are weighted differently and summed, so that errors do not
/// cancel. It must be smooth around the inputs and must not be random.
///
/// ```
/// use highwater::{Device, DType, GradCheck, Tensor, check_gradients};
/// let x = Tensor::from_slice(&Device::cpu()?, &[0.3f64, -1.2], [2])?;
/// check_gradients(|inputs| inputs[0].tanh(), &[x], GradCheck::for_dtype(DType::F64)).unwrap();
/// # Ok::<(), highwater::Error>(())
/// ```
///
/// # Errors
/// [`GradCheckError::Differs`] names the first element that differs too much.
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
            // A NaN on either side is not close to anything.
            if !close {
                return Err(GradCheckError::Differs { input: index, element, backward, numeric });
            }
        }
    }
    Ok(())
}

/// Weights of order one, different for neighbouring elements.
fn weights(like: &Tensor) -> Result<Tensor> {
    let values: Vec<f64> = (0..like.elements()).map(|i| 0.5 + 0.25 * ((i * 7 % 11) as f64 / 11.0)).collect();
    Tensor::from_slice(like.device(), &values, like.shape())?.to_dtype(like.dtype())
}

/// The tensor with one element moved.
fn nudge(tensor: &Tensor, element: usize, delta: f64) -> Result<Tensor> {
    let mut values = tensor.to_dtype(DType::F64)?.to_vec::<f64>()?;
    values[element] += delta;
    Tensor::from_slice(tensor.device(), &values, tensor.shape())?.to_dtype(tensor.dtype())
}
