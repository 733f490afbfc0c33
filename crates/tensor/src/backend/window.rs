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

    /// The element that output `output` sees as its `tap`-th, if it is not in the padding.
    #[must_use]
    pub fn at(&self, output: usize, tap: usize, len: usize) -> Option<usize> {
        (output * self.stride + tap * self.dilation).checked_sub(self.padding).filter(|&place| place < len)
    }

    /// Which taps of an output see an element: they follow one another, as windows only leave at their ends.
    #[must_use]
    pub fn taps_inside(&self, output: usize, len: usize) -> Range<usize> {
        let start = output * self.stride;
        let first = self.padding.saturating_sub(start).div_ceil(self.dilation);
        // The least tap that would see an element at or past the end.
        let end = (len + self.padding).saturating_sub(start).div_ceil(self.dilation).min(self.size);
        first.min(end)..end
    }

    /// The outputs (below `outputs`) whose `tap`-th element is none of the padding.
    #[must_use]
    pub fn inside(&self, tap: usize, len: usize, outputs: usize) -> Range<usize> {
        let offset = tap * self.dilation;
        let first = self.padding.saturating_sub(offset).div_ceil(self.stride);
        // The least output that would see an element at or past the end.
        let end = (len + self.padding).saturating_sub(offset).div_ceil(self.stride);
        first.min(outputs)..end.min(outputs).max(first.min(outputs))
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
    /// How many outputs an axis of `len` elements has; `None` if there can be none.
    #[must_use]
    pub fn outputs(&self, len: usize) -> Option<usize> {
        match *self {
            Self::Sliding(window) => window.outputs(len),
            Self::Adaptive { outputs } => (len > 0 && outputs > 0).then_some(outputs),
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
    fn the_taps_inside_are_those_that_see_an_element_however_large_the_window() {
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
