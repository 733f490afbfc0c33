//! Changes that would have made room for a failed request.

use std::borrow::Cow;

use crate::base::owner::OwnerId;

/// Whether certain changes would have made room, each tried separately on a copy of the pool's policy.
///
/// `None` means unknown: the allocator has no policy to copy, or another allocator decides. A yes can be achieved by
/// making the change. A no for compaction or another split rule holds for one order of placements; another order might
/// succeed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct WhatIf {
    /// With all live blocks compacted within the pool's regions, the largest first.
    pub compacted: Option<bool>,
    /// In one region of the whole limit (`HIGHWATER_GROWTH=off`), with the live blocks placed in the order of their
    /// allocation. Only if the pool can have several regions.
    #[cfg_attr(feature = "serde", serde(default))]
    pub one_region: Option<bool>,
    /// With idle regions returned to their source ([`trim`](crate::PoolView::trim)) and new ones in their place.
    pub trimmed: Option<bool>,
    /// With pending work done and its blocks free.
    pub pending_done: Option<bool>,
    /// With the live blocks placed by another split rule in the order of their allocation: the name of each rule (as in
    /// `HIGHWATER_SPLIT`) and the answer.
    pub split: Vec<(Cow<'static, str>, bool)>,
    /// Without the activations of the scope that keeps the most: the backward pass would recompute them.
    pub checkpointed: Option<CheckpointedScope>,
}

/// The effect of recomputing the activations of one scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct CheckpointedScope {
    /// The scope.
    pub scope: OwnerId,
    /// The bytes of its activations.
    pub bytes: u64,
    /// Whether the request would have fit without them.
    pub fits: bool,
}

impl WhatIf {
    /// Returns the known answers, each with a description.
    #[must_use]
    pub fn answers(&self) -> Vec<(String, bool)> {
        let mut answers = Vec::new();
        let mut add = |what: String, fits: Option<bool>| answers.extend(fits.map(|fits| (what, fits)));
        add("with live blocks moved together".to_owned(), self.compacted);
        add("in one region of the whole limit (HIGHWATER_GROWTH=off)".to_owned(), self.one_region);
        add("with idle regions returned".to_owned(), self.trimmed);
        add("after pending work".to_owned(), self.pending_done);
        for (rule, fits) in &self.split {
            add(format!("with blocks split by the rule \"{rule}\""), Some(*fits));
        }
        if let Some(CheckpointedScope { scope, bytes, fits }) = self.checkpointed {
            let bytes = crate::base::units::Bytes(bytes);
            let scope =
                if scope == OwnerId::ROOT { "ops outside of modules".to_owned() } else { scope.path() };
            add(format!("without the activations of {scope} ({bytes})"), Some(fits));
        }
        answers
    }
}
