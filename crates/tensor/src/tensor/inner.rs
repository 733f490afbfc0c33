//! The shared part of a tensor: its buffer and layout.

use std::sync::Arc;

use crate::device::Device;
use crate::layout::Layout;
use crate::shape::DType;
use crate::storage::{Storage, TensorStorage, View, ViewMut};

/// The data that clones of a tensor share.
#[derive(Debug)]
pub(crate) struct TensorInner {
    memory: Memory,
    layout: Layout,
    device: Device,
}

/// The owner of the elements. Most tensors own their buffer directly; few are views.
#[derive(Debug)]
enum Memory {
    Owned(TensorStorage),
    /// A view of the tensor that owns the buffer.
    ViewOf(Arc<TensorInner>),
}

impl TensorInner {
    /// Returns a tensor that owns its buffer.
    ///
    /// # Panics
    /// If the layout exceeds the buffer.
    #[inline]
    pub(crate) fn new(storage: TensorStorage, layout: Layout, device: Device) -> Arc<Self> {
        let this = Arc::new(Self { memory: Memory::Owned(storage), layout, device });
        // Afterwards, because the compiler then writes the parts to their place without a copy.
        this.storage().assert_contains(&this.layout);
        this
    }

    /// Returns another view of the same buffer.
    ///
    /// # Panics
    /// If the layout exceeds the buffer.
    pub(crate) fn with_layout(this: &Arc<Self>, layout: Layout) -> Self {
        this.storage().assert_contains(&layout);
        let owner = match &this.memory {
            Memory::Owned(_) => this,
            Memory::ViewOf(owner) => owner,
        };
        Self { memory: Memory::ViewOf(Arc::clone(owner)), layout, device: this.device.clone() }
    }

    /// Replaces the layout.
    ///
    /// # Panics
    /// If the layout exceeds the buffer.
    pub(crate) fn set_layout(&mut self, layout: Layout) {
        self.storage().assert_contains(&layout);
        self.layout = layout;
    }

    pub(crate) const fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(crate) const fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn storage(&self) -> &Storage {
        &self.owned().storage
    }

    /// Returns the buffer with its category and its stale values.
    pub(crate) fn owned(&self) -> &TensorStorage {
        match &self.memory {
            Memory::Owned(owned) => owned,
            Memory::ViewOf(owner) => owner.owned(),
        }
    }

    /// Returns whether this is the only handle to the buffer, and the buffer is writable.
    pub(crate) fn is_unique(this: &Arc<Self>) -> bool {
        let owner_is_unique = match &this.memory {
            Memory::Owned(_) => true,
            Memory::ViewOf(owner) => Arc::strong_count(owner) == 1,
        };
        Arc::strong_count(this) == 1 && owner_is_unique && !this.storage().is_read_only()
    }

    /// Returns the readable view for kernels.
    pub(crate) fn view(&self) -> View<'_> {
        // SAFETY: every constructor and `set_layout` have checked the layout.
        unsafe { View::new_unchecked(self.storage(), &self.layout) }
    }

    /// Returns the writable view for kernels. Returns `None` if another tensor shares the buffer, if the
    /// buffer is read-only, or if the elements are not contiguous from its start.
    pub(crate) fn view_mut(&mut self) -> Option<ViewMut<'_>> {
        if !self.layout.is_contiguous() || self.layout.offset() != 0 {
            return None;
        }
        let storage = match &mut self.memory {
            Memory::Owned(owned) => &mut owned.storage,
            Memory::ViewOf(owner) => match &mut Arc::get_mut(owner)?.memory {
                Memory::Owned(owned) => &mut owned.storage,
                Memory::ViewOf(_) => return None,
            },
        };
        if storage.is_read_only() {
            return None;
        }
        // SAFETY: every constructor and `set_layout` have checked the layout, and it is contiguous from the start.
        Some(unsafe { ViewMut::new_unchecked(storage, &self.layout) })
    }

    /// Returns the writable view of a new tensor, which nothing else refers to.
    ///
    /// # Panics
    /// If there is another handle to the tensor, or if it is a view. Both are errors of this crate.
    #[inline]
    pub(crate) fn new_view_mut(this: &mut Arc<Self>) -> ViewMut<'_> {
        match Arc::get_mut(this) {
            // SAFETY: `new` has checked the layout, which is that of a new buffer.
            Some(Self { memory: Memory::Owned(owned), layout, .. }) => unsafe {
                ViewMut::new_unchecked(&mut owned.storage, layout)
            },
            _ => unreachable!("a new tensor has one handle and its own buffer"),
        }
    }

    pub(crate) fn dtype(&self) -> DType {
        self.storage().dtype()
    }
}
