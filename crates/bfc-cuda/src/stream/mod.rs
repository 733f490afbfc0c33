//! Computing on a CUDA device through one stream.

mod cublas_loader;
mod module_cache;
mod staging;

use std::fmt;
use std::ptr::with_exposed_provenance_mut;
use std::sync::{Arc, OnceLock, Weak};

use bfc_core::{AddressSpace, Allocator, Driver, Stream, Transfers};
use cudarc::driver::sys::{CUfunction, CUstream};
use cudarc::driver::{result, sys};

use crate::compute::{Compute, ComputeError, GraphCounts, Product, StepId, Target, call_device};
use crate::driver::{CudaDriver, DeferredWork, driver_version, require};
use crate::graph::{Command, CudaGraph, Executor, GraphBatcher, GraphBuilder, GraphNode, arguments};
use crate::kernels::{BLOCK, Job, JobTable, KernelId};
use crate::libraries::{Cublas, Nvrtc};

use self::cublas_loader::CublasLoader;
use self::module_cache::ModuleCache;
use self::staging::Staging;

/// The driver functions that computing needs.
const FUNCTIONS: [&str; 5] =
    ["cuModuleLoadData", "cuModuleGetFunction", "cuModuleUnload", "cuLaunchKernel", "cuStreamSynchronize"];

/// Bytes reserved for results that the host reads.
const SCRATCH: u64 = 256;

/// Frees unused device memory; returns whether there was some.
type ReleaseMemory = dyn Fn() -> bool + Send + Sync;

/// A CUDA device that executes all work on one stream. Kernels are compiled at first use, and steps become graphs.
#[derive(Debug)]
pub struct StreamCompute(Arc<GraphBatcher<StreamDevice>>);

/// The device below the graph batcher.
struct StreamDevice {
    driver: Arc<CudaDriver>,
    stream: Arc<Stream>,
    modules: ModuleCache,
    products: CublasLoader,
    staging: OnceLock<Staging>,
    release_memory: OnceLock<Box<ReleaseMemory>>,
    scratch: u64,
}

impl StreamCompute {
    /// Creates a device that submits to `stream`, one of its own. Kernels and libraries are loaded at first use.
    ///
    /// # Errors
    /// [`ComputeError::Unavailable`] if the driver is too old; else a failed driver call, such as
    /// [`ComputeError::OutOfMemory`].
    pub fn new(driver: Arc<CudaDriver>, stream: Arc<Stream>) -> Result<Self, ComputeError> {
        require(&FUNCTIONS)?;
        let capability =
            driver.compute_capability().map_err(|error| ComputeError::of_driver("start", &error))?;
        let architecture = capability.major * 10 + capability.minor;
        let target = Target { architecture, driver: driver_version()? };
        let scratch =
            driver.allocate_device(SCRATCH).map_err(|error| ComputeError::of_driver("cuMemAlloc", &error))?;
        let batcher = Arc::new(GraphBatcher::new(StreamDevice {
            driver,
            stream,
            modules: ModuleCache::new(target),
            products: CublasLoader::new(target),
            staging: OnceLock::new(),
            release_memory: OnceLock::new(),
            scratch,
        }));
        let deferred: Weak<GraphBatcher<StreamDevice>> = Arc::downgrade(&batcher);
        batcher.device().driver.register_deferred(deferred);
        Ok(Self(batcher))
    }

    /// Allows products of 32-bit floats to use TF32 (11 significant bits) on tensor cores. Default: no.
    #[must_use]
    pub fn with_tf32(self, tf32: bool) -> Self {
        self.0.device().products.set_tf32(tf32);
        self
    }

    /// Stages uploads in pinned memory from `pinned`. Without it, an upload waits for all earlier work. At most 96 MiB
    /// and 64 pieces of up to 32 MiB are staged at a time. [`release_uploads`](Compute::release_uploads) or later
    /// uploads free them ([`StagedPieces`](bfc_core::StagedPieces)).
    #[must_use]
    pub fn with_pinned(self, pinned: Arc<dyn Allocator>) -> Self {
        self.set_pinned(pinned);
        self
    }

    /// Like [`with_pinned`](Self::with_pinned), for a device in use. Only the first allocator counts.
    pub fn set_pinned(&self, pinned: Arc<dyn Allocator>) {
        let device = self.0.device();
        let transfers = Transfers::new(Arc::clone(&device.stream));
        let _ = device.staging.set(Staging::new(pinned, transfers));
    }

    /// Calls `release_memory` if the driver finds no memory outside of the pools, as for code, graphs and libraries,
    /// and repeats the driver's call once. It is called without locks. Only the first callback counts.
    #[must_use]
    pub fn with_memory_release(self, release_memory: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        let _ = self.0.device().release_memory.set(Box::new(release_memory));
        self
    }

    /// The compiler, loaded at first use.
    ///
    /// # Errors
    /// [`ComputeError::NoCompiler`] if none supports the device.
    pub fn compiler(&self) -> Result<&Nvrtc, ComputeError> {
        self.0.device().modules.compiler()
    }

