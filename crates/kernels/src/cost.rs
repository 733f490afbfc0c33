//! The work of a kernel as a pure function of its operands: multiply-adds, elements and bytes.
//!
//! Dry runs estimate time with it: see [`TimeModel`](crate::backend::dry::TimeModel).

use serde::{Deserialize, Serialize};

use crate::layout::Layout;

/// Kernels whose work takes about the same time per multiply-add or per element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Class {
    /// Matrix products.
    Product,
    /// Convolutions as products of filters and patches.
    Convolution,
    /// Gradients of a convolution's weight: products with few rows and columns, and a large depth.
    ConvolutionWeightGrad,
    /// Convolutions with 3 × 3 taps and stride 1, which Winograd's algorithm computes with fewer multiplications.
    Winograd,
    /// Gradients of the weight of such a convolution.
    WinogradWeightGrad,
    /// Convolutions with one channel per group.
    Depthwise,
    /// Attention.
    Attention,
    /// Gradients of attention.
    AttentionGrad,
    /// Recurrent layers.
    Recurrent,
    /// Gradients of recurrent layers.
    RecurrentGrad,
    /// Arithmetic on elements of contiguous memory, copies and comparisons: nothing but memory traffic.
    Arithmetic,
    /// Copies that change the order of runs of neighbors.
    Reorder,
    /// Copies that change the order of single elements.
    Transpose,
    /// Elementwise functions such as exp.
    Function,
    /// Gradients of elementwise functions.
    FunctionGrad,
    /// Reductions along the last axes.
    ReduceRows,
    /// Reductions along other axes.
    ReduceColumns,
    /// Softmax and cross-entropy.
    Softmax,
    /// Gradients of softmax and cross-entropy.
    SoftmaxGrad,
    /// Layer normalization.
    Norm,
    /// Gradients of layer normalization.
    NormGrad,
    /// Gradients of the weight and bias of layer normalization.
    NormSums,
    /// Batch normalization.
    BatchNorm,
    /// Gradients of batch normalization.
    BatchNormGrad,
    /// Pools with windows that do not overlap, per element of the input.
    Pool,
    /// Gradients of such pools.
    PoolGrad,
    /// Pools with other windows, per element of a window.
    SlidingPool,
    /// Gradients of such pools.
    SlidingPoolGrad,
    /// Lookups by index.
    Gather,
    /// Sums by index.
    ScatterAdd,
    /// Random values.
    Random,
    /// Per comparison of a merge sort.
    Sort,
    /// Sums that depend on the previous one.
    Scan,
    /// Optimizers without a square root.
    Sgd,
    /// Optimizers with a square root per element.
    Adam,
}

impl Class {
    /// The number of classes.
    pub const COUNT: usize = Self::Adam as usize + 1;
}

/// The work of one kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// The class of the kernel.
    pub class: Class,
    /// Whether products round their factors to 16 bits.
    pub is_half: bool,
    /// The multiply-adds of products, without those that masks and padding make unnecessary.
    pub multiply_adds: u64,
    /// The multiply-adds with those that tiles compute although a mask hides them.
    pub computed: u64,
    /// The rows and columns of a product, which a device computes in tiles.
    pub sides: [usize; 2],
    /// The elements that products rearrange before they multiply: the factors, or the patches of images.
    pub moved: u64,
    /// The elements to which other functions apply, in units of the class.
    pub elements: u64,
    /// The bytes that the kernel reads. A broadcast operand counts its distinct elements.
    pub read: u64,
    /// The bytes that the kernel writes.
    pub written: u64,
}

impl Work {
    pub(crate) const fn new(class: Class) -> Self {
        Self {
            class,
            is_half: false,
            multiply_adds: 0,
            computed: 0,
            sides: [0; 2],
            moved: 0,
            elements: 0,
            read: 0,
            written: 0,
        }
    }

    pub(crate) const fn per_element(class: Class, elements: u64) -> Self {
        Self { elements, ..Self::new(class) }
    }

    /// The work of each element of a layout.
    pub(crate) fn over(class: Class, layout: &Layout) -> Self {
        Self::per_element(class, layout.shape().elements() as u64)
    }

    /// The work of two kernels of one class in one launch.
    pub(crate) const fn together_with(mut self, other: &Self) -> Self {
        self.elements = self.elements.saturating_add(other.elements);
        self.read = self.read.saturating_add(other.read);
        self.written = self.written.saturating_add(other.written);
        self
    }

    /// The bytes read and written.
    pub const fn bytes(&self) -> u64 {
        self.read.saturating_add(self.written)
    }

    /// The amounts that take time: multiply-adds of whole tiles, rearranged elements, bytes, and elements.
    pub fn amounts(&self, tile: [usize; 2]) -> [f64; 4] {
        let waste = |size: usize, tile: usize| match size {
            0 => 1.0,
            size => (size.div_ceil(tile) * tile) as f64 / size as f64,
        };
        let waste = waste(self.sides[0], tile[0]) * waste(self.sides[1], tile[1]);
        [self.computed as f64 * waste, self.moved as f64, self.bytes() as f64, self.elements as f64]
    }

    /// The number that decides how well a device is used: multiply-adds, or elements.
    pub const fn size(&self) -> u64 {
        if self.multiply_adds > 0 { self.multiply_adds } else { self.elements }
    }
}

/// The work of a batch of products of `[rows, depth]` and `[depth, columns]`.
pub(crate) fn products(class: Class, batch: usize, [rows, columns, depth]: [usize; 3]) -> Work {
    let multiply_adds = times(&[batch, rows, columns, depth]);
    Work {
        multiply_adds,
        computed: multiply_adds,
        sides: [rows, columns],
        moved: times(&[batch, rows, depth]).saturating_add(times(&[batch, depth, columns])),
        ..Work::new(class)
    }
}

/// The product of sizes as a count.
pub(crate) fn times(sizes: &[usize]) -> u64 {
    sizes.iter().fold(1_u64, |product, &size| product.saturating_mul(size as u64))
}

/// The number of distinct elements of a layout: an axis with stride 0 repeats its elements.
pub(crate) fn distinct(layout: &Layout) -> u64 {
    let axes = layout.shape().dims().iter().zip(layout.strides());
    axes.fold(1_u64, |count, (&size, &stride)| {
        count.saturating_mul(if stride == 0 { size.min(1) } else { size } as u64)
    })
}
