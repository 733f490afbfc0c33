//! The texts of a pickle. Short texts that repeat are stored once.

use super::account::Account;
use crate::lean::TooMuchHeld;

/// The longest text that is compared with earlier ones.
const SHORT: usize = 32;

/// The number of recently added short texts that are compared.
const RECENT: usize = 256;

/// All texts.
#[derive(Debug)]
pub(super) struct Texts {
    texts: Vec<Box<str>>,
    /// By a hash of the bytes: the number of the last text with it.
    recent: [u32; RECENT],
}

impl Default for Texts {
    fn default() -> Self {
        Self { texts: Vec::new(), recent: [u32::MAX; RECENT] }
    }
}

impl Texts {
    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&str> {
        self.texts.get(number as usize).map(|text| &**text)
    }

    /// Returns the number of a text that was added recently and has these bytes. Does not check long texts.
    #[inline]
    pub(super) fn recent(&self, bytes: &[u8]) -> Option<u32> {
        if bytes.len() > SHORT {
            return None;
        }
        let number = self.recent[slot(bytes)];
        let text = self.texts.get(number as usize)?;
        (text.as_bytes() == bytes).then_some(number)
    }

    /// Adds a text, whose length was charged before.
    pub(super) fn add(&mut self, account: &mut Account, text: Box<str>) -> Result<u32, TooMuchHeld> {
        let number = u32::try_from(self.texts.len()).map_err(|_| account.too_much())?;
        if text.len() <= SHORT {
            self.recent[slot(text.as_bytes())] = number;
        }
        account.push(&mut self.texts, text)?;
        Ok(number)
    }
}

/// Returns the slot of a short text.
#[inline]
fn slot(bytes: &[u8]) -> usize {
    let mix = |hash: u32, &byte: &u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    let hash = bytes.iter().fold(0x811c_9dc5, mix);
    (hash ^ hash >> 16) as usize % RECENT
}
