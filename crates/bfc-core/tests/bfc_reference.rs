//! `BfcConfig::tensorflow` beside the plainest model of upstream's allocator: a list of chunks, searched from one end to
//! the other at every step. Every block must lie where the model says, and be as long.
//!
//! Source of the model: the search order, the split rule, `Extend`, the coalescing, the garbage collection and the two ends
//! of TensorFlow's `BFCAllocator`. It shares no code with the allocator.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests may")]

mod common;

use bfc_core::{
    AllocationAttributes, Allocator, BfcAllocator, BfcConfig, Block, Bytes, End, EndRule, Ends, HoleOrder,
    HoleSplit, MIB, Request,
};
use proptest::collection::vec;
use proptest::prelude::*;

use common::source::{BASE, FakeSource, Nature};
use common::try_free;

const LIMIT: u64 = 512 << 10;

#[derive(Clone, Copy, Debug)]
struct ModelChunk {
    region: usize,
    start: u64,
    bytes: u64,
    in_use: bool,
    tag: Tag,
}

/// Whose a chunk is. With one end, all are of the lower end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tag {
    Lower,
    Gap,
    Upper,
}

impl From<End> for Tag {
    fn from(end: End) -> Self {
        match end {
            End::Lower => Self::Lower,
            End::Upper => Self::Upper,
        }
    }
}

/// Upstream's allocator over upstream's fake source: regions one behind the other, never joined.
#[derive(Debug)]
struct Model {
    grows: bool,
    collects: bool,
    max_waste: u64,
    ends: Ends,
    /// The size that the next region is planned to have.
    region: u64,
    regions: usize,
    reserved: u64,
    source_next: u64,
    /// In the order of their addresses.
    chunks: Vec<ModelChunk>,
}

impl Model {
    fn new(grows: bool, collects: bool, max_waste: u64, ends: Ends, first_region: u64) -> Self {
        let region = if grows { first_region.min(LIMIT) } else { LIMIT };
        Self {
            grows,
            collects,
            max_waste,
            ends,
            region,
            regions: 0,
            reserved: 0,
            source_next: BASE,
            chunks: Vec::new(),
        }
    }

    /// The address and the size of the block that a request gets.
    fn allocate(&mut self, bytes: u64, alignment: u64, end: End) -> Option<(u64, u64)> {
        let rounded = bytes.div_ceil(256) * 256;
        let alignment = alignment.max(256);
        if let Some(found) = self.find(rounded, alignment, end) {
            return Some(found);
        }
        if self.extend(rounded, alignment) {
            return self.find(rounded, alignment, end);
        }
        if self.collects && self.collect(rounded) && self.extend(rounded, alignment) {
            return self.find(rounded, alignment, end);
        }
        None
    }

    /// The rule of an end; that of all requests where there is one.
    fn rule(&self, end: End) -> EndRule {
        match (self.ends, end) {
            (Ends::Two { lower, .. }, End::Lower) => lower,
            (Ends::Two { upper, .. }, End::Upper) => upper,
            _ => EndRule { order: HoleOrder::LowestFirst, split: HoleSplit::AsPool },
        }
    }

    fn find(&mut self, rounded: u64, alignment: u64, end: End) -> Option<(u64, u64)> {
        let end = if self.ends.are_two() { end } else { End::Lower };
        let place = self.best(rounded, alignment, Tag::from(end), self.rule(end).order);
        let place = place.or_else(|| self.best(rounded, alignment, Tag::Gap, HoleOrder::LowestFirst))?;
        match end {
            End::Lower => Some(self.take_low(place, rounded, alignment)),
            End::Upper => Some(self.take_high(place, rounded, alignment)),
        }
    }

    /// The smallest free chunk with this tag that fits.
    fn best(&self, rounded: u64, alignment: u64, tag: Tag, order: HoleOrder) -> Option<usize> {
        let mut best: Option<usize> = None;
        for (place, chunk) in self.chunks.iter().enumerate() {
            let start = chunk.start.div_ceil(alignment) * alignment;
            if chunk.in_use || chunk.tag != tag || start + rounded > chunk.start + chunk.bytes {
                continue;
            }
            // The list is in the order of addresses.
            let better = best.is_none_or(|best| match order {
                HoleOrder::LowestFirst => chunk.bytes < self.chunks[best].bytes,
                HoleOrder::HighestFirst => chunk.bytes <= self.chunks[best].bytes,
            });
            if better {
                best = Some(place);
            }
        }
        best
    }

