//! What exit codes mean.

/// Something did not work out: a replay failed, or the result could not be written.
pub(crate) const FAILED: u8 = 1;
/// The command line is wrong, or a file cannot be read; what clap exits with too.
pub(crate) const BAD_FILE: u8 = 2;
