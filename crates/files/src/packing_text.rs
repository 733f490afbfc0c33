//! Packings as text.
//!
//! ```text
//! highwater-packing 1
//! # comments may stand here
//! granule 256
//! capacity 2048
//! blocks 2
//! START END BYTES OFFSET
//! START END BYTES -
//! ```
//!
//! A packing whose blocks have alignments or gaps begins with `highwater-packing 2`, and a block may have more fields:
//!
//! ```text
//! START END BYTES OFFSET ALIGNMENT GAPSTART-GAPEND GAPSTART-GAPEND@FROM:TO
//! ```
//!
//! In a gap, a block keeps only its bytes from FROM up to TO, or none. The reader also accepts `highwater-plan` in place of
//! `highwater-packing`, the earlier name of the format.
//!
//! One line describes each block, in the order of their requests: its lifetime as event numbers, its
//! requested bytes, and its offset. The offset of a block outside of the packing is `-`. The reader checks
//! everything: no two blocks may overlap in time and space, and the capacity must equal the bytes that the
//! blocks occupy.

use std::io::{self, BufRead, Write};

use bfc_core::{BlockConstraint, Gap, Lifetime, PackedBlock, Packing, PackingError};

use crate::file_kind::FileKind;
use crate::lean::{self, HeldMemory, TooMuchHeld};
use crate::lines::{self, LineProblem, LineReader};

/// The first line: the kind of file and the version of its format.
const TITLE: &str = "highwater-packing 1";

/// The first line of a packing with alignments or gaps. Programs that support only version 1 must not read it.
const CONSTRAINED_TITLE: &str = "highwater-packing 2";

/// The first lines of existing files, with an earlier name of the format. The rest of the text has the same form.
const EARLIER_TITLE: &str = "highwater-plan 1";
const EARLIER_CONSTRAINED_TITLE: &str = "highwater-plan 2";

/// Limits of a packing's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackingLimits {
    /// The longest line, in bytes.
    pub line_bytes: usize,
    /// Most blocks.
    pub blocks: u32,
    /// The most comment lines and empty lines.
    pub comments: u32,
    /// The most bytes of memory for the reader. If eight times the bytes of the text is more, that applies.
    pub held_bytes: u64,
}

/// The memory of a block and of a gap while a packing is read and checked, in bytes.
const BLOCK_BYTES: u64 = 192;
const GAP_BYTES: u64 = 192;

impl Default for PackingLimits {
    fn default() -> Self {
        Self { line_bytes: 1 << 16, blocks: 10_000_000, comments: 10_000, held_bytes: 64 * bfc_core::MIB }
    }
}

/// Text that is not a packing.
#[derive(thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct PackingTextError {
    /// The line's number, from 1 upward.
    pub line: u64,
    /// The problem.
    pub problem: PackingTextProblem,
}

bfc_core::debug_as_message!(PackingTextError);

