//! Computing on a device: products, steps as graphs and one by one, uploads.

use std::io::Write;
use std::sync::Arc;

use bfc_core::{
    Allocator, BfcAllocator, BfcConfig, Bytes, Driver, FreeFaults, MemoryCopy, PinnedMemory, Stream,
    StreamEvent, SubAllocator,
};
use bfc_cuda::kernels::{CHECK, ElementType, Job, JobInput, KernelId};
use bfc_cuda::{Compute, ComputeError, CudaDriver, Factor, Product, StepId, StreamCompute};

use super::{free, say_skipped};

#[test]
fn products_come_from_the_library_if_installed() {
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
    // A 2×3 matrix times its transpose: the products of all rows.
    let (matrix, mut product) = ([1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0].map(f32::to_ne_bytes), [0_u8; 16]);
    let job = Product {
        element: ElementType::F32,
        out_element: ElementType::F32,
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
        let count = Job { count: 4, ..job };
        // SAFETY: operands and outputs are pages of the memory that was taken.
        unsafe { self.compute.launch(KernelId::new(&CHECK, name, ElementType::F32), 1, &count) }
    }

    fn fill(&self, place: u64, value: f64) -> Result<(), ComputeError> {
        self.launch("check_fill", Job::default().with_output(self.at(place)).with_constant(value))
    }

    /// Runs a kernel with a constant.
    fn arithmetic(&self, name: &'static str, from: u64, value: f64, to: u64) {
        let job = Job::default().with_output(self.at(to)).with_constant(value);
        self.launch(name, job.with_input(JobInput::contiguous(self.at(from)))).unwrap();
    }

    /// Squares a matrix, with the library if there is one.
    fn square(&self, from: u64, to: u64) {
        let factor = Factor::new(self.at(from), [2, 2], [2, 1], 0).unwrap();
        let product = Product {
            element: ElementType::F32,
            out_element: ElementType::F32,
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
            self.arithmetic("check_add", from, 0.0, to);
            self.arithmetic("check_scale", to, 2.0, to);
        }
    }

    fn read(&self, place: u64) -> [f32; 4] {
        let mut bytes = [0; 16];
        // SAFETY: as in `launch`.
        unsafe { self.compute.download(self.at(place), &mut bytes) }.unwrap();
        std::array::from_fn(|n| f32::from_ne_bytes(bytes.as_chunks::<4>().0[n]))
    }

    /// ((value + 1) / 2, squared as a matrix) + 3, and the halved matrix.
    fn step(&self, value: f64) {
        self.fill(0, value).unwrap();
        self.arithmetic("check_add", 0, 1.0, 1);
        self.arithmetic("check_scale", 1, 0.5, 2);
        self.square(2, 3);
        self.arithmetic("check_add", 3, 3.0, 4);
    }
}

impl Drop for Squares {
    fn drop(&mut self) {
        // SAFETY: it was taken for this, and the driver waits for all work with it.
        unsafe { self.driver.free_device(self.address) };
    }
}

/// The matrices on the device; returns from the test with a message if there is none.
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
        let is_known = squares.compute.supports_products();
        let square = if is_known { 2.0 * half * half } else { 2.0 * half };
        assert_eq!((squares.read(2), squares.read(4)), ([half; 4], [square + 3.0; 4]), "run {run}");
    }
    let counts = squares.compute.step_counts(step);
    if let Some(reason) = super::expected().filter(|reason| !reason.is_empty()) {
        assert_eq!((counts.graphs, counts.refused), (0, Some(reason)));
        return;
    }
    assert_eq!((counts.runs, counts.graphs, counts.prepared, counts.refused), (5, 4, 1, None));
    // The first kernel of each run fills with another value.
    assert_eq!(counts.replaced, 3);
    squares.compute.forget_step(step);
    assert_eq!(squares.driver.free_faults(), FreeFaults::default());
}

/// A wait for the device, by code that has opened it again, must not interrupt the capture of a product.
#[test]
fn device_graphs_form_while_another_thread_waits() {
    let squares = squares_or_skip!();
    let other = CudaDriver::new(squares.driver.ordinal()).unwrap();
    std::thread::scope(|scope| {
        let graphs = scope.spawn(|| {
            for step in (10..30).map(StepId) {
                for run in 0..3 {
                    assert!(squares.compute.begin_step(step));
                    squares.step(f64::from(run));
                    squares.compute.end_step().unwrap();
                }
                let counts = squares.compute.step_counts(step);
                assert_eq!((counts.graphs, counts.refused), (2, None));
            }
        });
        while !graphs.is_finished() {
            other.synchronize().unwrap();
        }
    });
}

#[test]
fn device_steps_end_before_waits_and_frees() {
    let squares = squares_or_skip!();
    let others = Stream::new(squares.driver.clone()).unwrap();
    let pinned = PinnedMemory::new(squares.driver.clone());
    let page = pinned.allocate(256, 4096).unwrap();
    let step = StepId(2);
    for run in 0..4 {
        assert!(squares.compute.begin_step(step));
        squares.step(f64::from(2 * run + 1));
        // Nothing was submitted, but work of another stream that waits finds it done.
        others.wait(&StreamEvent::new(&squares.stream).unwrap()).unwrap();
        let copy = MemoryCopy::ToHost { from: squares.at(2), to: page.address, bytes: 16 };
        // SAFETY: both buffers stay unchanged until the wait below.
        unsafe { others.copy(copy) }.unwrap();
        others.synchronize().unwrap();
        // SAFETY: the page is host memory, and the copy has ended.
        let half = unsafe { (page.address as *const f32).read() };
        assert_eq!(half, (run + 1) as f32);
        // Frees memory that held commands use: they run first.
        let more = squares.driver.allocate_device(4096).unwrap();
        squares.launch("check_fill", Job::default().with_output(more).with_constant(1.0)).unwrap();
        // SAFETY: it was taken above, and nothing to come uses it.
        unsafe { squares.driver.free_device(more) };
        squares.compute.end_step().unwrap();
    }
    free(&pinned, page);
    assert_eq!(squares.driver.free_faults(), FreeFaults::default());
}

#[test]
fn device_uploads_reuse_pinned_memory() {
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
    // More than the pool has.
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
    // Bytes that do not fit into pinned memory are copied directly.
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
