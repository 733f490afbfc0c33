//! Parallel loops: the calling thread and the backend's helper threads process chunks of a slice.
//!
//! Chunk boundaries depend only on the shape. The number of threads decides only which thread processes a chunk, so results
//! do not depend on it.
//!
//! The calling thread starts immediately, and helpers join as they wake. Handing all work to helpers would add two thread
//! switches per op, which take longer than many ops.

mod fork_join;

use std::sync::{Mutex, PoisonError};

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::error::{DeviceFault, KernelError, Result};

/// Elements per chunk if an element costs a few instructions. A multiple of every block size that kernels use.
pub(crate) const LIGHT: usize = 32 * 1024;

/// Elements per chunk if an element costs a function such as exp, or random bits.
pub(crate) const HEAVY: usize = 4 * 1024;

/// The smallest number of light chunks that is worth waking a helper, which takes 70 µs on virtual machines.
pub(crate) const LIGHT_CHUNKS: usize = 8;

/// The smallest number of chunks of this size that helpers share.
const fn min_shared_chunks(chunk: usize) -> usize {
    if chunk > LIGHT / 2 { LIGHT_CHUNKS } else { 2 }
}

/// The number of items of `cost` elements in a chunk of light work; at least 1.
pub(crate) const fn light_runs(cost: usize) -> usize {
    if cost >= LIGHT || cost == 0 { 1 } else { LIGHT / cost }
}

/// Work on the number of a strip, its part of each row of every matrix, and a chunk of each further slice.
type StripWork<'w, T, const M: usize, const N: usize> =
    dyn Fn(usize, [Vec<&mut [u8]>; M], [&mut [T]; N]) + Sync + 'w;

/// The worker threads of a backend.
#[derive(Debug)]
pub(crate) struct Workers {
    /// The helper threads, without the calling thread; `None` if there are none.
    helpers: Option<ThreadPool>,
    threads: usize,
}

impl Workers {
    /// The calling thread alone.
    pub(crate) const ALONE: Self = Self { helpers: None, threads: 1 };

    /// Starts `threads - 1` helper threads in a separate pool.
    ///
    /// # Errors
    /// [`KernelError::BadArgument`] for 0 threads; [`KernelError::NoDevice`] if the system cannot start the threads.
    pub(crate) fn new(threads: usize) -> Result<Self> {
        let helpers = match threads {
            0 => {
                return Err(KernelError::BadArgument {
                    op: "cpu",
                    argument: "threads",
                    expected: "at least 1",
                    got: threads.to_string(),
                });
            }
            1 => None,
            _ => {
                let pool = ThreadPoolBuilder::new()
                    .num_threads(threads - 1)
                    .thread_name(|index| format!("highwater-cpu-{}", index + 1))
                    .build();
                let refused = |error: rayon::ThreadPoolBuildError| KernelError::NoDevice {
                    device: "cpu:0".to_owned(),
                    reason: DeviceFault::NoThreads { threads, reason: error.to_string() },
                };
                Some(pool.map_err(refused)?)
            }
        };
        Ok(Self { helpers, threads })
    }

    /// The number of threads, including the calling thread.
    pub(crate) const fn threads(&self) -> usize {
        self.threads
    }

    /// The helpers for work that starts on this thread; `None` if it works alone.
    ///
    /// A thread of another rayon pool works alone. While it waits for helpers, rayon would run other jobs of that pool
    /// on it, in the middle of an op. The accounts would charge those jobs to the op, and they could deadlock on locks
    /// that the op holds.
    fn helpers(&self) -> Option<&ThreadPool> {
        let is_foreign = |pool: &&ThreadPool| {
            rayon::current_thread_index().is_some() && pool.current_thread_index().is_none()
        };
        self.helpers.as_ref().filter(|pool| !is_foreign(pool))
    }

    /// Calls `work` with each of `count` pieces, in parallel. With fewer than `least` pieces, the calling thread works
    /// alone.
    pub(crate) fn share<P: Send>(
        &self,
        count: usize,
        least: usize,
        pieces: impl Iterator<Item = P> + Send,
        work: &(dyn Fn(P) + Sync),
    ) {
        let Some(pool) = self.helpers().filter(|_| count >= least) else {
            return pieces.for_each(work);
        };
        let pieces = Mutex::new(pieces);
        let next = || pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
        let take_all = || std::iter::from_fn(next).for_each(work);
        fork_join::fork_join(pool, self.threads.min(count) - 1, &take_all);
    }

