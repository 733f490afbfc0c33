//! Emulates a device on the host, for tests: the machine's C++ compiler compiles the kernels, and threads run one by
//! one.
//!
//! It shows what the sources compute, but not races, the device compiler, or the order of asynchronous work. A barrier
//! that some threads never reach is undefined on a device; here it ends the process.

mod compile;
mod folder;
mod memory;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bfc_core::AddressSpace;
use libloading::Library;

use crate::compute::{Compute, ComputeError, GraphCounts, Product, StepId};
use crate::graph::{Command, Executor, GraphBatcher};
use crate::kernels::{CHECK, ElementType, Job, JobTable, KernelId, KernelSource};
use crate::libraries::Cublas;

use compile::compile_error;
pub use memory::EmulatedMemory;

/// Replaces CUDA's built-in functions.
const HOST: &str = include_str!("../../emulator/host.h");
/// Replaces cuBLAS.
const CUBLAS: &str = include_str!("../../emulator/cublas.h");

/// Runs kernels on the host; see the [module](self).
#[derive(Debug)]
pub struct Emulator(GraphBatcher<HostDevice>);

/// The emulator below the graph batcher.
struct HostDevice {
    library: Library,
    /// Held while a kernel runs: one at a time, as on a stream.
    turn: Mutex<()>,
    scratch: Box<[u64; 32]>,
    /// The address space of its memory.
    space: AddressSpace,
    products: Option<Cublas>,
    /// Whether commands are accepted without computing.
    silent: bool,
}

impl Emulator {
    /// Creates an emulator for the kernels in this [library](kernel_library).
    ///
    /// # Errors
    /// [`ComputeError::Compile`] if the library does not load.
    pub fn new(kernels: &Path) -> Result<Self, ComputeError> {
        // SAFETY: the library was compiled from kernels, which have no initializers.
        let library = unsafe { Library::new(kernels) }.map_err(compile_error)?;
        let on_host = HostDevice {
            library,
            turn: Mutex::new(()),
            scratch: Box::new([0; 32]),
            space: AddressSpace::new(),
            products: None,
            silent: false,
        };
        Ok(Self(GraphBatcher::new(on_host)))
    }

    /// Accepts kernels and products without computing, so that benches measure the host's part of the work. Results are
    /// undefined.
    #[must_use]
    pub fn silent(mut self) -> Self {
        self.0.device_mut().silent = true;
        self
    }

    /// Computes matrix products with a library that has cuBLAS's interface, instead of a kernel.
    ///
    /// # Errors
    /// As [`kernel_library`].
    pub fn with_products(mut self) -> Result<Self, ComputeError> {
        self.0.device_mut().products = Some(Cublas::open(product_library()?, 0)?);
        Ok(self)
    }
}

