//! Compares Winograd's algorithm with the direct one, for operands with infinities, NaN and very large values.

use half::{bf16, f16};

mod half_precision;

use super::element::FromSum;
use super::stage::StageAs;
use super::*;
use crate::cpu::gemm::PackInto;
use crate::shape::RawElement;
use crate::testing::noise;
use crate::window::Window;

/// A convolution of 3 × 3 taps that Winograd's algorithm computes.
fn sizes(images: usize, channels: [usize; 2], from: [usize; 2], padding: [usize; 2]) -> Sizes {
    let windows = padding.map(|padding| Window { padding, ..Window::new(3) });
    let to = [0, 1].map(|axis| windows[axis].outputs(from[axis]).unwrap());
    let [inputs, outputs] = channels;
    let sizes =
        Sizes { conv: Convolution { windows, groups: 1 }, images, groups: 1, inputs, outputs, from, to };
    assert!(Winograd::forward(&sizes).is_some() && Winograd::input_grad(&sizes).is_some());
    sizes
}

/// Few and many tiles, tasks that share tiles and filters, odd sizes, all paddings.
fn cases() -> [Sizes; 4] {
    [
        sizes(4, [32, 33], [7, 9], [1, 1]),
        sizes(3, [33, 32], [10, 18], [0, 2]),
        sizes(9, [32, 40], [16, 17], [1, 1]),
        sizes(1, [40, 32], [24, 24], [2, 0]),
    ]
}

/// Input, weight and gradient of the output.
type Operands<S> = [Vec<S>; 3];

/// The output and the gradients of input and weight.
type Results<T> = [Vec<T>; 3];

fn direct<T>(sizes: Sizes, [input, weight, grad]: &Operands<T>, dtype: DType) -> Results<T>
where
    T: winograd::Element + StageAs<T> + FromSum<T> + RawElement,
{
    let workers = Workers::new(1).unwrap();
    let run = ConvolutionRun { workers: &workers, sizes, dtype };
    let space = |slot: Slot, more: usize| vec![T::NAN; slot.elements() * sizes.slots() + more];
    let mut out = [grad.len(), input.len(), weight.len()].map(|len| vec![T::ZERO; len]);
    let [forward, input_grad, weight_grad] = &mut out;
    let (axes, grad_axes) = (sizes.forward_axes(), sizes.input_grad_axes());
    let mut workspace = space(Slot::of_forward(&sizes, &axes, dtype), 0);
    run.forward::<T, T, T>([input, weight], forward, &mut workspace);
    let mut workspace = space(Slot::of_input_grad(&sizes, &grad_axes, dtype), sizes.weights());
    run.input_grad::<T, T, T>([weight, grad], input_grad, &mut workspace);
    let mut workspace = space(Slot::of_weight_grad(&sizes, &axes, dtype), sizes.reordered_elements());
    run.weight_grad::<T, T>([input, grad], weight_grad, &mut workspace);
    out
}

fn winograd<T: winograd::Element, S: PackInto<T>>(
    sizes: &Sizes,
    threads: usize,
    [input, weight, grad]: &Operands<S>,
) -> Results<T> {
    let workers = Workers::new(threads).unwrap();
    let mut out = [grad.len(), input.len(), weight.len()].map(|len| vec![T::ZERO; len]);
    let [output, input_grad, weight_grad] = &mut out;
    let (forward, backward) = (Winograd::forward(sizes).unwrap(), Winograd::input_grad(sizes).unwrap());
    forward.convolve(&workers, [input, weight], &mut vec![T::NAN; forward.workspace()], output);
    backward.convolve(&workers, [grad, weight], &mut vec![T::NAN; backward.workspace()], input_grad);
    let mut workspace = vec![T::NAN; forward.weight_grad_workspace()];
    forward.weight_grad(&workers, [input, grad], &mut workspace, weight_grad);
    out
}

