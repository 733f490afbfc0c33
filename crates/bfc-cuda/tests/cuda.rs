//! What holds on every CUDA device, on a machine without one, and with a driver that misbehaves.
//!
//! The tests named `device_…` use cuda:0, and say aloud when they are skipped because there is none. On Linux they run a
//! second time, in a process of their own, against the driver in `fake_driver/libcuda.rs`: there is no machine on which
//! they prove nothing.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests may")]

use std::fmt::Display;
use std::io::Write;
use std::sync::Arc;

use bfc_core::{
    Allocation, Allocator, AllocatorAttributes, BfcAllocator, BfcConfig, Bytes, DeviceId, DeviceKind,
    DeviceMemory, Driver, Environment, Event, FreeFaults, GrowthRule, MIB, MemoryCopy, MemoryKind,
    PinnedBuffer, PinnedMemory, Registry, Request, SourceError, Span, Stream, StreamAllocator, SubAllocator,
    Transfers, VirtualMemory,
};
use bfc_cuda::kernels::{ElementType, Family, Job, Kernel, Operand, Output};
use bfc_cuda::{
    Compute, ComputeError, CudaDriver, CudaUnavailable, Factor, Product, StepId, StreamCompute, probe,
    register,
};

/// The driver of cuda:0, or leaves the test with a line that says why.
macro_rules! cuda_or_skip {
    () => {
        match CudaDriver::new(0) {
            Ok(driver) => driver,
            Err(reason) => return say_skipped(&reason),
        }
    };
}

// After the macro, which it uses too.
#[path = "cuda/schedules.rs"]
mod schedules;

/// Says that the test of this thread is skipped, and why.
fn say_skipped(reason: &dyn Display) {
    let thread = std::thread::current();
    // Straight to the stream: what `println!` says in a test that passes is not shown.
    let _ = writeln!(std::io::stderr(), "skipped {}: {reason}", thread.name().unwrap_or("a test"));
}

/// Whether this process runs on the fake driver.
fn is_fake() -> bool {
    #[cfg(target_os = "linux")]
    return fake::is_loaded();
    #[cfg(not(target_os = "linux"))]
    false
}

fn free(memory: &impl SubAllocator, region: Span) {
    // SAFETY: the tests give back what they took, once, and use it no more.
    unsafe { memory.free(region) };
}

#[test]
fn probing_answers_on_every_machine() {
    match probe() {
        Ok(devices) => {
            assert!(!devices.is_empty());
            for (ordinal, device) in devices.iter().enumerate() {
                assert_eq!(device.ordinal as usize, ordinal);
                assert!(!device.name.is_empty() && device.total_bytes > 0);
                assert!(device.compute_capability.major > 0 && device.driver_version.major > 0);
            }
        }
        Err(reason) => {
            assert!(!reason.to_string().is_empty());
            assert_eq!(CudaDriver::new(0).err(), Some(reason), "opening a device gives the same reason");
        }
    }
}

#[test]
fn device_numbers_beyond_the_last_are_an_error_that_names_the_count() {
    let _driver = cuda_or_skip!();
    let count = probe().unwrap().len() as u32;
    let error = CudaDriver::new(count).err().unwrap();
    assert!(
        matches!(error, CudaUnavailable::NoSuchDevice { ordinal, count: c, .. } if ordinal == count && c == count),
        "{error}"
    );
}

#[test]
fn device_memory_is_taken_aligned_and_given_back() {
    let driver = cuda_or_skip!();
    let memory = DeviceMemory::new(driver.clone());
    assert_eq!(memory.memory_kind(), MemoryKind::Device);
    let first = memory.allocate(256, 2 * MIB).unwrap();
    let second = memory.allocate(256, 1).unwrap();
    assert_ne!(first.address, second.address);
    free(&memory, first);
    free(&memory, second);
    assert_eq!(driver.free_faults(), FreeFaults::default());
}

#[test]
fn device_memory_that_is_not_there_is_an_error_that_harms_nothing() {
    let driver = cuda_or_skip!();
    let memory = DeviceMemory::new(driver.clone());
    let bytes = driver.memory_info().unwrap().total + MIB;
    assert_eq!(memory.allocate(256, bytes), Err(SourceError::Exhausted { bytes }));
    let region = memory.allocate(256, MIB).unwrap();
    free(&memory, region);
    assert_eq!(driver.free_faults(), FreeFaults::default());
}

