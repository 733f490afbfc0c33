//! Seeded random numbers that are independent of the thread count.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::backend::RandomKey;
use crate::error::Result;
use crate::tensor::tape;

/// A random number generator. One seed gives one sequence of fills. Within a fill, element `i` depends only
/// on `i`.
///
/// Pass it as `&Rng`. A layer that keeps a generator stores a clone. A clone shares the sequence: fills of the clone and of
/// the original alternate in it. [`fork`](Self::fork) returns a generator with a sequence of its own.
///
/// ```
/// use highwater::{Device, Rng, Tensor};
/// let device = Device::cpu()?;
/// let (a, b) = (Rng::new(7), Rng::new(7));
/// let first = Tensor::normal(&device, [100], 0.0, 1.0, &a)?;
/// let again = Tensor::normal(&device, [100], 0.0, 1.0, &b)?;
/// assert_eq!(first.to_vec::<f32>()?, again.to_vec::<f32>()?);
///
/// let (shared, own) = (a.clone(), a.fork(0));
/// let _ = Tensor::randn(&device, [100], &shared)?;
/// assert_eq!(a.state(), shared.state());
/// let _ = Tensor::randn(&device, [100], &own)?;
/// assert_ne!(own.state(), a.state());
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Rng(Arc<Sequence>);

/// The state that the clones of a generator share.
#[derive(Debug)]
struct Sequence {
    seed: AtomicU64,
    /// The number of the next fill.
    next: AtomicU64,
}

impl Rng {
    /// Returns a generator that starts from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Sequence { seed: AtomicU64::new(seed), next: AtomicU64::new(0) }))
    }

    /// Returns whether both share one sequence.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns a generator with an independent sequence, which depends only on this one's seed and on `part`.
    #[must_use]
    pub fn fork(&self, part: u64) -> Self {
        // SplitMix64's finalizer (Steele, Lea and Flood 2014) separates the seeds of neighboring parts.
        let mut seed = self.seed().wrapping_add((part.wrapping_add(1)).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        seed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        seed = (seed ^ (seed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self::new(seed ^ (seed >> 31))
    }

    /// Returns the key of the next fill.
    #[must_use]
    pub fn next_key(&self) -> RandomKey {
        tape::key(|| RandomKey { seed: self.seed(), sequence: self.0.next.fetch_add(1, Ordering::Relaxed) })
    }

    /// Calls `fill` with the next `N` keys. If `fill` fails, the state of the generator is restored.
    ///
    /// # Errors
    /// As `fill`.
    pub fn with_keys<const N: usize, T>(&self, fill: impl FnOnce([RandomKey; N]) -> Result<T>) -> Result<T> {
        let keys = std::array::from_fn(|_| self.next_key());
        fill(keys).inspect_err(|_| keys.into_iter().rev().for_each(|key| self.return_key(key)))
    }

    /// Returns the key that was drawn last. The key stays drawn if another thread drew one since.
    fn return_key(&self, key: RandomKey) {
        if tape::return_key(key) {
            return;
        }
        let drawn = key.sequence.wrapping_add(1);
        let _ = self.0.next.compare_exchange(drawn, key.sequence, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Returns the state: the seed and the number of fills.
    #[must_use]
    pub fn state(&self) -> RandomKey {
        RandomKey { seed: self.seed(), sequence: self.0.next.load(Ordering::Relaxed) }
    }

    /// Continues from a state. Concurrent fills of other threads may still use the old state.
    pub fn set_state(&self, state: RandomKey) {
        self.0.seed.store(state.seed, Ordering::Relaxed);
        self.0.next.store(state.sequence, Ordering::Relaxed);
    }

    fn seed(&self) -> u64 {
        self.0.seed.load(Ordering::Relaxed)
    }
}
