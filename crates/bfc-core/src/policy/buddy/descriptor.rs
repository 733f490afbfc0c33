//! Guarded descriptors: the records of a buddy allocator's chunks, which detect stray writes.
//!
//! A descriptor lies between two digests of its fields and its number, with different seeds. Each load checks them, and
//! each store renews them. The policy thus detects an overwritten or misplaced descriptor before it acts on it. Source
//! of the idea: the guards of Paddle's `MemoryBlock::Desc`, which precedes the memory that it describes. Here the
//! descriptors lie in a separate table.

/// No chunk: the end of a region.
pub(super) const NONE: u32 = u32::MAX;

/// The state of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// None: the slot is unused.
    Vacant,
    /// Free.
    Free,
    /// In use, in a shared region.
    Live,
    /// In use, as a region of its own.
    Huge,
}

impl Kind {
    const fn from_code(code: u64) -> Option<Self> {
        Some(match code {
            1 => Self::Vacant,
            2 => Self::Free,
            3 => Self::Live,
            4 => Self::Huge,
            _ => return None,
        })
    }

    const fn code(self) -> u64 {
        match self {
            Self::Vacant => 1,
            Self::Free => 2,
            Self::Live => 3,
            Self::Huge => 4,
        }
    }
}

/// A chunk of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descriptor {
    pub(super) kind: Kind,
    /// The address.
    pub(super) address: u64,
    /// The size; 0 if vacant.
    pub(super) bytes: u64,
    /// The chunk below in the same region.
    pub(super) left: u32,
    /// The chunk above in the same region.
    pub(super) right: u32,
}

impl Descriptor {
    const VACANT: Self = Self { kind: Kind::Vacant, address: 0, bytes: 0, left: NONE, right: NONE };

    /// Returns the end address. Regions are checked to lie in the address space.
    pub(super) const fn end(&self) -> u64 {
        self.address.wrapping_add(self.bytes)
    }

    /// Whether it fills its region.
    pub(super) const fn is_whole_region(&self) -> bool {
        self.left == NONE && self.right == NONE
    }

    pub(super) const fn is_live(&self) -> bool {
        matches!(self.kind, Kind::Live | Kind::Huge)
    }

    const fn fields(&self) -> [u64; 4] {
        [self.address, self.bytes, (self.left as u64) << 32 | self.right as u64, self.kind.code()]
    }
}

/// The error of an overwritten descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Overwritten {
    /// The slot of the descriptor.
    pub(super) slot: u32,
}

/// A stored descriptor: guard, fields, guard.
#[derive(Clone, Copy, Debug)]
struct Sealed([u64; Sealed::WORDS]);

impl Sealed {
    const WORDS: usize = 6;

    /// The seeds of the first and the last guard.
    const SEEDS: [u64; 2] = [1, 2];

    fn new(slot: u32, descriptor: &Descriptor) -> Self {
        let fields = descriptor.fields();
        let [begin, end] = Self::SEEDS.map(|seed| digest(seed, slot, &fields));
        let [address, bytes, links, kind] = fields;
        Self([begin, address, bytes, links, kind, end])
    }

    fn open(&self, slot: u32) -> Option<Descriptor> {
        let [begin, address, bytes, links, kind, end] = self.0;
        let fields = [address, bytes, links, kind];
        let guards = Self::SEEDS.map(|seed| digest(seed, slot, &fields));
        if guards != [begin, end] {
            return None;
        }
        let (left, right) = ((links >> 32) as u32, links as u32);
        Some(Descriptor { kind: Kind::from_code(kind)?, address, bytes, left, right })
    }
}

/// Mixes the fields in sequence. Each step is injective in the field and in the previous state, so a change of a single
/// field is always detected.
#[inline]
fn digest(seed: u64, slot: u32, fields: &[u64; 4]) -> u64 {
    // An odd number without a pattern: 2^64 divided by the golden ratio.
    const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
    let start = u64::from(slot) << 32 | seed;
    fields.iter().fold(start, |hash, field| (hash ^ field).wrapping_mul(MIX).rotate_left(29))
}

/// All descriptors of a buddy allocator, in slots that are reused last-in first-out.
#[derive(Clone, Debug, Default)]
pub(super) struct Descriptors {
    sealed: Vec<Sealed>,
    vacant: Vec<u32>,
}

impl Descriptors {
    /// Returns the descriptor of a slot that the caller passed; a vacant one if there is no such slot.
    ///
    /// # Errors
    /// Fails if it was overwritten.
    #[inline]
    pub(super) fn load(&self, slot: u32) -> Result<Descriptor, Overwritten> {
        match self.sealed.get(slot as usize) {
            Some(sealed) => sealed.open(slot).ok_or(Overwritten { slot }),
            None => Ok(Descriptor::VACANT),
        }
    }