#[test]
fn device_figures_agree_between_the_probe_and_the_driver() {
    let driver = cuda_or_skip!();
    let device = probe().unwrap().remove(0);
    let info = driver.memory_info().unwrap();
    assert_eq!(driver.name(), device.name);
    assert!(info.free <= info.total && device.free_bytes().unwrap() <= device.total_bytes);
}

#[test]
fn device_calls_work_on_every_thread() {
    let driver = cuda_or_skip!();
    let memory = Arc::new(DeviceMemory::new(driver.clone()));
    let taker = Arc::clone(&memory);
    let region = std::thread::spawn(move || taker.allocate(256, MIB).unwrap()).join().unwrap();
    std::thread::spawn(move || free(&*memory, region)).join().unwrap();
    assert_eq!(driver.free_faults(), FreeFaults::default());
}

#[test]
fn device_pinned_memory_is_zeroed_and_can_be_written_and_read_by_the_host() {
    let driver = cuda_or_skip!();
    let memory = PinnedMemory::new(driver.clone());
    assert_eq!(memory.memory_kind(), MemoryKind::PinnedHost);
    let region = memory.allocate(256, 4096).unwrap();
    let pointer: *mut u64 = std::ptr::with_exposed_provenance_mut(region.address as usize);
    // SAFETY: the region is 4096 bytes of aligned host memory that this test alone holds.
    let words = unsafe { std::slice::from_raw_parts_mut(pointer, 512) };
    assert!(words.iter().all(|&word| word == 0));
    words.iter_mut().zip(1..).for_each(|(word, value)| *word = value);
    assert_eq!(words.iter().sum::<u64>(), 512 * 513 / 2);
    free(&memory, region);
    assert_eq!(driver.free_faults(), FreeFaults::default());
}

#[test]
fn device_pools_serve_blocks_refuse_what_is_over_their_limit_and_give_everything_back() {
    let driver = cuda_or_skip!();
    let config = BfcConfig::new(Bytes::mib(16));
    let memory = Arc::new(DeviceMemory::new(driver.clone()));
    let pool: Arc<dyn Allocator> = Arc::new(BfcAllocator::new("cuda_0_bfc", memory, config));
    assert_eq!(pool.memory_kind(), MemoryKind::Device);
    let small = Allocation::new(&pool, &Request::new(1000)).unwrap();
    let large = Allocation::new(&pool, &Request::new(4 * MIB)).unwrap();
    assert_ne!(small.block().address, large.block().address);
    let error = Allocation::new(&pool, &Request::new(17 * MIB)).unwrap_err();
    assert_eq!(error.out_of_memory().map(|report| report.requested), Some(17 * MIB));
    assert_eq!(pool.stats().bytes_in_use, 1024 + 4 * MIB);
    drop((small, large));
    assert_eq!(pool.stats().bytes_in_use, 0);
    drop(pool);
    assert_eq!(driver.free_faults(), FreeFaults::default());
}

#[test]
fn device_mapped_memory_grows_in_place_and_goes_back() {
    let driver = cuda_or_skip!();
    let memory = match VirtualMemory::new(driver.clone()) {
        Ok(memory) => memory,
        Err(reason @ SourceError::Unsupported { .. }) => return say_skipped(&reason),
        Err(error) => panic!("{error}"),
    };
    let rule = GrowthRule::AsRequested { granule: Bytes::mib(2) };
    let config = BfcConfig::new(Bytes::mib(256)).with_growth(rule);
    let pool = Arc::new(BfcAllocator::new("cuda_0_bfc", Arc::new(memory), config));
    let allocator: Arc<dyn Allocator> = pool.clone();
    let mut blocks: Vec<Allocation> =
        (0..8).map(|_| Allocation::new(&allocator, &Request::new(8 * MIB)).unwrap()).collect();
    assert_eq!(pool.regions().len(), 1, "growths follow each other");
    blocks.truncate(2);
    assert_eq!(pool.trim(Bytes(0)), 48 * MIB);
    pool.check_invariants().unwrap();
    drop((blocks, allocator));
    drop(pool);
    assert_eq!(driver.free_faults(), FreeFaults::default());
}

