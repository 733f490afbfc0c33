//! The work of a kernel as a pure function of its operands: multiply-adds, elements and bytes.
//!
//! Dry runs estimate time with it: see [`DeviceSpeed`](super::DeviceSpeed).

use serde::{Deserialize, Serialize};

use super::Precision;
use super::kernels::Computation;
use super::operands::Operand;
use crate::layout::Layout;
use crate::shape::DType;

/// Kernels whose work takes about the same time per multiply-add or per element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) enum Class {
    /// Matrix products.
    Product,
    /// Convolutions as products of filters and patches. Gradients of the weight are a class of their own, since their
    /// products have few rows and columns, and a large depth.
    Convolution,
    ConvolutionWeightGrad,
    /// Convolutions with 3 × 3 taps and stride 1, which Winograd's algorithm computes with fewer multiplications.
    Winograd,
    WinogradWeightGrad,
    /// Convolutions with one channel per group.
    Depthwise,
    Attention,
    AttentionGrad,
    Recurrent,
    RecurrentGrad,
    /// Arithmetic on elements of contiguous memory, copies and comparisons: nothing but memory traffic.
    Arithmetic,
    /// Copies that change the order of elements: of runs of neighbors, and of single elements.
    Reorder,
    Transpose,
    /// Elementwise functions such as exp, and their gradients.
    Function,
    FunctionGrad,
    /// Reductions along the last axes, and along others.
    ReduceRows,
    ReduceColumns,
    Softmax,
    SoftmaxGrad,
    Norm,
    NormGrad,
    NormSums,
    BatchNorm,
    BatchNormGrad,
    /// Pools with windows that do not overlap, per element of the input.
    Pool,
    PoolGrad,
    /// Pools with other windows, per element of a window.
    SlidingPool,
    SlidingPoolGrad,
    Gather,
    ScatterAdd,
    Random,
    /// Per comparison of a merge sort.
    Sort,
    /// Sums that depend on the previous one.
    Scan,
    Sgd,
    /// Optimizers with a square root per element.
    Adam,
}

impl Class {
    /// The number of classes.
    pub(crate) const COUNT: usize = Self::Adam as usize + 1;
}

/// The work of one kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Work {
    pub(crate) class: Class,
    /// Whether products round their factors to 16 bits.
    pub(crate) is_half: bool,
    /// The multiply-adds of products, without those that masks and padding make unnecessary.
    pub(crate) multiply_adds: u64,
    /// The multiply-adds with those that tiles compute although a mask hides them.
    pub(crate) computed: u64,
    /// The rows and columns of a product, which a device computes in tiles.
    pub(crate) sides: [usize; 2],
    /// The elements that products rearrange before they multiply: the factors, or the patches of images.
    pub(crate) moved: u64,
    /// The elements to which other functions apply, in units of the class.
    pub(crate) elements: u64,
    /// The bytes that the kernel reads. A broadcast operand counts its distinct elements.
    pub(crate) read: u64,
    pub(crate) written: u64,
}

impl Work {
    pub(super) const fn new(class: Class) -> Self {
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

    pub(super) const fn per_element(class: Class, elements: u64) -> Self {
        Self { elements, ..Self::new(class) }
    }

    /// The work of each element of a layout.
    pub(super) fn over(class: Class, layout: &Layout) -> Self {
        Self::per_element(class, layout.shape().elements() as u64)
    }

    /// Returns the work with the bytes of a kernel's operands.
    pub(super) fn with_traffic<'a>(mut self, kernel: &mut impl Computation<'a>) -> Self {
        // Visitors return no error here.
        let _ = kernel.operands(&mut |_, operand: Operand<'_, 'a>| {
            let size = operand.dtype().size() as u64;
            let bytes = |count: u64| count.saturating_mul(size).min(operand.storage().bytes() as u64);
            let all = bytes(distinct(operand.layout()));
            let [reads, writes] = match operand {
                // Products rearrange their factors in the workspace, which `moved` counts.
                Operand::Scratch(_) if self.multiply_adds > 0 => [0, 0],
                Operand::Scratch(_) | Operand::Update(_) => [all, all],
                Operand::Read(_) | Operand::ReadContiguous(_) => [all, 0],
                Operand::ReadPart(_, part) => [bytes(part as u64), 0],
                Operand::Write(_) => [0, all],
                Operand::WritePart(_, part) => [0, bytes(part as u64)],
            };
            self.read = self.read.saturating_add(reads);
            self.written = self.written.saturating_add(writes);
            Ok(())
        });
        self
    }

    /// The bytes read and written.
    pub(crate) const fn bytes(&self) -> u64 {
        self.read.saturating_add(self.written)
    }

    /// The amounts that take time: multiply-adds of whole tiles, rearranged elements, bytes, and elements.
    pub(crate) fn amounts(&self, tile: [usize; 2]) -> [f64; 4] {
        let waste = |size: usize, tile: usize| match size {
            0 => 1.0,
            size => (size.div_ceil(tile) * tile) as f64 / size as f64,
        };
        let waste = waste(self.sides[0], tile[0]) * waste(self.sides[1], tile[1]);
        [self.computed as f64 * waste, self.moved as f64, self.bytes() as f64, self.elements as f64]
    }

    /// The number that decides how well a device is used: multiply-adds, or elements.
    pub(crate) const fn size(&self) -> u64 {
        if self.multiply_adds > 0 { self.multiply_adds } else { self.elements }
    }
}

/// The work of a batch of products of `[rows, depth]` and `[depth, columns]`.
pub(super) fn products(class: Class, batch: usize, [rows, columns, depth]: [usize; 3]) -> Work {
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
pub(super) fn times(sizes: &[usize]) -> u64 {
    sizes.iter().fold(1_u64, |product, &size| product.saturating_mul(size as u64))
}

/// The number of distinct elements of a layout: an axis with stride 0 repeats its elements.
fn distinct(layout: &Layout) -> u64 {
    let axes = layout.shape().dims().iter().zip(layout.strides());
    axes.fold(1_u64, |count, (&size, &stride)| {
        count.saturating_mul(if stride == 0 { size.min(1) } else { size } as u64)
    })
}

pub(super) const fn is_half(precision: Precision, dtype: DType) -> bool {
    matches!(precision, Precision::BF16) || dtype.is_half()
}
