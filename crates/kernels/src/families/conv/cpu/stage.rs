//! Staging: copies images to planes with zero padding, so that each tap of each place is an element, and neighboring places
//! are adjacent.
//!
//! For products of bf16 pairs, the copy also joins the elements of two neighboring channels, once per element instead of once per
//! tap. Images without padding and strides are read directly if their elements are not joined.

use std::ops::Range;

use half::{bf16, f16};

use super::patches::{Patches, Places, Taps};
use crate::cpu::gemm::{HALF, PackInto, Pair};
use crate::cpu::short;
use crate::cpu::simd::{self, Loop};
use crate::window::Window;

/// An axis has a part for each tap if it would otherwise be this many times longer.
const SPARSE: usize = 4;

/// The most filters whose product takes less time than packing the patches.
pub(super) const FILTERS: usize = 64;

/// Rows have gaps if they add at most one such part to a product.
const GAPS: usize = 6;

/// One axis of the patches of a convolution or of its input gradient: parts of equal length.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    parts: Vec<Part>,
    /// The elements and zeros of a part.
    part_len: usize,
    /// The distance of the elements of a part.
    stride: usize,
    /// The taps that read an element or a zero: the number in the window and the offset, if parts follow one another.
    pub(super) taps: Vec<(usize, usize)>,
    /// The number of places.
    pub(super) places: usize,
}

/// Elements of an axis that are `stride` apart, with zeros before and behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    /// Zeros in front of the elements.
    zeros: usize,
    /// The first element.
    first: usize,
    count: usize,
}

impl Part {
    /// The part of an axis of `len` elements whose position k is element `start + k·stride`, or a zero outside of the axis.
    fn new(start: i128, stride: usize, part_len: usize, len: usize) -> Self {
        let stride = stride.max(1) as i128;
        let zeros = if start < 0 { (-start + stride - 1) / stride } else { 0 };
        let first = start + zeros * stride;
        let count = (len as i128 - first + stride - 1).max(0) / stride;
        let zeros = usize::try_from(zeros).unwrap_or(usize::MAX).min(part_len);
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(part_len - zeros);
        Self { zeros, first: if count == 0 { 0 } else { first as usize }, count }
    }
}

impl Axis {
    /// The axis of a convolution of `len` elements with this many outputs, none of them empty. Elements that the same tap
    /// reads at neighboring places are adjacent: their positions have the same remainder by the stride.
    pub(super) fn of_convolution(window: &Window, len: usize, outputs: usize) -> Self {
        let stride = window.stride;
        let start = |offset: usize| offset as i128 - window.padding as i128;
        let offsets: Vec<usize> = (0..window.size).map(|tap| tap.saturating_mul(window.dilation)).collect();
        let mut remainders: Vec<usize> = offsets.iter().map(|offset| offset % stride).collect();
        remainders.sort_unstable();
        remainders.dedup();
        let reach = offsets.iter().map(|offset| offset / stride).max().unwrap_or(0);
        let part_len = reach.saturating_add(outputs);
        if is_sparse(remainders.len().saturating_mul(part_len), len, outputs.saturating_mul(offsets.len())) {
            let starts = offsets.into_iter().map(start).enumerate();
            return Self::by_tap(starts, stride, len, outputs);
        }
        let parts = remainders.iter().map(|&remainder| Part::new(start(remainder), stride, part_len, len));
        let part = |offset: usize| remainders.partition_point(|&remainder| remainder < offset % stride);
        let taps = offsets.iter().map(|&offset| part(offset) * part_len + offset / stride).enumerate();
        Self { parts: parts.collect(), part_len, stride, taps: taps.collect(), places: outputs }
    }

