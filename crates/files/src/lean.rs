//! The memory of readers: a limit in proportion to the file, and vectors that waste little of it while they grow.

use bfc_core::Bytes;

/// The bytes that a reader may hold per decompressed byte of a file, regardless of its limit.
const HELD_PER_BYTE: u64 = 8;

/// The memory of a reader: the bytes charged so far, and a limit that grows with the input.
#[derive(Clone, Debug, Default)]
pub struct HeldMemory {
    held: u64,
    limit: u64,
    input_bytes: u64,
    /// The share of the limit for this reader, in eighths. The results that are made from its data use the rest.
    eighths: u64,
}

/// The contents of a file need more memory than its reader may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the contents of the file need more than {} of memory", Bytes(*limit))]
pub struct TooMuchHeld {
    /// The limit, in bytes.
    pub limit: u64,
}

impl HeldMemory {
    /// Creates the account of a reader that may use `limit` bytes, or more for a large input.
    pub const fn new(limit: u64) -> Self {
        Self { held: 0, limit, input_bytes: 0, eighths: 8 }
    }

    /// Reserves a part of the limit for results that are made from the data.
    pub const fn with_eighths(mut self, eighths: u64) -> Self {
        self.eighths = eighths;
        self
    }

    /// Counts decompressed bytes of the file.
    pub const fn note_input(&mut self, bytes: u64) {
        self.input_bytes = self.input_bytes.saturating_add(bytes);
    }

    /// Returns an account of the same file, with nothing charged and no reserved part.
    #[must_use]
    pub const fn emptied(self) -> Self {
        Self { held: 0, eighths: 8, ..self }
    }

    const fn total(&self) -> u64 {
        let of_input = self.input_bytes.saturating_mul(HELD_PER_BYTE);
        if self.limit > of_input { self.limit } else { of_input }
    }

    /// Returns the bytes charged so far.
    #[must_use]
    pub const fn held(&self) -> u64 {
        self.held
    }

    /// Returns the bytes that can still be charged.
    #[must_use]
    pub const fn left(&self) -> u64 {
        (self.total() / 8 * self.eighths).saturating_sub(self.held)
    }

    /// Returns the bytes of the limit that are reserved for results.
    pub const fn reserved(&self) -> u64 {
        self.total() / 8 * (8 - self.eighths)
    }

    /// Returns whether a part of the limit is reserved for results that are made from the data.
    pub const fn has_reserve(&self) -> bool {
        self.eighths < 8
    }

    /// Returns the error of exceeding the limit.
    pub const fn error(&self) -> TooMuchHeld {
        TooMuchHeld { limit: self.total() }
    }

    /// Checks that so many more bytes are within the limit.
    ///
    /// # Errors
    /// [`TooMuchHeld`] with the limit.
    #[inline]
    pub fn check(&self, more: u64) -> Result<(), TooMuchHeld> {
        let limit = self.total() / 8 * self.eighths;
        if self.held.saturating_add(more) > limit { Err(self.error()) } else { Ok(()) }
    }

    /// Charges for memory before it is allocated.
    ///
    /// # Errors
    /// [`TooMuchHeld`] with the limit. Nothing is charged then.
    #[inline]
    pub fn charge(&mut self, bytes: u64) -> Result<(), TooMuchHeld> {
        self.check(bytes)?;
        self.held += bytes;
        Ok(())
    }
}

/// Appends an item. A full vector grows by a quarter, where [`Vec::push`] doubles it.
pub fn push<T>(items: &mut Vec<T>, item: T) {
    if items.len() == items.capacity() {
        items.reserve_exact((items.len() / 4).max(16));
    }
    items.push(item);
}

/// The bytes of an item, with its share of unused capacity.
pub const fn cost<T>() -> u64 {
    size_of::<T>() as u64 * 5 / 4
}
