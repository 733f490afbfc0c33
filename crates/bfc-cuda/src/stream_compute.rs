//! Computing on a CUDA device: kernels compiled for it at first use, all work on one stream; steps as graphs.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::ptr::with_exposed_provenance_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use bfc_core::{AllocationAttributes, Allocator, Driver, PinnedBuffer, Stream, TransferError, Transfers};
use cudarc::driver::sys::{CUfunction, CUstream};
use cudarc::driver::{result, sys};

use crate::compute::{Compute, ComputeError};
use crate::cublas::Cublas;
use crate::driver::{self, CudaDriver, Holder};
use crate::graph::{Draft, Graph, Node};
use crate::held::Held;
use crate::kernel_cache::{KernelCache, Key};
use crate::kernels::{BLOCK, ElementType, Family, Job, Kernel};
use crate::library;
use crate::nvrtc::Nvrtc;
use crate::product::Product;
use crate::step::{StepCounts, StepId};
use crate::work::{Issue, Work};

/// The driver's functions that computing needs beyond those for memory.
const FUNCTIONS: [&str; 4] =
    ["cuModuleLoadData", "cuModuleGetFunction", "cuLaunchKernel", "cuStreamSynchronize"];

/// Up to so many bytes from memory that is not page-locked the driver takes at once, whatever the device is doing.
const TAKEN_AT_ONCE: usize = 64 << 10;

/// Bytes kept for answers to the host.
const SCRATCH: u64 = 256;

/// A device with a stream that all work is given to.
#[derive(Debug)]
pub struct StreamCompute(Arc<Held<OnStream>>);

/// The device, without steps.
struct OnStream {
    driver: Arc<CudaDriver>,
    stream: Arc<Stream>,
    /// As in 90 for `sm_90`.
    architecture: u32,
    compiler: OnceLock<Result<Nvrtc, ComputeError>>,
    cache: KernelCache,
    products: OnceLock<Result<Cublas, ComputeError>>,
    tf32: AtomicBool,
    staging: OnceLock<Staging>,
    /// Kernels that were loaded, by the driver's handles. Modules stay loaded as long as the process.
    loaded: Mutex<Loaded>,
    scratch: u64,
}

/// Where bytes wait until the device has fetched them.
struct Staging {
    pinned: Arc<dyn Allocator>,
    transfers: Transfers,
}

#[derive(Debug, Default)]
struct Loaded {
    modules: HashMap<(Family, ElementType), usize>,
    functions: HashMap<Kernel, usize>,
}

impl StreamCompute {
    /// A device that does its work on `stream`, which is one of its own. Nothing is compiled before it is needed.
    ///
    /// # Errors
    /// [`ComputeError::Device`] if the driver is too old, or does not answer, or has no memory left.
    pub fn new(driver: Arc<CudaDriver>, stream: Arc<Stream>) -> Result<Self, ComputeError> {
        library::require(&FUNCTIONS)
            .map_err(|error| ComputeError::Device { call: "start", reason: error.to_string() })?;
        let capability =
            driver.compute_capability().map_err(|error| ComputeError::of_driver("start", &error))?;
        let scratch =
            driver.allocate_device(SCRATCH).map_err(|error| ComputeError::of_driver("cuMemAlloc", &error))?;
        let held = Arc::new(Held::new(OnStream {
            driver,
            stream,
            architecture: capability.major * 10 + capability.minor,
            compiler: OnceLock::new(),
            cache: KernelCache::of_user(),
            products: OnceLock::new(),
            tf32: AtomicBool::new(false),
            staging: OnceLock::new(),
            loaded: Mutex::default(),
            scratch,
        }));
        let holder: Weak<Held<OnStream>> = Arc::downgrade(&held);
        held.device().driver.add_holder(holder);
        Ok(Self(held))
    }

    /// Whether products of 32-bit floats may round their factors to 11 significant bits, for tensor cores. Default: no.
    #[must_use]
    pub fn with_tf32(self, tf32: bool) -> Self {
        self.0.device().tf32.store(tf32, Ordering::Relaxed);
        self
    }