    /// The axes of the input gradient, of an input of `len` elements and `outputs` outputs. Elements whose positions have
    /// the same remainder by the stride see the same taps. There is one axis for each remainder. All are staged alike,
    /// unless they have a part for each tap.
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
                return Self::by_tap(taps.into_iter(), 1, outputs, places);
            }
            let parts = vec![Part::new(-before, 1, staged, outputs)];
            let taps = taps.into_iter().map(|(tap, shift)| (tap, (before + shift) as usize)).collect();
            Self { parts, part_len: staged, stride: 1, taps, places }
        };
        classes.into_iter().map(axis).collect()
    }

    /// An axis with a part for each tap. `starts` are the numbers of the taps and the elements that they read first.
    fn by_tap(starts: impl Iterator<Item = (usize, i128)>, stride: usize, len: usize, places: usize) -> Self {
        let (mut parts, mut taps) = (Vec::new(), Vec::new());
        for (tap, start) in starts {
            taps.push((tap, parts.len() * places));
            parts.push(Part::new(start, stride, places, len));
        }
        Self { parts, part_len: places, stride, taps, places }
    }

    const fn len(&self) -> usize {
        self.parts.len().saturating_mul(self.part_len)
    }

    /// Whether an axis of `len` elements needs no staging.
    fn is_unchanged(&self, len: usize) -> bool {
        let all = Part { zeros: 0, first: 0, count: len };
        self.stride == 1 && self.part_len == len && self.parts == [all]
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
        self.axes.iter().zip(self.from).all(|(axis, len)| axis.is_unchanged(len))
    }

    /// Whether both stage the same planes, of which they may read other taps.
    pub(super) fn are_staged_like(&self, other: &Self) -> bool {
        let are_alike =
            |(a, b): (&&Axis, &&Axis)| a.parts == b.parts && a.part_len == b.part_len && a.stride == b.stride;
        self.from == other.from && self.axes.iter().zip(&other.axes).all(are_alike)
    }

    /// The places of images that are `step` elements apart. With a gap, the places of an image are a single run, and so are
    /// the elements of each tap.
    pub(super) fn places(&self, images: usize, step: usize, gap: usize) -> Places {
        let ([rows, columns], width) = (self.axes.map(|axis| axis.places), self.axes[1].part_len);
        if gap == 0 {
            return Places::new([images, rows, columns], [step, width, 1]);
        }
        Places::new([images, 1, rows.saturating_mul(width).saturating_sub(gap)], [step, 0, 1])
    }

    /// The numbers between rows for a product that reads patches of few filters directly. The product computes the gaps, too.
    pub(super) fn gap(&self, filters: usize) -> usize {
        let columns = self.axes[1].places;
        let gap = self.axes[1].part_len - columns;
        let is_small = gap.saturating_mul(GAPS) <= columns && !columns.is_multiple_of(HALF);
        if filters <= FILTERS && is_small { gap } else { 0 }
    }

    /// The offsets of the taps. The parts of the rows and columns are planes of their own.
    pub(super) fn taps(&self) -> Vec<usize> {
        let [rows, columns] = self.axes;
        let (width, part) = (columns.part_len, rows.part_len.saturating_mul(columns.part_len));
        let across = |row: usize| {
            columns.taps.iter().map(move |(_, column)| {
                let number = row / rows.part_len * columns.parts.len() + column / width;
                number * part + row % rows.part_len * width + column % width
            })
        };
        rows.taps.iter().flat_map(|&(_, row)| across(row)).collect()
    }

    /// The elements of a staged plane.
    pub(super) const fn size(&self) -> usize {
        self.axes[0].len().saturating_mul(self.axes[1].len())
    }
}

/// Copies stored planes to staged planes.
struct CopyPlanes<'a, I, S> {
    planes: Planes<'a>,
    from: &'a [I],
    to: &'a mut [S],
}

impl<I: StageAs<S>, S: Copy + Default> Loop for CopyPlanes<'_, I, S> {
    type Element = S;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let [height, width] = self.planes.from;
        let size = self.planes.size();
        if size == 0 {
            return;
        }
        for (from, to) in self.from.chunks(I::CHANNELS * height * width).zip(self.to.chunks_mut(size)) {
            // The whole plane, because single zeros between rows take longer.
            to.fill(S::default());
            let (first, second) = from.split_at(height * width);
            copy_plane(to, first, Some(second).filter(|second| !second.is_empty()), self.planes);
        }
    }
}

/// Copies the planes of one channel, or of two, between the zeros of a staged plane.
#[inline(always)]
fn copy_plane<I: StageAs<S>, S: Copy>(to: &mut [S], first: &[I], second: Option<&[I]>, planes: Planes<'_>) {
    let Planes { from: [_, width], axes: [rows, columns] } = planes;
    let row_len = columns.part_len;
    let mut parts = to.chunks_mut(rows.part_len * row_len);
    for down in &rows.parts {
        for (across, to) in columns.parts.iter().zip(&mut parts) {
            for index in 0..down.count {
                let start = (down.first + index * rows.stride) * width;
                let row = start + across.first..start + width;
                let to = &mut to[(down.zeros + index) * row_len + across.zeros..][..across.count];
                let second = second.map(|second| &second[row.clone()]);
                copy_part(to, &first[row], second, columns.stride);
            }
        }
    }
}

