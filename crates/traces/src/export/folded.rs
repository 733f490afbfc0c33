//! The holders at the peak as folded stacks for flame graphs: one line per stack, outermost first, with its bytes.

use std::collections::BTreeMap;
use std::io::Write;

use bfc_core::{Category, is_printable};
use highwater_files::boundary::count_within;
use highwater_tracking::Recording;

use super::{ExportError, Output, at_peak};

/// The most bytes of names on each side of a stack. A longer stack loses the names in its middle.
const MOST_BYTES: usize = 8 << 10;

pub(super) fn write<W: Write>(recording: &Recording, out: &mut Output<W>) -> Result<(), ExportError> {
    // The lines themselves may be much longer than the recording.
    let mut sums: BTreeMap<(u32, usize), u64> = BTreeMap::new();
    for holding in at_peak::holdings(recording) {
        *sums.entry((holding.owner, holding.category.index())).or_default() += holding.bytes;
    }
    let mut buffer = Vec::new();
    for ((owner, category), bytes) in sums {
        let mut line = String::new();
        let program = recording.facts().program.as_str();
        if !program.is_empty() {
            push(&mut line, program);
        }
        let owners = recording.lineage(owner);
        let names: Vec<&str> = owners.iter().map(|&owner| recording.owner(owner).name.as_str()).collect();
        let outer = count_within(names.iter().copied(), MOST_BYTES);
        let inner = count_within(names[outer..].iter().copied().rev(), MOST_BYTES);
        let omitted = names.len() - outer - inner;
        names[..outer].iter().for_each(|name| push(&mut line, name));
        if omitted > 0 {
            push(&mut line, &format!("({omitted} more)"));
        }
        names[outer + omitted..].iter().for_each(|name| push(&mut line, name));
        line.push_str(&format!("[{}] {bytes}\n", Category::ALL[category].name()));
        buffer.extend_from_slice(line.as_bytes());
        out.flush_if_full(&mut buffer)?;
    }
    out.flush(&mut buffer)?;
    Ok(())
}

/// Appends a name and a separator.
fn push(line: &mut String, name: &str) {
    line.extend(name.chars().map(|letter| if separates(letter) { '_' } else { letter }));
    line.push(';');
}

/// Returns whether a character separates the names of a stack, or is not printable.
fn separates(letter: char) -> bool {
    letter == ';' || !is_printable(letter)
}
