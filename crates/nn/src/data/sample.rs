//! Samples and batches in host memory.

use highwater_tensor::{DType, Element, Error, IntoShape, Place, RawElement, Result, Shape, Tensor};
use highwater_tracking::module;

use crate::io::Array;

const OP: &str = "batches";

/// A sample of a data set in host memory: an input, and a target if the data set has targets. Batches in host memory
/// have the same type; their arrays have an additional first axis, which counts the samples.
///
/// ```
/// use highwater::data::Sample;
/// let samples = [
///     Sample::new(&[0.5f32, 1.0], [2])?.with_label(3)?,
///     Sample::new(&[1.5f32, 2.0], [2])?.with_label(7)?,
/// ];
/// let batch = Sample::stack(&samples)?;
/// assert_eq!(batch.input.shape().dims(), [2, 2]);
/// assert_eq!(batch.target.unwrap().shape().dims(), [2]);
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The input of the model.
    pub input: Array,
    /// The label or the targets.
    pub target: Option<Array>,
}

impl Sample {
    /// Creates a sample without a target from values in row-major order.
    ///
    /// # Errors
    /// [`Error::ElementCount`] if the number of values differs from the shape's, [`Error::NoHostMemory`].
    pub fn new<T: Element>(values: &[T], shape: impl IntoShape) -> Result<Self> {
        Ok(Self { input: Array::from_slice(values, shape)?, target: None })
    }

    /// Sets the label, a class index. A batch has the labels `[n]` (`i64`).
    ///
    /// # Errors
    /// [`Error::NoHostMemory`].
    pub fn with_label(self, label: i64) -> Result<Self> {
        self.with_target(&[label], ())
    }

    /// Sets the target. A batch has the targets `[n, …shape]`.
    ///
    /// # Errors
    /// [`Error::ElementCount`] if the number of values differs from the shape's, [`Error::NoHostMemory`].
    pub fn with_target<T: Element>(self, values: &[T], shape: impl IntoShape) -> Result<Self> {
        Ok(Self { target: Some(Array::from_slice(values, shape)?), ..self })
    }

    /// Stacks samples to a batch: the arrays get a new first axis.
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless all inputs have one shape and element type, and all targets too;
    /// [`Error::RankTooLarge`] for inputs of eight axes; [`Error::NoHostMemory`].
    pub fn stack(samples: &[Self]) -> Result<Self> {
        let inputs: Vec<&Array> = samples.iter().map(|sample| &sample.input).collect();
        let targets: Vec<&Array> = samples.iter().filter_map(|sample| sample.target.as_ref()).collect();
        if !targets.is_empty() && targets.len() != samples.len() {
            let got = format!("targets in {} of {} samples", targets.len(), samples.len());
            return Err(unequal("targets for all samples, or for none", got));
        }
        let target = if targets.is_empty() { None } else { Some(stack("target", &targets)?) };
        Ok(Self { input: stack("input", &inputs)?, target })
    }

    /// Creates the tensors of a batch, in the scope `data`. Without targets, the second tensor is empty.
    pub(super) fn to_tensors(&self, place: &impl Place) -> Result<(Tensor, Tensor)> {
        let _scope = module("data");
        let x = to_tensor(&self.input, place)?;
        let y = match &self.target {
            Some(target) => to_tensor(target, place)?,
            None => Tensor::from_slice::<i64>(place, &[], [0])?,
        };
        Ok((x, y))
    }
}

fn unequal(expected: &'static str, got: String) -> Error {
    Error::BadArgument { op: OP, argument: "samples", expected, got }
}

/// Stacks arrays of one shape and type.
fn stack(what: &str, arrays: &[&Array]) -> Result<Array> {
    let Some(first) = arrays.first() else {
        return Err(unequal("at least one", "none".to_owned()));
    };
    let (dtype, shape) = (first.dtype(), *first.shape());
    let differs = |array: &&Array| (array.dtype(), array.shape()) != (dtype, &shape);
    if let Some(at) = arrays.iter().position(differs) {
        let describe = |array: &Array| format!("{} of {}", array.shape(), array.dtype());
        let got =
            format!("{what}s {} in sample 0 and {} in sample {at}", describe(first), describe(arrays[at]));
        return Err(unequal("of one shape and type; pad or convert them in `Batches::collated`", got));
    }
    let mut batch = Array::zeros(OP, dtype, batch_shape(arrays.len(), &shape)?)?;
    let size = first.bytes().len();
    for (at, array) in arrays.iter().enumerate() {
        batch.bytes_mut()[at * size..][..size].copy_from_slice(array.bytes());
    }
    Ok(batch)
}

/// Returns the shape of `count` samples.
pub(super) fn batch_shape(count: usize, sample: &Shape) -> Result<Shape> {
    let dims = [&[count], sample.dims()].concat();
    Shape::new(&dims).map_err(|error| Error::from(error).in_op(OP))
}

/// Creates a tensor as [`Tensor::from_slice`] does, so that the accounts show an input.
fn to_tensor(array: &Array, place: &impl Place) -> Result<Tensor> {
    fn of<T: RawElement + Element>(array: &Array, place: &impl Place) -> Result<Tensor> {
        Tensor::from_slice::<T>(place, bytemuck::cast_slice(array.bytes()), *array.shape())
    }
    match array.dtype() {
        DType::F32 => of::<f32>(array, place),
        DType::F64 => of::<f64>(array, place),
        DType::F16 => of::<half::f16>(array, place),
        DType::BF16 => of::<half::bf16>(array, place),
        DType::I64 => of::<i64>(array, place),
        DType::I32 => of::<i32>(array, place),
        DType::U32 => of::<u32>(array, place),
        DType::U8 => of::<u8>(array, place),
        DType::Bool => {
            let values: Vec<bool> = array.bytes().iter().map(|&byte| byte != 0).collect();
            Tensor::from_slice(place, &values, *array.shape())
        }
        dtype => Err(Error::UnsupportedDType { op: OP, dtype }),
    }
}
