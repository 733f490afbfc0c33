//! Writing: blocks go to a thread of their own, which waits for the disk so that the program need not.

use std::fmt;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use serde::Serialize;

use super::{MAGIC, VERSION, checksum, kind, label, most_bytes};
use crate::record::summary::RunSummary;
use crate::report::RunFacts;

/// How many full blocks may wait for the disk. When more are ready, the program waits: nothing is lost.
const WAITING_BLOCKS: usize = 64;

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Events.
    pub events: u64,
    /// Bytes of the whole file.
    pub bytes: u64,
}

/// A file that is being written.
pub(in crate::record) struct HwmWriter {
    /// `None` once the file takes no more.
    blocks: Option<SyncSender<(u8, Vec<u8>)>>,
    thread: JoinHandle<io::Result<u64>>,
}

impl fmt::Debug for HwmWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HwmWriter").field("open", &self.blocks.is_some()).finish_non_exhaustive()
    }
}

impl HwmWriter {
    /// Writes the beginning of a file, and is ready for blocks of events.
    pub(in crate::record) fn start(file: impl Write + Send + 'static, facts: &RunFacts) -> io::Result<Self> {
        let mut file = File { file, written: 0 };
        file.put(&[&MAGIC[..], &VERSION.to_le_bytes()].concat())?;
        file.block(kind::FACTS, &json(facts)?)?;
        file.file.flush()?;
        let (blocks, incoming) = sync_channel(WAITING_BLOCKS);
        let write = move || file.run(&incoming);
        let thread = std::thread::Builder::new().name("hwm-writer".to_owned()).spawn(write)?;
        Ok(Self { blocks: Some(blocks), thread })
    }

    /// Takes a block of events; `false` if the file takes no more, which [`finish`](Self::finish) explains.
    pub(in crate::record) fn take(&mut self, block: Vec<u8>) -> bool {
        block.is_empty() || self.send(kind::EVENTS, block)
    }

    /// Writes the end of the file, and waits until all is written.
    pub(in crate::record) fn finish(mut self, summary: &RunSummary) -> io::Result<Written> {
        let closing = json(summary)?;
        self.send(kind::SUMMARY, closing);
        self.blocks = None;
        let bytes =
            self.thread.join().map_err(|_| io::Error::other("the writer of the recording panicked"))??;
        Ok(Written { events: summary.events, bytes })
    }

    /// Writes a last block and no end, and waits until all is written: the program may be about to end.
    pub(in crate::record) fn abandon(mut self, block: Vec<u8>) {
        self.take(block);
        self.blocks = None;
        // Nobody asks any more whether the file took it.
        let _ = self.thread.join();
    }

    fn send(&mut self, kind: u8, block: Vec<u8>) -> bool {
        let sent = self.blocks.as_ref().is_some_and(|blocks| blocks.send((kind, block)).is_ok());
        if !sent {
            self.blocks = None;
        }
        sent
    }
}

/// The other end, on its own thread.
struct File<W> {
    file: W,
    written: u64,
}

impl<W: Write> File<W> {
    /// Writes blocks until there are no more; returns the length of the file.
    fn run(mut self, blocks: &Receiver<(u8, Vec<u8>)>) -> io::Result<u64> {
        for (kind, block) in blocks {
            self.block(kind, &block)?;
            // So that a file can be followed while it grows, and holds what there was when the program was killed.
            self.file.flush()?;
        }
        Ok(self.written)
    }

    fn block(&mut self, kind: u8, contents: &[u8]) -> io::Result<()> {
        let length = u32::try_from(contents.len()).ok().filter(|&length| length <= most_bytes(kind));
        let length = length.ok_or_else(|| io::Error::other("a block of the recording is too long"))?;
        let label = label(kind, length);
        let frame = [&label[..], &checksum(label, contents).to_le_bytes(), contents].concat();
        self.put(&frame)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.written += bytes.len() as u64;
        Ok(())
    }
}

fn json(value: &impl Serialize) -> io::Result<Vec<u8>> {
    Ok(serde_json::to_vec(value)?)
}
