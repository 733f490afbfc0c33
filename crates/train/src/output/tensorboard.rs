//! Event files for TensorBoard.
//!
//! ```text
//! file    = record*                                     the first event names the version
//! record  = length:u64  crc(length)  event  crc(event)  little endian
//! event   = wall time, step, scalars by tag, or the start of a session      protocol buffers
//! crc     = CRC-32C, rotated right by 15 bits, plus a constant
//! ```

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use highwater_tensor::Result;
use highwater_tensor::error::FileError;

use super::{Observer, RunStart, StepRecord};

/// The contents of the first event.
const VERSION: &str = "brain.Event:2";

/// The number that TensorFlow adds to checksums, so that a checksum of data with checksums is still useful.
const MASK: u32 = 0xa282_ead8;

/// The polynomial of CRC-32C, with the lowest power in the highest bit.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// TensorFlow's message `Event`: a version, the scalars of a step, or the start of a session.
#[derive(Clone, Debug, Default, PartialEq)]
struct Event {
    wall_time: f64,
    step: u64,
    version: Option<&'static str>,
    /// Whether a run continues at this step: TensorBoard removes scalars of other files from here on.
    starts_session: bool,
    scalars: Vec<(String, f32)>,
}

impl Event {
    /// Encodes the event as protocol buffers: a field is its key, which is its number and wire type, and its value.
    fn encode(&self) -> Vec<u8> {
        const DOUBLE: u8 = 1;
        const FLOAT: u8 = 5;
        let mut event = vec![key(1, DOUBLE)];
        event.extend(self.wall_time.to_le_bytes());
        event.push(key(2, VARINT));
        event.extend(varint(self.step));
        event.extend(self.version.into_iter().flat_map(|version| nested(3, version.as_bytes())));
        let mut summary = Vec::new();
        for (tag, value) in &self.scalars {
            let mut scalar = nested(1, tag.as_bytes());
            scalar.push(key(2, FLOAT));
            scalar.extend(value.to_le_bytes());
            summary.extend(nested(1, &scalar));
        }
        if !summary.is_empty() {
            event.extend(nested(5, &summary));
        }
        if self.starts_session {
            // The message `SessionLog` with the status `START`.
            event.extend(nested(7, &[key(1, VARINT), 1]));
        }
        event
    }
}

/// The wire types of integers, and of texts and messages.
const VARINT: u8 = 0;
const NESTED: u8 = 2;

/// The key of a field.
const fn key(field: u8, wire_type: u8) -> u8 {
    field << 3 | wire_type
}

/// A text or a message as a field.
fn nested(field: u8, contents: &[u8]) -> Vec<u8> {
    [&[key(field, NESTED)][..], &varint(contents.len() as u64), contents].concat()
}