/// A device's pool for work on its compute stream, and one of pinned memory.
fn pools(driver: &Arc<CudaDriver>) -> (Arc<Stream>, Arc<dyn Allocator>, Arc<dyn Allocator>) {
    let compute = Stream::new(driver.clone()).unwrap();
    let config = BfcConfig::new(Bytes::mib(64));
    let pool = BfcAllocator::new("cuda_0_bfc", Arc::new(DeviceMemory::new(driver.clone())), config.clone());
    let pinned = BfcAllocator::new("pinned", Arc::new(PinnedMemory::new(driver.clone())), config);
    let pool = StreamAllocator::new(Arc::new(pool), compute.clone());
    (compute, Arc::new(pool), Arc::new(pinned))
}

#[test]
fn device_copies_on_another_stream_carry_the_bytes_there_and_back() {
    let driver = cuda_or_skip!();
    let (compute, pool, pinned) = pools(&driver);
    let transfers = Transfers::new(Stream::new(driver.clone()).unwrap());
    for round in 0..20_u8 {
        let tensor = Allocation::new(&pool, &Request::new(1 << 16)).unwrap();
        let mut buffer = PinnedBuffer::new(&pinned, 1 << 16).unwrap();
        buffer.as_mut_slice().fill(round);
        let upload = transfers.to_device(buffer, &tensor, 0).unwrap();
        upload.come_before(&compute).unwrap();
        drop(upload);
        let back = transfers.to_host(&tensor, 16, PinnedBuffer::new(&pinned, 1000).unwrap()).unwrap();
        drop(tensor);
        assert!(back.wait().unwrap().as_slice().iter().all(|&byte| byte == round));
    }
    drop((transfers, pool, pinned, compute));
    assert_eq!(driver.free_faults(), FreeFaults::default());
}

#[test]
fn device_events_order_streams_and_pass() {
    let driver = cuda_or_skip!();
    let [first, second] = [(); 2].map(|()| Stream::new(driver.clone()).unwrap());
    let event = Event::new(&first).unwrap();
    second.wait(&event).unwrap();
    event.record(&second).unwrap();
    event.synchronise().unwrap();
    assert_eq!(event.is_complete(), Ok(true));
    first.synchronise().unwrap();
    assert_eq!(driver.synchronise(), Ok(()));
    drop((event, first, second));
    assert_eq!(driver.free_faults(), FreeFaults::default());
}

/// Several devices, each with a pool and streams of its own. With one device there is nothing to mix up.
#[test]
fn device_pools_of_several_devices_are_apart() {
    let first = cuda_or_skip!();
    let second = match CudaDriver::new(1) {
        Ok(second) => second,
        Err(reason) => return say_skipped(&reason),
    };
    for driver in [&first, &second] {
        let (_, pool, pinned) = pools(driver);
        let transfers = Transfers::new(Stream::new(driver.clone()).unwrap());
        let tensor = Allocation::new(&pool, &Request::new(MIB)).unwrap();
        let buffer = PinnedBuffer::new(&pinned, 4096).unwrap();
        transfers.to_device(buffer, &tensor, 0).unwrap().wait().unwrap();
    }
    assert_eq!(first.free_faults(), FreeFaults::default());
    assert_eq!(second.free_faults(), FreeFaults::default());
}

#[test]
fn device_pools_are_registered_with_a_reserve_left_and_as_the_environment_says() {
    let _driver = cuda_or_skip!();
    let environment = Environment::from_vars([("HIGHWATER_POOL_LIMIT_CUDA_1", "100MiB")]).unwrap();
    for device in probe().unwrap().iter().take(2) {
        let registry = Registry::new();
        let compute = register(&registry, device.ordinal, environment.settings()).unwrap();
        let id = DeviceId::new(DeviceKind::Cuda, device.ordinal);
        let allocator = |attributes| registry.allocator(id, attributes, None).unwrap().allocator;
        let memory = allocator(AllocatorAttributes::default());
        let limit = memory.stats().bytes_limit.unwrap();
        match device.ordinal {
            1 => assert_eq!(limit, 100 * MIB),
            _ => assert!(limit < device.total_bytes),
        }
        let block = Allocation::new(&memory, &Request::new(MIB)).unwrap();
        let pinned = AllocatorAttributes::default().with_on_host(true).with_gpu_compatible(true);
        let buffer = PinnedBuffer::new(&allocator(pinned), 100).unwrap();
        let transfers = Transfers::new(compute);
        transfers.to_device(buffer, &block, 0).unwrap().wait().unwrap();
        assert!(register(&registry, device.ordinal, environment.settings()).is_err(), "once is enough");
    }
}

