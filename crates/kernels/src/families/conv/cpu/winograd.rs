//! Winograd convolutions F(2×2, 3×3): 16 products per channel for four outputs instead of 36 (Lavin and Gray 2015).
//!
//! ```text
//! image   →  tiles of 4 × 4 inputs  →  Bᵀ d B  ─┐
//!                                               ├─ 16 matrix products  →  Aᵀ m A  →  2 × 2 outputs per tile
//! filters →  3 × 3 taps             →  G g Gᵀ  ─┘   over the channels
//! ```
//!
//! Each of the 16 positions in a tile has its own product: rows are output channels, columns are tiles. [Input] and
//! [filters] write the packed panels of the micro-kernel, so the products need no other packing. The gradient of the input
//! is the same convolution of the output's gradient, with transposed and reversed filters. The [gradient of the
//! weight](weight_grad) multiplies transformed tiles and gradients.
//!
//! Tasks share one transformed operand. Tasks of some images share the filters; tasks of some channels share the tiles.
//! Each output is one sum over the channels in order, so results do not depend on the split.
//!
//! The transforms add inputs, so rounding errors are a few times larger than those of direct sums. Results that are not
//! finite are replaced by [direct] sums, because the transforms of infinite and of very large inputs cancel to NaN. The
//! transforms and sums are in `f32`; 16-bit floats are converted on the way. Processors that multiply pairs of bf16 elements
//! use the direct algorithm for those. So do all convolutions of `f64`, which only tests transform.

mod direct;
mod filters;
mod input;
mod output;
mod tiles;
mod transform;
mod weight_grad;

use self::input::{Input, Pad};
use self::output::Outputs;
use super::Sizes;
use crate::cpu::gemm::{Block, COLUMNS, Depth, PackInto, Packed, ROWS, Tile};
use crate::cpu::number::Float;
use crate::cpu::parallel::Workers;
use crate::cpu::simd;
use crate::window::Window;

/// The number of taps of a filter.
const TAPS: usize = 9;

/// The number of positions in a tile, and of its products.
const POSITIONS: usize = 16;

/// The largest number of tasks that run at a time. Each has its own part of the workspace.
const SLOTS: usize = 8;

/// The fewest channels for which the products take longer than the transforms.
const CHANNELS: usize = 32;

/// The largest depth of one call of the micro-kernel.
const DEPTH: usize = 512;

/// The number of filter panels whose products are kept until their outputs are computed.
const GROUP: usize = 8;

/// The number of bytes of transformed tiles that tasks may share even if the filters are smaller.
const SHARED: usize = 1 << 20;

/// An element of images and of panels.
pub(crate) trait Element: Float + Packed<Sum = Self> + Depth + PackInto<Self> {}

impl Element for f32 {}
impl Element for f64 {}

/// The sizes of a convolution.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Winograd {
    images: usize,
    /// Channels of the input.
    inputs: usize,
    outputs: usize,
    /// Height and width of the input.
    from: [usize; 2],
    to: [usize; 2],
    padding: [usize; 2],
    direction: Direction,
}

/// How a convolution reads the weight, of shape `[out channels, in channels, 3, 3]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    /// Correlates the input with the filters.
    Forward,
    /// Correlates the output's gradient with the transposed filters, with reversed taps.
    Backward,
}

/// The operand that all tasks share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shared {
    /// Each task computes all channels of some images.
    Filters,
    /// Each task computes some channels of all images.
    Tiles,
}

impl Winograd {
    /// The algorithm for a convolution; `None` if the direct algorithm is faster or necessary.
    pub(crate) fn forward(sizes: &Sizes) -> Option<Self> {
        Self::new(sizes)?.if_faster()
    }

    /// `None` if the algorithm does not support the convolution.
    fn new(sizes: &Sizes) -> Option<Self> {
        let Sizes { ref conv, images, groups, inputs, outputs, from, to } = *sizes;
        let is_supported = (0..2).all(|axis| {
            let window = conv.windows[axis];
            let plain = Window { padding: window.padding, ..Window::new(3) };
            window == plain && window.padding <= 2 && window.outputs(from[axis]) == Some(to[axis])
        });
        if groups != 1 || !is_supported {
            return None;
        }
        let padding = conv.windows.map(|window| window.padding);
        Some(Self { images, inputs, outputs, from, to, padding, direction: Direction::Forward })
    }

    /// The algorithm for the gradient of a convolution's input.
    pub(crate) fn input_grad(sizes: &Sizes) -> Option<Self> {
        Self::new(sizes)?.backward().if_faster()
    }

    /// The convolution of the output's gradient that computes the input's.
    fn backward(self) -> Self {
        Self {
            inputs: self.outputs,
            outputs: self.inputs,
            from: self.to,
            to: self.from,
            padding: self.padding.map(|padding| 2 - padding),
            direction: Direction::Backward,
            ..self
        }
    }

