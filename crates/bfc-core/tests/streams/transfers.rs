//! Asynchronous copies.

use std::sync::Arc;

use bfc_core::sim::{DeviceCall, Fault, FaultTime, MemoryUse};
use bfc_core::{
    Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, MIB, MemoryKind, PinnedBuffer, PinnedMemory,
    Request, SourceError, Span, TransferError, Transfers,
};

use super::Bench;

/// A pool of page-locked memory on the bench's device.
fn pinned(bench: &Bench) -> Arc<dyn Allocator> {
    let memory = Arc::new(PinnedMemory::new(bench.device.clone()));
    Arc::new(BfcAllocator::new("pinned", memory, BfcConfig::new(Bytes::mib(8))))
}

fn buffer(pinned: &Arc<dyn Allocator>, bytes: &[u8]) -> PinnedBuffer {
    let mut buffer = PinnedBuffer::new(pinned, bytes.len()).unwrap();
    buffer.as_mut_slice().copy_from_slice(bytes);
    buffer
}

#[test]
fn copies_carry_the_bytes_there_and_back_in_order() {
    let bench = Bench::new();
    let (pinned, transfers) = (pinned(&bench), Transfers::new(bench.others[0].clone()));
    let tensor = bench.take(1000);
    let first = transfers.to_device(buffer(&pinned, b"first"), &tensor, 100).unwrap();
    let second = transfers.to_device(buffer(&pinned, b"SEC"), &tensor, 102).unwrap();
    let back = transfers.to_host(&tensor, 100, PinnedBuffer::new(&pinned, 5).unwrap()).unwrap();
    assert_eq!(back.is_complete(), Ok(false));
    assert_eq!(back.wait().unwrap().as_slice(), b"fiSEC");
    assert_eq!(first.is_complete(), Ok(true));
    assert_eq!(second.wait().unwrap().as_slice(), b"SEC");
    let at = Span { address: tensor.block().address + 100, bytes: 5 };
    assert_eq!(bench.device.read(at), b"fiSEC");
    assert_eq!(bench.device.violations(), []);
}

#[test]
fn work_comes_after_a_copy_that_it_was_told_of() {
    let bench = Bench::new();
    let (pinned, transfers) = (pinned(&bench), Transfers::new(bench.others[0].clone()));
    let tensor = bench.take(1000);
    let reads = || {
        let uses = [MemoryUse { owner: None, ..MemoryUse::of(&tensor.block()) }];
        bench.device.launch(bench.compute.handle(), &uses).unwrap();
        bench.device.violations().len()
    };
    let upload = transfers.to_device(buffer(&pinned, &[7; 1000]), &tensor, 0).unwrap();
    upload.come_before(&bench.compute).unwrap();
    assert_eq!(reads(), 0);
    // The device detects work that the pool was not told about.
    let _upload = transfers.to_device(buffer(&pinned, &[7; 1000]), &tensor, 0).unwrap();
    assert_eq!(reads(), 1);
}

#[test]
fn a_dropped_transfer_keeps_its_buffers_until_it_ends() {
    let bench = Bench::new();
    let (pinned, transfers) = (pinned(&bench), Transfers::new(bench.others[0].clone()));
    let tensor = bench.take(MIB);
    let at = Span { address: tensor.block().address, bytes: 4 };
    drop(transfers.to_device(buffer(&pinned, b"kept"), &tensor, 0).unwrap());
    drop(tensor);
    transfers.poll();
    assert_eq!((pinned.stats().bytes_in_use, bench.pending()), (256, 1));
    bench.device.finish(bench.others[0].handle());
    assert_eq!(bench.device.read(at), b"kept");
    transfers.poll();
    bench.memory.poll();
    assert_eq!((pinned.stats().bytes_in_use, bench.pending()), (0, 0));
    assert_eq!(bench.device.violations(), []);
}

#[test]
fn buffers_of_forgotten_transfers_are_freed_after_the_copies() {
    let bench = Bench::new();
    let (pinned, transfers) = (pinned(&bench), Transfers::new(bench.others[0].clone()));
    let tensor = bench.take(MIB);
    let upload = transfers.to_device(buffer(&pinned, b"data"), &tensor, 0).unwrap();
    drop(transfers);
    assert_eq!(pinned.stats().bytes_in_use, 256);
    drop(upload);
    assert_eq!(pinned.stats().bytes_in_use, 0);
    assert_eq!(bench.device.read(Span { address: tensor.block().address, bytes: 4 }), b"data");
    drop(pinned);
    assert_eq!(bench.device.violations(), []);
}

#[test]
fn transfers_forgotten_in_any_order_free_their_buffers() {
    let bench = Bench::new();
    let (pinned, transfers) = (pinned(&bench), Transfers::new(bench.others[0].clone()));
    let tensor = bench.take(MIB);
    let [first, second] =
        [b"one ", b"two "].map(|bytes| transfers.to_device(buffer(&pinned, bytes), &tensor, 0).unwrap());
    drop(transfers);
    drop(second);
    drop(first);
    assert_eq!(pinned.stats().bytes_in_use, 0);
    assert_eq!(bench.device.violations(), []);
}

#[test]
fn transfers_that_cannot_be_are_refused_and_copy_nothing() {
    let bench = Bench::new();
    let (pinned, transfers) = (pinned(&bench), Transfers::new(bench.others[0].clone()));
    let tensor = bench.take(1000);
    let wrong = PinnedBuffer::new(&bench.allocator, 1).unwrap_err();
    assert_eq!(wrong.to_string(), "sim_0_bfc is device memory, but the copy needs pinned host memory");
    let host = Allocation::new(&pinned, &Request::new(16)).unwrap();
    let error = transfers.to_device(buffer(&pinned, b"x"), &host, 0).unwrap_err();
    assert!(matches!(error, TransferError::WrongKind { needed: MemoryKind::Device, .. }));
    for at in [1021, u64::MAX] {
        let error = transfers.to_device(buffer(&pinned, b"data"), &tensor, at).unwrap_err();
        assert_eq!(error, TransferError::OutOfRange { at, bytes: 4, block: 1024 });
    }
    bench.device.inject(Fault::new(DeviceCall::Copy, FaultTime::Call(1)));
    let error = transfers.to_device(buffer(&pinned, b"data"), &tensor, 0).unwrap_err();
    assert!(matches!(error, TransferError::Source(SourceError::Driver { call: "copy", .. })));
    // The copy has started without an event for its end: the pool waits for it.
    bench.device.inject(Fault::new(DeviceCall::Record, FaultTime::Call(2)));
    assert!(transfers.to_device(buffer(&pinned, b"done"), &tensor, 0).is_err());
    assert_eq!(bench.device.read(Span { address: tensor.block().address, bytes: 4 }), b"done");
    drop(host);
    assert_eq!(pinned.stats().bytes_in_use, 0);
    let empty = transfers.to_device(PinnedBuffer::new(&pinned, 0).unwrap(), &tensor, 1024).unwrap();
    assert!(empty.wait().unwrap().as_slice().is_empty());
    assert_eq!(bench.device.violations(), []);
}
