//! Runs sequences of operations on a policy, as a pool would, beside the plainest policy with the same rules.
//! Compares the two after every step.
#![allow(dead_code, unreachable_pub)]

pub mod plain;

use std::collections::BTreeMap;

use bfc_core::{NotAdded, NotLive, Piece, Placement, PlacementRequest, Policy, Release, Span};
use proptest::prelude::*;

use plain::{Plain, PlainPiece, Rules};

/// One step. Indices of live blocks are taken modulo the number of live blocks.
#[derive(Clone, Debug)]
pub enum Step {
    /// Reserves a region for the block if nothing fits and `grow` is set.
    Placement {
        bytes: u64,
        alignment_log2: u8,
        grow: bool,
    },
    Free {
        pick: usize,
    },
    FreeTwice {
        pick: usize,
    },
    FreeMadeUp {
        slot: u32,
    },
    AddRegion {
        bytes: u64,
        offset: u64,
    },
    AddOverlapping {
        pick: usize,
        bytes: u64,
    },
    TakeIdle {
        at_most: u64,
    },
    TakeUnwanted,
    /// Places and frees on a copy.
    WhatIf {
        bytes: u64,
    },
}

/// Random steps with requests up to `most` bytes.
pub fn steps(most: u64) -> impl Strategy<Value = Vec<Step>> {
    let bytes = prop_oneof![4 => 1..most / 16, 2 => 1..most, 1 => Just(256_u64), 1 => Just(most)];
    let regions = prop_oneof![3 => 1..most, 1 => 1..300_u64];
    let step = prop_oneof![
        8 => (bytes.clone(), 0..14_u8, prop::bool::weighted(0.7))
            .prop_map(|(bytes, alignment_log2, grow)| Step::Placement { bytes, alignment_log2, grow }),
        6 => any::<usize>().prop_map(|pick| Step::Free { pick }),
        1 => any::<usize>().prop_map(|pick| Step::FreeTwice { pick }),
        1 => prop_oneof![0..64_u32, Just(u32::MAX)].prop_map(|slot| Step::FreeMadeUp { slot }),
        1 => (regions.clone(), 0..600_u64).prop_map(|(bytes, offset)| Step::AddRegion { bytes, offset }),
        1 => (any::<usize>(), regions).prop_map(|(pick, bytes)| Step::AddOverlapping { pick, bytes }),
        1 => prop_oneof![Just(u64::MAX), 0..most].prop_map(|at_most| Step::TakeIdle { at_most }),
        1 => Just(Step::TakeUnwanted),
        1 => bytes.prop_map(|bytes| Step::WhatIf { bytes }),
    ];
    prop::collection::vec(step, 1..120)
}

/// The plain regions that a policy must not want to keep.
pub type Unwanted = fn(&Plain, Release) -> Vec<Span>;

/// A policy and its shadow.
#[derive(Clone, Debug)]
pub struct Shadow<P> {
    pub policy: P,
    plain: Plain,
    unwanted: Unwanted,
    live: BTreeMap<u32, Placement>,
    /// Where the next region starts.
    next: u64,
}

impl<P: Policy + Clone> Shadow<P> {
    pub fn new(policy: P, rules: Rules, unwanted: Unwanted) -> Self {
        Self { policy, plain: Plain::new(rules), unwanted, live: BTreeMap::new(), next: 1 << 40 }
    }

    /// Runs all steps, frees the live blocks, and takes all regions: nothing may remain.
    pub fn run(mut self, steps: &[Step]) {
        for step in steps {
            self.step(step);
        }
        while let Some((&slot, _)) = self.live.first_key_value() {
            self.free(slot);
        }
        while let Some(span) = self.policy.release(Release::Idle { at_most: u64::MAX }) {
            self.plain.remove(span);
        }
        self.compare();
        assert_eq!((self.policy.status().reserved_bytes, (&self.policy as &dyn Policy).free_bytes()), (0, 0));
    }