    /// Calls `work` with each task and scratch memory of `per_task` elements, of which `scratch` has `slots`. So at most this
    /// many tasks run at a time.
    pub(crate) fn share_with_scratch<P: Send, T: Send>(
        &self,
        mut tasks: Vec<P>,
        slots: usize,
        scratch: &mut [T],
        per_task: usize,
        work: &(dyn Fn(P, &mut [T]) + Sync),
    ) {
        let per_job = tasks.len().div_ceil(slots.max(1)).max(1);
        let jobs = tasks.len().div_ceil(per_job);
        let mut scratch = scratch;
        let pieces = std::iter::from_fn(|| {
            let part = scratch.split_off_mut(..per_task)?;
            let job = tasks.split_off(tasks.len().saturating_sub(per_job));
            (!job.is_empty()).then_some((job, part))
        });
        self.share(jobs, 2, pieces, &|(job, scratch)| job.into_iter().for_each(|task| work(task, scratch)));
    }

    /// Calls `work` with each chunk of `out` and the index of its first element.
    ///
    /// The closure is a trait object, so that this code is compiled once per element type and not once per kernel.
    pub(crate) fn chunks<T: Send>(
        &self,
        out: &mut [T],
        chunk: usize,
        work: &(dyn Fn(usize, &mut [T]) + Sync),
    ) {
        if out.len() <= chunk {
            if !out.is_empty() {
                work(0, out);
            }
            return;
        }
        let count = out.len().div_ceil(chunk);
        let chunks = out.chunks_mut(chunk).enumerate();
        self.share(count, min_shared_chunks(chunk), chunks, &|(index, part)| work(index * chunk, part));
    }

    /// Like [`chunks`](Self::chunks), over several slices of equal length.
    pub(crate) fn chunks_together<T: Send, const N: usize>(
        &self,
        slices: [&mut [T]; N],
        chunk: usize,
        work: &(dyn Fn(usize, [&mut [T]; N]) + Sync),
    ) {
        self.zip(slices, [chunk; N], min_shared_chunks(chunk), &|index, parts| work(index * chunk, parts));
    }

    /// Calls `work` with the number of each chunk and that chunk of every slice. All slices have the same number of chunks;
    /// chunk sizes differ between slices. Shares the work from two chunks on.
    pub(crate) fn zipped<T: Send, const N: usize>(
        &self,
        slices: [&mut [T]; N],
        sizes: [usize; N],
        work: &(dyn Fn(usize, [&mut [T]; N]) + Sync),
    ) {
        self.zip(slices, sizes, 2, work);
    }

    /// Like [`zipped`](Self::zipped), with scratch memory of `per_chunk` elements for each chunk.
    pub(crate) fn zipped_with<T: Send, U: Send, const N: usize>(
        &self,
        slices: [&mut [T]; N],
        sizes: [usize; N],
        (scratch, per_chunk): (&mut [U], usize),
        work: impl Fn(usize, [&mut [T]; N], &mut [U]) + Sync,
    ) {
        let count = zipped_count(&slices, sizes);
        let chunks = zipped_chunks(slices, sizes).zip(scratch.chunks_mut(per_chunk.max(1))).enumerate();
        self.share(count, 2, chunks, &|(index, (parts, scratch))| work(index, parts, scratch));
    }

    /// Like [`zipped`](Self::zipped), over the bytes of chunks of `chunk` elements, of which `sizes` are the sizes in bytes.
    pub(crate) fn chunks_of_bytes<const N: usize>(
        &self,
        slices: [&mut [u8]; N],
        (chunk, sizes): (usize, [usize; N]),
        work: &(dyn Fn(usize, [&mut [u8]; N]) + Sync),
    ) {
        self.zip(slices, sizes, min_shared_chunks(chunk), work);
    }

