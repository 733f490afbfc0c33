//! The bodies of the fuzz targets for texts that this crate reads. The tests run them as well.
//!
//! Each takes any bytes and panics if a reader breaks a promise. An error is as good as a result.

use bfc_core::Environment;

use crate::device::{Device, DeviceProfile};
use crate::predict::DryRunOptions;
use crate::shape::MAX_RANK;
use crate::tensor::Tensor;

/// An equation of `einsum`, after four bytes that say how large its letters are.
///
/// # Panics
/// If a promise is broken.
pub fn einsum(data: &[u8]) {
    let Some((sizes, equation)) = data.split_first_chunk::<4>() else { return };
    let Ok(equation) = std::str::from_utf8(equation) else { return };
    let size = |letter: u8| usize::from(sizes[usize::from(letter % 4)] % 3);
    let (operands, result) = equation.split_once("->").map_or((equation, None), |(a, b)| (a, Some(b)));
    let letters =
        |text: &str| -> Vec<u8> { text.bytes().filter(u8::is_ascii_alphabetic).take(MAX_RANK).collect() };
    let operands: Vec<Vec<u8>> = operands.split(',').map(letters).take(64).collect();
    let device = Device::cpu().expect("there is a processor");
    let tensor = |letters: &Vec<u8>| {
        let dims: Vec<usize> = letters.iter().map(|&letter| size(letter)).collect();
        let count = dims.iter().product::<usize>();
        let values: Vec<f64> = (0..count).map(|index| (index % 3) as f64 - 1.0).collect();
        Tensor::from_slice(&device, &values, dims)
    };
    let tensors: Vec<Tensor> =
        operands.iter().map(|letters| tensor(letters).expect("there is memory for so little")).collect();
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
    // The sum as it is defined, over all letters. The numbers are whole, so it is exact.
    let place = |letters: &[u8], at: &[usize]| {
        letters.iter().fold(0, |place, letter| {
            let own = all.iter().position(|other| other == letter).expect("it is one of all");
            place * size(*letter) + at[own]
        })
    };
    let values: Vec<Vec<f64>> = tensors.iter().map(|tensor| tensor.to_vec().expect("it is there")).collect();
    let mut sums = vec![0.0; product.shape().elements()];
    for step in 0..steps {
        let mut rest = step;
        let at: Vec<usize> = counts.iter().map(|count| (rest % count, rest /= count).0).collect();
        let factors = operands.iter().zip(&values).map(|(letters, values)| values[place(letters, &at)]);
        sums[place(&result, &at)] += factors.product::<f64>();
    }
    assert_eq!(product.to_vec::<f64>().expect("it is there"), sums, "{equation}");
}

/// A device profile, as it is written on the command line, and a small program run dry on it.
///
/// # Panics
/// If a promise is broken.
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

/// A file of golden figures, beside figures that a program has.
///
/// # Panics
/// If a promise is broken.
pub fn golden(data: &[u8]) {
    const FIGURES: &str = "# title\nop calls\nmatmul 1 2 3 4 5 6 7\n(pool) peak_in_use 1\n";
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (there, back) =
        (crate::testing::difference(text, FIGURES), crate::testing::difference(FIGURES, text));
    assert_eq!(there.lines().count(), back.lines().count());
    assert!(crate::testing::difference(text, text).starts_with("the figures are the same"));
}
