//! Buffers for tests: equal values in all kinds of layouts that kernels support.

use std::sync::Arc;

use bfc_core::{
    AddressOnlyMemory, Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, HostMemory,
    PassthroughAllocator, Request,
};

use crate::backend::cpu::CpuBackend;
use crate::cpu::dispatch::any;
use crate::layout::Layout;
use crate::shape::{DType, Element, Shape};
use crate::storage::{Storage, View, ViewMut};

/// A storage with a layout.
#[derive(Debug)]
pub(crate) struct Buffer {
    storage: Arc<Storage>,
    layout: Layout,
}

/// Creates a shape.
pub(crate) fn shape(dims: &[usize]) -> Shape {
    Shape::new(dims).unwrap()
}

/// Backends with one, two and three threads. Their results must be equal.
pub(crate) fn backends() -> [CpuBackend; 3] {
    [1, 2, 3].map(|threads| CpuBackend::new(threads).unwrap())
}

/// Pseudo-random numbers between -1 and 1.
pub(crate) fn noise(seed: u64, count: usize) -> Vec<f64> {
    (0..count as u64)
        .map(|i| {
            let mixed =
                (i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ seed.wrapping_mul(0xD6E8_FEB8_6659_FD93);
            let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
            ((mixed ^ mixed >> 32) >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
        })
        .collect()
}

impl Buffer {
    /// Creates a contiguous, uninitialized output.
    pub(crate) fn output(dims: &[usize], dtype: DType) -> Self {
        let mut buffer =
            Self::from(Arc::new(PassthroughAllocator::new("test", Arc::new(HostMemory::new()))), dims, dtype);
        any!(dtype, T => {
            // All bits set: NaN, or a number that no test expects.
            bytemuck::cast_slice_mut::<T, u8>(buffer.out().into_host().unwrap()).fill(0xFF);
        });
        buffer
    }

    /// Creates a buffer with addresses but without memory.
    pub(crate) fn unreachable(dims: &[usize], dtype: DType) -> Self {
        let pool =
            BfcAllocator::new("test", Arc::new(AddressOnlyMemory::new()), BfcConfig::new(Bytes::mib(1)));
        Self::from(Arc::new(pool), dims, dtype)
    }

    fn from(allocator: Arc<dyn Allocator>, dims: &[usize], dtype: DType) -> Self {
        let layout = Layout::contiguous("test", shape(dims), dtype).unwrap();
        let bytes = layout.shape().elements() * dtype.size();
        let allocation = Allocation::new(&allocator, &Request::new(bytes as u64)).unwrap();
        // SAFETY: tests run kernels of this memory's device.
        Self { storage: Arc::new(unsafe { Storage::new(allocation, 0, bytes, dtype) }), layout }
    }

    /// The values without gaps.
    pub(crate) fn of<T: Element>(dims: &[usize], values: &[T]) -> Self {
        Self::arranged(dims, values, |layout| layout)
    }

    /// The values, in a buffer of shape `base` that is then looked at as `arrange` says.
    pub(crate) fn arranged<T: Element>(
        base: &[usize],
        values: &[T],
        arrange: impl Fn(Layout) -> Layout,
    ) -> Self {
        let mut buffer = Self::output(base, T::DTYPE);
        let layout = arrange(buffer.layout);
        assert_eq!(layout.shape().elements(), values.len());
        let data = buffer.out().into_host::<T::Raw>().unwrap();
        layout.positions().zip(values).for_each(|(place, value)| data[place] = value.into_raw());
        Self { layout, ..buffer }
    }

    /// The same values laid out without gaps, with the axes stored in reverse order, as every second element of a
    /// larger buffer, and both.
    pub(crate) fn arrangements<T: Element>(dims: &[usize], values: &[T]) -> Vec<Self> {
        let rank = dims.len();
        let reversed: Vec<usize> = dims.iter().rev().copied().collect();
        let axes: Vec<usize> = (0..rank).rev().collect();
        let spread = |dims: &[usize]| dims.iter().map(|size| 2 * size + 1).collect::<Vec<_>>();
        let thin = |layout: Layout, dims: &[usize]| {
            dims.iter().enumerate().fold(layout, |layout, (axis, size)| {
                layout.sliced("slice", axis, 1..1 + 2 * size, 2).unwrap()
            })
        };
        vec![
            Self::of(dims, values),
            Self::arranged(&reversed, values, |layout| layout.permuted("permute", &axes).unwrap()),
            Self::arranged(&spread(dims), values, |layout| thin(layout, dims)),
            Self::arranged(&spread(&reversed), values, |layout| {
                thin(layout, &reversed).permuted("permute", &axes).unwrap()
            }),
        ]
    }

    /// The same storage, with the values repeated to fill `dims`.
    pub(crate) fn broadcast(&self, dims: &[usize]) -> Self {
        let layout = self.layout.broadcast_to("test", &shape(dims)).unwrap();
        Self { storage: Arc::clone(&self.storage), layout }
    }

    /// The buffer as a kernel reads it.
    pub(crate) fn view(&self) -> View<'_> {
        View::new(&self.storage, &self.layout)
    }

    /// The buffer as a kernel writes it.
    pub(crate) fn out(&mut self) -> ViewMut<'_> {
        assert!(self.layout.is_contiguous() && self.layout.offset() == 0);
        ViewMut::new(Arc::get_mut(&mut self.storage).unwrap(), &self.layout)
    }

    /// The values in logical order.
    pub(crate) fn values<T: Element>(&self) -> Vec<T> {
        assert_eq!(T::DTYPE, self.storage.dtype());
        values(&self.view())
    }
}

/// A view's values in logical order.
pub(crate) fn values<T: Element>(view: &View<'_>) -> Vec<T> {
    let data = view.host::<T::Raw>().unwrap();
    view.layout().positions().map(|place| T::from_raw(data[place])).collect()
}

/// Asserts that two sequences agree to within `tolerance`, relative to their size where that is above 1.
pub(crate) fn assert_close<T: Into<f64> + Copy>(actual: &[T], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(actual.len(), expected.len(), "{what}");
    for (i, (&actual, &expected)) in actual.iter().zip(expected).enumerate() {
        let actual: f64 = actual.into();
        let same = actual == expected || actual.is_nan() && expected.is_nan();
        let near = (actual - expected).abs() <= tolerance * expected.abs().max(1.0);
        assert!(same || near, "{what}, element {i}: {actual} instead of {expected}");
    }
}