/// Real CUDA would have to be broken for this.
#[cfg(target_os = "linux")]
#[test]
fn a_lost_device_says_so_once_and_is_not_called_again() {
    if !fake::is_loaded() {
        return say_skipped(&"needs the fake driver: another test runs it there");
    }
    if std::env::var_os("FAKE_CUDA_RECORD").is_none() {
        // Of the two runs on the fake driver, the other has the fault.
        return;
    }
    let driver = CudaDriver::new(0).unwrap();
    let (_compute, pool, _pinned) = pools(&driver);
    let copies = Stream::new(driver.clone()).unwrap();
    let blocks: Vec<Allocation> =
        (0..4).map(|_| Allocation::new(&pool, &Request::new(MIB)).unwrap()).collect();
    assert!(pool.record_stream(&blocks[0].block(), &copies).is_err());
    let error = driver.poison().unwrap();
    assert_eq!(
        error.to_string(),
        "Fake Device is lost to this process: cuEventRecord failed with CUDA_ERROR_ILLEGAL_ADDRESS"
    );
    drop(blocks);
    assert_eq!(driver.allocate_device(1), Err(error.clone()));
    assert!(pool.allocate(&Request::new(1)).is_err());
    drop((pool, copies));
    assert_eq!(driver.free_faults(), FreeFaults { count: 1, last: Some(error) });
}

/// Real CUDA is not asked for wrong frees: what it does then is its own affair.
#[cfg(target_os = "linux")]
#[test]
fn a_refused_free_is_recorded_and_not_raised() {
    if !fake::is_loaded() {
        return say_skipped(&"needs the fake driver: another test runs it there");
    }
    let driver = CudaDriver::new(0).unwrap();
    // SAFETY: the fake driver looks the address up, and has nothing there.
    unsafe { driver.free_device(64) };
    let faults = driver.free_faults();
    assert_eq!(faults.count, 1);
    let reason = "CUDA_ERROR_INVALID_VALUE".to_owned();
    assert_eq!(faults.last, Some(SourceError::Driver { call: "cuMemFree", reason }));
}

#[test]
fn products_come_from_the_library_for_them_where_it_is_installed() {
    let driver = cuda_or_skip!();
    let stream = Stream::new(driver.clone()).unwrap();
    let compute = match StreamCompute::new(driver.clone(), stream) {
        Ok(compute) => compute,
        Err(reason) => return say_skipped(&reason),
    };
    let version = match compute.products() {
        Ok(library) => library.version(),
        Err(reason) => return say_skipped(&reason),
    };
    let _ = writeln!(std::io::stderr(), "matrix products: cuBLAS {version}");
    let address = driver.allocate_device(1 << 20).unwrap();
    // Two rows of three, and the transpose of that: the products of all rows with one another.
    let (matrix, mut product) = ([1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0].map(f32::to_ne_bytes), [0_u8; 16]);
    let job = Product {
        element: ElementType::F32,
        rows: 2,
        columns: 2,
        depth: 3,
        batch: 1,
        lhs: Factor::new(address, [2, 3], [3, 1], 0).unwrap(),
        rhs: Factor::new(address, [3, 2], [1, 3], 0).unwrap(),
        out: address + 4096,
        accumulate: false,
        workspace: (address + 65_536, 65_536),
    };
    // SAFETY: the matrix lies within the memory that was just taken.
    unsafe { compute.upload(matrix.as_flattened(), address) }.unwrap();
    // SAFETY: so do the factors, the product and the workspace.
    assert!(unsafe { compute.multiply(&job) }.unwrap());
    // SAFETY: and the bytes that are read.
    unsafe { compute.download(job.out, &mut product) }.unwrap();
    // SAFETY: it was taken above, and all work with it has ended.
    unsafe { driver.free_device(address) };
    let product: Vec<f32> =
        product.as_chunks::<4>().0.iter().map(|&bytes| f32::from_ne_bytes(bytes)).collect();
    assert_eq!(product, [14.0, 32.0, 32.0, 77.0]);
}

/// Matrices of two by two on the device, and kernels that compute with them.
struct Squares {
    driver: Arc<CudaDriver>,
    stream: Arc<Stream>,
    compute: StreamCompute,
    address: u64,
}