/// Operands of a convolution, some of whose elements are replaced: `(operand, place, value)`. Places count from the end
/// if they are negative.
fn operands<S>(sizes: &Sizes, replaced: &[(usize, isize, f64)], convert: fn(f64) -> S) -> Operands<S> {
    let lens = [sizes.images * sizes.image_in(), sizes.weights(), sizes.images * sizes.image_out()];
    // Below 1/4, so that direct sums of three large values do not overflow.
    let noise = |seed, len| noise(seed, len).into_iter().map(|value| value / 4.0).collect::<Vec<_>>();
    let mut operands = [1, 2, 3].map(|seed| noise(seed, lens[seed as usize - 1]));
    for &(operand, place, value) in replaced {
        let len = lens[operand] as isize;
        operands[operand][((place + len) % len) as usize] = value;
    }
    operands.map(|values| values.into_iter().map(convert).collect())
}

const INF: f64 = f64::INFINITY;

/// Pixels in the middle and at the edges, opposite infinities side by side, taps, and values that overflow in a transform.
fn replacements(large: f64) -> Vec<Vec<(usize, isize, f64)>> {
    let mut all = Vec::new();
    for operand in [0, 1, 2] {
        for place in [0, 12, 40, -1] {
            all.extend([INF, -INF, f64::NAN].map(|value| vec![(operand, place, value)]));
        }
        all.push(vec![(operand, 20, INF), (operand, 21, -INF)]);
        all.push((0..60).map(|place| (operand, place, f64::NAN)).collect());
        all.push((0..60).map(|place| (operand, -1 - place, INF)).collect());
        all.push((10..13).map(|place| (operand, place, large)).collect());
    }
    all.push(vec![(0, 30, INF), (1, 300, -INF), (2, -30, INF)]);
    all
}

/// 16-bit operands are compared with the direct algorithm for the same operands in f32, which sums the same products.
fn compare<T, S>(large: f64, tolerance: f64, dtype: DType, convert: fn(f64) -> S)
where
    T: winograd::Element + StageAs<T> + FromSum<T> + RawElement + Into<f64>,
    S: PackInto<T>,
{
    for (number, sizes) in cases().into_iter().enumerate() {
        for (replaced, threads) in replacements(large).into_iter().zip([1, 2, 3].into_iter().cycle()) {
            // Not all combinations, because the direct algorithm takes long.
            if threads % 2 == number % 2 {
                continue;
            }
            let operands = operands(&sizes, &replaced, convert);
            let exact = operands
                .each_ref()
                .map(|values| values.iter().map(|&value| value.pack(S::default())).collect::<Vec<T>>());
            let expected = direct::<T>(sizes, &exact, dtype);
            let found = winograd::<T, S>(&sizes, threads, &operands);
            for (pass, (found, expected)) in
                ["output", "input", "weight"].iter().zip(found.iter().zip(&expected))
            {
                let what = format!("{pass} of {sizes:?} with {:?}", &replaced[..replaced.len().min(3)]);
                let scale = expected.iter().map(|&value| value.into().abs());
                let scale = scale.filter(|value| value.is_finite()).fold(0.0, f64::max);
                for (place, (&found, &expected)) in found.iter().zip(expected).enumerate() {
                    let (found, expected): (f64, f64) = (found.into(), expected.into());
                    let equal = found == expected || found.is_nan() && expected.is_nan();
                    let near = (found - expected).abs() <= tolerance * scale;
                    assert!(equal || near, "{found} instead of {expected} at {place}: {what}");
                }
            }
        }
    }
}

#[test]
fn winograd_s_algorithm_returns_the_infinities_and_nan_of_the_direct_one() {
    compare::<f32, f32>(2e38, 1e-5, DType::F32, |value| value as f32);
}

#[test]
fn so_it_does_in_f64() {
    compare::<f64, f64>(1.2e308, 1e-13, DType::F64, |value| value);
}

#[test]
fn so_it_does_for_16_bit_operands() {
    compare::<f32, f16>(6e4, 1e-5, DType::F32, f16::from_f64);
    compare::<f32, bf16>(2e38, 1e-5, DType::F32, bf16::from_f64);
}
