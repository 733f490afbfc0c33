//! Sources of memory for tests: addresses without memory behind them, and every kind of misbehavior.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use bfc_core::{MemoryKind, SourceError, Span, SubAllocator};

use super::Random;

/// Where upstream's tests put their first region.
pub const BASE: u64 = 1 << 40;

/// The start of reserved ranges.
const RANGES: u64 = 1 << 60;

/// The behavior of a source. The default is upstream's fake: adjacent regions that may not be joined, without
/// a limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nature {
    /// Adjacent regions may be joined.
    pub coalescing: bool,
    /// Each region lies below the one before it instead of above.
    pub downward: bool,
    /// Bytes left out between regions.
    pub gap: u64,
    /// The address is a multiple of this only, regardless of the requested alignment.
    pub fixed_alignment: Option<u64>,
    /// Added to every address.
    pub offset: u64,
    /// The most bytes that the source delivers at a time.
    pub capacity: Option<u64>,
    /// Bytes delivered beyond the request.
    pub extra: u64,
    /// Bytes missing from the request.
    pub missing: u64,
    /// Which calls, counted from 1, fail.
    pub fails: Fails,
    /// Failing calls report a driver error.
    pub broken: bool,
}

/// Which calls of a source fail.
#[derive(Clone, Copy, Debug, Default)]
pub enum Fails {
    #[default]
    Never,
    Always,
    /// The calls whose numbers are multiples of this.
    Every(u64),
    /// This one alone.
    Only(u64),
    /// One call in this many, at random from this seed.
    Random {
        seed: u64,
        one_in: u64,
    },
}

type Hook = Box<dyn Fn() + Send + Sync>;

/// A source with the behavior of its [`Nature`]. It records each region and checks that the pool returns
/// exactly that region.
pub struct FakeSource {
    nature: Nature,
    book: Mutex<Book>,
    hook: Mutex<Option<Arc<Hook>>>,
}

#[derive(Debug, Default)]
struct Book {
    calls: u64,
    frees: u64,
    fails: Fails,
    next: u64,
    /// Bytes of reserved ranges.
    reserved: u64,
    out: BTreeMap<u64, u64>,
    faults: Vec<String>,
}

impl FakeSource {
    pub fn new(nature: Nature) -> Arc<Self> {
        let book = Book { next: BASE, fails: nature.fails, ..Book::default() };
        Arc::new(Self { nature, book: Mutex::new(book), hook: Mutex::new(None) })
    }

    /// Calls that asked for a region so far.
    pub fn calls(&self) -> u64 {
        self.book.lock().unwrap().calls
    }

    /// Calls that gave a region back so far.
    pub fn frees(&self) -> u64 {
        self.book.lock().unwrap().frees
    }

    /// Bytes that are out now.
    pub fn bytes_out(&self) -> u64 {
        self.book.lock().unwrap().out.values().sum()
    }

    /// Whether the pool holds all of these bytes, in any number of adjacent regions.
    pub fn is_out(&self, address: u64, bytes: u64) -> bool {
        let out = &self.book.lock().unwrap().out;
        let (mut at, end) = (address, address + bytes);
        while at < end {
            let Some((&start, &bytes)) = out.range(..=at).next_back() else { return false };
            if start + bytes <= at {
                return false;
            }
            at = start + bytes;
        }
        true
    }

    pub fn set_fails(&self, fails: Fails) {
        self.book.lock().unwrap().fails = fails;
    }

    /// Runs `hook` inside every call.
    pub fn set_hook(&self, hook: impl Fn() + Send + Sync + 'static) {
        *self.hook.lock().unwrap() = Some(Arc::new(Box::new(hook)));
    }

    pub fn clear_hook(&self) {
        *self.hook.lock().unwrap() = None;
    }

    /// Checks that the pool returned only regions that it held.
    pub fn assert_sound(&self) {
        let book = self.book.lock().unwrap();
        assert!(book.faults.is_empty(), "{:?}", book.faults);
    }