    /// Copies large uploads to page-locked memory first, taken from `pinned`, from where the device fetches them: from other
    /// memory the driver would fetch them itself, and the host would wait for all work given before.
    #[must_use]
    pub fn with_pinned(self, pinned: Arc<dyn Allocator>) -> Self {
        let device = self.0.device();
        let transfers = Transfers::new(Arc::clone(&device.stream));
        // The first counts.
        let _ = device.staging.set(Staging { pinned, transfers });
        self
    }

    /// The library that multiplies matrices, which is looked for when it is first needed.
    ///
    /// # Errors
    /// [`ComputeError::NoProducts`] if it is not there or cannot start: a kernel multiplies then.
    pub fn products(&self) -> Result<&Cublas, ComputeError> {
        self.0.device().products()
    }
}

impl OnStream {
    fn products(&self) -> Result<&Cublas, ComputeError> {
        let found = self.products.get_or_init(|| {
            let found = self.driver.call("cublasCreate", 0, || Ok(Cublas::find(self.stream.handle().0)));
            found
                .map_err(|error| ComputeError::of_driver("cublasCreate", &error))?
                .map(|found| found.with_tf32(self.tf32.load(Ordering::Relaxed)))
        });
        found.as_ref().map_err(Clone::clone)
    }

    fn raw_stream(&self) -> CUstream {
        with_exposed_provenance_mut(self.stream.handle().0 as usize)
    }

    /// The driver's handle of a kernel, which is compiled and loaded if that was not done before.
    fn function(&self, kernel: Kernel) -> Result<CUfunction, ComputeError> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&function) = loaded.functions.get(&kernel) {
            return Ok(with_exposed_provenance_mut(function));
        }
        let key = (kernel.family, kernel.element);
        let module = match loaded.modules.get(&key) {
            Some(&module) => module,
            None => {
                let module = self.load(&self.code(kernel.family, kernel.element)?)?;
                loaded.modules.insert(key, module);
                module
            }
        };
        let unnamed = |error: std::ffi::NulError| ComputeError::Device {
            call: "cuModuleGetFunction",
            reason: error.to_string(),
        };
        let name = CString::new(kernel.to_string()).map_err(unnamed)?;
        let function = self.driver.call("cuModuleGetFunction", 0, || {
            // SAFETY: the module was loaded and stays so.
            unsafe { result::module::get_function(with_exposed_provenance_mut(module), name) }
        });
        let function = function.map_err(|error| ComputeError::of_driver("cuModuleGetFunction", &error))?;
        loaded.functions.insert(kernel, function.expose_provenance());
        Ok(function)
    }

    fn load(&self, code: &[u8]) -> Result<usize, ComputeError> {
        // Text for the driver ends with a zero; code may have one more byte.
        let code = [code, &[0]].concat();
        let module = self.driver.call("cuModuleLoadData", 0, || {
            // SAFETY: the code came from the compiler, whole, and the driver copies it.
            unsafe { result::module::load_data(code.as_ptr().cast()) }
        });
        Ok(module.map_err(|error| ComputeError::of_driver("cuModuleLoadData", &error))?.expose_provenance())
    }

    /// Compiled code, from the cache or from the compiler.
    fn code(&self, family: Family, element: ElementType) -> Result<Vec<u8>, ComputeError> {
        let compiler = self.compiler.get_or_init(Nvrtc::find).as_ref().map_err(Clone::clone)?;
        let (source, options) = (family.translation_unit(element), compiler.options(self.architecture)?);
        let key = Key { source: &source, options: &options, version: compiler.version() };
        if let Some(code) = self.cache.get(key) {
            return Ok(code);
        }
        let name = format!("{}_{}.cu", family.name(), element.suffix());
        let image = compiler.compile(&name, &source, &options)?;
        self.cache.put(key, &image.code);
        Ok(image.code)
    }

    /// Has the device fetch bytes that are copied to page-locked memory first. None if there is no such memory.
    ///
    /// # Safety
    /// As [`Compute::upload`].
    unsafe fn stage(&self, bytes: &[u8], to: u64) -> Option<Result<(), ComputeError>> {
        let Staging { pinned, transfers } = self.staging.get()?;
        // It can be done without, so nobody waits for it.
        transfers.poll();
        let attributes = AllocationAttributes::no_retry();
        let mut buffer = PinnedBuffer::with_attributes(pinned, bytes.len(), attributes).ok()?;
        buffer.as_mut_slice().copy_from_slice(bytes);
        // What is held back by now has nothing to do with memory that is filled only now.
        // SAFETY: as the caller says; all that may have used the memory before was given to the same stream.
        let copied = driver::apart(|| unsafe { transfers.to_address(buffer, to) });
        let failed = |error: TransferError| ComputeError::Device {
            call: "cuMemcpyHtoDAsync",
            reason: error.to_string(),
        };
        // The buffer goes back to its pool after the copy.
        Some(copied.map(drop).map_err(failed))
    }

    fn wait(&self) -> Result<(), ComputeError> {
        let waited = self.driver.call("cuStreamSynchronize", 0, || {
            // SAFETY: the stream lives as long as `self`.
            unsafe { sys::cuStreamSynchronize(self.raw_stream()) }.result()
        });
        waited.map_err(|error| ComputeError::of_driver("cuStreamSynchronize", &error))
    }
}