    pub fn step(&mut self, step: &Step) {
        match *step {
            Step::Placement { bytes, alignment_log2, grow } => {
                self.place(bytes, 1 << alignment_log2, grow);
            }
            Step::Free { pick } => {
                if let Some(slot) = self.pick(pick) {
                    self.free(slot);
                }
            }
            Step::FreeTwice { pick } => {
                if let Some(slot) = self.pick(pick) {
                    self.free(slot);
                    assert_eq!(self.policy.free(slot), Err(NotLive { slot }));
                }
            }
            Step::FreeMadeUp { slot } => {
                if !self.live.contains_key(&slot) {
                    assert_eq!(self.policy.free(slot), Err(NotLive { slot }));
                    assert_eq!(self.policy.placed(slot), None);
                }
            }
            Step::AddRegion { bytes, offset } => {
                self.next += offset;
                self.add(bytes);
            }
            Step::AddOverlapping { pick, bytes } => {
                let region =
                    pick.checked_rem(self.plain.regions.len()).map(|index| &self.plain.regions[index]);
                if let Some(region) = region {
                    let span = Span { address: region.span.address + pick as u64 % region.span.bytes, bytes };
                    assert_eq!(self.policy.add_region(span, true), Err(NotAdded::Bad));
                }
            }
            Step::TakeIdle { at_most } => {
                let idle = self
                    .plain
                    .regions
                    .iter()
                    .find(|region| region.is_idle() && region.span.bytes <= at_most)
                    .map(|region| region.span);
                assert_eq!(self.policy.release(Release::Idle { at_most }), idle);
                idle.into_iter().for_each(|span| self.plain.remove(span));
            }
            Step::TakeUnwanted => self.take_unwanted(Release::Unwanted),
            Step::WhatIf { bytes } => self.what_if(bytes),
        }
        self.compare();
    }

    fn pick(&self, pick: usize) -> Option<u32> {
        self.live.keys().nth(pick.checked_rem(self.live.len())?).copied()
    }

    /// Places a block as a pool does: search, release unwanted regions, grow, search again.
    pub fn place(&mut self, bytes: u64, alignment: u64, grow: bool) -> Option<Placement> {
        let need = PlacementRequest::new(bytes).with_alignment(alignment);
        let rounded = self.policy.rounded(bytes, alignment).unwrap();
        assert_eq!(rounded, self.plain.rules.rounded(bytes));
        let mut place = self.place_once(&need);
        if place.is_none() && grow {
            self.take_unwanted(Release::BeforeGrowth);
            self.compare();
            let region = self.policy.region_bytes(rounded, rounded);
            assert!(region >= rounded);
            self.next = self.next.next_multiple_of(alignment.max(256));
            self.add(region);
            place = self.place_once(&need);
            assert!(place.is_some(), "there is room for {need:?} now");
        }
        place
    }

    fn place_once(&mut self, need: &PlacementRequest) -> Option<Placement> {
        let expected = self.plain.place(need.bytes, need.alignment);
        let place = self.policy.place(need);
        assert_eq!(
            place.map(|place| Span { address: place.address, bytes: place.bytes }),
            expected,
            "{need:?}"
        );
        if let Some(place) = place {
            assert!(place.bytes >= need.bytes && place.address % need.alignment == 0);
            assert_eq!(self.policy.placed(place.slot), Some(place));
            assert_eq!(self.live.insert(place.slot, place), None, "a slot was given out twice");
        }
        place
    }

    pub fn free(&mut self, slot: u32) {
        let place = self.live.remove(&slot).unwrap();
        assert_eq!(self.policy.free(slot), Ok(()));
        self.plain.free(place.address);
        self.compare();
        self.take_unwanted(Release::Unwanted);
        self.compare();
    }

    fn add(&mut self, bytes: u64) {
        let span = Span { address: self.next, bytes };
        self.next += bytes;
        assert_eq!(self.policy.add_region(span, true), Ok(()));
        self.plain.add(span);
    }

    fn take_unwanted(&mut self, unwanted: Release) {
        for expected in (self.unwanted)(&self.plain, unwanted) {
            assert_eq!(self.policy.release(unwanted), Some(expected));
            self.plain.remove(expected);
        }
        assert_eq!(self.policy.release(unwanted), None);
    }

