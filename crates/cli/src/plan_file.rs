//! Plans in files.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use bfc_core::Plan;
use highwater_tracking::{PlanLimits, PlanTextError, parse_plan, write_plan};

/// A plan that could not be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlanFileError {
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("{}: {error}", path.display())]
    Plan { path: PathBuf, error: PlanTextError },
}

pub(crate) fn read(path: &Path) -> Result<Plan, PlanFileError> {
    let file = File::open(path).map_err(|error| PlanFileError::Io { path: path.to_owned(), error })?;
    parse_plan(BufReader::new(file), &PlanLimits::default())
        .map_err(|error| PlanFileError::Plan { path: path.to_owned(), error })
}

pub(crate) fn write(path: &Path, plan: &Plan) -> Result<(), PlanFileError> {
    let write = || {
        let mut file = BufWriter::new(File::create(path)?);
        write_plan(plan, &mut file)?;
        file.flush()
    };
    write().map_err(|error| PlanFileError::Io { path: path.to_owned(), error })
}
