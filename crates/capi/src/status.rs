//! The status that every function returns.

/// The result of a function. New values may be added: treat every value other than BFC_OK as a failure.
#[expect(non_camel_case_types, reason = "the names of the header")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[non_exhaustive]
pub enum bfc_status {
    /// The function succeeded.
    BFC_OK = 0,
    /// A fault of this library. The message says where.
    BFC_ERROR_INTERNAL = 1,
    /// A null pointer, text that is not UTF-8, or a value out of range.
    BFC_ERROR_INVALID_ARGUMENT = 2,
    /// The handle names no open pool, or no open scope of this thread.
    BFC_ERROR_INVALID_HANDLE = 3,
    /// The configuration of a pool is not valid.
    BFC_ERROR_INVALID_CONFIGURATION = 4,
    /// No memory. bfc_last_error_details() names the holders.
    BFC_ERROR_OUT_OF_MEMORY = 5,
    /// No live block of the pool starts at the address: it was freed before, or it never was one.
    BFC_ERROR_INVALID_POINTER = 6,
    /// The scope is not the innermost one of this thread.
    BFC_ERROR_SCOPE_ORDER = 7,
    /// The pool has live blocks or running ops. The message names the holders.
    BFC_ERROR_POOL_IN_USE = 8,
    /// The kind of memory does not support the function, or the library was built without it.
    BFC_ERROR_UNSUPPORTED = 9,
    /// A file could not be written.
    BFC_ERROR_IO = 10,
    /// The device or its driver failed, or there is none.
    BFC_ERROR_DEVICE = 11,
    /// A write outside of a block damaged guard bytes. The block is free nonetheless.
    BFC_ERROR_OUT_OF_BOUNDS = 12,
    /// A recording runs already, or none runs.
    BFC_ERROR_RECORDING = 13,
    /// The process is a child of fork(), and its parent had called the library.
    BFC_ERROR_FORKED = 14,
}

impl bfc_status {
    /// Returns the name in JSON: the name in the header without its prefix, in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::BFC_OK => "ok",
            Self::BFC_ERROR_INTERNAL => "internal",
            Self::BFC_ERROR_INVALID_ARGUMENT => "invalid_argument",
            Self::BFC_ERROR_INVALID_HANDLE => "invalid_handle",
            Self::BFC_ERROR_INVALID_CONFIGURATION => "invalid_configuration",
            Self::BFC_ERROR_OUT_OF_MEMORY => "out_of_memory",
            Self::BFC_ERROR_INVALID_POINTER => "invalid_pointer",
            Self::BFC_ERROR_SCOPE_ORDER => "scope_order",
            Self::BFC_ERROR_POOL_IN_USE => "pool_in_use",
            Self::BFC_ERROR_UNSUPPORTED => "unsupported",
            Self::BFC_ERROR_IO => "io",
            Self::BFC_ERROR_DEVICE => "device",
            Self::BFC_ERROR_OUT_OF_BOUNDS => "out_of_bounds",
            Self::BFC_ERROR_RECORDING => "recording",
            Self::BFC_ERROR_FORKED => "forked",
        }
    }
}
