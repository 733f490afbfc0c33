//! The known name that is most similar to a misspelled one, for error messages.

use super::printable::printable;

/// Names that differ in more letters than this, or than a third of them, do not count as misspellings.
pub(crate) const MAX_SLIPS: usize = 3;

/// Names longer than this have no misspellings.
const MAX_LENGTH: usize = 64;

/// Returns the known name that is most similar to `name`, if one is similar. Upper and lower case are equal.
///
/// A changed, missing, additional or swapped letter is one slip. At most three slips, and a third of the letters, are
/// allowed. Of equally similar names, the first is returned.
///
/// ```
/// use bfc_core::closest_name;
/// assert_eq!(closest_name("limt", ["memory", "limit"]), Some("limit"));
/// assert_eq!(closest_name("color", ["memory", "limit"]), None);
/// ```
#[must_use]
pub fn closest_name<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = name.to_ascii_lowercase();
    let similar = |known: &'a str| Some((slips(&lower, &known.to_ascii_lowercase())?, known));
    known.into_iter().filter_map(similar).min_by_key(|(slips, _)| *slips).map(|(_, known)| known)
}

/// Returns ` (did you mean limit?)` with the [closest name](closest_name), or an empty text if none is similar or
/// `name` is known. It follows a wrong name in an error message.
///
/// ```
/// use bfc_core::did_you_mean;
/// let hint = did_you_mean("limt", ["memory", "limit"]);
/// assert_eq!(format!("unknown key \"limt\"{hint}"), "unknown key \"limt\" (did you mean limit?)");
/// assert_eq!(did_you_mean("color", ["memory", "limit"]), "");
/// ```
#[must_use]
pub fn did_you_mean<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    closest_name(name, known)
        .filter(|closest| *closest != name)
        .map_or_else(String::new, |closest| format!(" (did you mean {}?)", printable(closest)))
}

/// Returns the number of slips in `text` if it may be a misspelling of `name`.
pub(crate) fn slips(text: &str, name: &str) -> Option<usize> {
    let (letters, most) = (name.chars().count(), MAX_SLIPS);
    if text.len() > MAX_LENGTH || name.len() > MAX_LENGTH {
        return None;
    }
    Some(distance(text, name)).filter(|&slips| slips <= most.min(letters / 3))
}

/// Returns the least number of changed, missing, additional and swapped letters between two texts.
fn distance(from: &str, to: &str) -> usize {
    let (from, to): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    // `rows[i][j]`: the distance of the first `i` letters from the first `j` letters of the other text.
    let mut rows: Vec<Vec<usize>> = vec![(0..=to.len()).collect()];
    for i in 1..=from.len() {
        let mut row = vec![i];
        for j in 1..=to.len() {
            let mut least = rows[i - 1][j - 1] + usize::from(from[i - 1] != to[j - 1]);
            least = least.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[from.len()][to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_a_changed_missing_additional_or_swapped_letter() {
        for (from, to, expected) in [
            ("", "", 0),
            ("", "abc", 3),
            ("kitten", "sitting", 3),
            ("limt", "limit", 1),
            ("limiit", "limit", 1),
            ("lomit", "limit", 1),
            ("limti", "limit", 1),
            ("größe", "grösse", 2),
        ] {
            assert_eq!((distance(from, to), distance(to, from)), (expected, expected), "{from} {to}");
        }
    }

    #[test]
    fn the_closest_of_several_names_is_found() {
        let known = ["bfc", "bfc-tensorflow", "buddy", "auto-growth"];
        for (name, expected) in [
            ("bcf", Some("bfc")),
            ("BFC", Some("bfc")),
            ("budy", Some("buddy")),
            ("bfc_tensor-flow", Some("bfc-tensorflow")),
            ("autogrowth", Some("auto-growth")),
            ("b", None),
            ("", None),
            ("slab", None),
        ] {
            assert_eq!(closest_name(name, known), expected, "{name}");
        }
        assert_eq!(closest_name(&"x".repeat(100_000), known), None);
        assert_eq!(did_you_mean("bfc", known), "");
        assert_eq!(did_you_mean("a\u{1b}bc", ["a\u{1b}b"]), r" (did you mean a\u{1b}b?)");
    }
}