    fn zip<T: Send, const N: usize>(
        &self,
        slices: [&mut [T]; N],
        sizes: [usize; N],
        least: usize,
        work: &(dyn Fn(usize, [&mut [T]; N]) + Sync),
    ) {
        let count = zipped_count(&slices, sizes);
        self.share(count, least, zipped_chunks(slices, sizes).enumerate(), &|(index, parts)| {
            work(index, parts)
        });
    }

    /// Splits the rows of matrices into strips of columns, and each of the slices into as many chunks. Calls `work` with the
    /// number of each strip, its part of each row, and its chunks. Matrices are bytes with the bytes of an element; an empty
    /// matrix has strips without rows.
    pub(crate) fn strips<T: Send, const M: usize, const N: usize>(
        &self,
        matrices: [(&mut [u8], usize); M],
        [row, width]: [usize; 2],
        (mut slices, sizes): ([&mut [T]; N], [usize; N]),
        work: &StripWork<'_, T, M, N>,
    ) {
        let count = row.div_ceil(width.max(1));
        let mut strips: Vec<[Vec<&mut [u8]>; M]> = Vec::with_capacity(count);
        strips.resize_with(count, || [const { Vec::new() }; M]);
        for (number, (matrix, size)) in matrices.into_iter().enumerate() {
            let [row, width] = [row, width].map(|elements| (elements * size).max(1));
            for row in matrix.chunks_mut(row) {
                let parts = strips.iter_mut().zip(row.chunks_mut(width));
                parts.for_each(|(strip, part)| strip[number].push(part));
            }
        }
        let pieces = strips.into_iter().enumerate().map(|(number, rows)| {
            let mut sizes = sizes.iter();
            let chunks = slices.each_mut().map(|slice| {
                let size = sizes.next().map_or(0, |&size| size.min(slice.len()));
                slice.split_off_mut(..size).unwrap_or_default()
            });
            (number, rows, chunks)
        });
        self.share(count, 2, pieces, &|(number, rows, chunks)| work(number, rows, chunks));
    }

    /// Splits `out` into blocks and each block into parts. Calls `work` with the block's number, the index of the part's
    /// first element within the block, and the part.
    pub(crate) fn parts<T: Send>(
        &self,
        out: &mut [T],
        [block, part]: [usize; 2],
        work: &(dyn Fn(usize, usize, &mut [T]) + Sync),
    ) {
        let count = out.len().div_ceil(block) * block.div_ceil(part);
        let pieces = out.chunks_mut(block).enumerate().flat_map(|(index, whole)| {
            whole.chunks_mut(part).enumerate().map(move |(number, piece)| (index, number * part, piece))
        });
        self.share(count, 2, pieces, &|(index, start, piece)| work(index, start, piece));
    }
}

/// The number of chunks of several slices, which is that of the first one.
fn zipped_count<T, const N: usize>(slices: &[&mut [T]; N], sizes: [usize; N]) -> usize {
    let first = slices.first().zip(sizes.first()).filter(|(slice, _)| !slice.is_empty());
    first.map_or(0, |(slice, &size)| slice.len().div_ceil(size))
}