/// Copies elements that are `stride` apart.
#[inline(always)]
fn copy_part<I: StageAs<S>, S: Copy>(to: &mut [S], first: &[I], second: Option<&[I]>, stride: usize) {
    if let (1, Some(first)) = (stride, I::unchanged(first)) {
        return short::copy(to, first);
    }
    match (stride, to.len()) {
        (1, 16..) => join::<I, S, 16, 1>(to, first, second),
        (1, 8..) => join::<I, S, 8, 1>(to, first, second),
        (1, 4..) => join::<I, S, 4, 1>(to, first, second),
        (2, 8..) => join::<I, S, 8, 2>(to, first, second),
        _ => {
            for (index, to) in to.iter_mut().enumerate() {
                *to = first[stride * index]
                    .staged(second.map_or(I::default(), |second| second[stride * index]));
            }
        }
    }
}

/// Copies at least `LEN` elements that are `STRIDE` apart, in pieces of constant length. The last ones overlap, like those of
/// [`short::copy`].
#[inline(always)]
fn join<I: StageAs<S>, S: Copy, const LEN: usize, const STRIDE: usize>(
    to: &mut [S],
    first: &[I],
    second: Option<&[I]>,
) {
    for piece in 0..to.len().div_ceil(LEN) {
        let start = (piece * LEN).min(to.len() - LEN);
        let to = &mut to[start..start + LEN];
        // The last element may have no neighbor.
        let (start, len) = (STRIDE * start, STRIDE * (LEN - 1) + 1);
        let first = &first[start..start + len];
        match second.map(|second| &second[start..start + len]) {
            Some(second) => {
                (0..LEN).for_each(|index| to[index] = first[STRIDE * index].staged(second[STRIDE * index]));
            }
            None => (0..LEN).for_each(|index| to[index] = first[STRIDE * index].staged(I::default())),
        }
    }
}

/// Staged images.
#[derive(Clone, Copy, Debug)]
pub(super) struct Images<'a, S> {
    data: &'a [S],
    planes: Planes<'a>,
    count: usize,
    /// Channels, or pairs of channels.
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
    let (plane, step) =
        (planes.from[0] * planes.from[1], channels.len().div_ceil(I::CHANNELS) * planes.size());
    if !is_unchanged::<I, S>(planes) {
        for (image, staged) in images.clone().zip(staged.chunks_mut(step.max(1))) {
            let from = &stored[(image * all_channels + channels.start) * plane..][..channels.len() * plane];
            simd::run(CopyPlanes { planes, from, to: staged });
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
    let (count, of_image) = (images.len(), channels.len().div_ceil(I::CHANNELS));
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
    /// The patches at the places and taps of two axes, with the channels, or pairs of them, as outer taps.
    pub(super) fn patches(&self, axes: [&Axis; 2], gap: usize) -> Patches<'a, S> {
        let planes = Planes { axes, ..self.planes };
        let outer = (0..self.channels).map(|channel| channel * planes.size()).collect();
        let places = planes.places(self.count, self.step, gap);
        Patches {
            data: self.data,
            taps: Taps { outer, inner: planes.taps() },
            places,
            rows: Vec::new(),
            last_row: 0,
        }
    }

    pub(super) const fn data(&self) -> &'a [S] {
        self.data
    }
}

/// A stored element that is staged as an `S`.
pub(super) trait StageAs<S>: Copy + Default + Send + Sync {
    /// The number of neighboring channels whose elements are staged as one.
    const CHANNELS: usize;

    /// The elements themselves, if they are staged unchanged.
    fn unchanged(elements: &[Self]) -> Option<&[S]>;

    /// The staged element. The one of the second channel is ignored if there is one channel.
    fn staged(self, second: Self) -> S;
}

/// Implements [`StageAs`] for types that are staged unchanged.
macro_rules! unchanged {
    ($($type:ty)+) => {$(
        impl StageAs<$type> for $type {
            const CHANNELS: usize = 1;

            fn unchanged(elements: &[Self]) -> Option<&[Self]> {
                Some(elements)
            }

            #[inline(always)]
            fn staged(self, _: Self) -> Self {
                self
            }
        }
    )+};
}

unchanged!(f32 f64 f16 bf16);

impl StageAs<Pair> for bf16 {
    const CHANNELS: usize = 2;

    fn unchanged(_: &[Self]) -> Option<&[Pair]> {
        None
    }

    #[inline(always)]
    fn staged(self, second: Self) -> Pair {
        self.pack(second)
    }
}
