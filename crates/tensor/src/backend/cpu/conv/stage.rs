//! Staging: copies images to planes with zero padding, so that each tap of each place is an element.
//!
//! The copy also rounds `f32` images to bf16, once per element instead of once per tap. Images without padding are read
//! directly if their elements need no conversion.

use std::ops::Range;

use half::{bf16, f16};

use super::super::gemm::to_bf16;
use super::super::simd::{self, Loop};
use super::patches::{Patches, Places, Taps};
use crate::backend::Window;

/// One axis of the patches of a convolution or of its input gradient.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    /// Zeros in front of the elements.
    pub(super) before: usize,
    /// The length of the staged axis. It may omit the last elements, if no tap reads them.
    pub(super) len: usize,
    /// The taps that read an element or a zero: the number in the window and the offset.
    pub(super) taps: Vec<(usize, usize)>,
    /// The number of places.
    pub(super) places: usize,
    /// The distance of neighboring places.
    pub(super) step: usize,
}

impl Axis {
    /// The axis of a convolution with this many outputs, none of them empty.
    pub(super) fn of_convolution(window: &Window, outputs: usize) -> Self {
        let taps: Vec<_> = (0..window.size).map(|tap| (tap, tap * window.dilation)).collect();
        let reach = taps.last().map_or(0, |&(_, offset)| offset);
        let len = (outputs - 1) * window.stride + reach + 1;
        Self { before: window.padding, len, taps, places: outputs, step: window.stride }
    }

    /// The axes of the input gradient, of an input of `len` elements and `outputs` outputs. Elements whose positions have
    /// the same remainder by the stride see the same taps. There is one axis for each remainder, and all are staged alike.
    pub(super) fn of_input_grad(window: &Window, len: usize, outputs: usize) -> Vec<Self> {
        let stride = window.stride;
        // The output that reads element `first + stride·m` with a tap is number m + shift.
        let shift = |first: usize, tap: usize| {
            let distance = (first + window.padding).cast_signed() - (tap * window.dilation).cast_signed();
            (distance % stride.cast_signed() == 0).then_some(distance / stride.cast_signed())
        };
        let classes: Vec<(usize, Vec<(usize, isize)>)> = (0..stride.min(len))
            .map(|first| {
                let taps = (0..window.size).filter_map(|tap| Some((tap, shift(first, tap)?)));
                ((len - first).div_ceil(stride), taps.collect())
            })
            .collect();
        let shifts =
            || classes.iter().flat_map(|(places, taps)| taps.iter().map(move |tap| (*places, tap.1)));
        let before = shifts().map(|(_, shift)| shift.min(0).unsigned_abs()).max().unwrap_or(0);
        let at = |shift: isize| before.wrapping_add_signed(shift);
        let staged = shifts().map(|(places, shift)| at(shift) + places).max().unwrap_or(0);
        let staged = staged.max(before + outputs.min(1));
        let axis = |(places, taps): (usize, Vec<(usize, isize)>)| Self {
            before,
            len: staged,
            taps: taps.into_iter().map(|(tap, shift)| (tap, at(shift))).collect(),
            places,
            step: 1,
        };
        classes.into_iter().map(axis).collect()
    }
}

/// The planes of staged images.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planes {
    /// Rows and columns of a stored plane.
    from: [usize; 2],
    /// Rows and columns of a staged plane.
    pub(super) to: [usize; 2],
    before: [usize; 2],
}

impl Planes {
    /// The planes of images whose rows and columns have these sizes.
    pub(super) fn new(from: [usize; 2], axes: [&Axis; 2]) -> Self {
        Self { from, to: axes.map(|axis| axis.len), before: axes.map(|axis| axis.before) }
    }

    /// Whether stored planes are staged planes.
    pub(super) fn are_equal(&self) -> bool {
        self.from == self.to && self.before == [0; 2]
    }

    /// The elements of a staged plane.
    pub(super) const fn size(&self) -> usize {
        self.to[0].saturating_mul(self.to[1])
    }
}

