//! A small set of sentence pairs, made of any text.

use std::path::Path;

use anyhow::ensure;
use highwater::alloc::printable;
use highwater::io::write_atomically;

use super::read;
use super::terminal::say;

/// The words of a passage, and of the parts at its beginning and its end.
const PASSAGE: usize = 12;
const PART: usize = 9;

/// Writes pairs of the text to a table. A pair of the class `same` has the beginning and the end of one passage, which
/// overlap. A pair of the class `other` has those of two passages, far from each other. Each passage occurs in one pair only.
pub(super) fn make(text: &Path, table: &Path) -> anyhow::Result<()> {
    let contents = read(text)?;
    let passages = passages(&contents);
    let third = passages.len() / 3;
    ensure!(third > 1, "{}: too short for pairs", printable(text.display()));
    let (mut rows, join) = (Vec::new(), |words: &[&str]| words.join(" "));
    for at in 0..third {
        let [same, first, second] =
            [3 * at, 3 * at + 1, (3 * (at + third / 2)) % (3 * third) + 2].map(|at| &passages[at]);
        rows.push((join(&same[..PART]), join(&same[PASSAGE - PART..]), "same"));
        rows.push((join(&first[..PART]), join(&second[PASSAGE - PART..]), "other"));
    }
    write_atomically(table, |file| {
        writeln!(file, "sentence1\tsentence2\tlabel")?;
        let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
        rows.iter()
            .try_for_each(|(one, other, label)| writeln!(file, "{}\t{}\t{label}", quoted(one), quoted(other)))
    })?;
    say(&format!("{} pairs in {}\n", rows.len(), printable(table.display())))
}

/// The passages of a text. None extends beyond its paragraph. The names of speakers, `Menenius:`, are left out.
fn passages(text: &str) -> Vec<Vec<&str>> {
    let mut all = Vec::new();
    let mut words: Vec<&str> = Vec::new();
    for line in text.lines() {
        let line = line.trim();
        if line.is_empty() || line.ends_with(':') {
            words.clear();
            continue;
        }
        for word in line.split_whitespace() {
            words.push(word);
            if words.len() == PASSAGE {
                all.push(std::mem::take(&mut words));
            }
        }
    }
    all
}
