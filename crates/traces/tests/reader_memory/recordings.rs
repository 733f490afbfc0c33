//! Recordings: owners, executions and allocations that take the most memory per byte of the file.

use std::io::sink;

use highwater_traces::{ExportFormat, export};
use highwater_tracking::{Follower, Recording, RecordingLimits, Report, RunFacts, write_page};

use super::{alone, check, trace};

/// A file of the recording format with these events.
fn hwm(blocks: &[Vec<u8>]) -> Vec<u8> {
    let mut file = b"\x89HWM\r\n\x1a\n\x01\x00".to_vec();
    let facts = serde_json::to_vec(&RunFacts::new("worst")).unwrap();
    let blocks = blocks.iter().map(|block| (b'E', block));
    for (kind, contents) in std::iter::once((b'F', &facts)).chain(blocks) {
        let [a, b, c, d] = (contents.len() as u32).to_le_bytes();
        let label = [kind, a, b, c, d];
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&label);
        hasher.update(contents);
        file.extend(label);
        file.extend(hasher.finalize().to_le_bytes());
        file.extend(contents);
    }
    file
}

pub(super) fn number(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

fn named(to: &mut Vec<u8>, owner: u64, parent: u64, phase: u8, name: &[u8]) {
    to.push(10);
    number(to, owner);
    number(to, parent);
    to.push(phase);
    number(to, name.len() as u64);
    to.extend(name);
}

const POOL: &[u8] = b"\x0b\x00\x01m\x01p";

/// Blocks of events, each within the length limit.
#[derive(Default)]
struct Events {
    blocks: Vec<Vec<u8>>,
    block: Vec<u8>,
    /// Allocations so far.
    allocations: u64,
    /// Whether the block has an allocation.
    continues: bool,
}

impl Events {
    fn close_if_full(&mut self) {
        if self.block.len() > 60_000 {
            self.blocks.push(std::mem::take(&mut self.block));
            self.continues = false;
        }
    }

    /// Adds an allocation of 1 byte by an owner, in the fewest bytes.
    fn alloc(&mut self, owner: Option<u64>) {
        self.close_if_full();
        self.allocations += 1;
        let id = self.allocations;
        let same_owner = if owner.is_some() { 0 } else { 0x10 };
        self.block.push(0xc0 | same_owner | if self.continues { 0x20 } else { 0 });
        self.block.push(0);
        if self.continues {
            self.block.push(2);
        } else {
            // The number and the address as differences from zero, in zigzag.
            number(&mut self.block, 2 * id);
            number(&mut self.block, 2 * id);
        }
        self.continues = true;
        if let Some(owner) = owner {
            number(&mut self.block, owner);
        }
        self.block.extend(b"\0\x01");
    }

    fn into_file(mut self) -> Vec<u8> {
        self.blocks.push(self.block);
        self.blocks.insert(0, POOL.to_vec());
        hwm(&self.blocks)
    }
}

/// The results of `report` and `export` for a recording.
pub(super) fn use_recording(recording: &Recording) {
    let report = Report::from_recording(recording);
    serde_json::to_writer(sink(), &report).unwrap();
    drop(report);
    write_page(recording, None, sink()).unwrap();
    for format in ExportFormat::ALL {
        export(recording, format, sink()).unwrap();
    }
}

fn recording(what: &str, file: &[u8]) -> Result<usize, String> {
    let read = || {
        let recording = Recording::read(file, &RecordingLimits::default())?;
        use_recording(&recording);
        Ok(recording.events().len())
    };
    let follow = || Follower::new(file, RecordingLimits::default()).poll().map(drop);
    let followed = check(what, file.len(), follow);
    let read = check(what, file.len(), read).map_err(|error: highwater_tracking::HwmError| error.to_string());
    let traced = trace(what, file, file.len());
    assert!(traced.is_ok() || read.is_err() || traced.is_err_and(|error| error.contains("of memory")));
    assert!(followed.is_ok() || read.is_err(), "{followed:?}");
    read
}

/// A chain of nested owners, and many allocating owners below the last of them.
fn nested(depth: u64, leaves: u64, name: usize) -> Vec<u8> {
    let mut events = Events::default();
    for owner in 1..=depth {
        named(&mut events.block, owner, owner - 1, 0, &vec![b'n'; name]);
    }
    for leaf in depth + 1..=depth + leaves {
        named(&mut events.block, leaf, depth, 1, b"op");
        events.alloc(Some(leaf));
    }
    events.into_file()
}

fn allocations_file(count: u32) -> Vec<u8> {
    let mut events = Events::default();
    (0..count).for_each(|_| events.alloc(None));
    events.into_file()
}

#[test]
fn recordings_keep_the_memory_limit() {
    let _alone = alone();
    let error = recording("long paths", &nested(249, 12_000, 1000)).unwrap_err();
    assert!(error.contains("and the paths of its owners"), "{error}");
    assert_eq!(recording("short paths", &nested(5, 12_000, 20)), Ok(12_000));

    for count in [100_000, 200_000, 300_000, 1_000_000] {
        let read = recording("allocations", &allocations_file(count));
        assert!(
            read == Ok(count as usize) || read.as_ref().is_err_and(|error| error.contains("of memory")),
            "{read:?}"
        );
    }
    let mut owners = vec![POOL.to_vec()];
    for first in 0..20 {
        let mut block = Vec::new();
        (0..2000).for_each(|index| named(&mut block, first * 2000 + index + 1, 0, 0, b"o"));
        owners.push(block);
    }
    let _ = recording("owners", &hwm(&owners));
    let op = b"\x0a\x01\x00\x01\x01o".to_vec();
    let executions = [POOL.to_vec(), op, b"\x13\x00\x04\x00\x00\x00".repeat(100_000)];
    let read = recording("executions", &hwm(&executions));
    assert_eq!(read, Ok(200_000));
}