/// The chunks of several slices, which have the same number of chunks.
fn zipped_chunks<T, const N: usize>(
    mut slices: [&mut [T]; N],
    sizes: [usize; N],
) -> impl Iterator<Item = [&mut [T]; N]> {
    std::iter::from_fn(move || {
        slices.first().filter(|first| !first.is_empty())?;
        let mut sizes = sizes.iter();
        Some(slices.each_mut().map(|slice| {
            let size = sizes.next().map_or(0, |&size| size.min(slice.len()));
            slice.split_off_mut(..size).unwrap_or_default()
        }))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread::{self, ThreadId};

    use super::*;

    #[test]
    fn every_chunk_is_processed_once_with_its_start() {
        for threads in [1, 2, 3] {
            let workers = Workers::new(threads).unwrap();
            for len in [0, 1, 7, 8, 9, 100] {
                let mut out = vec![0usize; len];
                workers.chunks(&mut out, 8, &|start, part| {
                    assert!(part.len() <= 8);
                    part.iter_mut().enumerate().for_each(|(i, out)| *out += start + i + 1);
                });
                assert!(out.iter().enumerate().all(|(i, &out)| out == i + 1));
            }
        }
    }

    #[test]
    fn zipped_slices_are_split_at_the_same_indices() {
        for threads in [1, 3] {
            let workers = Workers::new(threads).unwrap();
            let (mut a, mut b, mut c) = (vec![0; 50], vec![0; 50], vec![0; 50]);
            workers.chunks_together([&mut a, &mut b], 7, &|start, [a, b]| {
                a.fill(start);
                b.fill(start);
            });
            assert_eq!(a, b);
            workers.chunks_together([&mut a, &mut b, &mut c], 7, &|start, parts| {
                parts.into_iter().for_each(|part| part.iter_mut().for_each(|x| *x += start));
            });
            let expected: Vec<usize> = (0..50).map(|i| i / 7 * 7).collect();
            assert_eq!(c, expected);
            assert!(a.iter().zip(&c).all(|(a, c)| *a == 2 * c));
        }
    }

    #[test]
    fn zipped_slices_have_the_same_number_of_chunks() {
        for threads in [1, 3] {
            let workers = Workers::new(threads).unwrap();
            let (mut a, mut b, mut c) = (vec![0; 50], vec![0; 15], vec![0; 8]);
            workers.zipped([&mut a, &mut b, &mut c], [7, 2, 1], &|index, parts| {
                parts.into_iter().for_each(|part| part.iter_mut().for_each(|x| *x += index + 1));
            });
            assert!(a.iter().enumerate().all(|(i, &x)| x == i / 7 + 1));
            assert!(b.iter().enumerate().all(|(i, &x)| x == i / 2 + 1));
            assert_eq!(c, [1, 2, 3, 4, 5, 6, 7, 8]);
        }
    }

    #[test]
    fn parts_never_cross_their_block() {
        for threads in [1, 2] {
            let workers = Workers::new(threads).unwrap();
            let mut out = vec![(0, 0); 30];
            workers.parts(&mut out, [10, 4], &|block, start, part| {
                part.iter_mut().enumerate().for_each(|(i, out)| *out = (block, start + i));
            });
            assert!(out.iter().enumerate().all(|(i, &out)| out == (i / 10, i % 10)));
        }
    }

    #[test]
    fn the_calling_thread_works_along_with_its_helpers() {
        for threads in [1, 2, 3] {
            let workers = Workers::new(threads).unwrap();
            let mut who: Vec<Option<ThreadId>> = vec![None; threads];
            // All threads wait for each other, so that each processes one chunk.
            let all = Barrier::new(threads);
            workers.chunks(&mut who, 1, &|_, part| {
                all.wait();
                part[0] = Some(thread::current().id());
            });
            assert!(who.contains(&Some(thread::current().id())));
            let distinct: std::collections::HashSet<_> = who.iter().collect();
            assert_eq!(distinct.len(), threads);
        }
    }

    #[test]
    fn a_panic_in_a_chunk_reaches_the_caller() {
        let workers = Workers::new(2).unwrap();
        for broken in [0, 7] {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                workers.chunks(&mut [0u8; 64], 8, &|start, _| assert_ne!(start, 8 * broken, "as planned"));
            }));
            assert!(result.is_err());
        }
        let mut out = [0u8; 64];
        workers.chunks(&mut out, 8, &|_, part| part.fill(1));
        assert_eq!(out, [1; 64]);
    }

    #[test]
    fn a_thread_of_another_pool_runs_no_other_job_meanwhile() {
        let workers = Workers::new(2).unwrap();
        let other = ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        let inside = AtomicBool::new(false);
        let begin = || {
            assert!(!inside.swap(true, Ordering::SeqCst), "a job started inside another");
            workers.chunks(&mut [0u8; 1 << 16], 64, &|_, part| part.fill(1));
            inside.store(false, Ordering::SeqCst);
        };
        other.scope(|scope| (0..64).for_each(|_| scope.spawn(|_| begin())));
    }

    #[test]
    fn a_backend_of_no_threads_is_an_error() {
        assert!(matches!(Workers::new(0), Err(KernelError::BadArgument { argument: "threads", .. })));
    }
}
