//! Tests how long host and device memory is used, and that everything is freed, on the emulated driver.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bfc_core::{
    Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, DeviceMemory, Driver, MIB, PinnedBuffer,
    PinnedMemory, Request, Stream,
};
use bfc_cuda::kernels::{CHECK, ElementType, Job, KernelId};
use bfc_cuda::{Compute, ComputeError, CudaDriver, StepId, StreamCompute, self_check};

use crate::controls::{live_objects, peak_pinned_bytes};
use crate::emulated_driver::on_emulated_driver;
use crate::open;

fn pinned(driver: &Arc<CudaDriver>, limit: Bytes) -> Arc<dyn Allocator> {
    let source = Arc::new(PinnedMemory::new(driver.clone()));
    Arc::new(BfcAllocator::new("pinned", source, BfcConfig::new(limit)))
}

fn upload(compute: &StreamCompute, bytes: &[u8], to: u64) {
    // SAFETY: the tests have so much memory there, which nothing else uses.
    unsafe { compute.upload(bytes, to) }.unwrap();
}

fn download(compute: &StreamCompute, from: u64, bytes: usize) -> Vec<u8> {
    let mut back = vec![0; bytes];
    // SAFETY: as above.
    unsafe { compute.download(from, &mut back) }.unwrap();
    back
}

/// Fills a few floats; the first call needs memory for code.
fn fill(compute: &StreamCompute, address: u64) -> Result<(), ComputeError> {
    let job = Job::over(4, &[4]).with_output(address);
    // SAFETY: the tests have memory there.
    unsafe { compute.launch(KernelId::new(&CHECK, "check_fill", ElementType::F32), 1, &job) }
}

#[test]
fn a_device_that_is_let_go_of_leaves_nothing_behind() {
    on_emulated_driver(&[], || {
        for _ in 0..2 {
            let (driver, compute) = open();
            let compute = compute.with_pinned(pinned(&driver, Bytes::mib(4)));
            assert_eq!(self_check(&driver, &compute), Ok(()));
            // Including graphs.
            let address = driver.allocate_device(4096).unwrap();
            for _ in 0..3 {
                assert!(compute.begin_step(StepId(1)));
                (0..5).for_each(|_| fill(&compute, address).unwrap());
                compute.end_step().unwrap();
            }
            assert!(compute.step_counts(StepId(1)).graphs > 0);
            // SAFETY: it was taken above, and nothing to come uses it.
            unsafe { driver.free_device(address) };
            assert!(live_objects() > 8);
            drop((driver, compute));
            assert_eq!(live_objects(), 0);
        }
    });
}

/// A copy from pinned memory ends when the device reaches it, here as late as possible.
#[test]
fn uploaded_bytes_may_be_changed_at_once() {
    on_emulated_driver(&[("EMULATED_LAZY", "1")], || {
        let (driver, staged) = open();
        let staged = staged.with_pinned(pinned(&driver, Bytes::mib(4)));
        let stream = Stream::new(driver.clone()).unwrap();
        let full = StreamCompute::new(driver.clone(), stream.clone()).unwrap();
        let full = full.with_pinned(pinned(&driver, Bytes::kib(4)));
        let bare = StreamCompute::new(driver.clone(), stream).unwrap();
        let address = driver.allocate_device(1 << 20).unwrap();
        let lent = pinned(&driver, Bytes::mib(4));
        for compute in [&staged, &full, &bare] {
            for bytes in [8, 4096, 100 << 10, 1 << 20] {
                let mut buffer = PinnedBuffer::new(&lent, bytes).unwrap();
                buffer.as_mut_slice().fill(1);
                upload(compute, buffer.as_slice(), address);
                buffer.as_mut_slice().fill(2);
                assert!(download(compute, address, bytes).iter().all(|&byte| byte == 1), "{bytes}");
            }
        }
        // SAFETY: it was taken above, and all work with it has ended.
        unsafe { driver.free_device(address) };
    });
}

#[test]
fn a_large_upload_keeps_little_memory_page_locked() {
    on_emulated_driver(&[], || {
        let (driver, compute) = open();
        let compute = compute.with_pinned(pinned(&driver, Bytes::gib(1)));
        let bytes = 201 * MIB as usize + 5;
        let values: Vec<u8> = (0..bytes).map(|n| (n % 251) as u8).collect();
        let address = driver.allocate_device(bytes as u64).unwrap();
        upload(&compute, &values, address);
        assert!(peak_pinned_bytes() <= 160 * MIB as usize, "{}", peak_pinned_bytes());
        assert!(download(&compute, address, bytes) == values);
    });
}

#[test]
fn idle_memory_of_the_pool_makes_room_for_code_and_libraries() {
    on_emulated_driver(&[("EMULATED_MEMORY", "1073741824"), ("EMULATED_CODE_BYTES", "400000000")], || {
        let driver = CudaDriver::new(0).unwrap();
        let source = Arc::new(DeviceMemory::new(driver.clone()));
        let pool: Arc<dyn Allocator> =
            Arc::new(BfcAllocator::new("device", source, BfcConfig::new(Bytes::mib(900))));
        let asked = Arc::new(AtomicUsize::new(0));
        let room = {
            let (pool, asked) = (Arc::clone(&pool), Arc::clone(&asked));
            move || {
                asked.fetch_add(1, Ordering::Relaxed);
                pool.trim(Bytes(0)) > 0
            }
        };
        let stream = Stream::new(driver.clone()).unwrap();
        let compute = StreamCompute::new(driver.clone(), stream).unwrap().with_memory_release(room);
        let address = driver.allocate_device(4096).unwrap();
        // Memory in use cannot be released, and the error names the call.
        let used = Allocation::new(&pool, &Request::new(800 * MIB)).unwrap();
        let error = fill(&compute, address).unwrap_err();
        assert!(matches!(error, ComputeError::OutOfMemory { call: "cuModuleLoadData" }), "{error}");
        assert!(!compute.supports_products());
        assert_eq!(asked.load(Ordering::Relaxed), 2);
        drop(used);
        assert!(pool.stats().bytes_reserved >= 800 * MIB);
        // Also within a step, whether its commands are held or not.
        assert!(compute.begin_step(StepId(1)));
        fill(&compute, address).unwrap();
        compute.end_step().unwrap();
        assert_eq!(pool.stats().bytes_reserved, 0);
        drop(Allocation::new(&pool, &Request::new(800 * MIB)).unwrap());
        assert!((0..3).any(|_| compute.supports_products()));
        assert_eq!(pool.stats().bytes_reserved, 0);
        // SAFETY: it was taken above, and all work with it has ended.
        unsafe { driver.free_device(address) };
    });
}
