//! Pareto fronts of bytes and seconds.

/// A way to run an interval of stages that no other way beats in both bytes and seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    /// The most bytes that the interval adds.
    pub(super) bytes: i64,
    /// The extra time.
    pub(super) seconds: f64,
    pub(super) choice: Choice,
}

/// The first segment of an interval. The indices are those of points on the fronts of smaller intervals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Choice {
    /// The interval is one stage, which is kept.
    Last,
    /// The first stage is kept.
    Keep { rest: u32 },
    /// The stages before `split` run again.
    Again { split: u32, inside: u32, rest: u32 },
}

/// Two times that differ by less than this share are equal. They are sums of the same times in another order.
const SAME: f64 = 1e-9;

/// Whether a way with the first time is as fast as one with the second.
fn is_as_fast(seconds: f64, as_seconds: f64) -> bool {
    seconds * (1.0 - SAME) <= as_seconds
}

/// Ways sorted by bytes: each has more bytes and fewer seconds than the previous one.
#[derive(Clone, Debug, Default)]
pub(super) struct Front {
    pub(super) points: Vec<Point>,
}

/// Buffers of [`Front::merge`].
#[derive(Debug, Default)]
pub(super) struct Buffers {
    added: Vec<Point>,
    merged: Vec<Point>,
}

impl Front {
    /// The fewest bytes of a way that is as fast as `seconds`. No other way with that time needs to be considered from
    /// there on.
    pub(super) fn bytes_within(&self, seconds: f64) -> i64 {
        let fast = self.points.partition_point(|point| !is_as_fast(point.seconds, seconds));
        self.points.get(fast).map_or(i64::MAX, |point| point.bytes)
    }

    /// Adds other ways, in ascending order of bytes. Keeps the ways that no other one beats.
    pub(super) fn merge(&mut self, others: impl Iterator<Item = Point>, buffers: &mut Buffers) {
        let Buffers { added, merged } = buffers;
        added.clear();
        // The number of own ways with at most as many bytes.
        let mut before = 0;
        for other in others {
            while self.points.get(before).is_some_and(|own| own.bytes <= other.bytes) {
                before += 1;
            }
            let own = before.checked_sub(1).and_then(|last| self.points.get(last));
            let is_beaten = |by: &Point| is_as_fast(by.seconds, other.seconds);
            if own.is_some_and(is_beaten) || added.last().is_some_and(is_beaten) {
                continue;
            }
            // As few bytes in less time.
            added.pop_if(|last| last.bytes == other.bytes);
            added.push(other);
        }
        if added.is_empty() {
            return;
        }
        merged.clear();
        let (mut own, mut added) = (self.points.iter().peekable(), added.iter().peekable());
        loop {
            let takes_added = match (own.peek(), added.peek()) {
                (Some(own), Some(added)) => added.bytes <= own.bytes,
                (None, Some(_)) => true,
                (_, None) => false,
            };
            let Some(next) = (if takes_added { added.next() } else { own.next() }) else { break };
            // No own way beats an added one.
            if takes_added
                || !merged.last().is_some_and(|last: &Point| is_as_fast(last.seconds, next.seconds))
            {
                merged.push(*next);
            }
        }
        std::mem::swap(&mut self.points, merged);
    }

    /// Keeps at most `count` ways, or one more: the one of fewest bytes, and the fastest one in each of `count` ranges
    /// of bytes of equal width. So each dropped way has a faster one with at most one width more bytes.
    pub(super) fn thin(&mut self, count: usize) {
        let (Some(first), Some(last)) = (self.points.first().copied(), self.points.last().copied()) else {
            return;
        };
        if self.points.len() <= count.max(2) {
            return;
        }
        let width = (last.bytes - first.bytes) as f64 / count as f64;
        let range = |point: &Point| ((point.bytes - first.bytes) as f64 / width) as usize;
        let mut kept: Vec<Point> = vec![first];
        for (index, point) in self.points.iter().enumerate().skip(1) {
            let is_fastest = self.points.get(index + 1).is_none_or(|next| range(next) != range(point));
            if is_fastest {
                kept.push(*point);
            }
        }
        self.points = kept;
    }
}

/// The ways through two intervals that no other combination of their ways beats, in ascending order of bytes. The bytes
/// of the first are shifted, and no combination has fewer bytes than a minimum.
pub(super) struct Pairs<'a> {
    first: &'a [Point],
    second: &'a [Point],
    shift: i64,
    least: i64,
    /// The next ways of both; `None` at the end.
    at: Option<(usize, usize)>,
}

impl<'a> Pairs<'a> {
    /// Pairs the ways of two fronts, each of which has one.
    pub(super) fn new(first: &'a Front, second: &'a Front, shift: i64, least: i64) -> Self {
        let (first, second) = (&first.points[..], &second.points[..]);
        let least = match (first, second) {
            ([first, ..], [second, ..]) => least.max(first.bytes + shift).max(second.bytes),
            _ => least,
        };
        // The fastest ways of the fewest bytes.
        let begin = |points: &[Point], shift: i64| {
            points.partition_point(|point| point.bytes + shift <= least).checked_sub(1)
        };
        let at = begin(first, shift).zip(begin(second, 0));
        Self { first, second, shift, least, at }
    }

    /// The fewest bytes of a combination.
    pub(super) const fn least(&self) -> i64 {
        self.least
    }
}

impl Iterator for Pairs<'_> {
    /// The indices of both ways, their bytes and their seconds.
    type Item = (usize, usize, i64, f64);

    fn next(&mut self) -> Option<Self::Item> {
        let (first, second) = self.at?;
        let (one, other) = (self.first.get(first)?, self.second.get(second)?);
        let bytes = (one.bytes + self.shift).max(other.bytes).max(self.least);
        // The interval whose next way has fewer bytes takes it.
        let one_next = self.first.get(first + 1).map(|next| next.bytes + self.shift);
        let other_next = self.second.get(second + 1).map(|next| next.bytes);
        self.at = match (one_next, other_next) {
            (Some(one), Some(other)) if one <= other => Some((first + 1, second)),
            (Some(_), None) => Some((first + 1, second)),
            (_, Some(_)) => Some((first, second + 1)),
            (None, None) => None,
        };
        Some((first, second, bytes, one.seconds + other.seconds))
    }
}
