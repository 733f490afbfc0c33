//! Random interleavings: several streams use memory between allocations and frees, on a device that watches its
//! use. Each interleaving returns the violations that the device saw.

use std::sync::Arc;

use bfc_core::{
    Allocator, BfcAllocator, BfcConfig, Block, Bytes, DeviceMemory, Driver, GrowthRule, KIB, MIB, PoolView,
    Request, SourceError, Stream, StreamAllocator, StreamEvent, SubAllocator, VirtualMemory,
};

use super::Random;

/// A bug planted in an interleaving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// No bug.
    None,
    /// Memory used on other streams is free at once: reuse without waiting.
    FreeAtOnce,
    /// Other streams do not wait for the compute stream before they use its memory.
    UseAtOnce,
}

/// A device that works with blocks and watches how work uses them.
pub trait Watched {
    /// A violation of the rules that the device saw.
    type Violation;

    /// Returns the device's driver.
    fn driver(&self) -> Arc<dyn Driver>;

    /// Returns the stream of this number, below [`MOST_STREAMS`]. 0 is the compute stream.
    fn stream(&self, number: usize) -> Arc<Stream>;

    /// Submits work that uses a block to the stream of this number.
    fn launch(&self, number: usize, stream: &Stream, block: &Block);

    /// Returns the violations after all work has ended.
    fn violations(&self) -> Vec<Self::Violation>;

    /// Ends the interleaving after pool and streams are gone. `all_free` says whether all blocks were free
    /// before.
    fn end(&self, all_free: bool) {
        assert!(all_free);
    }
}

/// The largest block. A pool's limit is eight times as large.
pub const LARGEST: u64 = MIB;

/// The largest number of streams in an interleaving.
pub const MOST_STREAMS: usize = 4;

struct Interleaving<'a, W> {
    bug: Bug,
    random: Random,
    device: &'a W,
    pool: Arc<BfcAllocator>,
    memory: Arc<StreamAllocator>,
    streams: Vec<Arc<Stream>>,
    /// Live blocks, each with the streams announced for it.
    live: Vec<(Block, Vec<usize>)>,
}

/// Runs the interleaving of a seed with about this many steps.
pub fn run<W: Watched>(device: &W, seed: u64, steps: usize, bug: Bug) -> Vec<W::Violation> {
    let mut interleaving = Interleaving::new(device, seed, bug);
    for _ in 0..steps {
        interleaving.step();
    }
    interleaving.end();
    device.violations()
}

impl<'a, W: Watched> Interleaving<'a, W> {
    fn new(device: &'a W, seed: u64, bug: Bug) -> Self {
        let driver = device.driver();
        let mapped = (seed & 1 == 0).then(|| VirtualMemory::new(driver.clone()));
        let (source, granule): (Arc<dyn SubAllocator>, _) = match mapped {
            Some(Ok(memory)) => (Arc::new(memory), Bytes::mib(2)),
            // Only some devices support this.
            None | Some(Err(SourceError::Unsupported { .. })) => {
                (Arc::new(DeviceMemory::new(driver)), Bytes::kib(512))
            }
            Some(Err(error)) => panic!("{error}"),
        };
        let config = BfcConfig::new(Bytes(8 * LARGEST))
            .with_growth(GrowthRule::AsRequested { granule })
            .with_first_region(granule)
            .with_retry(false);
        let pool = Arc::new(BfcAllocator::new("interleaving_bfc", source, config));
        let others = 1 + seed as usize % (MOST_STREAMS - 1);
        let streams: Vec<_> = (0..=others).map(|number| device.stream(number)).collect();
        let memory = Arc::new(StreamAllocator::new(pool.clone(), streams[0].clone()));
        Self { bug, random: Random(seed), device, pool, memory, streams, live: Vec::new() }
    }

    fn step(&mut self) {
        match self.random.below(16) {
            0..4 => self.allocate(),
            4..6 => self.launch(0),
            6..10 => {
                let stream = 1 + self.random.below(self.streams.len() as u64 - 1) as usize;
                self.launch(stream);
            }
            10..13 => self.free(),
            13 => {
                let (from, to) = (self.pick(self.streams.len()), self.pick(self.streams.len()));
                let event = StreamEvent::new(&self.streams[from]).unwrap();
                self.streams[to].wait(&event).unwrap();
            }
            14 => {
                self.pool.trim(Bytes(0));
            }
            _ => self.memory.poll(),
        }
    }

    fn pick(&mut self, below: usize) -> usize {
        self.random.below(below as u64) as usize
    }

    fn allocate(&mut self) {
        let bytes = KIB * (1 + self.random.below(LARGEST / KIB));
        if let Ok(block) = self.memory.allocate(&Request::new(bytes)) {
            self.live.push((block, Vec::new()));
            // Work usually uses new memory at once.
            self.use_block(0, self.live.len() - 1);
        }
    }

    /// Submits work that uses one or two blocks to a stream.
    fn launch(&mut self, stream: usize) {
        for _ in 0..1 + self.random.below(2) {
            if !self.live.is_empty() {
                let index = self.pick(self.live.len());
                self.use_block(stream, index);
            }
        }
    }

    fn use_block(&mut self, stream: usize, index: usize) {
        let (block, announced) = &mut self.live[index];
        if stream > 0 && !announced.contains(&stream) {
            announced.push(stream);
            match self.bug {
                Bug::FreeAtOnce => {
                    let event = StreamEvent::new(&self.streams[0]).unwrap();
                    self.streams[stream].wait(&event).unwrap();
                }
                Bug::UseAtOnce => {}
                _ => self.memory.record_stream(block, &self.streams[stream]).unwrap(),
            }
        }
        self.device.launch(stream, &self.streams[stream], block);
    }

    fn free(&mut self) {
        if !self.live.is_empty() {
            let index = self.pick(self.live.len());
            let (block, _) = self.live.swap_remove(index);
            // SAFETY: the block is live. The interleaving tests that no work still uses it.
            unsafe { self.memory.deallocate(block) }.unwrap();
        }
    }

    /// Frees all blocks.
    fn end(mut self) {
        while !self.live.is_empty() {
            self.free();
        }
        drop(self.memory);
        self.pool.check_invariants().unwrap();
        let all_free = self.pool.stats().bytes_in_use == 0;
        drop((self.pool, self.streams));
        self.device.end(all_free);
    }
}
