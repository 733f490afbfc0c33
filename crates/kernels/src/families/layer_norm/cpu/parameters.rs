//! The affine parameters of a normalization.

use std::borrow::Cow;
use std::ops::Range;

use crate::cpu::dispatch::host;
use crate::cpu::number::Float;
use crate::cpu::operands::Source;
use crate::error::Result;
use crate::layout::Layout;
use crate::storage::View;

/// `N` parameters of each element. Parameters may repeat: for each row, as in layer normalization, and for neighboring
/// elements, as for the channels of group normalization.
pub(super) struct Parameters<'a, T: Clone, const N: usize> {
    /// The parameters without repetitions; empty for an absent parameter.
    values: [Cow<'a, [T]>; N],
    places: usize,
}

impl<'a, T: Float, const N: usize> Parameters<'a, T, N> {
    /// Reads parameters of the shape of the input, for rows of `width` elements. Parameters of unusual layouts are copied.
    pub(super) fn new(op: &'static str, views: [Option<View<'a>>; N], width: usize) -> Result<Self> {
        let mut repetitions = views.iter().flatten().map(|view| Repetition::of(view.layout(), width));
        let first = repetitions.next().unwrap_or(Some(Repetition { parameters: 0, places: 1 }));
        let alike = repetitions.all(|other| other == first);
        let mut values = [const { Cow::Borrowed(&[] as &[T]) }; N];
        for (values, view) in values.iter_mut().zip(views) {
            let Some(view) = view else { continue };
            *values = match first.filter(|_| alike) {
                Some(Repetition { parameters, .. }) => {
                    Cow::Borrowed(&host::<T>(op, &view)?[view.layout().offset()..][..parameters])
                }
                None => {
                    let source = Source::<T>::new(op, view)?;
                    let mut copied = vec![T::ZERO; source.len()];
                    source.load(0, &mut copied);
                    Cow::Owned(copied)
                }
            };
        }
        Ok(Self { values, places: first.filter(|_| alike).map_or(1, |repetition| repetition.places) })
    }

    /// The number of neighboring elements that share parameters.
    pub(super) const fn places(&self) -> usize {
        self.places
    }

    /// The parameters of a row of elements.
    pub(super) fn of_row(&self, row: &Range<usize>) -> [&[T]; N] {
        self.values.each_ref().map(|values| match values.len() {
            0 => &values[..],
            len => &values[row.start / self.places % len..][..row.len() / self.places],
        })
    }
}

/// Contiguous parameters, each for `places` neighboring elements, that repeat for the following elements.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Repetition {
    parameters: usize,
    places: usize,
}

impl Repetition {
    /// Returns `None` for other layouts.
    fn of(layout: &Layout, width: usize) -> Option<Self> {
        let is_repeated = |(size, stride): (usize, usize)| size == 1 || stride == 0;
        let mut axes: Vec<_> =
            layout.shape().dims().iter().copied().zip(layout.strides().iter().copied()).collect();
        let mut places = 1;
        while let Some((size, _)) = axes.pop_if(|axis| is_repeated(*axis) && places * axis.0 <= width) {
            places *= size;
        }
        let rows = axes.iter().take_while(|axis| is_repeated(**axis)).count();
        let mut parameters = 1;
        for &(size, stride) in axes[rows..].iter().rev() {
            if size != 1 && stride != parameters {
                return None;
            }
            parameters *= size;
        }
        Some(Self { parameters, places })
    }
}
