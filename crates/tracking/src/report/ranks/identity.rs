//! Which rank a recording belongs to, and whether recordings belong to one run.

use super::RankReport;
use crate::report::Report;
use crate::report::table::shorten;
use bfc_core::printable;

/// The most ranks of a run. A damaged file could state any number.
const MAX_RANKS: u64 = 1 << 20;

/// The reason why recordings cannot be compared as ranks of one run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RankError {
    /// A fact of a recording is not a valid number.
    #[error("{file}: the fact {fact:?} is {value:?}, not a number up to {MAX_RANKS}; record the rank again", file = printable(file))]
    InvalidFact {
        /// The recording.
        file: String,
        /// The name of the fact.
        fact: &'static str,
        /// Its value, abbreviated.
        value: String,
    },
    /// A rank does not exist in its run.
    #[error("{file}: there is no rank {rank} in a run of {world_size} ranks; pass the files of one run", file = printable(file))]
    NoSuchRank {
        /// The recording.
        file: String,
        /// Its rank.
        rank: u64,
        /// The number of ranks.
        world_size: u64,
    },
    /// Two recordings have the same rank.
    #[error("{second}: rank {rank} is also in {first}; pass one file for each rank", second = printable(second), first = printable(first))]
    Duplicate {
        /// The rank.
        rank: u64,
        /// One recording.
        first: String,
        /// The other recording.
        second: String,
    },
    /// Two recordings belong to runs of different sizes.
    #[error(
        "{second}: the run has {second_size} ranks, that of {first} has {first_size}; pass the files of one run", second = printable(second), first = printable(first)
    )]
    DifferentRuns {
        /// One recording.
        first: String,
        /// Its number of ranks.
        first_size: u64,
        /// The other recording.
        second: String,
        /// Its number of ranks.
        second_size: u64,
    },
}

/// The rank and the number of ranks that a recording states.
pub(super) struct Identity {
    pub(super) rank: Option<u64>,
    pub(super) world_size: Option<u64>,
}

impl Identity {
    /// Reads the facts of a report.
    pub(super) fn read(file: &str, report: &Report) -> Result<Self, RankError> {
        let number = |fact: &'static str| {
            let value = report.run.as_ref().and_then(|run| run.facts.get(fact));
            let parsed = |value: &str| value.parse().ok().filter(|&number: &u64| number <= MAX_RANKS);
            let invalid =
                |value| RankError::InvalidFact { file: file.to_owned(), fact, value: shorten(value) };
            value.map(|value| parsed(value).ok_or_else(|| invalid(value))).transpose()
        };
        let (rank, world_size) = (number("rank")?, number("ranks")?);
        if let (Some(rank), Some(world_size)) = (rank, world_size) {
            check_rank(file, rank, world_size)?;
        }
        Ok(Self { rank, world_size })
    }
}

fn check_rank(file: &str, rank: u64, world_size: u64) -> Result<(), RankError> {
    if rank < world_size {
        return Ok(());
    }
    Err(RankError::NoSuchRank { file: file.to_owned(), rank, world_size })
}

/// Checks that reports, in ascending order of their ranks, belong to one run. Returns the number of ranks of the run.
pub(super) fn check(reports: &[RankReport]) -> Result<Option<u64>, RankError> {
    let mut sized = reports.iter().filter_map(|report| Some((&report.row.file, report.world_size?)));
    let size = sized.next();
    if let Some((first, first_size)) = size {
        if let Some((second, second_size)) = sized.find(|&(_, size)| size != first_size) {
            let (first, second) = (first.clone(), second.clone());
            return Err(RankError::DifferentRuns { first, first_size, second, second_size });
        }
    }
    for pair in reports.windows(2) {
        let [first, second] = pair else { continue };
        if first.row.rank == second.row.rank {
            let (first, second) = (&first.row, &second.row);
            return Err(RankError::Duplicate {
                rank: first.rank,
                first: first.file.clone(),
                second: second.file.clone(),
            });
        }
    }
    let size = size.map(|(_, size)| size);
    if let (Some(size), Some(last)) = (size, reports.last()) {
        check_rank(&last.row.file, last.row.rank, size)?;
    }
    Ok(size)
}
