//! How high memory was over time, in bounded memory: when there are too many stretches, two become one.

/// The most stretches.
const MOST: usize = 512;

/// The length of a stretch at first, in nanoseconds.
const FIRST: u64 = 1_000_000;

/// The highest level in each of equal stretches of time.
#[derive(Debug)]
pub(super) struct Course {
    levels: Vec<u64>,
    stretch: u64,
    /// The level after the last event.
    now: u64,
}

impl Default for Course {
    fn default() -> Self {
        Self { levels: vec![0], stretch: FIRST, now: 0 }
    }
}

impl Course {
    /// Notes a level that is reached at a time, which is not before the last one.
    pub(super) fn note(&mut self, time: u64, level: u64) {
        while time / self.stretch >= MOST as u64 {
            self.halve();
        }
        let index = (time / self.stretch) as usize;
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
        self.stretch = self.stretch.saturating_mul(2);
        let joined = self.levels.chunks(2).map(|pair| pair.iter().copied().max().unwrap_or(0));
        self.levels = joined.collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_stays_until_it_changes() {
        let mut course = Course::default();
        course.note(0, 5);
        course.note(3 * FIRST, 7);
        course.note(3 * FIRST + 1, 2);
        course.note(5 * FIRST, 3);
        assert_eq!(course.levels(), [5, 5, 5, 7, 2, 3]);
    }

    #[test]
    fn a_long_run_takes_no_more_memory_and_keeps_its_heights() {
        let mut course = Course::default();
        for second in 0..100_000_u64 {
            course.note(second * 1_000_000_000, second % 1000);
        }
        assert!(course.levels().len() <= MOST && course.levels().len() > MOST / 4);
        assert_eq!(course.levels().iter().max(), Some(&999));
        course.note(u64::MAX, 1);
        assert!(course.levels().len() <= MOST);
    }
}
