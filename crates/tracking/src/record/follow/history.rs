//! The memory level over time in bounded memory: merges pairs of intervals when there are too many.

/// The most intervals.
const MAX_INTERVALS: usize = 512;

/// The initial length of an interval in nanoseconds.
const FIRST_INTERVAL_NS: u64 = 1_000_000;

/// The highest level in each of several equal intervals.
#[derive(Debug)]
pub(super) struct LevelHistory {
    levels: Vec<u64>,
    interval_ns: u64,
    /// The level after the last event.
    now: u64,
}

impl Default for LevelHistory {
    fn default() -> Self {
        Self { levels: vec![0], interval_ns: FIRST_INTERVAL_NS, now: 0 }
    }
}

impl LevelHistory {
    /// Adds a level at a time that is not before the last one.
    pub(super) fn add(&mut self, time: u64, level: u64) {
        while time / self.interval_ns >= MAX_INTERVALS as u64 {
            self.halve();
        }
        let index = (time / self.interval_ns) as usize;
        if index >= self.levels.len() {
            self.levels.resize(index + 1, self.now);
        }
        self.now = level;
        if let Some(last) = self.levels.last_mut() {
            *last = level.max(*last);
        }
    }

    pub(super) fn levels(&self) -> &[u64] {
        &self.levels
    }

    fn halve(&mut self) {
        self.interval_ns = self.interval_ns.saturating_mul(2);
        let joined = self.levels.chunks(2).map(|pair| pair.iter().copied().max().unwrap_or(0));
        self.levels = joined.collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_stays_until_it_changes() {
        let mut history = LevelHistory::default();
        history.add(0, 5);
        history.add(3 * FIRST_INTERVAL_NS, 7);
        history.add(3 * FIRST_INTERVAL_NS + 1, 2);
        history.add(5 * FIRST_INTERVAL_NS, 3);
        assert_eq!(history.levels(), [5, 5, 5, 7, 2, 3]);
    }

    #[test]
    fn a_long_run_takes_no_more_memory_and_keeps_its_heights() {
        let mut history = LevelHistory::default();
        for second in 0..100_000_u64 {
            history.add(second * 1_000_000_000, second % 1000);
        }
        assert!(history.levels().len() <= MAX_INTERVALS && history.levels().len() > MAX_INTERVALS / 4);
        assert_eq!(history.levels().iter().max(), Some(&999));
        history.add(u64::MAX, 1);
        assert!(history.levels().len() <= MAX_INTERVALS);
    }
}
