//! What is known of a live block beyond its place, in as few bytes as it takes.

use crate::base::ledger::{Category, Tag};
use crate::base::owner::{MAX_OWNERS, OwnerId};

/// What is known of the live block in a slot beyond its place.
// Without the gap that would make it a multiple of eight bytes: of many chunks, it is a twentieth of the books.
#[derive(Clone, Copy, Debug, Default)]
#[repr(Rust, packed(4))]
pub(crate) struct Account {
    /// The allocation's number, from 1 upward; 0 if the slot holds no live block.
    pub(crate) allocation: u64,
    /// Bytes asked for; 0 if there is no live block.
    pub(crate) requested: u64,
    /// What it is charged to; the default if there is no live block.
    tag: PackedTag,
}

// With the 40 bytes of a chunk this is nearly all of the price of a chunk in host memory. What is left up to a cache line
// pays for the room that tables have to spare.
const _: () = assert!(size_of::<Account>() <= 20);

impl Account {
    /// What the block is charged to.
    #[inline]
    pub(crate) const fn tag(&self) -> Tag {
        self.tag.unpack()
    }

    /// Charges the block to another tag.
    #[inline]
    pub(crate) fn set_tag(&mut self, tag: Tag) {
        self.tag = PackedTag::of(tag);
    }
}

/// A tag in one word: the category in front of the owner's index.
#[derive(Clone, Copy, Debug, Default)]
struct PackedTag(u32);

/// Bits of the owner's index.
const OWNER_BITS: u32 = MAX_OWNERS.ilog2();

const _: () = assert!(MAX_OWNERS.is_power_of_two() && Category::COUNT << OWNER_BITS <= 1 << u32::BITS);

impl PackedTag {
    #[inline]
    const fn of(tag: Tag) -> Self {
        Self((tag.category.index() as u32) << OWNER_BITS | tag.owner.index() as u32)
    }

    #[inline]
    const fn unpack(self) -> Tag {
        let category = Category::of_index((self.0 >> OWNER_BITS) as usize);
        Tag { owner: OwnerId::from_index(self.0 as usize % MAX_OWNERS), category }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_gives_back_the_tag_that_it_was_given() {
        let last = OwnerId::from_index(MAX_OWNERS - 1);
        for owner in [OwnerId::ROOT, OwnerId::from_index(1), last] {
            for category in Category::ALL {
                let mut account = Account::default();
                assert_eq!(account.tag(), Tag::default());
                account.set_tag(Tag { owner, category });
                assert_eq!(account.tag(), Tag { owner, category });
            }
        }
    }
}
