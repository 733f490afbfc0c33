//! The patches of images as operands of a matrix product, without the im2col matrix.
//!
//! An entry of that matrix belongs to a place of the output and a tap of the window. It is the element of the
//! [staged](super::stage) image at the sum of two offsets: one of the place and one of the tap. A product over taps uses
//! places as lanes ([`ByPlace`]), and a product over places uses taps as lanes ([`ByTap`]). Filters and gradients, whose
//! offsets are also such sums, are packed by the same code.

use std::ops::Range;

use super::super::gemm::{Depth, GROUP, Operand, PackInto, RUN, interleave};
use super::super::simd::{self, Loop};

/// Elements at the sum of the offsets of a place and a tap.
#[derive(Debug)]
pub(super) struct Patches<'a, S> {
    pub(super) data: &'a [S],
    pub(super) taps: Taps,
    pub(super) places: Places,
}

impl<S> Patches<'_, S> {
    /// Exchanges the outer and inner offsets of taps.
    pub(super) fn with_outer_taps(self) -> Self {
        let Taps { outer, inner } = self.taps;
        Self { taps: Taps { outer: inner, inner: outer }, ..self }
    }
}

/// The offsets of taps: the sum of an outer offset, such as that of a channel, and an inner offset.
#[derive(Clone, Debug)]
pub(super) struct Taps {
    pub(super) outer: Vec<usize>,
    pub(super) inner: Vec<usize>,
}

impl Taps {
    pub(super) const fn len(&self) -> usize {
        self.outer.len() * self.inner.len()
    }

    fn at(&self, number: usize) -> usize {
        self.outer[number / self.inner.len()] + self.inner[number % self.inner.len()]
    }

    /// The offsets of the taps from number `first` on.
    fn from(&self, first: usize) -> Offsets<'_> {
        let (outer, inner) = (first / self.inner.len(), first % self.inner.len());
        Offsets { outer: &self.outer[outer.min(self.outer.len())..], inner: &self.inner, next: inner }
    }
}

/// The offsets of consecutive taps. A type of its own, because the compiler does not inline nested iterators.
struct Offsets<'a> {
    outer: &'a [usize],
    inner: &'a [usize],
    /// The next inner offset.
    next: usize,
}

impl Iterator for Offsets<'_> {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        let (first, rest) = self.outer.split_first()?;
        let offset = first + self.inner[self.next];
        self.next += 1;
        if self.next == self.inner.len() {
            (self.outer, self.next) = (rest, 0);
        }
        Some(offset)
    }
}

/// The offsets of places, which form a grid in each image.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    /// Images, rows and columns.
    size: [usize; 3],
    /// Elements from one image, row and column to the next.
    step: [usize; 3],
}

impl Places {
    pub(super) fn new(size: [usize; 3], step: [usize; 3]) -> Self {
        let [images, rows, columns] = size;
        let [image, row, column] = step;
        // Rows that continue one another are a single row.
        if row == columns.saturating_mul(column) {
            return Self { size: [images, 1, rows * columns], step: [image, row * rows, column] };
        }
        Self { size, step }
    }

    /// Elements from one place of a row to the next.
    pub(super) const fn column_step(&self) -> usize {
        self.step[2]
    }

    pub(super) const fn len(&self) -> usize {
        let [images, rows, columns] = self.size;
        images * rows * columns
    }

    /// Splits a range of places into runs within a row: the number of places and the offset of the first one.
    pub(super) fn runs(&self, range: Range<usize>) -> impl Iterator<Item = (usize, usize)> + use<> {
        let ([_, rows, columns], step) = (self.size, self.step);
        let mut at = range.start;
        let (mut row, mut column) = (at / columns, at % columns);
        std::iter::from_fn(move || {
            let len = (columns - column).min(range.end - at);
            if len == 0 {
                return None;
            }
            let offset = row / rows * step[0] + row % rows * step[1] + column * step[2];
            (at, row, column) = (at + len, row + 1, 0);
            Some((len, offset))
        })
    }
}

/// Patches with places as lanes and taps as depth.
#[derive(Clone, Copy, Debug)]
pub(super) struct ByPlace<'a, S>(pub(super) &'a Patches<'a, S>);

