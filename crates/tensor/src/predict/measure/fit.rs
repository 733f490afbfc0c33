//! Rates from the measured times of kernels.
//!
//! The time of a product is a sum: multiply-adds, rearranged elements and functions, each with a rate. Least squares of the
//! relative errors find the rates. The rate of multiply-adds then follows from each product, by its size.

use crate::backend::DeviceSpeed;
use crate::backend::cost::{Class, Work};
use crate::backend::cpu::TILE;
use crate::backend::speed::{ClassRates, Curve};
use crate::backend::timed::Sample;

/// The multiply-adds up to which one thread multiplies alone.
const ALONE: u64 = 8 << 20;

/// The fewest multiply-adds of products whose time tells how long it takes to rearrange the factors.
const LARGE: u64 = 1 << 18;

/// The rate of work that takes no time.
const FREE: f64 = 1e18;

/// Returns the speed of a machine from the samples of its kernels.
pub(super) fn speed(samples: &[Sample], launch: f64, source: &str) -> DeviceSpeed {
    let mut speed = DeviceSpeed {
        source: format!("measured on {source}"),
        scale: 1.0,
        launch,
        start: None,
        tile: TILE,
        memory: Curve::default(),
        link: Curve::default(),
        classes: vec![ClassRates::default(); Class::COUNT],
    };
    let uploads = samples.iter().filter(|sample| sample.work.is_none());
    speed.link = by_size(uploads.map(|sample| (sample.bytes as f64, sample.bytes as f64 / sample.seconds)));
    let kernels: Vec<(Work, f64)> =
        samples.iter().filter_map(|sample| Some((sample.work?, sample.seconds))).collect();
    let traffic = kernels.iter().filter(|(work, _)| work.class == Class::Arithmetic);
    speed.memory = by_size(traffic.map(|(work, seconds)| {
        let bytes = work.bytes() as f64;
        (bytes, bytes / seconds)
    }));
    for (index, rates) in speed.classes.iter_mut().enumerate() {
        let class: Vec<_> =
            kernels.iter().filter(|(work, _)| work.class as usize == index).copied().collect();
        *rates = class_rates(&class);
    }
    speed
}

/// Returns the rates of the kernels of one class.
fn class_rates(kernels: &[(Work, f64)]) -> ClassRates {
    let mut rates = ClassRates::default();
    if kernels.iter().all(|(work, _)| work.multiply_adds == 0) {
        // Memory traffic alone limits arithmetic.
        let counted = kernels.iter().filter(|(work, _)| work.class != Class::Arithmetic);
        rates.elements = by_size(counted.map(|(work, seconds)| {
            let elements = work.elements as f64;
            (elements, elements / seconds)
        }));
        return rates;
    }
    let (mut elements, mut products) = (Vec::new(), [Vec::new(), Vec::new()]);
    for half in [false, true] {
        let mut moves = Vec::new();
        for is_large in [false, true] {
            let group: Vec<_> = kernels
                .iter()
                .filter(|(work, _)| work.is_half == half && (work.multiply_adds > ALONE) == is_large)
                // The activation of a product is of another class.
                .filter(|(work, _)| work.class != Class::Product || work.elements == 0)
                .collect();
            let fitted: Vec<_> = group.iter().filter(|(work, _)| work.multiply_adds > LARGE).collect();
            let terms = |work: &Work| {
                [work.multiply_adds as f64 * waste(work), work.moved as f64, work.elements as f64]
            };
            let rows: Vec<_> = fitted.iter().map(|(work, seconds)| (terms(work), *seconds)).collect();
            let [_, per_move, per_element] = least_squares(&rows);
            if !fitted.is_empty() {
                let size = mean(fitted.iter().map(|(work, _)| work.multiply_adds as f64));
                let rate = |seconds: f64| if seconds > 0.0 { 1.0 / seconds } else { FREE };
                moves.push([size, rate(per_move)]);
                let counts = fitted.iter().map(|(work, _)| work.elements as f64).filter(|&count| count > 0.0);
                elements.push([mean(counts), rate(per_element)]);
            }
            products[usize::from(half)].extend(group.iter().map(|(work, seconds)| {
                let [multiply_adds, moved, applied] = terms(work);
                let left = seconds - moved * per_move - applied * per_element;
                (work.multiply_adds as f64, multiply_adds / left.max(seconds * 0.2))
            }));
        }
        rates.moves[usize::from(half)] = Curve::new(moves);
    }
    rates.products = products.map(by_size);
    rates.elements = Curve::new(elements);
    rates
}

