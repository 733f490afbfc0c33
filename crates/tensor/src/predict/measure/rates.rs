//! Rates from the measured times of kernels.
//!
//! The time of a product is a sum of four terms, each with a rate: multiply-adds, rearranged elements, bytes and functions.
//! Least squares of the relative errors find the rates. The rate of multiply-adds then follows from each product, by its
//! size.

use highwater_kernels::backend::cpu::TILE;
use highwater_kernels::backend::timed::KernelTime;
use highwater_kernels::cost::{Class, Work};

use crate::backend::DeviceSpeed;
use crate::speed::{Curve, Rates};

/// The multiply-adds up to which one thread multiplies alone.
const ALONE: u64 = 8 << 20;

/// The fewest multiply-adds of products whose time tells how long it takes to rearrange the factors.
const LARGE: u64 = 1 << 18;

/// The rate of work that takes no time.
const FREE: f64 = 1e18;

/// Returns the speed of a machine from the samples of its kernels.
pub(super) fn speed(samples: &[KernelTime], launch: f64, source: &str) -> DeviceSpeed {
    let mut speed = DeviceSpeed {
        source: format!("measured on {source}"),
        scale: 1.0,
        launch,
        start: None,
        tile: TILE,
        memory: Curve::default(),
        link: Curve::default(),
        classes: vec![<[Rates; 2]>::default(); Class::COUNT],
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
fn class_rates(kernels: &[(Work, f64)]) -> [Rates; 2] {
    if kernels.iter().all(|(work, _)| work.multiply_adds == 0) {
        // Memory traffic alone limits arithmetic.
        let counted = kernels.iter().filter(|(work, _)| work.class != Class::Arithmetic);
        let elements = by_size(counted.map(|(work, seconds)| {
            let elements = work.elements as f64;
            (elements, elements / seconds)
        }));
        return [Rates { elements, ..Rates::default() }, Rates::default()];
    }
    [false, true].map(|half| {
        // The activation of a product is of another class.
        let of_type = kernels
            .iter()
            .filter(|(work, _)| work.is_half == half && (work.class != Class::Product || work.elements == 0));
        product_rates(&of_type.copied().collect::<Vec<_>>())
    })
}

/// Returns the rates of products in one precision.
fn product_rates(kernels: &[(Work, f64)]) -> Rates {
    let (mut products, mut others) = (Vec::new(), [Vec::new(), Vec::new(), Vec::new()]);
    let (alone, shared): (Vec<_>, Vec<_>) =
        kernels.iter().copied().partition(|(work, _)| is_split(work.class) && work.multiply_adds <= ALONE);
    for group in [alone, shared] {
        let large = group.iter().filter(|(work, _)| work.multiply_adds > LARGE);
        let rows: Vec<_> = large.clone().map(|(work, seconds)| (work.amounts(TILE), *seconds)).collect();
        let [_, factors @ ..] = least_squares(&rows);
        let size = mean(large.map(|(work, _)| work.multiply_adds as f64));
        for (curve, factor) in others.iter_mut().zip(factors) {
            curve.push([size, if factor > 0.0 { 1.0 / factor } else { FREE }]);
        }
        products.extend(group.iter().map(|(work, seconds)| {
            let [multiply_adds, amounts @ ..] = work.amounts(TILE);
            let used: f64 = amounts.iter().zip(factors).map(|(amount, factor)| amount * factor).sum();
            (work.multiply_adds as f64, multiply_adds / (seconds - used).max(seconds * 0.2))
        }));
    }
    let [moves, traffic, elements] = others.map(Curve::new);
    Rates { products: by_size(products), moves, traffic, elements }
}

/// Whether several threads share kernels of this class only above [`ALONE`].
const fn is_split(class: Class) -> bool {
    matches!(
        class,
        Class::Product
            | Class::Convolution
            | Class::ConvolutionWeightGrad
            | Class::Winograd
            | Class::WinogradWeightGrad
    )
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

/// The terms of a product's time.
const TERMS: usize = 4;

/// The share of the error that another term must remove, so that noise does not add terms.
const WORTHWHILE: f64 = 0.03;

/// Returns factors, none of them negative, with `Σ factor · term ≈ seconds` for all rows: those with the least sum of
/// squared relative errors.
fn least_squares(rows: &[([f64; TERMS], f64)]) -> [f64; TERMS] {
    let mut best = ([0.0; TERMS], f64::INFINITY);
    let mut subsets: Vec<usize> = (1..1 << TERMS).collect();
    subsets.sort_by_key(|subset| subset.count_ones());
    // Each subset of the terms, since a term with a negative factor must be left out.
    for subset in subsets {
        let used: Vec<usize> = (0..TERMS).filter(|term| subset >> term & 1 == 1).collect();
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
        if error < best.1 * (1.0 - WORTHWHILE) {
            best = (solution, error);
        }
    }
    best.0
}

/// Solves the normal equations of the used terms by Gauss's elimination; `None` if they do not determine the factors.
fn solve(rows: &[([f64; TERMS], f64)], used: &[usize]) -> Option<[f64; TERMS]> {
    let count = used.len();
    let mut matrix = [[0.0; TERMS + 1]; TERMS];
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
            row[TERMS] += left;
        }
    }
    for pivot in 0..count {
        let largest =
            (pivot..count).max_by(|&a, &b| matrix[a][pivot].abs().total_cmp(&matrix[b][pivot].abs()))?;
        matrix.swap(pivot, largest);
        if matrix[pivot][pivot].abs() < 1e-6 * rows.len() as f64 {
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
    let mut solution = [0.0; TERMS];
    for (row, (&term, scale)) in used.iter().zip(&scales).enumerate() {
        solution[term] = matrix[row][TERMS] / matrix[row][row] / scale;
    }
    Some(solution)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn least_squares_find_the_terms_of_exact_times() {
        let rate = [2e-11, 3e-10, 0.0, 1e-9];
        let terms = [[1e6, 1e4, 3e4, 5e2], [4e6, 9e4, 1e3, 0.0], [7e7, 1e5, 8e5, 1e3], [1e8, 3e6, 1e6, 1e6]];
        let rows = terms.map(|terms: [f64; TERMS]| {
            (terms, terms.iter().zip(rate).map(|(term, rate)| term * rate).sum::<f64>())
        });
        let found = least_squares(&rows);
        for (found, rate) in found.iter().zip(rate) {
            assert!((found - rate).abs() <= rate * 1e-3, "{found:e} instead of {rate:e}");
        }
        assert_eq!(least_squares(&[]), [0.0; TERMS]);
    }

    #[test]
    fn a_term_that_would_be_negative_is_left_out() {
        let rows = [([1e6, 1e6, 0.0, 0.0], 1e-3), ([2e6, 1e6, 0.0, 0.0], 3e-3)];
        let [first, second, ..] = least_squares(&rows);
        assert!(first > 0.0 && second == 0.0, "{first:e} {second:e}");
    }

    #[test]
    fn rates_of_similar_sizes_become_one_point() {
        let curve = by_size([(16.0, 2.0), (20.0, 8.0), (4096.0, 10.0)]);
        let near = |found: Option<f64>, expected: f64| (found.unwrap() / expected - 1.0).abs() < 1e-9;
        assert!(near(curve.rate(1.0), 4.0) && near(curve.rate(1e9), 10.0), "{curve:?}");
    }
}