impl Squares {
    fn new(driver: Arc<CudaDriver>) -> Result<Self, ComputeError> {
        let stream = Stream::new(driver.clone()).unwrap();
        let compute = StreamCompute::new(driver.clone(), stream.clone())?;
        let address = driver.allocate_device(1 << 20).unwrap();
        let squares = Self { driver, stream, compute, address };
        squares.fill(0, 0.0).map(|()| squares)
    }

    fn at(&self, place: u64) -> u64 {
        self.address + 4096 * place
    }

    fn launch(&self, name: &'static str, job: Job) -> Result<(), ComputeError> {
        let (family, count) = (Family::Elementwise, Job { count: 4, ..job });
        // SAFETY: operands and outputs are pages of the memory that was taken.
        unsafe { self.compute.launch(Kernel::new(family, name, ElementType::F32), 1, &count) }
    }

    fn fill(&self, place: u64, value: f64) -> Result<(), ComputeError> {
        let constants = [value, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        self.launch(
            "fill",
            Job {
                outputs: [Output::new(self.at(place)), Output::default(), Output::default()],
                constants,
                ..Job::default()
            },
        )
    }

    /// 4 adds a number, 5 multiplies by it.
    fn arithmetic(&self, function: u64, from: u64, value: f64, to: u64) {
        let constants = [value, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        let mut job = Job {
            function,
            outputs: [Output::new(self.at(to)), Output::default(), Output::default()],
            constants,
            ..Job::default()
        };
        job.inputs[0] = Operand::contiguous(self.at(from));
        self.launch("arithmetic", job).unwrap();
    }

    /// The product of a matrix with itself, by the library if there is one.
    fn square(&self, from: u64, to: u64) {
        let factor = Factor::new(self.at(from), [2, 2], [2, 1], 0).unwrap();
        let product = Product {
            element: ElementType::F32,
            rows: 2,
            columns: 2,
            depth: 2,
            batch: 1,
            lhs: factor,
            rhs: factor,
            out: self.at(to),
            accumulate: false,
            workspace: (self.at(16), 65_536),
        };
        // SAFETY: as in `launch`.
        let known = unsafe { self.compute.multiply(&product) }.unwrap();
        if !known {
            // All elements are equal.
            self.arithmetic(4, from, 0.0, to);
            self.arithmetic(5, to, 2.0, to);
        }
    }

    fn read(&self, place: u64) -> [f32; 4] {
        let mut bytes = [0; 16];
        // SAFETY: as in `launch`.
        unsafe { self.compute.download(self.at(place), &mut bytes) }.unwrap();
        std::array::from_fn(|n| f32::from_ne_bytes(bytes.as_chunks::<4>().0[n]))
    }

    /// ((value + 1) / 2, squared as a matrix) + 3, and the half beside it.
    fn step(&self, value: f64) {
        self.fill(0, value).unwrap();
        self.arithmetic(4, 0, 1.0, 1);
        self.arithmetic(5, 1, 0.5, 2);
        self.square(2, 3);
        self.arithmetic(4, 3, 3.0, 4);
    }
}

impl Drop for Squares {
    fn drop(&mut self) {
        // SAFETY: it was taken for this, and the driver waits for all work with it.
        unsafe { self.driver.free_device(self.address) };
    }
}

/// The device's matrices, or leaves the test with a line that says why.
macro_rules! squares_or_skip {
    () => {
        match Squares::new(cuda_or_skip!()) {
            Ok(squares) => squares,
            Err(reason) => return say_skipped(&reason),
        }
    };
}

#[test]
fn device_steps_compute_the_same_as_graphs_and_one_by_one() {
    let squares = squares_or_skip!();
    let step = StepId(1);
    for run in 0..5 {
        let value = f64::from(2 * run + 1);
        assert!(squares.compute.begin_step(step));
        squares.step(value);
        squares.compute.end_step().unwrap();
        let half = (run + 1) as f32;
        let is_known = squares.compute.has_products();
        let square = if is_known { 2.0 * half * half } else { 2.0 * half };
        assert_eq!((squares.read(2), squares.read(4)), ([half; 4], [square + 3.0; 4]), "run {run}");
    }
    let counts = squares.compute.step_counts(step);
    if std::env::var_os("FAKE_CUDA_NO_GRAPHS").is_some() {
        let reason = "cuGraphCreate: CUDA_ERROR_NOT_SUPPORTED";
        assert_eq!((counts.graphs, counts.refused.as_deref()), (0, Some(reason)));
        return;
    }
    assert_eq!((counts.runs, counts.graphs, counts.prepared, counts.refused), (5, 4, 1, None));
    // The first kernel of each run fills with another number.
    assert_eq!(counts.replaced, 3);
    squares.compute.forget_step(step);
    assert_eq!(squares.driver.free_faults(), FreeFaults::default());
}

#[test]
fn device_steps_are_done_before_others_wait_for_the_stream_or_take_memory_away() {
    let squares = squares_or_skip!();
    let others = Stream::new(squares.driver.clone()).unwrap();
    let pinned = PinnedMemory::new(squares.driver.clone());
    let page = pinned.allocate(256, 4096).unwrap();
    let step = StepId(2);
    for run in 0..4 {
        assert!(squares.compute.begin_step(step));
        squares.step(f64::from(2 * run + 1));
        // Nothing of it is given to the device, but what another stream does after it finds it done.
        others.wait(&Event::new(&squares.stream).unwrap()).unwrap();
        let copy = MemoryCopy::ToHost { from: squares.at(2), to: page.address, bytes: 16 };
        // SAFETY: both places stay as they are until the copy has ended, below.
        unsafe { others.copy(copy) }.unwrap();
        others.synchronise().unwrap();
        // SAFETY: the page is host memory, and the copy has ended.
        let half = unsafe { (page.address as *const f32).read() };
        assert_eq!(half, (run + 1) as f32);
        // Memory that held back work names is given back: the work comes first.
        let more = squares.driver.allocate_device(4096).unwrap();
        let mut job =
            Job { outputs: [Output::new(more), Output::default(), Output::default()], ..Job::default() };
        job.constants[0] = 1.0;
        squares.launch("fill", job).unwrap();
        // SAFETY: it was taken above, and nothing to come uses it.
        unsafe { squares.driver.free_device(more) };
        squares.compute.end_step().unwrap();
    }
    free(&pinned, page);
    assert_eq!(squares.driver.free_faults(), FreeFaults::default());
}

#[test]
fn device_uploads_are_staged_in_page_locked_memory_which_is_used_again() {
    let driver = cuda_or_skip!();
    let stream = Stream::new(driver.clone()).unwrap();
    let source = Arc::new(PinnedMemory::new(driver.clone()));
    let pinned: Arc<dyn Allocator> =
        Arc::new(BfcAllocator::new("pinned", source, BfcConfig::new(Bytes::kib(512))));
    let compute = match StreamCompute::new(driver.clone(), stream) {
        Ok(compute) => compute.with_pinned(pinned.clone()),
        Err(reason) => return say_skipped(&reason),
    };
    let address = driver.allocate_device(1 << 20).unwrap();
    // More in all than the pool has.
    for (turn, bytes) in [70 << 10, 100, 400 << 10, 200 << 10].into_iter().enumerate() {
        let values: Vec<u8> = (0..bytes).map(|n| (n * 31 + turn) as u8).collect();
        // SAFETY: the memory was taken above.
        unsafe { compute.upload(&values, address) }.unwrap();
        let mut back = vec![0; bytes];
        // SAFETY: as above.
        unsafe { compute.download(address, &mut back) }.unwrap();
        assert!(back == values, "upload {turn}");
    }
    assert_eq!(pinned.stats().num_allocs, 4);
    // What does not fit into page-locked memory goes without.
    let values = vec![7; 600 << 10];
    let mut back = vec![0; 600 << 10];
    // SAFETY: as above.
    unsafe { compute.upload(&values, address) }.unwrap();
    // SAFETY: as above.
    unsafe { compute.download(address, &mut back) }.unwrap();
    assert!(back == values);
    drop(compute);
    assert_eq!(pinned.stats().bytes_in_use, 0);
    // SAFETY: all work with it has ended.
    unsafe { driver.free_device(address) };
}

/// Runs tests of this file in a process that finds the fake driver where the system looks for libcuda.
#[cfg(target_os = "linux")]
mod fake {
    use std::io::ErrorKind;
    use std::path::{Path, PathBuf};
    use std::process::Command;

    use super::{CudaUnavailable, probe, say_skipped};

    /// Set in the processes that run on the fake driver, to the reason that probing should give, if any.
    const MARK: &str = "FAKE_CUDA_EXPECTED";

    pub(super) fn is_loaded() -> bool {
        std::env::var_os(MARK).is_some()
    }

    /// Builds the fake driver into a folder of its own, which is the library path to run with. Where this program was brought
    /// without its source, or without a compiler, it says so.
    fn build(name: &str, options: &[&str]) -> Option<PathBuf> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake_driver/libcuda.rs");
        if !source.exists() {
            say_skipped(&"the source of the fake driver is not here");
            return None;
        }
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let output = Command::new(rustc)
            .args(["--edition", "2024", "--crate-type", "cdylib", "--check-cfg", "cfg(incomplete)"])
            .args(options)
            .arg("-o")
            .arg(folder.join("libcuda.so"))
            .arg(source)
            .output();
        if output.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            say_skipped(&"the fake driver needs rustc");
            return None;
        }
        let output = output.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        // The compiler and the library for products are in the same file.
        for name in ["libnvrtc.so.13", "libcublas.so.13"] {
            let _ = std::fs::remove_file(folder.join(name));
            std::os::unix::fs::symlink("libcuda.so", folder.join(name)).unwrap();
        }
        Some(folder)
    }

