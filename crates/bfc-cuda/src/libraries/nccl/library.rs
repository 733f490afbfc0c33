//! The loaded library and its functions.

use std::ffi::{CStr, OsStr, c_int};
use std::fmt;
use std::sync::Arc;

use libloading::Library;

use super::abi::{self, Handle, RawId};
use super::error::NcclError;
use crate::compute::LibraryProblem;
use crate::libraries::dynamic::{self, function};
use crate::libraries::search::{Candidate, LibraryName, candidates_in_process};
use crate::settings::NCCL;

/// The names of the library. Its version does not follow CUDA's.
const LIBRARY: LibraryName =
    LibraryName { stem: "libnccl", setting: &NCCL, versions: &[2], follows_cuda: false };

/// The longest message of NCCL in an error, in bytes.
const MAX_DETAIL: usize = 1024;

/// NCCL, loaded into this process. It stays loaded.
pub struct NcclLibrary {
    library: &'static Library,
    /// The file, or the name that the system resolved.
    name: String,
    version: u32,
    get_unique_id: abi::GetUniqueId,
    get_last_error: abi::GetLastError,
    /// `None` before NCCL 2.32.
    pub(super) get_memory: Option<abi::GetMemory>,
    pub(super) init_rank: abi::InitRank,
    pub(super) finalize: abi::End,
    pub(super) destroy: abi::End,
    pub(super) abort: abi::End,
    pub(super) get_async_error: abi::GetAsyncError,
    pub(super) group_start: abi::Group,
    pub(super) group_end: abi::Group,
    pub(super) all_reduce: abi::ReduceToAll,
    pub(super) reduce_scatter: abi::ReduceToAll,
    pub(super) all_gather: abi::Gather,
    pub(super) broadcast: abi::Broadcast,
    pub(super) reduce: abi::ReduceToRoot,
    pub(super) send: abi::Send,
    pub(super) receive: abi::Receive,
}

impl NcclLibrary {
    /// Finds the library: in `HIGHWATER_NCCL` if that is set; else in the system's search path, in CUDA toolkits and in
    /// Python environments.
    ///
    /// ```
    /// match bfc_cuda::NcclLibrary::find() {
    ///     Ok(library) => println!("NCCL {}", library.version()),
    ///     Err(reason) => println!("{reason}"), // says what to install
    /// }
    /// ```
    ///
    /// # Errors
    /// [`NcclError::Missing`] with all candidates.
    pub fn find() -> Result<Arc<Self>, NcclError> {
        let mut tried = Vec::new();
        for candidate in candidates_in_process(LIBRARY) {
            match Self::load(&candidate) {
                Ok(library) => return Ok(library),
                Err(problem) => tried.push(candidate.tried(problem)),
            }
        }
        Err(NcclError::Missing { tried })
    }

    /// Opens the library with this path or name.
    ///
    /// # Errors
    /// [`NcclError::Missing`] if it cannot be opened, or is not NCCL 2.14 or newer.
    pub fn open(path: impl AsRef<OsStr>) -> Result<Arc<Self>, NcclError> {
        let candidate = Candidate::at(path.as_ref());
        Self::load(&candidate).map_err(|problem| NcclError::Missing { tried: vec![candidate.tried(problem)] })
    }

    fn load(candidate: &Candidate) -> Result<Arc<Self>, LibraryProblem> {
        let library = dynamic::open(&candidate.path)?;
        let get_version: abi::GetVersion = function(library, c"ncclGetVersion")?;
        let mut loaded = Self {
            library,
            name: candidate.name.clone(),
            version: 0,
            get_unique_id: function(library, c"ncclGetUniqueId")?,
            get_last_error: function(library, c"ncclGetLastError")?,
            get_memory: function(library, c"ncclCommMemStats").ok(),
            init_rank: function(library, c"ncclCommInitRankConfig")?,
            finalize: function(library, c"ncclCommFinalize")?,
            destroy: function(library, c"ncclCommDestroy")?,
            abort: function(library, c"ncclCommAbort")?,
            get_async_error: function(library, c"ncclCommGetAsyncError")?,
            group_start: function(library, c"ncclGroupStart")?,
            group_end: function(library, c"ncclGroupEnd")?,
            all_reduce: function(library, c"ncclAllReduce")?,
            reduce_scatter: function(library, c"ncclReduceScatter")?,
            all_gather: function(library, c"ncclAllGather")?,
            broadcast: function(library, c"ncclBroadcast")?,
            reduce: function(library, c"ncclReduce")?,
            send: function(library, c"ncclSend")?,
            receive: function(library, c"ncclRecv")?,
        };
        let mut version = 0;
        // SAFETY: the library writes one number.
        match unsafe { get_version(&raw mut version) } {
            abi::SUCCESS => loaded.version = version.unsigned_abs(),
            code => {
                let reason = loaded.reason(code);
                return Err(LibraryProblem::NotStarted { call: "ncclGetVersion", reason });
            }
        }
        Ok(Arc::new(loaded))
    }

