//! The patches of images as operands of a matrix product, without the im2col matrix.
//!
//! An entry of that matrix belongs to a place of the output and a tap of the window. It is the element of the
//! [staged](super::stage) image at the sum of two offsets: one of the place and one of the tap. A product over taps uses
//! places as lanes ([`ByPlace`]), and a product over places uses taps as lanes ([`ByTap`]). Filters and gradients, whose
//! offsets are also such sums, are packed by the same code.

use std::ops::Range;

use crate::cpu::gemm::{COLUMNS, Depth, GROUP, HALF, Operand, PackInto, ROWS, RUN, Stored, interleave};
use crate::cpu::short;
use crate::cpu::simd::{self, Loop};

/// Elements at the sum of the offsets of a place and a tap.
#[derive(Debug)]
pub(super) struct Patches<'a, S> {
    pub(super) data: &'a [S],
    pub(super) taps: Taps,
    pub(super) places: Places,
    /// The offsets of all taps, if products read patches where they are stored, and the largest one.
    pub(super) rows: Vec<usize>,
    pub(super) last_row: usize,
}

impl<S> Patches<'_, S> {
    /// Lets products read the patches where they are stored, if a half of a panel is a run of places.
    pub(super) fn read_directly(self) -> Self {
        let rows: Vec<usize> = self.taps.from(0).collect();
        Self { last_row: rows.iter().fold(0, |last, &row| last.max(row)), rows, ..self }
    }

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
    /// Numbers between the last place of a row and the first one of the next row, which are no places.
    gap: usize,
}

/// Places of a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlaceRun {
    /// The number of the first place, counted from the start of the range.
    pub(super) number: usize,
    pub(super) len: usize,
    pub(super) offset: usize,
}

impl Places {
    pub(super) fn new(size: [usize; 3], step: [usize; 3]) -> Self {
        let [images, rows, columns] = size;
        let [image, row, column] = step;
        // Rows that continue one another are a single row.
        if row == columns.saturating_mul(column) {
            let columns = rows.saturating_mul(columns);
            return Self {
                size: [images, 1, columns],
                step: [image, row.saturating_mul(rows), column],
                gap: 0,
            };
        }
        Self { size, step, gap: 0 }
    }

    /// The same places with numbers between rows that are no places.
    pub(super) fn with_gaps(size: [usize; 3], step: [usize; 3], gap: usize) -> Self {
        if gap == 0 { Self::new(size, step) } else { Self { size, step, gap } }
    }

    /// Elements from one place of a row to the next.
    pub(super) const fn column_step(&self) -> usize {
        self.step[2]
    }

    /// The places of a row.
    pub(super) const fn row(&self) -> usize {
        self.size[2]
    }

    /// The numbers of places and gaps of all images.
    pub(super) const fn len(&self) -> usize {
        self.size[0].saturating_mul(self.per_image())
    }

    const fn per_image(&self) -> usize {
        self.size[1].saturating_mul(self.size[2].saturating_add(self.gap)).saturating_sub(self.gap)
    }

    /// Splits a range of numbers into runs within a row, without gaps.
    pub(super) fn runs(&self, range: Range<usize>) -> impl Iterator<Item = PlaceRun> + use<> {
        let (Self { size: [_, rows, columns], step, gap }, per_image) = (*self, self.per_image());
        let (image, in_image) = (range.start / per_image, range.start % per_image);
        let (mut at, mut row) = (range.start, in_image / (columns + gap) + image * rows);
        let mut column = in_image % (columns + gap);
        std::iter::from_fn(move || {
            if column >= columns {
                // Starts in a gap.
                (at, row, column) = (at + columns + gap - column, row + 1, 0);
            }
            let len = (columns - column).min(range.end.saturating_sub(at));
            if len == 0 {
                return None;
            }
            let offset = row / rows * step[0] + row % rows * step[1] + column * step[2];
            let run = PlaceRun { number: at - range.start, len, offset };
            row += 1;
            // There is no gap behind the last row of an image.
            at += len + if row % rows == 0 { 0 } else { gap };
            column = 0;
            Some(run)
        })
    }
}

/// Patches with places as lanes and taps as depth.
#[derive(Clone, Copy, Debug)]
pub(super) struct ByPlace<'a, S>(pub(super) &'a Patches<'a, S>);

/// Patches with taps as lanes and places as depth.
#[derive(Clone, Copy, Debug)]
pub(super) struct ByTap<'a, S>(pub(super) &'a Patches<'a, S>);

/// The largest number of adjacent places that are copied at once: a register of `f32`.
const PIECE: usize = 16;