    /// Runs the tests that `filter` names in a process with this library path and environment; gives what they print.
    fn run(library_path: &Path, filter: &str, environment: &[(&str, &str)]) -> String {
        let output = Command::new(std::env::current_exe().unwrap())
            .args([filter, "--nocapture", "--test-threads=1"])
            .env(MARK, "")
            .env("LD_LIBRARY_PATH", library_path)
            // Code for a device that is none is kept for nobody.
            .env("XDG_CACHE_HOME", library_path)
            .env_remove("CUDA_VISIBLE_DEVICES")
            .envs(environment.iter().copied())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
        text.into_owned()
    }

    #[test]
    fn all_tests_of_devices_pass_on_the_fake_driver() {
        if is_loaded() {
            return;
        }
        let Some(library) = build("fake_driver", &[]) else { return };
        let text = run(&library, "device_", &[]);
        assert!(!text.contains(" 0 passed") && !text.contains("skipped"), "{text}");
        run(&library, "probing_answers", &[]);
        run(&library, "products_come", &[]);
        run(&library, "device_steps", &[("FAKE_CUDA_NO_GRAPHS", "1")]);
        run(&library, "a_refused_free", &[]);
        run(&library, "a_lost_device", &[("FAKE_CUDA_RECORD", "700")]);
        run(&library, "device_mapped_memory", &[("FAKE_CUDA_MAPS", "0")]);
    }