    /// Replaces a descriptor that was loaded before.
    #[inline]
    pub(super) fn store(&mut self, slot: u32, descriptor: &Descriptor) {
        self.sealed[slot as usize] = Sealed::new(slot, descriptor);
    }

    /// Whether there are slots for `count` more chunks.
    pub(super) fn has_room_for(&self, count: usize) -> bool {
        self.sealed.len() - self.vacant.len() + count < NONE as usize
    }

    /// Stores a new chunk. The caller has checked [`has_room_for`](Self::has_room_for).
    pub(super) fn insert(&mut self, descriptor: &Descriptor) -> u32 {
        match self.vacant.pop() {
            Some(slot) => {
                self.store(slot, descriptor);
                slot
            }
            None => {
                let slot = self.sealed.len() as u32;
                self.sealed.push(Sealed::new(slot, descriptor));
                slot
            }
        }
    }

    /// Empties a slot.
    pub(super) fn remove(&mut self, slot: u32) {
        self.store(slot, &Descriptor::VACANT);
        self.vacant.push(slot);
    }

    /// Returns the number of slots, including vacant ones.
    pub(super) fn slot_count(&self) -> usize {
        self.sealed.len()
    }

    /// Returns the vacant slots, the next one to be used last.
    pub(super) fn vacant(&self) -> &[u32] {
        &self.vacant
    }

    /// Flips bits of one of the [`WORDS`](Self::WORDS) words of a descriptor. Returns whether the word exists.
    #[cfg(test)]
    pub(super) fn overwrite(&mut self, slot: u32, word: usize, flip: u64) -> bool {
        let word = self.sealed.get_mut(slot as usize).and_then(|sealed| sealed.0.get_mut(word));
        word.map(|word| *word ^= flip).is_some()
    }

    /// The words of one descriptor.
    #[cfg(test)]
    pub(super) const WORDS: usize = Sealed::WORDS;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(address: u64) -> Descriptor {
        Descriptor { kind: Kind::Live, address, bytes: 4096, left: 3, right: NONE }
    }

    #[test]
    fn what_is_stored_is_loaded() {
        let mut descriptors = Descriptors::default();
        for kind in [Kind::Free, Kind::Live, Kind::Huge] {
            let stored = Descriptor { kind, ..piece(u64::MAX - 4096) };
            let slot = descriptors.insert(&stored);
            assert_eq!(descriptors.load(slot), Ok(stored));
        }
    }

    #[test]
    fn every_flipped_bit_of_a_descriptor_is_noticed() {
        let mut descriptors = Descriptors::default();
        let slots = [descriptors.insert(&piece(0)), descriptors.insert(&piece(1 << 40))];
        descriptors.remove(slots[0]);
        for slot in slots {
            for word in 0..Descriptors::WORDS {
                for bit in 0..64 {
                    assert!(descriptors.overwrite(slot, word, 1 << bit));
                    assert_eq!(descriptors.load(slot), Err(Overwritten { slot }), "word {word}, bit {bit}");
                    assert!(descriptors.overwrite(slot, word, 1 << bit));
                    assert!(descriptors.load(slot).is_ok());
                }
            }
        }
    }

    #[test]
    fn zeros_and_a_copy_of_another_descriptor_are_noticed() {
        let mut descriptors = Descriptors::default();
        let slots = [descriptors.insert(&piece(0)), descriptors.insert(&piece(0))];
        descriptors.sealed[1] = descriptors.sealed[0];
        assert_eq!(descriptors.load(slots[1]), Err(Overwritten { slot: 1 }));
        descriptors.sealed[0] = Sealed([0; Sealed::WORDS]);
        assert_eq!(descriptors.load(slots[0]), Err(Overwritten { slot: 0 }));
    }

    #[test]
    fn the_slot_emptied_last_is_used_first() {
        let mut descriptors = Descriptors::default();
        let slots = [0, 1, 2].map(|n| descriptors.insert(&piece(n)));
        descriptors.remove(slots[0]);
        descriptors.remove(slots[2]);
        assert_eq!(descriptors.load(slots[2]).map(|piece| piece.kind), Ok(Kind::Vacant));
        assert_eq!(descriptors.load(77).map(|piece| piece.kind), Ok(Kind::Vacant));
        assert_eq!([piece(8), piece(9), piece(10)].map(|piece| descriptors.insert(&piece)), [2, 0, 3]);
    }
}
