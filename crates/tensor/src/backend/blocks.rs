//! How sums are shared by the blocks of a GPU: by shapes alone.

use super::Convolution;
use super::cpu::reduce::Cut;
use crate::layout::Layout;
use crate::shape::Shape;

/// The side of the tile that a block computes of a matrix.
pub(super) const TILE: usize = 64;

/// Blocks that fill a large GPU: some 130 processors with a few each.
const BLOCKS: usize = 512;

/// The fewest products for which a sum is cut.
const SHORTEST: usize = 256;

/// Products that a block adds at a time.
const STEP: usize = 16;

/// The outputs that a block folds side by side where sequences lie across memory.
pub(super) const SIDE_BY_SIDE: usize = 32;

/// How a fold over axes is cut: if outputs are too few to fill a GPU, into slabs that do, but none so short that a thread folds less
/// than eight elements.
pub(super) fn cut_of_fold(shape: &Shape, axes: &[bool]) -> Cut {
    let whole = Cut::whole(shape, axes);
    // A block's threads go along a sequence, or eight go down 32 that lie side by side.
    let (blocks, threads) =
        if whole.along_rows { (whole.outputs, 256) } else { (whole.outputs.div_ceil(SIDE_BY_SIDE), 8) };
    let slabs = BLOCKS.div_ceil(blocks.max(1)).min(whole.length / (8 * threads).max(128));
    whole.into_slabs(slabs.max(1), threads)
}

/// How many slabs the rows of `[rows, parameters, places]` are cut into, and the rows of each but the last. A parameter of several places is
/// a block's own.
pub(super) fn slabs_of_rows([rows, parameters, places]: [usize; 3]) -> (usize, usize) {
    let slabs = if places == 1 { BLOCKS.div_ceil(parameters.div_ceil(SIDE_BY_SIDE).max(1)) } else { 1 };
    // Eight threads go down the rows, each of eight at least.
    let slab = rows.div_ceil(slabs).max(64).next_multiple_of(8);
    (rows.div_ceil(slab).max(1), slab)
}

/// Whether the indices along an axis are the same beside all other axes, as those of a table's rows are, and so many that it pays to sort
/// them: then elements with one index are added up by a thread of their own.
pub(super) fn sorts_indices(indices: &Layout, axis: usize) -> bool {
    const FEWEST: usize = 32;
    let axes = || indices.shape().dims().iter().zip(indices.strides()).enumerate();
    let same = axes().all(|(other, (&size, &stride))| other == axis || size == 1 || stride == 0);
    same && indices.shape().elements() > 0
        && indices.shape().dims().get(axis).is_some_and(|&size| size >= FEWEST)
}

/// Matrices of `rows` by `columns`, whose elements are sums of `depth` products each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sums {
    matrices: usize,
    rows: usize,
    columns: usize,
    depth: usize,
}

impl Sums {
    /// For each group, its output channels by the pixels of all outputs. `input` and `out` are the shapes of the convolution.
    pub(super) fn of_output(conv: &Convolution, input: &[usize], out: &[usize]) -> Self {
        let Sizes { groups, inputs, outputs, taps, pixels, .. } = Sizes::new(conv, input, out);
        Self { matrices: groups, rows: outputs, columns: pixels, depth: product(&[inputs, taps]) }
    }

    /// For each group and each phase of the strides, the group's channels by the pixels of that phase.
    pub(super) fn of_input_grad(conv: &Convolution, input: &[usize], out: &[usize]) -> Self {
        let Sizes { groups, inputs, outputs, taps, images, from, .. } = Sizes::new(conv, input, out);
        // Pixels a stride apart are seen by the same taps.
        let phases = [0, 1].map(|axis| conv.windows[axis].stride.min(from[axis]).max(1));
        let columns = product(&[images, from[0].div_ceil(phases[0]), from[1].div_ceil(phases[1])]);
        let matrices = product(&[groups, phases[0], phases[1]]);
        Self { matrices, rows: inputs, columns, depth: product(&[outputs, taps]) }
    }

    /// For each group, its output channels by the taps of its channels.
    pub(super) fn of_weight_grad(conv: &Convolution, input: &[usize], out: &[usize]) -> Self {
        let Sizes { groups, inputs, outputs, taps, pixels, .. } = Sizes::new(conv, input, out);
        Self { matrices: groups, rows: outputs, columns: product(&[inputs, taps]), depth: pixels }
    }

    /// The tiles of all matrices.
    pub(super) fn tiles(&self) -> usize {
        product(&[self.matrices, self.rows.div_ceil(TILE), self.columns.div_ceil(TILE)])
    }

    /// Whether tiles serve. A thread sums 16 elements of a tile: where fewer than a 16th of them count, as where each channel is
    /// a group of its own, one thread for each element has less to do.
    pub(super) fn fill_tiles(&self) -> bool {
        self.elements() >= product(&[self.tiles(), TILE * TILE / 16])
    }

    /// Into how many parts the sums are cut, so that blocks fill a GPU, and the products of each part but the last.
    pub(super) fn parts(&self) -> (usize, usize) {
        let wanted = BLOCKS.div_ceil(self.tiles().max(1)).min(self.depth / SHORTEST).max(1);
        let products = self.depth.div_ceil(wanted).max(1).next_multiple_of(STEP);
        (self.depth.div_ceil(products).max(1), products)
    }

