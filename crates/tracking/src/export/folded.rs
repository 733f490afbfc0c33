//! The holders at the peak as folded stacks for flame graphs: one line per stack, outermost first, with its bytes.

use std::collections::BTreeMap;
use std::io::Write;

use super::{ExportError, Output, at_peak};
use crate::record::Recording;

pub(super) fn write<W: Write>(recording: &Recording, out: &mut Output<W>) -> Result<(), ExportError> {
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for holding in at_peak::holdings(recording) {
        let mut stack = String::new();
        let program = std::iter::once(recording.facts().program.as_str()).filter(|name| !name.is_empty());
        let owners = recording.lineage(holding.owner);
        for name in program.chain(owners.iter().map(|&owner| recording.owner(owner).name.as_str())) {
            stack.extend(name.chars().map(|letter| if separates(letter) { '_' } else { letter }));
            stack.push(';');
        }
        stack.push_str(&format!("[{}]", holding.category.name()));
        *lines.entry(stack).or_default() += holding.bytes;
    }
    let mut buffer = Vec::new();
    for (stack, bytes) in lines {
        buffer.extend_from_slice(format!("{stack} {bytes}\n").as_bytes());
        out.flush_if_full(&mut buffer)?;
    }
    out.flush(&mut buffer)?;
    Ok(())
}

/// Returns whether a character separates the names of a stack.
fn separates(letter: char) -> bool {
    letter == ';' || letter.is_control()
}
