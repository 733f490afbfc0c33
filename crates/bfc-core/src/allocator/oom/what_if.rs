//! What would have made room for a request that was refused.

use std::borrow::Cow;

use crate::base::owner::OwnerId;

/// What would have made room, each tried by itself on a copy of the pool's policy. `None` is "not known": the allocator has
/// no policy to copy, or others decide.
///
/// An answer of yes can be had by doing it. An answer of no to the two that lay blocks out anew, compaction and another
/// split rule, is about one order of laying out; another might do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct WhatIf {
    /// All live blocks were moved together within the pool's regions, the largest first.
    pub compacted: Option<bool>,
    /// Idle regions went back to their source ([`trim`](crate::Upkeep::trim)), and others could be taken instead.
    pub trimmed: Option<bool>,
    /// Work under way was done, and what waits for it free.
    pub pending_done: Option<bool>,
    /// The live blocks had been placed by another split rule in the order in which they were made: each rule by its name
    /// (as in `HIGHWATER_SPLIT`), and whether there would be room.
    pub split: Vec<(Cow<'static, str>, bool)>,
    /// The scope that keeps most activations kept none: they would be computed again in the backward pass.
    pub checkpointed: Option<Checkpoint>,
}

/// What it would give not to keep the activations of one scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Checkpoint {
    /// The scope.
    pub scope: OwnerId,
    /// Bytes of its activations.
    pub bytes: u64,
    /// Whether the request would have found room without them.
    pub fits: bool,
}

impl WhatIf {
    /// The answers that are known, as sentences with their answers.
    #[must_use]
    pub fn answers(&self) -> Vec<(String, bool)> {
        let mut answers = Vec::new();
        let mut add = |what: String, fits: Option<bool>| answers.extend(fits.map(|fits| (what, fits)));
        add("with live blocks moved together".to_owned(), self.compacted);
        add("with idle regions returned".to_owned(), self.trimmed);
        add("after pending work".to_owned(), self.pending_done);
        for (rule, fits) in &self.split {
            add(format!("with blocks split by the rule \"{rule}\""), Some(*fits));
        }
        if let Some(Checkpoint { scope, bytes, fits }) = self.checkpointed {
            let bytes = crate::base::units::Bytes(bytes);
            let scope =
                if scope == OwnerId::ROOT { "ops outside of modules".to_owned() } else { scope.path() };
            add(format!("without the activations of {scope} ({bytes})"), Some(fits));
        }
        answers
    }
}
