//! cuBLAS, NVIDIA's library for matrix products, found at run time.
//!
//! This module calls the C interface directly, because the driver's binding panics where a library is missing. cuBLAS
//! is column-major: it computes the transposed product from the transposed factors in reverse order, which are the same
//! bytes.

use std::ffi::{OsStr, c_int, c_void};
use std::ptr::{null_mut, with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::{Mutex, PoisonError};

use libloading::Library;

use super::dynamic::{self, function};
use super::search::{Candidate, LibraryName, candidates_in_process};
use crate::compute::{ComputeError, Factor, LibraryProblem, Product, Target, not_newer};
use crate::kernels::ElementType;
use crate::settings::CUBLAS;

/// The names of the library.
const LIBRARY: LibraryName = LibraryName::of_toolkit("libcublas", &CUBLAS);

/// CUDA 13 and later support this architecture and newer ones.
const OLDEST_OF_13: u32 = 75;

// Constants of `cublas_api.h` and `library_types.h`.
const MAJOR_VERSION: c_int = 0;
const MINOR_VERSION: c_int = 1;
const ALLOC_FAILED: c_int = 3;
const ARCH_MISMATCH: c_int = 8;
const NOT_SUPPORTED: c_int = 15;
const AS_STORED: c_int = 0;
const TRANSPOSED: c_int = 1;
/// Half-precision products are summed in 32 bits, even if the library splits the depth.
const DISALLOW_REDUCED_PRECISION_REDUCTION: c_int = 16;
const COMPUTE_32F: c_int = 68;
const COMPUTE_32F_FAST_TF32: c_int = 77;
const COMPUTE_64F: c_int = 70;
const DEFAULT_ALGORITHM: c_int = -1;

/// The library's handle.
type Handle = *mut c_void;

type Multiply = unsafe extern "C" fn(
    Handle,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    *const c_void,
    *const c_void,
    c_int,
    c_int,
    i64,
    *const c_void,
    c_int,
    c_int,
    i64,
    *const c_void,
    *mut c_void,
    c_int,
    c_int,
    i64,
    c_int,
    c_int,
    c_int,
) -> c_int;

type SetStream = unsafe extern "C" fn(Handle, *mut c_void) -> c_int;

/// The library with a handle that submits to one stream.
#[derive(Debug)]
pub struct Cublas {
    library: &'static Library,
    /// The file, or the name that the system resolved.
    name: String,
    version: u32,
    multiply: Multiply,
    set_workspace: unsafe extern "C" fn(Handle, *mut c_void, usize) -> c_int,
    set_stream: SetStream,
    /// The driver handle of the stream.
    stream: u64,
    tf32: bool,
    /// The handle's address. One call at a time.
    handle: Mutex<usize>,
}

impl Cublas {
    /// Finds a library that starts on the device, which is current on this thread. `stream` is a driver handle. See
    /// [`bfc_core::environment`] for the variable that overrides the file.
    ///
    /// # Errors
    /// [`ComputeError::NoProducts`] with all candidates.
    pub fn find(stream: u64, target: &Target) -> Result<Self, ComputeError> {
        let mut tried = Vec::new();
        for candidate in candidates_in_process(LIBRARY) {
            match candidate.check(target).and_then(|()| Self::start(&candidate, stream, Some(target))) {
                Ok(library) => return Ok(library),
                Err(problem) => tried.push(candidate.tried(problem)),
            }
        }
        Err(ComputeError::NoProducts { tried })
    }

    /// Opens the library with this path or name.
    ///
    /// # Errors
    /// [`ComputeError::NoProducts`] if it cannot be opened, is not cuBLAS, or does not start.
    pub fn open(path: impl AsRef<OsStr>, stream: u64) -> Result<Self, ComputeError> {
        let candidate = Candidate::at(path.as_ref());
        let failed = |problem| ComputeError::NoProducts { tried: vec![candidate.tried(problem)] };
        Self::start(&candidate, stream, None).map_err(failed)
    }

    fn start(candidate: &Candidate, stream: u64, target: Option<&Target>) -> Result<Self, LibraryProblem> {
        type Create = unsafe extern "C" fn(*mut Handle) -> c_int;
        type SetMode = unsafe extern "C" fn(Handle, c_int) -> c_int;
        type Version = unsafe extern "C" fn(Handle, *mut c_int) -> c_int;
        type Property = unsafe extern "C" fn(c_int, *mut c_int) -> c_int;
        let library = dynamic::open(&candidate.path)?;
        // Look up all functions before the first call, so that an error leaves nothing half started.
        let create: Create = function(library, c"cublasCreate_v2")?;
        let set_stream: SetStream = function(library, c"cublasSetStream_v2")?;
        let set_mode: SetMode = function(library, c"cublasSetMathMode")?;
        let ask_version: Version = function(library, c"cublasGetVersion_v2")?;
        let multiply = function(library, c"cublasGemmStridedBatchedEx")?;
        let set_workspace = function(library, c"cublasSetWorkspace_v2")?;
        function::<unsafe extern "C" fn(Handle) -> c_int>(library, c"cublasDestroy_v2")?;
        // The version is available before the library starts, which would take device memory.
        if let (Some(target), Ok(property)) = (target, function::<Property>(library, c"cublasGetProperty")) {
            let [mut major, mut minor] = [0, 0];
            // SAFETY: the library writes one number, the first of its version.
            let asked = unsafe { property(MAJOR_VERSION, &raw mut major) };
            // SAFETY: the library writes one number, the second.
            let also = unsafe { property(MINOR_VERSION, &raw mut minor) };
            if (asked, also) == (0, 0) {
                suits([major, minor].map(c_int::unsigned_abs), target)?;
            }
        }
        let (mut handle, mut version) = (null_mut(), 0);
        let started = |call: &'static str, status| match status {
            0 => Ok(()),
            status => Err(LibraryProblem::NotStarted { call, reason: reason(library, status) }),
        };
        // SAFETY: the library writes a handle.
        started("cublasCreate", unsafe { create(&raw mut handle) })?;
        let handle = Mutex::new(handle.expose_provenance());
        let name = candidate.name.clone();
        // From here on, dropping it destroys the handle.
        let mut cublas = Self {
            library,
            name,
            version: 0,
            multiply,
            set_workspace,
            set_stream,
            stream,
            tf32: false,
            handle,
        };
        let handle = cublas.raw_handle();
        let stream = with_exposed_provenance_mut(stream as usize);
        // SAFETY: the handle was made just now; the stream is one of the device's, as the caller says.
        started("cublasSetStream", unsafe { set_stream(handle, stream) })?;
        // SAFETY: the handle was made just now.
        started("cublasSetMathMode", unsafe { set_mode(handle, DISALLOW_REDUCED_PRECISION_REDUCTION) })?;
        // SAFETY: the handle was made just now, and the library writes one number.
        started("cublasGetVersion", unsafe { ask_version(handle, &raw mut version) })?;
        cublas.version = version.unsigned_abs();
        if let Some(target) = target {
            suits([cublas.version / 10_000, cublas.version / 100 % 100], target)?;
        }
        Ok(cublas)
    }

    /// The file, or the name that the system resolved.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.name
    }

    /// Allows 32-bit factors to be rounded to TF32 (11 significant bits) for tensor cores. Sums stay 32-bit.
    #[must_use]
    pub fn with_tf32(mut self, tf32: bool) -> Self {
        self.tf32 = tf32;
        self
    }

    /// The version, such as 120901 for 12.9.1.
    #[must_use]
    pub const fn version(&self) -> u32 {
        self.version
    }

    /// Submits a product. Returns false, without doing anything, if the library does not support it.
    ///
    /// # Safety
    /// The factors, the product and the workspace are live memory of the device with the sizes that the product states.
    /// They stay live until later work has ended, and nothing else uses what is written.
    ///
    /// # Errors
    /// [`ComputeError::Device`] with the library's message.
    pub unsafe fn multiply(&self, product: &Product) -> Result<bool, ComputeError> {
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: as the caller says.
        unsafe { self.multiply_with(with_exposed_provenance_mut(*handle), product) }
    }

    /// Submits one product to another stream of the device.
    ///
    /// # Safety
    /// As [`multiply`](Self::multiply), and the stream is live.
    ///
    /// # Errors
    /// As [`multiply`](Self::multiply).
    pub(crate) unsafe fn multiply_on(&self, stream: u64, product: &Product) -> Result<bool, ComputeError> {
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        let raw = with_exposed_provenance_mut(*handle);
        let go_to = |stream: u64| {
            // SAFETY: this thread holds the live handle; the stream is live.
            let status = unsafe { (self.set_stream)(raw, with_exposed_provenance_mut(stream as usize)) };
            self.done("cublasSetStream", status)
        };
        go_to(stream)?;
        // SAFETY: as the caller says.
        let multiplied = unsafe { self.multiply_with(raw, product) };
        go_to(self.stream)?;
        multiplied
    }

    /// # Safety
    /// As [`multiply`](Self::multiply), and this thread holds the handle.
    unsafe fn multiply_with(&self, raw: Handle, product: &Product) -> Result<bool, ComputeError> {
        let (Some((element, compute)), Some((out_element, _))) =
            (self.types(product.element), self.types(product.out_element))
        else {
            return Ok(false);
        };
        let (wide, narrow) = ([1.0_f64, 0.0], [1.0_f32, 0.0]);
        let scalar = |n: usize| -> *const c_void {
            if compute == COMPUTE_64F { (&raw const wide[n]).cast() } else { (&raw const narrow[n]).cast() }
        };
        let op = |factor: &Factor| if factor.by_columns { TRANSPOSED } else { AS_STORED };
        let from = |factor: &Factor| with_exposed_provenance::<c_void>(factor.address as usize);
        let to = with_exposed_provenance_mut::<c_void>(product.out as usize);
        let (workspace, bytes) = product.workspace;
        let Product { rows, columns, depth, batch, lhs, rhs, accumulate, .. } = product;
        let step = i64::from(*rows) * i64::from(*columns);
        // SAFETY: this thread holds the live handle; the caller vouches for the workspace.
        let status = unsafe {
            (self.set_workspace)(raw, with_exposed_provenance_mut(workspace as usize), bytes as usize)
        };
        self.done("cublasSetWorkspace", status)?;
        // SAFETY: as above. The factors' rows or columns are contiguous, and the call reads the scalars before it
        // returns.
        let status = unsafe {
            (self.multiply)(
                raw,
                op(rhs),
                op(lhs),
                *columns,
                *rows,
                *depth,
                scalar(0),
                from(rhs),
                element,
                rhs.leading,
                rhs.step,
                from(lhs),
                element,
                lhs.leading,
                lhs.step,
                scalar(usize::from(!accumulate)),
                to,
                out_element,
                *columns,
                step,
                *batch,
                compute,
                DEFAULT_ALGORITHM,
            )
        };
        match status {
            NOT_SUPPORTED | ARCH_MISMATCH | ALLOC_FAILED => Ok(false),
            status => self.done("cublasGemmStridedBatchedEx", status).map(|()| true),
        }
    }

    /// The library's constants for an element type and the type of its sums.
    const fn types(&self, element: ElementType) -> Option<(c_int, c_int)> {
        match element {
            ElementType::F32 if self.tf32 => Some((0, COMPUTE_32F_FAST_TF32)),
            ElementType::F32 => Some((0, COMPUTE_32F)),
            ElementType::F64 => Some((1, COMPUTE_64F)),
            ElementType::F16 => Some((2, COMPUTE_32F)),
            ElementType::BF16 => Some((14, COMPUTE_32F)),
            _ => None,
        }
    }

    fn raw_handle(&self) -> Handle {
        with_exposed_provenance_mut(*self.handle.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn done(&self, call: &'static str, status: c_int) -> Result<(), ComputeError> {
        if status == 0 {
            return Ok(());
        }
        Err(ComputeError::Device { call, reason: reason(self.library, status) })
    }
}

impl Drop for Cublas {
    fn drop(&mut self) {
        type Destroy = unsafe extern "C" fn(Handle) -> c_int;
        if let Ok(destroy) = function::<Destroy>(self.library, c"cublasDestroy_v2") {
            // SAFETY: this library created the handle, and it is not used again.
            let _ = unsafe { destroy(self.raw_handle()) };
        }
    }
}

/// Refuses library versions that do not support the device.
const fn suits([major, minor]: [u32; 2], target: &Target) -> Result<(), LibraryProblem> {
    if major >= 13 && target.architecture < OLDEST_OF_13 {
        return Err(LibraryProblem::UnknownDevice { major, minor, architecture: target.architecture });
    }
    not_newer(major, target)
}

/// The library's text for a status.
fn reason(library: &Library, status: c_int) -> String {
    dynamic::reason(library, c"cublasGetStatusString", status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_an_error_in_plain_words() {
        let error = Cublas::open("/nowhere/libcublas.so", 0).unwrap_err();
        assert!(matches!(error, ComputeError::NoProducts { .. }));
        assert!(
            error.to_string().starts_with("no library for matrix products on CUDA devices (cuBLAS): "),
            "{error}"
        );
    }
}
