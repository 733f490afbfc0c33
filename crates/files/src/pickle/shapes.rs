//! The keys of dictionaries. Dictionaries with the same keys in the same order share them as a shape.
//!
//! Most dictionaries of a file are records with the same fields. Each stores its values and the number of its shape, and
//! a reader looks up the position of a field once per shape.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use super::account::Account;
use super::heap::Value;
use crate::lean::TooMuchHeld;

/// The cost of an entry of the index, including unused capacity.
const ENTRY_BYTES: u64 = 48;

/// The number of recently used shapes that are compared before the index.
const RECENT: usize = 16;

/// The distinct lists of keys, which are texts.
#[derive(Debug, Default)]
pub(super) struct Shapes {
    /// The start of hashes, so that no file can choose keys with equal ones.
    seed: Seed,
    /// The numbers of the texts of all shapes, one shape after the other.
    keys: Vec<u32>,
    /// The end of each shape in `keys`.
    ends: Vec<usize>,
    /// By the hash of the keys.
    index: HashMap<u64, u32>,
    recent: [Option<u32>; RECENT],
}

#[derive(Debug)]
struct Seed(u64);

impl Default for Seed {
    fn default() -> Self {
        Self(RandomState::new().hash_one(0))
    }
}

impl Shapes {
    /// Returns the keys of a shape, as the numbers of texts.
    #[inline]
    pub(super) fn keys(&self, shape: u32) -> &[u32] {
        let Some(&end) = self.ends.get(shape as usize) else { return &[] };
        let start = if shape == 0 { 0 } else { self.ends[shape as usize - 1] };
        &self.keys[start..end]
    }

    /// Returns the shape of a dictionary with alternating keys and values; `None` if a key is no text.
    #[inline]
    pub(super) fn of(&mut self, account: &mut Account, pairs: &[Value]) -> Result<Option<u32>, TooMuchHeld> {
        let [Value::Text(first), ..] = *pairs else { return Ok(None) };
        let slot = (first as usize ^ pairs.len()) % RECENT;
        if let Some(shape) = self.recent[slot].filter(|&shape| self.has_keys(shape, pairs)) {
            return Ok(Some(shape));
        }
        let found = self.find(account, pairs)?;
        self.recent[slot] = found;
        Ok(found)
    }

    #[inline]
    fn has_keys(&self, shape: u32, pairs: &[Value]) -> bool {
        let keys = self.keys(shape);
        keys.len() == pairs.len() / 2
            && keys.iter().zip(pairs.chunks_exact(2)).all(|(&key, pair)| pair[0] == Value::Text(key))
    }

    #[cold]
    fn find(&mut self, account: &mut Account, pairs: &[Value]) -> Result<Option<u32>, TooMuchHeld> {
        let mut hash = self.seed.0;
        for pair in pairs.chunks_exact(2) {
            let Value::Text(key) = pair[0] else { return Ok(None) };
            hash = (hash.rotate_left(5) ^ u64::from(key)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        while let Some(&found) = self.index.get(&hash) {
            if self.has_keys(found, pairs) {
                return Ok(Some(found));
            }
            hash = hash.wrapping_add(1);
        }
        let shape = u32::try_from(self.ends.len()).map_err(|_| account.too_much())?;
        account.charge(ENTRY_BYTES)?;
        account.reserve(&mut self.keys, pairs.len() / 2)?;
        for pair in pairs.chunks_exact(2) {
            if let Value::Text(key) = pair[0] {
                self.keys.push(key);
            }
        }
        account.push(&mut self.ends, self.keys.len())?;
        self.index.insert(hash, shape);
        Ok(Some(shape))
    }
}
