//! The check that all ranks train the same parameters with the same options: a hash first, and the differing entry only if
//! the hashes differ.

use std::fmt;
use std::sync::Arc;

use bfc_core::printable;
use highwater_tensor::DType;
use thiserror::Error;

use crate::collective::{Collective, SliceMut, spans};
use crate::error::CollectiveError;

/// A parameter or an option that all ranks must share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgreedValue {
    /// The path of the parameter, or the name of the option.
    pub name: String,
    /// The shape; empty for an option.
    pub shape: Vec<usize>,
    /// The element type; `None` for an option.
    pub dtype: Option<DType>,
    /// The options of the parameter, or the value of the option.
    pub options: String,
}

/// `fc1.weight: f32 [20, 10] lr 0.1`.
impl fmt::Display for AgreedValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", printable(&self.name))?;
        if let Some(dtype) = self.dtype {
            write!(f, " {dtype} {:?}", self.shape)?;
        }
        if self.options.is_empty() { Ok(()) } else { write!(f, " {}", printable(&self.options)) }
    }
}

/// The ranks do not agree.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AgreeError {
    /// An entry differs from that of rank 0. All ranks report the same entry.
    #[error(
        "entry {index} is {} on rank {rank}, but {} on rank 0: start all ranks with the same model and options",
        quoted(theirs),
        quoted(expected)
    )]
    Differs {
        /// The number of the first entry that differs, from 0.
        index: usize,
        /// The lowest rank that differs from rank 0.
        rank: usize,
        /// The entry of that rank; empty if it has fewer entries.
        theirs: String,
        /// The entry of rank 0; empty if it has fewer entries.
        expected: String,
    },
    /// The ranks could not exchange their entries.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
}

fn quoted(entry: &str) -> String {
    if entry.is_empty() { "missing".into() } else { format!("`{}`", printable(entry)) }
}

/// The entries that all ranks must share, and their hash. Ranks compare the hash in each step, and list the entries only
/// after a difference.
#[derive(Clone)]
pub(crate) struct Fingerprint {
    hash: u64,
    entries: Arc<dyn Fn() -> Vec<AgreedValue> + Send + Sync>,
}

impl Fingerprint {
    /// Equal entries must have equal hashes on all ranks.
    pub(crate) fn new(hash: u64, entries: impl Fn() -> Vec<AgreedValue> + Send + Sync + 'static) -> Self {
        Self { hash, entries: Arc::new(entries) }
    }

    pub(crate) fn of(entries: Vec<AgreedValue>) -> Self {
        let hash = hash_entries(&entries);
        Self::new(hash, move || entries.clone())
    }