    /// `None` if the transforms take more time than the products save.
    fn if_faster(self) -> Option<Self> {
        let [rows, columns] = self.tiles();
        let (tiles, places) = (rows.checked_mul(columns)?, self.to[0].checked_mul(self.to[1])?);
        // Tiles at the edges may be half empty.
        let is_full = places.checked_mul(3)? >= tiles.checked_mul(8)?;
        let is_large = self.inputs >= CHANNELS && self.outputs >= CHANNELS;
        (is_full && is_large && self.images.checked_mul(tiles)? >= COLUMNS).then_some(self)
    }

    /// Rows and columns of tiles of an image.
    #[inline(always)]
    fn tiles(&self) -> [usize; 2] {
        self.to.map(|size| size.div_ceil(2))
    }

    fn tiles_per_image(&self) -> usize {
        let [rows, columns] = self.tiles();
        rows * columns
    }

    /// The number of tiles of all images.
    fn tile_count(&self) -> usize {
        self.images * self.tiles_per_image()
    }

    /// The number of panels of tiles.
    fn tile_panels(&self) -> usize {
        self.tile_count().div_ceil(COLUMNS)
    }

    fn filter_panels(&self) -> usize {
        self.outputs.div_ceil(ROWS)
    }

    /// The distance between positions in a transformed panel of tiles, in rows of the panel. One more than the depth, so
    /// that the positions of a channel use different sets of the cache.
    #[inline(always)]
    fn pitch(&self) -> usize {
        self.inputs + 1
    }

    /// The elements of a transformed panel of tiles, and of the memory that the transform needs.
    fn tile_panel(&self) -> usize {
        POSITIONS * self.pitch() * COLUMNS + input::patch(self)
    }

    /// The elements of a transformed panel of filters.
    fn filter_panel(&self) -> usize {
        POSITIONS * self.inputs * ROWS
    }

    fn shared(&self) -> Shared {
        let [tiles, filters] =
            [self.tile_panels() * self.tile_panel(), self.filter_panels() * self.filter_panel()];
        if tiles <= filters.max(SHARED / size_of::<f32>()) { Shared::Tiles } else { Shared::Filters }
    }

    fn shared_elements(&self) -> usize {
        match self.shared() {
            Shared::Filters => self.filter_panels() * self.filter_panel(),
            Shared::Tiles => self.tile_panels() * self.tile_panel(),
        }
    }

    /// The numbers of images and of channels of a task.
    fn task(&self) -> [usize; 2] {
        match self.shared() {
            // Enough images to fill a panel.
            Shared::Filters => {
                [self.images.div_ceil(SLOTS).max(COLUMNS.div_ceil(self.tiles_per_image())), self.outputs]
            }
            Shared::Tiles => [self.images, self.filter_panels().div_ceil(SLOTS).min(GROUP) * ROWS],
        }
    }

    fn slots(&self) -> usize {
        let [images, channels] = self.task();
        SLOTS.min(self.images.div_ceil(images) * self.outputs.div_ceil(channels))
    }

    /// The elements of a task's own transformed panels, and of its products.
    fn task_elements(&self) -> [usize; 2] {
        let [_, channels] = self.task();
        let panels = channels.div_ceil(ROWS);
        let own = match self.shared() {
            Shared::Filters => self.tile_panel(),
            Shared::Tiles => panels * self.filter_panel(),
        };
        [own, panels.min(GROUP) * POSITIONS * ROWS * COLUMNS]
    }

    /// The number of elements of the workspace.
    pub(crate) fn workspace(&self) -> usize {
        let [own, products] = self.task_elements();
        self.slots().saturating_mul(own.saturating_add(products)).saturating_add(self.shared_elements())
    }

