//! Work cut into chunks by its shape alone, done by the thread that asks for it and by helpers of the backend's own.
//!
//! The number of threads decides only who does a chunk, never where a chunk begins. So no result depends on it.
//!
//! The thread that asks begins at once, and the helpers join as they wake: handing all of it over would cost two changes
//! of thread an op, which is more than many an op takes.

mod gate;

use std::sync::{Mutex, PoisonError};

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::error::{DeviceFault, Error, Result};

/// Elements per chunk where an element costs a few instructions. A multiple of every number of elements that kernels take at
/// a time.
pub(super) const LIGHT: usize = 32 * 1024;

/// Elements per chunk where an element costs a function such as exp, or a few random bits.
pub(super) const HEAVY: usize = 4 * 1024;

/// Light chunks that it takes before helpers are called: on virtual machines it takes the thread that asks 70 µs to wake one.
const LIGHT_CHUNKS: usize = 8;

/// How many chunks of so many elements there have to be before helpers are called.
const fn fewest_shared(chunk: usize) -> usize {
    if chunk > LIGHT / 2 { LIGHT_CHUNKS } else { 2 }
}

/// How many runs of `cost` elements make up a chunk of light work; at least one.
pub(super) const fn light_runs(cost: usize) -> usize {
    if cost >= LIGHT || cost == 0 { 1 } else { LIGHT / cost }
}

/// The threads that share the work.
#[derive(Debug)]
pub(super) struct Workers {
    /// All threads but the one that asks; `None` if there are no others.
    helpers: Option<ThreadPool>,
    threads: usize,
}

impl Workers {
    /// The thread that asks for work to be done, and so many more that there are `threads`, in a pool of their own.
    ///
    /// # Errors
    /// [`Error::BadArgument`] for no threads; [`Error::NoDevice`] if the system refuses so many.
    pub(super) fn new(threads: usize) -> Result<Self> {
        let helpers = match threads {
            0 => {
                return Err(Error::BadArgument {
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
                let refused = |error: rayon::ThreadPoolBuildError| Error::NoDevice {
                    device: "cpu:0".to_owned(),
                    reason: DeviceFault::NoThreads { threads, reason: error.to_string() },
                };
                Some(pool.map_err(refused)?)
            }
        };
        Ok(Self { helpers, threads })
    }

    /// How many threads there are.
    pub(super) const fn threads(&self) -> usize {
        self.threads
    }

    /// Who helps with work that is begun on this thread; `None` if it does everything itself.
    ///
    /// A thread of another rayon pool works alone. While it waited for ours it would begin other pieces of its own
    /// pool's work in the middle of an op: they would run without recording, be charged to that op, wait for locks that
    /// are held below them, and pile up on the stack.
    fn helpers(&self) -> Option<&ThreadPool> {
        let is_foreign = |pool: &&ThreadPool| {
            rayon::current_thread_index().is_some() && pool.current_thread_index().is_none()
        };
        self.helpers.as_ref().filter(|pool| !is_foreign(pool))
    }

    /// Calls `work` with each of `count` pieces, which go to whoever is free. Fewer than `least` stay on this thread.
    fn share<P: Send>(
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
        gate::work_together(pool, self.threads.min(count) - 1, &take_all);
    }

    /// Calls `work` with each chunk of `out` and the number of its first element.
    ///
    /// The closure is a trait object, so that the machinery of sharing is compiled once per element type and not once
    /// per kernel.
    pub(super) fn chunks<T: Send>(
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
        self.share(count, fewest_shared(chunk), chunks, &|(index, part)| work(index * chunk, part));
    }

    /// As [`chunks`](Self::chunks), over several slices of one length.
    pub(super) fn chunks_together<T: Send, const N: usize>(
        &self,
        slices: [&mut [T]; N],
        chunk: usize,
        work: &(dyn Fn(usize, [&mut [T]; N]) + Sync),
    ) {
        self.zip(slices, [chunk; N], fewest_shared(chunk), &|index, parts| work(index * chunk, parts));
    }

    /// Calls `work` with the number of each chunk and that chunk of every slice. The slices have as many chunks as the first,
    /// each of its own size. Elements may cost anything here.
    pub(super) fn zipped<T: Send, const N: usize>(
        &self,
        slices: [&mut [T]; N],
        sizes: [usize; N],
        work: &(dyn Fn(usize, [&mut [T]; N]) + Sync),
    ) {
        self.zip(slices, sizes, 2, work);
    }

    fn zip<T: Send, const N: usize>(
        &self,
        mut slices: [&mut [T]; N],
        sizes: [usize; N],
        least: usize,
        work: &(dyn Fn(usize, [&mut [T]; N]) + Sync),
    ) {
        let first = slices.first().zip(sizes.first()).filter(|(slice, _)| !slice.is_empty());
        let count = first.map_or(0, |(slice, &size)| slice.len().div_ceil(size));
        let chunks = std::iter::from_fn(|| {
            slices.first().filter(|first| !first.is_empty())?;
            let mut sizes = sizes.iter();
            Some(slices.each_mut().map(|slice| {
                let size = sizes.next().map_or(0, |&size| size.min(slice.len()));
                slice.split_off_mut(..size).unwrap_or_default()
            }))
        });
        self.share(count, least, chunks.enumerate(), &|(index, parts)| work(index, parts));
    }

    /// Cuts `out` into blocks and each block into parts, and calls `work` with the block's number, the number of the
    /// part's first element within the block, and the part.
    pub(super) fn parts<T: Send>(
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

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread::{self, ThreadId};

    use super::*;

    #[test]
    fn every_chunk_is_done_once_and_knows_where_it_begins() {
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
    fn slices_that_belong_together_are_cut_at_the_same_places() {
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
    fn the_thread_that_asks_works_beside_its_helpers() {
        for threads in [1, 2, 3] {
            let workers = Workers::new(threads).unwrap();
            let mut who: Vec<Option<ThreadId>> = vec![None; threads];
            // Nobody goes on before all have come, so each does one chunk.
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
    fn a_thread_of_another_pool_begins_no_other_work_meanwhile() {
        let workers = Workers::new(2).unwrap();
        let other = ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        let inside = AtomicBool::new(false);
        let begin = || {
            assert!(!inside.swap(true, Ordering::SeqCst), "a piece of work was begun inside another");
            workers.chunks(&mut [0u8; 1 << 16], 64, &|_, part| part.fill(1));
            inside.store(false, Ordering::SeqCst);
        };
        other.scope(|scope| (0..64).for_each(|_| scope.spawn(|_| begin())));
    }

    #[test]
    fn a_backend_of_no_threads_is_an_error() {
        assert!(matches!(Workers::new(0), Err(Error::BadArgument { argument: "threads", .. })));
    }
}
