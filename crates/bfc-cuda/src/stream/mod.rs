//! Computing on a CUDA device: kernels compiled for it at first use, all work on one stream; steps as graphs.

mod modules;
mod products;
mod staging;

use std::ffi::c_void;
use std::fmt;
use std::ptr::with_exposed_provenance_mut;
use std::sync::{Arc, OnceLock, Weak};

use bfc_core::{AddressSpace, Allocator, Driver, Stream, Transfers};
use cudarc::driver::sys::{CUfunction, CUstream};
use cudarc::driver::{result, sys};

use crate::compute::{Compute, ComputeError, Product, StepCounts, StepId, Target};
use crate::driver::{CudaDriver, Holder, driver_version, require};
use crate::graph::Held;
use crate::graph::{Draft, Graph, Node};
use crate::graph::{Issue, Work};
use crate::kernels::{BLOCK, Job, Kernel};
use crate::libraries::Cublas;
use crate::libraries::Nvrtc;

use self::modules::Modules;
use self::products::Products;
use self::staging::Staging;

/// The driver's functions that computing needs beyond those for memory.
const FUNCTIONS: [&str; 5] =
    ["cuModuleLoadData", "cuModuleGetFunction", "cuModuleUnload", "cuLaunchKernel", "cuStreamSynchronize"];

/// Bytes kept for answers to the host.
const SCRATCH: u64 = 256;

/// Gives memory of the device back; whether there was some.
type MakeRoom = dyn Fn() -> bool + Send + Sync;

/// A device with a stream that all work is given to.
#[derive(Debug)]
pub struct StreamCompute(Arc<Held<OnStream>>);

/// The device, without steps.
struct OnStream {
    driver: Arc<CudaDriver>,
    stream: Arc<Stream>,
    modules: Modules,
    products: Products,
    staging: OnceLock<Staging>,
    make_room: OnceLock<Box<MakeRoom>>,
    scratch: u64,
}

impl StreamCompute {
    /// A device that does its work on `stream`, which is one of its own. Nothing is compiled before it is needed.
    ///
    /// # Errors
    /// [`ComputeError::Unavailable`] if the driver is too old; else what it says, as [`ComputeError::OutOfMemory`].
    pub fn new(driver: Arc<CudaDriver>, stream: Arc<Stream>) -> Result<Self, ComputeError> {
        require(&FUNCTIONS)?;
        let capability =
            driver.compute_capability().map_err(|error| ComputeError::of_driver("start", &error))?;
        let architecture = capability.major * 10 + capability.minor;
        let target = Target { architecture, driver: driver_version()? };
        let scratch =
            driver.allocate_device(SCRATCH).map_err(|error| ComputeError::of_driver("cuMemAlloc", &error))?;
        let held = Arc::new(Held::new(OnStream {
            driver,
            stream,
            modules: Modules::new(target),
            products: Products::new(target),
            staging: OnceLock::new(),
            make_room: OnceLock::new(),
            scratch,
        }));
        let holder: Weak<Held<OnStream>> = Arc::downgrade(&held);
        held.device().driver.add_holder(holder);
        Ok(Self(held))
    }

    /// Whether products of 32-bit floats may round their factors to 11 significant bits, for tensor cores. Default: no.
    #[must_use]
    pub fn with_tf32(self, tf32: bool) -> Self {
        self.0.device().products.set_tf32(tf32);
        self
    }

    /// Copies uploads to page-locked memory first, taken from `pinned`, from where the device fetches them: else the host waits
    /// until the device has them, and so for all work given before. At most 96 MiB and 64 uploads or pieces of 32 MiB wait there at a
    /// time, until [`let_go_of_uploads`](Compute::let_go_of_uploads) or until those that come after them need their place
    /// ([`StagedPieces`](bfc_core::StagedPieces)).
    #[must_use]
    pub fn with_pinned(self, pinned: Arc<dyn Allocator>) -> Self {
        self.stage_in(pinned);
        self
    }

    /// The same for a device that is in use already. The first allocator counts.
    pub fn stage_in(&self, pinned: Arc<dyn Allocator>) {
        let device = self.0.device();
        let transfers = Transfers::new(Arc::clone(&device.stream));
        let _ = device.staging.set(Staging::new(pinned, transfers));
    }

    /// Has `make_room` give memory of the device back where a call of the driver's finds none beside the pools, as for code, graphs
    /// and libraries, and makes the call once more if there was some. It is called without locks. The first counts.
    #[must_use]
    pub fn with_room(self, make_room: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        let _ = self.0.device().make_room.set(Box::new(make_room));
        self
    }

    /// The compiler, which is looked for when it is first needed.
    ///
    /// # Errors
    /// [`ComputeError::NoCompiler`] if there is none that suits the device.
    pub fn compiler(&self) -> Result<&Nvrtc, ComputeError> {
        self.0.device().modules.compiler()
    }

