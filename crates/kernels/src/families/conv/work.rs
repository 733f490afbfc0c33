//! The work of convolutions.

use crate::cost::{Class, Work, products, times};
use crate::layout::Layout;
use crate::window::Window;

/// The sizes of a convolution.
pub(super) struct Sizes {
    images: usize,
    groups: usize,
    inputs: usize,
    outputs: usize,
    from: usize,
    to: usize,
    taps: usize,
}

impl Sizes {
    pub(super) fn new(groups: usize, input: &Layout, weight: &Layout, out: &Layout) -> Self {
        let groups = groups.max(1);
        let (&[images, inputs, height, width], &[outputs, _, down, across], &[_, _, rows, columns]) =
            (input.shape().dims(), weight.shape().dims(), out.shape().dims())
        else {
            return Self { images: 0, groups, inputs: 0, outputs: 0, from: 0, to: 0, taps: 0 };
        };
        Self {
            images,
            groups,
            inputs: inputs / groups,
            outputs: outputs / groups,
            from: height.saturating_mul(width),
            to: rows.saturating_mul(columns),
            taps: down.saturating_mul(across),
        }
    }

    /// The product of `[rows, depth]` filters and `depth` elements for each of `columns` places of all images.
    fn product(&self, class: Class, [rows, columns, depth]: [usize; 3], is_half: bool) -> Work {
        let all = products(class, self.groups, [rows, columns, depth]);
        Work { is_half, ..all }
    }

    fn places(&self) -> usize {
        self.images.saturating_mul(self.to)
    }

    /// Selects the class of a convolution whose products have `channels` rows.
    fn class(&self, windows: &[Window; 2], [direct, winograd]: [Class; 2]) -> Class {
        if self.inputs == 1 && self.outputs == 1 && self.groups > 1 {
            return Class::Depthwise;
        }
        let is_plain = windows.iter().all(|window| {
            *window == Window { padding: window.padding, ..Window::new(3) } && window.padding <= 2
        });
        // As on the CPU, where tiles must be mostly full and channels many.
        let pays = self.groups == 1 && self.inputs.min(self.outputs) >= 32 && self.to >= 16;
        if is_plain && pays { winograd } else { direct }
    }

    fn multiply_adds(&self) -> u64 {
        times(&[self.images, self.groups, self.outputs, self.to, self.inputs, self.taps])
    }

    pub(super) fn forward(&self, windows: &[Window; 2], is_half: bool) -> Work {
        let class = self.class(windows, [Class::Convolution, Class::Winograd]);
        let depth = self.inputs.saturating_mul(self.taps);
        let work = self.product(class, [self.outputs, self.places(), depth], is_half);
        self.with_tiles(work)
    }

    pub(super) fn input_grad(&self, windows: &[Window; 2], is_half: bool) -> Work {
        let class = self.class(windows, [Class::Convolution, Class::Winograd]);
        let depth = self.outputs.saturating_mul(self.taps);
        let columns = self.images.saturating_mul(self.from);
        let work = self.product(class, [self.inputs, columns, depth], is_half);
        // With a stride, each place sees a part of the taps.
        let moved = times(&[self.groups, self.outputs, self.taps, self.places()]);
        self.with_tiles(Work {
            multiply_adds: self.multiply_adds(),
            computed: self.multiply_adds(),
            moved,
            ..work
        })
    }

    pub(super) fn weight_grad(&self, windows: &[Window; 2], is_half: bool) -> Work {
        let class = self.class(windows, [Class::ConvolutionWeightGrad, Class::WinogradWeightGrad]);
        let columns = self.inputs.saturating_mul(self.taps);
        let work = self.product(class, [self.outputs, columns, self.places()], is_half);
        self.with_tiles(work)
    }

    /// Winograd's algorithm multiplies in tiles of 2 × 2 places, and transforms images and filters instead of rearranging
    /// patches. The traffic of the images stands for their transforms.
    fn with_tiles(&self, work: Work) -> Work {
        let filters = times(&[self.inputs, self.outputs, self.taps]);
        let tiles = self.places().div_ceil(4);
        match work.class {
            _ if work.is_half => work,
            Class::Winograd => Work { moved: filters, sides: [work.sides[0], tiles], ..work },
            Class::WinogradWeightGrad => Work { moved: filters, sides: [self.outputs, self.inputs], ..work },
            _ => work,
        }
    }
}