    /// Whether a chunk of `bytes` bytes, of the gap or of this end, is cut.
    fn cuts(&self, exactly: bool, bytes: u64, rounded: u64) -> bool {
        if exactly {
            return bytes > rounded;
        }
        bytes >= 2 * rounded || bytes - rounded >= self.max_waste
    }

    fn take_low(&mut self, place: usize, rounded: u64, alignment: u64) -> (u64, u64) {
        let mut place = place;
        let exactly = self.chunks[place].tag == Tag::Gap || self.rule(End::Lower).split == HoleSplit::Always;
        let start = self.chunks[place].start.div_ceil(alignment) * alignment;
        if start > self.chunks[place].start {
            self.split(place, start - self.chunks[place].start);
            self.chunks[place].tag = Tag::Lower;
            place += 1;
        }
        if self.cuts(exactly, self.chunks[place].bytes, rounded) {
            self.split(place, rounded);
        }
        self.use_at(place, Tag::Lower)
    }

    fn take_high(&mut self, place: usize, rounded: u64, alignment: u64) -> (u64, u64) {
        let mut place = place;
        let chunk = self.chunks[place];
        let exactly = chunk.tag == Tag::Gap || self.rule(End::Upper).split == HoleSplit::Always;
        let lowest = chunk.start.div_ceil(alignment) * alignment;
        let highest = (chunk.start + chunk.bytes - rounded) / alignment * alignment;
        let whole = !exactly && !self.cuts(false, chunk.bytes - (lowest - chunk.start), rounded);
        let start = if whole { lowest } else { highest };
        if start > chunk.start {
            self.split(place, start - chunk.start);
            place += 1;
        }
        self.chunks[place].tag = Tag::Upper;
        if self.cuts(exactly, self.chunks[place].bytes, rounded) {
            self.split(place, rounded);
        }
        self.use_at(place, Tag::Upper)
    }

    fn use_at(&mut self, place: usize, tag: Tag) -> (u64, u64) {
        let chunk = &mut self.chunks[place];
        (chunk.in_use, chunk.tag) = (true, tag);
        (chunk.start, chunk.bytes)
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
        self.return_to_gap(place);
        self.join(place);
        if place > 0 {
            self.join(place - 1);
        }
    }

    /// What touches nothing of its own end on the side where the gap is, becomes part of it.
    fn return_to_gap(&mut self, place: usize) {
        let ModelChunk { region, tag, .. } = self.chunks[place];
        let beside = match tag {
            _ if !self.ends.are_two() => return,
            Tag::Lower => place.checked_add(1),
            Tag::Upper => place.checked_sub(1),
            Tag::Gap => return,
        };
        let beside = beside.and_then(|beside| self.chunks.get(beside));
        if beside.is_none_or(|beside| beside.region != region || beside.tag != tag) {
            self.chunks[place].tag = Tag::Gap;
        }
    }

    /// Joins a chunk with the one behind it if both are free and of one region.
    fn join(&mut self, place: usize) {
        let Some(&next) = self.chunks.get(place + 1) else { return };
        let chunk = &mut self.chunks[place];
        if !chunk.in_use && !next.in_use && chunk.region == next.region {
            chunk.bytes += next.bytes;
            chunk.tag = if chunk.tag == next.tag { next.tag } else { Tag::Gap };
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
        let tag = if self.ends.are_two() { Tag::Gap } else { Tag::Lower };
        self.chunks.push(ModelChunk { region: self.regions, start, bytes, in_use: false, tag });
        true
    }

    /// Gives back every region without a chunk in use, if a region of the size needed could then be had.
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
    Allocate { bytes: u64, alignment_log2: u8, end: End },
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
        5 => (bytes, prop_oneof![3 => Just(6u8), 1 => 0..16u8], prop_oneof![Just(End::Lower), Just(End::Upper)])
            .prop_map(|(bytes, alignment_log2, end)| Step::Allocate { bytes, alignment_log2, end }),
        4 => any::<usize>().prop_map(|pick| Step::Free { pick }),
    ]
}

