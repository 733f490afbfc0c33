//! Grid sizes of GPU kernels: how blocks share reductions and convolutions.
//!
//! All sizes depend only on shapes, so that results do not depend on the GPU and a dry run knows the workspaces.

use super::reduce::cpu::Split;
use crate::layout::Layout;
use crate::shape::Shape;
use crate::window::Convolution;

/// The side of the matrix tile that one block computes.
pub(super) const TILE: usize = 64;

/// The number of blocks that fill a large GPU: about 130 multiprocessors with a few blocks each.
const BLOCKS: usize = 512;

/// The smallest depth of one split of a sum.
const MIN_SPLIT_DEPTH: usize = 256;

/// The depth that a block accumulates at a time.
const DEPTH_STEP: usize = 16;

/// The number of neighboring outputs that a block reduces together if the last axis is kept.
pub(super) const COLUMNS_PER_BLOCK: usize = 32;

/// Splits a reduction into slabs. If there are too few outputs to fill a GPU, the slabs do. Each thread reduces at
/// least eight elements of a slab.
pub(super) fn split_reduction(shape: &Shape, axes: &[bool]) -> Split {
    let unsplit = Split::unsplit(shape, axes);
    // Either all 256 threads of a block reduce one row, or 8 threads reduce each of 32 neighboring columns.
    let (blocks, threads) = if unsplit.along_rows {
        (unsplit.outputs, 256)
    } else {
        (unsplit.outputs.div_ceil(COLUMNS_PER_BLOCK), 8)
    };
    let slabs = BLOCKS.div_ceil(blocks.max(1)).min(unsplit.length / (8 * threads).max(128));
    unsplit.into_slabs(slabs.max(1), threads)
}

/// Splits the rows of `[rows, parameters, places]` into slabs. Returns the number of slabs and the rows per slab; the last
/// slab may have fewer. If a parameter has several places, one block sums each parameter without slabs.
pub(super) fn split_rows([rows, parameters, places]: [usize; 3]) -> (usize, usize) {
    let slabs = if places == 1 { BLOCKS.div_ceil(parameters.div_ceil(COLUMNS_PER_BLOCK).max(1)) } else { 1 };
    // Eight threads share the rows of a slab, at least eight rows each.
    let slab = rows.div_ceil(slabs).max(64).next_multiple_of(8);
    (rows.div_ceil(slab).max(1), slab)
}

/// Whether a scatter sorts its indices. It does if the indices vary only along the axis, as for rows of an embedding table,
/// and if there are enough of them. Then one thread adds all elements with equal index.
pub(super) fn sorts_indices(indices: &Layout, axis: usize) -> bool {
    const MIN_INDICES: usize = 32;
    let axes = || indices.shape().dims().iter().zip(indices.strides()).enumerate();
    let same = axes().all(|(other, (&size, &stride))| other == axis || size == 1 || stride == 0);
    same && indices.shape().elements() > 0
        && indices.shape().dims().get(axis).is_some_and(|&size| size >= MIN_INDICES)
}

/// Whether a scattered addition of `len` elements along an axis of size `rows` sums in f64, because a running sum in f32
/// would lose small elements. Equal on all devices, whose sums are then equal.
pub(super) const fn are_many_per_index(len: usize, rows: usize) -> bool {
    const MANY: usize = 1024;
    len >= rows.saturating_mul(MANY)
}

/// A convolution as an implicit batched matrix product: matrices of `rows` by `columns`, with sums over `depth`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConvGemm {
    matrices: usize,
    rows: usize,
    columns: usize,
    depth: usize,
}

impl ConvGemm {
    /// The forward pass. For each group: its output channels by the pixels of all outputs. `input` and `out` are the
    /// shapes of the convolution.
    pub(super) fn of_output(conv: &Convolution, input: &[usize], out: &[usize]) -> Self {
        let Sizes { groups, inputs, outputs, taps, pixels, .. } = Sizes::new(conv, input, out);
        Self { matrices: groups, rows: outputs, columns: pixels, depth: product(&[inputs, taps]) }
    }

