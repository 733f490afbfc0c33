//! Runs sequences of operations on a pool beside a shadow of what it must hold, and compares the two after every step.
//!
//! The shadow knows only what a user can know: the blocks handed out, their tags, and the figures that follow. The one
//! rule of the algorithm that it repeats is the choice of the best fit, from the chunks that the pool shows.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bfc_core::{
    AllocError, AllocationAttributes, Allocator, Bfc, BfcConfig, Block, BlockError, Bytes, Category,
    ChunkInfo, ConfiguredPolicy, CutRule, OomReport, OwnerId, PolicyAllocator, PoolConfig, PoolId, PoolView,
    Request, SourceError, Stats, Tag, TimingCounter, Verdict,
};

pub use super::op::Op;
use super::source::{FakeSource, Nature};
use super::try_free;

mod checks;
mod recent;
mod resize;

use recent::RecentFrees;

/// How many freed blocks the shadow remembers, to free them a second time.
const DEAD: usize = 64;

/// Which free memory the shadow expects a policy to choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The smallest free chunk that fits, the lowest among equals.
    BestFit {
        /// Whether a block is as large as its request rounded up.
        always_splits: bool,
    },
    /// Some free chunk that fits. The policy refuses a request only if no chunk fits.
    AnyFit,
    /// Some free memory.
    Any,
    /// Some free memory. The policy may keep a packing's range without blocks in it.
    Packed,
}

/// Counts of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Steps. All checks ran after each of them.
    pub steps: u64,
    /// Successful requests.
    pub met: u64,
    /// Refused requests.
    pub refused: u64,
    /// Chunks seen after each step, summed over all steps.
    pub chunks: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.steps += other.steps;
        self.met += other.met;
        self.refused += other.refused;
        self.chunks += other.chunks;
    }
}

/// A block that the pool must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Live {
    block: Block,
    requested: u64,
    tag: Tag,
}

/// Freed bytes that pending work may still use: freed at `count`, and not allocated since.
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
pub struct Interpreter<P: ConfiguredPolicy = Bfc> {
    pool: PolicyAllocator<P>,
    /// The policy without memory. It defines how requests are rounded.
    blank: P,
    source: Arc<FakeSource>,
    counter: Option<Arc<TimingCounter>>,
    choice: Choice,
    /// Caches keep blocks between the pool and its users: peaks are bounds, and a block need not be the best
    /// fit.
    cached: bool,
    /// Blocks of at least this many bytes lie at the high end of their chunk; `None` disables this.
    large_from: Option<u64>,
    recent: RecentFrees,
    live: BTreeMap<u64, Live>,
    dead: VecDeque<Block>,
    freed: Vec<Freed>,
    frontier: u64,
    figures: Figures,
    owners: Vec<OwnerId>,
    tally: Tally,
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
        let large_high = config.options.cut == CutRule::LargeHigh && !config.allow_growth;
        let cached = config.thread_cache.is_some() && counter.is_none();
        let choice = if cached { Choice::AnyFit } else { Choice::BestFit { always_splits } };
        let recent = RecentFrees::of(&config, counter.is_none() && !cached);
        let mut interpreter = Self::over(config, nature, choice, counter);
        interpreter.recent = recent;
        interpreter.large_from = large_high.then_some((16 << 10) + 256);
        interpreter.cached = cached;
        interpreter
    }
}

