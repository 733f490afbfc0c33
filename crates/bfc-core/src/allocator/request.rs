//! What a caller asks of an allocator.

use super::attributes::AllocationAttributes;
use crate::base::ledger::{Category, Tag};

/// The alignment that a request gets unless it asks for more, in bytes.
pub const DEFAULT_ALIGNMENT: u64 = 64;

/// One wish for memory.
///
/// ```
/// use bfc_core::{Category, Request};
/// let request = Request::new(1000).with_alignment(512).with_category(Category::Workspace);
/// assert_eq!(request.bytes, 1000);
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Request<'a> {
    /// How many bytes; 0 is answered by [`Block::EMPTY`](crate::Block::EMPTY).
    pub bytes: u64,
    /// Least alignment of the address, a power of two.
    pub alignment: u64,
    /// Who asks and what for.
    pub tag: Tag,
    /// How hard to try.
    pub attributes: AllocationAttributes<'a>,
    /// What will lie in the memory, for reports.
    pub contents: Option<Contents<'a>>,
}

/// What will lie in a block, in words that mean something to those who read reports: an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contents<'a> {
    /// Elements along each axis.
    pub extents: &'a [usize],
    /// The type of the elements.
    pub element: &'a str,
}

impl<'a> Request<'a> {
    /// A request for `bytes` bytes with default alignment, attributes and tag.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self {
            bytes,
            alignment: DEFAULT_ALIGNMENT,
            tag: Tag::default(),
            attributes: AllocationAttributes::default(),
            contents: None,
        }
    }

    /// The same request, for memory that will hold this.
    #[must_use]
    pub const fn with_contents(mut self, contents: Contents<'a>) -> Self {
        self.contents = Some(contents);
        self
    }

    /// The same request with another alignment, in bytes.
    #[must_use]
    pub const fn with_alignment(mut self, alignment: u64) -> Self {
        self.alignment = alignment;
        self
    }

    /// The same request, charged to `tag`.
    #[must_use]
    pub const fn with_tag(mut self, tag: Tag) -> Self {
        self.tag = tag;
        self
    }

    /// The same request for another purpose.
    #[must_use]
    pub const fn with_category(mut self, category: Category) -> Self {
        self.tag.category = category;
        self
    }

    /// The same request, tried for as `attributes` say.
    #[must_use]
    pub fn with_attributes(self, attributes: AllocationAttributes<'a>) -> Self {
        Self { attributes, ..self }
    }
}

/// What a request waits for, as far as it decides who is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitKey {
    /// How many bytes.
    pub bytes: u64,
    /// Requests that can be compared: of two with the same number here, the larger cannot be served when the smaller
    /// cannot. A number may stand for an alignment, for instance. `None` compares with nothing and is always right; it
    /// costs attempts that comparison would save.
    pub class: Option<u64>,
}

impl WaitKey {
    /// Whether `other` cannot be served where `self` could not.
    pub(crate) const fn rules_out(self, other: Self) -> bool {
        match (self.class, other.class) {
            (Some(class), Some(of_other)) => class == of_other && self.bytes <= other.bytes,
            _ => false,
        }
    }
}
