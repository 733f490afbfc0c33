//! Merging of a freed chunk with its neighbors.

use super::Buddy;
use super::descriptor::{Descriptor, Kind, NONE};
use crate::policy::best_fit::FreePiece;

impl Buddy {
    /// Frees a chunk, merges it with a free neighbor above, then with one below, and stores the result. The lowest
    /// chunk keeps its slot.
    pub(super) fn join(&mut self, slot: u32, piece: Descriptor) -> Descriptor {
        let (mut slot, mut piece) = (slot, piece);
        let mut right = self.sound(piece.right);
        let left = self.sound(piece.left);
        let right_of_right = right.and_then(|right| self.sound(right.right));

        // Merges only if the chunk beyond the neighbor is intact.
        if let Some(free) = right
            .filter(|right| right.kind == Kind::Free && (right.right == NONE || right_of_right.is_some()))
        {
            self.take_out(piece.right, &free);
            piece.bytes += free.bytes;
            piece.right = free.right;
            right = right_of_right;
        }
        if let Some(free) = left.filter(|left| left.kind == Kind::Free) {
            self.free.remove(FreePiece { bytes: free.bytes, address: free.address, slot: piece.left });
            self.descriptors.remove(slot);
            slot = piece.left;
            piece = Descriptor { bytes: free.bytes + piece.bytes, right: piece.right, ..free };
        }
        if let Some(right) = right.filter(|right| right.left != slot) {
            self.descriptors.store(piece.right, &Descriptor { left: slot, ..right });
        }
        self.descriptors.store(slot, &piece);
        self.free.insert(FreePiece { bytes: piece.bytes, address: piece.address, slot });
        piece
    }

    /// Removes a free chunk.
    fn take_out(&mut self, slot: u32, piece: &Descriptor) {
        self.free.remove(FreePiece { bytes: piece.bytes, address: piece.address, slot });
        self.descriptors.remove(slot);
    }

    /// Returns the descriptor of a neighbor, unless there is none or it was overwritten, which is recorded.
    fn sound(&mut self, slot: u32) -> Option<Descriptor> {
        if slot == NONE {
            return None;
        }
        self.descriptors.load(slot).map_err(|overwritten| self.note_damage(overwritten)).ok()
    }
}