/// Patches with taps as lanes and places as depth.
#[derive(Clone, Copy, Debug)]
pub(super) struct ByTap<'a, S>(pub(super) &'a Patches<'a, S>);

/// Consecutive places whose elements have a constant distance.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    /// The number of the first place in the panel.
    lane: usize,
    len: usize,
    offset: usize,
}

impl<P: Depth, S: PackInto<P>> Operand<P> for ByPlace<'_, S> {
    fn pack<const W: usize>(&self, lane: usize, depth: Range<usize>, panel: &mut [[P; W]]) {
        let Self(Patches { data, taps, places }) = self;
        let end = places.len().min(lane + W);
        let (mut runs, mut count, mut filled) = ([Run::default(); W], 0, 0);
        for ((len, offset), run) in places.runs(lane..end).zip(&mut runs) {
            *run = Run { lane: filled, len, offset };
            (count, filled) = (count + 1, filled + len);
        }
        if filled < W {
            panel.as_flattened_mut().fill(S::default().pack(S::default()));
        }
        let runs = &runs[..count];
        let equal = runs.iter().all(|run| run.len == runs[0].len);
        let offsets = taps.from(depth.start);
        let rows = FillRows { data, runs, step: places.step[2], offsets, depth: depth.len(), panel };
        match runs.first().map_or(0, |run| run.len) {
            32 if W == 32 && equal && rows.step == 1 => simd::run(rows.of_len::<32>()),
            16 if equal && rows.step == 1 => simd::run(rows.of_len::<16>()),
            12 if W == 12 && equal && rows.step == 1 => simd::run(rows.of_len::<12>()),
            8 if equal && rows.step == 1 => simd::run(rows.of_len::<8>()),
            4 if equal && rows.step == 1 => simd::run(rows.of_len::<4>()),
            _ => simd::run(rows.of_len::<0>()),
        }
    }
}

/// Fills the rows of a panel of places.
struct FillRows<'a, S, P, const W: usize> {
    data: &'a [S],
    runs: &'a [Run],
    /// Elements from one place of a run to the next.
    step: usize,
    /// The offset of each depth.
    offsets: Offsets<'a>,
    depth: usize,
    panel: &'a mut [[P; W]],
}

impl<S, P, const W: usize> FillRows<'_, S, P, W> {
    /// States that all runs have `LEN` adjacent places; 0 for other runs.
    const fn of_len<const LEN: usize>(self) -> RunsOf<Self, LEN> {
        RunsOf(self)
    }
}

/// Runs of constant length, whose copies need no loop.
struct RunsOf<T, const LEN: usize>(T);

impl<P: Depth, S: PackInto<P>, const W: usize, const LEN: usize> Loop for RunsOf<FillRows<'_, S, P, W>, LEN> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let FillRows { data, runs, step, mut offsets, depth, panel } = self.0;
        for (number, row) in panel.iter_mut().enumerate() {
            let Some(first) = offsets.next() else { return };
            // The last element of an odd depth is paired with 0.
            let second = if P::PER_ROW == 1 { None } else { offsets.next() };
            let second = second.filter(|_| number * P::PER_ROW + 1 < depth);
            for run in runs {
                let to = &mut row[run.lane..run.lane + if LEN == 0 { run.len } else { LEN }];
                let from = &data[first + run.offset..];
                let next = second.map(|second| &data[second + run.offset..]);
                if LEN == 0 {
                    fill_run(to, from, next, step);
                } else {
                    copy_run::<P, S, LEN>(to, from, next);
                }
            }
        }
    }
}

/// Packs `LEN` adjacent places of one depth, or of two.
#[inline(always)]
fn copy_run<P: Depth, S: PackInto<P>, const LEN: usize>(to: &mut [P], from: &[S], next: Option<&[S]>) {
    let mut packed = [S::default().pack(S::default()); LEN];
    let from = &from[..LEN];
    match next {
        Some(next) => {
            let next = &next[..LEN];
            packed.iter_mut().zip(from).zip(next).for_each(|((to, from), &next)| *to = from.pack(next));
        }
        None => packed.iter_mut().zip(from).for_each(|(to, from)| *to = from.pack(S::default())),
    }
    to.copy_from_slice(&packed);
}

