//! The rank of this process, from the environment variables of its launcher.

use std::fmt;

use bfc_core::printable;
use thiserror::Error;

/// A program that starts ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Launcher {
    /// `mpiexec` of Open MPI.
    OpenMpi,
    /// `mpiexec` of MPICH or another MPI with the launcher Hydra, or `srun --mpi=pmi2`.
    Mpich,
    /// PyTorch's `torchrun`.
    Torchrun,
    /// `srun` of Slurm.
    Slurm,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OpenMpi => "Open MPI",
            Self::Mpich => "MPICH",
            Self::Torchrun => "torchrun",
            Self::Slurm => "Slurm",
        })
    }
}

/// The place of this process among the processes that a launcher started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The launcher.
    pub launcher: Launcher,
    /// The number of this process, from 0.
    pub rank: usize,
    /// The number of processes.
    pub size: usize,
    /// The number of this process on its machine, from 0.
    pub local_rank: usize,
    /// The number of processes on this machine.
    pub local_size: usize,
}

/// A variable of a launcher is missing or invalid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// A variable is missing although the launcher's other variables are set.
    #[error("{launcher} started this process, but {variable} is not set: start it as `{launcher}` documents")]
    Missing {
        /// The launcher.
        launcher: Launcher,
        /// The name of the variable.
        variable: &'static str,
    },
    /// A variable has no valid value.
    #[error("{variable} is {value:?}, but must be {expected}", expected = printable(expected))]
    Invalid {
        /// The name of the variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// The valid values.
        expected: String,
    },
}

