//! Runs bfc-core's random interleavings on a device: is any byte reused before its last use has ended?
//!
//! The simulated device checks the order of work; a real device only executes it. Here, each use of a block waits in a slow
//! kernel of one block of threads, copies the contents of the block to a log, and fills the block with its owner's number.
//! The log shows at the end whether a use came too early.

use std::cell::RefCell;
use std::sync::Arc;

use bfc_core::{Block, Driver, MemoryCopy, Stream};
use bfc_cuda::kernels::{CHECK, ElementType, Job, JobInput, KernelId};
use bfc_cuda::{Compute, ComputeError, CudaDriver, StreamCompute};

use super::say_skipped;
use common::Random;
use common::interleaving::{self, Bug, LARGEST, MOST_STREAMS, Watched};

#[allow(dead_code, unreachable_pub, reason = "as in the tests of bfc-core, which use the rest")]
#[path = "../../../bfc-core/tests/common"]
mod common {
    pub(super) mod interleaving;
    pub(super) mod random;

    pub(super) use random::Random;
}

const STEPS: usize = 32;

/// The most uses of an interleaving: two per step.
const MOST_USES: u64 = 2 * STEPS as u64;

const WORD: u64 = size_of::<f32>() as u64;

/// The device memory of the interleavings.
#[derive(Clone, Copy)]
struct Extent {
    /// The bytes of a block that are filled and checked: the first ones.
    looked_at: u64,
    /// The most elements that work loops over before it uses its block.
    delay: u64,
}

impl Extent {
    /// Whole blocks, and delays of about 100 µs; almost nothing on the slow emulated driver.
    fn of_device() -> Self {
        if super::expected().is_some() {
            Self { looked_at: 64, delay: 8 }
        } else {
            Self { looked_at: LARGEST, delay: 1 << 16 }
        }
    }
}

/// A stream and its compute device.
struct Lane {
    stream: Arc<Stream>,
    compute: StreamCompute,
    /// Memory for delays.
    idle: u64,
}

/// A use writes the `n` values that it finds to its part of the log.
struct Found {
    owner: u64,
    number: f32,
    stream: usize,
    place: u64,
    words: u64,
}

/// A use that found another owner's data.
#[derive(Debug)]
#[allow(dead_code, reason = "they are printed")]
struct Intrusion {
    owner: u64,
    stream: usize,
    word: u64,
    expected: f32,
    found: f32,
}

struct Device {
    driver: Arc<CudaDriver>,
    lanes: Vec<Lane>,
    extent: Extent,
    log: u64,
    uses: RefCell<Uses>,
}

/// The fate of blocks in this interleaving.
struct Uses {
    random: Random,
    /// Numbers are unique, up to 2^24.
    last_number: u32,
    /// The numbers of blocks that were filled, by id.
    numbers: Vec<(u64, f32)>,
    found: Vec<Found>,
}

impl Device {
    fn new(driver: &Arc<CudaDriver>) -> Result<Self, ComputeError> {
        let extent = Extent::of_device();
        let mut lanes = Vec::new();
        for _ in 0..MOST_STREAMS {
            let stream = Stream::new(driver.clone()).unwrap();
            let compute = StreamCompute::new(driver.clone(), stream.clone())?;
            lanes.push(Lane { stream, compute, idle: driver.allocate_device(extent.delay * WORD).unwrap() });
        }
        let log = driver.allocate_device(MOST_USES * extent.looked_at).unwrap();
        let uses = Uses { random: Random(0), last_number: 0, numbers: Vec::new(), found: Vec::new() };
        let device = Self { driver: driver.clone(), lanes, extent, log, uses: RefCell::new(uses) };
        // Compile the kernels before any interleaving.
        for lane in &device.lanes {
            device.fill(lane, lane.idle, extent.delay, 0.0)?;
            device.delay(lane, 1)?;
        }
        driver.synchronize().unwrap();
        Ok(device)
    }

    fn give(&self, lane: &Lane, kernel: &'static str, blocks: u32, job: Job) -> Result<(), ComputeError> {
        let kernel = KernelId::new(&CHECK, kernel, ElementType::F32);
        // SAFETY: what the job names is the lane's own memory, or a block that is live as the interleaving knows it.
        unsafe { lane.compute.launch(kernel, blocks, &job) }
    }

    fn fill(&self, lane: &Lane, address: u64, words: u64, number: f32) -> Result<(), ComputeError> {
        let job =
            Job { count: words, ..Job::default() }.with_output(address).with_constant(f64::from(number));
        self.give(lane, "check_fill", 16, job)
    }

