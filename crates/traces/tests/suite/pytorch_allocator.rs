//! The policy `pytorch` makes the decisions of PyTorch's CUDA caching allocator.
//!
//! `tests/data/pytorch_allocator` has the decisions of the real allocator on 1,600 random programs and four recorded
//! traces, with up to 14 settings each. `make.py` there describes the files, and prints the real decisions event by event.

use std::collections::BTreeMap;
use std::io::Read;
use std::num::NonZero;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::{fmt, fs, thread};

use bfc_core::{
    AddressOnlyMemory, AllocationAttributes, Allocator, Block, Bytes, GIB, KIB, MIB, MemoryKind,
    PytorchAllocator, PytorchConfig, PytorchOptions, Request, SourceError, Span, SubAllocator,
};
use flate2::read::GzDecoder;
use highwater_traces::{Replayer, Trace, TraceLimits};

/// The unit of reserved bytes in the data.
const UNIT: u64 = 2 * MIB;

/// The first address of the device.
const BASE: u64 = 1 << 40;

/// A device of addresses that knows its segments. Each segment lies behind all older ones, as in [`AddressOnlyMemory`]:
/// PyTorch prefers blocks of older segments among equal ones, and the policy prefers low addresses.
#[derive(Debug)]
struct Device {
    capacity: u64,
    segments: Mutex<BTreeMap<u64, u64>>,
    reserved: AtomicU64,
}

impl Device {
    fn new(capacity: u64) -> Self {
        Self { capacity, segments: Mutex::default(), reserved: AtomicU64::new(0) }
    }

    /// The segment that holds an address.
    fn segment(&self, address: u64) -> Span {
        let segments = self.segments.lock().unwrap();
        let (&start, &bytes) = segments.range(..=address).next_back().expect("a block lies in a segment");
        Span { address: start, bytes }
    }

    fn reserved(&self) -> u64 {
        self.reserved.load(Ordering::Relaxed)
    }
}

// SAFETY: the addresses are never dereferenced. Segments do not overlap: each lies behind the others.
unsafe impl SubAllocator for Device {
    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::AddressOnly
    }

    fn total_bytes(&self) -> Option<u64> {
        Some(self.capacity)
    }

    fn allocate(&self, _: u64, bytes: u64) -> Result<Span, SourceError> {
        let mut segments = self.segments.lock().unwrap();
        if bytes == 0 || self.reserved() + bytes > self.capacity {
            return Err(SourceError::Exhausted { bytes });
        }
        let address = segments.last_key_value().map_or(BASE, |(start, bytes)| start + bytes);
        segments.insert(address, bytes);
        self.reserved.fetch_add(bytes, Ordering::Relaxed);
        Ok(Span { address, bytes })
    }

    unsafe fn free(&self, region: Span) {
        assert_eq!(self.segments.lock().unwrap().remove(&region.address), Some(region.bytes));
        self.reserved.fetch_sub(region.bytes, Ordering::Relaxed);
    }
}

/// The memory below the pool.
enum Source {
    Segments(Arc<Device>),
    Expandable(Arc<AddressOnlyMemory>),
}

impl Source {
    fn new(capacity: u64, is_expandable: bool) -> Self {
        if is_expandable {
            Self::Expandable(Arc::new(AddressOnlyMemory::new().with_limit(Bytes(capacity))))
        } else {
            Self::Segments(Arc::new(Device::new(capacity)))
        }
    }

    fn shared(&self) -> Arc<dyn SubAllocator> {
        match self {
            Self::Segments(device) => Arc::clone(device) as _,
            Self::Expandable(memory) => Arc::clone(memory) as _,
        }
    }

    fn reserved(&self) -> u64 {
        match self {
            Self::Segments(device) => device.reserved(),
            Self::Expandable(memory) => memory.live_bytes(),
        }
    }
}

/// An event: an allocation of some bytes by number, or the free of an allocation.
#[derive(Clone, Copy, Debug)]
enum Event {
    Alloc { id: usize, bytes: u64, stream: u32 },
    Free { id: usize },
}

