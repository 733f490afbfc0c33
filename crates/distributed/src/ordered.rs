//! Collective operations on top of messages between two ranks.
//!
//! All-reduce of three ranks, each with three spans:
//!
//! ```text
//!           rank 0      rank 1      rank 2
//! before    a0 a1 a2    b0 b1 b2    c0 c1 c2
//! scatter   b0 c0  →    a1 c1       a2 b2       each rank receives all values of its span in the workspace
//! sum       a0+b0+c0    a1+b1+c1    a2+b2+c2    in rank order
//! gather    all ranks receive all sums
//! ```
//!
//! Each rank sends and receives as many bytes as in a ring. The sums are computed once, so all ranks have the same bits.

use std::ops::Range;

use bytemuck::Pod;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::collective::{SliceMut, spans};
use crate::error::CollectiveError;

#[cfg(test)]
mod tests;

/// Messages between two ranks.
pub(crate) trait Messages {
    fn rank(&self) -> usize;

    fn size(&self) -> usize;

    /// Sends and receives all messages at once: pairs of the other rank and the bytes.
    fn exchange(
        &mut self,
        sends: &[(usize, &[u8])],
        receives: &mut [(usize, &mut [u8])],
    ) -> Result<(), CollectiveError>;
}

/// Sums in rank order on all ranks. The workspace has passed [`check_reduction`](crate::collective::check_reduction).
pub(crate) fn all_reduce(
    messages: &mut impl Messages,
    mut data: SliceMut<'_>,
    workspace: &mut [u8],
) -> Result<(), CollectiveError> {
    let parts = spans(data.len(), messages.size());
    reduce_scatter(messages, &mut data, &parts, workspace)?;
    all_gather(messages, data, &parts)
}

/// Sums this rank's part in rank order. The arguments have passed [`check_scatter`](crate::collective::check_scatter).
pub(crate) fn reduce_scatter(
    messages: &mut impl Messages,
    data: &mut SliceMut<'_>,
    parts: &[Range<usize>],
    workspace: &mut [u8],
) -> Result<(), CollectiveError> {
    match data {
        SliceMut::F32(values) => reduce_values(messages, values, parts, workspace),
        SliceMut::F64(values) => reduce_values(messages, values, parts, workspace),
        SliceMut::F16(values) => reduce_values(messages, values, parts, workspace),
        SliceMut::BF16(values) => reduce_values(messages, values, parts, workspace),
        SliceMut::Bytes(_) => unreachable!("checked by the caller: bytes have no sum"),
    }
}

/// Copies the bytes of the root along a binomial tree: in each round, all ranks that have the bytes send them on.
pub(crate) fn broadcast(
    messages: &mut impl Messages,
    bytes: &mut [u8],
    root: usize,
) -> Result<(), CollectiveError> {
    let size = messages.size();
    let absolute = |relative: usize| (relative + root) % size;
    let relative = (messages.rank() + size - root) % size;
    // The parent differs in the lowest bit that is set.
    let mut bit = 1;
    while bit < size && relative & bit == 0 {
        bit <<= 1;
    }
    if relative != 0 {
        messages.exchange(&[], &mut [(absolute(relative - bit), &mut *bytes)])?;
    }
    let mut sends: Vec<(usize, &[u8])> = Vec::new();
    while bit > 1 {
        bit >>= 1;
        if relative + bit < size {
            sends.push((absolute(relative + bit), bytes));
        }
    }
    messages.exchange(&sends, &mut [])
}

/// Waits for a message from every other rank.
pub(crate) fn barrier(messages: &mut impl Messages) -> Result<(), CollectiveError> {
    let (rank, size) = (messages.rank(), messages.size());
    let others = || (0..size).filter(|other| *other != rank);
    let sends: Vec<(usize, &[u8])> = others().map(|other| (other, &[0_u8][..])).collect();
    let mut answers = vec![0_u8; size];
    let mut receives: Vec<_> = others().zip(answers.iter_mut().map(std::slice::from_mut)).collect();
    messages.exchange(&sends, &mut receives)
}