    /// The library that multiplies matrices, which is looked for when it is first needed; while it is there and does not start, again
    /// after ever more requests.
    ///
    /// # Errors
    /// [`ComputeError::NoProducts`] if it is not there or cannot start: a kernel multiplies then.
    pub fn products(&self) -> Result<&Cublas, ComputeError> {
        self.library().ok_or_else(|| self.0.device().products.why_not())
    }

    fn library(&self) -> Option<&Cublas> {
        let device = self.0.device();
        match device.find_products() {
            Ok(found) => Some(found),
            // It says in many ways that memory is out.
            Err(true) if device.products.may_start() && device.make_room() => {
                device.products.find_now(&device.driver, device.stream.handle().0).ok()
            }
            Err(_) => None,
        }
    }
}

impl OnStream {
    fn find_products(&self) -> Result<&Cublas, bool> {
        self.products.find(&self.driver, self.stream.handle().0)
    }

    fn raw_stream(&self) -> CUstream {
        with_exposed_provenance_mut(self.stream.handle().0 as usize)
    }

    fn function(&self, kernel: Kernel) -> Result<CUfunction, ComputeError> {
        self.modules.function(&self.driver, kernel)
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
        // What fails here fails because the device is lost.
        let _ = self.wait();
        // Before the stream and the device, which it uses.
        self.products.close(&self.driver);
        // SAFETY: all work has ended, and graphs are gone: nobody gives more.
        unsafe { self.modules.unload(&self.driver) };
        // SAFETY: the scratch was taken in `new`, and nobody else knows of it.
        unsafe { self.driver.free_device(self.scratch) };
    }
}

impl fmt::Debug for OnStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnStream").field("driver", &self.driver).finish_non_exhaustive()
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

    fn make_room(&self) -> bool {
        self.make_room.get().is_some_and(|make_room| make_room())
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
        let Ok(products) = self.find_products() else { return Ok(false) };
        // The driver's call makes the device current on this thread.
        // SAFETY: the caller vouches for the memory; the handle's stream is that of all other work.
        let multiplied =
            self.driver.call("cublasGemmStridedBatchedEx", 0, || Ok(unsafe { products.multiply(product) }));
        multiplied.map_err(|error| ComputeError::of_driver("cublasGemmStridedBatchedEx", &error))?
    }

    /// The kernels by which the library computes a product, which are not started.
    fn captured(&self, product: &Product) -> Result<Draft, ComputeError> {
        let products = self.find_products().map_err(|_| self.products.why_not())?;
        // On a stream that nobody else uses: what other threads give to the device's is not to be captured.
        let driver: Arc<CudaDriver> = Arc::clone(&self.driver);
        let stream =
            Stream::new(driver).map_err(|error| ComputeError::of_driver("cuStreamCreate", &error))?;
        Draft::captured(&self.driver, &stream, || {
            // SAFETY: nothing is computed before the graph is started.
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

    fn address_space(&self) -> Option<AddressSpace> {
        self.0.device().driver.address_space()
    }

    unsafe fn launch(&self, kernel: Kernel, blocks: u32, job: &Job) -> Result<(), ComputeError> {
        // SAFETY: as the caller says.
        unsafe { self.0.give(Work::Kernel { kernel, blocks, job: *job }) }.map(drop)
    }

    fn has_products(&self) -> bool {
        self.library().is_some()
    }

    fn remark(&self) -> Option<String> {
        self.products().err().map(|error| error.to_string())
    }

    unsafe fn multiply(&self, product: &Product) -> Result<bool, ComputeError> {
        // SAFETY: as the caller says.
        unsafe { self.0.give(Work::Product { product: *product, known: true }) }
    }

    unsafe fn upload(&self, bytes: &[u8], to: u64) -> Result<(), ComputeError> {
        self.0.settle_for_copy()?;
        let device = self.0.device();
        // SAFETY: as the caller says.
        let staged = device.staging.get().map_or(Ok(0), |staging| unsafe { staging.upload(bytes, to) })?;
        let rest = &bytes[staged..];
        if rest.is_empty() {
            return Ok(());
        }
        let copied = device.driver.call("cuMemcpyHtoDAsync", 0, || {
            // SAFETY: the caller vouches for the memory; the bytes are borrowed until the wait below is over.
            unsafe { result::memcpy_htod_async(to + staged as u64, rest, device.raw_stream()) }
        });
        let waited = device.wait();
        copied.map_err(|error| ComputeError::of_driver("cuMemcpyHtoDAsync", &error)).and(waited)
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

    fn let_go_of_uploads(&self) {
        if let Some(staging) = self.0.device().staging.get() {
            staging.let_go();
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

    fn step_counts(&self, step: StepId) -> StepCounts {
        self.0.counts(step)
    }

    fn settle(&self) {
        self.0.settle_unheard();
    }
}
