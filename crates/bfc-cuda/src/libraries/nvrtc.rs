//! NVRTC, CUDA's run-time compiler, found at run time.
//!
//! It needs no device and no driver. This module calls its C interface directly, because the driver's binding panics
//! where a library is missing.

use std::ffi::{CStr, CString, OsStr, c_char, c_int};
use std::ptr::{null, null_mut};

use libloading::Library;

use super::dynamic;
use super::search::{Candidate, LibraryName, candidates_in_process};
use crate::compute::{ComputeError, LibraryProblem, Target, TriedLibrary, not_newer};
use crate::settings::NVRTC;

/// The names of the library.
const LIBRARY: LibraryName = LibraryName::of_toolkit("libnvrtc", &NVRTC);

/// Compiled code that the driver can load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompiledCode {
    /// Machine code for the architecture, or PTX that the driver compiles further.
    pub code: Vec<u8>,
    /// The compiler's log with its warnings.
    pub log: String,
}

/// The compiler.
#[derive(Debug)]
pub struct Nvrtc {
    library: &'static Library,
    /// The file, or the name that the system resolved.
    name: String,
    version: (u32, u32),
    /// Supported architectures, such as 90 for `sm_90`, ascending.
    architectures: Vec<u32>,
}

/// The library's handle of a program.
type Program = *mut std::ffi::c_void;

/// Destroys the program when dropped.
struct Destroy<'a>(&'a Nvrtc, Program);

impl Drop for Destroy<'_> {
    fn drop(&mut self) {
        type Function = unsafe extern "C" fn(*mut Program) -> c_int;
        if let Ok(destroy) = self.0.function::<Function>(c"nvrtcDestroyProgram") {
            // SAFETY: this library created the program, and it is not used again.
            let _ = unsafe { destroy(&raw mut self.1) };
        }
    }
}

impl Nvrtc {
    /// Finds a library that compiles for the device, to machine code or at least to PTX that its driver compiles
    /// further. See [`bfc_core::environment`] for the variable that overrides the file.
    ///
    /// # Errors
    /// [`ComputeError::NoCompiler`] with all candidates.
    pub fn find(target: &Target) -> Result<Self, ComputeError> {
        let (mut tried, mut by_text) = (Vec::new(), None);
        for candidate in candidates_in_process(LIBRARY) {
            let found = candidate.check(target).and_then(|()| Self::load(&candidate));
            let suited = found.and_then(|compiler| compiler.suits(target).map(|exactly| (compiler, exactly)));
            match suited {
                Ok((compiler, true)) => return Ok(compiler),
                Ok((compiler, false)) => by_text = by_text.or(Some(compiler)),
                Err(problem) => tried.push(candidate.tried(problem)),
            }
        }
        by_text.ok_or(ComputeError::NoCompiler { tried })
    }

    /// Opens the library with this path or name.
    ///
    /// # Errors
    /// [`ComputeError::NoCompiler`] if it cannot be opened, or is not NVRTC.
    pub fn open(path: impl AsRef<OsStr>) -> Result<Self, ComputeError> {
        let candidate = Candidate::at(path.as_ref());
        let failed = |problem| ComputeError::NoCompiler { tried: vec![candidate.tried(problem)] };
        Self::load(&candidate).map_err(failed)
    }

    fn load(candidate: &Candidate) -> Result<Self, LibraryProblem> {
        let library = dynamic::open(&candidate.path)?;
        let name = candidate.name.clone();
        let mut compiler = Self { library, name, version: (0, 0), architectures: Vec::new() };
        compiler.version = compiler.ask_version()?;
        compiler.architectures = compiler.ask_architectures()?;
        Ok(compiler)
    }

    /// Whether the compiler supports the device's exact architecture. An error if it cannot even produce PTX for the
    /// device.
    fn suits(&self, target: &Target) -> Result<bool, LibraryProblem> {
        let (major, minor) = self.version;
        not_newer(major, target)?;
        if self.architectures.contains(&target.architecture) {
            return Ok(true);
        }
        // Drivers accept PTX of compilers that are not newer than themselves.
        let understood = self.version <= (target.driver.major, target.driver.minor);
        if understood && self.architectures.iter().any(|&known| known < target.architecture) {
            return Ok(false);
        }
        Err(LibraryProblem::UnknownDevice { major, minor, architecture: target.architecture })
    }

