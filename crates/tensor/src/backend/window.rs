//! Windows that slide over an axis: of convolutions and pools.

use std::ops::Range;

/// A window that slides along one axis. Places of the padding hold nothing, or 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// Elements that it sees at a time.
    pub size: usize,
    /// How far it moves from one output to the next.
    pub stride: usize,
    /// Places before the first element, and after the last.
    pub padding: usize,
    /// From one element that it sees to the next.
    pub dilation: usize,
}

impl Window {
    /// A window of this size that moves by one place and sees neighbours.
    #[must_use]
    pub const fn new(size: usize) -> Self {
        Self { size, stride: 1, padding: 0, dilation: 1 }
    }

    /// How many outputs an axis of `len` elements has; `None` if the window does not fit once, or is none.
    #[must_use]
    pub fn outputs(&self, len: usize) -> Option<usize> {
        let reach = self.size.checked_sub(1)?.checked_mul(self.dilation)?.checked_add(1)?;
        let padded = len.checked_add(self.padding.checked_mul(2)?)?;
        if self.dilation == 0 {
            return None;
        }
        Some(padded.checked_sub(reach)?.checked_div(self.stride)? + 1)
    }

    /// The element that output `output` sees as its `tap`-th, if it is not in the padding. `None` also for places that no
    /// `usize` counts, as outputs past the last may have.
    #[must_use]
    pub fn at(&self, output: usize, tap: usize, len: usize) -> Option<usize> {
        let start = output.checked_mul(self.stride)?;
        let padded = start.checked_add(tap.checked_mul(self.dilation)?)?;
        padded.checked_sub(self.padding).filter(|&place| place < len)
    }

    /// Which taps of an output see an element: they follow one another, as windows only leave at their ends.
    #[must_use]
    pub fn taps_inside(&self, output: usize, len: usize) -> Range<usize> {
        self.steps_inside(output.saturating_mul(self.stride), self.dilation, len, self.size)
    }

    /// The outputs (below `outputs`) whose `tap`-th element is none of the padding.
    #[must_use]
    pub fn inside(&self, tap: usize, len: usize, outputs: usize) -> Range<usize> {
        self.steps_inside(tap.saturating_mul(self.dilation), self.stride, len, outputs)
    }

    /// Which of `count` places see an element: `start`, counted from the begin of the padding, and each `step` after the one
    /// before. Sums that no `usize` counts lie past the end of any axis. A window with a step of 0 has no outputs.
    fn steps_inside(&self, start: usize, step: usize, len: usize, count: usize) -> Range<usize> {
        let step = step.max(1);
        let first = self.padding.saturating_sub(start).div_ceil(step).min(count);
        // The least one that would see an element at or past the end.
        let end = len.saturating_add(self.padding).saturating_sub(start).div_ceil(step).min(count);
        first..end
    }
}

/// The two windows of a convolution over height and width, and into how many parts it cuts the channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Convolution {
    /// Along height and width.
    pub windows: [Window; 2],
    /// Each group of output channels sees its own group of input channels alone.
    pub groups: usize,
}

/// What a pool makes of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pool {
    /// The largest of its elements; NaN if any is.
    Max,
    /// Their sum by the size of the window, in which padding counts.
    Mean,
}

/// Where the windows of a pool are along one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PoolAxis {
    /// A window that slides, without dilation and with padding of at most half its size.
    Sliding(Window),
    /// As many windows as outputs, as equal as can be, over the whole axis: output i of m sees the elements from ⌊i·n/m⌋ to
    /// below ⌈(i+1)·n/m⌉ of n.
    Adaptive {
        /// How many.
        outputs: usize,
    },
}

impl PoolAxis {
    /// How many outputs an axis of `len` elements has; `None` if there can be none, or more than kernels can count.
    #[must_use]
    pub fn outputs(&self, len: usize) -> Option<usize> {
        match *self {
            Self::Sliding(window) => window.outputs(len),
            // Kernels multiply outputs by elements to find a window.
            Self::Adaptive { outputs } => {
                len.checked_add(1)?.checked_mul(outputs.checked_add(1)?)?;
                (len > 0 && outputs > 0).then_some(outputs)
            }
        }
    }

