//! Sliding windows of convolutions and pools.

use std::ops::Range;

/// A window that slides along one axis. Convolutions read the padding as 0; pools skip it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// The number of elements in the window (the kernel size).
    pub size: usize,
    /// The distance between the windows of neighboring outputs.
    pub stride: usize,
    /// The number of padding places before the first element, and after the last.
    pub padding: usize,
    /// The distance between neighboring elements of the window.
    pub dilation: usize,
}

impl Window {
    /// Creates a window with stride 1, dilation 1 and no padding.
    #[must_use]
    pub const fn new(size: usize) -> Self {
        Self { size, stride: 1, padding: 0, dilation: 1 }
    }

    /// The number of outputs along an axis of `len` elements. `None` if the window does not fit, or if its size, stride or
    /// dilation is 0.
    #[must_use]
    pub fn outputs(&self, len: usize) -> Option<usize> {
        let reach = self.size.checked_sub(1)?.checked_mul(self.dilation)?.checked_add(1)?;
        let padded = len.checked_add(self.padding.checked_mul(2)?)?;
        if self.dilation == 0 {
            return None;
        }
        Some(padded.checked_sub(reach)?.checked_div(self.stride)? + 1)
    }

    /// The element that tap number `tap` of output number `output` reads. `None` in the padding, past the end, and if the
    /// position overflows.
    #[must_use]
    pub fn at(&self, output: usize, tap: usize, len: usize) -> Option<usize> {
        let start = output.checked_mul(self.stride)?;
        let padded = start.checked_add(tap.checked_mul(self.dilation)?)?;
        padded.checked_sub(self.padding).filter(|&place| place < len)
    }

    /// The range of taps of an output that read an element instead of padding.
    #[must_use]
    pub fn taps_inside(&self, output: usize, len: usize) -> Range<usize> {
        self.steps_inside(output.saturating_mul(self.stride), self.dilation, len, self.size)
    }

    /// The range of outputs (below `outputs`) for which this tap reads an element instead of padding.
    #[must_use]
    pub fn inside(&self, tap: usize, len: usize, outputs: usize) -> Range<usize> {
        self.steps_inside(tap.saturating_mul(self.dilation), self.stride, len, outputs)
    }

    /// The range of `count` positions that are elements instead of padding. Position i is `start + i·step`, counted from the
    /// start of the padding. Saturated sums lie past the end of every axis. A window with a step of 0 has no outputs.
    fn steps_inside(&self, start: usize, step: usize, len: usize, count: usize) -> Range<usize> {
        let step = step.max(1);
        let first = self.padding.saturating_sub(start).div_ceil(step).min(count);
        // The first position at or past the end of the axis.
        let end = len.saturating_add(self.padding).saturating_sub(start).div_ceil(step).min(count);
        first..end
    }
}

/// The windows and groups of a two-dimensional convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Convolution {
    /// The windows along height and width.
    pub windows: [Window; 2],
    /// The number of groups. Each group of output channels reads one group of input channels.
    pub groups: usize,
}

/// The reduction of a pool's window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PoolReduction {
    /// The largest element; NaN if any element is NaN.
    Max,
    /// The sum of the elements divided by the number of places in the window.
    Mean,
}

/// The sliding window of a pool, without dilation and with padding of at most half its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PoolWindow {
    /// The window.
    pub window: Window,
    /// Whether a last window may reach past the padding at the end. It starts at an element or in the padding at the start.
    pub ceil_mode: bool,
    /// Whether a mean counts the padding as places. Places past the padding never count.
    pub count_include_pad: bool,
}

impl PoolWindow {
    /// Creates a window that fits into the padded axis; means count the padding.
    #[must_use]
    pub const fn new(window: Window) -> Self {
        Self { window, ceil_mode: false, count_include_pad: true }
    }

    /// The number of outputs along an axis of `len` elements; `None` without outputs.
    #[must_use]
    pub fn outputs(&self, len: usize) -> Option<usize> {
        let Window { size, stride, padding, .. } = self.window;
        if !self.ceil_mode || stride == 0 {
            return self.window.outputs(len);
        }
        // As many steps as lead to a window that starts in front of the padding at the end.
        let padded = len.checked_add(padding.checked_mul(2)?)?;
        let reachable = padded.checked_add(stride - 1)?.checked_sub(size.max(1))? / stride;
        let last = reachable.min(len.checked_add(padding)?.checked_sub(1)? / stride);
        (size > 0).then_some(last + 1)
    }

    /// Whether means divide by the size of the window everywhere.
    #[must_use]
    pub const fn counts_all_places(&self) -> bool {
        !self.ceil_mode && (self.count_include_pad || self.window.padding == 0)
    }

