//! The errors of the library, and the status of each.

use std::fmt;

use bfc_core::{
    AllocError, BlockError, Bytes, EnvironmentError, MemoryKind, OomReport, OptionError, OwnerId, PoolError,
    PoolOptions, RegistryError, Share, SourceError, did_you_mean, printable,
};

use crate::status::bfc_status;

/// An error of a function.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("internal error: {}", printable(.0))]
    Internal(String),
    #[error(
        "this process is a child of fork(), and the library works in the parent alone: fork before its first call, or call exec()"
    )]
    Forked,
    #[error("{argument} is NULL")]
    Null { argument: &'static str },
    #[error("{argument} is not aligned for its type")]
    Unaligned { argument: &'static str },
    #[error("{argument} is not UTF-8 text")]
    NotUtf8 { argument: &'static str },
    #[error("{argument} is longer than {limit} bytes")]
    TooLong { argument: &'static str, limit: usize },
    #[error("{argument} is {value}: expected {expected}", expected = printable(expected))]
    BadValue { argument: &'static str, value: u64, expected: String },
    #[error("pool {pool} has {memory} memory: {user} needs a pool of memory={needed}", pool = printable(pool))]
    WrongMemory { pool: String, memory: MemoryKind, user: &'static str, needed: &'static str },
    #[error("{handle:#x} is not an open {kind}: it was closed before, or it never was one")]
    Handle { handle: u64, kind: &'static str },
    #[error("the string at {address:#x} is not live: it was freed before, or this library did not return it")]
    NotAString { address: usize },
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Cuda(#[from] bfc_cuda::CudaUnavailable),
    #[error(transparent)]
    Source(#[from] SourceError),
    #[cfg(not(feature = "cuda"))]
    #[error("this library was built without CUDA: build it with the feature `cuda`")]
    NoCuda,
    #[error(transparent)]
    Alloc(#[from] AllocError),
    #[error("pool {pool}: {error}", pool = printable(pool))]
    Block { pool: String, error: BlockError },
    #[error("pool {pool}: no live block starts at {address:#x}{}", in_other(other_pool.as_deref()), pool = printable(pool))]
    NotAllocated { pool: String, address: u64, other_pool: Option<String> },
    #[error("pool {pool} is in use: {}", .holders, pool = printable(pool))]
    InUse { pool: String, holders: Holders },
    #[error("pool {pool}: the block must move, and the host cannot copy {memory} memory", pool = printable(pool))]
    NoCopy { pool: String, memory: MemoryKind },
    #[error(
        "scope {handle:#x} is not the innermost scope of this thread: pop those within it first ({above})"
    )]
    ScopeOrder { handle: u64, above: usize },
    #[error("scopes are nested more than {limit} deep: pop each scope with bfc_scope_pop()")]
    TooDeep { limit: usize },
    #[error("this thread is ending and has left its scopes: enter scopes before exit handlers run")]
    ThreadEnds,
    #[error("{path}: {error}", path = printable(path), error = printable(error))]
    Io { path: String, error: std::io::Error },
    #[error("a recording into {path} runs already: stop it first", path = printable(path))]
    Recording { path: String },
    #[error("no recording runs")]
    NoRecording,
}

/// An invalid configuration of a pool.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigurationError {
    #[error(transparent)]
    Option(#[from] OptionError),
    #[error("there is no pool option {name:?}{}; the options are {}", did_you_mean(name, option_names()), option_names().collect::<Vec<_>>().join(", "))]
    Unknown { name: String },
    #[error("pool configuration: {part:?} is not NAME=VALUE")]
    NotAPair { part: String },
    #[error("pool configuration: {name} is set twice", name = printable(name))]
    Twice { name: String },
    #[error(
        "pool configuration: {value:?} is no memory{}: expected host, dry, cuda, cuda:ORDINAL or pinned:ORDINAL",
        did_you_mean(value, ["host", "dry", "cuda", "pinned"])
    )]
    Memory { value: String },
    #[error("pool configuration: a name has 1 to {limit} characters without control characters")]
    Name { limit: usize },
    #[error("pool configuration: a pool named {name:?} is open already")]
    NameTaken { name: String },
    #[error("pool configuration: a limit of {limit} of the memory: expected at most 100 %")]
    Share { limit: Share },
    #[error("pool configuration: the value of {name} must be text, a number or a boolean", name = printable(name))]
    JsonValue { name: String },
    #[error("pool configuration: {reason}", reason = printable(reason))]
    Json { reason: String },
}

impl From<serde_json::Error> for ConfigurationError {
    fn from(error: serde_json::Error) -> Self {
        Self::Json { reason: error.to_string() }
    }
}

/// Returns the names of the options of a configuration: those of a pool, and two more.
fn option_names() -> impl Iterator<Item = &'static str> {
    PoolOptions::names().chain(["memory", "name"])
}

/// The holders of a pool that is in use.
#[derive(Debug)]
pub(crate) struct Holders {
    pub(crate) blocks: usize,
    /// The live bytes of the largest holders.
    pub(crate) largest: Vec<(OwnerId, u64)>,
    /// Ops that run and calls under way.
    pub(crate) calls: u64,
}

impl fmt::Display for Holders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |count: u64| if count == 1 { "" } else { "s" };
        write!(f, "{} live block{}", self.blocks, plural(self.blocks as u64))?;
        if self.calls > 0 {
            write!(f, ", {} running op{} or call{}", self.calls, plural(self.calls), plural(self.calls))?;
        }
        for (index, (owner, bytes)) in self.largest.iter().enumerate() {
            let separator = if index == 0 { "; held by " } else { ", " };
            write!(f, "{separator}{owner} ({})", Bytes(*bytes))?;
        }
        Ok(())
    }
}

fn in_other(pool: Option<&str>) -> String {
    match pool {
        Some(pool) => format!("; it belongs to pool {}", printable(pool)),
        None => ": it was freed before, or it never was one".to_owned(),
    }
}

impl Error {
    /// Returns the status of the error.
    pub(crate) const fn status(&self) -> bfc_status {
        match self {
            Self::Internal(_) => bfc_status::BFC_ERROR_INTERNAL,
            Self::Null { .. }
            | Self::Unaligned { .. }
            | Self::NotUtf8 { .. }
            | Self::TooLong { .. }
            | Self::BadValue { .. }
            | Self::WrongMemory { .. }
            | Self::TooDeep { .. } => bfc_status::BFC_ERROR_INVALID_ARGUMENT,
            Self::Handle { .. } => bfc_status::BFC_ERROR_INVALID_HANDLE,
            Self::NotAString { .. } | Self::NotAllocated { .. } => bfc_status::BFC_ERROR_INVALID_POINTER,
            Self::Configuration(_) | Self::Environment(_) => bfc_status::BFC_ERROR_INVALID_CONFIGURATION,
            Self::Registry(error) => registry_status(error),
            Self::Source(error) => source_status(error),
            #[cfg(feature = "cuda")]
            Self::Cuda(_) => bfc_status::BFC_ERROR_DEVICE,
            #[cfg(not(feature = "cuda"))]
            Self::NoCuda => bfc_status::BFC_ERROR_UNSUPPORTED,
            Self::NoCopy { .. } | Self::ThreadEnds => bfc_status::BFC_ERROR_UNSUPPORTED,
            Self::Alloc(error) => alloc_status(error),
            Self::Block { error: BlockError::OutOfBounds { .. }, .. } => bfc_status::BFC_ERROR_OUT_OF_BOUNDS,
            Self::Block { .. } => bfc_status::BFC_ERROR_INVALID_POINTER,
            Self::InUse { .. } => bfc_status::BFC_ERROR_POOL_IN_USE,
            Self::ScopeOrder { .. } => bfc_status::BFC_ERROR_SCOPE_ORDER,
            Self::Forked => bfc_status::BFC_ERROR_FORKED,
            Self::Io { .. } => bfc_status::BFC_ERROR_IO,
            Self::Recording { .. } | Self::NoRecording => bfc_status::BFC_ERROR_RECORDING,
        }
    }

    /// Returns the report of an out-of-memory error.
    pub(crate) fn report(&self) -> Option<&OomReport> {
        match self {
            Self::Alloc(error) => error.out_of_memory(),
            _ => None,
        }
    }
}

const fn registry_status(error: &RegistryError) -> bfc_status {
    match error {
        RegistryError::Source { error, .. } => source_status(error),
        RegistryError::Pool { error: PoolError::Source(error), .. } => source_status(error),
        RegistryError::Pool { .. } => bfc_status::BFC_ERROR_INVALID_CONFIGURATION,
        _ => bfc_status::BFC_ERROR_INTERNAL,
    }
}

const fn source_status(error: &SourceError) -> bfc_status {
    match error {
        SourceError::Exhausted { .. } => bfc_status::BFC_ERROR_OUT_OF_MEMORY,
        SourceError::LimitTooSmall { .. } => bfc_status::BFC_ERROR_INVALID_CONFIGURATION,
        SourceError::Unsupported { .. } => bfc_status::BFC_ERROR_UNSUPPORTED,
        _ => bfc_status::BFC_ERROR_DEVICE,
    }
}

const fn alloc_status(error: &AllocError) -> bfc_status {
    match error {
        AllocError::OutOfMemory(_) => bfc_status::BFC_ERROR_OUT_OF_MEMORY,
        AllocError::BadAlignment { .. } | AllocError::TooLarge { .. } => {
            bfc_status::BFC_ERROR_INVALID_ARGUMENT
        }
        AllocError::Source { error, .. } => source_status(error),
        _ => bfc_status::BFC_ERROR_INTERNAL,
    }
}
