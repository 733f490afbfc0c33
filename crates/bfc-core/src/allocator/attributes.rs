//! Attributes of an allocation: the memory that it requires, and how long it waits for it.
//!
//! Source of the rules: TensorFlow's `AllocatorAttributes` and `AllocationAttributes`.

use std::fmt;

use crate::allocator::error::AttributeError;

/// Requirements on the memory: host memory, and access by network cards or GPUs.
///
/// The registry of a device resolves the attributes to one of its memories. Attributes that resolve to the same memory
/// return the same allocator. As upstream, setters only add requirements.
/// ```
/// use bfc_core::AllocatorAttributes;
/// let pinned = AllocatorAttributes::default().with_on_host(true).with_gpu_compatible(true);
/// assert!(AllocatorAttributes::default().is_equal_or_less_restrictive_than(&pinned));
/// assert!(!pinned.is_equal_or_less_restrictive_than(&AllocatorAttributes::default()));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AllocatorAttributes {
    on_host: bool,
    nic_compatible: bool,
    gpu_compatible: bool,
    /// Bits that the device defines.
    device_bits: u8,
    /// 0 for none. A positive id names a scoped allocator of the device.
    scope_id: i32,
}

impl AllocatorAttributes {
    /// Requires host memory; `false` adds nothing.
    #[must_use]
    pub const fn with_on_host(mut self, required: bool) -> Self {
        self.on_host |= required;
        self
    }

    /// Requires memory that a network card can read; `false` adds nothing.
    #[must_use]
    pub const fn with_nic_compatible(mut self, required: bool) -> Self {
        self.nic_compatible |= required;
        self
    }

    /// Requires memory that a GPU can copy from without staging; `false` adds nothing.
    #[must_use]
    pub const fn with_gpu_compatible(mut self, required: bool) -> Self {
        self.gpu_compatible |= required;
        self
    }

    /// Adds device-specific bits. The device defines their meaning.
    #[must_use]
    pub const fn with_device_bits(mut self, bits: u8) -> Self {
        self.device_bits |= bits;
        self
    }

    /// Selects a scoped allocator of the device; 0 selects none.
    #[must_use]
    pub const fn with_scope_id(mut self, scope_id: i32) -> Self {
        self.scope_id = scope_id;
        self
    }

    /// Whether host memory is required.
    #[must_use]
    pub const fn on_host(self) -> bool {
        self.on_host
    }

    /// Whether memory for a network card is required.
    #[must_use]
    pub const fn nic_compatible(self) -> bool {
        self.nic_compatible
    }

    /// Whether memory for fast copies to and from a GPU is required.
    #[must_use]
    pub const fn gpu_compatible(self) -> bool {
        self.gpu_compatible
    }

    /// Returns the device-specific bits.
    #[must_use]
    pub const fn device_bits(self) -> u8 {
        self.device_bits
    }

    /// Returns the id of the selected scoped allocator, or 0.
    #[must_use]
    pub const fn scope_id(self) -> i32 {
        self.scope_id
    }

    /// Combines the requirements of both.
    ///
    /// # Errors
    /// Fails with [`AttributeError::ScopeConflict`] if the two select different scoped allocators.
    pub const fn merge(self, other: Self) -> Result<Self, AttributeError> {
        let scope_id = match (self.scope_id, other.scope_id) {
            (id, 0) | (0, id) => id,
            (lhs, rhs) if lhs == rhs => lhs,
            (lhs, rhs) => return Err(AttributeError::ScopeConflict { lhs, rhs }),
        };
        Ok(Self {
            on_host: self.on_host || other.on_host,
            nic_compatible: self.nic_compatible || other.nic_compatible,
            gpu_compatible: self.gpu_compatible || other.gpu_compatible,
            device_bits: self.device_bits | other.device_bits,
            scope_id,
        })
    }

    /// Whether memory that satisfies `other` also satisfies these attributes. As upstream, ignores scoped allocators.
    #[must_use]
    pub const fn is_equal_or_less_restrictive_than(self, other: &Self) -> bool {
        self.on_host <= other.on_host
            && self.nic_compatible <= other.nic_compatible
            && self.gpu_compatible <= other.gpu_compatible
            && self.device_bits & !other.device_bits == 0
    }
}

/// How an allocation proceeds: retries, timing, and the detail of its error.
#[derive(Clone, Copy)]
pub struct AllocationAttributes<'a> {
    /// Waits for frees and retries before the request fails. Without it the request fails immediately.
    pub retry_on_failure: bool,
    /// Restricts the request to memory that was freed at a count not above the returned one. Called again on each
    /// attempt. Has no effect in pools without a [timing counter](crate::PolicyAllocator::timing_counter), as upstream.
    pub freed_before: Option<&'a (dyn Fn() -> u64 + Sync)>,
    /// Omits the holders and the what-if answers from an out-of-memory error. For callers that have a fallback and
    /// request the full [report](crate::PoolView::refusal) if it fails too.
    pub brief: bool,
}

impl Default for AllocationAttributes<'_> {
    fn default() -> Self {
        Self { retry_on_failure: true, freed_before: None, brief: false }
    }
}

impl AllocationAttributes<'_> {
    /// Attributes that fail immediately instead of waiting.
    #[must_use]
    pub const fn no_retry() -> Self {
        Self { retry_on_failure: false, freed_before: None, brief: false }
    }
}

impl fmt::Debug for AllocationAttributes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AllocationAttributes")
            .field("retry_on_failure", &self.retry_on_failure)
            .field("freed_before", &self.freed_before.map(|count| count()))
            .field("brief", &self.brief)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setters_add_and_never_clear() {
        let attributes = AllocatorAttributes::default().with_on_host(true).with_on_host(false);
        assert!(attributes.on_host());
        assert!(!attributes.nic_compatible() && !attributes.gpu_compatible());
    }

    /// As upstream's `CustomAllocatorAttributes`: the device-specific bits are unset by default.
    #[test]
    fn device_bits_are_kept_in_the_top_byte() {
        assert_eq!(AllocatorAttributes::default().device_bits(), 0);
        assert_eq!(AllocatorAttributes::default().with_device_bits(1).device_bits(), 1);
    }

    #[test]
    fn merging_unites_wishes_and_takes_the_scope_that_is_set() {
        let host = AllocatorAttributes::default().with_on_host(true);
        let gpu = AllocatorAttributes::default().with_gpu_compatible(true).with_scope_id(3);
        let both = host.merge(gpu).unwrap();
        assert!(both.on_host() && both.gpu_compatible());
        assert_eq!(both.scope_id(), 3);
        assert_eq!(gpu.merge(host.with_scope_id(4)), Err(AttributeError::ScopeConflict { lhs: 3, rhs: 4 }));
        assert_eq!(gpu.merge(gpu), Ok(gpu));
    }

    #[test]
    fn restriction_compares_wishes_as_sets() {
        let plain = AllocatorAttributes::default();
        let host = plain.with_on_host(true);
        let pinned = host.with_gpu_compatible(true);
        assert!(plain.is_equal_or_less_restrictive_than(&plain));
        assert!(host.is_equal_or_less_restrictive_than(&pinned));
        assert!(!pinned.is_equal_or_less_restrictive_than(&host));
        assert!(!host.is_equal_or_less_restrictive_than(&plain.with_nic_compatible(true)));
    }
}