/// The variables of a launcher: rank, size, local rank, local size.
type Variables = [&'static str; 4];

const OPEN_MPI: Variables = [
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
];
const MPICH: Variables = ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"];
const TORCHRUN: Variables = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"];
const SLURM_RANK: &str = "SLURM_PROCID";
const SLURM_SIZE: &str = "SLURM_NTASKS";
const SLURM_LOCAL_RANK: &str = "SLURM_LOCALID";
const SLURM_NODE: &str = "SLURM_NODEID";
const SLURM_TASKS_PER_NODE: &str = "SLURM_STEP_TASKS_PER_NODE";
/// Only `srun` sets it. Batch scripts have the other variables too, and are no rank.
const SLURM_STEP: &str = "SLURM_STEP_ID";

impl Launch {
    /// Reads the launcher's variables from the environment; `None` if no launcher started this process.
    ///
    /// # Errors
    ///
    /// A variable is missing or invalid.
    pub fn from_env() -> Result<Option<Self>, LaunchError> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    /// Reads the launcher's variables through `lookup`; `None` if no launcher started this process.
    ///
    /// If several launchers have set variables, the first of this list counts: Open MPI, MPICH, torchrun, Slurm. The
    /// launchers of MPI and torchrun run inside of Slurm's, so that theirs are the variables of the innermost one.
    ///
    /// ```
    /// use highwater_distributed::Launch;
    ///
    /// let variables = |name: &str| match name {
    ///     "RANK" | "LOCAL_RANK" => Some("1".into()),
    ///     "WORLD_SIZE" | "LOCAL_WORLD_SIZE" => Some("2".into()),
    ///     _ => None,
    /// };
    /// let launch = Launch::from_variables(variables)?.unwrap();
    /// assert_eq!((launch.rank, launch.size), (1, 2));
    /// # Ok::<(), highwater_distributed::LaunchError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// A variable is missing or invalid.
    pub fn from_variables(lookup: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, LaunchError> {
        let is_set = |name: &str| lookup(name).is_some();
        let in_slurm = is_set(SLURM_STEP);
        let launch = if is_set(OPEN_MPI[0]) {
            Reader { launcher: Launcher::OpenMpi, lookup }.read(OPEN_MPI)?
        } else if is_set(MPICH[0]) {
            let lacks_places = !is_set(MPICH[2]) && !is_set(MPICH[3]);
            let reader = Reader { launcher: Launcher::Mpich, lookup };
            if in_slurm && lacks_places {
                reader.read_slurm(MPICH[0], MPICH[1])?
            } else {
                reader.read(MPICH)?
            }
        } else if is_set(TORCHRUN[0]) && is_set(TORCHRUN[1]) {
            Reader { launcher: Launcher::Torchrun, lookup }.read(TORCHRUN)?
        } else if in_slurm && is_set(SLURM_RANK) {
            Reader { launcher: Launcher::Slurm, lookup }.read_slurm(SLURM_RANK, SLURM_SIZE)?
        } else {
            return Ok(None);
        };
        Ok(Some(launch))
    }
}

/// Reads the variables of one launcher.
struct Reader<F> {
    launcher: Launcher,
    lookup: F,
}

impl<F: Fn(&str) -> Option<String>> Reader<F> {
    fn read(&self, [rank, size, local_rank, local_size]: Variables) -> Result<Launch, LaunchError> {
        let size = self.number(size, 1, usize::MAX)?;
        let local_size = self.number(local_size, 1, size)?;
        Ok(Launch {
            launcher: self.launcher,
            rank: self.number(rank, 0, size - 1)?,
            size,
            local_rank: self.number(local_rank, 0, local_size - 1)?,
            local_size,
        })
    }

    /// Slurm says the number of ranks of all nodes in one variable.
    fn read_slurm(&self, rank: &'static str, size: &'static str) -> Result<Launch, LaunchError> {
        let size = self.number(size, 1, usize::MAX)?;
        let node = self.number(SLURM_NODE, 0, size - 1)?;
        let tasks = self.value(SLURM_TASKS_PER_NODE)?;
        let local_size =
            tasks_of_node(&tasks, node).filter(|local| (1..=size).contains(local)).ok_or_else(|| {
                let expected =
                    format!("the number of tasks of each node, such as `2(x3),1`, with node {node}");
                LaunchError::Invalid { variable: SLURM_TASKS_PER_NODE, value: tasks, expected }
            })?;
        Ok(Launch {
            launcher: self.launcher,
            rank: self.number(rank, 0, size - 1)?,
            size,
            local_rank: self.number(SLURM_LOCAL_RANK, 0, local_size - 1)?,
            local_size,
        })
    }

    fn number(&self, variable: &'static str, least: usize, most: usize) -> Result<usize, LaunchError> {
        let value = self.value(variable)?;
        value.trim().parse().ok().filter(|number| (least..=most).contains(number)).ok_or_else(|| {
            let expected = match most {
                usize::MAX => format!("a whole number of at least {least}"),
                _ => format!("a whole number from {least} to {most}"),
            };
            LaunchError::Invalid { variable, value, expected }
        })
    }

    fn value(&self, variable: &'static str) -> Result<String, LaunchError> {
        (self.lookup)(variable).ok_or(LaunchError::Missing { launcher: self.launcher, variable })
    }
}

/// The number of tasks of a node in Slurm's notation: `2(x3),1` are three nodes with 2 tasks and one with 1.
fn tasks_of_node(tasks: &str, node: usize) -> Option<usize> {
    let mut first = 0_usize;
    for group in tasks.split(',') {
        let (count, nodes) = match group.split_once("(x") {
            Some((count, nodes)) => (count, nodes.strip_suffix(')')?.parse().ok()?),
            None => (group, 1),
        };
        first = first.checked_add(nodes)?;
        if node < first {
            return count.trim().parse().ok();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<Launch>, LaunchError> {
        Launch::from_variables(|name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    fn places(launch: Result<Option<Launch>, LaunchError>) -> (Launcher, [usize; 4]) {
        let launch = launch.unwrap().unwrap();
        (launch.launcher, [launch.rank, launch.size, launch.local_rank, launch.local_size])
    }

    fn set(names: Variables, values: [&'static str; 4]) -> Vec<(&'static str, &'static str)> {
        names.into_iter().zip(values).collect()
    }

    const SLURM: [(&str, &str); 6] = [
        (SLURM_STEP, "0"),
        (SLURM_RANK, "6"),
        (SLURM_SIZE, "7"),
        (SLURM_LOCAL_RANK, "0"),
        (SLURM_NODE, "3"),
        (SLURM_TASKS_PER_NODE, "2(x3),1"),
    ];

    #[test]
    fn each_launcher_is_read_from_its_variables() {
        let values = ["5", "8", "1", "4"];
        assert_eq!(places(read(&set(OPEN_MPI, values))), (Launcher::OpenMpi, [5, 8, 1, 4]));
        assert_eq!(places(read(&set(MPICH, values))), (Launcher::Mpich, [5, 8, 1, 4]));
        assert_eq!(places(read(&set(TORCHRUN, values))), (Launcher::Torchrun, [5, 8, 1, 4]));
        assert_eq!(places(read(&SLURM)), (Launcher::Slurm, [6, 7, 0, 1]));
        assert_eq!(read(&[]), Ok(None));
    }

    #[test]
    fn launchers_take_precedence_over_slurm_around_them() {
        let mut variables = SLURM.to_vec();
        variables.extend(set(TORCHRUN, ["1", "3", "1", "3"]));
        assert_eq!(places(read(&variables)), (Launcher::Torchrun, [1, 3, 1, 3]));
        variables.extend(set(MPICH, ["1", "2", "1", "2"]));
        assert_eq!(places(read(&variables)), (Launcher::Mpich, [1, 2, 1, 2]));
        variables.extend(set(OPEN_MPI, ["0", "2", "0", "1"]));
        assert_eq!(places(read(&variables)), (Launcher::OpenMpi, [0, 2, 0, 1]));
    }

    #[test]
    fn srun_with_pmi_takes_local_ranks_from_slurm() {
        let mut variables = SLURM.to_vec();
        variables.extend([("PMI_RANK", "6"), ("PMI_SIZE", "7")]);
        assert_eq!(places(read(&variables)), (Launcher::Mpich, [6, 7, 0, 1]));
    }

    #[test]
    fn a_batch_script_and_a_lone_rank_are_no_launch() {
        assert_eq!(read(&SLURM[1..]), Ok(None));
        assert_eq!(read(&[("RANK", "colonel")]), Ok(None));
    }

    #[test]
    fn errors_name_the_variable_its_value_and_the_range() {
        let message = |variables: &[(&str, &str)]| read(variables).unwrap_err().to_string();
        assert_eq!(
            message(&set(MPICH, ["2", "2", "0", "2"])),
            "PMI_RANK is \"2\", but must be a whole number from 0 to 1"
        );
        assert_eq!(
            message(&set(TORCHRUN, ["0", "-1", "0", "1"])),
            "WORLD_SIZE is \"-1\", but must be a whole number of at least 1"
        );
        assert_eq!(
            message(&set(OPEN_MPI, ["0", "2", "0", "3"])),
            "OMPI_COMM_WORLD_LOCAL_SIZE is \"3\", but must be a whole number from 1 to 2"
        );
        assert!(message(&[("PMI_RANK", "0")]).contains("PMI_SIZE is not set"));
        let mut slurm = SLURM;
        slurm[5].1 = "2(x3";
        assert!(message(&slurm).starts_with("SLURM_STEP_TASKS_PER_NODE is \"2(x3\", but must be"));
        slurm[5].1 = "2(x3)";
        assert!(message(&slurm).ends_with("with node 3"));
    }
}