    /// The elements that an output sees, and by how many a mean divides.
    pub(crate) fn seen(&self, output: usize, len: usize) -> (impl Iterator<Item = usize> + Clone, usize) {
        let (first, step, taps, count) = match *self {
            Self::Sliding(window) => {
                let taps = window.taps_inside(output, len);
                let first = window.at(output, taps.start, len).unwrap_or(0);
                (first, window.dilation, taps.len(), window.size)
            }
            Self::Adaptive { outputs } => {
                let (start, end) = (output * len / outputs, ((output + 1) * len).div_ceil(outputs));
                (start, 1, end - start, end - start)
            }
        };
        ((0..taps).map(move |tap| first + tap * step), count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_as_many_as_places_where_the_window_fits() {
        for (size, stride, padding, dilation) in
            [(3, 1, 0, 1), (3, 2, 1, 1), (2, 3, 1, 2), (1, 1, 0, 1), (5, 1, 2, 3)]
        {
            let window = Window { size, stride, padding, dilation };
            for len in 0..20 {
                let places =
                    (0..40).filter(|o| o * stride + (size - 1) * dilation < len + 2 * padding).count();
                assert_eq!(window.outputs(len).unwrap_or(0), places, "{window:?} over {len}");
            }
        }
        assert_eq!(Window { stride: 0, ..Window::new(2) }.outputs(5), None);
        assert_eq!(Window { dilation: 0, ..Window::new(2) }.outputs(5), None);
        assert_eq!(Window::new(0).outputs(5), None);
        assert_eq!(Window { padding: usize::MAX, ..Window::new(2) }.outputs(5), None);
    }

    #[test]
    fn the_outputs_inside_are_those_that_see_an_element() {
        for (size, stride, padding, dilation) in
            [(3, 1, 1, 1), (3, 2, 2, 1), (2, 3, 1, 2), (5, 1, 4, 1), (4, 2, 3, 3)]
        {
            let window = Window { size, stride, padding, dilation };
            for len in 1..15 {
                let Some(outputs) = window.outputs(len) else { continue };
                for tap in 0..size {
                    let seeing = (0..outputs).filter(|&output| window.at(output, tap, len).is_some());
                    let range = window.inside(tap, len, outputs);
                    assert_eq!(
                        range.collect::<Vec<_>>(),
                        seeing.collect::<Vec<_>>(),
                        "{window:?} over {len}"
                    );
                }
            }
        }
    }

    #[test]
    fn taps_inside_see_elements_however_large_the_window() {
        for (size, stride, padding, dilation) in
            [(3, 1, 1, 1), (3, 2, 2, 1), (2, 3, 1, 2), (5, 1, 4, 1), (4, 2, 3, 3), (2, 1, 5, 4)]
        {
            let window = Window { size, stride, padding, dilation };
            for len in 1..15 {
                for output in 0..window.outputs(len).unwrap_or(0) {
                    let seeing = (0..size).filter(|&tap| window.at(output, tap, len).is_some());
                    let range = window.taps_inside(output, len);
                    assert!(range.eq(seeing), "{window:?} over {len}");
                }
            }
        }
        let wide = Window { padding: 1 << 61, ..Window::new((1 << 61) + 4) };
        assert_eq!(wide.taps_inside(0, 4), 1 << 61..(1 << 61) + 4);
        assert_eq!(PoolAxis::Sliding(wide).seen(1, 4).0.collect::<Vec<_>>(), [0, 1, 2, 3]);
    }

    /// As [`Window::at`], in numbers of 128 bits.
    fn place(window: &Window, output: usize, tap: usize, len: usize) -> Option<usize> {
        let wide = |number: usize, step: usize| number as u128 * step as u128;
        let padded = wide(output, window.stride).checked_add(wide(tap, window.dilation))?;
        let padded = usize::try_from(padded).ok()?;
        padded.checked_sub(window.padding).filter(|&place| place < len)
    }

    #[test]
    fn windows_of_any_numbers_do_not_overflow() {
        const SIZES: [usize; 7] = [1, 2, 3, 1 << 62, usize::MAX / 2, usize::MAX - 1, usize::MAX];
        let with_zero = || SIZES.into_iter().chain([0]);
        for size in with_zero() {
            for stride in with_zero() {
                for padding in with_zero() {
                    for dilation in with_zero() {
                        let window = Window { size, stride, padding, dilation };
                        for len in with_zero() {
                            check(&window, len);
                        }
                    }
                }
            }
        }

        fn check(window: &Window, len: usize) {
            let outputs = window.outputs(len);
            for number in SIZES.into_iter().chain([0]) {
                for other in [0, 1, 2, usize::MAX] {
                    assert_eq!(window.at(number, other, len), place(window, number, other, len));
                    assert_eq!(window.at(other, number, len), place(window, other, number, len));
                }
                let taps = window.taps_inside(number, len);
                assert!(taps.start <= taps.end && taps.end <= window.size);
                let inside = window.inside(number, len, outputs.unwrap_or(0));
                assert!(inside.start <= inside.end && inside.end <= outputs.unwrap_or(0));
                if outputs.is_some_and(|outputs| number < outputs) && !taps.is_empty() {
                    // The taps at both ends see elements, and those beside them none.
                    for (tap, sees) in [(taps.start, true), (taps.end - 1, true), (taps.end, false)] {
                        let seen = tap < window.size && place(window, number, tap, len).is_some();
                        assert_eq!(seen, sees, "{window:?} over {len}, output {number}, tap {tap}");
                    }
                }
            }
        }
    }

    #[test]
    fn adaptive_windows_cover_the_axis() {
        for (len, outputs) in [(7, 3), (5, 5), (3, 5), (10, 1)] {
            let axis = PoolAxis::Adaptive { outputs };
            let mut seen: Vec<usize> = (0..outputs).flat_map(|output| axis.seen(output, len).0).collect();
            seen.dedup();
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen, (0..len).collect::<Vec<_>>());
        }
    }
}
