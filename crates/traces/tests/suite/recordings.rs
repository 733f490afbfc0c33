//! Recordings of Highwater as traces: from memory, from files, and as text.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use bfc_core::{AddressOnlyMemory, Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, Request};
use highwater_traces::{ReadOptions, Trace, TraceLimits};
use highwater_tracking::{Recording, RecordingLimits, RunFacts, Tracker, module, write_trace};

/// A file in memory.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An `.hwm` file of three steps with two blocks each.
fn file() -> Vec<u8> {
    let pool: Arc<dyn Allocator> = Arc::new(BfcAllocator::new(
        "cpu:0",
        Arc::new(AddressOnlyMemory::new()),
        BfcConfig::new(Bytes::gib(1)),
    ));
    let (tracker, file) = (Tracker::new(), Shared::default());
    tracker.start_recording(file.clone(), &RunFacts::new("test")).unwrap();
    let _net = module("hwm net");
    for step in 0..3 {
        tracker.mark(&format!("step {step}\n"));
        let _layer = module("fc1");
        let run = tracker.begin("matmul");
        let _out = Allocation::new(&run.track(&pool), &Request::new(1000 + step)).unwrap();
        let _scratch = Allocation::new(&run.track(&pool), &Request::new(5000)).unwrap();
    }
    tracker.finish_recording(&[pool]).unwrap().unwrap();
    std::mem::take(&mut *file.0.lock().unwrap())
}

#[test]
fn a_file_is_a_trace_too() {
    let mut file = file();
    let trace = Trace::read(&file[..], &ReadOptions::default()).unwrap();
    assert_eq!((trace.events().len(), trace.labels()), (12, &["hwm_net.fc1.matmul".to_owned()][..]));
    let middle = file.len() / 2;
    file[middle] ^= 1;
    let error = Trace::read(&file[..], &ReadOptions::default()).unwrap_err();
    assert!(error.to_string().ends_with("the block is damaged: its checksum is wrong"), "{error}");
}

#[test]
fn the_text_of_a_recording_is_that_of_its_trace() {
    let recording = Recording::read(&file()[..], &RecordingLimits::default()).unwrap();
    let (trace, mut text) = (Trace::from_recording(&recording).unwrap(), Vec::new());
    write_trace(&recording, &["program: a\nb".to_owned()], &mut text).unwrap();
    assert_eq!(Trace::parse(&text[..], &TraceLimits::default()).unwrap().header("program"), Some("a b"));
    // Headers come before the mark of the first step.
    let mut lines = String::from_utf8(text).unwrap();
    assert!(
        lines.starts_with("# program: a b\n# events: 12\n# peak_live_bytes: 6002\n# mark: step 0\na 0 1000 ")
    );
    lines.drain(..lines.find("# mark").unwrap());
    let mut written = Vec::new();
    trace.write(&mut written).unwrap();
    assert_eq!(lines.as_bytes(), written);
}