/// The answer of the allocator to an event, which `make.py show` prints in the same form.
#[derive(Clone, Copy, Debug)]
struct Answer {
    reserved: u64,
    /// `None` if memory ran out.
    allocated: Option<u64>,
    /// The offset in the segment and its size, for an allocation in a segment of fixed size.
    place: Option<(u64, u64)>,
    is_free: bool,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reserved, .. } = self;
        match (self.allocated, self.place) {
            (None, _) => write!(f, "oom {reserved}"),
            (Some(allocated), _) if self.is_free => write!(f, "freed {reserved} {allocated}"),
            (Some(allocated), Some((offset, segment))) => {
                write!(f, "{offset} of {segment} {reserved} {allocated}")
            }
            (Some(allocated), None) => write!(f, "- of - {reserved} {allocated}"),
        }
    }
}

/// The digest of answers, as `make.py` computes it.
#[derive(Clone, Copy)]
struct Digest(u64);

impl Digest {
    const START: Self = Self(0xCBF2_9CE4_8422_2325);

    fn word(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x100_0000_01B3);
        self.0 ^= self.0 >> 29;
    }

    fn answer(&mut self, answer: &Answer) {
        if let Some((offset, segment)) = answer.place {
            self.word(offset);
            self.word(segment);
        }
        self.word(answer.allocated.unwrap_or(u64::MAX));
    }

    fn take(&mut self) -> u32 {
        (std::mem::replace(self, Self::START).0 >> 32) as u32
    }
}

/// The answers of PyTorch's allocator to the events of a program or a trace.
#[derive(Clone, Debug)]
struct Expected {
    /// Numbers of events, and the reserved bytes after each of them.
    runs: Vec<(usize, u64)>,
    /// The events that ran out of memory.
    failed: Vec<usize>,
    /// Of each window of events.
    digests: Vec<u32>,
}

impl Expected {
    /// Parses the fields of a line after the number of the settings.
    fn parse(fields: &[&str]) -> Option<Self> {
        let [runs, failed, digests] = fields else { return None };
        let run = |run: &str| {
            let (events, reserved) = run.split_once(':')?;
            Some((events.parse().ok()?, reserved.parse::<u64>().ok()? * UNIT))
        };
        Some(Self {
            runs: runs.split(',').map(run).collect::<Option<_>>()?,
            failed: failed.split(',').filter_map(|event| event.parse().ok()).collect(),
            digests: digests
                .split(',')
                .map(|text| u32::from_str_radix(text, 16).ok())
                .collect::<Option<_>>()?,
        })
    }
}

/// A program or a trace on a device, with the answers by settings.
#[derive(Debug)]
struct Case {
    /// `program 7` or `trace lstm`.
    name: String,
    capacity: u64,
    events: usize,
    /// By index of the settings.
    expected: BTreeMap<usize, Arc<Expected>>,
}

/// The settings and the cases of a file.
fn read(name: &str) -> (Vec<String>, Vec<Case>) {
    let text = unzipped(name);
    let (mut settings, mut cases) = (Vec::new(), Vec::<Case>::new());
    for line in text.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        match fields[..] {
            ["settings", _, text] => settings.push(text.trim_matches('-').to_owned()),
            [kind @ ("program" | "trace"), name, capacity, events] => cases.push(Case {
                name: format!("{kind} {name}"),
                capacity: capacity.parse().unwrap(),
                events: events.parse().unwrap(),
                expected: BTreeMap::new(),
            }),
            [index, ref rest @ ..] => {
                let expected = &mut cases.last_mut().expect("a case comes first").expected;
                let found = match rest[0].strip_prefix('=') {
                    Some(equal) => Arc::clone(&expected[&equal.parse().unwrap()]),
                    None => Arc::new(Expected::parse(rest).expect("runs, failures and digests")),
                };
                expected.insert(index.parse().unwrap(), found);
            }
            [] => {}
        }
    }
    (settings, cases)
}

