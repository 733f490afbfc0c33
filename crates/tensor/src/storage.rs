//! Storage: the buffer of tensors, with its memory category and its stale values.

pub(crate) mod leaf;
pub(crate) mod stale;

use std::sync::atomic::{AtomicBool, Ordering};

use bfc_core::{Allocation, Category, Tag};
pub use highwater_kernels::storage::{Storage, View, ViewMut};

use self::stale::StaleValues;
use crate::shape::DType;

/// The buffer that a tensor owns.
#[derive(Debug)]
pub(crate) struct TensorStorage {
    /// The buffer for kernels.
    pub(crate) storage: Storage,
    /// Whether the category may be a result or a temporary. Saves the query of the allocator for parameters
    /// and inputs, which are most tensors that ops keep for backward passes.
    may_be_result: AtomicBool,
    stale: StaleValues,
}

impl TensorStorage {
    /// Returns the storage of a new allocation, of which tensors use `bytes`. `category` is its category. The allocation
    /// is from an allocator of the device, which has checked that its backend can access the memory.
    #[inline]
    pub(crate) fn new(
        allocation: Allocation,
        device: u32,
        bytes: usize,
        dtype: DType,
        category: Category,
    ) -> Self {
        // SAFETY: the device has checked the allocator.
        let storage = unsafe { Storage::new(allocation, device, bytes, dtype) };
        let may_be_result = AtomicBool::new(is_result(category));
        Self { storage, may_be_result, stale: StaleValues::new() }
    }

    /// Changes the category of the buffer and keeps its owner.
    pub(crate) fn set_category(&self, category: Category) {
        let allocation = self.storage.allocation();
        if let Ok(tag) = allocation.allocator().tag(&allocation.block())
            && tag.category != category
        {
            // Allocators without tags return an error, which is harmless here.
            let _ = allocation.allocator().retag(&allocation.block(), Tag { category, ..tag });
        }
        self.may_be_result.store(is_result(category), Ordering::Relaxed);
    }

    /// Changes the category of a result or a temporary to activation.
    pub(crate) fn keep_for_backward(&self) {
        if self.may_be_result.load(Ordering::Relaxed) {
            self.recategorize(RESULTS, Category::Activation);
            self.may_be_result.store(false, Ordering::Relaxed);
        }
    }

    /// Changes the category of an activation to gradient.
    pub(crate) fn becomes_gradient(&self) {
        self.recategorize(ACTIVATION, Category::Gradient);
    }

    /// Changes the category of the buffer if it is one of `from`.
    fn recategorize(&self, from: &[Category], to: Category) {
        let allocation = self.storage.allocation();
        // Allocators without tags return an error, which is harmless here.
        let _ = allocation.allocator().recategorize(&allocation.block(), from, to);
    }

    /// Returns the updates that made the values of this buffer stale.
    pub(crate) const fn stale_values(&self) -> &StaleValues {
        &self.stale
    }
}

/// The categories that `keep_for_backward` changes to activation.
const RESULTS: &[Category] = &[Category::Output, Category::Temporary];

const ACTIVATION: &[Category] = &[Category::Activation];

/// Returns whether the category is one of [`RESULTS`].
const fn is_result(category: Category) -> bool {
    matches!(category, Category::Output | Category::Temporary)
}

#[cfg(test)]
mod tests {
    use crate::device::Runtime;
    use crate::shape::DType;
    use crate::tensor::Tensor;

    #[test]
    fn the_bound_of_host_indices_lasts_until_a_write() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let below = |values: &[i64], len| {
            Tensor::from_slice(&device, values, values.len()).unwrap().view().are_indices_below(len)
        };
        assert!(below(&[0, 4, 2], 5) && !below(&[0, 4, 2], 4));
        assert!(!below(&[0, -1], usize::MAX) && !below(&[i64::MIN], usize::MAX) && below(&[], 0));
        let narrow = [
            Tensor::from_slice(&device, &[0_u8, 4, 2], 3).unwrap(),
            Tensor::from_slice(&device, &[0_u32, 4, 2], 3).unwrap(),
            Tensor::from_slice(&device, &[0_i32, 4, 2], 3).unwrap(),
        ];
        let negative = Tensor::from_slice(&device, &[0_i32, -1], 2).unwrap();
        let is_below = |indices: &Tensor, len| {
            let mut wide = indices.to_dtype(DType::I64).unwrap();
            // SAFETY: these are the same elements in another type.
            unsafe { wide.view_mut().unwrap().note_indices_of(indices.view()) };
            wide.view().are_indices_below(len)
        };
        assert!(narrow.iter().all(|indices| is_below(indices, 5) && !is_below(indices, 4)));
        assert!(!is_below(&negative, usize::MAX) && !narrow[0].view().are_indices_below(5));
        let floats = Tensor::from_slice(&device, &[0.0_f32; 4], 4).unwrap();
        assert!(!floats.view().are_indices_below(usize::MAX));

        let clamped = |low, high| narrow[2].to_dtype(DType::I64).unwrap().clamp(low, high).unwrap();
        assert!(clamped(0, 3).view().are_indices_below(4) && !clamped(0, 3).view().are_indices_below(3));
        assert!(!clamped(-1, 3).view().are_indices_below(usize::MAX));
        assert!(is_below(&narrow[2].clamp(1, 3).unwrap(), 4));

        let mut indices = Tensor::from_slice(&device, &[1_i64, 2], 2).unwrap();
        assert!(indices.view().are_indices_below(3) && indices.clone().view().are_indices_below(3));
        assert!(indices.slice(0, 1..).unwrap().view().are_indices_below(3));
        indices.view_mut().unwrap().host::<i64>().unwrap()[0] = 7;
        assert!(!indices.view().are_indices_below(3));
        let moved = Tensor::from_slice(&device, &[1_i64, 2], 2).unwrap().add_scalar(5).unwrap();
        assert!(!moved.view().are_indices_below(3));
    }

    #[test]
    fn host_slices_require_the_type_of_the_elements() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let double = Tensor::ones_of(&device, 4, DType::F64).unwrap();
        assert_eq!(double.view().host_contiguous::<f64>(), Some(&[1.0; 4][..]));
        assert_eq!(double.view().host_contiguous::<f32>(), None);
        assert_eq!(double.view().host::<i64>(), None);
        let mut truths = Tensor::ones_of(&device, 4, DType::Bool).unwrap();
        assert_eq!(truths.view_mut().unwrap().host::<u8>(), Some(&mut [1; 4][..]));
        assert_eq!(truths.view_mut().unwrap().into_host::<f32>(), None);
    }
}
