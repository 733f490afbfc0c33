//! The kernels on the host, for tests: compiled by the machine's C++ compiler, and run thread by thread.
//!
//! It computes what the sources say, slowly. What only a device shows it does not: races between the threads of a kernel,
//! the compiler for devices, the order of work given and work done. Threads that wait for each other where some have left
//! already, which is undefined on a device, end the process.

use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use bfc_core::{HostMemory, MemoryKind, SourceError, Span, SubAllocator};
use libloading::Library;

use crate::compute::{Compute, ComputeError};
use crate::cublas::Cublas;
use crate::held::Held;
use crate::kernels::{ElementType, Family, Job, Kernel};
use crate::product::Product;
use crate::step::{StepCounts, StepId};
use crate::work::{Issue, Work};

/// What stands in for CUDA.
const HOST: &str = include_str!("../emulator/host.h");
/// What stands in for cuBLAS.
const CUBLAS: &str = include_str!("../emulator/cublas.h");

/// Runs kernels on the host. See the module's text.
#[derive(Debug)]
pub struct Emulator(Held<OnHost>);

/// The emulator, without steps.
struct OnHost {
    library: &'static Library,
    /// One kernel at a time, as on a stream.
    turn: Mutex<()>,
    scratch: Box<[u64; 32]>,
    products: Option<Cublas>,
    /// Whether nothing is computed.
    silent: bool,
}

impl Emulator {
    /// An emulator. The sources are compiled once, and kept in the system's folder for temporary files.
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
        let path = compiled("products", &format!("{HOST}\n{}\n{CUBLAS}", Family::PRELUDE))?;
        self.0.device_mut().products = Some(Cublas::open(path, 0)?);
        Ok(self)
    }
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
    let path = std::env::temp_dir().join(format!("highwater-{name}-{:016x}.so", hasher.finish()));
    if !path.exists() {
        compile(text, &path)?;
    }
    Ok(path)
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
}

impl EmulatedMemory {
    /// Memory for who computes on it.
    #[must_use]
    pub fn of(compute: &Arc<dyn Compute>) -> Self {
        Self { memory: HostMemory::default(), compute: Arc::downgrade(compute) }
    }
}

// SAFETY: regions are those of `HostMemory`, which promises as much and more.
unsafe impl SubAllocator for EmulatedMemory {
    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::Device
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
    use crate::kernels::{Operand, Output};

    #[test]
    fn every_kernel_is_there_under_its_name() {
        let emulator = Emulator::new().unwrap();
        for kernel in Kernel::all() {
            // SAFETY: the symbol is looked up, not called.
            let symbol =
                unsafe { emulator.0.device().library.get::<*const ()>(kernel.to_string().as_bytes()) };
            assert!(symbol.is_ok(), "{kernel}");
        }
        assert_eq!(Kernel::all().count(), 7 * (9 + 8 + 4 + 5 + 1 + 1 + 1) + 4 * (2 + 1 + 8 + 6 + 2 + 3 + 5));
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
