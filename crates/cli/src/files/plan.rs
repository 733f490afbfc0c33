//! Reads and writes plan files.

use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use bfc_core::Plan;
use highwater_tracking::{PlanLimits, PlanTextError, parse_plan, write_plan};

use crate::files::input;
use crate::files::output::{self, OutputFile};

/// A plan that could not be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlanFileError {
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("{}: {error}", path.display())]
    Plan { path: PathBuf, error: PlanTextError },
}

pub(crate) fn read(path: &Path) -> Result<Plan, PlanFileError> {
    let name = || input::name(path);
    let source = input::open(path).map_err(|error| PlanFileError::Io { path: name(), error })?;
    parse_plan(BufReader::new(source), &PlanLimits::default())
        .map_err(|error| PlanFileError::Plan { path: name(), error })
}

/// Opens the file of a plan that is computed from `trace`.
pub(crate) fn create(path: &Path, trace: &Path) -> Result<OutputFile, PlanFileError> {
    OutputFile::open(path, &[trace]).map_err(|error| PlanFileError::Io { path: output::name(path), error })
}

pub(crate) fn write(mut output: OutputFile, path: &Path, plan: &Plan) -> Result<(), PlanFileError> {
    let written = write_plan(plan, &mut output).and_then(|()| output.commit());
    written.map(drop).map_err(|error| PlanFileError::Io { path: output::name(path), error })
}