fn reduce_values<T: Summand>(
    messages: &mut impl Messages,
    values: &mut [T],
    parts: &[Range<usize>],
    workspace: &mut [u8],
) -> Result<(), CollectiveError> {
    let (rank, size) = (messages.rank(), messages.size());
    let own = parts[rank].clone();
    let bytes = own.len() * (size - 1) * size_of::<T>();
    let rows: &mut [T] = bytemuck::cast_slice_mut(&mut workspace[..bytes]);

    let others = || (0..size).filter(|other| *other != rank);
    // Ranks neither send nor receive empty parts.
    let sends: Vec<(usize, &[u8])> = others()
        .filter(|other| !parts[*other].is_empty())
        .map(|other| (other, bytemuck::cast_slice(&values[parts[other].clone()])))
        .collect();
    let mut receives: Vec<(usize, &mut [u8])> =
        others().zip(rows.chunks_exact_mut(own.len().max(1)).map(bytemuck::cast_slice_mut)).collect();
    messages.exchange(&sends, &mut receives)?;
    if !rows.is_empty() {
        sum_in_rank_order(&mut values[own], rank, rows);
    }
    Ok(())
}

/// The elements that are summed at once: few enough for the fastest cache.
const BLOCK: usize = 512;

/// Adds the rows of the other ranks to the values of this rank, in rank order.
fn sum_in_rank_order<T: Summand>(own: &mut [T], rank: usize, rows: &[T]) {
    let length = own.len();
    let (mut sums, mut addends) = ([T::Sum::default(); BLOCK], [T::Sum::default(); BLOCK]);
    for start in (0..length).step_by(BLOCK) {
        let end = length.min(start + BLOCK);
        let (sums, addends) = (&mut sums[..end - start], &mut addends[..end - start]);
        let size = rows.len() / length + 1;
        for source in 0..size {
            let values = match source.cmp(&rank) {
                std::cmp::Ordering::Less => &rows[source * length..][start..end],
                std::cmp::Ordering::Equal => &own[start..end],
                std::cmp::Ordering::Greater => &rows[(source - 1) * length..][start..end],
            };
            if source == 0 {
                T::upcast(values, sums);
            } else {
                T::upcast(values, addends);
                sums.iter_mut().zip(&*addends).for_each(|(sum, addend)| *sum += *addend);
            }
        }
        T::downcast(sums, &mut own[start..end]);
    }
}

/// Copies each rank's part to all ranks.
pub(crate) fn all_gather(
    messages: &mut impl Messages,
    data: SliceMut<'_>,
    parts: &[Range<usize>],
) -> Result<(), CollectiveError> {
    let (rank, width) = (messages.rank(), data.dtype().size());
    let (mut rest, mut start) = (data.into_bytes(), 0);
    let mut own: &[u8] = &[];
    let mut receives: Vec<(usize, &mut [u8])> = Vec::with_capacity(parts.len());
    for (source, part) in parts.iter().enumerate().filter(|(_, part)| !part.is_empty()) {
        let (before, after) = std::mem::take(&mut rest).split_at_mut(part.end * width - start);
        let bytes = &mut before[part.start * width - start..];
        (rest, start) = (after, part.end * width);
        if source == rank {
            own = bytes;
        } else {
            receives.push((source, bytes));
        }
    }
    let others = (0..parts.len()).filter(|other| *other != rank && !own.is_empty());
    let sends: Vec<_> = others.map(|other| (other, own)).collect();
    messages.exchange(&sends, &mut receives)
}

/// An element type with a sum.
trait Summand: Pod {
    /// The type that sums accumulate in.
    type Sum: Copy + Default + std::ops::AddAssign;

    fn upcast(values: &[Self], sums: &mut [Self::Sum]);

    fn downcast(sums: &[Self::Sum], values: &mut [Self]);
}

macro_rules! sums_itself {
    ($($float:ty),+) => {$(
        impl Summand for $float {
            type Sum = Self;

            fn upcast(values: &[Self], sums: &mut [Self]) {
                sums.copy_from_slice(values);
            }

            fn downcast(sums: &[Self], values: &mut [Self]) {
                values.copy_from_slice(sums);
            }
        }
    )+};
}

macro_rules! sums_in_f32 {
    ($($half:ty),+) => {$(
        impl Summand for $half {
            type Sum = f32;

            fn upcast(values: &[Self], sums: &mut [f32]) {
                values.convert_to_f32_slice(sums);
            }

            fn downcast(sums: &[f32], values: &mut [Self]) {
                values.convert_from_f32_slice(sums);
            }
        }
    )+};
}

sums_itself!(f32, f64);
sums_in_f32!(f16, bf16);