fn unzipped(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/pytorch_allocator").join(name);
    let mut text = String::new();
    GzDecoder::new(&fs::read(path).unwrap()[..]).read_to_string(&mut text).unwrap();
    text
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % n
    }

    fn one_of<T: Copy, const N: usize>(&mut self, all: [T; N]) -> T {
        all[self.below(N as u64) as usize]
    }

    /// A size at or near a border.
    fn near(&mut self, mib: u64) -> u64 {
        (mib * MIB).wrapping_add_signed(self.one_of([-513, -512, -1, 0, 1, 512, 513]))
    }

    /// The bytes of the next allocation.
    fn size(&mut self, kind: u64, sizes: &[u64]) -> u64 {
        match kind {
            0 => 1 + self.below(512),
            1 => 512 * (1 + self.below(16)) - 1 + self.below(3),
            2 => 1 + self.below(64 * KIB),
            3 => 1 + self.below(MIB),
            4 => self.near(1),
            5 => self.near(2),
            6 => self.near(10),
            7 => self.near(20),
            8 => {
                let mib = self.one_of([20, 32, 64, 128, 512]);
                self.near(mib)
            }
            9 => MIB + self.below(9 * MIB),
            10 => 10 * MIB + self.below(30 * MIB),
            11 => 40 * MIB + self.below(260 * MIB),
            12 => {
                let power = 1 << (20 + self.below(10));
                power + self.below(power)
            }
            13 => {
                let power = 1 << (9 + self.below(11));
                power + self.below(power)
            }
            14 if sizes.is_empty() => 512,
            14 => sizes[self.below(sizes.len() as u64) as usize],
            _ => 300 * MIB + self.below(1200 * MIB),
        }
    }
}

/// The device and the events of a random program. `make.py` has the same function.
fn program(number: u64) -> (u64, Vec<Event>) {
    let mut random = Random(number);
    let small = random.one_of([32, 48, 64, 100, 256, 700, 1500, 4000]) * MIB;
    let capacity = match number {
        1000.. => 8 * small,
        _ if number % 4 == 3 => small,
        _ => 80 * GIB,
    };
    let length = 60 + random.below(160) as usize;
    let kinds: Vec<u64> = (0..1 + random.below(5)).map(|_| random.below(16)).collect();
    let free_percent = random.one_of([10, 35, 45, 48, 50, 60]);
    let keep_percent = random.one_of([0, 10, 30]);
    let (mut events, mut sizes, mut live) = (Vec::new(), Vec::new(), Vec::new());
    while events.len() < length {
        if random.below(40) == 0 {
            events.extend(live.drain(..).map(|id| Event::Free { id }));
        } else if !live.is_empty() && random.below(100) < free_percent {
            let index = match random.below(4) {
                0 => live.len() - 1,
                1 => 0,
                _ => random.below(live.len() as u64) as usize,
            };
            events.push(Event::Free { id: live.remove(index) });
        } else {
            let kind = kinds[random.below(kinds.len() as u64) as usize];
            let (id, bytes) = (sizes.len(), random.size(kind, &sizes));
            let stream = if number >= 2000 { random.below(3) as u32 } else { 0 };
            events.push(Event::Alloc { id, bytes, stream });
            if random.below(100) >= keep_percent {
                live.push(id);
            }
            sizes.push(bytes);
        }
    }
    (capacity, events)
}

/// The events of a committed trace.
fn trace(name: &str) -> Vec<Event> {
    let text = unzipped(&format!("{name}.trace.gz"));
    let event = |line: &str| {
        let mut fields = line.split(' ');
        let (kind, id) = (fields.next()?, fields.next()?.parse().ok()?);
        Some(match kind {
            "a" => Event::Alloc { id, bytes: fields.next()?.parse().ok()?, stream: 0 },
            _ => Event::Free { id },
        })
    };
    text.lines().map(|line| event(line).expect("an event")).collect()
}

/// A pool that answers events.
struct Replay {
    source: Source,
    pool: PytorchAllocator,
    /// By allocation number; `None` if it failed or was freed.
    blocks: Vec<Option<Block>>,
    allocated: u64,
}

