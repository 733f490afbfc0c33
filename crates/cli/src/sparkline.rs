//! A curve as one line of text.

/// From empty to full.
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Draws shares from 0 to 1 as at most `width` bars, each the maximum of its range. Shares above 0 are always visible.
pub(crate) fn sparkline(shares: impl ExactSizeIterator<Item = f64>, width: usize) -> String {
    let count = shares.len();
    let mut bars = vec![0.0_f64; count.min(width)];
    for (index, share) in shares.enumerate() {
        let Some(bar) = bars.get_mut(index * count.min(width) / count) else { break };
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
        assert_eq!(sparkline([0.0, 0.001, 0.5, 1.0].into_iter(), 24), "▁▂▅█");
        assert_eq!(sparkline([2.0, -1.0, f64::NAN].into_iter(), 24), "█▁▁");
        assert_eq!(sparkline([].into_iter(), 24), "");
    }

    #[test]
    fn many_shares_make_one_line_that_keeps_the_peaks() {
        let line = sparkline((0..1000).map(|index| if index == 500 { 1.0 } else { 0.0 }), 24);
        assert_eq!(line.chars().count(), 24);
        assert_eq!(line.chars().filter(|&bar| bar == '█').count(), 1);
    }
}
