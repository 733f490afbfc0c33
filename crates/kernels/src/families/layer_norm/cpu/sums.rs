//! The gradients of the weight and the bias of a normalization: Σ x̂ g and Σ g over the rows, in one pass.
//!
//! Elements have the shape `[rows, parameters, places]`. With one place per parameter, the sums of neighboring
//! parameters are computed together; if there are few parameters, slabs of rows are summed to rows of the workspace
//! first. With several places, each parameter is summed alone. So the order of additions depends only on the sizes.

use std::ops::Range;

use super::{Statistics, width};
use crate::cpu::dispatch::{float, host, host_mut, scratch};
use crate::cpu::fold::{Cascade, RADIX, Sum, fold_slice, loops, sum_products};
use crate::cpu::halves::Floats;
use crate::cpu::number::{Float, Number};
use crate::cpu::operands::Source;
use crate::cpu::parallel::{Workers, light_runs};
use crate::cpu::simd::{self, Loop};
use crate::error::Result;
use crate::families;
use crate::families::reduce::cpu::Split;
use crate::shape::{DType, Shape};
use crate::storage::{View, ViewMut};

/// The number of neighboring parameters that are summed together.
const TILE: usize = 64;

/// The number of places that are loaded at a time.
const BLOCK: usize = 512;

/// Splits the rows into slabs.
fn split_rows(rows: usize, parameters: usize) -> Split {
    // The sizes are those of an existing tensor, so the shape is valid.
    let shape = Shape::new(&[rows, parameters]).unwrap_or(Shape::SCALAR);
    Split::new(&shape, &[true, false])
}

/// See [`NormalizeRowsSumsWorkspace`](crate::families::NormalizeRowsSumsWorkspace).
pub(crate) fn workspace([rows, parameters, places]: [usize; 3], sums: usize, dtype: DType) -> usize {
    if places != 1 {
        return 0;
    }
    split_rows(rows, parameters).workspace_elements().saturating_mul(sums * dtype.size())
}

/// See [`NormalizeRowsSums`](crate::families::NormalizeRowsSums).
#[inline(never)]
pub(crate) fn layer_norm_sums(
    workers: &Workers,
    op: &'static str,
    of: &families::Normalized<'_>,
    (grad, places): (View<'_>, usize),
    workspace: &mut Option<ViewMut<'_>>,
    (weight, bias): (&mut ViewMut<'_>, &mut Option<ViewMut<'_>>),
) -> Result<()> {
    let elements = of.input.layout().shape().elements();
    float!(op, weight.dtype(), T => {
        let weight = host_mut::<T>(op, weight)?;
        let bias = bias.as_mut().map_or(Ok(Default::default()), |bias| host_mut::<T>(op, bias))?;
        if elements == 0 {
            weight.fill(T::ZERO);
            bias.fill(T::ZERO);
            return Ok(());
        }
        let terms = Terms {
            x: Elements::<T>::new(op, of.input)?,
            grad: Elements::<T>::new(op, grad)?,
            statistics: &host::<T>(op, &of.statistics)?[of.statistics.layout().offset()..],
            width: width(&of.input, of.statistics.layout()),
            parameters: weight.len(),
            places,
        };
        let rows = elements / (weight.len() * places);
        if places > 1 {
            let chunk = light_runs(rows.saturating_mul(places));
            workers.zipped([weight, bias], [chunk; 2], &|index, sums| terms.sum_places(rows, index * chunk, sums));
            return Ok(());
        }
        let (split, parameters) = (split_rows(rows, weight.len()), weight.len());
        let of_slab = parameters + bias.len();
        let partials = scratch::<T>(op, workspace, split.workspace_elements() / parameters * of_slab)?;
        if partials.is_empty() {
            let chunk = light_runs(rows).next_multiple_of(TILE);
            workers.zipped([weight, bias], [chunk; 2], &|index, sums| {
                terms.sum_columns(0..rows, index * chunk, sums);
            });
            return Ok(());
        }
        workers.chunks(partials, of_slab, &|first, part| {
            let start = first / of_slab * split.slab;
            terms.sum_columns(start..rows.min(start + split.slab), 0, part.split_at_mut(parameters).into());
        });
        weight.fill(T::ZERO);
        bias.fill(T::ZERO);
        for slab in partials.chunks(of_slab) {
            let (of_weight, of_bias) = slab.split_at(parameters);
            (loops::<T, Sum>().fold_into)(weight, of_weight);
            (loops::<T, Sum>().fold_into)(bias, of_bias);
        }
        Ok(())
    })
}

/// The elements of a view: those of the type of the sums, or 16-bit floats, whose sums are f32.
enum Elements<'a, T> {
    Same(Source<'a, T>),
    Halves(Floats<'a>),
}

impl<'a, T: Float> Elements<'a, T> {
    fn new(op: &'static str, view: View<'a>) -> Result<Self> {
        if view.dtype().is_half() {
            Floats::new(op, view).map(Self::Halves)
        } else {
            Source::new(op, view).map(Self::Same)
        }
    }

    /// See [`Source::slice`].
    fn slice(&self, range: Range<usize>) -> Option<&'a [T]> {
        match self {
            Self::Same(source) => source.slice(range),
            Self::Halves(_) => None,
        }
    }

    /// See [`Floats::load_rows`].
    fn load_rows(&self, [start, step]: [usize; 2], [rows, len]: [usize; 2], out: &mut [T], out_step: usize) {
        match self {
            Self::Same(source) => {
                for row in 0..rows {
                    source.load(start + row * step, &mut out[row * out_step..][..len]);
                }
            }
            Self::Halves(floats) => {
                floats.load_rows([start, step], [rows, len], bytemuck::cast_slice_mut(out), out_step);
            }
        }
    }

    /// The elements as a slice, copied to `buffer` if necessary.
    fn part<'b>(&'b self, range: Range<usize>, buffer: &'b mut [T]) -> &'b [T] {
        let len = range.len();
        self.slice(range.clone()).unwrap_or_else(|| {
            self.load_rows([range.start, 0], [1, len], buffer, len);
            &buffer[..len]
        })
    }
}

/// The terms of the sums.
struct Terms<'a, T> {
    x: Elements<'a, T>,
    grad: Elements<'a, T>,
    statistics: &'a [T],
    /// The number of elements that share statistics.
    width: usize,
    parameters: usize,
    places: usize,
}

