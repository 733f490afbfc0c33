//! A curve in one line of text.

/// From nothing to everything.
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// How many letters wide a line is at most.
const WIDTH: usize = 24;

/// Shares from 0 to 1 as a line of bars, each the highest of its stretch; more than 0 is always seen.
pub(super) fn sparkline(shares: impl ExactSizeIterator<Item = f64>) -> String {
    let count = shares.len();
    let mut bars = vec![0.0_f64; count.min(WIDTH)];
    for (index, share) in shares.enumerate() {
        let bar = &mut bars[index * count.min(WIDTH) / count];
        *bar = bar.max(share);
    }
    let top = LEVELS.len() - 1;
    let level = |bar: f64| LEVELS[((bar * top as f64).ceil() as usize).min(top)];
    bars.into_iter().map(level).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_rise_with_the_shares_and_a_little_is_more_than_nothing() {
        assert_eq!(sparkline([0.0, 0.001, 0.5, 1.0].into_iter()), "▁▂▅█");
        assert_eq!(sparkline([2.0, -1.0, f64::NAN].into_iter()), "█▁▁");
        assert_eq!(sparkline([].into_iter()), "");
    }

    #[test]
    fn many_shares_make_one_line_that_keeps_the_peaks() {
        let line = sparkline((0..1000).map(|index| if index == 500 { 1.0 } else { 0.0 }));
        assert_eq!(line.chars().count(), WIDTH);
        assert_eq!(line.chars().filter(|&bar| bar == '█').count(), 1);
    }
}
