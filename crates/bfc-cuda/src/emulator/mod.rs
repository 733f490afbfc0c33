//! The kernels on the host, for tests: compiled by the machine's C++ compiler, and run thread by thread.
//!
//! It computes what the sources say, slowly. What only a device shows it does not: races between the threads of a kernel,
//! the compiler for devices, the order of work given and work done. Threads that wait for each other where some have left
//! already, which is undefined on a device, end the process.

mod folder;

use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use bfc_core::{AddressSpace, HostMemory, MemoryKind, SourceError, Span, SubAllocator};
use libloading::Library;

use crate::compute::Product;
use crate::compute::{Compute, ComputeError};
use crate::compute::{StepCounts, StepId};
use crate::graph::Held;
use crate::graph::{Issue, Work};
use crate::kernels::{ElementType, Family, Job, Kernel};
use crate::libraries::Cublas;

/// What stands in for CUDA.
const HOST: &str = include_str!("../../emulator/host.h");
/// What stands in for cuBLAS.
const CUBLAS: &str = include_str!("../../emulator/cublas.h");

/// Runs kernels on the host. See the module's text.
#[derive(Debug)]
pub struct Emulator(Held<OnHost>);

/// The emulator, without steps.
struct OnHost {
    library: &'static Library,
    /// One kernel at a time, as on a stream.
    turn: Mutex<()>,
    scratch: Box<[u64; 32]>,
    /// Of the memory that work held back may be on.
    space: AddressSpace,
    products: Option<Cublas>,
    /// Whether nothing is computed.
    silent: bool,
}

impl Emulator {
    /// An emulator. The sources are compiled once, and kept in a private folder of the user's cache
    /// (`$XDG_CACHE_HOME/highwater/emulator`, or else `~/.cache/highwater/emulator`).
    ///
    /// # Errors
    /// [`ComputeError::Compile`] if there is no C++ compiler (`CXX`, or else `c++`), or it refuses a source.
    pub fn new() -> Result<Self, ComputeError> {
        static LIBRARY: OnceLock<Result<Library, ComputeError>> = OnceLock::new();
        let library = LIBRARY.get_or_init(library).as_ref().map_err(Clone::clone)?;
        let on_host = OnHost {
            library,
            turn: Mutex::new(()),
            scratch: Box::new([0; 32]),
            space: AddressSpace::new(),
            products: None,
            silent: false,
        };
        Ok(Self(Held::new(on_host)))
    }

    /// The same emulator, which takes kernels and products and computes nothing: what is left is the host's part of the work,
    /// for benches. What is read is whatever was there.
    #[must_use]
    pub fn silent(mut self) -> Self {
        self.0.device_mut().silent = true;
        self
    }

    /// The same emulator, where products of matrices go to a library with cuBLAS's interface and not to a kernel.
    ///
    /// # Errors
    /// As [`Emulator::new`], for the library.
    pub fn with_products(mut self) -> Result<Self, ComputeError> {
        self.0.device_mut().products = Some(Cublas::open(products_library()?, 0)?);
        Ok(self)
    }
}

/// The kernels and the library for products that the emulator runs, as files: for a driver that runs them in a GPU's place.
///
/// # Errors
/// As [`Emulator::new`].
pub fn libraries() -> Result<[PathBuf; 2], ComputeError> {
    Ok([compiled("kernels", &translation_unit())?, products_library()?])
}

fn products_library() -> Result<PathBuf, ComputeError> {
    compiled("products", &format!("{HOST}\n{}\n{CUBLAS}", Family::PRELUDE))
}

/// All sources for all types, as one.
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
    // SAFETY: the library was made from our sources, which have no initialisers.
    unsafe { Library::new(&path) }.map_err(|error| failed(error.to_string()))
}

/// The library that a source gives, which is compiled if that was not done before.
fn compiled(name: &str, text: &str) -> Result<PathBuf, ComputeError> {
    // Other processes write files of other names.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    let path = folder()?.join(format!("{name}-{:016x}.so", hasher.finish()));
    if !path.exists() {
        compile(text, &path)?;
    }
    Ok(path)
}