/// Copies stored planes to staged planes.
struct CopyPlanes<'a, I, S> {
    planes: Planes,
    from: &'a [I],
    to: &'a mut [S],
}

impl<I: StageAs<S>, S: Copy + Default> Loop for CopyPlanes<'_, I, S> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Planes { from, to, before: [top, left] } = self.planes;
        let ([rows, columns], width) = ([from[0].min(to[0] - top), from[1].min(to[1] - left)], to[1]);
        let planes = self.from.chunks(from[0] * from[1]).zip(self.to.chunks_mut(self.planes.size()));
        for (plane, to) in planes {
            let (above, to) = to.split_at_mut(top * width);
            above.fill(S::default());
            let (inside, below) = to.split_at_mut(rows * width);
            for (row, to) in plane.chunks(from[1]).zip(inside.chunks_mut(width)) {
                to[..left].fill(S::default());
                let inside = &mut to[left..left + columns];
                inside.iter_mut().zip(&row[..columns]).for_each(|(to, from)| *to = from.staged());
                to[left + columns..].fill(S::default());
            }
            below.fill(S::default());
        }
    }
}

/// Staged images.
#[derive(Clone, Copy, Debug)]
pub(super) struct Images<'a, S> {
    data: &'a [S],
    planes: Planes,
    count: usize,
    channels: usize,
    /// Elements from one image to the next.
    step: usize,
}

/// Stages some channels of some images. `stored` has the shape `[images, all channels, rows, columns]`.
pub(super) fn stage<'a, I: StageAs<S>, S: Copy + Default>(
    stored: &'a [I],
    all_channels: usize,
    [images, channels]: [Range<usize>; 2],
    planes: Planes,
    staged: &'a mut [S],
) -> Images<'a, S> {
    let (plane, count) = (planes.from[0] * planes.from[1], images.len());
    let image = |image: usize| &stored[(image * all_channels + channels.start) * plane..];
    if let (true, Some(data)) = (planes.are_equal(), I::unchanged(image(images.start))) {
        return Images { data, planes, count, channels: channels.len(), step: all_channels * plane };
    }
    let step = channels.len() * planes.size();
    for (number, staged) in images.zip(staged.chunks_mut(step)) {
        simd::run(CopyPlanes { planes, from: &image(number)[..channels.len() * plane], to: staged });
    }
    Images { data: staged, planes, count, channels: channels.len(), step }
}

impl<'a, S> Images<'a, S> {
    /// The patches at the places and taps of two axes, with the channels as outer taps.
    pub(super) fn patches(&self, [rows, columns]: [&Axis; 2]) -> Patches<'a, S> {
        let width = self.planes.to[1];
        let row_taps = rows.taps.iter();
        let inner =
            row_taps.flat_map(|(_, row)| columns.taps.iter().map(move |(_, column)| row * width + column));
        let outer = (0..self.channels).map(|channel| channel * self.planes.size());
        let step = [self.step, rows.step * width, columns.step];
        Patches {
            data: self.data,
            taps: Taps { outer: outer.collect(), inner: inner.collect() },
            places: Places::new([self.count, rows.places, columns.places], step),
        }
    }
}

/// A stored element that is staged as an `S`.
pub(super) trait StageAs<S>: Copy + Send + Sync {
    /// The elements themselves, if they are staged unchanged.
    fn unchanged(elements: &[Self]) -> Option<&[S]>;

    /// The converted element.
    fn staged(self) -> S;
}

/// Implements [`StageAs`] for types that are staged unchanged.
macro_rules! unchanged {
    ($($type:ty)+) => {$(
        impl StageAs<$type> for $type {
            fn unchanged(elements: &[Self]) -> Option<&[Self]> {
                Some(elements)
            }

            #[inline(always)]
            fn staged(self) -> Self {
                self
            }
        }
    )+};
}

unchanged!(f32 f64 f16 bf16);

impl StageAs<bf16> for f32 {
    fn unchanged(_: &[Self]) -> Option<&[bf16]> {
        None
    }

    #[inline(always)]
    fn staged(self) -> bf16 {
        to_bf16(self)
    }
}