/// Compiles kernels for the host once, and keeps them in a private folder of the user's cache
/// (`$XDG_CACHE_HOME/highwater/emulator`, else `~/.cache/highwater/emulator`). Returns the file. The library also has the
/// kernels of the self-check.
///
/// # Errors
/// [`ComputeError::Compile`] if there is no C++ compiler (`CXX`, else `c++`), or it refuses a source.
pub fn kernel_library(
    kernels: impl IntoIterator<Item = (&'static KernelSource, ElementType)>,
) -> Result<PathBuf, ComputeError> {
    let (mut headers, mut units) = (Vec::new(), String::new());
    for (source, element) in [(&CHECK, ElementType::F32)].into_iter().chain(kernels) {
        // Sources share headers.
        if !headers.contains(&source.headers()) {
            headers.push(source.headers());
        }
        for (name, value) in element.defines() {
            units.push_str(&format!("#define {name} {value}\n"));
        }
        units.push_str(source.text());
        for (name, _) in element.defines() {
            units.push_str(&format!("#undef {name}\n"));
        }
    }
    compiled("kernels", &(headers.concat() + &units))
}

/// Compiles CUDA C++ for the host, with replacements of CUDA's built-in functions and [`KernelSource::PRELUDE`] before
/// it. Returns the file, whose name begins with `name`.
///
/// # Errors
/// As [`kernel_library`].
pub fn compiled(name: &str, text: &str) -> Result<PathBuf, ComputeError> {
    compile::compiled(name, &format!("{HOST}\n{}\n{text}", KernelSource::PRELUDE))
}

/// A library with cuBLAS's interface for the host.
///
/// # Errors
/// As [`kernel_library`].
pub fn product_library() -> Result<PathBuf, ComputeError> {
    compiled("products", CUBLAS)
}

/// The kernels of the self-check and the [library for products](product_library), for a driver that runs them in place of
/// a GPU.
///
/// # Errors
/// As [`kernel_library`].
pub fn libraries() -> Result<[PathBuf; 2], ComputeError> {
    Ok([kernel_library([])?, product_library()?])
}

impl HostDevice {
    unsafe fn launch(
        &self,
        kernel: KernelId,
        blocks: u32,
        job: &Job,
        table: Option<&JobTable>,
    ) -> Result<(), ComputeError> {
        type Function = unsafe extern "C" fn(u32, *const Job, *const JobTable);
        // SAFETY: every host kernel has this type.
        let function = unsafe { self.library.get::<Function>(kernel.to_string().as_bytes()) };
        let function =
            function.map_err(|error| ComputeError::Device { call: "launch", reason: error.to_string() })?;
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        // Few blocks suffice: kernels loop until no element is left.
        let table = table.map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the caller vouches for the memory that the job and the table name, which is host memory here.
        unsafe { function(blocks.min(3), job, table) };
        Ok(())
    }

    unsafe fn multiply(&self, product: &Product) -> Result<bool, ComputeError> {
        let Some(products) = &self.products else { return Ok(false) };
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the caller vouches for the memory, which is host memory here.
        unsafe { products.multiply(product) }
    }
}

// SAFETY: kernels access what jobs name and end before the call returns.
unsafe impl Executor for HostDevice {
    type Graph = Vec<Command>;

    unsafe fn submit(&self, command: &Command) -> Result<bool, ComputeError> {
        match command {
            _ if self.silent => Ok(true),
            Command::Kernel { kernel, blocks, job, table } => {
                // SAFETY: as the caller says.
                unsafe { self.launch(*kernel, *blocks, job, table.as_deref()) }.map(|()| true)
            }
            // SAFETY: as the caller says.
            Command::Product { product, .. } => unsafe { self.multiply(product) },
        }
    }

    unsafe fn build_graph(&self, commands: &[Command]) -> Result<Vec<Command>, ComputeError> {
        Ok(commands.to_vec())
    }

    unsafe fn update_kernel(
        &self,
        graph: &mut Vec<Command>,
        index: usize,
        command: &Command,
    ) -> Result<(), ComputeError> {
        graph[index].clone_from(command);
        Ok(())
    }

    unsafe fn launch_graph(&self, graph: &Vec<Command>) -> Result<(), ComputeError> {
        for command in graph {
            // SAFETY: as the caller says.
            unsafe { self.submit(command) }?;
        }
        Ok(())
    }
}

// SAFETY: kernels access what jobs name; held commands run before bytes are copied.
unsafe impl Compute for Emulator {
    fn name(&self) -> &str {
        "emulated device"
    }

    fn address_space(&self) -> Option<AddressSpace> {
        Some(self.0.device().space)
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
        self.0.device().products.is_some() || self.0.device().silent
    }

    unsafe fn multiply(&self, product: &Product) -> Result<bool, ComputeError> {
        // SAFETY: as the caller says.
        unsafe { self.0.submit(Command::Product { product: *product, supported: true }) }
    }

    unsafe fn upload(&self, bytes: &[u8], to: u64) -> Result<(), ComputeError> {
        self.0.flush_before_copy()?;
        // SAFETY: the caller vouches for the memory, which is host memory here.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to as *mut u8, bytes.len()) };
        Ok(())
    }

    unsafe fn download(&self, from: u64, bytes: &mut [u8]) -> Result<(), ComputeError> {
        self.0.flush()?;
        // SAFETY: as in `upload`.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn scratch(&self) -> u64 {
        self.0.device().scratch.as_ptr() as u64
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
}
