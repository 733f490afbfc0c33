//! Runs sequences of operations on a pool beside a shadow of what it must hold, and compares the two after every step.
//!
//! The shadow knows only what a user can know: the blocks handed out, their tags, and the figures that follow. The one
//! rule of the algorithm that it repeats is the choice of the best fit, from the chunks that the pool shows.

use std::collections::BTreeMap;
use std::sync::Arc;

use bfc_core::{
    AllocError, AllocationAttributes, Allocator, BfcAllocator, BfcConfig, Block, BlockError, Category,
    ChunkInfo, CutRule, OomReport, OwnerId, PoolId, Request, SourceError, Stats, Tag, TimingCounter, Verdict,
};

use super::source::{FakeSource, Nature};
use super::try_free;

/// One step. Numbers that pick among live blocks, owners and the like are taken modulo how many there are, so every
/// sequence makes sense.
#[derive(Clone, Debug)]
pub enum Op {
    Allocate {
        bytes: u64,
        alignment_log2: u8,
        owner: u8,
    },
    /// Only memory whose free lies at least `lag` counts back may be used.
    AllocateFreedBefore {
        bytes: u64,
        lag: u8,
    },
    Free {
        pick: usize,
    },
    FreeTwice {
        pick: usize,
    },
    FreeStale {
        pick: usize,
    },
    FreeForeign {
        pick: usize,
    },
    FreeMadeUp {
        pick: usize,
        twist: u8,
    },
    Retag {
        pick: usize,
        owner: u8,
    },
    LookUp {
        pick: usize,
        offset: u64,
    },
    ClearStats,
    ReleaseIdle,
    /// Says that all work but that of the last `lag` frees has ended.
    Advance {
        lag: u8,
    },
}

/// A block that the pool must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Live {
    block: Block,
    requested: u64,
    tag: Tag,
}

/// Bytes on which work may still be under way: freed at `count`, and not handed out since.
#[derive(Clone, Copy, Debug)]
struct Freed {
    start: u64,
    end: u64,
    count: u64,
}

/// The figures that follow from the steps so far.
#[derive(Debug, Default)]
struct Figures {
    num_allocs: u64,
    peak: u64,
    peak_tag: Tag,
    largest: u64,
}

/// A pool and its shadow.
#[derive(Debug)]
pub struct Interpreter {
    pool: BfcAllocator,
    source: Arc<FakeSource>,
    counter: Option<Arc<TimingCounter>>,
    always_splits: bool,
    /// Blocks from this many bytes on lie at the high end of their chunk; `None` if none does.
    large_from: Option<u64>,
    live: BTreeMap<u64, Live>,
    dead: Vec<Block>,
    freed: Vec<Freed>,
    frontier: u64,
    figures: Figures,
    owners: Vec<OwnerId>,
    /// Requests that were met.
    pub met: u64,
    /// Requests that were refused.
    pub refused: u64,
}

impl Interpreter {
    /// A pool over a source of that nature. `always_splits` says which split rule the configuration has; with a
    /// counter, the frees of the pool become safe only as [`Op::Advance`] says.
    pub fn new(
        config: BfcConfig,
        nature: Nature,
        always_splits: bool,
        counter: Option<Arc<TimingCounter>>,
    ) -> Self {
        let config = match &counter {
            Some(counter) => config.with_timing_counter(Arc::clone(counter)),
            None => config,
        };
        let cuts_high = config.options().cut == CutRule::LargeHigh && !config.allow_growth();
        let source = FakeSource::new(nature);
        let net = OwnerId::intern(OwnerId::ROOT, "interpreter");
        let owners = vec![
            OwnerId::ROOT,
            net,
            OwnerId::intern(net, "a"),
            OwnerId::intern(net, "b"),
            OwnerId::intern(OwnerId::intern(net, "b"), "deep"),
        ];
        Self {
            // Nobody advances the frontier while this thread waits.
            pool: BfcAllocator::new("model", source.clone(), config.with_retry(false)),
            source,
            counter,
            always_splits,
            large_from: cuts_high.then_some(0),
            live: BTreeMap::new(),
            dead: Vec::new(),
            freed: Vec::new(),
            frontier: 0,
            figures: Figures::default(),
            owners,
            met: 0,
            refused: 0,
        }
    }

    /// Runs all steps, then frees what is live and drops the pool: every byte must be back at the source.
    pub fn run(mut self, ops: &[Op]) -> (u64, u64) {
        for op in ops {
            self.step(op);
        }
        let blocks: Vec<Block> = self.live.values().map(|live| live.block).collect();
        for block in blocks {
            self.free(block);
            self.compare();
        }
        assert_eq!(self.pool.stats().bytes_in_use, 0);
        drop(self.pool);
        self.source.assert_all_returned();
        (self.met, self.refused)
    }

