//! Selects the pending frees to wait for when memory has run out: as few as possible.
//!
//! Work on a stream ends in order, so waiting for one mark of a stream waits for all marks before it. A candidate set
//! of frees is therefore a cut: a number of marks for each stream. The search starts with the smallest number of oldest
//! frees that suffices. The result is minimal: with one mark less, of any stream, it would not suffice.

/// The marks of one pending free, as (lane, position in the lane from 1). Frees are sorted by age.
pub(super) type Marks = Vec<(usize, usize)>;

/// Returns how many marks to wait for in each lane; `None` if all frees are not enough. `suffices` receives the indices
/// of the frees in a cut, and must be monotonic.
pub(super) fn cheapest_cut(
    frees: &[Marks],
    lanes: usize,
    mut suffices: impl FnMut(&[usize]) -> bool,
) -> Option<Vec<usize>> {
    let mut enough = |cut: &[usize]| suffices(&given_by(frees, cut));
    // Find the smallest number of oldest frees that suffices.
    let oldest = |count: usize| {
        let mut cut = vec![0; lanes];
        for &(lane, place) in frees[..count].iter().flatten() {
            cut[lane] = place.max(cut[lane]);
        }
        cut
    };
    if !enough(&oldest(frees.len())) {
        return None;
    }
    let count = least(frees.len(), |count| enough(&oldest(count)));
    let mut cut = oldest(count);
    // Drop the marks that are unnecessary, the latest first. `suffices` is monotonic, so one pass over the lanes is
    // enough.
    let mut order: Vec<usize> = (0..lanes).collect();
    let latest =
        |lane: usize| frees[..count].iter().rposition(|marks| marks.iter().any(|mark| mark.0 == lane));
    order.sort_by_key(|&lane| std::cmp::Reverse(latest(lane)));
    for lane in order {
        let most = cut[lane];
        cut[lane] = least(most, |place| {
            let mut shorter = cut.clone();
            shorter[lane] = place;
            enough(&shorter)
        });
    }
    Some(cut)
}

/// Returns the frees that wait for no mark beyond the cut.
fn given_by(frees: &[Marks], cut: &[usize]) -> Vec<usize> {
    let given = |marks: &Marks| marks.iter().all(|&(lane, place)| place <= cut[lane]);
    frees.iter().enumerate().filter(|(_, marks)| given(marks)).map(|(index, _)| index).collect()
}

/// Returns the smallest number up to `most` for which `holds` is true. `holds` is monotonic, and true for `most`.
fn least(most: usize, mut holds: impl FnMut(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, most);
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) { high = middle } else { low = middle + 1 }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Finds the cut for frees of these bytes, of which `required` are required.
    fn cut(frees: &[(u64, &[(usize, usize)])], lanes: usize, required: u64) -> Option<Vec<usize>> {
        let marks: Vec<Marks> = frees.iter().map(|(_, marks)| marks.to_vec()).collect();
        cheapest_cut(&marks, lanes, |given| {
            given.iter().map(|&index| frees[index].0).sum::<u64>() >= required
        })
    }

    #[test]
    fn the_oldest_that_suffice_are_waited_for_and_no_younger_ones() {
        let frees: &[(u64, &[(usize, usize)])] = &[(10, &[(0, 1)]), (10, &[(0, 2)]), (10, &[(0, 3)])];
        assert_eq!(cut(frees, 1, 15), Some(vec![2]));
        assert_eq!(cut(frees, 1, 30), Some(vec![3]));
        assert_eq!(cut(frees, 1, 31), None);
    }

    #[test]
    fn an_older_free_that_does_not_help_is_not_waited_for() {
        let frees: &[(u64, &[(usize, usize)])] = &[(1, &[(0, 1)]), (100, &[(1, 1)]), (1, &[(2, 1)])];
        assert_eq!(cut(frees, 3, 100), Some(vec![0, 1, 0]));
    }

    #[test]
    fn a_free_that_two_streams_use_waits_for_both() {
        let frees: &[(u64, &[(usize, usize)])] = &[(50, &[(0, 1), (1, 1)]), (10, &[(0, 2)])];
        assert_eq!(cut(frees, 2, 50), Some(vec![1, 1]));
        assert_eq!(cut(frees, 2, 5), Some(vec![1, 1]));
    }

    /// Checks against all cuts: the found one suffices, and with one mark less in any lane none does.
    #[test]
    fn the_cut_is_minimal_for_all_small_cases() {
        for seed in 0..2000_u64 {
            let number =
                |index: u64, bound: u64| (seed * 2_654_435_761 + index * 40_503 + (seed >> 3)) % 9973 % bound;
            let mut lengths = [0; 3];
            let frees: Vec<(u64, Marks)> = (0..6)
                .map(|index| {
                    let mut marks = Marks::new();
                    for lane in 0..3 {
                        if number(index * 7 + lane, 3) == 0 || (marks.is_empty() && lane == 2) {
                            lengths[lane as usize] += 1;
                            marks.push((lane as usize, lengths[lane as usize]));
                        }
                    }
                    (1 + number(index + 50, 20), marks)
                })
                .collect();
            let required = 1 + number(99, 70);
            let bytes = |cut: &[usize]| -> u64 {
                let given = |marks: &Marks| marks.iter().all(|&(lane, place)| place <= cut[lane]);
                frees.iter().filter(|(_, marks)| given(marks)).map(|(bytes, _)| bytes).sum()
            };
            let borrowed: Vec<(u64, &[(usize, usize)])> =
                frees.iter().map(|(bytes, marks)| (*bytes, marks.as_slice())).collect();
            match cut(&borrowed, 3, required) {
                None => assert!(bytes(&lengths) < required),
                Some(found) => {
                    assert!(bytes(&found) >= required, "seed {seed}");
                    for lane in (0..3).filter(|&lane| found[lane] > 0) {
                        let mut shorter = found.clone();
                        shorter[lane] -= 1;
                        assert!(bytes(&shorter) < required, "seed {seed}: {found:?}");
                    }
                }
            }
        }
    }
}