    /// The library for matrix products, loaded at first use. While it fails to start, attempts become rarer.
    ///
    /// # Errors
    /// [`ComputeError::NoProducts`] if it is missing or does not start. Products then use a kernel.
    pub fn products(&self) -> Result<&Cublas, ComputeError> {
        self.library().ok_or_else(|| self.0.device().products.load_error())
    }

    fn library(&self) -> Option<&Cublas> {
        let device = self.0.device();
        match device.find_products() {
            Ok(found) => Some(found),
            // The library has several error codes for lack of memory.
            Err(true) if device.products.can_retry() && device.release_memory() => {
                device.products.retry_now(&device.driver, device.stream.handle().0).ok()
            }
            Err(_) => None,
        }
    }
}

impl StreamDevice {
    fn find_products(&self) -> Result<&Cublas, bool> {
        self.products.find(&self.driver, self.stream.handle().0)
    }

    fn raw_stream(&self) -> CUstream {
        with_exposed_provenance_mut(self.stream.handle().0 as usize)
    }

    fn function(&self, kernel: KernelId) -> Result<CUfunction, ComputeError> {
        self.modules.function(&self.driver, kernel)
    }

    fn synchronize(&self) -> Result<(), ComputeError> {
        call_device(&self.driver, "cuStreamSynchronize", || {
            // SAFETY: the stream lives as long as `self`.
            unsafe { sys::cuStreamSynchronize(self.raw_stream()) }.result()
        })
    }
}

impl Drop for StreamDevice {
    fn drop(&mut self) {
        // An error here means that the device is lost.
        let _ = self.synchronize();
        // Before the stream and the device that it uses.
        self.products.close(&self.driver);
        // SAFETY: all work has ended, and the graphs are dropped.
        unsafe { self.modules.unload(&self.driver) };
        // SAFETY: `new` allocated the scratch memory, and nothing else uses it.
        unsafe { self.driver.free_device(self.scratch) };
    }
}

impl fmt::Debug for StreamDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamDevice").field("driver", &self.driver).finish_non_exhaustive()
    }
}

// SAFETY: one stream executes commands in order; kernels access what jobs name.
unsafe impl Executor for StreamDevice {
    type Graph = PreparedGraph;

    unsafe fn submit(&self, command: &Command) -> Result<bool, ComputeError> {
        match command {
            Command::Kernel { kernel, blocks, job, table } => {
                // SAFETY: as the caller says.
                unsafe { self.launch(*kernel, *blocks, job, table.as_deref()) }.map(|()| true)
            }
            // SAFETY: as the caller says.
            Command::Product { product, .. } => unsafe { self.multiply(product) },
        }
    }

    unsafe fn build_graph(&self, commands: &[Command]) -> Result<PreparedGraph, ComputeError> {
        let mut builder = GraphBuilder::new(&self.driver)?;
        let mut nodes = Vec::with_capacity(commands.len());
        for command in commands {
            nodes.push(match command {
                Command::Kernel { kernel, blocks, job, table } => {
                    let (function, arguments) = (self.function(*kernel)?, (job, table.as_deref()));
                    // SAFETY: every kernel takes one job and the table that its caller has; modules stay loaded.
                    Some(unsafe { builder.add_kernel(function, *blocks, arguments) }?)
                }
                Command::Product { supported: false, .. } => None,
                Command::Product { product, .. } => Some(builder.add_child_graph(&self.captured(product)?)?),
            });
        }
        Ok(PreparedGraph { graph: builder.finish()?, nodes })
    }

    unsafe fn update_kernel(
        &self,
        prepared: &mut PreparedGraph,
        index: usize,
        command: &Command,
    ) -> Result<(), ComputeError> {
        let (Some(Some(node)), Command::Kernel { kernel, blocks, job, table }) =
            (prepared.nodes.get(index), command)
        else {
            return Ok(());
        };
        let arguments = (job, table.as_deref());
        // SAFETY: the node belongs to the same kernel, as the caller says.
        unsafe { prepared.graph.update_kernel(*node, self.function(*kernel)?, *blocks, arguments) }
    }

    unsafe fn launch_graph(&self, prepared: &PreparedGraph) -> Result<(), ComputeError> {
        // SAFETY: as the caller says.
        unsafe { prepared.graph.launch(&self.stream) }
    }

    fn release_memory(&self) -> bool {
        self.release_memory.get().is_some_and(|release_memory| release_memory())
    }
}

/// A graph and its nodes, by index of the command.
struct PreparedGraph {
    graph: CudaGraph,
    nodes: Vec<Option<GraphNode>>,
}

impl StreamDevice {
    /// See [`Compute::launch`] and [`Compute::launch_table`].
    unsafe fn launch(
        &self,
        kernel: KernelId,
        blocks: u32,
        job: &Job,
        table: Option<&JobTable>,
    ) -> Result<(), ComputeError> {
        let function = self.function(kernel)?;
        let mut parameters = arguments(job, table);
        call_device(&self.driver, "cuLaunchKernel", || {
            // SAFETY: the kernel takes a job and perhaps a table, which the driver copies; the caller vouches for what it names.
            unsafe {
                result::launch_kernel(
                    function,
                    (blocks, 1, 1),
                    (BLOCK as u32, 1, 1),
                    0,
                    self.raw_stream(),
                    &mut parameters,
                )
            }
        })
    }

