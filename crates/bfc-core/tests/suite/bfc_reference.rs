//! `BfcConfig::tensorflow` beside the plainest model of upstream's allocator: a list of chunks, searched from
//! end to end at every step. Every block must have the address and the length of the model's.
//!
//! Source of the model: the search order, the split rule, `Extend`, the coalescing and the garbage collection of
//! TensorFlow's `BFCAllocator`. It shares no code with the allocator.

use bfc_core::{Allocator, BfcAllocator, BfcConfig, Block, Bytes, MIB, Request};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::common::source::{BASE, FakeSource, Nature};
use crate::common::try_free;

const LIMIT: u64 = 512 << 10;

#[derive(Clone, Copy, Debug)]
struct ModelChunk {
    region: usize,
    start: u64,
    bytes: u64,
    in_use: bool,
}

/// Upstream's allocator over upstream's fake source: adjacent regions that are never joined.
#[derive(Debug)]
struct Model {
    grows: bool,
    collects: bool,
    max_waste: u64,
    /// The proposed size of the next region.
    region: u64,
    regions: usize,
    reserved: u64,
    source_next: u64,
    /// In the order of their addresses.
    chunks: Vec<ModelChunk>,
}

impl Model {
    fn new(grows: bool, collects: bool, max_waste: u64, first_region: u64) -> Self {
        let region = if grows { first_region.min(LIMIT) } else { LIMIT };
        Self {
            grows,
            collects,
            max_waste,
            region,
            regions: 0,
            reserved: 0,
            source_next: BASE,
            chunks: Vec::new(),
        }
    }

    /// Returns the address and the size of the block for a request.
    fn allocate(&mut self, bytes: u64, alignment: u64) -> Option<(u64, u64)> {
        let rounded = bytes.div_ceil(256) * 256;
        let alignment = alignment.max(256);
        if let Some(found) = self.find(rounded, alignment) {
            return Some(found);
        }
        if self.extend(rounded, alignment) {
            return self.find(rounded, alignment);
        }
        if self.collects && self.collect(rounded) && self.extend(rounded, alignment) {
            return self.find(rounded, alignment);
        }
        None
    }

    fn find(&mut self, rounded: u64, alignment: u64) -> Option<(u64, u64)> {
        let mut place = self.best(rounded, alignment)?;
        let start = self.chunks[place].start.div_ceil(alignment) * alignment;
        if start > self.chunks[place].start {
            self.split(place, start - self.chunks[place].start);
            place += 1;
        }
        if self.cuts(self.chunks[place].bytes, rounded) {
            self.split(place, rounded);
        }
        let chunk = &mut self.chunks[place];
        chunk.in_use = true;
        Some((chunk.start, chunk.bytes))
    }

    /// Returns the smallest free chunk that fits, the lowest among equals.
    fn best(&self, rounded: u64, alignment: u64) -> Option<usize> {
        let fits = |chunk: &ModelChunk| {
            let start = chunk.start.div_ceil(alignment) * alignment;
            !chunk.in_use && start + rounded <= chunk.start + chunk.bytes
        };
        let fitting = self.chunks.iter().enumerate().filter(|(_, chunk)| fits(chunk));
        // The list is sorted by address, and the search keeps the first of equals.
        fitting.min_by_key(|(_, chunk)| chunk.bytes).map(|(place, _)| place)
    }

    /// Whether the allocator splits a chunk of `bytes` bytes.
    fn cuts(&self, bytes: u64, rounded: u64) -> bool {
        bytes >= 2 * rounded || bytes - rounded >= self.max_waste
    }

    fn split(&mut self, place: usize, bytes: u64) {
        let chunk = self.chunks[place];
        let rest = ModelChunk { start: chunk.start + bytes, bytes: chunk.bytes - bytes, ..chunk };
        self.chunks[place].bytes = bytes;
        self.chunks.insert(place + 1, rest);
    }

    fn free(&mut self, start: u64) {
        let place = self.chunks.iter().position(|chunk| chunk.start == start).unwrap();
        self.chunks[place].in_use = false;
        self.join(place);
        if place > 0 {
            self.join(place - 1);
        }
    }

    /// Joins a chunk with the next one if both are free and in the same region.
    fn join(&mut self, place: usize) {
        let Some(&next) = self.chunks.get(place + 1) else { return };
        let chunk = &mut self.chunks[place];
        if !chunk.in_use && !next.in_use && chunk.region == next.region {
            chunk.bytes += next.bytes;
            self.chunks.remove(place + 1);
        }
    }

    fn extend(&mut self, rounded: u64, alignment: u64) -> bool {
        let available = (LIMIT - self.reserved) / 256 * 256;
        if rounded > available {
            return false;
        }
        let mut raised = false;
        while rounded > self.region {
            self.region *= 2;
            raised = true;
        }
        let bytes = self.region.min(available);
        if !raised {
            self.region *= 2;
        }
        let start = self.source_next.div_ceil(alignment) * alignment;
        self.source_next = start + bytes;
        self.reserved += bytes;
        self.regions += 1;
        self.chunks.push(ModelChunk { region: self.regions, start, bytes, in_use: false });
        true
    }