impl Drop for OnStream {
    fn drop(&mut self) {
        // Before the stream and the device, which it uses.
        let products = self.products.take();
        let _ = self.driver.call("cublasDestroy", 0, || {
            drop(products);
            Ok(())
        });
        // Work that still uses the scratch is over when the driver has taken it back: that waits for the device.
        // SAFETY: the scratch was taken in `new`, and nobody else knows of it.
        unsafe { self.driver.free_device(self.scratch) };
    }
}

// SAFETY: one stream keeps work in order; kernels touch what jobs name.
unsafe impl Issue for OnStream {
    type Graph = Prepared;

    unsafe fn give(&self, work: &Work) -> Result<bool, ComputeError> {
        match work {
            Work::Kernel { kernel, blocks, job } => {
                // SAFETY: as the caller says.
                unsafe { self.launch(*kernel, *blocks, job) }.map(|()| true)
            }
            // SAFETY: as the caller says.
            Work::Product { product, .. } => unsafe { self.multiply(product) },
        }
    }

    unsafe fn prepare(&self, work: &[Work]) -> Result<Prepared, ComputeError> {
        let mut draft = Draft::new(&self.driver)?;
        let mut nodes = Vec::with_capacity(work.len());
        for work in work {
            nodes.push(match work {
                Work::Kernel { kernel, blocks, job } => {
                    // SAFETY: every kernel takes one job, and modules stay loaded.
                    Some(unsafe { draft.add_kernel(self.function(*kernel)?, *blocks, job) }?)
                }
                Work::Product { known: false, .. } => None,
                Work::Product { product, .. } => Some(draft.add_all(&self.captured(product)?)?),
            });
        }
        Ok(Prepared { graph: draft.finish()?, nodes })
    }

    unsafe fn replace(&self, prepared: &mut Prepared, place: usize, by: &Work) -> Result<(), ComputeError> {
        let (Some(Some(node)), Work::Kernel { kernel, blocks, job }) = (prepared.nodes.get(place), by) else {
            return Ok(());
        };
        // SAFETY: the node is that of the same kernel, as the caller says.
        unsafe { prepared.graph.replace(*node, self.function(*kernel)?, *blocks, job) }
    }

    unsafe fn start(&self, prepared: &Prepared) -> Result<(), ComputeError> {
        // SAFETY: as the caller says.
        unsafe { prepared.graph.start(&self.stream) }
    }
}

/// A graph, and where in it things are.
struct Prepared {
    graph: Graph,
    nodes: Vec<Option<Node>>,
}

impl OnStream {
    /// See [`Compute::launch`].
    unsafe fn launch(&self, kernel: Kernel, blocks: u32, job: &Job) -> Result<(), ComputeError> {
        let function = self.function(kernel)?;
        let mut parameters = [std::ptr::from_ref(job).cast_mut().cast::<c_void>()];
        let launched = self.driver.call("cuLaunchKernel", 0, || {
            // SAFETY: the kernel takes one job, which the driver copies; the caller vouches for what it names.
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
        });
        launched.map_err(|error| ComputeError::of_driver("cuLaunchKernel", &error))
    }