/// The folder of what is compiled, the same for as long as the process runs.
fn folder() -> Result<&'static Path, ComputeError> {
    static FOLDER: OnceLock<Result<PathBuf, ComputeError>> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| folder::of_user().map_err(|error| failed(error.to_string())));
    folder.as_deref().map_err(Clone::clone)
}

fn failed(reason: String) -> ComputeError {
    ComputeError::Compile { source_name: "kernels for the host".to_owned(), reason }
}

fn compile(text: &str, to: &Path) -> Result<(), ComputeError> {
    let beside = |ending: &str| -> PathBuf {
        let mut name = OsString::from(to);
        name.push(format!(".{}.{ending}", std::process::id()));
        name.into()
    };
    let (source, made) = (beside("cpp"), beside("made"));
    std::fs::write(&source, text).map_err(|error| failed(error.to_string()))?;
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
    let output = Command::new(&compiler)
        .args(["-std=c++17", "-O2", "-U_FORTIFY_SOURCE", "-ffp-contract=off", "-w", "-shared", "-fPIC", "-o"])
        .args([&made, &source])
        .output()
        .map_err(|error| failed(format!("{}: {error}", compiler.to_string_lossy())))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    // Whoever comes second replaces the first one's by the same.
    std::fs::rename(&made, to).map_err(|error| failed(error.to_string()))?;
    let _ = std::fs::remove_file(source);
    Ok(())
}

impl OnHost {
    unsafe fn launch(&self, kernel: Kernel, blocks: u32, job: &Job) -> Result<(), ComputeError> {
        type Function = unsafe extern "C" fn(u32, *const Job);
        // SAFETY: every kernel has this type on the host.
        let function = unsafe { self.library.get::<Function>(kernel.to_string().as_bytes()) };
        let function =
            function.map_err(|error| ComputeError::Device { call: "launch", reason: error.to_string() })?;
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        // A few blocks do the work of all: kernels go on until there is none left.
        // SAFETY: the caller vouches for what the job names, which here is host memory.
        unsafe { function(blocks.min(3), job) };
        Ok(())
    }

    unsafe fn multiply(&self, product: &Product) -> Result<bool, ComputeError> {
        let Some(products) = &self.products else { return Ok(false) };
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the caller vouches for the memory, which here is the host's.
        unsafe { products.multiply(product) }
    }
}

// SAFETY: kernels touch what jobs name, and have ended when a call returns.
unsafe impl Issue for OnHost {
    type Graph = Vec<Work>;

    unsafe fn give(&self, work: &Work) -> Result<bool, ComputeError> {
        match work {
            _ if self.silent => Ok(true),
            Work::Kernel { kernel, blocks, job } => {
                // SAFETY: as the caller says.
                unsafe { self.launch(*kernel, *blocks, job) }.map(|()| true)
            }
            // SAFETY: as the caller says.
            Work::Product { product, .. } => unsafe { self.multiply(product) },
        }
    }

    unsafe fn prepare(&self, work: &[Work]) -> Result<Vec<Work>, ComputeError> {
        Ok(work.to_vec())
    }

    unsafe fn replace(&self, graph: &mut Vec<Work>, place: usize, by: &Work) -> Result<(), ComputeError> {
        graph[place] = *by;
        Ok(())
    }

    unsafe fn start(&self, graph: &Vec<Work>) -> Result<(), ComputeError> {
        for work in graph {
            // SAFETY: as the caller says.
            unsafe { self.give(work) }?;
        }
        Ok(())
    }
}

// SAFETY: kernels touch what jobs name; what is held back is done before bytes are copied.
unsafe impl Compute for Emulator {
    fn name(&self) -> &str {
        "emulated device"
    }

    fn address_space(&self) -> Option<AddressSpace> {
        Some(self.0.device().space)
    }

    unsafe fn launch(&self, kernel: Kernel, blocks: u32, job: &Job) -> Result<(), ComputeError> {
        // SAFETY: as the caller says.
        unsafe { self.0.give(Work::Kernel { kernel, blocks, job: *job }) }.map(drop)
    }

