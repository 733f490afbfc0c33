//! Emulates a device on the host, for tests: the machine's C++ compiler compiles the kernels, and threads run one by
//! one.
//!
//! It shows what the sources compute, but not races, the device compiler, or the order of asynchronous work. A barrier
//! that some threads never reach is undefined on a device; here it ends the process.

mod compile;
mod folder;
mod memory;

use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};

use bfc_core::AddressSpace;
use libloading::Library;

use crate::compute::{Compute, ComputeError, GraphCounts, Product, StepId};
use crate::graph::{Command, Executor, GraphBatcher};
use crate::kernels::{ElementType, Family, Job, KernelId};
use crate::libraries::Cublas;

use compile::{compile_error, compiled};
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
    library: &'static Library,
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
    /// Creates an emulator. The kernels are compiled once and kept in a private folder of the user's cache
    /// (`$XDG_CACHE_HOME/highwater/emulator`, else `~/.cache/highwater/emulator`).
    ///
    /// # Errors
    /// [`ComputeError::Compile`] if there is no C++ compiler (`CXX`, else `c++`), or it refuses a source.
    pub fn new() -> Result<Self, ComputeError> {
        static LIBRARY: OnceLock<Result<Library, ComputeError>> = OnceLock::new();
        let library = LIBRARY.get_or_init(library).as_ref().map_err(Clone::clone)?;
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
    /// As [`Emulator::new`], for the library.
    pub fn with_products(mut self) -> Result<Self, ComputeError> {
        self.0.device_mut().products = Some(Cublas::open(products_library()?, 0)?);
        Ok(self)
    }
}

/// The files of the kernels and the products library, for a driver that runs them in place of a GPU.
///
/// # Errors
/// As [`Emulator::new`].
pub fn libraries() -> Result<[PathBuf; 2], ComputeError> {
    Ok([compiled("kernels", &translation_unit())?, products_library()?])
}

fn products_library() -> Result<PathBuf, ComputeError> {
    compiled("products", &format!("{HOST}\n{}\n{CUBLAS}", Family::PRELUDE))
}

/// All sources for all element types as one translation unit.
fn translation_unit() -> String {
    let mut text = format!("{HOST}\n{}\n", Family::PRELUDE);
    for family in Family::ALL {
        for element in ElementType::ALL.into_iter().filter(|&element| family.takes(element)) {
            for (name, value) in element.defines() {
                text.push_str(&format!("#define {name} {value}\n"));
            }
            text.push_str(family.source());
            for (name, _) in element.defines() {
                text.push_str(&format!("#undef {name}\n"));
            }
        }
    }
    text
}

fn library() -> Result<Library, ComputeError> {
    let path = compiled("kernels", &translation_unit())?;
    // SAFETY: the library was compiled from this crate's sources, which have no initializers.
    unsafe { Library::new(&path) }.map_err(compile_error)
}