    /// Where the live blocks lie, by address.
    pub fn spans(&self) -> Vec<(u64, u64)> {
        self.live.values().map(|live| (live.block.address, live.block.bytes)).collect()
    }

    /// Runs one step and compares the pool with its shadow.
    pub fn step(&mut self, op: &Op) {
        match *op {
            Op::Allocate { bytes, alignment_log2, owner } => {
                let request =
                    Request::new(bytes).with_alignment(1 << alignment_log2).with_tag(self.tag(owner));
                self.allocate(&request);
            }
            Op::AllocateFreedBefore { bytes, lag } => {
                let count = self.counter.as_ref().map_or(0, |counter| counter.current());
                let before = move || count.saturating_sub(u64::from(lag));
                let attributes = AllocationAttributes { freed_before: Some(&before), ..Default::default() };
                self.allocate(&Request::new(bytes).with_attributes(attributes));
            }
            Op::Free { pick } => {
                if let Some(live) = self.pick(pick) {
                    self.free(live.block);
                }
            }
            Op::FreeTwice { pick } => {
                if let Some(Live { block, .. }) = self.pick(pick) {
                    self.free(block);
                    self.assert_refused(block, BlockError::Stale { block });
                }
            }
            Op::FreeStale { pick } => {
                if !self.dead.is_empty() {
                    let block = self.dead[pick % self.dead.len()];
                    self.assert_refused(block, BlockError::Stale { block });
                }
            }
            Op::FreeForeign { pick } => {
                if let Some(Live { block, .. }) = self.pick(pick) {
                    let block = Block { pool: PoolId::next(), ..block };
                    self.assert_refused(block, BlockError::Foreign { block });
                }
            }
            Op::FreeMadeUp { pick, twist } => self.free_made_up(pick, twist),
            Op::Retag { pick, owner } => {
                if let Some(Live { block, .. }) = self.pick(pick) {
                    let tag = self.tag(owner);
                    self.pool.retag(&block, tag).unwrap();
                    if let Some(live) = self.live.get_mut(&block.address) {
                        live.tag = tag;
                    }
                }
            }
            Op::LookUp { pick, offset } => self.look_up(pick, offset),
            Op::ClearStats => {
                assert!(self.pool.clear_stats());
                let in_use = self.in_use();
                let peak_tag =
                    if in_use == self.figures.peak { self.figures.peak_tag } else { Tag::default() };
                self.figures = Figures { num_allocs: 0, peak: in_use, peak_tag, largest: 0 };
            }
            Op::ReleaseIdle => {
                let (before, out) = (self.pool.stats().bytes_reserved, self.source.bytes_out());
                let bytes = self.pool.trim(bfc_core::Bytes(0));
                assert_eq!(self.pool.stats().bytes_reserved, before - bytes);
                assert_eq!(self.source.bytes_out(), out - bytes);
            }
            Op::Advance { lag } => {
                if let Some(counter) = &self.counter {
                    let count = counter.current().saturating_sub(u64::from(lag));
                    self.pool.set_safe_frontier(count);
                    self.frontier = self.frontier.max(count);
                }
            }
        }
        self.compare();
    }

    fn tag(&self, owner: u8) -> Tag {
        let owner = usize::from(owner);
        let category = Category::ALL[owner % Category::COUNT];
        Tag { owner: self.owners[owner % self.owners.len()], category }
    }

    fn pick(&self, pick: usize) -> Option<Live> {
        self.live.values().nth(pick.checked_rem(self.live.len())?).copied()
    }

    fn in_use(&self) -> u64 {
        self.live.values().map(|live| live.block.bytes).sum()
    }

    fn allocate(&mut self, request: &Request<'_>) {
        let (before, chunks) = (self.pool.stats(), self.pool.chunks());
        match self.pool.allocate(request) {
            Ok(block) if request.bytes == 0 => assert_eq!(block, Block::EMPTY),
            Ok(block) => {
                self.met += 1;
                self.check_choice(request, &block, &chunks);
                self.check_age(request, &block);
                self.note(request, block);
            }
            Err(error) => {
                self.refused += 1;
                self.check_refusal(request, &error, &before);
            }
        }
    }

    fn note(&mut self, request: &Request<'_>, block: Block) {
        let live = Live { block, requested: request.bytes, tag: request.tag };
        assert_eq!(self.live.insert(block.address, live), None, "{block:?} was handed out twice");
        self.figures.num_allocs += 1;
        self.figures.largest = self.figures.largest.max(block.bytes);
        if self.in_use() > self.figures.peak {
            self.figures.peak = self.in_use();
            self.figures.peak_tag = request.tag;
        }
    }

