//! The interface of all allocators, and the loops that drive it.

use std::sync::Mutex;
use std::time::Instant;

use crate::program::Program;

/// An allocator under measurement, without a lock.
pub trait Peer {
    /// The data for freeing a block.
    type Handle;

    /// An allocator over one space of `capacity` bytes for at most `blocks` blocks at a time.
    fn new(capacity: u64, blocks: u32) -> Self;

    fn allocate(&mut self, bytes: u64) -> Option<Self::Handle>;

    fn free(&mut self, handle: Self::Handle);
}

/// Another allocator behind `std::sync::Mutex`, locked once per event as a shared allocator must be.
pub struct Locked<P>(Mutex<P>);

impl<P: Peer> Peer for Locked<P> {
    type Handle = P::Handle;

    fn new(capacity: u64, blocks: u32) -> Self {
        Self(Mutex::new(P::new(capacity, blocks)))
    }

    #[inline]
    fn allocate(&mut self, bytes: u64) -> Option<P::Handle> {
        Self::locked(&self.0).allocate(bytes)
    }

    #[inline]
    fn free(&mut self, handle: P::Handle) {
        Self::locked(&self.0).free(handle);
    }
}

impl<P> Locked<P> {
    #[inline]
    fn locked(mutex: &Mutex<P>) -> std::sync::MutexGuard<'_, P> {
        mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// The blocks of a replay, by slot.
pub fn empty_slots<P: Peer>(program: &Program) -> Vec<Option<P::Handle>> {
    (0..program.slots).map(|_| None).collect()
}

/// Replays a program once. Returns whether every allocation succeeded. On failure, frees everything.
#[inline(never)]
pub fn replay<P: Peer>(peer: &mut P, program: &Program, slots: &mut [Option<P::Handle>]) -> bool {
    for event in &program.events {
        let slot = &mut slots[event.slot as usize];
        if event.bytes == 0 {
            if let Some(handle) = slot.take() {
                peer.free(handle);
            }
        } else {
            *slot = peer.allocate(event.bytes);
            if slot.is_none() {
                slots.iter_mut().filter_map(Option::take).for_each(|handle| peer.free(handle));
                return false;
            }
        }
    }
    true
}

/// Nanoseconds per event of one replay.
pub fn time_replay<P: Peer>(peer: &mut P, program: &Program, slots: &mut [Option<P::Handle>]) -> f64 {
    let start = Instant::now();
    assert!(replay(peer, program, slots), "the pool is large enough");
    start.elapsed().as_nanos() as f64 / program.events.len() as f64
}

/// Nanoseconds per pair of one allocation and one free: `count` blocks of 256 B to 16 KiB, freed in random
/// order.
pub fn time_random_free<P: Peer>(peer: &mut P, count: usize, rounds: usize) -> f64 {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let sizes: Vec<u64> = (0..count).map(|_| 256 * (1 + random.below(64))).collect();
    let mut order: Vec<usize> = (0..count).collect();
    let mut blocks: Vec<Option<P::Handle>> = (0..count).map(|_| None).collect();
    let mut spent = 0.0;
    for _ in 0..rounds {
        for place in (1..count).rev() {
            order.swap(place, random.below(place as u64 + 1) as usize);
        }
        let start = Instant::now();
        for (block, &bytes) in blocks.iter_mut().zip(&sizes) {
            *block = peer.allocate(bytes);
            assert!(block.is_some(), "the pool is large enough");
        }
        for &place in &order {
            if let Some(block) = blocks[place].take() {
                peer.free(block);
            }
        }
        spent += start.elapsed().as_nanos() as f64;
    }
    spent / (rounds * count) as f64
}

/// The least capacity, in steps of 64 KiB, in which a program runs; `None` if twice its peak is too small.
pub fn smallest_pool<P: Peer>(program: &Program) -> Option<u64> {
    const STEP: u64 = 64 << 10;
    let fits = |steps: u64| {
        let mut peer = P::new(steps * STEP, program.slots as u32 + 1);
        replay(&mut peer, program, &mut empty_slots::<P>(program))
    };
    let (mut below, mut enough) = (program.peak_live / STEP, program.peak_live / STEP * 2 + 16);
    if !fits(enough) {
        return None;
    }
    while below + 1 < enough {
        let middle = below.midpoint(enough);
        if fits(middle) { enough = middle } else { below = middle }
    }
    Some(enough * STEP)
}

/// A small random number generator (xorshift64*), so that every peer sees the same order.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let word = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D);
        ((u128::from(word) * u128::from(bound)) >> 64) as u64
    }
}
