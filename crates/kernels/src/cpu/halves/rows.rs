//! Rows of 16-bit floats, for kernels that compute a row from several passes over rows.
//!
//! Kernels convert rows of at most [`ROW`] elements to f32 on the stack, once. They read longer rows in [`pieces`], again
//! for each pass.

use std::ops::Range;

use super::{Floats, bytes_of, round, upcast};
use crate::cpu::fold::{Cascade, Sum, loops};
use crate::cpu::parallel::Workers;
use crate::error::Result;
use crate::shape::DType;
use crate::storage::ViewMut;

/// The number of elements of a row, or of a piece of a longer row, that are f32 on the stack.
pub(crate) const ROW: usize = 2048;

/// Elements that are read as f32.
pub(crate) trait Load {
    /// Copies elements, starting at number `start`.
    fn load(&self, start: usize, out: &mut [f32]);
}

impl Load for Floats<'_> {
    fn load(&self, start: usize, out: &mut [f32]) {
        self.load(start, out);
    }
}

/// A part of an output of 16-bit floats or f32.
pub(crate) struct Part<'a> {
    bytes: &'a mut [u8],
    dtype: DType,
}

impl Part<'_> {
    /// The number of elements.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() / self.dtype.size()
    }

    /// Rounds elements and writes them, starting at number `start`.
    pub(crate) fn store(&mut self, start: usize, values: &[f32]) {
        round(self.dtype, values, &mut self.bytes[start * self.dtype.size()..]);
    }

    /// Sets `len` elements to 0, starting at number `start`.
    pub(crate) fn clear(&mut self, start: usize, len: usize) {
        let size = self.dtype.size();
        self.bytes[start * size..][..len * size].fill(0);
    }
}

impl Load for Part<'_> {
    fn load(&self, start: usize, out: &mut [f32]) {
        upcast(self.dtype, &self.bytes[start * self.dtype.size()..], out);
    }
}

/// Work on the number of a chunk, and the chunk of each output.
type Work<'w, const N: usize> = dyn Fn(usize, [Part<'_>; N]) + Sync + 'w;

/// Calls `work` with the number of each chunk and that chunk of every output. All outputs have the same number of chunks,
/// of `chunks` elements each.
pub(crate) fn parts<const N: usize>(
    workers: &Workers,
    op: &'static str,
    outs: [&mut ViewMut<'_>; N],
    chunks: [usize; N],
    work: &Work<'_, N>,
) -> Result<()> {
    let (dtypes, bytes) = bytes_of(op, outs)?;
    let mut sizes = chunks;
    sizes.iter_mut().zip(dtypes).for_each(|(size, dtype)| *size = size.saturating_mul(dtype.size()));
    let chunk = chunks.first().copied().unwrap_or(1);
    workers.chunks_of_bytes(bytes, (chunk, sizes), &|number, bytes| {
        let mut dtypes = dtypes.into_iter();
        let of = |bytes| Part { bytes, dtype: dtypes.next().unwrap_or(DType::F32) };
        work(number, bytes.map(of));
    });
    Ok(())
}

/// Calls `visit` with pieces of a row of each source, and their range within the row. Absent sources have empty pieces.
pub(crate) fn pieces<const N: usize>(
    sources: [Option<&dyn Load>; N],
    row: Range<usize>,
    mut visit: impl FnMut(Range<usize>, [&mut [f32]; N]),
) {
    let mut loaded = [[0.0; ROW]; N];
    for start in row.clone().step_by(ROW) {
        let len = ROW.min(row.end - start);
        let mut sources = sources.iter();
        let pieces = loaded.each_mut().map(|piece| match sources.next() {
            Some(Some(source)) => {
                let piece = &mut piece[..len];
                source.load(start, piece);
                piece
            }
            _ => &mut [],
        });
        visit(start - row.start..start - row.start + len, pieces);
    }
}

/// Adds `f` of the pieces of a row, in the order of a cascade.
pub(crate) fn sum<const N: usize>(
    sources: [Option<&dyn Load>; N],
    row: Range<usize>,
    f: &dyn Fn([&mut [f32]; N]) -> f32,
) -> f32 {
    let mut sums = Cascade::<f32, 1>::new(loops::<_, Sum>(), 1);
    pieces(sources, row, |_, pieces| sums.push_folded(&[f(pieces)]));
    sums.finish().first().copied().unwrap_or(0.0)
}
