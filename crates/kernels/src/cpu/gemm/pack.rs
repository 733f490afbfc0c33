//! Packing: copies parts of an operand to panels, in the order in which the micro-kernel reads them.
//!
//! A lane is a row of the left operand or a column of the right one. A panel holds `W` lanes: its row number k holds the
//! elements at depth k of all lanes (for [`Pair`], at depths 2k and 2k + 1). Elements outside of the operand are 0.

use std::ops::Range;

use half::{bf16, f16};

use super::super::simd::{self, Loop};
use super::kernel::{self, COLUMNS, HALF, Packed, Pair, ROWS, Stored};

/// An operand that is packed before it is multiplied.
pub(crate) trait Operand<P>: Sync {
    /// Fills a panel with the lanes from `lane` on, at the depths in `depth`. Its rows have `width` lanes: [`COLUMNS`] or
    /// [`ROWS`] in a product. It has one row per [packed element](Depth::PER_ROW) of that range.
    fn pack(&self, lane: usize, depth: Range<usize>, width: usize, panel: &mut [P]);

    /// The panel of the right operand with the lanes from `lane` on, if the kernel reads it without packing.
    fn stored(&self, _lane: usize, _depth: Range<usize>) -> Option<Stored<'_, P>> {
        None
    }
}

/// The depth of a row of a panel.
pub(crate) trait Depth: Packed {
    /// The number of depths that one packed element covers.
    const PER_ROW: usize;

    /// The number of rows of a panel for this depth.
    fn rows(depth: usize) -> usize {
        depth.div_ceil(Self::PER_ROW)
    }

    /// The packed element that starts one depth later, given the next packed element.
    fn one_later(self, next: Self) -> Self;
}

/// Implements [`Depth`] for packed elements that hold one element.
macro_rules! single {
    ($($type:ty)+) => {$(
        impl Depth for $type {
            const PER_ROW: usize = 1;

            #[inline(always)]
            fn one_later(self, next: Self) -> Self {
                next
            }
        }
    )+};
}

single!(f32 f64);

impl Depth for Pair {
    const PER_ROW: usize = 2;

    #[inline(always)]
    fn one_later(self, next: Self) -> Self {
        Self(self.0 >> 16 | next.0 << 16)
    }
}

/// A stored element that is converted to packed elements.
pub(crate) trait PackInto<P: Depth>: Copy + Default + Send + Sync {
    /// The number of depths that one stored element covers: 1, or that of a packed element.
    const DEPTHS: usize = 1;

    /// Packs the elements at [`PER_ROW`](Depth::PER_ROW) consecutive depths. The second one is ignored if one element covers
    /// them.
    fn pack(self, next: Self) -> P;

    /// Packs consecutive depths of one lane.
    #[inline(always)]
    fn pack_run<const LEN: usize>(from: &[Self; LEN], to: &mut [P; RUN]) {
        for (index, to) in to.iter_mut().enumerate() {
            *to = from[index * P::PER_ROW].pack(from[index * P::PER_ROW + P::PER_ROW - 1]);
        }
    }

    /// The elements themselves, if packing does not change them.
    fn unchanged(_elements: &[Self]) -> Option<&[P]> {
        None
    }
}

/// Implements [`PackInto`] for packed elements that hold one element.
macro_rules! pack_single {
    ($($from:ty => $to:ty: $convert:expr;)+) => {$(
        impl PackInto<$to> for $from {
            #[inline(always)]
            fn pack(self, _: Self) -> $to {
                let convert: fn($from) -> $to = $convert;
                convert(self)
            }
        }
    )+};
}

/// Implements [`PackInto`] for elements that packing does not change.
macro_rules! pack_unchanged {
    ($($type:ty)+) => {$(
        impl PackInto<$type> for $type {
            #[inline(always)]
            fn pack(self, _: Self) -> Self {
                self
            }

            fn unchanged(elements: &[Self]) -> Option<&[Self]> {
                Some(elements)
            }
        }
    )+};
}

pack_unchanged!(f32 f64);

pack_single! {
    bf16 => f32: |value| f32::from_bits(u32::from(value.to_bits()) << 16);
    f16 => f32: f16_to_f32;
}

// Pairs of two depths that lie apart in memory, such as channels.
impl PackInto<Pair> for Pair {
    const DEPTHS: usize = 2;

