//! What clones of a tensor share: memory, and how it is seen.
//!
//! It costs no atomic exchange to see that a handle to it is alone, and fresh memory that was filled becomes a tensor where it
//! stands.

use std::sync::Arc as Handle;
use std::thread::LocalKey;

use bfc_core::{AllocError, Allocation, Allocator, MemoryKind, Request};

use crate::device::Device;
use crate::layout::Layout;
use crate::shape::{DType, Shape};
use crate::storage::shared::{Piece, Room, Shareable, Shared, Unique};
use crate::storage::spare::Spare;
use crate::storage::{Storage, View, ViewMut};

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Body {
    /// First, as what was lent by the device's allocator goes back before the device is let go.
    memory: Memory,
    layout: Layout,
    device: Device,
}

/// Whose the buffer is. Few tensors are views, so most have theirs without another piece of heap memory.
#[derive(Debug)]
enum Memory {
    /// The tensor's own.
    Own(Storage),
    /// Of a tensor that this one is a view of, and that is none itself.
    Of(Shared<Body>),
}

/// What the memory of a body is taken from.
pub(crate) struct Source<'a> {
    device: &'a Device,
    allocator: &'a Handle<dyn Allocator>,
    kind: MemoryKind,
    /// Whether it is the device's default allocator itself.
    is_default: bool,
}

impl<'a> Source<'a> {
    /// An allocator for tensors of a device, through an op's account if there is one.
    #[inline(always)]
    pub(crate) fn new(
        device: &'a Device,
        base: &'a Handle<dyn Allocator>,
        account: Option<&'a Handle<dyn Allocator>>,
    ) -> Self {
        let known = device.known_memory_kind(base);
        // Of any other it has to be asked for.
        let kind = known.unwrap_or_else(|| base.memory_kind());
        match account {
            Some(account) => Self { device, allocator: account, kind, is_default: false },
            None => Self { device, allocator: base, kind, is_default: known.is_some() },
        }
    }
}

thread_local!(static PIECES: Spare<Piece<Body>> = const { Spare::new() });

impl Shareable for Body {
    fn pieces() -> &'static LocalKey<Spare<Piece<Self>>> {
        &PIECES
    }
}

impl Body {
    /// A buffer of one's own.
    ///
    /// # Panics
    /// If the layout leaves the buffer.
    pub(crate) fn new(storage: Storage, layout: Layout, device: Device) -> Unique<Self> {
        storage.assert_contains(&layout);
        Room::new().fill(Self { memory: Memory::Own(storage), layout, device })
    }

    /// The same, of a buffer that is asked for now, and in which elements of this shape lie in order from its start.
    ///
    /// # Errors
    /// As [`Allocator::allocate`].
    #[inline(always)]
    pub(crate) fn in_order(
        source: &Source<'_>,
        request: &Request<'_>,
        shape: &Shape,
        dtype: DType,
    ) -> Result<Unique<Self>, AllocError> {
        let room = Room::new();
        let Source { device, allocator, kind, is_default } = *source;
        let allocation = if is_default {
            // SAFETY: the device holds its default allocator for as long as it lives. This body holds the device, and lets it go after
            // its memory: fields are dropped in their order, and nobody takes memory out of a body.
            unsafe { Allocation::lent(allocator, request)? }
        } else {
            Allocation::new(allocator, request)?
        };
        let storage = Storage::charged(
            allocation,
            (kind, device.serial()),
            (request.bytes as usize, dtype),
            request.tag.category,
        );
        let memory = Memory::Own(storage);
        let mut body = room.fill(Self { memory, layout: Layout::SCALAR, device: device.clone() });
        body.layout.put_in_order(shape);
        Ok(body)
    }

    /// The same buffer seen through another layout.
    ///
    /// # Panics
    /// If the layout leaves the buffer.
    pub(crate) fn with_layout(this: &Shared<Self>, layout: Layout) -> Shared<Self> {
        this.storage().assert_contains(&layout);
        let owner = match &this.memory {
            Memory::Own(_) => this,
            Memory::Of(owner) => owner,
        };
        let memory = Memory::Of(owner.clone());
        Shared::new(Self { memory, layout, device: this.device.clone() })
    }

    /// Sees the buffer through another layout from now on.
    ///
    /// # Panics
    /// If the layout leaves the buffer.
    pub(crate) fn set_layout(&mut self, layout: Layout) {
        self.storage().assert_contains(&layout);
        self.layout = layout;
    }

    pub(crate) const fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(crate) fn dtype(&self) -> DType {
        self.storage().dtype()
    }

    pub(crate) const fn device(&self) -> &Device {
        &self.device
    }

    #[inline(always)]
    pub(crate) fn storage(&self) -> &Storage {
        match &self.memory {
            Memory::Own(storage) => storage,
            Memory::Of(owner) => owner.owned(),
        }
    }

    /// The buffer of the tensor that a view is of.
    // Out of line, so that what is seldom wanted takes no room in the many places where a buffer is asked for.
    #[cold]
    #[inline(never)]
    fn owned(&self) -> &Storage {
        self.storage()
    }

    /// Whether this handle is the only one to the buffer, and that may be written.
    pub(crate) fn is_unique(this: &Shared<Self>) -> bool {
        let owner_is_unique = match &this.memory {
            Memory::Own(_) => true,
            Memory::Of(owner) => Shared::is_unique(owner),
        };
        Shared::is_unique(this) && owner_is_unique && !this.storage().is_read_only()
    }

    /// As kernels read it.
    pub(crate) fn view(&self) -> View<'_> {
        View::new(self.storage(), &self.layout)
    }

    /// As kernels write it: only if no other tensor looks into the buffer, which may be written, and in which the elements
    /// lie in order from its start.
    pub(crate) fn view_mut(&mut self) -> Option<ViewMut<'_>> {
        if !self.layout.is_contiguous() || self.layout.offset() != 0 {
            return None;
        }
        let storage = match &mut self.memory {
            Memory::Own(storage) => storage,
            Memory::Of(owner) => Shared::get_mut(owner)?.own_mut()?,
        };
        if storage.is_read_only() {
            return None;
        }
        Some(ViewMut::new(storage, &self.layout))
    }

    /// As kernels write it: `None` unless the buffer is this tensor's own. It has to lie in order, as it does where it was just
    /// allocated.
    pub(crate) const fn fresh_view_mut(&mut self) -> Option<ViewMut<'_>> {
        match &mut self.memory {
            Memory::Own(storage) if !storage.is_read_only() => Some(ViewMut::new(storage, &self.layout)),
            _ => None,
        }
    }

    /// The buffer of a tensor that is no view.
    const fn own_mut(&mut self) -> Option<&mut Storage> {
        match &mut self.memory {
            Memory::Own(storage) => Some(storage),
            Memory::Of(_) => None,
        }
    }
}