    /// Checks that the pool returned every region exactly once and unchanged.
    pub fn assert_all_returned(&self) {
        self.assert_sound();
        let out = &self.book.lock().unwrap().out;
        assert!(out.is_empty(), "not given back: {out:?}");
    }

    fn run_hook(&self) {
        let hook = self.hook.lock().unwrap().clone();
        if let Some(hook) = hook {
            hook();
        }
    }

    /// Counts a call, and fails as the nature says.
    fn provide(&self, book: &mut Book, bytes: u64) -> Result<(), SourceError> {
        book.calls += 1;
        let out = || book.out.values().sum::<u64>();
        let fails = match book.fails {
            Fails::Never => false,
            Fails::Always => true,
            Fails::Every(step) => book.calls % step == 0,
            Fails::Only(call) => book.calls == call,
            Fails::Random { seed, one_in } => Random(seed ^ book.calls).below(one_in) == 0,
        };
        if fails && self.nature.broken {
            return Err(SourceError::Driver { call: "fake", reason: "broken".to_owned() });
        }
        if fails || self.nature.capacity.is_some_and(|capacity| out() + bytes > capacity) {
            return Err(SourceError::Exhausted { bytes });
        }
        Ok(())
    }

    fn place(&self, book: &mut Book, alignment: u64, bytes: u64) -> u64 {
        let alignment = self.nature.fixed_alignment.unwrap_or(alignment);
        if self.nature.downward {
            let address = (book.next - bytes - self.nature.gap) / alignment * alignment;
            book.next = address;
            address
        } else {
            let address = book.next.next_multiple_of(alignment) + self.nature.offset;
            book.next = address + bytes + self.nature.gap;
            address
        }
    }
}

// SAFETY: the memory is address-only and spans never overlap: each starts beyond the end of the one before.
unsafe impl SubAllocator for FakeSource {
    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::AddressOnly
    }

    fn allocate(&self, alignment: u64, bytes: u64) -> Result<Span, SourceError> {
        self.run_hook();
        let book = &mut *self.book.lock().unwrap();
        self.provide(book, bytes)?;
        let delivered = bytes + self.nature.extra - self.nature.missing;
        let address = self.place(book, alignment, delivered);
        book.out.insert(address, delivered);
        Ok(Span { address, bytes: delivered })
    }

    unsafe fn free(&self, region: Span) {
        self.run_hook();
        let book = &mut *self.book.lock().unwrap();
        book.frees += 1;
        if region.bytes == 0 && book.out.get(&region.address) == Some(&0) {
            // The source delivered none of the bytes of the smallest region.
            book.out.remove(&region.address);
            return;
        }
        let mut at = region.address;
        let end = region.address + region.bytes;
        while at < end {
            match book.out.remove(&at) {
                Some(bytes) if at == region.address || self.nature.coalescing || at >= RANGES => at += bytes,
                other => {
                    book.faults.push(format!("{region:x?} given back: {other:?} bytes at {at:#x}"));
                    return;
                }
            }
        }
        if at != end {
            book.faults.push(format!("{region:x?} given back: too short"));
        }
    }

    fn supports_coalescing(&self) -> bool {
        self.nature.coalescing
    }

    fn supports_segments(&self) -> bool {
        true
    }

    fn reserve(&self, bytes: u64) -> Result<Span, SourceError> {
        let book = &mut *self.book.lock().unwrap();
        let address = RANGES + book.reserved;
        book.reserved += bytes;
        Ok(Span { address, bytes })
    }

    unsafe fn map(&self, span: Span, handle: u64) -> Result<(), SourceError> {
        self.run_hook();
        let book = &mut *self.book.lock().unwrap();
        self.provide(book, span.bytes)?;
        for piece in 0..span.bytes / handle {
            if book.out.insert(span.address + piece * handle, handle).is_some() {
                book.faults.push(format!("{span:x?} is mapped twice"));
            }
        }
        Ok(())
    }
}

impl fmt::Debug for FakeSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeSource").field("nature", &self.nature).finish_non_exhaustive()
    }
}