/// Packs places that are `step` elements apart.
#[inline(always)]
fn fill_run<P: Depth, S: PackInto<P>>(to: &mut [P], from: &[S], next: Option<&[S]>, step: usize) {
    let len = to.len();
    match (step, next) {
        (1, None) => to.iter_mut().zip(from).for_each(|(to, from)| *to = from.pack(S::default())),
        (1, Some(next)) => {
            let (from, next) = (&from[..len], &next[..len]);
            to.iter_mut().zip(from).zip(next).for_each(|((to, from), &next)| *to = from.pack(next));
        }
        (_, None) => {
            for (index, to) in to.iter_mut().enumerate() {
                *to = from[index * step].pack(S::default());
            }
        }
        (_, Some(next)) => {
            for (index, to) in to.iter_mut().enumerate() {
                *to = from[index * step].pack(next[index * step]);
            }
        }
    }
}

impl<P: Depth, S: PackInto<P>> Operand<P> for ByTap<'_, S> {
    fn pack<const W: usize>(&self, lane: usize, depth: Range<usize>, panel: &mut [[P; W]]) {
        let Self(Patches { data, taps, places }) = self;
        let end = taps.len().min(lane + W);
        let mut lanes = [None; W];
        lanes.iter_mut().zip(lane..end).for_each(|(to, tap)| *to = Some(taps.at(tap)));
        simd::run(FillLanes { data, lanes, places: *places, depth, panel });
    }
}

/// Fills a panel of taps.
struct FillLanes<'a, S, P, const W: usize> {
    data: &'a [S],
    /// The offset of each lane; `None` past the last tap.
    lanes: [Option<usize>; W],
    places: Places,
    depth: Range<usize>,
    panel: &'a mut [[P; W]],
}

impl<P: Depth, S: PackInto<P>, const W: usize> Loop for FillLanes<'_, S, P, W> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { data, lanes, places, depth, panel } = self;
        let step = places.step[2];
        // The elements of a group of lanes, in the order of depth.
        let mut staged = [[S::default(); 2 * RUN]; GROUP];
        let mut runs = [Run::default(); 2 * RUN];
        for (number, rows) in panel.chunks_mut(RUN).enumerate() {
            let start = depth.start + number * RUN * P::PER_ROW;
            let end = depth.end.min(start + RUN * P::PER_ROW);
            let (mut count, mut filled) = (0, 0);
            for ((len, offset), run) in places.runs(start..end).zip(&mut runs) {
                *run = Run { lane: filled, len, offset };
                (count, filled) = (count + 1, filled + len);
            }
            let runs = &runs[..count];
            let equal =
                if step == 1 && runs.iter().all(|run| run.len == runs[0].len) { runs[0].len } else { 0 };
            for (group, lanes) in lanes.chunks(GROUP).enumerate() {
                for (lane, staged) in lanes.iter().zip(&mut staged) {
                    let Some(lane) = *lane else {
                        *staged = [S::default(); 2 * RUN];
                        continue;
                    };
                    let data = &data[lane..];
                    match equal {
                        4 => copy_equal::<S, 4>(staged, data, runs),
                        8 => copy_equal::<S, 8>(staged, data, runs),
                        16 => copy_equal::<S, 16>(staged, data, runs),
                        32 => copy_equal::<S, 32>(staged, data, runs),
                        _ => {
                            for run in runs {
                                copy_places(&mut staged[run.lane..][..run.len], &data[run.offset..], step);
                            }
                        }
                    }
                    staged[filled..].fill(S::default());
                }
                interleave(&staged, group * GROUP, rows);
            }
        }
    }
}

/// Copies runs of `LEN` adjacent places.
#[inline(always)]
fn copy_equal<S: Copy, const LEN: usize>(to: &mut [S], from: &[S], runs: &[Run]) {
    for (to, run) in to.as_chunks_mut::<LEN>().0.iter_mut().zip(runs) {
        to.copy_from_slice(&from[run.offset..][..LEN]);
    }
}

/// Copies places that are `step` elements apart.
#[inline(always)]
fn copy_places<S: Copy>(to: &mut [S], from: &[S], step: usize) {
    if step == 1 {
        to.copy_from_slice(&from[..to.len()]);
    } else {
        to.iter_mut().enumerate().for_each(|(index, to)| *to = from[index * step]);
    }
}
