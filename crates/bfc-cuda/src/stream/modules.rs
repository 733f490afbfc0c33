//! Kernels on a device: compiled when first needed, loaded, and unloaded at the end.

use std::collections::HashMap;
use std::ffi::CString;
use std::ptr::with_exposed_provenance_mut;
use std::sync::{Mutex, OnceLock, PoisonError};

use cudarc::driver::result;
use cudarc::driver::sys::CUfunction;

use crate::compute::{ComputeError, Target};
use crate::driver::CudaDriver;
use crate::kernels::{ElementType, Family, Kernel};
use crate::libraries::Nvrtc;
use crate::libraries::{KernelCache, Key};

/// The kernels of one device.
#[derive(Debug)]
pub(super) struct Modules {
    target: Target,
    compiler: OnceLock<Nvrtc>,
    cache: KernelCache,
    loaded: Mutex<Loaded>,
}

/// By the driver's handles.
#[derive(Debug, Default)]
struct Loaded {
    modules: HashMap<(Family, ElementType), usize>,
    functions: HashMap<Kernel, usize>,
}

impl Modules {
    pub(super) fn new(target: Target) -> Self {
        Self { target, compiler: OnceLock::new(), cache: KernelCache::of_user(), loaded: Mutex::default() }
    }

    /// The compiler. One that is not there is looked for again by the next who needs it.
    pub(super) fn compiler(&self) -> Result<&Nvrtc, ComputeError> {
        if let Some(compiler) = self.compiler.get() {
            return Ok(compiler);
        }
        let found = Nvrtc::find(&self.target)?;
        Ok(self.compiler.get_or_init(|| found))
    }

    /// The driver's handle of a kernel, which is compiled and loaded if that was not done before.
    pub(super) fn function(&self, driver: &CudaDriver, kernel: Kernel) -> Result<CUfunction, ComputeError> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&function) = loaded.functions.get(&kernel) {
            return Ok(with_exposed_provenance_mut(function));
        }
        let key = (kernel.family, kernel.element);
        let module = match loaded.modules.get(&key) {
            Some(&module) => module,
            None => {
                let module = load(driver, &self.code(kernel.family, kernel.element)?)?;
                loaded.modules.insert(key, module);
                module
            }
        };
        let unnamed = |error: std::ffi::NulError| ComputeError::Device {
            call: "cuModuleGetFunction",
            reason: error.to_string(),
        };
        let name = CString::new(kernel.to_string()).map_err(unnamed)?;
        let function = driver.call("cuModuleGetFunction", 0, || {
            // SAFETY: the module was loaded and is not unloaded before the end.
            unsafe { result::module::get_function(with_exposed_provenance_mut(module), name) }
        });
        let function = function.map_err(|error| ComputeError::of_driver("cuModuleGetFunction", &error))?;
        loaded.functions.insert(kernel, function.expose_provenance());
        Ok(function)
    }

    /// Compiled code, from the cache or from the compiler.
    fn code(&self, family: Family, element: ElementType) -> Result<Vec<u8>, ComputeError> {
        let compiler = self.compiler()?;
        let (source, options) =
            (family.translation_unit(element), compiler.options(self.target.architecture)?);
        let key = Key { source: &source, options: &options, version: compiler.version() };
        if let Some(code) = self.cache.get(key) {
            return Ok(code);
        }
        let name = format!("{}_{}.cu", family.name(), element.suffix());
        let image = compiler.compile(&name, &source, &options)?;
        self.cache.put(key, &image.code);
        Ok(image.code)
    }

    /// Has the driver forget all of them.
    ///
    /// # Safety
    /// No work uses them, or will.
    pub(super) unsafe fn unload(&self, driver: &CudaDriver) {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.functions.clear();
        for (_, module) in loaded.modules.drain() {
            // A device that is lost keeps them: nothing can be done about it.
            let _ = driver.call("cuModuleUnload", 0, || {
                // SAFETY: it was loaded and not unloaded, and nobody uses it, as the caller says.
                unsafe { result::module::unload(with_exposed_provenance_mut(module)) }
            });
        }
    }
}

fn load(driver: &CudaDriver, code: &[u8]) -> Result<usize, ComputeError> {
    // Text for the driver ends with a zero; code may have one more byte.
    let code = [code, &[0]].concat();
    let module = driver.call("cuModuleLoadData", 0, || {
        // SAFETY: the code came from the compiler, whole, and the driver copies it.
        unsafe { result::module::load_data(code.as_ptr().cast()) }
    });
    Ok(module.map_err(|error| ComputeError::of_driver("cuModuleLoadData", &error))?.expose_provenance())
}