impl Replay {
    fn new(capacity: u64, settings: &str) -> Self {
        let options: PytorchOptions = settings.parse().unwrap_or_else(|error| panic!("{settings}: {error}"));
        let source = Source::new(capacity, settings.contains("expandable_segments:True"));
        let pool = PytorchAllocator::new(
            "pytorch",
            source.shared(),
            PytorchConfig::pytorch(Bytes(capacity), options),
        );
        Self { source, pool, blocks: Vec::new(), allocated: 0 }
    }

    fn answer(&mut self, event: Event) -> Answer {
        let is_free = matches!(event, Event::Free { .. });
        let mut answer = Answer { reserved: 0, allocated: None, place: None, is_free };
        match event {
            Event::Alloc { id, bytes, stream } => {
                let request = Request::new(bytes).with_stream(stream);
                let request = request.with_attributes(AllocationAttributes::no_retry());
                let block = self.pool.allocate(&request).ok();
                if let Some(block) = block {
                    self.allocated += block.bytes;
                    answer.allocated = Some(self.allocated);
                    if let Source::Segments(device) = &self.source {
                        let segment = device.segment(block.address);
                        answer.place = Some((block.address - segment.address, segment.bytes));
                    }
                }
                if self.blocks.len() <= id {
                    self.blocks.resize(id + 1, None);
                }
                self.blocks[id] = block;
            }
            Event::Free { id } => {
                if let Some(block) = self.blocks[id].take() {
                    // SAFETY: the pool returned the block, and nothing has used its memory.
                    unsafe { self.pool.deallocate(block) }.unwrap();
                    self.allocated -= block.bytes;
                }
                answer.allocated = Some(self.allocated);
            }
        }
        answer.reserved = self.source.reserved();
        answer
    }
}

/// Replays events and compares every answer. Returns the first difference.
fn compare(
    events: &[Event],
    capacity: u64,
    settings: &str,
    window: usize,
    expected: &Expected,
) -> Result<(), String> {
    let mut replay = Replay::new(capacity, settings);
    let mut reserved = expected.runs.iter().flat_map(|&(events, bytes)| std::iter::repeat_n(bytes, events));
    let mut failed = expected.failed.iter().copied().peekable();
    let mut digest = Digest::START;
    let mut answers = Vec::with_capacity(window);
    for (number, &event) in events.iter().enumerate() {
        let answer = replay.answer(event);
        digest.answer(&answer);
        answers.push(answer);
        let expected_bytes = reserved.next().expect("the answer to each event is known");
        let expected_failure = failed.next_if_eq(&number).is_some();
        let at = || format!("event {number} ({event:?}): got {answer}, expected");
        if answer.allocated.is_none() != expected_failure {
            let what = if expected_failure { "an out-of-memory error" } else { "success" };
            return Err(format!("{} {what}", at()));
        }
        if answer.reserved != expected_bytes {
            return Err(format!("{} {expected_bytes} reserved bytes", at()));
        }
        if answers.len() == window || number + 1 == events.len() {
            let first = number / window * window;
            if digest.take() != expected.digests[number / window] {
                let lines: Vec<String> = answers
                    .iter()
                    .zip(first..)
                    .take(64)
                    .map(|(answer, number)| format!("{number:5} {:?} {answer}", events[number]))
                    .collect();
                let lines = lines.join("\n");
                return Err(format!(
                    "events {first} to {number}: another place or size; `make.py show` differs from\n{lines}"
                ));
            }
            answers.clear();
            let stats = replay.pool.stats();
            assert_eq!((stats.bytes_in_use, stats.bytes_reserved), (replay.allocated, answer.reserved));
        }
    }
    assert_eq!(replay.pool.check_invariants(), Ok(()));
    Ok(())
}

/// The differences that a failing test lists.
const LISTED: usize = 12;