    /// The block lies in the smallest chunk that fits, the lowest among equals, right after the padding, or at its high
    /// end if it is large; if none fits, in memory that was not there before.
    fn check_choice(&mut self, request: &Request<'_>, block: &Block, chunks: &[ChunkInfo]) {
        let rounded = request.bytes.next_multiple_of(256);
        assert!(block.bytes >= rounded && block.address.is_multiple_of(request.alignment), "{block:?}");
        if self.always_splits {
            assert_eq!(block.bytes, rounded);
        }
        let large = self.large_from.is_some_and(|from| rounded >= from);
        self.large_from = self.large_from.map(|from| from.max(rounded / 2));
        if self.counter.is_some() {
            // What has become safe is joined first, so the chunks seen are not those chosen from.
            return;
        }
        match best_fit(chunks, rounded, request.alignment) {
            Some((chunk, lowest)) => {
                let highest = (chunk.address + chunk.bytes - rounded) & !(request.alignment - 1);
                let start = if large { highest } else { lowest };
                assert_eq!(block.address, start, "not the best fit, which is {chunk:?}");
                let rest = chunk.address + chunk.bytes - start - rounded;
                assert!(block.bytes == rounded || (block.bytes == rounded + rest && rest < rounded));
            }
            None => {
                let inside = |chunk: &&ChunkInfo| {
                    chunk.in_use() && (chunk.address..chunk.address + chunk.bytes).contains(&block.address)
                };
                assert_eq!(chunks.iter().find(inside), None, "{block:?} was in use");
            }
        }
    }

    /// A request with a bound gets no byte that was freed later and that the frontier has not passed.
    fn check_age(&mut self, request: &Request<'_>, block: &Block) {
        let (start, end) = (block.address, block.address + block.bytes);
        let overlapping = |freed: &Freed| freed.start < end && start < freed.end;
        if let Some(before) = request.attributes.freed_before {
            for freed in self.freed.iter().filter(|freed| overlapping(freed)) {
                let passed = freed.count < self.frontier || freed.count <= before();
                assert!(passed, "{block:?} was handed out too early: {freed:?}");
            }
        }
        // From here on the bytes are this block's: only what sticks out on either side keeps its count.
        let cut = |freed: &Freed| {
            if !overlapping(freed) {
                return [Some(*freed), None];
            }
            let left = (freed.start < start).then_some(Freed { end: start, ..*freed });
            let right = (end < freed.end).then_some(Freed { start: end, ..*freed });
            [left, right]
        };
        self.freed = self.freed.iter().flat_map(cut).flatten().collect();
    }

    /// A refused request changes no figure but those of what is reserved, and its report is true.
    fn check_refusal(&self, request: &Request<'_>, error: &AllocError, before: &Stats) {
        let after = self.pool.stats();
        let usage = |stats: &Stats| {
            let Stats { num_allocs, live_allocs, bytes_in_use, peak_bytes_in_use, bytes_requested, .. } =
                *stats;
            (num_allocs, live_allocs, bytes_in_use, peak_bytes_in_use, bytes_requested)
        };
        assert_eq!(usage(before), usage(&after));
        match error {
            AllocError::OutOfMemory(report) => self.check_report(request, report, &after),
            AllocError::Source {
                error: SourceError::Driver { .. } | SourceError::BadRegion { .. }, ..
            } => {}
            other => panic!("{other:?}"),
        }
    }

    fn check_report(&self, request: &Request<'_>, report: &OomReport, stats: &Stats) {
        let rounded = request.bytes.next_multiple_of(256);
        assert_eq!((report.requested, report.rounded, report.tag), (request.bytes, rounded, request.tag));
        assert_eq!((report.in_use, report.reserved), (stats.bytes_in_use, stats.bytes_reserved));
        assert_eq!((report.free, report.largest_free), (stats.free_bytes(), stats.largest_free_block_bytes));
        let limit = report.limit.unwrap();
        match report.verdict {
            Verdict::OverLimit => assert!(rounded > limit),
            Verdict::Exhausted => assert!(rounded <= limit),
            Verdict::Fragmented => {
                assert!(stats.free_bytes() + limit.saturating_sub(stats.bytes_reserved) >= rounded)
            }
            other => panic!("{other:?}"),
        }
        let mut held = BTreeMap::<OwnerId, u64>::new();
        for live in self.live.values() {
            *held.entry(live.tag.owner).or_default() += live.block.bytes;
        }
        assert_eq!(report.holders.len(), held.len().min(5));
        for (owner, bytes) in &report.holders {
            assert_eq!(held.get(owner), Some(bytes));
        }
        if request.attributes.freed_before.is_none() {
            assert_eq!(
                best_fit(&self.pool.chunks(), rounded, request.alignment),
                None,
                "this would have fitted"
            );
        }
    }