    #[inline(always)]
    fn pack(self, _: Self) -> Self {
        self
    }

    fn unchanged(elements: &[Self]) -> Option<&[Self]> {
        Some(elements)
    }
}

impl PackInto<Pair> for bf16 {
    #[inline(always)]
    fn pack(self, next: Self) -> Pair {
        Pair(u32::from(self.to_bits()) | u32::from(next.to_bits()) << 16)
    }
}

// Sums that are factors of another product, such as the weights of attention.
impl PackInto<Pair> for f32 {
    #[inline(always)]
    fn pack(self, next: Self) -> Pair {
        to_bf16(self).pack(to_bf16(next))
    }

    #[inline(always)]
    fn pack_run<const LEN: usize>(from: &[Self; LEN], to: &mut [Pair; RUN]) {
        if kernel::round_to_pairs(from, to) {
            return;
        }
        for (to, from) in to.iter_mut().zip(from.as_chunks::<2>().0) {
            *to = from[0].pack(from[1]);
        }
    }
}

/// The nearest bf16; ties go to even. NaN stays NaN. For loops that vectorize.
#[inline(always)]
pub(crate) fn to_bf16(value: f32) -> bf16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    let bits = if value.is_nan() { bits | 0x0040_0000 } else { rounded };
    bf16::from_bits((bits >> 16) as u16)
}

/// Exact, and without branches, so that the loop vectorizes.
#[inline(always)]
pub(crate) fn f16_to_f32(value: f16) -> f32 {
    let bits = u32::from(value.to_bits());
    // The exponent and fraction at the place where f32 has them; the factor corrects the bias, also of subnormal values.
    let magnitude = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits(0x7780_0000);
    let special = f32::from_bits((bits & 0x7fff) << 13 | 0x7f80_0000);
    let magnitude = if bits & 0x7c00 == 0x7c00 { special } else { magnitude };
    f32::from_bits(magnitude.to_bits() | (bits & 0x8000) << 16)
}

/// A matrix with any strides, as an operand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strided<'a, S> {
    /// Starts with the first element.
    pub(crate) data: &'a [S],
    pub(crate) lanes: usize,
    /// Elements from one lane to the next.
    pub(crate) lane_stride: usize,
    /// Elements from one depth to the next.
    pub(crate) depth_stride: usize,
}

impl<P: Depth, S: PackInto<P>> Operand<P> for Strided<'_, S> {
    fn pack(&self, lane: usize, depth: Range<usize>, width: usize, panel: &mut [P]) {
        let data = &self.data[lane * self.lane_stride..];
        let part = Self { data, lanes: width.min(self.lanes - lane), ..*self };
        match width {
            COLUMNS => part.pack_rows::<P, COLUMNS>(depth, panel),
            HALF => part.pack_rows::<P, HALF>(depth, panel),
            ROWS => part.pack_rows::<P, ROWS>(depth, panel),
            _ => gather(&part, depth, width, panel),
        }
    }
}

impl<S: Copy + Default> Strided<'_, S> {
    /// Packs all lanes into a panel of `W` lanes.
    fn pack_rows<P: Depth, const W: usize>(self, depth: Range<usize>, panel: &mut [P])
    where
        S: PackInto<P>,
    {
        let (panel, _) = panel.as_chunks_mut::<W>();
        if self.lane_stride == 1 {
            simd::run(CopyRows { part: self, depth, panel });
        } else if self.depth_stride == 1 {
            simd::run(Transpose { part: self, depth, panel });
        } else {
            gather(&self, depth, W, panel.as_flattened_mut());
        }
    }
}

/// Packs lanes that are side by side.
struct CopyRows<'a, S, P, const W: usize> {
    part: Strided<'a, S>,
    depth: Range<usize>,
    panel: &'a mut [[P; W]],
}