/// Adjacent places of one row. They are copied in lengths of 4, 8 or [`PIECE`], because copies of a variable length take
/// several times longer. The next piece overwrites the excess.
#[derive(Clone, Copy, Debug, Default)]
struct Piece {
    /// The number of the first place, counted from the first place of all pieces.
    number: usize,
    len: usize,
    offset: usize,
}

/// At most `MOST` pieces.
struct Pieces<const MOST: usize> {
    pieces: [Piece; MOST],
    count: usize,
    /// The places of all pieces.
    places: usize,
}

impl<const MOST: usize> Pieces<MOST> {
    /// Divides places.
    fn new(places: &Places, range: Range<usize>) -> Self {
        let mut all = Self { pieces: [Piece::default(); MOST], count: 0, places: 0 };
        for PlaceRun { len, offset, .. } in places.runs(range) {
            for start in (0..len).step_by(PIECE) {
                let len = PIECE.min(len - start);
                all.pieces[all.count] = Piece { number: all.places, len, offset: offset + start };
                (all.count, all.places) = (all.count + 1, all.places + len);
            }
        }
        all
    }

    fn as_slice(&self) -> &[Piece] {
        &self.pieces[..self.count]
    }
}

impl<P: Depth, S: PackInto<P>> Operand<P> for ByPlace<'_, S> {
    fn stored(&self, lane: usize, depth: Range<usize>) -> Option<Stored<'_, P>> {
        let Self(Patches { data, places, rows, last_row, .. }) = self;
        let half = |start: usize| {
            let range = start..places.len().min(start + HALF);
            let run = places.runs(range.clone()).next()?;
            (run.len == range.len()).then_some(run.offset)
        };
        let first = half(lane)?;
        // No result depends on a half without places.
        let second = if lane + HALF < places.len() { half(lane + HALF)? } else { first };
        let rows = rows.get(depth.start / S::DEPTHS..depth.end.div_ceil(S::DEPTHS))?;
        let stored = Stored { data: S::unchanged(data)?, rows, halves: [first, second] };
        stored.is_inside(*last_row).then_some(stored)
    }

    fn pack(&self, lane: usize, depth: Range<usize>, width: usize, panel: &mut [P]) {
        let Self(Patches { data, taps, places, .. }) = self;
        let pieces = Pieces::<COLUMNS>::new(places, lane..places.len().min(lane + width));
        if pieces.places < width {
            panel.fill(S::default().pack(S::default()));
        }
        let (pieces, offsets) = (pieces.as_slice(), taps.from(depth.start / S::DEPTHS));
        let rows = FillRows { data, pieces, offsets, depth: depth.len(), width, panel };
        match places.row() {
            ..=4 => simd::run(rows.with_copies_of::<4>()),
            5..=8 => simd::run(rows.with_copies_of::<8>()),
            _ => simd::run(rows.with_copies_of::<PIECE>()),
        }
    }
}

/// Fills the rows of a panel of places.
struct FillRows<'a, S, P> {
    data: &'a [S],
    pieces: &'a [Piece],
    /// The offset of each depth.
    offsets: Offsets<'a>,
    depth: usize,
    /// The lanes of the panel.
    width: usize,
    panel: &'a mut [P],
}

impl<S, P> FillRows<'_, S, P> {
    /// Sets the length of copies; no piece is longer.
    const fn with_copies_of<const LEN: usize>(self) -> WithCopiesOf<LEN, Self> {
        WithCopiesOf(self)
    }
}

/// A loop with copies of constant length.
struct WithCopiesOf<const LEN: usize, L>(L);

impl<P: Depth, S: PackInto<P>, const LEN: usize> Loop for WithCopiesOf<LEN, FillRows<'_, S, P>> {
    type Element = P;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let FillRows { data, pieces, mut offsets, depth, width, panel } = self.0;
        for number in 0..depth.div_ceil(P::PER_ROW) {
            let Some(first) = offsets.next() else { return };
            // The last element of an odd depth is paired with 0.
            let second = if S::DEPTHS == P::PER_ROW { None } else { offsets.next() };
            let second = second.filter(|_| number * P::PER_ROW + 1 < depth);
            let panel = &mut panel[number * width..];
            for piece in pieces {
                let from = &data[first + piece.offset..];
                let next = second.map(|second| &data[second + piece.offset..]);
                pack_piece::<LEN, P, S>(&mut panel[piece.number..], from, next, piece.len);
            }
        }
    }
}

