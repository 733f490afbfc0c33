//! Bodies of the fuzz targets for texts that this crate parses. The tests run them too.
//!
//! Each body accepts any bytes and panics if a parser breaks its contract. Returning an error is correct.

use bfc_core::Environment;

use crate::device::{Device, DeviceProfile};
use crate::predict::DryRunOptions;
use crate::shape::MAX_RANK;
use crate::tensor::Tensor;

/// Parses an `einsum` equation and compares the result with the defining sum. The first four bytes set the
/// sizes of the letters.
///
/// # Panics
/// If `einsum` returns a wrong shape or wrong values.
pub fn einsum(data: &[u8]) {
    let Some((sizes, equation)) = data.split_first_chunk::<4>() else { return };
    let Ok(equation) = std::str::from_utf8(equation) else { return };
    let size = |letter: u8| usize::from(sizes[usize::from(letter % 4)] % 3);
    let (operands, result) = equation.split_once("->").map_or((equation, None), |(a, b)| (a, Some(b)));
    let letters =
        |text: &str| -> Vec<u8> { text.bytes().filter(u8::is_ascii_alphabetic).take(MAX_RANK).collect() };
    let operands: Vec<Vec<u8>> = operands.split(',').map(letters).take(64).collect();
    let device = Device::cpu().expect("the CPU device opens");
    let tensor = |letters: &Vec<u8>| {
        let dims: Vec<usize> = letters.iter().map(|&letter| size(letter)).collect();
        let count = dims.iter().product::<usize>();
        let values: Vec<f64> = (0..count).map(|index| (index % 3) as f64 - 1.0).collect();
        Tensor::from_slice(&device, &values, dims)
    };
    let tensors: Vec<Tensor> =
        operands.iter().map(|letters| tensor(letters).expect("small tensors fit into memory")).collect();
    let Ok(product) = Tensor::einsum(equation, &tensors.iter().collect::<Vec<_>>()) else { return };

    let mut all: Vec<u8> = operands.concat();
    all.sort_unstable();
    let result = result.map_or_else(
        || {
            all.iter()
                .copied()
                .filter(|letter| all.iter().filter(|other| *other == letter).count() == 1)
                .collect()
        },
        letters,
    );
    assert!(product.dims().iter().copied().eq(result.iter().map(|&letter| size(letter))));
    all.dedup();
    let counts: Vec<usize> = all.iter().map(|&letter| size(letter)).collect();
    let steps = counts.iter().fold(1_usize, |steps, &count| steps.saturating_mul(count));
    if steps > 1 << 12 {
        return;
    }
    // The defining sum over all letters. The values are integers, so the sum is exact.
    let place = |letters: &[u8], at: &[usize]| {
        letters.iter().fold(0, |place, letter| {
            let own = all.iter().position(|other| other == letter).expect("`all` contains every letter");
            place * size(*letter) + at[own]
        })
    };
    let values: Vec<Vec<f64>> =
        tensors.iter().map(|tensor| tensor.to_vec().expect("the CPU can read it")).collect();
    let mut sums = vec![0.0; product.shape().elements()];
    for step in 0..steps {
        let mut rest = step;
        let at: Vec<usize> = counts.iter().map(|count| (rest % count, rest /= count).0).collect();
        let factors = operands.iter().zip(&values).map(|(letters, values)| values[place(letters, &at)]);
        sums[place(&result, &at)] += factors.product::<f64>();
    }
    assert_eq!(product.to_vec::<f64>().expect("the CPU can read it"), sums, "{equation}");
}

/// Parses a device profile and runs a small program on it as a dry run.
///
/// # Panics
/// If the parsed profile is unusable, or the error message is too long.
pub fn profile(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match text.parse::<DeviceProfile>() {
        Ok(profile) => {
            assert!(!profile.to_string().is_empty());
            let run = DryRunOptions::new(profile).environment(Environment::default()).run(|device| {
                let x = Tensor::zeros(device, [100, 100])?;
                x.matmul(&x)?.relu().map(drop)
            });
            assert!(run.is_ok_and(|run| run.peak.requested > 0) || text.contains('='), "{text}");
        }
        Err(error) => assert!(error.to_string().len() < 4096),
    }
}

/// Compares golden figures with the figures of a program.
///
/// # Panics
/// If a comparison depends on the direction, or equal figures differ.
pub fn golden(data: &[u8]) {
    const FIGURES: &str = "# title\nop calls\nmatmul 1 2 3 4 5 6 7\n(pool) peak_in_use 1\n";
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (there, back) =
        (crate::testing::difference(text, FIGURES), crate::testing::difference(FIGURES, text));
    assert_eq!(there.lines().count(), back.lines().count());
    assert!(crate::testing::difference(text, text).starts_with("the figures are equal"));
}