    /// See [`Compute::multiply`].
    unsafe fn multiply(&self, product: &Product) -> Result<bool, ComputeError> {
        let Ok(products) = self.products() else { return Ok(false) };
        // The driver's call makes the device current on this thread.
        // SAFETY: the caller vouches for the memory; the handle's stream is that of all other work.
        let multiplied =
            self.driver.call("cublasGemmStridedBatchedEx", 0, || Ok(unsafe { products.multiply(product) }));
        multiplied.map_err(|error| ComputeError::of_driver("cublasGemmStridedBatchedEx", &error))?
    }

    /// The kernels by which the library computes a product, which are not started.
    fn captured(&self, product: &Product) -> Result<Draft, ComputeError> {
        let products = self.products()?;
        // On a stream that nobody else uses: what other threads give to the device's is not to be captured.
        let driver: Arc<CudaDriver> = Arc::clone(&self.driver);
        let stream =
            Stream::new(driver).map_err(|error| ComputeError::of_driver("cuStreamCreate", &error))?;
        Draft::captured(&self.driver, &stream, || {
            // SAFETY: nothing is computed before the graph is started.
            match unsafe { products.multiply_on(stream.handle().0, product) }? {
                true => Ok(()),
                false => Err(ComputeError::NoProducts {
                    reason: "a product of before is not known now".to_owned(),
                }),
            }
        })
    }
}

impl Holder for Held<OnStream> {
    fn settle(&self) {
        self.settle_unheard();
    }
}

// SAFETY: one stream keeps work in order; kernels touch what jobs name; downloads wait.
unsafe impl Compute for StreamCompute {
    fn name(&self) -> &str {
        self.0.device().driver.name()
    }

    unsafe fn launch(&self, kernel: Kernel, blocks: u32, job: &Job) -> Result<(), ComputeError> {
        // SAFETY: as the caller says.
        unsafe { self.0.give(Work::Kernel { kernel, blocks, job: *job }) }.map(drop)
    }

    fn has_products(&self) -> bool {
        self.products().is_ok()
    }

    unsafe fn multiply(&self, product: &Product) -> Result<bool, ComputeError> {
        // SAFETY: as the caller says.
        unsafe { self.0.give(Work::Product { product: *product, known: true }) }
    }

    unsafe fn upload(&self, bytes: &[u8], to: u64) -> Result<(), ComputeError> {
        self.0.settle_for_copy()?;
        let device = self.0.device();
        if bytes.len() > TAKEN_AT_ONCE {
            // SAFETY: as the caller says.
            if let Some(staged) = unsafe { device.stage(bytes, to) } {
                return staged;
            }
        }
        let copied = device.driver.call("cuMemcpyHtoDAsync", 0, || {
            // From memory that is not pinned, the driver has taken the bytes when it returns.
            // SAFETY: the caller vouches for the memory.
            unsafe { result::memcpy_htod_async(to, bytes, device.raw_stream()) }
        });
        copied.map_err(|error| ComputeError::of_driver("cuMemcpyHtoDAsync", &error))
    }

    unsafe fn download(&self, from: u64, bytes: &mut [u8]) -> Result<(), ComputeError> {
        self.0.settle()?;
        let device = self.0.device();
        let copied = device.driver.call("cuMemcpyDtoHAsync", 0, || {
            // SAFETY: the caller vouches for the memory; the bytes are borrowed until the wait below is over.
            unsafe { result::memcpy_dtoh_async(bytes, from, device.raw_stream()) }
        });
        let waited = device.wait();
        copied.map_err(|error| ComputeError::of_driver("cuMemcpyDtoHAsync", &error)).and(waited)
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

    fn step_counts(&self, step: StepId) -> StepCounts {
        self.0.counts(step)
    }

    fn settle(&self) {
        self.0.settle_unheard();
    }
}