/// A problem in a line of a packing, or in the packing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackingTextProblem {
    /// The line is unreadable, too long, not text, or has an invalid number.
    #[error(transparent)]
    Line(#[from] LineProblem),
    /// The blocks need more memory than the limit.
    #[error(transparent)]
    TooMuchHeld(#[from] TooMuchHeld),
    /// The line has another form than expected.
    #[error("expected `{expected}`, found {found:?}")]
    Unexpected {
        /// The form of the line.
        expected: &'static str,
        /// The beginning of the line; empty at the end of the text.
        found: String,
    },
    /// The text is another kind of file.
    #[error("not a packing: {kind}; {}", kind.advice())]
    WrongFile {
        /// The detected kind of file.
        kind: FileKind,
    },
    /// More comments than the limit.
    #[error("more than {limit} comments")]
    TooManyComments {
        /// The limit.
        limit: u32,
    },
    /// More blocks than the limit.
    #[error("{blocks} blocks are more than {limit}")]
    TooManyBlocks {
        /// The stated number of blocks.
        blocks: u64,
        /// The limit.
        limit: u32,
    },
    /// An event number does not fit into 32 bits.
    #[error("event number {time} is not below 2^32")]
    TimeTooLarge {
        /// The number.
        time: u64,
    },
    /// The capacity differs from the bytes that the blocks occupy.
    #[error("the blocks occupy {blocks} bytes, not {stated}")]
    WrongCapacity {
        /// The bytes that the blocks occupy.
        blocks: u64,
        /// The stated capacity.
        stated: u64,
    },
    /// The blocks do not form a valid packing.
    #[error(transparent)]
    Packing(#[from] PackingError),
}

/// Writes a packing as text.
///
/// # Errors
/// Errors of the writer.
pub fn write_packing(packing: &Packing, mut writer: impl Write) -> io::Result<()> {
    let title = if packing.constraints().is_empty() { TITLE } else { CONSTRAINED_TITLE };
    writeln!(writer, "{title}")?;
    writeln!(writer, "granule {}", packing.granule())?;
    writeln!(writer, "capacity {}", packing.capacity())?;
    writeln!(writer, "blocks {}", packing.blocks().len())?;
    let mut constraints = packing.constraints().iter().peekable();
    for (index, block) in packing.blocks().iter().enumerate() {
        let Lifetime { bytes, start, end } = block.lifetime;
        write!(writer, "{start} {end} {bytes} ")?;
        match block.offset {
            Some(offset) => write!(writer, "{offset}")?,
            None => write!(writer, "-")?,
        }
        if let Some(constraint) = constraints.next_if(|constraint| constraint.block == index) {
            write!(writer, " {}", constraint.alignment)?;
            for Gap { start, end, kept } in &constraint.gaps {
                write!(writer, " {start}-{end}")?;
                if !kept.is_empty() {
                    write!(writer, "@{}:{}", kept.start, kept.end)?;
                }
            }
        }
        writeln!(writer)?;
    }
    Ok(())
}

/// Reads a packing from text and checks it completely.
///
/// # Errors
/// A [`PackingTextError`] for the first line that is unreadable, malformed, beyond a limit, or inconsistent with other
/// blocks.
pub fn parse_packing(mut reader: impl BufRead, limits: &PackingLimits) -> Result<Packing, PackingTextError> {
    parse(&mut reader, limits)
}

/// As [`parse_packing`]. Not generic, so that it is compiled once.
fn parse(reader: &mut dyn BufRead, limits: &PackingLimits) -> Result<Packing, PackingTextError> {
    let memory = HeldMemory::new(limits.held_bytes);
    let mut lines = Lines { lines: LineReader::new(reader, limits.line_bytes), limits, comments: 0, memory };
    read(&mut lines).map_err(|problem| PackingTextError { line: lines.lines.number, problem })
}

/// Reads a packing. After an error, the number of `lines` is that of the invalid line.
fn read(lines: &mut Lines<'_, impl BufRead>) -> Result<Packing, PackingTextProblem> {
    let title = lines.next(TITLE)?;
    let constrained = match title.trim_end() {
        TITLE | EARLIER_TITLE => false,
        CONSTRAINED_TITLE | EARLIER_CONSTRAINED_TITLE => true,
        _ => {
            return Err(match FileKind::of(title.as_bytes()) {
                Some(kind) if kind != FileKind::Packing => PackingTextProblem::WrongFile { kind },
                _ => lines.unexpected(TITLE),
            });
        }
    };
    let granule = lines.value("granule ", "granule BYTES")?;
    let stated = lines.value("capacity ", "capacity BYTES")?;
    let capacity_line = lines.lines.number;
    let count = lines.value("blocks ", "blocks COUNT")?;
    let limit = lines.limits.blocks;
    let count = u32::try_from(count)
        .ok()
        .filter(|&count| count <= limit)
        .ok_or(PackingTextProblem::TooManyBlocks { blocks: count, limit })?;
    let first_line = lines.lines.number + 1;
    // Memory for blocks grows with the text that was read.
    let (mut blocks, mut constraints) = (Vec::new(), Vec::new());
    for index in 0..count as usize {
        let (block, constraint) = lines.block(index, constrained)?;
        lines.charge(constraint.as_ref())?;
        lean::push(&mut blocks, block);
        constraints.extend(constraint);
    }
    lines.end()?;
    let packing = Packing::from_blocks(granule, blocks, constraints).inspect_err(|error| {
        lines.lines.number = error.block().map_or(1, |index| first_line + index as u64);
    })?;
    if packing.capacity() != stated {
        lines.lines.number = capacity_line;
        return Err(PackingTextProblem::WrongCapacity { blocks: packing.capacity(), stated });
    }
    Ok(packing)
}

/// A gap: `START-END` or `START-END@FROM:TO`. `None` if the text has another form.
fn gap(text: &str) -> Option<Result<Gap, PackingTextProblem>> {
    let (times, kept) = text.split_once('@').unwrap_or((text, "0:0"));
    let ((start, end), (from, to)) = (times.split_once('-')?, kept.split_once(':')?);
    let read = || {
        let kept = lines::number(from)?..lines::number(to)?;
        Ok(Gap { start: time(start)?, end: time(end)?, kept })
    };
    Some(read())
}

/// An event number.
fn time(text: &str) -> Result<u32, PackingTextProblem> {
    let number = lines::number(text)?;
    u32::try_from(number).map_err(|_| PackingTextProblem::TimeTooLarge { time: number })
}

struct Lines<'a, R> {
    lines: LineReader<R>,
    limits: &'a PackingLimits,
    comments: u32,
    memory: HeldMemory,
}

impl<R: BufRead> Lines<'_, R> {
    /// Returns the next raw line, or the empty string after the last.
    fn raw(&mut self) -> Result<&str, PackingTextProblem> {
        if self.lines.read()? {
            self.memory.note_input(self.lines.line.len() as u64 + 1);
        }
        Ok(self.lines.text()?)
    }

    /// Returns the next line that is not a comment.
    fn next(&mut self, expected: &'static str) -> Result<&str, PackingTextProblem> {
        while self.raw()?.starts_with('#') {
            self.comments += 1;
            let limit = self.limits.comments;
            if self.comments > limit {
                return Err(PackingTextProblem::TooManyComments { limit });
            }
        }
        if self.lines.line.is_empty() {
            return Err(self.unexpected(expected));
        }
        Ok(self.lines.text()?)
    }

    fn value(&mut self, key: &str, expected: &'static str) -> Result<u64, PackingTextProblem> {
        match self.next(expected)?.trim_end().strip_prefix(key) {
            Some(value) => Ok(lines::number(value)?),
            None => Err(self.unexpected(expected)),
        }
    }

    fn block(
        &mut self,
        index: usize,
        constrained: bool,
    ) -> Result<(PackedBlock, Option<BlockConstraint>), PackingTextProblem> {
        let expected =
            if constrained { "START END BYTES OFFSET ALIGNMENT GAPS" } else { "START END BYTES OFFSET" };
        let mut fields = self.raw()?.trim_end().split(' ').fuse();
        let (Some(start), Some(end), Some(bytes), Some(offset)) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            return Err(self.unexpected(expected));
        };
        let alignment = fields.next();
        let gaps: Option<Vec<_>> = fields.map(gap).collect();
        let Some(gaps) = gaps.filter(|_| constrained || alignment.is_none()) else {
            return Err(self.unexpected(expected));
        };
        let lifetime = Lifetime { bytes: lines::number(bytes)?, start: time(start)?, end: time(end)? };
        let offset = if offset == "-" { None } else { Some(lines::number(offset)?) };
        let alignment = alignment.map(lines::number).transpose()?;
        let gaps = gaps.into_iter().collect::<Result<_, _>>()?;
        let constraint = alignment.map(|alignment| BlockConstraint { block: index, alignment, gaps });
        Ok((PackedBlock { lifetime, offset }, constraint))
    }

    /// Charges for the last block.
    fn charge(&mut self, constraint: Option<&BlockConstraint>) -> Result<(), PackingTextProblem> {
        let gaps = constraint.map_or(0, |constraint| 1 + constraint.gaps.len() as u64);
        Ok(self.memory.charge(BLOCK_BYTES + GAP_BYTES * gaps)?)
    }

    /// Checks that only empty lines follow.
    fn end(&mut self) -> Result<(), PackingTextProblem> {
        if self.raw()?.is_empty() && self.lines.at_end() {
            return Ok(());
        }
        Err(self.unexpected("the end of the text"))
    }

    fn unexpected(&self, expected: &'static str) -> PackingTextProblem {
        PackingTextProblem::Unexpected { expected, found: self.lines.beginning() }
    }
}
