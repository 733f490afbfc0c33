//! Checks after every step: the choice of a chunk, the report of a refusal, and the pool against its shadow.

use std::collections::BTreeMap;

use bfc_core::{
    AllocError, Allocator, Block, BlockError, ChunkInfo, ConfiguredPolicy, Holdings, OomReport, OwnerId,
    PoolView, Request, SourceError, Stats, Verdict,
};

use super::{Choice, Freed, Interpreter, Live};

impl<P: ConfiguredPolicy> Interpreter<P> {
    /// Checks where the pool placed a block.
    ///
    /// - A recently freed block of the right length comes first.
    /// - Otherwise the block lies in the smallest chunk that fits, the lowest among equals.
    /// - It lies right after the padding, or at the high end if it is large.
    /// - If no chunk fits, it lies in new memory.
    pub(super) fn check_choice(&mut self, request: &Request<'_>, block: &Block, chunks: &[ChunkInfo]) {
        let rounded = self.rounded(request);
        assert!(block.bytes >= rounded && block.address % request.alignment == 0, "{block:?}");
        let Choice::BestFit { always_splits } = self.choice else { return };
        if always_splits {
            assert_eq!(block.bytes, rounded);
        }
        let is_bound = self.counter.is_some() && request.attributes.freed_before.is_some();
        let plain = request.alignment <= 256 && !is_bound;
        if self.recent.serve(rounded, plain, block.address) {
            return;
        }
        let large = self.large_from.is_some_and(|from| rounded >= from);
        self.large_from = self.large_from.map(|from| from.max(rounded / 2));
        if self.counter.is_some() {
            // The pool joins safe frees first, so it does not choose from the chunks seen here.
            return;
        }
        match self.best_fit(chunks, request) {
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

    /// Returns the chunk that the pool must choose and its first aligned address, from a search of all
    /// chunks.
    fn best_fit(&self, chunks: &[ChunkInfo], request: &Request<'_>) -> Option<(ChunkInfo, u64)> {
        let rounded = self.rounded(request);
        let start = |chunk: &ChunkInfo| chunk.address.next_multiple_of(request.alignment.max(256));
        let fits = |chunk: &&ChunkInfo| {
            !chunk.in_use()
                && start(chunk).checked_add(rounded).is_some_and(|end| end <= chunk.address + chunk.bytes)
        };
        let chunk = chunks.iter().filter(fits).min_by_key(|chunk| (chunk.bytes, chunk.address))?;
        Some((*chunk, start(chunk)))
    }

    /// A request with a bound gets no byte that was freed later unless the frontier has passed that free.
    pub(super) fn check_age(&mut self, request: &Request<'_>, block: &Block) {
        let (start, end) = (block.address, block.address + block.bytes);
        let overlapping = |freed: &Freed| freed.start < end && start < freed.end;
        if let Some(before) = request.attributes.freed_before {
            for freed in self.freed.iter().filter(|freed| overlapping(freed)) {
                let passed = freed.count < self.frontier || freed.count <= before();
                assert!(passed, "{block:?} was handed out too early: {freed:?}");
            }
        }
        // From here on this block owns the bytes: only the parts outside it keep their count.
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

    /// A refused request changes only the figures of reserved memory, and its report is correct.
    pub(super) fn check_refusal(&self, request: &Request<'_>, error: &AllocError, before: &Stats) {
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
        let rounded = self.rounded(request);
        assert_eq!((report.requested, report.rounded, report.tag), (request.bytes, rounded, request.tag));
        assert_eq!((report.in_use, report.reserved), (stats.bytes_in_use, stats.bytes_reserved));
        let chunks = self.pool.chunks();
        let free = chunks.iter().filter(|chunk| !chunk.in_use());
        assert_eq!(report.free, stats.free_bytes());
        let largest = free.map(|chunk| chunk.bytes).max().unwrap_or(0);
        if self.blank.capabilities().separates_requests {
            assert!(report.largest_free <= largest && report.unusable <= report.free);
        } else {
            assert_eq!((report.largest_free, report.unusable), (largest, 0));
        }
        let limit = report.limit.unwrap();
        let regions = self.pool.regions().len() as u64;
        let unreserved = limit.saturating_sub(stats.bytes_reserved) / 256 * 256;
        let several = regions > 1 || (regions == 1 && unreserved > 0);
        let told = report.regions.map(|told| (told.regions, told.unreserved));
        assert_eq!(told, several.then_some((regions, unreserved)));
        match report.verdict {
            Verdict::OverLimit => assert!(rounded > limit),
            Verdict::Exhausted => assert!(rounded <= limit),
            Verdict::Fragmented => {
                assert!(stats.free_bytes() + limit.saturating_sub(stats.bytes_reserved) >= rounded)
            }
            Verdict::Separated => assert!(report.unusable > 0, "{report:?}"),
            Verdict::Pinned => {
                assert!(request.attributes.freed_before.is_some() && report.pending.bytes > 0, "{report:?}");
            }
            other => panic!("{other:?}"),
        }
        let unsafe_yet = chunks.iter().filter(|chunk| chunk.freed_at > 0);
        assert_eq!(report.pending.bytes, unsafe_yet.map(|chunk| chunk.bytes).sum::<u64>());
        let live = self.live.values().map(|live| (live.tag, live.block.bytes));
        assert_eq!(report.holdings, Holdings::sum(live));
        assert_eq!(report.holdings.total(), stats.bytes_in_use);
        let mut held = BTreeMap::<OwnerId, u64>::new();
        for live in self.live.values() {
            *held.entry(live.tag.owner).or_default() += live.block.bytes;
        }
        assert_eq!(report.holders.len(), held.len().min(5));
        for (owner, bytes) in &report.holders {
            assert_eq!(held.get(owner), Some(bytes));
        }
        let refused_only_what_fits_nowhere = !matches!(self.choice, Choice::Any | Choice::Packed);
        if request.attributes.freed_before.is_none() && refused_only_what_fits_nowhere {
            assert_eq!(self.best_fit(&chunks, request), None, "this would have fitted");
        }
    }

    /// The pool finds exactly the starts of live blocks.
    pub(super) fn look_up(&self, pick: usize, offset: u64) {
        let Some(Live { block, tag, .. }) = self.pick(pick) else { return };
        assert_eq!(self.pool.block_at(block.address), Ok(block));
        assert_eq!(self.pool.tag(&block), Ok(tag));
        let address = (block.address + offset).saturating_sub(4096);
        let expected =
            self.live.get(&address).map(|live| live.block).ok_or(BlockError::NoBlockAt { address });
        assert_eq!(self.pool.block_at(address), expected);
    }

    /// The pool matches its shadow and satisfies every invariant.
    pub fn compare(&mut self) {
        if let Err(error) = self.pool.check_invariants() {
            panic!("{error}");
        }
        self.source.assert_sound();
        let chunks = self.pool.chunks();
        self.tally.chunks += chunks.len() as u64;
        let used = chunks.iter().filter(|chunk| chunk.in_use());
        assert_eq!(used.clone().count(), self.live.len());
        for (chunk, live) in used.zip(self.live.values()) {
            let seen = (chunk.address, chunk.bytes, chunk.id, chunk.requested, chunk.tag);
            let block = live.block;
            assert_eq!(seen, (block.address, block.bytes, block.id, live.requested, live.tag));
            assert_eq!(self.pool.requested_bytes(&block), Ok(live.requested));
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
        if self.cached {
            assert!(self.figures.peak <= stats.peak_bytes_in_use, "{stats:?}");
            assert!(stats.peak_bytes_in_use <= stats.peak_bytes_reserved, "{stats:?}");
        } else {
            assert_eq!((stats.peak_bytes_in_use, stats.peak_tag), (self.figures.peak, self.figures.peak_tag));
        }
        assert_eq!(stats.largest_alloc_bytes, self.figures.largest);
        assert_eq!(stats.bytes_reserved, self.source.bytes_out());
        assert!((0.0..=1.0).contains(&stats.fragmentation()));
        assert_eq!(self.pool.ledger().total(), stats.bytes_in_use);
    }
}
