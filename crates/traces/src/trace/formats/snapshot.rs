//! PyTorch's memory snapshots, as a pickle or as JSON.

use highwater_files::FileKind;
use highwater_files::pickle;

use super::Format;
use crate::trace::snapshot::Snapshot;

pub(super) const PICKLE: Format = Format {
    kind: Some(FileKind::Pickle),
    ..Format::snapshot(
        |start| start.bytes.first() == Some(&pickle::MAGIC),
        &[b"\x80\x02", b"\x80\x04"],
        Snapshot::read_pickle,
    )
};

pub(super) const JSON: Format = Format::snapshot(
    |start| start.has_line(|line| line.starts_with(['{', '['])),
    &[b"{"],
    Snapshot::read_json,
);