    #[test]
    fn each_way_for_cuda_to_be_absent_has_its_reason() {
        if is_loaded() {
            return;
        }
        let Some(library) = build("fake_driver_absent", &[]) else { return };
        let Some(incomplete) = build("fake_driver_incomplete", &["--cfg", "incomplete"]) else { return };
        let no_device = "no CUDA device";
        let hidden = "no CUDA device (CUDA_VISIBLE_DEVICES is \"7\")";
        let stub = "CUDA is not usable: cuInit failed with CUDA_ERROR_STUB_LIBRARY";
        let damaged = "the CUDA driver is too old or damaged: it has no function cuMemHostAlloc";
        expect(&library, no_device, &[("FAKE_CUDA_INIT", "100")]);
        expect(&library, no_device, &[("FAKE_CUDA_DEVICES", "0")]);
        expect(&library, hidden, &[("FAKE_CUDA_DEVICES", "0"), ("CUDA_VISIBLE_DEVICES", "7")]);
        expect(&library, stub, &[("FAKE_CUDA_INIT", "34")]);
        expect(&incomplete, damaged, &[]);
    }

    fn expect(library: &Path, reason: &str, environment: &[(&str, &str)]) {
        let environment = [environment, &[(MARK, reason)]].concat();
        let text = run(library, "the_reason_is_the_expected_one", &environment);
        assert!(text.contains("1 passed"), "{text}");
        run(library, "probing_answers", &environment);
    }

    /// The half of the test above that runs in the other process.
    #[test]
    fn the_reason_is_the_expected_one() {
        let Some(expected) = std::env::var_os(MARK).filter(|reason| !reason.is_empty()) else { return };
        let reason: CudaUnavailable = probe().unwrap_err();
        assert_eq!(reason.to_string().as_str(), expected);
    }
}
