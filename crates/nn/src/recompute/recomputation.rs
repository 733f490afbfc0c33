//! How a step runs the blocks of one chain.

use std::fmt;

/// A segment of a chain.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Segment {
    /// One block. Its forward pass saves what its backward pass reads.
    Keep,
    /// A segment that saves only its input, and runs again when the backward pass reaches it. The second run has the segments
    /// inside, which may run again themselves.
    Again(Vec<Segment>),
}

impl Segment {
    /// Returns the number of blocks in this segment.
    #[must_use]
    pub fn blocks(&self) -> usize {
        match self {
            Self::Keep => 1,
            Self::Again(segments) => count(segments),
        }
    }

    /// Whether the segment has no segments inside that run again.
    pub(super) fn is_simple(&self) -> bool {
        match self {
            Self::Keep => true,
            Self::Again(segments) => segments.iter().all(|segment| *segment == Self::Keep),
        }
    }

    /// The segment without segments of no blocks; `None` if nothing is left.
    fn without_empty(self) -> Option<Self> {
        match self {
            Self::Keep => Some(Self::Keep),
            Self::Again(segments) => {
                let segments: Vec<_> = segments.into_iter().filter_map(Self::without_empty).collect();
                (!segments.is_empty()).then_some(Self::Again(segments))
            }
        }
    }
}

/// How a step runs the blocks of one chain: the segments of the chain, which cover all of its blocks in order.
///
/// The text form, which [`Display`](fmt::Display), [`FromStr`](std::str::FromStr) and serde use, counts blocks. `3` keeps
/// three blocks. Parentheses surround a segment that runs again. So `4 (3) ((1) 2)` has ten blocks: four kept ones, a segment of
/// three blocks, and a segment of three blocks whose first block runs a third time. `5×(2)` stands for five segments of two blocks.
///
/// ```
/// use highwater::nn::recompute::{Segment, Recomputation};
/// let recomputation = Recomputation::of_blocks(6, [1, 2, 4]);
/// assert_eq!(recomputation.to_string(), "1 (1) (1) 1 (1) 1");
/// let segments = Recomputation::new(vec![Segment::Again(vec![Segment::Keep; 3]), Segment::Keep]);
/// assert_eq!((segments.to_string(), segments.blocks()), ("(3) 1".to_owned(), 4));
/// assert_eq!("(3) 1".parse(), Ok(segments));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Recomputation {
    segments: Vec<Segment>,
}

impl Recomputation {
    /// Creates a recomputation of these segments. Drops segments without blocks.
    #[must_use]
    pub fn new(segments: Vec<Segment>) -> Self {
        Self { segments: segments.into_iter().filter_map(Segment::without_empty).collect() }
    }

    /// Returns the plain recomputation: no block runs again.
    #[must_use]
    pub fn keep_all(blocks: usize) -> Self {
        Self { segments: vec![Segment::Keep; blocks] }
    }

    /// Returns the recomputation that runs each of these blocks again alone, and keeps the others. Ignores indices past the
    /// last block.
    #[must_use]
    pub fn of_blocks(blocks: usize, which: impl IntoIterator<Item = usize>) -> Self {
        let mut segments = vec![Segment::Keep; blocks];
        for block in which {
            if let Some(segment) = segments.get_mut(block) {
                *segment = Segment::Again(vec![Segment::Keep]);
            }
        }
        Self { segments }
    }

    /// Returns the number of blocks.
    #[must_use]
    pub fn blocks(&self) -> usize {
        count(&self.segments)
    }

    /// Returns the segments.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Whether no block runs again.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.segments.iter().all(|segment| matches!(segment, Segment::Keep))
    }

    /// Returns how many times the blocks run again, in total.
    #[must_use]
    pub fn repeated_blocks(&self) -> usize {
        repeated(&self.segments)
    }
}

fn count(segments: &[Segment]) -> usize {
    segments.iter().map(Segment::blocks).sum()
}

fn repeated(segments: &[Segment]) -> usize {
    let of = |segment: &Segment| match segment {
        Segment::Keep => 0,
        Segment::Again(segments) => count(segments) + repeated(segments),
    };
    segments.iter().map(of).sum()
}

impl fmt::Display for Recomputation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_segments(f, &self.segments)
    }
}

/// The fewest equal segments that the text writes as one with a factor.
const REPEATED: usize = 3;

fn write_segments(f: &mut fmt::Formatter<'_>, segments: &[Segment]) -> fmt::Result {
    let runs = segments.chunk_by(|a, b| a == b && a.is_simple());
    let mut is_first = true;
    for run in runs {
        // Short runs are written segment by segment.
        let (factor, written) = match run {
            [Segment::Again(_), ..] if run.len() < REPEATED => (1, run.len()),
            _ => (run.len(), 1),
        };
        for segment in &run[..written] {
            if !std::mem::take(&mut is_first) {
                f.write_str(" ")?;
            }
            match segment {
                Segment::Keep => write!(f, "{factor}")?,
                Segment::Again(segments) => {
                    if factor > 1 {
                        write!(f, "{factor}×")?;
                    }
                    f.write_str("(")?;
                    write_segments(f, segments)?;
                    f.write_str(")")?;
                }
            }
        }
    }
    Ok(())
}