    /// The gradient of the input. For each group and each phase of the strides: the group's input channels by the pixels of
    /// that phase.
    pub(super) fn of_input_grad(conv: &Convolution, input: &[usize], out: &[usize]) -> Self {
        let Sizes { groups, inputs, outputs, taps, images, image_size, .. } = Sizes::new(conv, input, out);
        // The same taps read all pixels that are a stride apart.
        let phases = [0, 1].map(|axis| conv.windows[axis].stride.min(image_size[axis]).max(1));
        let [height, width] = [0, 1].map(|axis| image_size[axis].div_ceil(phases[axis]));
        let columns = product(&[images, height, width]);
        let matrices = product(&[groups, phases[0], phases[1]]);
        Self { matrices, rows: inputs, columns, depth: product(&[outputs, taps]) }
    }

    /// The gradient of the weight. For each group: its output channels by the taps of its input channels.
    pub(super) fn of_weight_grad(conv: &Convolution, input: &[usize], out: &[usize]) -> Self {
        let Sizes { groups, inputs, outputs, taps, pixels, .. } = Sizes::new(conv, input, out);
        Self { matrices: groups, rows: outputs, columns: product(&[inputs, taps]), depth: pixels }
    }

    /// The number of tiles of all matrices.
    pub(super) fn tiles(&self) -> usize {
        product(&[self.matrices, self.rows.div_ceil(TILE), self.columns.div_ceil(TILE)])
    }

    /// Whether the tiled kernel is faster than one thread per element.
    ///
    /// A thread of the tiled kernel sums 16 elements. If matrices cover less than a 16th of their tiles, as in a depthwise
    /// convolution, most of its work is wasted.
    pub(super) fn is_tiled(&self) -> bool {
        self.elements() >= product(&[self.tiles(), TILE * TILE / 16])
    }

    /// The number of splits of the depth (split-K), so that blocks fill a GPU, and the depth of each split but the last.
    pub(super) fn depth_splits(&self) -> (usize, usize) {
        let wanted = BLOCKS.div_ceil(self.tiles().max(1)).min(self.depth / MIN_SPLIT_DEPTH).max(1);
        let depth = self.depth.div_ceil(wanted).max(1).next_multiple_of(DEPTH_STEP);
        (self.depth.div_ceil(depth).max(1), depth)
    }

    /// The number of partial sums in the workspace; 0 if the depth is not split.
    pub(super) fn partial_elements(&self) -> usize {
        let (splits, _) = self.depth_splits();
        if splits > 1 && self.is_tiled() { product(&[self.elements(), splits]) } else { 0 }
    }

    fn elements(&self) -> usize {
        product(&[self.matrices, self.rows, self.columns])
    }
}

/// The sizes of a convolution.
struct Sizes {
    groups: usize,
    /// Input channels of a group.
    inputs: usize,
    /// Output channels of a group.
    outputs: usize,
    /// Elements of a window.
    taps: usize,
    images: usize,
    /// Height and width of an input image.
    image_size: [usize; 2],
    /// Pixels of all output images, in one channel.
    pixels: usize,
}

impl Sizes {
    fn new(conv: &Convolution, input: &[usize], out: &[usize]) -> Self {
        let size = |dims: &[usize], axis: usize| dims.get(axis).copied().unwrap_or(0);
        let groups = conv.groups.max(1);
        Self {
            groups,
            inputs: size(input, 1) / groups,
            outputs: size(out, 1) / groups,
            taps: product(&conv.windows.map(|window| window.size)),
            images: size(input, 0),
            image_size: [size(input, 2), size(input, 3)],
            pixels: product(&[size(out, 0), size(out, 2), size(out, 3)]),
        }
    }
}