    /// The number of places in the window of an output by which a mean divides.
    fn places(&self, output: usize, len: usize) -> usize {
        let Window { size, stride, padding, .. } = self.window;
        if !self.count_include_pad {
            return self.window.taps_inside(output, len).len();
        }
        let padded = len.saturating_add(padding.saturating_mul(2));
        size.min(padded.saturating_sub(output.saturating_mul(stride)))
    }
}

/// The windows of a pool along one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PoolAxis {
    /// A sliding window.
    Sliding(PoolWindow),
    /// An adaptive pool with a fixed number of outputs. Output i of m reads the elements ⌊i·n/m⌋ to ⌈(i+1)·n/m⌉ - 1 of n.
    Adaptive {
        /// The number of outputs.
        outputs: usize,
    },
}

impl PoolAxis {
    /// The number of outputs along an axis of `len` elements. `None` without outputs, and if kernels could overflow.
    #[must_use]
    pub fn outputs(&self, len: usize) -> Option<usize> {
        match *self {
            Self::Sliding(window) => window.outputs(len),
            // Kernels compute (outputs + 1)·(len + 1) to find a window.
            Self::Adaptive { outputs } => {
                len.checked_add(1)?.checked_mul(outputs.checked_add(1)?)?;
                (len > 0 && outputs > 0).then_some(outputs)
            }
        }
    }

    /// The elements in the window of an output, and the divisor of a mean.
    pub(crate) fn window_elements(
        &self,
        output: usize,
        len: usize,
    ) -> (impl Iterator<Item = usize> + Clone, usize) {
        let (first, step, taps, count) = match *self {
            Self::Sliding(pool) => {
                let taps = pool.window.taps_inside(output, len);
                let first = pool.window.at(output, taps.start, len).unwrap_or(0);
                (first, pool.window.dilation, taps.len(), pool.places(output, len))
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
    fn there_is_an_output_for_each_place_where_the_window_fits() {
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
    fn outputs_inside_read_an_element() {
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
    fn taps_inside_read_elements_for_windows_of_any_size() {
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
        assert_eq!(
            PoolAxis::Sliding(PoolWindow::new(wide)).window_elements(1, 4).0.collect::<Vec<_>>(),
            [0, 1, 2, 3]
        );
    }

    /// [`Window::at`] in 128-bit arithmetic.
    fn place(window: &Window, output: usize, tap: usize, len: usize) -> Option<usize> {
        let wide = |number: usize, step: usize| number as u128 * step as u128;
        let padded = wide(output, window.stride).checked_add(wide(tap, window.dilation))?;
        let padded = usize::try_from(padded).ok()?;
        padded.checked_sub(window.padding).filter(|&place| place < len)
    }

    #[test]
    fn windows_with_arbitrary_sizes_do_not_overflow() {
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
                    // The first and the last tap read elements; the tap after the last does not.
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
            let mut seen: Vec<usize> =
                (0..outputs).flat_map(|output| axis.window_elements(output, len).0).collect();
            seen.dedup();
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen, (0..len).collect::<Vec<_>>());
        }
    }

    #[test]
    fn windows_of_pools_in_ceil_mode_start_before_the_padding_at_the_end() {
        for (size, stride, padding) in [(2, 2, 0), (3, 2, 1), (2, 3, 1), (3, 5, 1), (4, 1, 2), (1, 3, 0)] {
            let window = Window { size, stride, padding, dilation: 1 };
            let ceil = PoolWindow { ceil_mode: true, ..PoolWindow::new(window) };
            for len in 1..15 {
                // PyTorch's formula.
                let steps = (len + 2 * padding + stride - 1).checked_sub(size).map(|rest| rest / stride);
                let expected =
                    steps.map(|steps| if steps * stride >= len + padding { steps } else { steps + 1 });
                assert_eq!(ceil.outputs(len), expected, "{ceil:?} over {len}");
                for output in 0..expected.unwrap_or(0) {
                    let start = output * stride;
                    let end = (start + size).min(len + 2 * padding);
                    let axis = PoolAxis::Sliding(ceil);
                    let (elements, places) = axis.window_elements(output, len);
                    assert_eq!(places, end - start, "{ceil:?} over {len}");
                    let inside = PoolAxis::Sliding(PoolWindow { count_include_pad: false, ..ceil });
                    let count = elements.count();
                    assert_eq!(inside.window_elements(output, len).1, count);
                    assert!(count > 0, "{ceil:?} over {len}");
                }
            }
        }
        let overflowing = Window { padding: usize::MAX / 2, stride: usize::MAX, ..Window::new(usize::MAX) };
        let ceil = PoolWindow { ceil_mode: true, ..PoolWindow::new(overflowing) };
        assert_eq!(ceil.outputs(usize::MAX), None);
        assert_eq!(PoolWindow { window: Window { stride: 0, ..Window::new(2) }, ..ceil }.outputs(5), None);
    }
}
