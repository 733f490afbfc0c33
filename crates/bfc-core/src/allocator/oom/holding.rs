//! Live bytes by owner and category, and their sums.

use std::collections::BTreeMap;

use crate::base::ledger::{Category, Tag};
use crate::base::owner::OwnerId;

/// The bytes that one owner holds in one category.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Holding {
    /// The owner and category.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub tag: Tag,
    /// The bytes.
    pub bytes: u64,
    /// The number of blocks.
    pub blocks: u64,
}

/// All live bytes of a pool by owner and category, in descending order of bytes.
///
/// ```
/// use bfc_core::{Category, Holdings, OwnerId, Tag};
/// let net = OwnerId::intern(OwnerId::ROOT, "net");
/// let owner = OwnerId::intern(net, "relu");
/// let activation = Tag { owner, category: Category::Activation };
/// let holdings = Holdings::sum([(activation, 100), (Tag { owner, ..Tag::default() }, 50), (activation, 100)]);
/// assert_eq!(holdings.total(), 250);
/// assert_eq!(holdings.by_category(), [(Category::Activation, 200), (Category::Temporary, 50)]);
/// assert_eq!(holdings.by_scope(), [(net, 250)]);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Holdings(Vec<Holding>);

impl Holdings {
    /// The name of the owner that stands for all owners that a report omits.
    pub const OTHERS: &'static str = "(others)";

    /// Sums live blocks, each given by its tag and bytes.
    #[must_use]
    pub fn sum(blocks: impl IntoIterator<Item = (Tag, u64)>) -> Self {
        let mut sums: BTreeMap<(OwnerId, Category), (u64, u64)> = BTreeMap::new();
        for (tag, bytes) in blocks {
            let (sum, blocks) = sums.entry((tag.owner, tag.category)).or_default();
            *sum += bytes;
            *blocks += 1;
        }
        Self::of(sums)
    }

    /// Separate from [`sum`](Self::sum), so that the sort is compiled once and not for each iterator type.
    fn of(sums: BTreeMap<(OwnerId, Category), (u64, u64)>) -> Self {
        let holding =
            |((owner, category), (bytes, blocks))| Holding { tag: Tag { owner, category }, bytes, blocks };
        let mut holdings: Vec<Holding> = sums.into_iter().map(holding).collect();
        // The sort is stable: among equals, the owner that was interned first comes first.
        holdings.sort_by_key(|holding| std::cmp::Reverse(holding.bytes));
        Self(holdings)
    }

    /// Returns all holdings, in descending order of bytes.
    #[must_use]
    pub fn all(&self) -> &[Holding] {
        &self.0
    }

    /// Whether there are no holdings, or none are known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the sum of all holdings.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().fold(0, |sum, holding| sum.saturating_add(holding.bytes))
    }

    /// Sums bytes by owner, in descending order.
    #[must_use]
    pub fn by_owner(&self) -> Vec<(OwnerId, u64)> {
        self.by(|tag| tag.owner)
    }

    /// Sums bytes by the parent of each owner: the module, where owners are ops. In descending order.
    #[must_use]
    pub fn by_scope(&self) -> Vec<(OwnerId, u64)> {
        self.by(|tag| tag.owner.parent())
    }

    /// Sums bytes by category, in descending order; omits categories without bytes.
    #[must_use]
    pub fn by_category(&self) -> Vec<(Category, u64)> {
        self.by(|tag| tag.category)
    }

    /// Returns the `most` largest holdings. [`OTHERS`](Self::OTHERS) holds the sum of the rest, by category.
    #[must_use]
    pub fn largest(&self, most: usize) -> Self {
        let (largest, rest) = self.0.split_at(most.min(self.0.len()));
        let scope = OwnerId::intern(OwnerId::ROOT, Self::OTHERS);
        let owner = OwnerId::intern(scope, Self::OTHERS);
        let mut largest = largest.to_vec();
        for category in Category::ALL {
            let others = rest.iter().filter(|holding| holding.tag.category == category);
            let zero = Holding { tag: Tag { owner, category }, bytes: 0, blocks: 0 };
            let sum = others.fold(zero, |sum, holding| Holding {
                bytes: sum.bytes.saturating_add(holding.bytes),
                blocks: sum.blocks.saturating_add(holding.blocks),
                ..sum
            });
            largest.extend((sum.blocks > 0).then_some(sum));
        }
        Self(largest)
    }

    /// Returns the holdings of `scope` and of the owners below it.
    #[must_use]
    pub fn below(&self, scope: OwnerId) -> Self {
        let mut below = self.clone();
        below.0.retain(|holding| holding.tag.owner.is_below(scope));
        below
    }

    /// Sums bytes by the key of each tag, in descending order.
    pub fn by<K: Ord + Copy>(&self, key: impl Fn(Tag) -> K) -> Vec<(K, u64)> {
        let mut sums: Vec<(K, u64)> =
            self.0.iter().map(|holding| (key(holding.tag), holding.bytes)).collect();
        sums.sort_by_key(|&(key, _)| key);
        sums.dedup_by(|next, sum| {
            let same = next.0 == sum.0;
            if same {
                sum.1 = sum.1.saturating_add(next.1);
            }
            same
        });
        sums.sort_by_key(|&(_, bytes)| std::cmp::Reverse(bytes));
        sums
    }
}