/// Compares jobs on all processors. Fails with the first differences.
fn check<J: Sync>(jobs: &[J], run: impl Fn(&J) -> Vec<String> + Sync) {
    let next = AtomicUsize::new(0);
    let differences = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, |threads| threads.get().min(jobs.len())) {
            scope.spawn(|| {
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let found = run(job);
                    differences.lock().unwrap().extend(found);
                }
            });
        }
    });
    let mut differences = differences.into_inner().unwrap();
    differences.sort();
    let mut counts = BTreeMap::<&str, u32>::new();
    for settings in differences.iter().filter_map(|difference| difference.split_inclusive("] ").next()) {
        *counts.entry(settings).or_default() += 1;
    }
    let counts: Vec<String> = counts.iter().map(|(settings, count)| format!("{settings}{count}")).collect();
    let listed = &differences[..differences.len().min(LISTED)];
    assert!(differences.is_empty(), "differences: {}\n{}", counts.join(", "), listed.join("\n"));
}

/// Compares the programs of a file.
fn check_programs(file: &str, count: usize) {
    let (settings, cases) = read(file);
    assert_eq!(cases.len(), count);
    assert!(cases.iter().any(|case| case.expected.values().any(|expected| !expected.failed.is_empty())));
    check(&cases, |case| {
        let number = case.name.strip_prefix("program ").unwrap().parse().unwrap();
        let (capacity, events) = program(number);
        assert_eq!((capacity, events.len()), (case.capacity, case.events), "{}", case.name);
        let compared = case.expected.iter().filter_map(|(&index, expected)| {
            let found = compare(&events, capacity, &settings[index], 64, expected).err()?;
            Some(format!("[{}] {}: {found}", settings[index], case.name))
        });
        compared.collect()
    });
}

#[test]
fn random_programs_get_the_decisions_of_pytorch() {
    check_programs("programs.txt.gz", 1000);
}

#[test]
fn programs_with_streams_or_garbage_collection_get_the_decisions_of_pytorch() {
    check_programs("more_programs.txt.gz", 600);
}

#[test]
fn recorded_traces_get_the_decisions_of_pytorch() {
    let (settings, cases) = read("traces.txt.gz");
    assert_eq!(cases.len(), 12);
    let mut events = BTreeMap::new();
    for case in &cases {
        let name = case.name.strip_prefix("trace ").unwrap();
        events.entry(case.name.clone()).or_insert_with(|| trace(name));
    }
    let jobs: Vec<(&Case, usize)> =
        cases.iter().flat_map(|case| case.expected.keys().map(move |&index| (case, index))).collect();
    check(&jobs, |&(case, index)| {
        let (settings, events) = (&settings[index], &events[&case.name]);
        assert_eq!(events.len(), case.events, "{}", case.name);
        let compared = compare(events, case.capacity, settings, 1000, &case.expected[&index]);
        let found = compared.err();
        found
            .map(|found| format!("[{settings}] {} on {} bytes: {found}", case.name, case.capacity))
            .into_iter()
            .collect()
    });
}

/// The reproducer of pytorch/pytorch#193400 has the figures of its table, in MiB.
#[test]
fn reserved_memory_grows_as_reported_upstream() {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/pytorch_allocator/reserved-growth.trace");
    let trace = Trace::parse(&fs::read(path).unwrap()[..], &TraceLimits::default()).unwrap();
    let positions: Vec<usize> = trace.marks().map(|(position, _)| position).collect();
    let run = |settings: &str| {
        let pool = Replay::new(16 * GIB, settings).pool;
        let mut figures = Vec::new();
        let watch = |done: usize, pool: &PytorchAllocator| {
            if positions.contains(&done) {
                let stats = pool.stats();
                figures.push((stats.bytes_in_use / MIB, stats.bytes_reserved / MIB));
            }
        };
        let summary = Replayer::new(&trace).run_watched(&pool, NonZero::<usize>::MIN, watch).unwrap();
        (figures, summary.end_in_use / MIB, summary.end_reserved / MIB)
    };
    let recorded = trace.header("alloc_conf").unwrap();
    let table = vec![(66, 220), (106, 2980), (146, 5760), (186, 8520), (226, 11_300), (266, 14_060)];
    assert_eq!(run(recorded), (table, 266, 14_060));
    assert_eq!(run("expandable_segments:True").2, 420);
    assert_eq!(run("max_split_size_mb:128").2, 422);
    assert_eq!(run("").2, 422);
}