    pub(crate) const fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn entries(&self) -> Vec<AgreedValue> {
        (self.entries)()
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({:#x})", self.hash)
    }
}

/// A hash (FNV-1a) that is equal in all builds of the program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hash(u64);

impl Hash {
    pub(crate) const fn new() -> Self {
        Self(0xCBF2_9CE4_8422_2325)
    }

    pub(crate) fn add(self, bytes: &[u8]) -> Self {
        Self(bytes.iter().fold(self.0, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3)))
    }

    /// Adds 8 bytes at a time, for large data. The result differs from that of [`add`](Self::add).
    pub(crate) fn add_words(self, bytes: &[u8]) -> Self {
        let (words, rest) = bytes.as_chunks();
        // The rotation brings the upper bits of a word to the lower ones, which a product alone never changes.
        let add = |hash: u64, word: &[u8; 8]| {
            (hash.rotate_left(5) ^ u64::from_le_bytes(*word)).wrapping_mul(0x517C_C1B7_2722_0A95)
        };
        Self(words.iter().fold(self.0, add)).add(rest)
    }

    pub(crate) const fn get(self) -> u64 {
        self.0
    }
}

pub(crate) fn hash_entries(entries: &[AgreedValue]) -> u64 {
    let hash = |hash: Hash, entry: &AgreedValue| hash.add(entry.to_string().as_bytes()).add(b"\n");
    entries.iter().fold(Hash::new(), hash).get()
}

/// Implements [`World::agree`](crate::World::agree).
pub(crate) fn agree(collective: &dyn Collective, entries: &[AgreedValue]) -> Result<(), AgreeError> {
    let mut hashes = vec![0_u8; size_of::<u64>() * collective.size()];
    let (numbers, _) = hashes.as_chunks_mut::<{ size_of::<u64>() }>();
    numbers[collective.rank()] = hash_entries(entries).to_le_bytes();
    let parts = spans(hashes.len(), collective.size());
    collective.all_gather(SliceMut::Bytes(&mut hashes), &parts)?;
    let (numbers, _) = hashes.as_chunks::<{ size_of::<u64>() }>();
    if collective.is_rehearsal() || numbers.iter().all(|hash| hash == &numbers[0]) {
        return Ok(());
    }
    compare(collective, entries)
}

/// Finds the first entry that differs. All ranks call it.
pub(crate) fn compare(collective: &dyn Collective, entries: &[AgreedValue]) -> Result<(), AgreeError> {
    // Line breaks separate entries.
    let own: Vec<String> = entries.iter().map(|entry| entry.to_string().replace('\n', " ")).collect();
    let expected = broadcast_text(collective, &own.join("\n"), 0)?;
    let expected: Vec<&str> = expected.split('\n').filter(|line| !line.is_empty()).collect();
    let line =
        |lines: &[&str], index: usize| lines.get(index).map_or_else(String::new, |line| (*line).to_owned());
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    let difference = (0..own.len().max(expected.len())).find(|index| own.get(*index) != expected.get(*index));

    let mut differences = vec![u8::MAX; size_of::<u64>() * collective.size()];
    let (numbers, _) = differences.as_chunks_mut::<{ size_of::<u64>() }>();
    numbers[collective.rank()] = difference.map_or(u64::MAX, |index| index as u64).to_le_bytes();
    let parts = spans(differences.len(), collective.size());
    collective.all_gather(SliceMut::Bytes(&mut differences), &parts)?;
    let (numbers, _) = differences.as_chunks::<{ size_of::<u64>() }>();
    let first =
        numbers.iter().map(|bytes| u64::from_le_bytes(*bytes)).enumerate().find(|(_, at)| *at != u64::MAX);
    let Some((rank, index)) = first else { return Ok(()) };
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    let theirs = broadcast_text(collective, &line(&own, index), rank)?;
    Err(AgreeError::Differs { index, rank, theirs, expected: line(&expected, index) })
}

/// Returns the text of rank `root`.
pub(crate) fn broadcast_text(
    collective: &dyn Collective,
    own: &str,
    root: usize,
) -> Result<String, CollectiveError> {
    let mut length = (own.len() as u64).to_le_bytes();
    collective.broadcast(SliceMut::Bytes(&mut length), root)?;
    let length = usize::try_from(u64::from_le_bytes(length)).unwrap_or(usize::MAX);
    let mut text = own.as_bytes().to_vec();
    text.resize(length, 0);
    collective.broadcast(SliceMut::Bytes(&mut text), root)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::run_ranks;

    fn entry(name: &str, shape: &[usize]) -> AgreedValue {
        AgreedValue {
            name: name.into(),
            shape: shape.into(),
            dtype: Some(DType::F32),
            options: "lr 0.1".into(),
        }
    }

    fn agreement(
        size: usize,
        entries: impl Fn(usize) -> Vec<AgreedValue> + Sync,
    ) -> Vec<Result<(), AgreeError>> {
        run_ranks(size, |world| world.agree(&entries(world.rank())))
    }

    #[test]
    fn equal_entries_agree() {
        assert_eq!(agreement(3, |_| vec![entry("a\nb", &[]), entry("c", &[2, 3])]), vec![Ok(()); 3]);
        assert_eq!(agreement(2, |_| vec![]), vec![Ok(()); 2]);
    }

    #[test]
    fn all_ranks_report_the_first_difference_of_the_lowest_rank() {
        let entries =
            |rank| vec![entry("a", &[1]), entry("b", &[if rank < 2 { 4 } else { 5 }]), entry("c", &[rank])];
        let results = agreement(4, |rank| entries(if rank == 1 { 0 } else { rank }));
        let message = "entry 1 is `b: f32 [5] lr 0.1` on rank 2, but `b: f32 [4] lr 0.1` on rank 0: \
                       start all ranks with the same model and options";
        assert!(
            results.iter().all(|result| result.as_ref().is_err_and(|error| error.to_string() == message))
        );
    }

    #[test]
    fn a_hash_of_words_sees_each_bit() {
        let bytes = [0_u8; 43];
        let hash = |bytes: &[u8]| Hash::new().add_words(bytes).get();
        for bit in 0..8 * bytes.len() {
            let mut changed = bytes;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(hash(&changed), hash(&bytes));
            // Both signs of a pair of numbers.
            changed[(bit / 8 + 8) % 40] ^= 1 << (bit % 8);
            assert_ne!(hash(&changed), hash(&bytes));
        }
    }

    #[test]
    fn a_missing_entry_differs() {
        let results = agreement(2, |rank| [entry("a", &[1]), entry("b", &[1])][..2 - rank].to_vec());
        let message = results[0].as_ref().unwrap_err().to_string();
        assert!(
            message.starts_with("entry 1 is missing on rank 1, but `b: f32 [1] lr 0.1` on rank 0"),
            "{message}"
        );
        assert_eq!(results[0], results[1]);
    }
}