impl HostDevice {
    unsafe fn launch(&self, kernel: KernelId, blocks: u32, job: &Job) -> Result<(), ComputeError> {
        type Function = unsafe extern "C" fn(u32, *const Job);
        // SAFETY: every host kernel has this type.
        let function = unsafe { self.library.get::<Function>(kernel.to_string().as_bytes()) };
        let function =
            function.map_err(|error| ComputeError::Device { call: "launch", reason: error.to_string() })?;
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        // Few blocks suffice: kernels loop until no element is left.
        // SAFETY: the caller vouches for the job's memory, which is host memory here.
        unsafe { function(blocks.min(3), job) };
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
            Command::Kernel { kernel, blocks, job } => {
                // SAFETY: as the caller says.
                unsafe { self.launch(*kernel, *blocks, job) }.map(|()| true)
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
        graph[index] = *command;
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
        unsafe { self.0.submit(Command::Kernel { kernel, blocks, job: *job }) }.map(drop)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{BLOCK, Operand, named};

    #[test]
    fn every_kernel_is_there_under_its_name() {
        let emulator = Emulator::new().unwrap();
        for kernel in KernelId::all() {
            // SAFETY: the symbol is looked up, not called.
            let symbol =
                unsafe { emulator.0.device().library.get::<*const ()>(kernel.to_string().as_bytes()) };
            assert!(symbol.is_ok(), "{kernel}");
        }
        let names: std::collections::BTreeSet<_> = KernelId::all().collect();
        assert_eq!(names.len(), KernelId::all().count());
        assert!(Family::ALL.iter().all(|&family| names.iter().any(|kernel| kernel.family == family)));
    }

    /// Calls the kernels' element loops without a kernel.
    const WAYS: &str = r#"
        static u64 walk(const Job& job, u32 way, u64* to) {
            u64 count = 0;
            auto pass = [&](u64 i) { to[count++] = i; };
            if (way == 0) EACH(i) { pass(i); }
            if (way == 1) each(job, [](u64 i) { return i; }, [&](u64 i, u64 loaded) { pass(i == loaded ? i : ~0ULL); });
            if (way == 2) {
                handfuls<8>(job, [&](const Handful& few) {
                    for (u32 n = 0; n < 8; ++n) if (few.has(n)) pass(few.at(n));
                });
            }
            return count;
        }
        extern "C" u64 elements_of(const Job* job, u32 blocks, u64 thread, u32 way, u64* to) {
            gridDim.x = blocks, blockIdx.x = (u32)(thread / BLOCK), threadIdx.x = (u32)(thread % BLOCK);
            return walk(*job, way, to);
        }
        extern "C" u64 offset_of(u64 rank, const u64* dims, const u64* strides, u64 i) {
            return offset_in(rank, dims, strides, i);
        }
    "#;

    fn ways() -> Library {
        let path = compiled("ways", &format!("{HOST}\n{}\n{WAYS}", Family::PRELUDE)).unwrap();
        // SAFETY: the library was just compiled and has no initializers.
        unsafe { Library::new(path) }.unwrap()
    }

    #[test]
    fn places_beyond_4_gibi_elements_are_where_the_strides_say() {
        type Function = unsafe extern "C" fn(u64, *const u64, *const u64, u64) -> u64;
        let library = ways();
        // SAFETY: the function has this type.
        let offset_of = unsafe { library.get::<Function>(b"offset_of") }.unwrap();
        const TERA: u64 = 1 << 40;
        for (dims, strides) in [
            (&[TERA][..], &[3][..]),
            (&[1 << 20, 1 << 20], &[1, 1 << 21]),
            (&[5, (1 << 33) + 9, 3], &[1, 5, 1 << 36]),
            (&[(1 << 33) + 9, 7], &[0, 1]),
            (&[3, 1 << 31, 1, 100], &[7, 1 << 10, 0, 1 << 33]),
            (&[1 << 16, 1 << 8, 1 << 8, 1 << 8], &[1 << 24, 1 << 16, 1 << 8, 1]),
        ] {
            let elements: u64 = dims.iter().product();
            let near = [0, 1 << 31, 1 << 32, (1 << 33) + 9, 3 << 33, elements / 2, elements];
            let numbers = near.into_iter().flat_map(|at: u64| at.saturating_sub(3)..at + 3);
            for i in numbers.filter(|&i| i < elements) {
                let axes = dims.iter().zip(strides).rev();
                let (_, expected) = axes
                    .fold((i, 0), |(rest, sum), (size, stride)| (rest / size, sum + rest % size * stride));
                // SAFETY: both arrays have one number per axis.
                let offset = unsafe { offset_of(dims.len() as u64, dims.as_ptr(), strides.as_ptr(), i) };
                assert_eq!(offset, expected, "{i} of {dims:?}");
            }
        }
    }

    #[test]
    fn elements_beyond_4_gibi_are_gone_through_once() {
        type Function = unsafe extern "C" fn(*const Job, u32, u64, u32, *mut u64) -> u64;
        const BLOCKS: u32 = 1 << 22;
        const END: u64 = (1 << 33) + 13;
        let library = ways();
        // SAFETY: the function has this type.
        let elements_of = unsafe { library.get::<Function>(b"elements_of") }.unwrap();
        let threads = u64::from(BLOCKS) * BLOCK;
        for (way, packed) in [(0, 0), (1, 0), (2, 0), (2, 1)] {
            let job = Job { packed, ..Job::over(END, &[END as usize]) };
            let mut all = Vec::new();
            // The first and the last threads reach the last elements.
            for thread in (0..16).chain(threads - 16..threads) {
                let mut own = [0; 64];
                // SAFETY: with so many threads none has more than 24 elements.
                let count = unsafe { elements_of(&raw const job, BLOCKS, thread, way, own.as_mut_ptr()) };
                assert!((8..=17).contains(&count), "{way}, {packed}: {count}");
                all.extend_from_slice(&own[..count as usize]);
            }
            all.retain(|&i| i >= END - 29);
            all.sort_unstable();
            assert_eq!(all, (END - 29..END).collect::<Vec<_>>(), "{way}, {packed}");
        }
    }

    #[test]
    fn a_kernel_computes_on_strided_operands() {
        let emulator = Emulator::new().unwrap();
        // The columns of a 2×3 matrix, plus 10.
        let (from, mut to) = ([1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0], [0.0_f32; 6]);
        let job = Job { function: named("add_scalar"), ..Job::over(6, &[3, 2]) }.with_constant(10.0);
        let job = job.with_input(Operand::strided(from.as_ptr() as u64, &[1, 3]));
        let job = job.with_output(to.as_mut_ptr() as u64);
        let kernel = KernelId::new(Family::Elementwise, "arithmetic", ElementType::F32);
        // SAFETY: operands and output are the arrays above.
        unsafe { emulator.launch(kernel, 1, &job) }.unwrap();
        assert_eq!(to, [11.0, 14.0, 12.0, 15.0, 13.0, 16.0]);
    }
}