/// Which of upstream's options are chosen.
#[derive(Clone, Copy, Debug)]
struct Options {
    grows: bool,
    collects: bool,
    fragmentation: f64,
    first_region: u64,
    ends: Ends,
}

/// Upstream's options for pools with one end or two. Those with two do not grow.
fn options() -> impl Strategy<Value = Options> {
    let hole_order = || prop_oneof![Just(HoleOrder::LowestFirst), Just(HoleOrder::HighestFirst)];
    let hole_split = || prop_oneof![Just(HoleSplit::AsPool), Just(HoleSplit::Always)];
    let rule = || (hole_order(), hole_split()).prop_map(|(order, split)| EndRule { order, split });
    let two = (rule(), rule()).prop_map(|(lower, upper)| Ends::Two { lower, upper });
    let first_region = prop_oneof![Just(1024), Just(4096), Just(64 << 10)];
    let fragmentation = prop_oneof![Just(0.0), Just(0.01), Just(0.1)];
    let ends = prop_oneof![Just(Ends::One), two];
    (any::<bool>(), any::<bool>(), fragmentation, first_region, ends).prop_map(
        |(grows, collects, fragmentation, first_region, ends)| {
            let grows = grows && !ends.are_two();
            Options { grows, collects, fragmentation, first_region, ends }
        },
    )
}

/// Runs the steps on both; how many requests were met and how many refused.
fn run(options: Options, steps: &[Step]) -> (u64, u64) {
    let Options { grows, collects, fragmentation, first_region, ends } = options;
    let mut config = BfcConfig::tensorflow(Bytes(LIMIT))
        .with_ends(ends)
        .with_allow_growth(grows)
        .with_garbage_collection(collects)
        .with_first_region(Bytes(first_region))
        .with_retry(false);
    let mut max_waste = 128 * MIB;
    if fragmentation > 0.0 {
        config = config.with_fragmentation_fraction(fragmentation);
        max_waste = (LIMIT as f64 * fragmentation) as u64;
    }
    let mut model = Model::new(grows, collects, max_waste, ends, first_region);
    let pool = BfcAllocator::new("reference", FakeSource::new(Nature::default()), config);
    let mut live: Vec<Block> = Vec::new();
    let (mut met, mut refused) = (0, 0);
    for step in steps {
        match *step {
            Step::Allocate { bytes, alignment_log2, end } => {
                let alignment = 1 << alignment_log2;
                let attributes = AllocationAttributes::default().with_end(end);
                let request = Request::new(bytes).with_alignment(alignment).with_attributes(attributes);
                let block = pool.allocate(&request).ok();
                let expected = model.allocate(bytes, alignment, end);
                let got = block.map(|block| (block.address, block.bytes));
                assert_eq!(got, expected, "{bytes} bytes, alignment {alignment}, {end:?}: {model:#?}");
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
        let seen = chunks.iter().map(|chunk| (chunk.address, chunk.bytes, chunk.in_use(), chunk.end));
        let expected = model.chunks.iter().map(|chunk| {
            let end = match chunk.tag {
                Tag::Lower if ends.are_two() => Some(End::Lower),
                Tag::Upper => Some(End::Upper),
                _ => None,
            };
            (chunk.start, chunk.bytes, chunk.in_use, end)
        });
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

/// The random sequences are worth little if they never meet or never refuse a request.
#[test]
fn long_sequences_meet_and_refuse_requests_as_upstream_does() {
    let mut random = common::Random(11);
    let one =
        [(false, false), (true, false), (true, true)].map(|(grows, collects)| (grows, collects, Ends::One));
    let two = [Ends::TENSORFLOW, Ends::COLLECTIVES, Ends::TWO].map(|ends| (false, false, ends));
    for (grows, collects, ends) in one.into_iter().chain(two) {
        let steps: Vec<Step> = (0..6000)
            .map(|_| match random.below(9) {
                0..=4 => Step::Allocate {
                    bytes: 1 + random.below(30_000),
                    alignment_log2: random.below(14) as u8,
                    end: if random.below(2) == 0 { End::Lower } else { End::Upper },
                },
                _ => Step::Free { pick: random.next() as usize },
            })
            .collect();
        let options = Options { grows, collects, fragmentation: 0.0, first_region: 2048, ends };
        let (met, refused) = run(options, &steps);
        assert!(met > 1000 && refused > 100, "{met} met, {refused} refused");
    }
}