/// The product of sizes, saturating: with a size of 0 among them, the others may be arbitrarily large.
pub(super) fn product(sizes: &[usize]) -> usize {
    sizes.iter().fold(1, |product, &size| product.saturating_mul(size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::Window;

    fn conv(size: usize, stride: usize, groups: usize) -> Convolution {
        let window = Window { size, stride, padding: 0, dilation: 1 };
        Convolution { windows: [window; 2], groups }
    }

    #[test]
    fn tiled_kernels_require_groups_of_many_channels() {
        let by_tiles = |channels: usize, groups: usize| {
            let (conv, input, out) = (conv(3, 1, groups), [8, channels, 30, 30], [8, channels, 28, 28]);
            let all = [ConvGemm::of_output, ConvGemm::of_input_grad, ConvGemm::of_weight_grad];
            all.map(|gemm| gemm(&conv, &input, &out).is_tiled())
        };
        assert_eq!(by_tiles(64, 1), [true; 3]);
        assert_eq!(by_tiles(64, 64), [false; 3]);
        // Five rows of a tile of 64 are more than a 16th. The weight gradient, with 5 × 45 elements, is less.
        assert_eq!(by_tiles(5, 1), [true, true, false]);
        assert_eq!(by_tiles(3, 1), [false; 3]);
        assert_eq!(by_tiles(64, 8), [true, true, true]);
    }

    #[test]
    fn every_element_is_in_a_tile() {
        let gemm = ConvGemm::of_output(&conv(1, 1, 2), &[1, 6, 13, 5], &[1, 130, 13, 5]);
        assert_eq!(gemm, ConvGemm { matrices: 2, rows: 65, columns: 65, depth: 3 });
        assert_eq!(gemm.tiles(), 2 * 2 * 2);
        // A stride of 2 has four phases of at most 7 by 3 pixels.
        let gemm = ConvGemm::of_input_grad(&conv(3, 2, 1), &[2, 6, 13, 5], &[2, 4, 6, 2]);
        assert_eq!(gemm, ConvGemm { matrices: 4, rows: 6, columns: 2 * 7 * 3, depth: 4 * 9 });
        // With a stride larger than the image, each pixel is a phase.
        let gemm = ConvGemm::of_input_grad(&conv(1, 9, 1), &[2, 6, 3, 5], &[2, 4, 1, 1]);
        assert_eq!(gemm, ConvGemm { matrices: 15, rows: 6, columns: 2, depth: 4 });
        let none = ConvGemm::of_output(&conv(1, 1, 1), &[0, 6, 5, 5], &[0, 4, 5, 5]);
        assert_eq!((none.tiles(), none.partial_elements()), (0, 0));
    }

    #[test]
    fn depth_splits_cover_the_depth_and_fill_a_gpu() {
        let parts = |channels: usize, images: usize, side: usize| {
            let shape = [images, channels, side, side];
            let gemm = ConvGemm::of_weight_grad(&conv(1, 1, 1), &shape, &shape);
            let (parts, products) = gemm.depth_splits();
            assert!(parts * products >= gemm.depth && (parts - 1) * products < gemm.depth.max(1));
            assert_eq!(gemm.partial_elements(), if parts > 1 { parts * channels * channels } else { 0 });
            (gemm.tiles(), parts, products)
        };
        assert_eq!(parts(64, 32, 64), (1, 512, 256));
        assert_eq!(parts(256, 32, 56), (16, 32, 3136));
        assert_eq!(parts(2048, 32, 7), (1024, 1, 1568));
        // Splits are not shorter than the minimum.
        assert_eq!(parts(64, 1, 16), (1, 1, 256));
        assert_eq!(parts(64, 1, 28), (1, 3, 272));
        assert_eq!(parts(64, 0, 28), (1, 1, 16));
    }

    #[test]
    fn reductions_of_few_outputs_are_split_to_fill_a_gpu() {
        let slabs = |dims: &[usize], axes: &[bool]| {
            let split = split_reduction(&Shape::new(dims).unwrap(), axes);
            let slabs = split.slabs();
            assert!(slabs * split.slab >= split.length && (slabs - 1) * split.slab < split.length.max(1));
            assert_eq!(split.workspace_elements(), if slabs > 1 { slabs * split.outputs } else { 0 });
            slabs
        };
        assert_eq!(slabs(&[1 << 24], &[true]), 512);
        assert_eq!(slabs(&[100_000], &[true]), 44);
        assert_eq!(slabs(&[64, 1 << 20], &[false, true]), 8);
        assert_eq!(slabs(&[512, 1 << 20], &[false, true]), 1);
        // The gradient of a bias: 2,048 columns are 64 blocks.
        assert_eq!(slabs(&[8192, 2048], &[true, false]), 8);
        assert_eq!(slabs(&[64, 10], &[true, false]), 1);
        assert_eq!(slabs(&[0, 10], &[true, false]), 1);
        assert_eq!(slabs(&[10, 0], &[true, false]), 1);
    }

    #[test]
    fn huge_sizes_do_not_overflow_beside_a_size_of_zero() {
        let gemm = ConvGemm::of_weight_grad(&conv(1 << 40, 1, 1), &[0, 5, 1 << 40, 1 << 40], &[0, 0, 1, 1]);
        assert_eq!((gemm.tiles(), gemm.partial_elements()), (0, 0));
    }
}