    /// Runs the algorithm of [`forward`](Self::forward), or of [`input_grad`](Self::input_grad) from the gradient of the
    /// output. The operands are converted while they are transformed.
    pub(crate) fn convolve<T: Element, S: PackInto<T>>(
        &self,
        workers: &Workers,
        [from, weight]: [&[S]; 2],
        workspace: &mut [T],
        out: &mut [T],
    ) {
        let (weight, _) = weight.as_chunks::<TAPS>();
        let (shared, spaces) = workspace.split_at_mut(self.shared_elements());
        match self.shared() {
            Shared::Filters => workers.chunks(shared, self.filter_panel(), &|start, panel| {
                filters::transform(self, weight, start / self.filter_panel(), panel);
            }),
            Shared::Tiles => workers.chunks(shared, self.tile_panel(), &|start, panel| {
                self.transform_tiles(from, self.block(start / self.tile_panel()), panel);
            }),
        }
        let shared = &*shared;
        let ([images, channels], plane) = (self.task(), self.to[0] * self.to[1]);
        let tasks = Block::new(out, self.outputs * plane).split([images, channels * plane]);
        let [own, products] = self.task_elements();
        let work = |mut out: Block<'_, T>, space: &mut [T]| {
            let (own, products) = space.split_at_mut(own);
            let are_finite = match self.shared() {
                Shared::Filters => self.run_images(from, shared, [own, products], &mut out),
                Shared::Tiles => self.run_channels(weight, shared, [own, products], &mut out),
            };
            if !are_finite {
                simd::run(direct::Outputs { sizes: self, from, weight, out: &mut out });
            }
        };
        workers.share_with_scratch(tasks.collect(), self.slots(), spaces, own + products, &work);
    }

    /// Computes all channels of some images from transformed filters. Returns false if an output is not finite.
    fn run_images<T: Element, S: PackInto<T>>(
        &self,
        from: &[S],
        filters: &[T],
        [tiles, products]: [&mut [T]; 2],
        out: &mut Block<'_, T>,
    ) -> bool {
        let (images, mut are_finite) = (out.rows(), true);
        let end = images.end * self.tiles_per_image();
        for start in (images.start * self.tiles_per_image()..end).step_by(COLUMNS) {
            let block = [start, COLUMNS.min(end - start)];
            self.transform_tiles(from, block, tiles);
            are_finite &= self.compute(0, filters, (tiles, block), products, out);
        }
        are_finite
    }

    /// Computes some channels of all images from transformed tiles. Returns false if an output is not finite.
    fn run_channels<T: Element, S: PackInto<T>>(
        &self,
        weight: &[[S; TAPS]],
        tiles: &[T],
        [filters, products]: [&mut [T]; 2],
        out: &mut Block<'_, T>,
    ) -> bool {
        let plane = self.to[0] * self.to[1];
        let first = out.columns().start / plane;
        let panels = (out.columns().len() / plane).div_ceil(ROWS);
        for (number, panel) in filters.chunks_mut(self.filter_panel()).take(panels).enumerate() {
            filters::transform(self, weight, first / ROWS + number, panel);
        }
        let mut are_finite = true;
        for (number, tiles) in tiles.chunks(self.tile_panel()).enumerate() {
            are_finite &= self.compute(first, filters, (tiles, self.block(number)), products, out);
        }
        are_finite
    }

    /// The first tile of a panel of all images, and the number of its tiles.
    fn block(&self, panel: usize) -> [usize; 2] {
        let start = panel * COLUMNS;
        [start, COLUMNS.min(self.tile_count() - start)]
    }

    /// Transforms the tiles of a panel.
    fn transform_tiles<T: Element, S: PackInto<T>>(&self, from: &[S], block: [usize; 2], panel: &mut [T]) {
        let (panel, patch) = panel.split_at_mut(POSITIONS * self.pitch() * COLUMNS);
        let pad = |part: &_, channel, padded: &mut [T]| {
            simd::run(Pad { sizes: self, images: from, part, channel, padded });
        };
        simd::run(Input { sizes: self, pad: &pad, block, patch, panel });
    }

    /// Computes the channels of `out` from `first` on, for a block of tiles. Returns false if an output is not finite.
    fn compute<T: Element>(
        &self,
        first: usize,
        filters: &[T],
        (tiles, block): (&[T], [usize; 2]),
        products: &mut [T],
        out: &mut Block<'_, T>,
    ) -> bool {
        let mut are_finite = true;
        let end = out.columns().end / (self.to[0] * self.to[1]);
        let groups = (first..end).step_by(GROUP * ROWS);
        for (first, filters) in groups.zip(filters.chunks(GROUP * self.filter_panel())) {
            let channels = [first, (end - first).min(GROUP * ROWS)];
            self.multiply(filters, tiles, channels[1], products);
            are_finite &= simd::run(Outputs { sizes: self, products, block, channels, out });
        }
        are_finite
    }

    /// Multiplies panels to products `[panel of filters][position][row][lane]`.
    fn multiply<T: Element>(&self, filters: &[T], tiles: &[T], channels: usize, products: &mut [T]) {
        let (tiles, _) = tiles.as_chunks::<COLUMNS>();
        let (products, _) = products.as_chunks_mut::<COLUMNS>();
        let (products, _) = products.as_chunks_mut::<ROWS>();
        let mut tile = Tile::<T>::ZERO;
        for (position, rhs) in tiles.chunks(self.pitch()).take(POSITIONS).enumerate() {
            let rhs = &rhs[..self.inputs];
            let panels = filters.chunks(self.filter_panel()).zip(products.chunks_mut(POSITIONS));
            for (first, (filters, products)) in (0..channels).step_by(ROWS).zip(panels) {
                let (lhs, _) = filters.as_chunks::<ROWS>();
                let lhs = &lhs[position * self.inputs..][..self.inputs];
                for (number, (lhs, rhs)) in lhs.chunks(DEPTH).zip(rhs.chunks(DEPTH)).enumerate() {
                    T::multiply(lhs, rhs, ROWS.min(channels - first), &mut tile);
                    match number {
                        0 => products[position] = tile.0,
                        _ => add(&mut products[position], &tile),
                    }
                }
            }
        }
    }
}

fn add<T: Float>(product: &mut [[T; COLUMNS]; ROWS], tile: &Tile<T>) {
    let sums = product.as_flattened_mut().iter_mut().zip(tile.0.as_flattened());
    sums.for_each(|(sum, &more)| *sum += more);
}

#[cfg(test)]
mod tests;