    /// The file, or the name that the system resolved.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.name
    }

    /// The version, such as (12, 9).
    #[must_use]
    pub const fn version(&self) -> (u32, u32) {
        self.version
    }

    /// The supported architectures, such as 90 for `sm_90`, ascending.
    #[must_use]
    pub fn architectures(&self) -> &[u32] {
        &self.architectures
    }

    /// The compiler options for an architecture. A newer architecture than the compiler knows gets PTX for the newest
    /// known one.
    ///
    /// # Errors
    /// [`ComputeError::Compile`] if the architecture is older than all supported ones.
    pub fn options(&self, architecture: u32) -> Result<Vec<String>, ComputeError> {
        let newest = self.architectures.iter().rev().copied().find(|&known| known <= architecture);
        let target = match newest {
            Some(known) if known == architecture => format!("sm_{known}"),
            Some(known) => format!("compute_{known}"),
            None => {
                let (major, minor) = self.version;
                let reason = format!("NVRTC {major}.{minor} does not compile for sm_{architecture}");
                return Err(ComputeError::Compile { source_name: "kernels".to_owned(), reason });
            }
        };
        let fixed = ["--std=c++17", "--fmad=false"].map(str::to_owned);
        Ok([format!("--gpu-architecture={target}")].into_iter().chain(fixed).collect())
    }

    /// Compiles a source.
    ///
    /// # Errors
    /// [`ComputeError::Compile`] with the compiler's log.
    pub fn compile(
        &self,
        name: &str,
        source: &str,
        options: &[String],
    ) -> Result<CompiledCode, ComputeError> {
        type Create = unsafe extern "C" fn(
            *mut Program,
            *const c_char,
            *const c_char,
            c_int,
            *const *const c_char,
            *const *const c_char,
        ) -> c_int;
        type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
        let failed = |reason| ComputeError::Compile { source_name: name.to_owned(), reason };
        let text = |text: &str| CString::new(text).map_err(|error| failed(error.to_string()));
        let (title, source) = (text(name)?, text(source)?);
        let create = self.function::<Create>(c"nvrtcCreateProgram")?;
        let mut program = null_mut();
        // SAFETY: the texts end with a zero and outlive the call; there are no headers.
        let status = unsafe { create(&raw mut program, source.as_ptr(), title.as_ptr(), 0, null(), null()) };
        if status != 0 {
            return Err(failed(self.reason(status)));
        }
        let program = Destroy(self, program);
        let options: Vec<CString> = options.iter().map(|option| text(option)).collect::<Result<_, _>>()?;
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let compile = self.function::<Compile>(c"nvrtcCompileProgram")?;
        // SAFETY: the program is live; the options end with zeros and outlive the call.
        let status = unsafe { compile(program.1, pointers.len() as c_int, pointers.as_ptr()) };
        let log = self.bytes(c"nvrtcGetProgramLogSize", c"nvrtcGetProgramLog", &program)?;
        let log = String::from_utf8_lossy(&log).trim_end_matches(['\0', '\n']).to_owned();
        if status != 0 {
            return Err(failed(format!("{}\n{log}", self.reason(status))));
        }
        let is_text =
            options.iter().any(|option| option.to_bytes().starts_with(b"--gpu-architecture=compute"));
        let code = if is_text {
            self.bytes(c"nvrtcGetPTXSize", c"nvrtcGetPTX", &program)?
        } else {
            self.bytes(c"nvrtcGetCUBINSize", c"nvrtcGetCUBIN", &program)?
        };
        Ok(CompiledCode { code, log })
    }

    /// Reads data of a program through a pair of functions, one for the size and one for the bytes.
    fn bytes(&self, size: &CStr, bytes: &CStr, program: &Destroy<'_>) -> Result<Vec<u8>, ComputeError> {
        type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
        type Bytes = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
        let (ask_size, ask_bytes) = (self.function::<Size>(size)?, self.function::<Bytes>(bytes)?);
        let mut length = 0;
        // SAFETY: the program is live, and the library writes one number.
        self.done("nvrtc size", unsafe { ask_size(program.1, &raw mut length) })?;
        let mut buffer = vec![0_u8; length];
        // SAFETY: the buffer has the size that the library reported.
        self.done("nvrtc bytes", unsafe { ask_bytes(program.1, buffer.as_mut_ptr().cast()) })?;
        Ok(buffer)
    }

    fn ask_version(&self) -> Result<(u32, u32), LibraryProblem> {
        type Function = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
        let function: Function = dynamic::function(self.library, c"nvrtcVersion")?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the library writes two numbers.
        self.started("nvrtcVersion", unsafe { function(&raw mut major, &raw mut minor) })?;
        Ok((major as u32, minor as u32))
    }

    fn ask_architectures(&self) -> Result<Vec<u32>, LibraryProblem> {
        type Function = unsafe extern "C" fn(*mut c_int) -> c_int;
        let mut count = 0;
        let ask: Function = dynamic::function(self.library, c"nvrtcGetNumSupportedArchs")?;
        // SAFETY: the library writes one number.
        self.started("nvrtcGetNumSupportedArchs", unsafe { ask(&raw mut count) })?;
        let mut numbers: Vec<c_int> = vec![0; count.max(0) as usize];
        let ask: Function = dynamic::function(self.library, c"nvrtcGetSupportedArchs")?;
        // SAFETY: the buffer has the count that the library reported.
        self.started("nvrtcGetSupportedArchs", unsafe { ask(numbers.as_mut_ptr()) })?;
        numbers.sort_unstable();
        Ok(numbers.into_iter().map(|number| number as u32).collect())
    }

    fn function<T: Copy>(&self, name: &CStr) -> Result<T, ComputeError> {
        dynamic::function(self.library, name).map_err(|problem| {
            let library = self.name.clone();
            ComputeError::NoCompiler { tried: vec![TriedLibrary { library, problem }] }
        })
    }

    /// Checks one of the first calls.
    fn started(&self, call: &'static str, status: c_int) -> Result<(), LibraryProblem> {
        if status == 0 {
            Ok(())
        } else {
            Err(LibraryProblem::NotStarted { call, reason: self.reason(status) })
        }
    }

    fn done(&self, call: &'static str, status: c_int) -> Result<(), ComputeError> {
        if status == 0 { Ok(()) } else { Err(ComputeError::Device { call, reason: self.reason(status) }) }
    }

    /// The library's text for a status.
    fn reason(&self, status: c_int) -> String {
        dynamic::reason(self.library, c"nvrtcGetErrorString", status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_an_error_in_plain_words() {
        let error = Nvrtc::open("/nowhere/libnvrtc.so").unwrap_err();
        assert!(matches!(error, ComputeError::NoCompiler { .. }));
        assert!(error.to_string().starts_with("no compiler for CUDA devices (NVRTC): "), "{error}");
    }
}