    /// Returns every region without a chunk in use to the source, if a region of the required size then fits.
    fn collect(&mut self, rounded: u64) -> bool {
        let used = |region| self.chunks.iter().any(|chunk| chunk.region == region && chunk.in_use);
        let idle: Vec<usize> = (1..=self.regions).filter(|&region| !used(region)).collect();
        let freed: u64 =
            self.chunks.iter().filter(|chunk| idle.contains(&chunk.region)).map(|chunk| chunk.bytes).sum();
        if freed == 0 || rounded > LIMIT - self.reserved + freed {
            return false;
        }
        self.chunks.retain(|chunk| !idle.contains(&chunk.region));
        self.reserved -= freed;
        true
    }
}

#[derive(Clone, Debug)]
enum Step {
    Allocate { bytes: u64, alignment_log2: u8 },
    Free { pick: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = prop_oneof![
        6 => 1..3000u64,
        3 => (1..80u64).prop_map(|granules| granules * 256),
        3 => 3000..60_000u64,
        1 => 60_000..600_000u64,
    ];
    prop_oneof![
        5 => (bytes, prop_oneof![3 => Just(6u8), 1 => 0..16u8])
            .prop_map(|(bytes, alignment_log2)| Step::Allocate { bytes, alignment_log2 }),
        4 => any::<usize>().prop_map(|pick| Step::Free { pick }),
    ]
}

/// The upstream options of a run.
#[derive(Clone, Copy, Debug)]
struct Options {
    grows: bool,
    collects: bool,
    fragmentation: f64,
    first_region: u64,
}

fn options() -> impl Strategy<Value = Options> {
    let first_region = prop_oneof![Just(1024), Just(4096), Just(64 << 10)];
    let fragmentation = prop_oneof![Just(0.0), Just(0.01), Just(0.1)];
    (any::<bool>(), any::<bool>(), fragmentation, first_region).prop_map(
        |(grows, collects, fragmentation, first_region)| Options {
            grows,
            collects,
            fragmentation,
            first_region,
        },
    )
}

/// Runs the steps on both. Returns the numbers of successful and refused requests.
fn run(options: Options, steps: &[Step]) -> (u64, u64) {
    let Options { grows, collects, fragmentation, first_region } = options;
    let mut config = BfcConfig::tensorflow(Bytes(LIMIT))
        .with_allow_growth(grows)
        .with_garbage_collection(collects)
        .with_first_region(Bytes(first_region))
        .with_retry(false);
    let mut max_waste = 128 * MIB;
    if fragmentation > 0.0 {
        config = config.with_fragmentation_fraction(fragmentation);
        max_waste = (LIMIT as f64 * fragmentation) as u64;
    }
    let mut model = Model::new(grows, collects, max_waste, first_region);
    let pool = BfcAllocator::new("reference", FakeSource::new(Nature::default()), config);
    let mut live: Vec<Block> = Vec::new();
    let (mut met, mut refused) = (0, 0);
    for step in steps {
        match *step {
            Step::Allocate { bytes, alignment_log2 } => {
                let alignment = 1 << alignment_log2;
                let request = Request::new(bytes).with_alignment(alignment);
                let block = pool.allocate(&request).ok();
                let expected = model.allocate(bytes, alignment);
                let got = block.map(|block| (block.address, block.bytes));
                assert_eq!(got, expected, "{bytes} bytes, alignment {alignment}: {model:#?}");
                live.extend(block);
                *(if block.is_some() { &mut met } else { &mut refused }) += 1;
            }
            Step::Free { pick } if !live.is_empty() => {
                let block = live.swap_remove(pick % live.len());
                try_free(&pool, block).unwrap();
                model.free(block.address);
            }
            Step::Free { .. } => {}
        }
        assert_eq!(pool.stats().bytes_reserved, model.reserved);
        let chunks = pool.chunks();
        let seen = chunks.iter().map(|chunk| (chunk.address, chunk.bytes, chunk.in_use()));
        let expected = model.chunks.iter().map(|chunk| (chunk.start, chunk.bytes, chunk.in_use));
        assert!(
            seen.clone().eq(expected.clone()),
            "{:?}\n{:?}",
            Vec::from_iter(seen),
            Vec::from_iter(expected)
        );
    }
    assert!(model.grows || model.regions <= 1 || collects);
    (met, refused)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 900, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_chunk_chosen_is_the_one_that_upstream_chooses(options in options(), steps in vec(step(), 1..200)) {
        run(options, &steps);
    }
}

/// The random sequences must include both successful and refused requests.
#[test]
fn long_sequences_meet_and_refuse_requests_as_upstream_does() {
    let mut random = crate::common::Random(11);
    for (grows, collects) in [(false, false), (true, false), (true, true)] {
        let steps: Vec<Step> = (0..6000)
            .map(|_| match random.below(9) {
                0..=4 => {
                    Step::Allocate { bytes: 1 + random.below(30_000), alignment_log2: random.below(14) as u8 }
                }
                _ => Step::Free { pick: random.next() as usize },
            })
            .collect();
        let options = Options { grows, collects, fragmentation: 0.0, first_region: 2048 };
        let (met, refused) = run(options, &steps);
        assert!(met > 1000 && refused > 100, "{met} met, {refused} refused");
    }
}
