//! Conversion from and to `ndarray`'s arrays.

use bfc_core::Category;
use ndarray::{ArrayBase, ArrayD, Data, Dimension, IxDyn};

use crate::device::Place;
use crate::error::{Error, Result};
use crate::layout::IntoShape;
use crate::ops::create::uploaded;
use crate::shape::Element;
use crate::tensor::Tensor;

/// # Exchange with ndarray
impl Tensor {
    /// Copies an array of any layout. The memory counts as input.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let array = ndarray::array![[1.0f32, 2.0], [3.0, 4.0]];
    /// let x = Tensor::from_ndarray(&Device::cpu()?, &array.t())?;
    /// assert_eq!(x.to_vec::<f32>()?, [1.0, 3.0, 2.0, 4.0]);
    /// assert_eq!(x.to_ndarray::<f32>()?, array.t().into_dyn());
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::RankTooLarge`] for more axes than a tensor supports; [`Error::Allocation`] if the allocation
    /// fails; [`Error::NoHostMemory`] if the host lacks memory to reorder an array that is not in standard
    /// layout.
    #[doc(alias("from_numpy"))]
    pub fn from_ndarray<T, S, D>(place: &impl Place, array: &ArrayBase<S, D>) -> Result<Self>
    where
        T: Element,
        S: Data<Elem = T>,
        D: Dimension,
    {
        const OP: &str = "from_ndarray";
        if let Some(values) = array.as_slice() {
            return uploaded(OP, place, array.shape(), values, Category::Input);
        }
        let (shape, mut values) = (array.shape().into_shape().map_err(|error| error.in_op(OP))?, Vec::new());
        if values.try_reserve_exact(array.len()).is_err() {
            return Err(Error::NoHostMemory { op: OP, shape, dtype: T::DTYPE });
        }
        values.extend(array.iter().copied());
        uploaded(OP, place, shape, &values, Category::Input)
    }

    /// Copies the tensor to an array in standard layout.
    ///
    /// # Errors
    /// As [`Tensor::to_vec`].
    #[doc(alias("numpy"))]
    pub fn to_ndarray<T: Element>(&self) -> Result<ArrayD<T>> {
        let values = self.to_vec()?;
        let elements = values.len();
        ArrayD::from_shape_vec(IxDyn(self.dims()), values).map_err(|_| Error::ElementCount {
            op: "to_ndarray",
            elements,
            shape: *self.shape(),
        })
    }
}

#[cfg(test)]
mod tests {
    use ndarray::{Array, Array0, s};

    use super::*;
    use crate::device::Runtime;

    #[test]
    fn arrays_of_any_layout_survive_a_round_trip() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let array = Array::from_iter(0i64..24).into_shape_with_order((2, 3, 4)).unwrap();
        let view = array.slice(s![.., ..;-1, 1..;2]);
        let view = view.permuted_axes([2, 0, 1]);
        let x = Tensor::from_ndarray(&device, &view).unwrap();
        assert_eq!(x.to_ndarray::<i64>().unwrap(), view.into_dyn());
        let scalar = Tensor::from_ndarray(&device, &Array0::from_elem((), true)).unwrap();
        assert_eq!(scalar.to_ndarray::<bool>().unwrap().shape(), &[] as &[usize]);
        let empty = Tensor::from_ndarray(&device, &Array::<f32, _>::zeros((2, 0))).unwrap();
        assert_eq!(empty.to_ndarray::<f32>().unwrap().shape(), [2, 0]);
    }
}
