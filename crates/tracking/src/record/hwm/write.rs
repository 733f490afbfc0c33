//! Writes blocks on a separate thread, so that the program does not wait for the disk.

use std::fmt;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use serde::Serialize;

use super::{MAGIC, VERSION, checksum, kind, label, most_bytes};
use crate::record::summary::RunSummary;
use crate::report::RunFacts;

/// The most full blocks in the queue. The program waits when it is full, so that no event is lost.
const WAITING_BLOCKS: usize = 64;

/// The size of a finished recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Written {
    /// Events.
    pub events: u64,
    /// Bytes of the whole file.
    pub bytes: u64,
}

/// A file in progress.
pub(in crate::record) struct HwmWriter {
    /// `None` after an error of the file.
    blocks: Option<SyncSender<(u8, Vec<u8>)>>,
    thread: JoinHandle<io::Result<u64>>,
}

impl fmt::Debug for HwmWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HwmWriter").field("open", &self.blocks.is_some()).finish_non_exhaustive()
    }
}

impl HwmWriter {
    /// Writes the beginning of a file.
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

    /// Queues a block of events. Returns `false` after an error of the file, which [`finish`](Self::finish) returns.
    pub(in crate::record) fn take(&mut self, block: Vec<u8>) -> bool {
        block.is_empty() || self.send(kind::EVENTS, block)
    }

    /// Writes the end of the file and waits for all blocks.
    pub(in crate::record) fn finish(mut self, summary: &RunSummary) -> io::Result<Written> {
        let closing = json(summary)?;
        self.send(kind::SUMMARY, closing);
        self.blocks = None;
        let bytes =
            self.thread.join().map_err(|_| io::Error::other("the writer of the recording panicked"))??;
        Ok(Written { events: summary.events, bytes })
    }

    /// Writes a last block without a summary and waits for it, because the program may be about to end.
    pub(in crate::record) fn abandon(mut self, block: Vec<u8>) {
        self.take(block);
        self.blocks = None;
        // There is no caller to return an error to.
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

/// The receiving end, on its own thread.
struct File<W> {
    file: W,
    written: u64,
}

impl<W: Write> File<W> {
    /// Writes all blocks and returns the length of the file.
    fn run(mut self, blocks: &Receiver<(u8, Vec<u8>)>) -> io::Result<u64> {
        for (kind, block) in blocks {
            self.block(kind, &block)?;
            // Flushes, so that readers can follow the file and a killed program leaves a readable file.
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
