//! Normalization of rows of 16-bit floats: computes in f32 and rounds once. Operands may also be f32.

use std::ops::Range;

use super::row::{Gradient, Normalize, Scaled};
use super::{NormalizeRows, NormalizeRowsGrad, repeats_one_row, width};
use crate::cpu::dispatch::host;
use crate::cpu::fold::{Sum, fold_slice, sum_products};
use crate::cpu::halves::{Floats, Load, ROW, parts, pieces, sum};
use crate::cpu::parallel::{Workers, light_runs};
use crate::cpu::simd;
use crate::error::Result;
use crate::storage::View;

/// The number of rows in a chunk.
fn rows_of_chunk(width: usize) -> usize {
    light_runs(width.saturating_mul(2))
}

/// A parameter of each element, broadcast to the shape of the input.
struct Parameter<'a> {
    values: Floats<'a>,
    /// Whether all rows have the same parameters.
    repeats: bool,
}

impl<'a> Parameter<'a> {
    fn new(op: &'static str, view: Option<View<'a>>, width: usize) -> Result<Option<Self>> {
        let Some(view) = view else { return Ok(None) };
        Ok(Some(Self { values: Floats::new(op, view)?, repeats: repeats_one_row(view.layout(), width) }))
    }
}

/// The parameters of one row.
struct Loaded {
    values: [f32; ROW],
    is_loaded: bool,
}

impl Loaded {
    const EMPTY: Self = Self { values: [0.0; ROW], is_loaded: false };

    /// Loads the parameters of a row, unless they are those of the row before. Returns an empty slice without a parameter.
    fn row(&mut self, parameter: Option<&Parameter<'_>>, start: usize, width: usize) -> &[f32] {
        let Some(parameter) = parameter else { return &[] };
        let values = &mut self.values[..width];
        if !(self.is_loaded && parameter.repeats) {
            parameter.values.load(start, values);
            self.is_loaded = true;
        }
        values
    }
}

/// The source of an optional parameter.
fn source<'s>(parameter: Option<&'s Parameter<'_>>) -> Option<&'s dyn Load> {
    parameter.map(|parameter| &parameter.values as &dyn Load)
}

/// See [`NormalizeRows`].
pub(super) fn normalize(workers: &Workers, op: &'static str, of: &mut NormalizeRows<'_>) -> Result<()> {
    let NormalizeRows { centered, epsilon, input, weight, bias, ref mut out, ref mut statistics } = *of;
    let width = width(&input, statistics.layout());
    let x = Floats::new(op, input)?;
    let weight = Parameter::new(op, weight, width)?;
    let bias = Parameter::new(op, bias, width)?;
    let (rows, epsilon) = (rows_of_chunk(width), epsilon as f32);
    let chunks = [rows.saturating_mul(width), 2 * rows];
    parts(workers, op, [out, statistics], chunks, &|chunk, [mut out, mut statistics]| {
        let (mut weights, mut biases) = (Loaded::EMPTY, Loaded::EMPTY);
        let (mut row, mut normal) = ([0.0; ROW], [0.0; ROW]);
        for number in 0..out.len() / width {
            let start = (chunk * rows + number) * width;
            if width > ROW {
                let of_row = long_statistics(&x, start, width, centered, epsilon);
                let sources = [Some(&x as &dyn Load), source(weight.as_ref()), source(bias.as_ref())];
                pieces(sources, start..start + width, |range, [x, w, b]| {
                    let out_here = &mut normal[..x.len()];
                    simd::run(Scaled { x, affine: [w, b], places: 1, out: out_here, statistics: of_row });
                    out.store(number * width + range.start, out_here);
                });
                statistics.store(2 * number, &of_row);
                continue;
            }
            let affine =
                [weights.row(weight.as_ref(), start, width), biases.row(bias.as_ref(), start, width)];
            let (row, normal) = (&mut row[..width], &mut normal[..width]);
            x.load(start, row);
            let of_row = simd::run(Normalize { x: row, affine, places: 1, out: normal, centered, epsilon });
            out.store(number * width, normal);
            statistics.store(2 * number, &of_row);
        }
    })
}

/// The statistics of a row that does not fit the stack.
fn long_statistics(x: &Floats<'_>, start: usize, width: usize, centered: bool, epsilon: f32) -> [f32; 2] {
    let (count, row) = (width as f32, start..start + width);
    let first = x.get(start);
    let mean = if centered {
        first + sum([Some(x)], row.clone(), &|[x]| sum_products(x, x, |x, _| x - first)) / count
    } else {
        0.0
    };
    let squares = sum([Some(x)], row, &|[x]| sum_products(x, x, |x, _| (x - mean) * (x - mean)));
    [mean, 1.0 / (squares / count + epsilon).sqrt()]
}

/// See [`NormalizeRowsGrad`].
pub(super) fn gradient(workers: &Workers, op: &'static str, of: &mut NormalizeRowsGrad<'_>) -> Result<()> {
    let NormalizeRowsGrad { ref of, grad, ref mut out } = *of;
    let width = width(&of.input, of.statistics.layout());
    let (x, grad) = (Floats::new(op, of.input)?, Floats::new(op, grad)?);
    let weight = Parameter::new(op, of.weight, width)?;
    let statistics = &host::<f32>(op, &of.statistics)?[of.statistics.layout().offset()..];
    let (rows, centered) = (rows_of_chunk(width), of.centered);
    parts(workers, op, [out], [rows.saturating_mul(width)], &|chunk, [mut out]| {
        let mut weights = Loaded::EMPTY;
        let mut loaded = [[0.0; ROW]; 3];
        for number in 0..out.len() / width {
            let row = chunk * rows + number;
            let (start, statistics) = (row * width, [statistics[2 * row], statistics[2 * row + 1]]);
            if width > ROW {
                let sources = [Some(&x as &dyn Load), Some(&grad), source(weight.as_ref())];
                long_gradient(sources, start..start + width, (statistics, centered), &mut |place, values| {
                    out.store(number * width + place, values);
                });
                continue;
            }
            let weight = weights.row(weight.as_ref(), start, width);
            let [x_here, g, h] = loaded.each_mut().map(|row| &mut row[..width]);
            x.load(start, x_here);
            grad.load(start, g);
            let (x, grad, out_here) = (&*x_here, &*g, &mut *h);
            simd::run(Gradient { x, grad, weight, places: 1, out: out_here, statistics, centered });
            out.store(number * width, h);
        }
    })
}

/// The gradient of a row that does not fit the stack, from x, the gradient of the output, and the weight. Calls `store` with
/// its pieces and their places in the row.
fn long_gradient(
    sources: [Option<&dyn Load>; 3],
    row: Range<usize>,
    ([mean, scale], centered): ([f32; 2], bool),
    store: &mut dyn FnMut(usize, &[f32]),
) {
    let count = row.len() as f32;
    let weigh = |g: &mut [f32], w: &[f32]| {
        if !w.is_empty() {
            simd::zip(g, w, |g, w| *g *= w);
        }
    };
    let along = sum(sources, row.clone(), &|[x, g, w]| {
        weigh(g, w);
        sum_products(x, g, |x, h| (x - mean) * scale * h)
    }) / count;
    let shift = if centered {
        let of_row = sum([sources[1], sources[2]], row.clone(), &|[g, w]| {
            weigh(g, w);
            fold_slice::<f32, Sum>(g)
        });
        of_row / count
    } else {
        0.0
    };
    pieces(sources, row, |range, [x, g, w]| {
        weigh(g, w);
        simd::zip(g, x, |g, x| *g = scale * (*g - shift - (x - mean) * scale * along));
        store(range.start, g);
    });
}