    /// The file, or the name that the system resolved.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.name
    }

    /// The version, such as 23203 for 2.32.3.
    #[must_use]
    pub const fn version(&self) -> u32 {
        self.version
    }

    /// Returns a new id for one communicator. The process of rank 0 calls this, keeps running until all ranks have
    /// connected, and sends the id to all ranks.
    ///
    /// # Errors
    /// [`NcclError::Call`], for example if the machine has no network interface.
    pub fn unique_id(&self) -> Result<UniqueId, NcclError> {
        let mut id = RawId { internal: [0; abi::ID_BYTES] };
        // SAFETY: the library writes the id.
        let code = unsafe { (self.get_unique_id)(&raw mut id) };
        self.done("ncclGetUniqueId", None, code)?;
        Ok(UniqueId(id.internal))
    }

    /// Converts a result of NCCL.
    pub(super) fn done(&self, call: &'static str, rank: Option<usize>, code: c_int) -> Result<(), NcclError> {
        match code {
            abi::SUCCESS => Ok(()),
            code => Err(NcclError::Call {
                call,
                rank,
                code,
                reason: self.reason(code),
                detail: self.last_error(std::ptr::null_mut()),
            }),
        }
    }

    /// NCCL's text for a result.
    fn reason(&self, code: c_int) -> String {
        dynamic::reason(self.library, c"ncclGetErrorString", code)
    }

    /// NCCL's last message in this process, on one line. NCCL ignores the communicator.
    fn last_error(&self, handle: Handle) -> String {
        // SAFETY: the function accepts a null communicator.
        let text = unsafe { (self.get_last_error)(handle) };
        if text.is_null() {
            return String::new();
        }
        // SAFETY: the library returns a text that ends with a zero.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
        let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
        line.chars().take(MAX_DETAIL).collect()
    }
}

impl fmt::Debug for NcclLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NcclLibrary").field("name", &self.name).field("version", &self.version).finish()
    }
}

/// The id of a communicator, which all its ranks pass to [`Communicator::connect`](super::Communicator::connect).
///
/// It contains the network address of rank 0, and any process that knows it can connect.
#[derive(Clone, PartialEq, Eq)]
pub struct UniqueId([u8; abi::ID_BYTES]);

impl UniqueId {
    /// The number of bytes.
    pub const BYTES: usize = abi::ID_BYTES;

    /// Returns the id that rank 0 sent as [`to_bytes`](Self::to_bytes).
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes to send to other ranks.
    #[must_use]
    pub const fn to_bytes(&self) -> [u8; Self::BYTES] {
        self.0
    }

    pub(super) const fn raw(&self) -> RawId {
        RawId { internal: self.0 }
    }
}

/// Without the bytes, which grant access to the communicator.
impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UniqueId").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_says_what_to_install() {
        let error = NcclLibrary::open("/nowhere/libnccl.so.2").unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("no library for several GPUs (NCCL 2.14 or newer): /nowhere/libnccl.so.2: ")
        );
        assert!(text.contains("install the package libnccl2, or nvidia-nccl-cu13 from PyPI"), "{text}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn another_library_is_not_nccl() {
        let error = NcclLibrary::open("libc.so.6").unwrap_err();
        assert!(error.to_string().contains("ncclGetVersion"), "{error}");
    }
}
