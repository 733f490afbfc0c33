//! cuBLAS, the library for products of matrices on devices, found at run time.
//!
//! It is called by its C interface directly: the binding used for the driver panics where a library is missing. It counts
//! columns first, so that it is asked for the transposed product of the transposed factors in the other order, which
//! is the same numbers at the same places.

use std::ffi::{CStr, OsStr, c_int, c_void};
use std::ptr::{null_mut, with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::{Mutex, PoisonError};

use libloading::Library;

use crate::compute::ComputeError;
use crate::foreign;
use crate::kernels::ElementType;
use crate::product::{Factor, Product};

/// Names that the library goes by, the newest first.
const NAMES: [&str; 3] = ["libcublas.so.13", "libcublas.so.12", "libcublas.so"];

// Numbers of `cublas_api.h` and `library_types.h`.
const ALLOC_FAILED: c_int = 3;
const ARCH_MISMATCH: c_int = 8;
const NOT_SUPPORTED: c_int = 15;
const AS_STORED: c_int = 0;
const TRANSPOSED: c_int = 1;
/// Sums of halves stay 32-bit floats also where a product is cut along its depth.
const DISALLOW_REDUCED_PRECISION_REDUCTION: c_int = 16;
const COMPUTE_32F: c_int = 68;
const COMPUTE_32F_FAST_TF32: c_int = 77;
const COMPUTE_64F: c_int = 70;
const DEFAULT_ALGORITHM: c_int = -1;

/// What the library knows itself by.
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

/// The library with a handle, whose work goes to one stream.
#[derive(Debug)]
pub struct Cublas {
    library: Library,
    version: u32,
    multiply: Multiply,
    set_workspace: unsafe extern "C" fn(Handle, *mut c_void, usize) -> c_int,
    set_stream: SetStream,
    /// The driver's handle of the stream that work goes to.
    stream: u64,
    tf32: bool,
    /// The handle's address: one call at a time.
    handle: Mutex<usize>,
}

impl Cublas {
    /// The library where the system finds it, for the device that is current on this thread. `stream` is the driver's
    /// handle of one of its streams.
    ///
    /// # Errors
    /// [`ComputeError::NoProducts`] if it is not there, or cannot start.
    pub fn find(stream: u64) -> Result<Self, ComputeError> {
        let mut missing = None;
        for name in NAMES {
            match load(name.as_ref()) {
                Ok(library) => return Self::start(library, stream),
                Err(error) => missing = missing.or(Some(error)),
            }
        }
        Err(missing.unwrap_or_else(|| no_products("no name to look for".to_owned())))
    }

    /// The library at a path, or of a name that the system looks for.
    ///
    /// # Errors
    /// As [`Cublas::find`].
    pub fn open(path: impl AsRef<OsStr>, stream: u64) -> Result<Self, ComputeError> {
        Self::start(load(path.as_ref())?, stream)
    }

    fn start(library: Library, stream: u64) -> Result<Self, ComputeError> {
        type Create = unsafe extern "C" fn(*mut Handle) -> c_int;
        type SetMode = unsafe extern "C" fn(Handle, c_int) -> c_int;
        type Version = unsafe extern "C" fn(Handle, *mut c_int) -> c_int;
        // All functions before the first call, so that nothing is left half done.
        let create: Create = function(&library, c"cublasCreate_v2")?;
        let set_stream: SetStream = function(&library, c"cublasSetStream_v2")?;
        let set_mode: SetMode = function(&library, c"cublasSetMathMode")?;
        let ask_version: Version = function(&library, c"cublasGetVersion_v2")?;
        let multiply = function(&library, c"cublasGemmStridedBatchedEx")?;
        let set_workspace = function(&library, c"cublasSetWorkspace_v2")?;
        function::<unsafe extern "C" fn(Handle) -> c_int>(&library, c"cublasDestroy_v2")?;
        let (mut handle, mut version) = (null_mut(), 0);
        // SAFETY: the library writes a handle.
        let status = unsafe { create(&raw mut handle) };
        if status != 0 {
            return Err(no_products(format!("cublasCreate: {}", reason(&library, status))));
        }
        let handle = Mutex::new(handle.expose_provenance());
        // From here on, dropping it destroys the handle.
        let mut cublas =
            Self { library, version: 0, multiply, set_workspace, set_stream, stream, tf32: false, handle };
        let handle = cublas.raw_handle();
        let stream = with_exposed_provenance_mut(stream as usize);
        let started = |call: &'static str, status| {
            if status == 0 {
                Ok(())
            } else {
                Err(no_products(format!("{call}: {}", reason(&cublas.library, status))))
            }
        };
        // SAFETY: the handle was made just now; the stream is one of the device's, as the caller says.
        started("cublasSetStream", unsafe { set_stream(handle, stream) })?;
        // SAFETY: the handle was made just now.
        started("cublasSetMathMode", unsafe { set_mode(handle, DISALLOW_REDUCED_PRECISION_REDUCTION) })?;
        // SAFETY: the handle was made just now, and the library writes one number.
        started("cublasGetVersion", unsafe { ask_version(handle, &raw mut version) })?;
        cublas.version = version.unsigned_abs();
        Ok(cublas)
    }

    /// Whether factors of 32-bit floats may be rounded to 11 significant bits, as tensor cores take them; sums are not.
    #[must_use]
    pub fn with_tf32(mut self, tf32: bool) -> Self {
        self.tf32 = tf32;
        self
    }

    /// Its version, as in 120901 for 12.9.1.
    #[must_use]
    pub const fn version(&self) -> u32 {
        self.version
    }

    /// Has the device multiply. False if the library does not know how to, and nothing is done then.
    ///
    /// # Safety
    /// The factors, the product and the workspace are live memory of the device, of the sizes that the product says, and
    /// stay so until work given later has ended; nothing else uses what is written.
    ///
    /// # Errors
    /// [`ComputeError::Device`] with what the library says.
    pub unsafe fn multiply(&self, product: &Product) -> Result<bool, ComputeError> {
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: as the caller says.
        unsafe { self.multiply_with(with_exposed_provenance_mut(*handle), product) }
    }

    /// The same on another stream of the device, for this once.
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
            // SAFETY: the handle is live and this thread's alone; the stream is live.
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
    /// As [`multiply`](Self::multiply); the handle is ours and this thread's alone.
    unsafe fn multiply_with(&self, raw: Handle, product: &Product) -> Result<bool, ComputeError> {
        let Some((element, compute)) = self.types(product.element) else { return Ok(false) };
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
        // SAFETY: the handle is live and this thread's alone; the caller vouches for the workspace.
        let status = unsafe {
            (self.set_workspace)(raw, with_exposed_provenance_mut(workspace as usize), bytes as usize)
        };
        self.done("cublasSetWorkspace", status)?;
        // SAFETY: as above; the factors' numbers are of rows or columns that lie along memory, and the scalars outlive the
        // call, which reads them at once.
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
                element,
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

    /// The library's numbers for a type of elements and for how it is summed.
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
        Err(ComputeError::Device { call, reason: reason(&self.library, status) })
    }
}

impl Drop for Cublas {
    fn drop(&mut self) {
        type Destroy = unsafe extern "C" fn(Handle) -> c_int;
        if let Ok(destroy) = function::<Destroy>(&self.library, c"cublasDestroy_v2") {
            // SAFETY: the handle was made by this library, and nobody uses it any more.
            let _ = unsafe { destroy(self.raw_handle()) };
        }
    }
}

fn load(path: &OsStr) -> Result<Library, ComputeError> {
    // SAFETY: opening a library runs its initialisers; the path is that of cuBLAS.
    unsafe { Library::new(path) }.map_err(|error| no_products(error.to_string()))
}

fn function<T: Copy>(library: &Library, name: &CStr) -> Result<T, ComputeError> {
    foreign::function(library, name).map_err(no_products)
}

/// The library's words for a status.
fn reason(library: &Library, status: c_int) -> String {
    foreign::reason(library, c"cublasGetStatusString", status)
}

fn no_products(reason: String) -> ComputeError {
    ComputeError::NoProducts { reason }
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
