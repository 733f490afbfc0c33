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

/// An axis is staged place by place if it would otherwise be this many times longer.
const SPARSE: usize = 4;

/// One axis of the patches of a convolution or of its input gradient.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    /// Zeros in front of the elements.
    before: usize,
    /// The length of the staged axis. It may omit the last elements, if no tap reads them.
    len: usize,
    /// The taps that read an element or a zero: the number in the window and the offset.
    pub(super) taps: Vec<(usize, usize)>,
    /// The number of places.
    pub(super) places: usize,
    /// The distance of neighboring places.
    step: usize,
    /// The element at each position of the staged axis, or a zero, if the axis is staged place by place.
    sources: Option<Vec<Option<usize>>>,
}

impl Axis {
    /// The axis of a convolution of `len` elements with this many outputs, none of them empty.
    pub(super) fn of_convolution(window: &Window, len: usize, outputs: usize) -> Self {
        let reach = window.size.saturating_sub(1).saturating_mul(window.dilation);
        let staged = outputs.saturating_sub(1).saturating_mul(window.stride).saturating_add(reach);
        let staged = staged.saturating_add(1);
        let taps: Vec<usize> = (0..window.size).collect();
        if is_sparse(staged, len, outputs.saturating_mul(taps.len())) {
            return Self::by_place(&taps, outputs, |output, tap| window.at(output, tap, len));
        }
        let taps = taps.into_iter().map(|tap| (tap, tap * window.dilation)).collect();
        let (before, places) = (window.padding, outputs);
        Self { before, len: staged, taps, places, step: window.stride, sources: None }
    }

    /// The axes of the input gradient, of an input of `len` elements and `outputs` outputs. Elements whose positions have
    /// the same remainder by the stride see the same taps. There is one axis for each remainder. All are staged alike,
    /// unless they are staged place by place.
    pub(super) fn of_input_grad(window: &Window, len: usize, outputs: usize) -> Vec<Self> {
        let stride = window.stride;
        // The output that reads element `first + stride·m` with a tap is number m + shift.
        let shift = |first: usize, tap: usize| {
            let distance = first as i128 + window.padding as i128 - tap as i128 * window.dilation as i128;
            (distance % stride as i128 == 0).then_some(distance / stride as i128)
        };
        let classes: Vec<(usize, Vec<(usize, i128)>)> = (0..stride.min(len))
            .map(|first| {
                let taps = (0..window.size).filter_map(|tap| Some((tap, shift(first, tap)?)));
                ((len - first).div_ceil(stride), taps.collect())
            })
            .collect();
        let shifts =
            || classes.iter().flat_map(|(places, taps)| taps.iter().map(move |tap| (*places, tap.1)));
        let before = shifts().map(|(_, shift)| -shift.min(0)).max().unwrap_or(0);
        let end = shifts().map(|(places, shift)| shift + places as i128).max().unwrap_or(0).max(1);
        let staged = usize::try_from(before + end).unwrap_or(usize::MAX);
        let entries = shifts().map(|(places, _)| places).sum();
        let axis = |(places, taps): (usize, Vec<(usize, i128)>)| {
            if is_sparse(staged, outputs, entries) {
                let (numbers, shifts): (Vec<usize>, Vec<i128>) = taps.into_iter().unzip();
                let mut axis = Self::by_place(&numbers, places, |place, tap| {
                    usize::try_from(place as i128 + shifts[tap]).ok().filter(|&output| output < outputs)
                });
                axis.taps.iter_mut().zip(&numbers).for_each(|(tap, &number)| tap.0 = number);
                return axis;
            }
            let before = before as usize;
            let taps =
                taps.into_iter().map(|(tap, shift)| (tap, (before as i128 + shift) as usize)).collect();
            Self { before, len: staged, taps, places, step: 1, sources: None }
        };
        classes.into_iter().map(axis).collect()
    }

    /// An axis that holds each tap of each place. `source` is the element of a place and of the tap at an index.
    fn by_place(taps: &[usize], places: usize, source: impl Fn(usize, usize) -> Option<usize>) -> Self {
        let count = taps.len();
        let sources: Vec<_> = (0..places)
            .flat_map(|place| (0..count).map(move |tap| (place, tap)))
            .map(|(place, tap)| source(place, tap))
            .collect();
        Self {
            before: 0,
            len: sources.len(),
            taps: taps.iter().enumerate().map(|(index, &tap)| (tap, index)).collect(),
            places,
            step: count,
            sources: Some(sources),
        }
    }

    /// The stored element at a position of the staged axis, of `len` elements.
    fn source(&self, position: usize, len: usize) -> Option<usize> {
        let source = match &self.sources {
            None => position.checked_sub(self.before),
            Some(sources) => sources[position],
        };
        source.filter(|&source| source < len)
    }
}

