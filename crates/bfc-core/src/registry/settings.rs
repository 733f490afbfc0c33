//! Pool options of several devices, by device, by kind and for all.

use std::collections::BTreeMap;

use super::device_id::{DeviceId, DeviceKind};
use super::setting::PoolOptions;

/// The devices of an option. More specific ones take precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceScope {
    /// One device.
    One(DeviceId),
    /// All devices of a kind.
    Kind(DeviceKind),
    /// All devices.
    All,
}

impl DeviceScope {
    /// Whether the option applies to this device.
    #[must_use]
    pub fn includes(self, device: DeviceId) -> bool {
        match self {
            Self::One(one) => one == device,
            Self::Kind(kind) => kind == device.kind,
            Self::All => true,
        }
    }
}

impl From<DeviceId> for DeviceScope {
    fn from(device: DeviceId) -> Self {
        Self::One(device)
    }
}

impl From<DeviceKind> for DeviceScope {
    fn from(kind: DeviceKind) -> Self {
        Self::Kind(kind)
    }
}

/// Options for the pools of several devices.
///
/// ```
/// use bfc_core::{AllocatorChoice, Bytes, DeviceId, DeviceScope, PoolOptions, PoolSettings};
/// let mut settings = PoolSettings::default();
/// settings.choose(DeviceScope::All, PoolOptions::default().with_limit(Bytes::gib(1)));
/// settings.choose(DeviceId::CPU, PoolOptions::default().with_allocator(AllocatorChoice::Guard));
/// let options = settings.options(DeviceId::CPU);
/// assert_eq!(options.limit, Some(Bytes::gib(1).into()));
/// assert_eq!(options.allocator, Some(AllocatorChoice::Guard));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolSettings {
    by_scope: BTreeMap<DeviceScope, PoolOptions>,
}

impl PoolSettings {
    /// Sets options for the pools of some devices. Options that `options` leaves unset are kept.
    pub fn choose(&mut self, scope: impl Into<DeviceScope>, options: PoolOptions) {
        let scope = scope.into();
        let chosen = self.chosen(scope);
        self.by_scope.insert(scope, options.or(chosen));
    }

    /// Returns the options that were set for exactly these devices.
    #[must_use]
    pub fn chosen(&self, scope: impl Into<DeviceScope>) -> PoolOptions {
        self.by_scope.get(&scope.into()).copied().unwrap_or_default()
    }

    /// Returns the options of a device's pools. Options of the one device take precedence over those of its kind, and
    /// these over those of all. An allocator for all devices applies [where
    /// possible](PoolOptions::allocator_where_possible).
    #[must_use]
    pub fn options(&self, device: DeviceId) -> PoolOptions {
        let for_device = self.by_scope.iter().filter(|(scope, _)| scope.includes(device));
        for_device.fold(PoolOptions::default(), |options, (&scope, &less_precise)| {
            let for_all = scope == DeviceScope::All && less_precise.allocator.is_some();
            let allocator_where_possible = for_all || less_precise.allocator_where_possible;
            options.or(PoolOptions { allocator_where_possible, ..less_precise })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::memory::MemoryKind;
    use crate::base::units::Bytes;
    use crate::registry::choice::AllocatorChoice;

    #[test]
    fn the_more_precise_choice_counts() {
        let limit = |gib| PoolOptions::default().with_limit(Bytes::gib(gib));
        let cuda = |ordinal| DeviceId::new(DeviceKind::Cuda, ordinal);
        let mut settings = PoolSettings::default();
        settings.choose(cuda(1), limit(3));
        settings.choose(DeviceScope::All, limit(1).with_allow_growth(false));
        settings.choose(DeviceKind::Cuda, limit(2));
        assert_eq!(settings.options(DeviceId::CPU), limit(1).with_allow_growth(false));
        assert_eq!(settings.options(cuda(0)), limit(2).with_allow_growth(false));
        assert_eq!(settings.options(cuda(1)), limit(3).with_allow_growth(false));
        settings.choose(DeviceScope::All, limit(4));
        assert_eq!(settings.options(DeviceId::CPU), limit(4).with_allow_growth(false));
    }

    #[test]
    fn an_allocator_for_all_devices_is_for_those_that_it_can_serve() {
        let dry = DeviceId::new(DeviceKind::Dry, 0);
        let guard = PoolOptions::default().with_allocator(AllocatorChoice::Guard);
        let allocator = |settings: &PoolSettings, kind| settings.options(dry).settled(kind).allocator;
        let mut settings = PoolSettings::default();
        settings.choose(DeviceScope::All, guard);
        assert_eq!(allocator(&settings, MemoryKind::AddressOnly), Some(AllocatorChoice::Bfc));
        assert_eq!(allocator(&settings, MemoryKind::Host), Some(AllocatorChoice::Guard));
        assert_eq!(allocator(&settings, MemoryKind::PinnedHost), Some(AllocatorChoice::Guard));
        settings.choose(dry, guard);
        assert_eq!(allocator(&settings, MemoryKind::AddressOnly), Some(AllocatorChoice::Guard));
    }
}