impl<P: ConfiguredPolicy> Interpreter<P> {
    /// Builds the model over any policy. A counter requires a policy that supports counts.
    pub fn over(
        config: PoolConfig<P::Options>,
        nature: Nature,
        choice: Choice,
        counter: Option<Arc<TimingCounter>>,
    ) -> Self {
        let mut blank = P::configured(&config.options);
        let counter = counter.filter(|_| blank.timed().is_some());
        let config = match &counter {
            Some(counter) => config.with_timing_counter(Arc::clone(counter)),
            None => config,
        };
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
            // No thread advances the frontier while this thread waits.
            pool: PolicyAllocator::new("model", source.clone(), config.with_retry(false)),
            blank,
            source,
            counter,
            choice,
            cached: false,
            large_from: None,
            recent: RecentFrees::default(),
            live: BTreeMap::new(),
            dead: VecDeque::new(),
            freed: Vec::new(),
            frontier: 0,
            figures: Figures::default(),
            owners,
            tally: Tally::default(),
        }
    }

    /// Runs all steps, frees the live blocks and drops the pool: every byte must return to the source.
    pub fn run(mut self, ops: &[Op]) -> Tally {
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
        self.tally
    }

    /// The positions of the live blocks, by address.
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
            Op::Resize { pick, bytes } => self.resize(pick, bytes),
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
                self.trim(0);
                self.check_nothing_idle();
            }
            Op::Trim { keep } => self.trim(keep),
            Op::Advance { lag } => {
                if let Some(counter) = &self.counter {
                    let count = counter.current().saturating_sub(u64::from(lag));
                    self.pool.set_safe_frontier(count);
                    self.frontier = self.frontier.max(count);
                    self.freed.retain(|freed| freed.count >= self.frontier);
                }
            }
        }
        self.tally.steps += 1;
        self.compare();
    }

    /// Trims idle regions: the pool and the source both lose the reported bytes, and not too many.
    fn trim(&mut self, keep: u64) {
        let (before, out) = (self.pool.stats().bytes_reserved, self.source.bytes_out());
        let bytes = self.pool.trim(Bytes(keep));
        let after = self.pool.stats().bytes_reserved;
        if bytes > 0 {
            self.recent.clear();
        }
        assert_eq!((after, self.source.bytes_out()), (before - bytes, out - bytes));
        assert!(after >= keep.min(before), "{keep} bytes were to be kept of {before}, {after} were");
    }

    /// The remaining regions hold a block or an unsafe free. A packing also keeps its range.
    fn check_nothing_idle(&self) {
        assert_eq!(self.pool.trim(Bytes(0)), 0);
        if self.choice == Choice::Packed {
            return;
        }
        let awaited = |chunk: &ChunkInfo| chunk.freed_at > 0 && chunk.freed_at >= self.frontier;
        let mut used: Vec<usize> = Vec::new();
        for chunk in self.pool.chunks().iter().filter(|chunk| chunk.in_use() || awaited(chunk)) {
            used.push(chunk.region);
        }
        used.dedup();
        assert!(used.iter().copied().eq(0..self.pool.regions().len()), "idle regions are left");
    }

    fn tag(&self, owner: u8) -> Tag {
        let owner = usize::from(owner);
        let category = Category::ALL[owner % Category::COUNT];
        Tag { owner: self.owners[owner % self.owners.len()], category }
    }

    fn rounded(&self, request: &Request<'_>) -> u64 {
        self.blank.rounded(request.bytes, request.alignment).unwrap()
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
                self.tally.met += 1;
                self.check_choice(request, &block, &chunks);
                self.check_age(request, &block);
                self.note(request, block);
            }
            Err(error) => {
                self.tally.refused += 1;
                self.recent.clear();
                self.check_refusal(request, &error, &before);
            }
        }
    }

    fn note(&mut self, request: &Request<'_>, block: Block) {
        let (start, end) = (block.address, block.address + block.bytes);
        let before = self.live.range(..end).next_back().map(|(_, live)| live.block);
        let apart = before.is_none_or(|before| before.address + before.bytes <= start);
        assert!(apart, "{block:?} overlaps {before:?}");
        assert!(self.source.is_out(start, block.bytes), "{block:?} is not in memory from the source");
        let live = Live { block, requested: request.bytes, tag: request.tag };
        assert_eq!(self.live.insert(block.address, live), None, "{block:?} was handed out twice");
        self.figures.num_allocs += 1;
        self.figures.largest = self.figures.largest.max(block.bytes);
        if self.in_use() > self.figures.peak {
            self.figures.peak = self.in_use();
            self.figures.peak_tag = request.tag;
        }
    }

    fn free(&mut self, block: Block) {
        try_free(&self.pool, block).unwrap();
        self.live.remove(&block.address);
        self.recent.add(&block);
        self.dead.push_back(block);
        if self.dead.len() > DEAD {
            self.dead.pop_front();
        }
        if let Some(counter) = &self.counter {
            let (start, end) = (block.address, block.address + block.bytes);
            self.freed.push(Freed { start, end, count: counter.current() });
        }
    }

    /// Blocks that the pool never returned: each differs from a live block in one field.
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

    /// Every method that accepts a block refuses a bad block and changes nothing.
    fn assert_refused(&self, block: Block, error: BlockError) {
        let before = (self.pool.stats(), self.pool.chunks());
        assert_eq!(try_free(&self.pool, block), Err(error));
        assert_eq!(self.pool.requested_bytes(&block), Err(error));
        assert_eq!(self.pool.tag(&block), Err(error));
        assert_eq!(self.pool.retag(&block, Tag::default()), Err(error));
        assert_eq!((self.pool.stats(), self.pool.chunks()), before);
    }
}