/// An integer in groups of seven bits, the lowest first. All groups but the last have the highest bit set.
fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 1 << 7 {
        bytes.push(value as u8 | 1 << 7);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// Writes scalars for TensorBoard: the loss, the figures of each step, and the memory in use.
///
/// `tensorboard --logdir FOLDER` shows them while the run goes on. A run that [continues](crate::Saves::resume) adds a file to
/// the folder, and TensorBoard hides the steps of earlier files that it repeats. A failure to write does not stop the training;
/// [`finish`](Observer::finish) returns it.
#[derive(Debug)]
pub struct TensorBoard {
    path: PathBuf,
    file: File,
    failure: Option<io::Error>,
}

impl TensorBoard {
    /// Creates an event file in this folder, and the folder if necessary. Use one folder per run.
    ///
    /// # Errors
    /// [`FileError::Io`].
    pub fn create(folder: impl AsRef<Path>) -> Result<Self, FileError> {
        let (folder, time) = (folder.as_ref(), since_1970());
        fs::create_dir_all(folder).map_err(|error| FileError::io(folder, &error))?;
        // TensorBoard reads every file whose name contains "tfevents", in the order of the names.
        let name = format!("events.out.tfevents.{:010}.highwater.{}", time.as_secs(), std::process::id());
        let mut number = 0;
        let (path, file) = loop {
            let path = folder.join(format!("{name}.{number}"));
            match File::create_new(&path) {
                Ok(file) => break (path, file),
                // An earlier run of this process and second.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                Err(error) => return Err(FileError::io(&path, &error)),
            }
        };
        let mut events = Self { path, file, failure: None };
        events.write(&Event { version: Some(VERSION), ..Event::default() });
        Ok(events)
    }

    /// Writes a whole record at once, so that a killed run leaves at most one incomplete record.
    fn write(&mut self, event: &Event) {
        let event = Event { wall_time: since_1970().as_secs_f64(), ..event.clone() };
        if self.failure.is_none() {
            self.failure = self.file.write_all(&record(&event.encode())).err();
        }
    }
}

impl Observer for TensorBoard {
    fn begin(&mut self, start: &RunStart) -> Result<()> {
        if start.completed > 0 {
            self.write(&Event { step: start.completed, starts_session: true, ..Event::default() });
        }
        Ok(())
    }

    fn step(&mut self, record: &StepRecord) -> Result<()> {
        let memory = [
            ("memory/bytes_in_use", Some(record.bytes_in_use as f64)),
            ("memory/peak_bytes_in_use", Some(record.peak_bytes_in_use as f64)),
        ];
        let values = [("loss", record.loss)].into_iter().chain(record.figures.iter()).chain(memory);
        let scalars = values.filter_map(|(name, value)| Some((name.to_owned(), value? as f32))).collect();
        self.write(&Event { step: record.step, scalars, ..Event::default() });
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        match self.failure.take() {
            Some(error) => Err(FileError::io(&self.path, &error).into()),
            None => Ok(()),
        }
    }
}

/// The time since 1970.
fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// An event with its length and checksums.
fn record(event: &[u8]) -> Vec<u8> {
    let length = (event.len() as u64).to_le_bytes();
    [&length[..], &checksum(&length).to_le_bytes(), event, &checksum(event).to_le_bytes()].concat()
}

/// The masked CRC-32C, bit by bit: events are short.
fn checksum(bytes: &[u8]) -> u32 {
    let shifted = |crc: u32, _| crc >> 1 ^ POLYNOMIAL & (crc & 1).wrapping_neg();
    let crc = bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), shifted));
    (!crc).rotate_right(15).wrapping_add(MASK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Figures;

    /// Reads the records of a file and checks their checksums.
    fn read(mut bytes: &[u8]) -> Vec<&[u8]> {
        let mut events = Vec::new();
        while !bytes.is_empty() {
            let (length, rest) = bytes.split_at(8);
            let (length_sum, rest) = rest.split_at(4);
            assert_eq!(length_sum, checksum(length).to_le_bytes());
            let (event, rest) = rest.split_at(u64::from_le_bytes(length.try_into().unwrap()) as usize);
            let (sum, rest) = rest.split_at(4);
            assert_eq!(sum, checksum(event).to_le_bytes());
            events.push(event);
            bytes = rest;
        }
        events
    }

    #[test]
    fn checksums_are_those_of_tensorflow() {
        // The first 12 bytes of an event file by TensorFlow: a length of 24, and its checksum.
        assert_eq!(checksum(&24u64.to_le_bytes()).to_le_bytes(), [0xa3, 0x7f, 0x4b, 0x22]);
    }

    #[test]
    fn the_file_holds_a_version_and_the_scalars_of_each_step() {
        let folder = tempfile::tempdir().unwrap();
        let mut events = TensorBoard::create(folder.path().join("new/run")).unwrap();
        let figures = Figures::from([("learning_rate", Some(0.25)), ("accuracy", None)]);
        let record = |step| StepRecord {
            step,
            loss: Some(0.5),
            figures: figures.clone(),
            bytes_in_use: 1024,
            peak_bytes_in_use: 2048,
            estimated: None,
        };
        (0..2).for_each(|step| events.step(&record(step)).unwrap());
        events.finish().unwrap();
        let file = fs::read(&events.path).unwrap();
        let read = read(&file);
        assert_eq!(read.len(), 3);
        // An event begins with the key and the value of its time: 9 bytes.
        assert!(read.iter().all(|event| event[0] == 0x09));
        assert_eq!(read[0][9..], *b"\x10\x00\x1a\x0dbrain.Event:2");
        let scalar = |tag: &str, value: f32| {
            nested(1, &[&nested(1, tag.as_bytes()), &[0x15][..], &value.to_le_bytes()].concat())
        };
        let scalars = [
            scalar("loss", 0.5),
            scalar("learning_rate", 0.25),
            scalar("memory/bytes_in_use", 1024.0),
            scalar("memory/peak_bytes_in_use", 2048.0),
        ];
        assert_eq!(read[2][9..], [&[0x10, 0x01][..], &nested(5, &scalars.concat())].concat());
    }

    #[test]
    fn a_resumed_run_starts_a_session_in_a_file_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let mut paths = Vec::new();
        for completed in [0, 300] {
            let mut events = TensorBoard::create(folder.path()).unwrap();
            events.begin(&RunStart { completed, total: None }).unwrap();
            events.finish().unwrap();
            paths.push(events.path);
        }
        assert!(paths.is_sorted() && paths[0] != paths[1]);
        let (first, second) = (fs::read(&paths[0]).unwrap(), fs::read(&paths[1]).unwrap());
        assert_eq!(read(&first).len(), 1, "a new run has no earlier steps");
        // Step 300, and the field 7, a session log, with the status 1.
        assert_eq!(read(&second)[1][9..], *b"\x10\xac\x02\x3a\x02\x08\x01");
    }

    #[test]
    fn integers_have_seven_bits_per_byte() {
        assert_eq!(varint(0), [0]);
        assert_eq!(varint(300), [0xac, 0x02]);
        assert_eq!(varint(u64::MAX).len(), 10);
    }
}