    /// See [`Compute::multiply`].
    unsafe fn multiply(&self, product: &Product) -> Result<bool, ComputeError> {
        let Ok(products) = self.find_products() else { return Ok(false) };
        // The driver call makes the device current on this thread.
        // SAFETY: the caller vouches for the memory; the handle uses the same stream.
        call_device(&self.driver, "cublasGemmStridedBatchedEx", || Ok(unsafe { products.multiply(product) }))?
    }

    /// Captures the kernels of a product as a graph, without executing them.
    fn captured(&self, product: &Product) -> Result<GraphBuilder, ComputeError> {
        let products = self.find_products().map_err(|_| self.products.load_error())?;
        // On a separate stream, so that work of other threads is not captured.
        let driver: Arc<CudaDriver> = Arc::clone(&self.driver);
        let stream =
            Stream::new(driver).map_err(|error| ComputeError::of_driver("cuStreamCreate", &error))?;
        GraphBuilder::captured(&self.driver, &stream, || {
            // SAFETY: nothing is computed before the graph is launched.
            match unsafe { products.multiply_on(stream.handle().0, product) }? {
                true => Ok(()),
                false => Err(ComputeError::Device {
                    call: "cublasGemmStridedBatchedEx",
                    reason: "a product of before is not known now".to_owned(),
                }),
            }
        })
    }
}

impl DeferredWork for GraphBatcher<StreamDevice> {
    fn flush_deferred(&self) {
        self.flush_keeping_error();
    }
}

// SAFETY: one stream executes commands in order; kernels access what jobs name; downloads wait.
unsafe impl Compute for StreamCompute {
    fn name(&self) -> &str {
        self.0.device().driver.name()
    }

    fn address_space(&self) -> Option<AddressSpace> {
        self.0.device().driver.address_space()
    }

    unsafe fn launch(&self, kernel: KernelId, blocks: u32, job: &Job) -> Result<(), ComputeError> {
        // SAFETY: as the caller says.
        unsafe { self.0.submit(Command::Kernel { kernel, blocks, job: *job, table: None }) }.map(drop)
    }

    unsafe fn launch_table(
        &self,
        kernel: KernelId,
        blocks: u32,
        job: &Job,
        table: &Arc<JobTable>,
    ) -> Result<(), ComputeError> {
        let command = Command::Kernel { kernel, blocks, job: *job, table: Some(Arc::clone(table)) };
        // SAFETY: as the caller says.
        unsafe { self.0.submit(command) }.map(drop)
    }

    fn supports_products(&self) -> bool {
        self.library().is_some()
    }

    fn performance_note(&self) -> Option<String> {
        self.products().err().map(|error| error.to_string())
    }

    unsafe fn multiply(&self, product: &Product) -> Result<bool, ComputeError> {
        // SAFETY: as the caller says.
        unsafe { self.0.submit(Command::Product { product: *product, supported: true }) }
    }

    unsafe fn upload(&self, bytes: &[u8], to: u64) -> Result<(), ComputeError> {
        self.0.flush_before_copy()?;
        let device = self.0.device();
        // SAFETY: as the caller says.
        let staged = device.staging.get().map_or(Ok(0), |staging| unsafe { staging.upload(bytes, to) })?;
        let rest = &bytes[staged..];
        if rest.is_empty() {
            return Ok(());
        }
        let copied = call_device(&device.driver, "cuMemcpyHtoDAsync", || {
            // SAFETY: the caller vouches for the memory; the bytes stay borrowed until the wait below.
            unsafe { result::memcpy_htod_async(to + staged as u64, rest, device.raw_stream()) }
        });
        let waited = device.synchronize();
        copied.and(waited)
    }

    unsafe fn download(&self, from: u64, bytes: &mut [u8]) -> Result<(), ComputeError> {
        self.0.flush()?;
        let device = self.0.device();
        let copied = call_device(&device.driver, "cuMemcpyDtoHAsync", || {
            // SAFETY: the caller vouches for the memory; the bytes stay borrowed until the wait below.
            unsafe { result::memcpy_dtoh_async(bytes, from, device.raw_stream()) }
        });
        let waited = device.synchronize();
        copied.and(waited)
    }

    fn release_uploads(&self) {
        if let Some(staging) = self.0.device().staging.get() {
            staging.release();
        }
    }

    fn scratch(&self) -> u64 {
        self.0.device().scratch
    }

    fn begin_step(&self, step: StepId) -> bool {
        self.0.begin(step)
    }

    fn end_step(&self) -> Result<(), ComputeError> {
        self.0.end()
    }

    fn forget_step(&self, step: StepId) {
        self.0.forget(step);
    }

    fn step_counts(&self, step: StepId) -> GraphCounts {
        self.0.counts(step)
    }

    fn flush(&self) {
        self.0.flush_keeping_error();
    }

    fn stream(&self) -> Option<Arc<Stream>> {
        self.flush();
        Some(Arc::clone(&self.0.device().stream))
    }
}