/// Whether a staged axis is much longer than its elements and the entries of all taps.
const fn is_sparse(staged: usize, elements: usize, entries: usize) -> bool {
    staged / SPARSE > elements.saturating_add(entries)
}

/// The planes of staged images.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planes<'a> {
    /// Rows and columns of a stored plane.
    from: [usize; 2],
    axes: [&'a Axis; 2],
}

impl<'a> Planes<'a> {
    /// The planes of images whose rows and columns have these sizes.
    pub(super) const fn new(from: [usize; 2], axes: [&'a Axis; 2]) -> Self {
        Self { from, axes }
    }

    /// Whether stored planes are staged planes.
    pub(super) fn are_equal(&self) -> bool {
        let mut axes = self.axes.iter().zip(self.from);
        axes.all(|(axis, len)| axis.sources.is_none() && axis.before == 0 && axis.len == len)
    }

    /// Whether the staged planes hold each tap of each place of an axis.
    pub(super) fn are_by_place(&self) -> bool {
        self.axes.iter().any(|axis| axis.sources.is_some())
    }

    /// The elements of a staged plane.
    pub(super) const fn size(&self) -> usize {
        self.axes[0].len.saturating_mul(self.axes[1].len)
    }
}

/// Copies stored planes to staged planes.
struct CopyPlanes<'a, I, S> {
    planes: Planes<'a>,
    from: &'a [I],
    to: &'a mut [S],
}

impl<I: StageAs<S>, S: Copy + Default> Loop for CopyPlanes<'_, I, S> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Planes { from, axes } = self.planes;
        let [height, width] = axes.map(|axis| axis.len);
        // Taps may read nothing but padding.
        let [top, left] = axes.map(|axis| axis.before.min(axis.len));
        let [rows, columns] = [from[0].min(height - top), from[1].min(width - left)];
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

/// Copies stored planes to planes of which an axis is staged place by place.
fn copy_by_place<I: StageAs<S>, S: Copy + Default>(planes: Planes<'_>, from: &[I], to: &mut [S]) {
    let ([height, width], [rows, columns]) = (planes.from, planes.axes);
    if planes.size() == 0 {
        return;
    }
    for (plane, to) in from.chunks(height * width).zip(to.chunks_mut(planes.size())) {
        for (row, to) in to.chunks_mut(columns.len).enumerate() {
            let row = rows.source(row, height);
            for (column, to) in to.iter_mut().enumerate() {
                let source = row.zip(columns.source(column, width));
                *to = source.map_or(S::default(), |(row, column)| plane[row * width + column].staged());
            }
        }
    }
}

/// Staged images.
#[derive(Clone, Copy, Debug)]
pub(super) struct Images<'a, S> {
    data: &'a [S],
    planes: Planes<'a>,
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
    planes: Planes<'a>,
    staged: &'a mut [S],
) -> Images<'a, S> {
    let (plane, step) = (planes.from[0] * planes.from[1], channels.len() * planes.size());
    if !is_unchanged::<I, S>(planes) {
        for (image, staged) in images.clone().zip(staged.chunks_mut(step.max(1))) {
            let from = &stored[(image * all_channels + channels.start) * plane..][..channels.len() * plane];
            match planes.are_by_place() {
                false => simd::run(CopyPlanes { planes, from, to: staged }),
                true => copy_by_place(planes, from, staged),
            }
        }
    }
    staged_images(stored, all_channels, [images, channels], planes, staged)
}

/// The result of [`stage`] for images that it has staged before.
pub(super) fn staged_images<'a, I: StageAs<S>, S>(
    stored: &'a [I],
    all_channels: usize,
    [images, channels]: [Range<usize>; 2],
    planes: Planes<'a>,
    staged: &'a [S],
) -> Images<'a, S> {
    let plane = planes.from[0] * planes.from[1];
    let (count, of_image) = (images.len(), channels.len());
    let first = &stored[(images.start * all_channels + channels.start) * plane..];
    match I::unchanged(first).filter(|_| is_unchanged::<I, S>(planes)) {
        Some(data) => Images { data, planes, count, channels: of_image, step: all_channels * plane },
        None => Images { data: staged, planes, count, channels: of_image, step: of_image * planes.size() },
    }
}

/// Whether stored images are staged images.
fn is_unchanged<I: StageAs<S>, S>(planes: Planes<'_>) -> bool {
    planes.are_equal() && I::unchanged(&[]).is_some()
}

impl<'a, S> Images<'a, S> {
    /// The patches at the places and taps of two axes, with the channels as outer taps.
    pub(super) fn patches(&self, [rows, columns]: [&Axis; 2]) -> Patches<'a, S> {
        let width = self.planes.axes[1].len;
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