    fn has_products(&self) -> bool {
        self.0.device().products.is_some() || self.0.device().silent
    }

    unsafe fn multiply(&self, product: &Product) -> Result<bool, ComputeError> {
        // SAFETY: as the caller says.
        unsafe { self.0.give(Work::Product { product: *product, known: true }) }
    }

    unsafe fn upload(&self, bytes: &[u8], to: u64) -> Result<(), ComputeError> {
        self.0.settle_for_copy()?;
        // SAFETY: the caller vouches for the memory, which here is the host's.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to as *mut u8, bytes.len()) };
        Ok(())
    }

    unsafe fn download(&self, from: u64, bytes: &mut [u8]) -> Result<(), ComputeError> {
        self.0.settle()?;
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

    fn step_counts(&self, step: StepId) -> StepCounts {
        self.0.counts(step)
    }

    fn settle(&self) {
        self.0.settle_unheard();
    }
}

/// Host memory in the place of a device's, so that nothing but the emulator follows its addresses.
#[derive(Debug)]
pub struct EmulatedMemory {
    memory: HostMemory,
    /// Who computes on it.
    compute: Weak<dyn Compute>,
    space: Option<AddressSpace>,
}

impl EmulatedMemory {
    /// Memory for an [`Emulator`], or for what passes its work on to one.
    #[must_use]
    pub fn of(compute: &Arc<dyn Compute>) -> Self {
        let (memory, space) = (HostMemory::default(), compute.address_space());
        Self { memory, compute: Arc::downgrade(compute), space }
    }
}

// SAFETY: regions are those of `HostMemory`, which promises as much and more.
unsafe impl SubAllocator for EmulatedMemory {
    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::Device
    }

    fn address_space(&self) -> Option<AddressSpace> {
        self.space
    }

    fn allocate(&self, alignment: u64, bytes: u64) -> Result<Span, SourceError> {
        self.memory.allocate(alignment, bytes)
    }

    unsafe fn free(&self, region: Span) {
        // Work on it that was held back is done before.
        if let Some(compute) = self.compute.upgrade() {
            compute.settle();
        }
        // SAFETY: the region came from the same memory, and the caller promises the rest.
        unsafe { self.memory.free(region) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{BLOCK, Operand, Output};

    #[test]
    fn every_kernel_is_there_under_its_name() {
        let emulator = Emulator::new().unwrap();
        for kernel in Kernel::all() {
            // SAFETY: the symbol is looked up, not called.
            let symbol =
                unsafe { emulator.0.device().library.get::<*const ()>(kernel.to_string().as_bytes()) };
            assert!(symbol.is_ok(), "{kernel}");
        }
        assert_eq!(Kernel::all().count(), 7 * (9 + 8 + 5 + 5 + 2 + 1 + 1 + 1) + 4 * (3 + 8 + 6 + 2 + 3 + 5));
    }

    /// The kernels' own ways through elements, to be called without any.
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
        // SAFETY: the library was made just now, and has no initialisers.
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
                // SAFETY: both arrays have as many numbers as there are axes.
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
            // The first and the last threads come to the last elements.
            for thread in (0..16).chain(threads - 16..threads) {
                let mut own = [0; 64];
                // SAFETY: of so many threads none has more than 24 elements.
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
        // The columns of a matrix of 2 by 3, plus 10.
        let (from, mut to) = ([1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0], [0.0_f32; 6]);
        let mut job = Job::over(6, &[3, 2]);
        job.inputs[0] = Operand::strided(from.as_ptr() as u64, &[1, 3]);
        job.outputs[0] = Output::new(to.as_mut_ptr() as u64);
        job.function = 4;
        job.constants[0] = 10.0;
        let kernel = Kernel::new(Family::Elementwise, "arithmetic", ElementType::F32);
        // SAFETY: operands and output are the arrays above.
        unsafe { emulator.launch(kernel, 1, &job) }.unwrap();
        assert_eq!(to, [11.0, 14.0, 12.0, 15.0, 13.0, 16.0]);
    }
}
