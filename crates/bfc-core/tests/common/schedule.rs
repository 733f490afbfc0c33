//! Random schedules: work on several streams, memory taken and given back in between, on a device that ends its work in
//! an order of its own. What the device has seen against the rules is the outcome.

use std::sync::Arc;

use bfc_core::sim::{Pace, SimDevice, Use, Violation};
use bfc_core::{
    Allocator, BfcAllocator, BfcConfig, Block, Bytes, DeviceMemory, Driver, Event, GrowthRule, KIB, MIB,
    Request, Stream, StreamAllocator, SubAllocator, VirtualMemory,
};

use super::Random;
use super::liar::{Liar, Lie};

/// What is wrong with the schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Nothing.
    None,
    /// Memory used on other streams is free at once: reuse without waiting.
    FreeAtOnce,
    /// Other streams do not wait for the compute stream before they use its memory.
    UseAtOnce,
    /// The driver lies.
    Driver(Lie),
}

/// Blocks are up to this large, a pool's limit eight times as large.
const LARGEST: u64 = MIB;

struct Schedule {
    bug: Bug,
    random: Random,
    device: Arc<SimDevice>,
    pool: Arc<BfcAllocator>,
    memory: Arc<StreamAllocator>,
    streams: Vec<Arc<Stream>>,
    /// With the streams that each was announced on.
    live: Vec<(Block, Vec<usize>)>,
}

/// Runs the schedule of a seed, with about so many steps.
pub fn run(seed: u64, steps: usize, bug: Bug) -> Vec<Violation> {
    let device = Arc::new(SimDevice::new(Bytes(12 * LARGEST)).with_pace(Pace::Random { seed }));
    let mut schedule = Schedule::new(device.clone(), seed, bug);
    for _ in 0..steps {
        schedule.step();
    }
    schedule.end();
    device.violations()
}

impl Schedule {
    fn new(device: Arc<SimDevice>, seed: u64, bug: Bug) -> Self {
        let driver: Arc<dyn Driver> = match bug {
            Bug::Driver(lie) => Arc::new(Liar { device: device.clone(), lie }),
            _ => device.clone(),
        };
        let mapped = seed.is_multiple_of(2);
        let source: Arc<dyn SubAllocator> = match mapped {
            true => Arc::new(VirtualMemory::new(driver.clone()).unwrap()),
            false => Arc::new(DeviceMemory::new(driver.clone())),
        };
        let granule = if mapped { Bytes::mib(2) } else { Bytes::kib(512) };
        let config = BfcConfig::new(Bytes(8 * LARGEST))
            .with_growth(GrowthRule::AsRequested { granule })
            .with_first_region(granule)
            .with_retry(false);
        let pool = Arc::new(BfcAllocator::new("sim_0_bfc", source, config));
        let others = 1 + seed as usize % 3;
        let streams: Vec<_> = (0..=others).map(|_| Stream::new(driver.clone()).unwrap()).collect();
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
                let event = Event::new(&self.streams[from]).unwrap();
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
            // New memory is mostly used at once.
            self.use_block(0, self.live.len() - 1);
        }
    }

    /// Work on a stream that uses one or two blocks.
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
                    let event = Event::new(&self.streams[0]).unwrap();
                    self.streams[stream].wait(&event).unwrap();
                }
                Bug::UseAtOnce => {}
                _ => self.memory.record_stream(block, &self.streams[stream]).unwrap(),
            }
        }
        self.device.launch(self.streams[stream].handle(), &[Use::of(block)]).unwrap();
    }

    fn free(&mut self) {
        if !self.live.is_empty() {
            let index = self.pick(self.live.len());
            let (block, _) = self.live.swap_remove(index);
            // SAFETY: the block is live, and the device's memory has nothing in it.
            unsafe { self.memory.deallocate(block) }.unwrap();
        }
    }

    /// Everything goes back.
    fn end(mut self) {
        while !self.live.is_empty() {
            self.free();
        }
        drop(self.memory);
        self.pool.check_invariants().unwrap();
        // Whoever is lied to may never learn that a block is free.
        let all_free = self.pool.stats().bytes_in_use == 0;
        drop((self.pool, self.streams));
        if !matches!(self.bug, Bug::Driver(_)) {
            assert!(all_free);
            assert_eq!(self.device.open_streams_and_events(), 0);
            assert_eq!(self.device.memory_info().unwrap().free, 12 * LARGEST);
        }
    }
}