impl<T: Float> Terms<'_, T> {
    /// The statistics of the row that contains an element.
    fn statistics(&self, element: usize) -> Statistics<T> {
        let row = element / self.width;
        [self.statistics[2 * row], self.statistics[2 * row + 1]]
    }

    /// Sums some rows, for parameters with one place each, starting at parameter `first`. The bias may be empty.
    fn sum_columns(&self, rows: Range<usize>, mut first: usize, [mut weight, mut bias]: [&mut [T]; 2]) {
        let mut loaded = [[T::ZERO; RADIX * TILE]; 2];
        while !weight.is_empty() {
            // A tile does not cross rows of the normalization, so that it has one pair of statistics per row.
            let len = TILE.min(weight.len()).min(self.width - first % self.width);
            let mut sums =
                [Cascade::<T, TILE>::new(loops::<_, Sum>(), len), Cascade::new(loops::<_, Sum>(), len)];
            for start in rows.clone().step_by(RADIX) {
                let count = RADIX.min(rows.end - start);
                let number = |row: usize| (start + row) * self.parameters + first;
                let all = number(0)..number(count - 1) + len;
                let (x, g, step) = match (self.x.slice(all.clone()), self.grad.slice(all)) {
                    (Some(x), Some(g)) => (x, g, self.parameters),
                    _ => {
                        let ([x, g], rows) = (&mut loaded, [number(0), self.parameters]);
                        self.x.load_rows(rows, [count, len], x, TILE);
                        self.grad.load_rows(rows, [count, len], g, TILE);
                        (&x[..], &g[..], TILE)
                    }
                };
                let mut statistics = [[T::ZERO; 2]; RADIX];
                (0..count).for_each(|row| statistics[row] = self.statistics(number(row)));
                let of_rows = Rows { x, g, step, len, statistics: &statistics[..count] };
                let [of_weight, of_bias] = simd::run(of_rows);
                sums[0].push_folded(&of_weight);
                sums[1].push_folded(&of_bias);
            }
            let [of_weight, of_bias] = &mut sums;
            if let Some(now) = weight.split_off_mut(..len) {
                now.copy_from_slice(of_weight.finish());
            }
            if let Some(now) = bias.split_off_mut(..len) {
                now.copy_from_slice(of_bias.finish());
            }
            first += len;
        }
    }

    /// Sums all rows, for parameters with several places each, starting at parameter `first`. The bias may be empty.
    fn sum_places(&self, rows: usize, first: usize, [weight, bias]: [&mut [T]; 2]) {
        let mut loaded = [[T::ZERO; BLOCK]; 2];
        for (parameter, weight) in weight.iter_mut().enumerate() {
            let mut sums = [Cascade::<T, 1>::new(loops::<_, Sum>(), 1), Cascade::new(loops::<_, Sum>(), 1)];
            for row in 0..rows {
                let start = (row * self.parameters + first + parameter) * self.places;
                let [mean, scale] = self.statistics(start);
                for from in (start..start + self.places).step_by(BLOCK) {
                    let range = from..(from + BLOCK).min(start + self.places);
                    let [x, g] = &mut loaded;
                    let (x, g) = (self.x.part(range.clone(), x), self.grad.part(range, g));
                    sums[0].push_folded(&[sum_products(x, g, |x, g| (x - mean) * scale * g)]);
                    if !bias.is_empty() {
                        sums[1].push_folded(&[fold_slice::<T, Sum>(g)]);
                    }
                }
            }
            let [of_weight, of_bias] = &mut sums;
            weight.clone_from(&of_weight.finish()[0]);
            if let Some(bias) = bias.get_mut(parameter) {
                bias.clone_from(&of_bias.finish()[0]);
            }
        }
    }
}

/// Rows of neighboring parameters, with stride `step`.
struct Rows<'a, T> {
    x: &'a [T],
    g: &'a [T],
    step: usize,
    len: usize,
    statistics: &'a [Statistics<T>],
}

/// Sums x̂ g and g over the rows, for each parameter.
impl<T: Float> Loop for Rows<'_, T> {
    type Element = T;
    type Output = [[T; TILE]; 2];

    #[inline(always)]
    fn run(self) -> [[T; TILE]; 2] {
        let mut sums = [[T::ZERO; TILE]; 2];
        let [weight, bias] = &mut sums;
        for (row, &[mean, scale]) in self.statistics.iter().enumerate() {
            let (x, g) = (&self.x[row * self.step..][..self.len], &self.g[row * self.step..][..self.len]);
            let sums = weight[..self.len].iter_mut().zip(&mut bias[..self.len]);
            for ((weight, bias), (&x, &g)) in sums.zip(x.iter().zip(g)) {
                *weight += (x - mean) * scale * g;
                *bias += g;
            }
        }
        sums
    }
}
