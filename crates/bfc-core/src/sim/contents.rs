//! The contents of a simulated device's memory, as written by copies.

use std::collections::BTreeMap;

use crate::base::memory::Span;
use crate::source::driver::MemoryCopy;

const PAGE: u64 = 4096;

/// The value of memory before any copy: unlikely to be mistaken for data.
const UNWRITTEN: u8 = 0xa5;

/// Bytes by address, in pages that are created by the first write.
#[derive(Debug, Default)]
pub(super) struct Contents {
    pages: BTreeMap<u64, Box<[u8; PAGE as usize]>>,
}

impl Contents {
    pub(super) fn read(&self, span: Span) -> Vec<u8> {
        let byte = |address: u64| match self.pages.get(&(address / PAGE)) {
            Some(page) => page[(address % PAGE) as usize],
            None => UNWRITTEN,
        };
        (span.address..span.address + span.bytes).map(byte).collect()
    }

    fn write(&mut self, address: u64, bytes: &[u8]) {
        for (address, &byte) in (address..).zip(bytes) {
            let page = self.pages.entry(address / PAGE);
            page.or_insert_with(|| Box::new([UNWRITTEN; PAGE as usize]))[(address % PAGE) as usize] = byte;
        }
    }

    /// Clears the contents of freed memory.
    pub(super) fn forget(&mut self, span: Span) {
        if !self.pages.is_empty() {
            // Addresses of allocations are never reused. Those of mappings are, and consist of whole pages.
            let pages = span.address.div_ceil(PAGE)..(span.address + span.bytes) / PAGE;
            self.pages.retain(|page, _| !pages.contains(page));
        }
    }

    /// Executes a copy.
    ///
    /// # Safety
    /// The host range is live page-locked memory of the device. No other code writes to it or, for a copy to the host,
    /// accesses it.
    pub(super) unsafe fn copy(&mut self, copy: MemoryCopy) {
        match copy {
            MemoryCopy::ToDevice { from, to, bytes } => {
                let from: *const u8 = std::ptr::with_exposed_provenance(from as usize);
                // SAFETY: guaranteed by the caller.
                let source = unsafe { std::slice::from_raw_parts(from, bytes as usize) };
                self.write(to, source);
            }
            MemoryCopy::ToHost { from, to, bytes } => {
                let source = self.read(Span { address: from, bytes });
                let to: *mut u8 = std::ptr::with_exposed_provenance_mut(to as usize);
                // SAFETY: guaranteed by the caller; `source` is separate memory.
                unsafe { to.copy_from_nonoverlapping(source.as_ptr(), source.len()) };
            }
            MemoryCopy::OnDevice { from, to, bytes } => {
                let source = self.read(Span { address: from, bytes });
                self.write(to, &source);
            }
        }
    }
}
