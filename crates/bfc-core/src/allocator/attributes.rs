//! Where memory should live, and how hard to try for it.
//!
//! Source of the rules: TensorFlow's `AllocatorAttributes` and `AllocationAttributes`.

use std::fmt;

use crate::allocator::error::AttributeError;

/// Where memory should live, as asked by the one who allocates.
///
/// The attributes are wishes that a device's registry resolves to one of its memories: sets that name the same memory
/// give the same allocator. Setters only ever add a wish, as upstream; start over from the default to drop one.
///
/// ```
/// use bfc_core::AllocatorAttributes;
/// let pinned = AllocatorAttributes::default().with_on_host(true).with_gpu_compatible(true);
/// assert!(AllocatorAttributes::default().is_equal_or_less_restrictive_than(&pinned));
/// assert!(!pinned.is_equal_or_less_restrictive_than(&AllocatorAttributes::default()));
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct AllocatorAttributes {
    /// Bit 0 `on_host`, bit 1 `nic_compatible`, bit 2 `gpu_compatible`; bits 24 to 31 belong to the device.
    value: u32,
    /// 0 for none; a positive id names a scoped allocator of the device.
    scope_id: i32,
}

const ON_HOST: u32 = 1 << 0;
const NIC_COMPATIBLE: u32 = 1 << 1;
const GPU_COMPATIBLE: u32 = 1 << 2;
const DEVICE_SHIFT: u32 = 24;

impl AllocatorAttributes {
    /// Adds the wish for host memory; `false` adds nothing.
    #[must_use]
    pub const fn with_on_host(self, wanted: bool) -> Self {
        self.with(ON_HOST, wanted)
    }

    /// Adds the wish for memory a network card can read; `false` adds nothing.
    #[must_use]
    pub const fn with_nic_compatible(self, wanted: bool) -> Self {
        self.with(NIC_COMPATIBLE, wanted)
    }

    /// Adds the wish for memory a GPU can copy from without staging; `false` adds nothing.
    #[must_use]
    pub const fn with_gpu_compatible(self, wanted: bool) -> Self {
        self.with(GPU_COMPATIBLE, wanted)
    }

    /// Adds the device-specific bits, whose meaning is the device's own.
    #[must_use]
    pub const fn with_device_bits(mut self, bits: u8) -> Self {
        self.value |= (bits as u32) << DEVICE_SHIFT;
        self
    }

    /// Names a scoped allocator of the device; 0 names none.
    #[must_use]
    pub const fn with_scope_id(mut self, scope_id: i32) -> Self {
        self.scope_id = scope_id;
        self
    }

    /// Whether host memory is wished for.
    #[must_use]
    pub const fn on_host(self) -> bool {
        self.value & ON_HOST != 0
    }

    /// Whether memory for a network card is wished for.
    #[must_use]
    pub const fn nic_compatible(self) -> bool {
        self.value & NIC_COMPATIBLE != 0
    }

    /// Whether memory for quick copies to and from a GPU is wished for.
    #[must_use]
    pub const fn gpu_compatible(self) -> bool {
        self.value & GPU_COMPATIBLE != 0
    }

    /// The device-specific bits.
    #[must_use]
    pub const fn device_bits(self) -> u8 {
        (self.value >> DEVICE_SHIFT) as u8
    }

    /// The scoped allocator named, or 0.
    #[must_use]
    pub const fn scope_id(self) -> i32 {
        self.scope_id
    }

    /// The wishes of both.
    ///
    /// # Errors
    /// [`AttributeError::ScopeConflict`] if both name a scoped allocator, and not the same one.
    pub const fn merge(self, other: Self) -> Result<Self, AttributeError> {
        let scope_id = match (self.scope_id, other.scope_id) {
            (id, 0) | (0, id) => id,
            (lhs, rhs) if lhs == rhs => lhs,
            (lhs, rhs) => return Err(AttributeError::ScopeConflict { lhs, rhs }),
        };
        Ok(Self { value: self.value | other.value, scope_id })
    }

    /// Whether memory fit for `other` is also fit for these wishes. Scopes are not compared, as upstream.
    #[must_use]
    pub const fn is_equal_or_less_restrictive_than(self, other: &Self) -> bool {
        self.value | other.value == other.value
    }

    const fn with(mut self, bit: u32, wanted: bool) -> Self {
        if wanted {
            self.value |= bit;
        }
        self
    }
}

impl fmt::Debug for AllocatorAttributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AllocatorAttributes")
            .field("on_host", &self.on_host())
            .field("nic_compatible", &self.nic_compatible())
            .field("gpu_compatible", &self.gpu_compatible())
            .field("device_bits", &self.device_bits())
            .field("scope_id", &self.scope_id)
            .finish()
    }
}

/// How to go about one allocation.
#[derive(Clone, Copy)]
pub struct AllocationAttributes<'a> {
    /// Wait for frees and try again before giving up. Without it a failure is immediate: for scratch one can do without.
    pub retry_on_failure: bool,
    /// If given, only memory freed at a count not above the returned one may be handed out. Asked anew on each attempt.
    /// Means nothing where frees bear no counts, as upstream: in pools without a
    /// [timing counter](crate::PolicyAllocator::timing_counter) all memory is free for anybody as soon as it is given back.
    pub freed_before: Option<&'a (dyn Fn() -> u64 + Sync)>,
    /// Whether a refusal may leave out who holds the memory and what would make room: for those who try further, and ask
    /// for the whole [report](crate::Inspection::refusal) once they give up.
    pub brief: bool,
}

impl Default for AllocationAttributes<'_> {
    fn default() -> Self {
        Self { retry_on_failure: true, freed_before: None, brief: false }
    }
}

impl AllocationAttributes<'_> {
    /// Attributes that fail at once instead of waiting.
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

    /// Upstream's `CustomAllocatorAttributes`: the device's bits default to unset and read back as set.
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