/// Packs `len` adjacent places of one depth or of two, and up to `LEN` if there are more.
#[inline(always)]
fn pack_piece<const LEN: usize, P: Depth, S: PackInto<P>>(
    to: &mut [P],
    from: &[S],
    next: Option<&[S]>,
    len: usize,
) {
    let zero = S::default();
    match (to.first_chunk_mut::<LEN>(), from.first_chunk::<LEN>(), next) {
        (Some(to), Some(from), None) => {
            let mut packed = [zero.pack(zero); LEN];
            packed.iter_mut().zip(from).for_each(|(to, from)| *to = from.pack(zero));
            *to = packed;
        }
        (Some(to), Some(from), Some(next)) if next.len() >= LEN => {
            let mut packed = [zero.pack(zero); LEN];
            let pairs = packed.iter_mut().zip(from).zip(&next[..LEN]);
            pairs.for_each(|((to, from), &next)| *to = from.pack(next));
            *to = packed;
        }
        (_, _, None) => to[..len].iter_mut().zip(from).for_each(|(to, from)| *to = from.pack(zero)),
        (_, _, Some(next)) => {
            let pairs = to[..len].iter_mut().zip(from).zip(next);
            pairs.for_each(|((to, from), &next)| *to = from.pack(next));
        }
    }
}

impl<P: Depth, S: PackInto<P>> Operand<P> for ByTap<'_, S> {
    fn pack(&self, lane: usize, depth: Range<usize>, width: usize, panel: &mut [P]) {
        let Self(Patches { data, taps, places, .. }) = self;
        let end = taps.len().min(lane + width);
        let mut lanes = [None; COLUMNS];
        lanes.iter_mut().zip(lane..end).for_each(|(to, tap)| *to = Some(taps.at(tap)));
        if width == COLUMNS {
            let (panel, _) = panel.as_chunks_mut::<COLUMNS>();
            simd::run(FillLanes { data, lanes, places: *places, depth, panel });
        } else {
            let (panel, _) = panel.as_chunks_mut::<ROWS>();
            simd::run(FillLanes { data, lanes, places: *places, depth, panel });
        }
    }
}

/// Fills a panel of taps.
struct FillLanes<'a, S, P, const W: usize> {
    data: &'a [S],
    /// The offset of each lane; `None` past the last tap, for lanes that no result depends on. Only the first `W`.
    lanes: [Option<usize>; COLUMNS],
    places: Places,
    depth: Range<usize>,
    panel: &'a mut [[P; W]],
}

impl<P: Depth, S: PackInto<P>, const W: usize> Loop for FillLanes<'_, S, P, W> {
    type Element = P;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        match self.places.row() {
            ..=4 => self.fill::<4>(),
            5..=8 => self.fill::<8>(),
            _ => self.fill::<PIECE>(),
        }
    }
}

impl<S, P, const W: usize> FillLanes<'_, S, P, W> {
    /// Fills the panel with copies of a constant length; no piece is longer.
    #[inline(always)]
    fn fill<const LEN: usize>(self)
    where
        P: Depth,
        S: PackInto<P>,
    {
        let Self { data, lanes, places, depth, panel } = self;
        // The elements of a group of lanes, in the order of depth, and the excess of the last piece.
        let mut staged = [[S::default(); 2 * RUN + PIECE]; GROUP];
        let zero = S::default().pack(S::default());
        for (number, rows) in panel.chunks_mut(RUN).enumerate() {
            let start = depth.start + number * RUN * P::PER_ROW;
            let end = depth.end.min(start + RUN * P::PER_ROW);
            let pieces = Pieces::<{ 2 * RUN }>::new(&places, start..end);
            for (group, lanes) in lanes[..W].chunks(GROUP).enumerate() {
                if lanes[0].is_none() {
                    rows.iter_mut().for_each(|row| row[group * GROUP..][..GROUP].fill(zero));
                    continue;
                }
                for (lane, staged) in lanes.iter().zip(&mut staged) {
                    let data = lane.map_or(data, |lane| &data[lane..]);
                    for piece in pieces.as_slice() {
                        let to = &mut staged[piece.number..];
                        copy_piece::<LEN, S>(to, &data[piece.offset..], piece.len);
                    }
                    if pieces.places < RUN * P::PER_ROW {
                        staged[pieces.places..].fill(S::default());
                    }
                }
                interleave(&staged, group * GROUP, rows);
            }
        }
    }
}

/// Copies `len` adjacent places, and up to `LEN` if there are more.
#[inline(always)]
fn copy_piece<const LEN: usize, S: Copy>(to: &mut [S], from: &[S], len: usize) {
    match (to.first_chunk_mut::<LEN>(), from.first_chunk::<LEN>()) {
        (Some(to), Some(from)) => *to = *from,
        _ => short::copy(&mut to[..len], from),
    }
}