    /// Loops over this many elements with one block of threads, which adds a constant.
    fn delay(&self, lane: &Lane, words: u64) -> Result<(), ComputeError> {
        let job = Job { count: words, ..Job::default() }.with_output(lane.idle);
        self.give(lane, "check_add", 1, job.with_input(JobInput::contiguous(lane.idle)))
    }
}

impl Watched for Device {
    type Violation = Intrusion;

    fn driver(&self) -> Arc<dyn Driver> {
        self.driver.clone()
    }

    fn stream(&self, number: usize) -> Arc<Stream> {
        self.lanes[number].stream.clone()
    }

    fn launch(&self, number: usize, _: &Stream, block: &Block) {
        let lane = &self.lanes[number];
        let uses = &mut *self.uses.borrow_mut();
        let words = block.bytes.min(self.extent.looked_at) / WORD;
        self.delay(lane, 1 + uses.random.below(self.extent.delay)).unwrap();
        let known = uses.numbers.iter().find(|(id, _)| *id == block.id);
        let mark = match known {
            Some(&(owner, mark)) => {
                assert!((uses.found.len() as u64) < MOST_USES);
                let place = self.log + uses.found.len() as u64 * self.extent.looked_at;
                let copy = MemoryCopy::OnDevice { from: block.address, to: place, bytes: words * WORD };
                // SAFETY: the log has space for it, and no other work writes there.
                unsafe { lane.stream.copy(copy) }.unwrap();
                uses.found.push(Found { owner, number: mark, stream: number, place, words });
                mark
            }
            None => {
                uses.last_number += 1;
                let mark = uses.last_number as f32;
                uses.numbers.push((block.id, mark));
                mark
            }
        };
        self.fill(lane, block.address, words, mark).unwrap();
    }

    fn violations(&self) -> Vec<Intrusion> {
        self.driver.synchronize().unwrap();
        let uses = &mut *self.uses.borrow_mut();
        uses.numbers.clear();
        let mut intrusions = Vec::new();
        let mut bytes = vec![0; self.extent.looked_at as usize];
        for found in uses.found.drain(..) {
            let bytes = &mut bytes[..(found.words * WORD) as usize];
            // SAFETY: the place is within the log.
            unsafe { self.lanes[0].compute.download(found.place, bytes) }.unwrap();
            let words = bytes.as_chunks::<{ WORD as usize }>().0.iter().map(|&word| f32::from_ne_bytes(word));
            // One word represents the block.
            if let Some((word, other)) = words.enumerate().find(|(_, word)| *word != found.number) {
                intrusions.push(Intrusion {
                    owner: found.owner,
                    stream: found.stream,
                    word: word as u64,
                    expected: found.number,
                    found: other,
                });
            }
        }
        intrusions
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        for address in self.lanes.iter().map(|lane| lane.idle).chain([self.log]) {
            // SAFETY: it was taken for this, and the driver waits for all work with it.
            unsafe { self.driver.free_device(address) };
        }
    }
}

/// The device for interleavings; returns from the test with a message if there is none.
macro_rules! device_or_skip {
    () => {
        match Device::new(&cuda_or_skip!()) {
            Ok(device) => device,
            Err(reason) => return say_skipped(&reason),
        }
    };
}

/// The number of interleavings from the environment, or this default.
fn interleavings(or: u64) -> u64 {
    std::env::var("STREAM_INTERLEAVINGS").ok().and_then(|text| text.parse().ok()).unwrap_or(or)
}

#[test]
fn device_memory_is_not_reused_before_its_last_use_ends() {
    let device = device_or_skip!();
    let interleavings = interleavings(if super::expected().is_some() { 20 } else { 500 });
    for seed in 0..interleavings {
        let intrusions = interleaving::run(&device, seed, STEPS, Bug::None);
        assert!(intrusions.is_empty(), "seed {seed}: {intrusions:?}");
    }
    println!("{interleavings} interleavings of {STEPS} steps on {}, no violation", device.driver.name());
    let faults = device.driver.free_faults();
    assert_eq!(faults.count, 0, "{faults:?}");
}

#[test]
fn device_interleavings_find_planted_bugs() {
    let device = device_or_skip!();
    for bug in [Bug::FreeAtOnce, Bug::UseAtOnce] {
        let most = interleavings(500);
        let found = (0..most).find(|&seed| !interleaving::run(&device, seed, STEPS, bug).is_empty());
        println!(
            "{bug:?} found after {:?} interleavings on {}",
            found.map(|seed| seed + 1),
            device.driver.name()
        );
        assert!(found.is_some(), "{bug:?} not found in {most} interleavings");
    }
}
