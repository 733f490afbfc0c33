//! How a step runs the blocks of one chain.

use std::fmt;

/// A segment of a chain: a block, or blocks that run again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Segment {
    /// One block. Its forward pass saves what its backward pass reads.
    Keep,
    /// A segment that saves only its input, and runs again when the backward pass reaches it. The second run has the
    /// segments inside, which may run again themselves.
    Again(Vec<Segment>),
}

impl Segment {
    /// Returns the number of blocks in this segment.
    #[must_use]
    pub fn blocks(&self) -> usize {
        match self {
            Self::Keep => 1,
            Self::Again(parts) => count(parts),
        }
    }

    /// Whether the segment has no segments inside that run again.
    pub(super) fn is_simple(&self) -> bool {
        match self {
            Self::Keep => true,
            Self::Again(parts) => parts.iter().all(|part| *part == Self::Keep),
        }
    }

    /// The segment without segments of no blocks; `None` if nothing is left.
    fn without_empty(self) -> Option<Self> {
        match self {
            Self::Keep => Some(Self::Keep),
            Self::Again(parts) => {
                let parts: Vec<_> = parts.into_iter().filter_map(Self::without_empty).collect();
                (!parts.is_empty()).then_some(Self::Again(parts))
            }
        }
    }
}

/// How a step runs the blocks of one chain: the parts of the chain, which cover all of its blocks in order.
///
/// The text form, which [`Display`](fmt::Display), [`FromStr`](std::str::FromStr) and serde use, counts blocks. `3` keeps
/// three blocks. Parentheses surround a part that runs again. So `4 (3) ((1) 2)` has ten blocks: four kept ones, a part of
/// three blocks, and a part of three blocks whose first block runs a third time. `5×(2)` stands for five parts of two blocks.
///
/// ```
/// use highwater::nn::recompute::{Segment, Schedule};
/// let schedule = Schedule::recompute(6, [1, 2, 4]);
/// assert_eq!(schedule.to_string(), "1 (1) (1) 1 (1) 1");
/// let segments = Schedule::new(vec![Segment::Again(vec![Segment::Keep; 3]), Segment::Keep]);
/// assert_eq!((segments.to_string(), segments.blocks()), ("(3) 1".to_owned(), 4));
/// assert_eq!("(3) 1".parse(), Ok(segments));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Schedule {
    parts: Vec<Segment>,
}

impl Schedule {
    /// Creates a schedule of these parts. Drops parts without blocks.
    #[must_use]
    pub fn new(parts: Vec<Segment>) -> Self {
        Self { parts: parts.into_iter().filter_map(Segment::without_empty).collect() }
    }

    /// Returns the plain schedule: no block runs again.
    #[must_use]
    pub fn keep_all(blocks: usize) -> Self {
        Self { parts: vec![Segment::Keep; blocks] }
    }

    /// Returns the schedule that runs each of these blocks again alone, and keeps the others. Ignores indices past the
    /// last block.
    #[must_use]
    pub fn recompute(blocks: usize, which: impl IntoIterator<Item = usize>) -> Self {
        let mut parts = vec![Segment::Keep; blocks];
        for block in which {
            if let Some(part) = parts.get_mut(block) {
                *part = Segment::Again(vec![Segment::Keep]);
            }
        }
        Self { parts }
    }

    /// Returns the number of blocks.
    #[must_use]
    pub fn blocks(&self) -> usize {
        count(&self.parts)
    }

    /// Returns the parts.
    #[must_use]
    pub fn parts(&self) -> &[Segment] {
        &self.parts
    }

    /// Whether no block runs again.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.parts.iter().all(|part| matches!(part, Segment::Keep))
    }

    /// Returns how many times the blocks run again, in total.
    #[must_use]
    pub fn repeated_blocks(&self) -> usize {
        repeated(&self.parts)
    }
}

fn count(parts: &[Segment]) -> usize {
    parts.iter().map(Segment::blocks).sum()
}

fn repeated(parts: &[Segment]) -> usize {
    let of = |part: &Segment| match part {
        Segment::Keep => 0,
        Segment::Again(parts) => count(parts) + repeated(parts),
    };
    parts.iter().map(of).sum()
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_parts(f, &self.parts)
    }
}

/// The fewest equal parts that the text writes as one with a factor.
const REPEATED: usize = 3;

fn write_parts(f: &mut fmt::Formatter<'_>, parts: &[Segment]) -> fmt::Result {
    let runs = parts.chunk_by(|a, b| a == b && a.is_simple());
    let mut is_first = true;
    for run in runs {
        // Short runs are written part by part.
        let (factor, written) = match run {
            [Segment::Again(_), ..] if run.len() < REPEATED => (1, run.len()),
            _ => (run.len(), 1),
        };
        for part in &run[..written] {
            if !std::mem::take(&mut is_first) {
                f.write_str(" ")?;
            }
            match part {
                Segment::Keep => write!(f, "{factor}")?,
                Segment::Again(parts) => {
                    if factor > 1 {
                        write!(f, "{factor}×")?;
                    }
                    f.write_str("(")?;
                    write_parts(f, parts)?;
                    f.write_str(")")?;
                }
            }
        }
    }
    Ok(())
}