    /// The numbers that all parts give, to be added up; none if there is one part.
    pub(super) fn partial(&self) -> usize {
        let (parts, _) = self.parts();
        if parts > 1 && self.fill_tiles() { product(&[self.elements(), parts]) } else { 0 }
    }

    fn elements(&self) -> usize {
        product(&[self.matrices, self.rows, self.columns])
    }
}

/// The sizes of a convolution.
struct Sizes {
    groups: usize,
    /// Channels of a group.
    inputs: usize,
    outputs: usize,
    /// Places of a window.
    taps: usize,
    images: usize,
    /// Height and width of an image.
    from: [usize; 2],
    /// Of all outputs, of one channel.
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
            from: [size(input, 2), size(input, 3)],
            pixels: product(&[size(out, 0), size(out, 2), size(out, 3)]),
        }
    }
}

/// The product of sizes; those beside a size of 0 may exceed all memory.
pub(super) fn product(sizes: &[usize]) -> usize {
    sizes.iter().fold(1, |product, &size| product.saturating_mul(size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Window;

    fn conv(size: usize, stride: usize, groups: usize) -> Convolution {
        let window = Window { size, stride, padding: 0, dilation: 1 };
        Convolution { windows: [window; 2], groups }
    }

    #[test]
    fn tiles_are_for_groups_of_many_channels() {
        let by_tiles = |channels: usize, groups: usize| {
            let (conv, input, out) = (conv(3, 1, groups), [8, channels, 30, 30], [8, channels, 28, 28]);
            let all = [Sums::of_output, Sums::of_input_grad, Sums::of_weight_grad];
            all.map(|sums| sums(&conv, &input, &out).fill_tiles())
        };
        assert_eq!(by_tiles(64, 1), [true; 3]);
        assert_eq!(by_tiles(64, 64), [false; 3]);
        // Four rows of 64 are a 16th. A weight of 5 x 5 x 9 is less of a tile.
        assert_eq!(by_tiles(5, 1), [true, true, false]);
        assert_eq!(by_tiles(3, 1), [false; 3]);
        assert_eq!(by_tiles(64, 8), [true, true, true]);
    }

    #[test]
    fn every_element_is_in_a_tile() {
        let sums = Sums::of_output(&conv(1, 1, 2), &[1, 6, 13, 5], &[1, 130, 13, 5]);
        assert_eq!(sums, Sums { matrices: 2, rows: 65, columns: 65, depth: 3 });
        assert_eq!(sums.tiles(), 2 * 2 * 2);
        // A stride of 2 leaves four kinds of pixels, of at most 7 by 3.
        let sums = Sums::of_input_grad(&conv(3, 2, 1), &[2, 6, 13, 5], &[2, 4, 6, 2]);
        assert_eq!(sums, Sums { matrices: 4, rows: 6, columns: 2 * 7 * 3, depth: 4 * 9 });
        // A stride beyond the image leaves as many kinds as pixels.
        let sums = Sums::of_input_grad(&conv(1, 9, 1), &[2, 6, 3, 5], &[2, 4, 1, 1]);
        assert_eq!(sums, Sums { matrices: 15, rows: 6, columns: 2, depth: 4 });
        let none = Sums::of_output(&conv(1, 1, 1), &[0, 6, 5, 5], &[0, 4, 5, 5]);
        assert_eq!((none.tiles(), none.partial()), (0, 0));
    }

    #[test]
    fn the_parts_of_a_sum_are_the_whole_and_as_many_as_fill_a_gpu() {
        let parts = |channels: usize, images: usize, side: usize| {
            let shape = [images, channels, side, side];
            let sums = Sums::of_weight_grad(&conv(1, 1, 1), &shape, &shape);
            let (parts, products) = sums.parts();
            assert!(parts * products >= sums.depth && (parts - 1) * products < sums.depth.max(1));
            assert_eq!(sums.partial(), if parts > 1 { parts * channels * channels } else { 0 });
            (sums.tiles(), parts, products)
        };
        assert_eq!(parts(64, 32, 64), (1, 512, 256));
        assert_eq!(parts(256, 32, 56), (16, 32, 3136));
        assert_eq!(parts(2048, 32, 7), (1024, 1, 1568));
        // No part is short.
        assert_eq!(parts(64, 1, 16), (1, 1, 256));
        assert_eq!(parts(64, 1, 28), (1, 3, 272));
        assert_eq!(parts(64, 0, 28), (1, 1, 16));
    }

    #[test]
    fn folds_of_few_outputs_are_cut_into_slabs_that_fill_a_gpu() {
        let slabs = |dims: &[usize], axes: &[bool]| {
            let cut = cut_of_fold(&Shape::new(dims).unwrap(), axes);
            let slabs = cut.slabs();
            assert!(slabs * cut.slab >= cut.length && (slabs - 1) * cut.slab < cut.length.max(1));
            assert_eq!(cut.workspace_elements(), if slabs > 1 { slabs * cut.outputs } else { 0 });
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
    fn sizes_beyond_all_memory_beside_none_are_no_overflow() {
        let sums = Sums::of_weight_grad(&conv(1 << 40, 1, 1), &[0, 5, 1 << 40, 1 << 40], &[0, 0, 1, 1]);
        assert_eq!((sums.tiles(), sums.partial()), (0, 0));
    }
}