    fn free(&mut self, block: Block) {
        try_free(&self.pool, block).unwrap();
        self.live.remove(&block.address);
        self.dead.push(block);
        if let Some(counter) = &self.counter {
            let (start, end) = (block.address, block.address + block.bytes);
            self.freed.push(Freed { start, end, count: counter.current() });
        }
    }

    /// Blocks that were never handed out, each one field away from a live one.
    fn free_made_up(&mut self, pick: usize, twist: u8) {
        let Some(Live { block, .. }) = self.pick(pick) else { return };
        let block = match twist % 6 {
            0 => Block { bytes: block.bytes + 256, ..block },
            1 => Block { address: block.address + 256, ..block },
            2 => Block { chunk: block.chunk ^ 1, ..block },
            3 => Block { chunk: u32::MAX, ..block },
            4 => Block { id: 0, ..block },
            _ => Block { id: block.id + 1_000_000, ..block },
        };
        self.assert_refused(block, BlockError::Unknown { block });
    }

    /// A bad block is refused by everything that takes a block, and nothing changes.
    fn assert_refused(&self, block: Block, error: BlockError) {
        let before = (self.pool.stats(), self.pool.chunks());
        assert_eq!(try_free(&self.pool, block), Err(error));
        assert_eq!(self.pool.requested_bytes(&block), Err(error));
        assert_eq!(self.pool.tag(&block), Err(error));
        assert_eq!(self.pool.retag(&block, Tag::default()), Err(error));
        assert_eq!((self.pool.stats(), self.pool.chunks()), before);
    }

    /// Exactly the starts of live blocks are found.
    fn look_up(&self, pick: usize, offset: u64) {
        let Some(Live { block, .. }) = self.pick(pick) else { return };
        assert_eq!(self.pool.block_at(block.address), Ok(block));
        let address = (block.address + offset).saturating_sub(4096);
        let expected =
            self.live.get(&address).map(|live| live.block).ok_or(BlockError::NoBlockAt { address });
        assert_eq!(self.pool.block_at(address), expected);
    }

    /// The pool holds what its shadow holds, and every invariant.
    pub fn compare(&self) {
        if let Err(error) = self.pool.check_invariants() {
            panic!("{error}");
        }
        self.source.assert_sound();
        let used: Vec<ChunkInfo> = self.pool.chunks().into_iter().filter(ChunkInfo::in_use).collect();
        assert_eq!(used.len(), self.live.len());
        for (chunk, live) in used.iter().zip(self.live.values()) {
            let seen = (chunk.address, chunk.bytes, chunk.id, chunk.requested, chunk.tag);
            let block = live.block;
            assert_eq!(seen, (block.address, block.bytes, block.id, live.requested, live.tag));
            assert_eq!(self.pool.requested_bytes(&block), Ok(live.requested));
            assert_eq!(self.pool.tag(&block), Ok(live.tag));
        }
        let regions = self.pool.regions();
        for freed in self.freed.iter().filter(|freed| freed.count >= self.frontier) {
            let held = regions
                .iter()
                .any(|region| region.address <= freed.start && freed.end <= region.address + region.bytes);
            assert!(held, "given back to the source with work under way: {freed:?}");
        }
        let stats = self.pool.stats();
        let requested: u64 = self.live.values().map(|live| live.requested).sum();
        assert_eq!((stats.bytes_in_use, stats.bytes_requested), (self.in_use(), requested));
        assert_eq!((stats.num_allocs, stats.live_allocs), (self.figures.num_allocs, self.live.len() as u64));
        assert_eq!((stats.peak_bytes_in_use, stats.peak_tag), (self.figures.peak, self.figures.peak_tag));
        assert_eq!(stats.largest_alloc_bytes, self.figures.largest);
        assert_eq!(stats.bytes_reserved, self.source.bytes_out());
        assert!((0.0..=1.0).contains(&stats.fragmentation()));
        assert_eq!(self.pool.ledger().total(), stats.bytes_in_use);
    }
}

/// The free chunk to choose, and where in it the block starts: found by looking at all of them.
fn best_fit(chunks: &[ChunkInfo], rounded: u64, alignment: u64) -> Option<(ChunkInfo, u64)> {
    let start = |chunk: &ChunkInfo| chunk.address.next_multiple_of(alignment.max(256));
    let fits = |chunk: &&ChunkInfo| {
        !chunk.in_use()
            && start(chunk).checked_add(rounded).is_some_and(|end| end <= chunk.address + chunk.bytes)
    };
    let chunk = chunks.iter().filter(fits).min_by_key(|chunk| (chunk.bytes, chunk.address))?;
    Some((*chunk, start(chunk)))
}
