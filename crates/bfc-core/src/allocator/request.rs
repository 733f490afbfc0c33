//! The request for an allocation.

use super::attributes::AllocationAttributes;
use crate::base::ledger::{Category, Tag};

/// The default alignment of a request, in bytes.
pub const DEFAULT_ALIGNMENT: u64 = 64;

/// A request for memory.
///
/// ```
/// use bfc_core::{Category, Request};
/// let request = Request::new(1000).with_alignment(512).with_category(Category::Workspace);
/// assert_eq!(request.bytes, 1000);
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Request<'a> {
    /// The bytes. A request for 0 bytes returns [`Block::EMPTY`](crate::Block::EMPTY).
    pub bytes: u64,
    /// The minimum alignment of the address, a power of two.
    pub alignment: u64,
    /// The number of the stream that uses the block, for policies with pools by stream.
    pub stream: u32,
    /// The owner and category to charge.
    pub tag: Tag,
    /// Retries, timing and error detail.
    pub attributes: AllocationAttributes<'a>,
    /// The array that the memory is for, for reports.
    pub contents: Option<Contents<'a>>,
}

/// The array that a block will hold, for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contents<'a> {
    /// The elements along each axis.
    pub extents: &'a [usize],
    /// The element type.
    pub element: &'a str,
}

impl<'a> Request<'a> {
    /// Creates a request for `bytes` bytes with default alignment, attributes and tag.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self {
            bytes,
            alignment: DEFAULT_ALIGNMENT,
            stream: 0,
            tag: Tag::default(),
            attributes: AllocationAttributes::default(),
            contents: None,
        }
    }

    /// Sets the array that the memory is for.
    #[must_use]
    pub const fn with_contents(mut self, contents: Contents<'a>) -> Self {
        self.contents = Some(contents);
        self
    }

    /// Sets the alignment, in bytes.
    #[must_use]
    pub const fn with_alignment(mut self, alignment: u64) -> Self {
        self.alignment = alignment;
        self
    }

    /// Sets the number of the stream that uses the block; 0 by default. [`Pytorch`](crate::Pytorch) keeps the memory of
    /// streams apart, other policies ignore it.
    #[must_use]
    pub const fn with_stream(mut self, stream: u32) -> Self {
        self.stream = stream;
        self
    }

    /// Sets the owner and category to charge.
    #[must_use]
    pub const fn with_tag(mut self, tag: Tag) -> Self {
        self.tag = tag;
        self
    }

    /// Sets the category.
    #[must_use]
    pub const fn with_category(mut self, category: Category) -> Self {
        self.tag.category = category;
        self
    }

    /// Sets the attributes.
    #[must_use]
    pub fn with_attributes(self, attributes: AllocationAttributes<'a>) -> Self {
        Self { attributes, ..self }
    }
}

/// The size and class of a waiting request, which decide whether a free wakes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitKey {
    /// The bytes.
    pub bytes: u64,
    /// The class of comparable requests, such as those with one alignment. If the smaller of two requests in a class
    /// cannot be served, neither can the larger. `None` compares with no other request. This is always correct, but
    /// causes extra attempts.
    pub class: Option<u64>,
}

impl WaitKey {
    /// Whether `other` cannot be served if `self` could not.
    pub(crate) const fn rules_out(self, other: Self) -> bool {
        match (self.class, other.class) {
            (Some(class), Some(of_other)) => class == of_other && self.bytes <= other.bytes,
            _ => false,
        }
    }
}
