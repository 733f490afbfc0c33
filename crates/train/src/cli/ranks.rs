//! Options of programs that train with several processes, and runs of one rank after the other in dry runs.

use std::path::{Path, PathBuf};

use bfc_core::Bytes;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use highwater_distributed::{Shard, SumOrder, World, WorldError};
use highwater_tensor::DType;
use serde::Serialize;

/// How the processes of a run are connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Transport {
    /// One process
    #[default]
    Alone,
    /// The processes that mpiexec or srun started
    Mpi,
    /// One GPU per process
    Nccl,
}

// The types have no doc comments: clap would print them above the program's help.

#[allow(missing_docs, reason = "clap would print the text")]
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Several processes")]
pub(super) struct RankOptions {
    /// Train with the processes ("ranks") that a launcher started, such as `mpiexec -n 2`. Each has its part of the
    /// batches. In file names, {rank} stands for the number of the process; other files are written by rank 0 only
    #[arg(long, value_enum, value_name = "WORLD", default_value_t = Transport::Alone)]
    world: Transport,

    /// The memory that the ranks divide among themselves instead of keeping copies
    #[arg(long, value_name = "WHAT", default_value = "none")]
    #[arg(value_parser = PossibleValuesParser::new(Shard::NAMES).map(|name| Shard::from_name(&name).unwrap_or_default()))]
    pub(super) shard: Shard,

    /// Add gradients in rank order, which gives the values of one process, or in the order of the communication library,
    /// which may be faster
    #[arg(long, value_name = "ORDER", default_value = "ordered")]
    #[arg(value_parser = PossibleValuesParser::new(["ordered", "library"]).map(|name| reduce_of(&name)))]
    pub(super) reduce: SumOrder,

    /// The element type in which ranks exchange gradients. 16 bits halve the traffic and round each gradient
    #[arg(long, value_name = "DTYPE", default_value = "f32")]
    #[arg(value_parser = PossibleValuesParser::new(["f32", "bf16", "f16"]).map(|name| exchange_of(&name)))]
    pub(super) exchange: DType,

    /// Batches of each rank per step; their gradients are added
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) accumulate: u64,

    /// Predict the memory of each of N ranks, one after the other
    #[arg(long, value_name = "N", requires = "dry_run", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) world_size: Option<u16>,
}

impl RankOptions {
    /// Connects the ranks.
    pub(super) fn connect(&self) -> Result<World, WorldError> {
        match self.world {
            Transport::Alone => Ok(World::alone()),
            Transport::Mpi => World::from_env(),
            Transport::Nccl => World::nccl_from_env(),
        }
    }
}

fn reduce_of(name: &str) -> SumOrder {
    if name == "library" { SumOrder::Library } else { SumOrder::Ordered }
}

fn exchange_of(name: &str) -> DType {
    match name {
        "bf16" => DType::BF16,
        "f16" => DType::F16,
        _ => DType::F32,
    }
}

/// The peak of a rank.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct RankPeak {
    pub(super) rank: usize,
    pub(super) peak_bytes: u64,
}

/// The peaks as lines, with the first of equal neighbors.
pub(super) fn peaks_text(peaks: &[RankPeak]) -> String {
    let mut text = String::from("\nrank       peak\n");
    for group in peaks.chunk_by(|first, second| first.peak_bytes == second.peak_bytes) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
        let ranks = if first.rank == last.rank {
            first.rank.to_string()
        } else {
            format!("{}–{}", first.rank, last.rank)
        };
        text += &format!("{ranks:<6} {:>10}\n", Bytes(first.peak_bytes).to_string());
    }
    text
}

/// The file of a rank: with its number for `{rank}`. Without, only rank 0 has a file.
pub(super) fn rank_path(path: &Path, world: &World) -> Option<PathBuf> {
    let text = path.to_str().filter(|text| text.contains("{rank}"));
    match text {
        Some(text) => Some(text.replace("{rank}", &world.rank().to_string()).into()),
        None => world.is_main().then(|| path.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_has_its_file_if_the_name_says_so() {
        let ranks = [0, 1].map(|rank| World::rehearsal(rank, 2).unwrap());
        let paths = |path: &str| {
            ranks
                .each_ref()
                .map(|world| rank_path(Path::new(path), world).map(|path| path.display().to_string()))
        };
        assert_eq!(paths("r-{rank}.hwm"), [Some("r-0.hwm".into()), Some("r-1.hwm".into())]);
        assert_eq!(paths("r.hwm"), [Some("r.hwm".into()), None]);
    }

    #[test]
    fn neighbors_with_equal_peaks_share_a_line() {
        let peaks = [5 << 20, 5 << 20, 3 << 10].into_iter().enumerate();
        let peaks: Vec<_> = peaks.map(|(rank, peak_bytes)| RankPeak { rank, peak_bytes }).collect();
        assert_eq!(peaks_text(&peaks), "\nrank       peak\n0–1      5.00 MiB\n2        3.00 KiB\n");
    }
}