    /// Steps on a copy do not change the original, and have the same result as on the original.
    fn what_if(&mut self, bytes: u64) {
        let mut copy = self.clone();
        let mut boxed = self.policy.boxed_clone();
        if let Some(slot) = copy.pick(0) {
            copy.free(slot);
            boxed.free(slot).unwrap();
            while boxed.release(Release::Unwanted).is_some() {}
        }
        assert_eq!(
            copy.place_once(&PlacementRequest::new(bytes)),
            boxed.place(&PlacementRequest::new(bytes))
        );
        copy.compare();
        assert_eq!(pieces_of(&copy.policy), pieces_of(&*boxed));
    }

    /// Compares all visible state.
    pub fn compare(&self) {
        self.policy.check().unwrap();
        let pieces = pieces_of(&self.policy);
        let shown = pieces.iter().map(|piece| (piece.region, plain(piece)));
        assert!(shown.eq(self.plain.pieces()), "{pieces:x?}\n{:x?}", self.plain);
        let live = pieces.iter().filter_map(|piece| piece.slot.map(|slot| (slot, piece.span)));
        let known =
            self.live.values().map(|&Placement { address, bytes, slot }| (slot, Span { address, bytes }));
        assert_eq!(live.collect::<BTreeMap<_, _>>(), known.collect());

        let (regions, plain) = (self.policy.regions(), &self.plain.regions);
        assert!(regions.iter().copied().eq(plain.iter().map(|region| region.span)), "{regions:x?}");
        let free = self.plain.bytes(false);
        assert_eq!(self.policy.status().reserved_bytes, free + self.plain.bytes(true));
        assert_eq!((&self.policy as &dyn Policy).free_bytes(), free);
        let idle = plain.iter().filter(|region| region.is_idle()).map(|region| region.span.bytes);
        assert_eq!(self.policy.idle_bytes(), idle.sum());
        let free = self.plain.pieces().filter(|(_, piece)| !piece.live).map(|(_, piece)| piece.span.bytes);
        assert_eq!(self.policy.largest_free_bytes(), free.max().unwrap_or(0));
    }
}

fn plain(piece: &Piece) -> PlainPiece {
    PlainPiece { span: piece.span, live: piece.slot.is_some() }
}

/// Returns all pieces that a policy shows.
pub fn pieces_of(policy: &dyn Policy) -> Vec<Piece> {
    let mut pieces = Vec::new();
    policy.visit(&mut |piece| pieces.push(piece));
    pieces
}

/// Requests that no policy can meet, and spans that no policy can take, change nothing.
pub fn refuses_the_impossible(mut policy: impl Policy) {
    let span = Span { address: 0, bytes: u64::MAX };
    policy.add_region(span, false).unwrap();
    let impossible = [
        (u64::MAX, 1),
        (u64::MAX - 100, 256),
        (u64::MAX - (1 << 20), 1 << 63),
        (1, 0),
        (1, 3),
        (1 << 63, 1 << 63),
    ];
    for (bytes, alignment) in impossible {
        assert_eq!(policy.rounded(bytes, alignment), None, "{bytes} at {alignment}");
        assert_eq!(policy.place(&PlacementRequest::new(bytes).with_alignment(alignment)), None);
    }
    for (address, bytes) in [(0, 0), (u64::MAX, 0), (u64::MAX, 1), (1, u64::MAX), (0, 1)] {
        assert_eq!(policy.add_region(Span { address, bytes }, true), Err(NotAdded::Bad));
    }
    assert_eq!(pieces_of(&policy), [Piece::new(0, span, None)]);
    policy.check().unwrap();

    for need in [
        PlacementRequest::new(0),
        PlacementRequest::new(1).with_alignment(1 << 63),
        PlacementRequest::new(1 << 62),
    ] {
        let place = policy.place(&need).unwrap();
        assert!(place.bytes >= need.bytes && place.address % need.alignment == 0);
        policy.check().unwrap();
        policy.free(place.slot).unwrap();
        let not_live = Err(NotLive { slot: place.slot });
        assert_eq!(policy.free(place.slot), not_live);
        if let Some(timed) = policy.timed() {
            assert_eq!(timed.free_at(place.slot, u64::MAX), not_live);
        }
        policy.check().unwrap();
    }
    assert_eq!(policy.release(Release::Idle { at_most: u64::MAX }), Some(span));
    assert_eq!(policy.release(Release::Idle { at_most: u64::MAX }), None);
    policy.check().unwrap();
}
