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

/// The first part of an interval. The indices are those of points on the fronts of smaller intervals.
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

/// Ways sorted by bytes: each has more bytes and fewer seconds than the previous one.
#[derive(Clone, Debug, Default)]
pub(super) struct Front {
    pub(super) points: Vec<Point>,
}

impl Front {
    /// Adds other ways, in ascending order of bytes. Keeps the ways that no other one beats.
    pub(super) fn merge(&mut self, others: impl Iterator<Item = Point>, scratch: &mut Vec<Point>) {
        scratch.clear();
        let mut own = self.points.iter().copied().peekable();
        let mut others = others.peekable();
        loop {
            let takes_own = match (own.peek(), others.peek()) {
                (Some(own), Some(other)) => (own.bytes, own.seconds) <= (other.bytes, other.seconds),
                (Some(_), None) => true,
                (None, Some(_)) => false,
                (None, None) => break,
            };
            let Some(next) = (if takes_own { own.next() } else { others.next() }) else { break };
            match scratch.last_mut() {
                Some(last) if next.seconds >= last.seconds * (1.0 - SAME) => {}
                // As few bytes in less time.
                Some(last) if next.bytes == last.bytes => *last = next,
                _ => scratch.push(next),
            }
        }
        std::mem::swap(&mut self.points, scratch);
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

/// Pairs each point of one front with the points of another that need no more bytes: all combinations of a first and a
/// second interval that no other combination beats. `shift` is added to the bytes of the first, and no combination has
/// fewer bytes than `least`.
pub(super) struct Pairs<'a> {
    first: &'a [Point],
    second: &'a [Point],
    shift: i64,
    least: i64,
    at: Option<(usize, usize)>,
}

impl<'a> Pairs<'a> {
    pub(super) fn new(first: &'a Front, second: &'a Front, shift: i64, least: i64) -> Self {
        let (first, second) = (&first.points[..], &second.points[..]);
        let at = (!first.is_empty() && !second.is_empty()).then_some((0, 0));
        Self { first, second, shift, least, at }
    }
}

impl Iterator for Pairs<'_> {
    /// The indices of both points, their bytes and their seconds.
    type Item = (usize, usize, i64, f64);

    fn next(&mut self) -> Option<Self::Item> {
        let (first, second) = self.at?;
        let (one, other) = (self.first.get(first)?, self.second.get(second)?);
        let bytes = (one.bytes + self.shift).max(other.bytes).max(self.least);
        // Whichever interval reaches the next way with fewer bytes takes it.
        let next =
            |points: &[Point], index: usize, shift: i64| points.get(index + 1).map(|next| next.bytes + shift);
        self.at = match (next(self.first, first, self.shift), next(self.second, second, 0)) {
            (Some(a), Some(b)) if a <= b => Some((first + 1, second)),
            (Some(_), None) => Some((first + 1, second)),
            (_, Some(_)) => Some((first, second + 1)),
            (None, None) => None,
        };
        Some((first, second, bytes, one.seconds + other.seconds))
    }
}
