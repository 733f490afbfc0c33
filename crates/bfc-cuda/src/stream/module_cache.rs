//! Compiles and loads kernels at first use.

use std::collections::HashMap;
use std::ffi::CString;
use std::ptr::with_exposed_provenance_mut;
use std::sync::{Mutex, OnceLock, PoisonError};

use cudarc::driver::result;
use cudarc::driver::sys::CUfunction;

use crate::compute::{ComputeError, Target, call_device};
use crate::driver::CudaDriver;
use crate::kernels::{ElementType, KernelId, KernelSource};
use crate::libraries::{KernelCache, Key, Nvrtc};

/// The loaded kernels of one device.
#[derive(Debug)]
pub(super) struct ModuleCache {
    target: Target,
    compiler: OnceLock<Nvrtc>,
    cache: KernelCache,
    loaded: Mutex<Loaded>,
}

/// Driver handles.
#[derive(Debug, Default)]
struct Loaded {
    modules: HashMap<(&'static KernelSource, ElementType), usize>,
    functions: HashMap<KernelId, usize>,
}

impl ModuleCache {
    pub(super) fn new(target: Target) -> Self {
        Self { target, compiler: OnceLock::new(), cache: KernelCache::of_user(), loaded: Mutex::default() }
    }

    /// Finds the compiler. A missing compiler is searched for again at the next call.
    pub(super) fn compiler(&self) -> Result<&Nvrtc, ComputeError> {
        if let Some(compiler) = self.compiler.get() {
            return Ok(compiler);
        }
        let found = Nvrtc::find(&self.target)?;
        Ok(self.compiler.get_or_init(|| found))
    }

    /// The driver handle of a kernel, compiled and loaded at first use.
    pub(super) fn function(&self, driver: &CudaDriver, kernel: KernelId) -> Result<CUfunction, ComputeError> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&function) = loaded.functions.get(&kernel) {
            return Ok(with_exposed_provenance_mut(function));
        }
        let key = (kernel.source, kernel.element);
        let module = match loaded.modules.get(&key) {
            Some(&module) => module,
            None => {
                let module = load(driver, &self.code(kernel.source, kernel.element)?)?;
                loaded.modules.insert(key, module);
                module
            }
        };
        let unnamed = |error: std::ffi::NulError| ComputeError::Device {
            call: "cuModuleGetFunction",
            reason: error.to_string(),
        };
        let name = CString::new(kernel.to_string()).map_err(unnamed)?;
        let function = call_device(driver, "cuModuleGetFunction", || {
            // SAFETY: the module stays loaded until the end.
            unsafe { result::module::get_function(with_exposed_provenance_mut(module), name) }
        })?;
        loaded.functions.insert(kernel, function.expose_provenance());
        Ok(function)
    }

    /// The compiled code, from the cache or the compiler.
    fn code(&self, of: &KernelSource, element: ElementType) -> Result<Vec<u8>, ComputeError> {
        let compiler = self.compiler()?;
        let (source, options) = (of.translation_unit(element), compiler.options(self.target.architecture)?);
        let key = Key { source: &source, options: &options, version: compiler.version() };
        if let Some(code) = self.cache.get(key) {
            return Ok(code);
        }
        let name = format!("{}_{}.cu", of.name(), element.suffix());
        let image = compiler.compile(&name, &source, &options)?;
        self.cache.put(key, &image.code);
        Ok(image.code)
    }

    /// Unloads all modules.
    ///
    /// # Safety
    /// No current or later work uses them.
    pub(super) unsafe fn unload(&self, driver: &CudaDriver) {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.functions.clear();
        for (_, module) in loaded.modules.drain() {
            // A lost device keeps its modules.
            let _ = call_device(driver, "cuModuleUnload", || {
                // SAFETY: the module is loaded and unused, as the caller says.
                unsafe { result::module::unload(with_exposed_provenance_mut(module)) }
            });
        }
    }
}

fn load(driver: &CudaDriver, code: &[u8]) -> Result<usize, ComputeError> {
    // PTX must end with a zero; machine code ignores it.
    let code = [code, &[0]].concat();
    let module = call_device(driver, "cuModuleLoadData", || {
        // SAFETY: the code is complete, and the driver copies it.
        unsafe { result::module::load_data(code.as_ptr().cast()) }
    })?;
    Ok(module.expose_provenance())
}