/// The computed elements of tiles, divided by the elements of the product.
fn waste(work: &Work) -> f64 {
    crate::backend::speed::tile_waste(work.sides, TILE)
}

/// Returns the geometric mean; NaN without values.
fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value.ln(), count + 1.0));
    f64::exp(sum / count)
}

/// Returns the curve through the means of `(size, rate)` pairs whose sizes differ by less than a factor of four.
fn by_size(pairs: impl IntoIterator<Item = (f64, f64)>) -> Curve {
    let mut pairs: Vec<_> = pairs.into_iter().filter(|&(size, rate)| size > 0.0 && rate > 0.0).collect();
    pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let groups = pairs.chunk_by(|a, b| (a.0.log2() / 2.0).floor() == (b.0.log2() / 2.0).floor());
    Curve::new(
        groups.map(|group| [mean(group.iter().map(|pair| pair.0)), mean(group.iter().map(|pair| pair.1))]),
    )
}

/// Returns factors, none of them negative, with `Σ factor · term ≈ seconds` for all rows: those with the least sum of
/// squared relative errors.
fn least_squares(rows: &[([f64; 3], f64)]) -> [f64; 3] {
    let mut best = ([0.0; 3], f64::INFINITY);
    // Each subset of the terms, since a term with a negative factor must be left out.
    for subset in 1..8_usize {
        let used: Vec<usize> = (0..3).filter(|term| subset >> term & 1 == 1).collect();
        let Some(solution) = solve(rows, &used) else { continue };
        if solution.iter().any(|&factor| factor < 0.0) {
            continue;
        }
        let error: f64 = rows
            .iter()
            .map(|(terms, seconds)| {
                let sum: f64 = terms.iter().zip(&solution).map(|(term, factor)| term * factor).sum();
                (sum / seconds - 1.0).powi(2)
            })
            .sum();
        if error < best.1 {
            best = (solution, error);
        }
    }
    best.0
}

/// Solves the normal equations of the used terms by Gauss's elimination; `None` if they do not determine the factors.
fn solve(rows: &[([f64; 3], f64)], used: &[usize]) -> Option<[f64; 3]> {
    let count = used.len();
    let mut matrix = [[0.0; 4]; 3];
    // Terms differ by orders of magnitude.
    let scales: Vec<f64> = used
        .iter()
        .map(|&term| rows.iter().map(|(terms, seconds)| terms[term] / seconds).fold(0.0, f64::max))
        .collect();
    if scales.iter().any(|&scale| scale <= 0.0) {
        return None;
    }
    for (terms, seconds) in rows {
        let scaled: Vec<f64> =
            used.iter().zip(&scales).map(|(&term, scale)| terms[term] / seconds / scale).collect();
        for (row, &left) in matrix.iter_mut().zip(&scaled) {
            for (value, &right) in row.iter_mut().zip(&scaled) {
                *value += left * right;
            }
            row[3] += left;
        }
    }
    for pivot in 0..count {
        let largest =
            (pivot..count).max_by(|&a, &b| matrix[a][pivot].abs().total_cmp(&matrix[b][pivot].abs()))?;
        matrix.swap(pivot, largest);
        if matrix[pivot][pivot].abs() < 1e-9 * rows.len() as f64 {
            return None;
        }
        let lead = matrix[pivot];
        for (number, row) in matrix.iter_mut().enumerate().take(count) {
            if number != pivot {
                let factor = row[pivot] / lead[pivot];
                row.iter_mut().zip(lead).for_each(|(value, lead)| *value -= factor * lead);
            }
        }
    }
    let mut solution = [0.0; 3];
    for (row, (&term, scale)) in used.iter().zip(&scales).enumerate() {
        solution[term] = matrix[row][3] / matrix[row][row] / scale;
    }
    Some(solution)
}