impl<P: Depth, S: PackInto<P>, const W: usize> Loop for CopyRows<'_, S, P, W> {
    type Element = P;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { part, depth, panel } = self;
        let zeros = [S::default(); W];
        for (number, row) in panel.iter_mut().enumerate() {
            let first = depth.start + number * P::PER_ROW;
            let at = |depth_here: usize| match depth_here < depth.end {
                true => &part.data[depth_here * part.depth_stride..][..part.lanes],
                false => &zeros[..part.lanes],
            };
            let (from, next) = (at(first), if P::PER_ROW == 1 { at(first) } else { at(first + 1) });
            match (<&[S; W]>::try_from(from), <&[S; W]>::try_from(next)) {
                // The compiler vectorizes a loop that converts whole registers, but calls a function for one that copies.
                (Ok(from), Ok(next)) if W.is_multiple_of(16) && converts::<S, P>() => {
                    for (lane, to) in row.iter_mut().enumerate() {
                        *to = from[lane].pack(next[lane]);
                    }
                }
                (Ok(from), Ok(next)) => *row = std::array::from_fn(|lane| from[lane].pack(next[lane])),
                _ => {
                    *row = [S::default().pack(S::default()); W];
                    let pairs = row.iter_mut().zip(from).zip(next);
                    pairs.for_each(|((to, from), &next)| *to = from.pack(next));
                }
            }
        }
    }
}

/// Whether packing changes the size of elements.
const fn converts<S, P: Depth>() -> bool {
    size_of::<S>() != size_of::<P>() || P::PER_ROW > 1
}

/// The number of packed elements of a lane that are interleaved at a time. The compiler unrolls shorter loops and then does
/// not vectorize them.
pub(crate) const RUN: usize = 32;

/// The number of lanes that are interleaved at a time. Divides the width of each panel.
pub(crate) const GROUP: usize = 4;

/// Packs lanes whose elements are contiguous, four lanes at a time.
struct Transpose<'a, S, P, const W: usize> {
    part: Strided<'a, S>,
    depth: Range<usize>,
    panel: &'a mut [[P; W]],
}

impl<P: Depth, S: PackInto<P>, const W: usize> Loop for Transpose<'_, S, P, W> {
    type Element = P;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { part, depth, panel } = self;
        let mut staged = [[S::default(); 2 * RUN]; GROUP];
        for (run, rows) in panel.chunks_mut(RUN).enumerate() {
            let start = depth.start + run * RUN * P::PER_ROW;
            let len = (depth.end - start).min(RUN * P::PER_ROW);
            for group in (0..W).step_by(GROUP) {
                for (lane, staged) in (group..).zip(&mut staged) {
                    let from = match lane < part.lanes {
                        true => &part.data[lane * part.lane_stride + start..][..len],
                        false => &[],
                    };
                    if from.len() == RUN * P::PER_ROW {
                        // A copy of constant size.
                        staged[..RUN * P::PER_ROW].copy_from_slice(&from[..RUN * P::PER_ROW]);
                    } else {
                        staged[..from.len()].copy_from_slice(from);
                        staged[from.len()..].fill(S::default());
                    }
                }
                interleave(&staged, group, rows);
            }
        }
    }
}

/// Packs the elements of [`GROUP`] lanes into at most [`RUN`] rows of a panel, from lane `first` on.
#[inline(always)]
pub(crate) fn interleave<S: PackInto<P>, P: Depth, const W: usize, const LEN: usize>(
    lanes: &[[S; LEN]; GROUP],
    first: usize,
    rows: &mut [[P; W]],
) {
    let zero = S::default().pack(S::default());
    let mut packed = [[zero; RUN]; GROUP];
    for (lane, packed) in lanes.iter().zip(&mut packed) {
        S::pack_run(lane, packed);
    }
    // A separate array, so that the compiler interleaves registers.
    let mut interleaved = [[zero; GROUP]; RUN];
    for (index, to) in interleaved.iter_mut().enumerate() {
        *to = [packed[0][index], packed[1][index], packed[2][index], packed[3][index]];
    }
    for (row, from) in rows.iter_mut().zip(&interleaved) {
        row[first..first + GROUP].copy_from_slice(from);
    }
}

/// Packs lanes of a matrix with any strides. No vector instruction loads elements that are apart.
fn gather<S: PackInto<P>, P: Depth>(
    part: &Strided<'_, S>,
    depth: Range<usize>,
    width: usize,
    panel: &mut [P],
) {
    for (number, row) in panel.chunks_mut(width).enumerate() {
        let first = depth.start + number * P::PER_ROW;
        row.fill(S::default().pack(S::default()));
        for (lane, to) in row.iter_mut().enumerate().take(part.lanes) {
            let at = |depth: usize| part.data[lane * part.lane_stride + depth * part.depth_stride];
            let next = if first + 1 < depth.end { at(first + 1) } else { S::default() };
            *to = at(first).pack(next);
        }
    }
}
