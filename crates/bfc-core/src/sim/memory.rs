//! The live memory of a simulated device: allocations, and virtual memory.

use std::collections::BTreeMap;

use crate::base::memory::Span;
use crate::base::units::MIB;

/// The granularity of address ranges, handles and mappings, as on NVIDIA's devices.
pub const GRANULARITY: u64 = 2 * MIB;

/// Disjoint spans, by address.
#[derive(Debug, Default)]
pub(super) struct Live {
    spans: BTreeMap<u64, u64>,
    pub(super) bytes: u64,
}

impl Live {
    pub(super) fn insert(&mut self, span: Span) {
        self.spans.insert(span.address, span.bytes);
        self.bytes += span.bytes;
    }

    /// Removes the span that starts at `address`.
    pub(super) fn remove(&mut self, address: u64) -> Option<Span> {
        let bytes = self.spans.remove(&address)?;
        self.bytes -= bytes;
        Some(Span { address, bytes })
    }

    pub(super) fn at(&self, address: u64) -> Option<Span> {
        self.spans.get(&address).map(|&bytes| Span { address, bytes })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Span> {
        self.spans.iter().map(|(&address, &bytes)| Span { address, bytes })
    }

    /// Returns the span that contains an address.
    pub(super) fn around(&self, address: u64) -> Option<Span> {
        let (&start, &bytes) = self.spans.range(..=address).next_back()?;
        (address - start < bytes).then_some(Span { address: start, bytes })
    }

    /// Whether one of the spans contains all of this one.
    pub(super) fn holds(&self, span: Span) -> bool {
        self.around(span.address).is_some_and(|around| span.end() <= around.end())
    }
}

/// Memory without its own address.
#[derive(Clone, Copy, Debug)]
struct Physical {
    bytes: u64,
    released: bool,
    mappings: u32,
}

/// A handle's memory, mapped to addresses.
#[derive(Clone, Copy, Debug)]
struct Mapping {
    bytes: u64,
    handle: u64,
    accessible: bool,
}

/// The virtual memory of a device. Every failing call returns the reason and changes nothing.
#[derive(Debug, Default)]
pub(super) struct Virtual {
    pub(super) ranges: Live,
    handles: BTreeMap<u64, Physical>,
    next_handle: u64,
    mappings: BTreeMap<u64, Mapping>,
    /// Bytes of allocated memory, mapped or not.
    pub(super) bytes: u64,
}

type Outcome = Result<(), String>;

impl Virtual {
    pub(super) fn release_range(&mut self, range: Span) -> Outcome {
        if self.ranges.at(range.address) != Some(range) {
            return Err(format!("{range:x?} is not a reserved range"));
        }
        let end = range.address + range.bytes;
        if self.mappings.range(range.address..end).next().is_some() {
            return Err(format!("memory is mapped in {range:x?}"));
        }
        self.ranges.remove(range.address);
        Ok(())
    }

    /// Allocates memory, of which there is enough.
    pub(super) fn create(&mut self, bytes: u64) -> u64 {
        self.next_handle += 1;
        self.handles.insert(self.next_handle, Physical { bytes, released: false, mappings: 0 });
        self.bytes += bytes;
        self.next_handle
    }

    pub(super) fn release(&mut self, handle: u64) -> Outcome {
        let physical = self.handles.get_mut(&handle).filter(|physical| !physical.released);
        physical.ok_or_else(|| format!("there is no handle {handle}"))?.released = true;
        self.give_back_unused(handle);
        Ok(())
    }

    pub(super) fn map(&mut self, range: Span, handle: u64) -> Outcome {
        if !self.ranges.holds(range) || range.address % GRANULARITY != 0 {
            return Err(format!("{range:x?} does not lie in a reserved range"));
        }
        let before = self.mappings.range(..range.address + range.bytes).next_back();
        if before.is_some_and(|(&start, mapping)| start + mapping.bytes > range.address) {
            return Err(format!("memory is mapped in {range:x?}"));
        }
        let physical = self.handles.get_mut(&handle).filter(|physical| !physical.released);
        match physical {
            Some(physical) if physical.bytes == range.bytes => physical.mappings += 1,
            _ => return Err(format!("there is no handle {handle} of {} bytes", range.bytes)),
        }
        let mapping = Mapping { bytes: range.bytes, handle, accessible: false };
        self.mappings.insert(range.address, mapping);
        Ok(())
    }

    pub(super) fn unmap(&mut self, range: Span) -> Outcome {
        match self.mappings.get(&range.address) {
            Some(mapping) if mapping.bytes == range.bytes => {}
            _ => return Err(format!("{range:x?} is not what was mapped")),
        }
        let mapping = self.mappings.remove(&range.address);
        if let Some(mapping) = mapping {
            if let Some(physical) = self.handles.get_mut(&mapping.handle) {
                physical.mappings -= 1;
            }
            self.give_back_unused(mapping.handle);
        }
        Ok(())
    }

    pub(super) fn set_access(&mut self, range: Span) -> Outcome {
        if !self.is_mapped(range, |_| true) {
            return Err(format!("nothing is mapped in part of {range:x?}"));
        }
        let end = range.address + range.bytes;
        for mapping in self.mappings.range_mut(range.address..end) {
            mapping.1.accessible = true;
        }
        Ok(())
    }

    /// Whether the device may access all of a span.
    pub(super) fn is_accessible(&self, span: Span) -> bool {
        self.is_mapped(span, |mapping| mapping.accessible)
    }

    /// Returns the mappings in order of address.
    pub(super) fn mappings(&self) -> Vec<Span> {
        self.mappings.iter().map(|(&address, mapping)| Span { address, bytes: mapping.bytes }).collect()
    }

    /// Returns the handles that are not released.
    pub(super) fn handles(&self) -> usize {
        self.handles.values().filter(|physical| !physical.released).count()
    }

    fn is_mapped(&self, span: Span, fits: impl Fn(&Mapping) -> bool) -> bool {
        let (mut at, Some(end)) = (span.address, span.end()) else { return false };
        while at < end {
            match self.mappings.range(..=at).next_back() {
                Some((&start, mapping)) if start + mapping.bytes > at && fits(mapping) => {
                    at = start + mapping.bytes;
                }
                _ => return false,
            }
        }
        true
    }

    fn give_back_unused(&mut self, handle: u64) {
        let unused = |physical: &&Physical| physical.released && physical.mappings == 0;
        if let Some(physical) = self.handles.get(&handle).filter(unused) {
            self.bytes -= physical.bytes;
            self.handles.remove(&handle);
        }
    }
}
