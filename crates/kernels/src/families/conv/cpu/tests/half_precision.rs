//! Compares convolutions of 16-bit images with sums in f64 of the same elements.

use half::{bf16, f16};

use crate::families::{
    Conv2d, Conv2dInputGrad, Conv2dInputGradWorkspace, Conv2dWeightGrad, Conv2dWeightGradWorkspace,
    Conv2dWorkspace, Kernel, Workspace,
};
use crate::layout::Layout;
use crate::shape::{DType, Element};
use crate::testing::{Buffer, backends, noise, shape};
use crate::window::{Convolution, Window};

/// A convolution from `large` images to `small` images, both `[n, channels, h, w]`.
#[derive(Clone, Copy, Debug)]
struct Case {
    conv: Convolution,
    large: [usize; 4],
    small: [usize; 4],
}

fn case(large: [usize; 4], outputs: usize, groups: usize, windows: [Window; 2]) -> Case {
    let [images, _, height, width] = large;
    let [rows, columns] = [windows[0].outputs(height).unwrap(), windows[1].outputs(width).unwrap()];
    Case { conv: Convolution { windows, groups }, large, small: [images, outputs, rows, columns] }
}

/// Windows with and without padding, strides and dilations; even, odd and single channels; groups and depthwise; products whose
/// depth is summed in one part and in several; panels that are packed and that are read where they are staged.
fn cases() -> Vec<Case> {
    let three = Window { padding: 1, ..Window::new(3) };
    let square = |window: Window| [window; 2];
    let mut cases = vec![
        case([2, 4, 6, 6], 5, 1, square(three)),
        case([2, 3, 9, 7], 4, 1, square(three)),
        case([1, 1, 9, 20], 3, 1, square(three)),
        case([3, 16, 8, 8], 24, 1, square(three)),
        case([2, 17, 8, 6], 9, 1, square(three)),
        case([1, 70, 6, 32], 13, 1, square(three)),
        case([2, 131, 4, 4], 70, 1, square(three)),
        case([5, 24, 16, 16], 40, 1, square(three)),
        case([2, 6, 8, 8], 10, 1, square(Window::new(1))),
        case([2, 600, 3, 5], 10, 1, square(Window::new(1))),
        case([2, 8, 9, 9], 10, 1, square(Window { stride: 2, ..Window::new(1) })),
        case([2, 10, 9, 12], 16, 1, square(Window { stride: 2, ..three })),
        case([2, 3, 20, 19], 8, 1, square(Window { stride: 2, padding: 3, ..Window::new(7) })),
        case([2, 5, 11, 9], 6, 1, square(Window { dilation: 2, padding: 2, ..Window::new(3) })),
        case([2, 5, 11, 9], 6, 1, [Window::new(2), Window { stride: 3, ..Window::new(4) }]),
        case([2, 6, 7, 8], 10, 2, square(three)),
        case([3, 9, 7, 8], 15, 3, square(Window::new(2))),
        case([2, 7, 9, 20], 7, 7, square(three)),
        case([9, 3, 6, 5], 3, 3, square(Window { padding: 2, ..Window::new(5) })),
        case([2, 3, 1, 30], 3, 3, [Window::new(1), Window { padding: 3, dilation: 2, ..Window::new(4) }]),
        // A window that misses elements.
        case([1, 2, 9, 9], 4, 1, square(Window { stride: 3, ..Window::new(2) })),
    ];
    // A transposed convolution with output padding has fewer outputs than the window has places.
    let [n, outputs, rows, columns] = case([2, 10, 9, 12], 16, 1, square(three)).small;
    cases.push(Case {
        small: [n, outputs, rows - 1, columns - 2],
        ..case([2, 10, 9, 12], 16, 1, square(three))
    });
    cases
}

impl Case {
    fn weight(&self) -> [usize; 4] {
        let [down, across] = self.conv.windows;
        [self.small[1], self.large[1] / self.conv.groups, down.size, across.size]
    }

    /// Calls `visit` with the indices of the elements of the large images, the weight and the small images in each product.
    fn products(&self, mut visit: impl FnMut([usize; 3])) {
        let ([images, channels, height, width], [_, outputs, rows, columns]) = (self.large, self.small);
        let ([_, inputs, high, wide], [down, across]) = (self.weight(), self.conv.windows);
        let per_group = outputs / self.conv.groups;
        for small in 0..images * outputs * rows * columns {
            let (column, row) = (small % columns, small / columns % rows);
            let (output, image) = (small / (columns * rows) % outputs, small / (columns * rows * outputs));
            for tap in 0..inputs * high * wide {
                let (input, ky, kx) = (tap / (wide * high), tap / wide % high, tap % wide);
                let y = (row * down.stride + ky * down.dilation).wrapping_sub(down.padding);
                let x = (column * across.stride + kx * across.dilation).wrapping_sub(across.padding);
                if y < height && x < width {
                    let channel = output / per_group * inputs + input;
                    let large = ((image * channels + channel) * height + y) * width + x;
                    visit([large, output * inputs * high * wide + tap, small]);
                }
            }
        }
    }

    /// The output and the gradients of the images and of the weight.
    fn expected(&self, [large, weight, small]: [&[f64]; 3]) -> [Vec<f64>; 3] {
        let mut sums = [small.len(), large.len(), weight.len()].map(|len| vec![0.0; len]);
        let [outputs, images, weights] = &mut sums;
        self.products(|[i, tap, o]| {
            outputs[o] += large[i] * weight[tap];
            images[i] += weight[tap] * small[o];
            weights[tap] += large[i] * small[o];
        });
        sums
    }

    /// Runs the kernels with exactly the workspaces that they require, and several numbers of threads.
    fn run<T: Element + PartialEq>(&self, [large, weight, small]: [&Buffer; 3]) -> ([Vec<T>; 3], Vec<f32>) {
        let (conv, dtype) = (self.conv, T::DTYPE);
        let [input, out] = [shape(&self.large), shape(&self.small)];
        let (of, input, out) = (&conv, &input, &out);
        let weight_grad =
            |weight_dtype| Conv2dWeightGradWorkspace { conv: of, input, out, dtype, weight_dtype };
        let bytes = [
            Conv2dWorkspace { conv: of, input, out, dtype }.cpu_bytes(),
            Conv2dInputGradWorkspace { conv: of, input, out, dtype }.cpu_bytes(),
            weight_grad(dtype).cpu_bytes(),
            weight_grad(DType::F32).cpu_bytes(),
        ];
        let mut first: Option<([Vec<T>; 3], Vec<f32>)> = None;
        for backend in backends() {
            let mut results =
                [&self.small, &self.large, &self.weight()].map(|dims| Buffer::output(dims, dtype));
            let mut wide = Buffer::output(&self.weight(), DType::F32);
            let mut spaces = bytes.map(|bytes| Buffer::output(&[bytes], DType::U8));
            let [forward, input_grad, filters, wide_filters] =
                spaces.each_mut().map(|space| Some(space.out()));
            let [output, images, weights] = results.each_mut().map(Buffer::out);
            let (input, grad) = (large.view(), small.view());
            let weight = weight.view();
            let kernels: [Kernel<'_>; 4] = [
                Conv2d { conv, input, weight, workspace: forward, out: output }.into(),
                Conv2dInputGrad { conv, weight, grad, workspace: input_grad, out: images }.into(),
                Conv2dWeightGrad { conv, input, grad, workspace: filters, out: weights }.into(),
                Conv2dWeightGrad { conv, input, grad, workspace: wide_filters, out: wide.out() }.into(),
            ];
            kernels.into_iter().for_each(|kernel| backend.run("conv", kernel).unwrap());
            let found = (results.each_ref().map(Buffer::values::<T>), wide.values::<f32>());
            match &first {
                None => first = Some(found),
                Some(first) => assert!(*first == found, "{self:?} depends on the number of threads"),
            }
        }
        first.unwrap()
    }
}

/// Asserts that each sum is the nearest value of a type with this unit roundoff, but for errors of sums in f32.
fn assert_rounded<T: Into<f64> + Copy>(found: &[T], expected: &[f64], unit: f64, what: &str) {
    let scale = expected.iter().fold(0.0, |scale: f64, value| scale.max(value.abs()));
    assert_eq!(found.len(), expected.len());
    for (place, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let found: f64 = found.into();
        let near = (found - expected).abs() <= unit * expected.abs() + 2e-6 * scale;
        assert!(near, "{found} instead of {expected} at {place}: {what}");
    }
}

fn compare<T: Element + PartialEq + Into<f64>>(unit: f64, round: fn(f64) -> T) {
    for case in cases() {
        let dims = [case.large, case.weight(), case.small];
        let values = [0, 1, 2].map(|n| -> Vec<T> {
            let len = dims[n].iter().product();
            noise(n as u64 + 1, len).into_iter().map(round).collect()
        });
        let exact = values.each_ref().map(|values| values.iter().map(|&x| x.into()).collect::<Vec<f64>>());
        let [output, images, weights] = case.expected(exact.each_ref().map(|values| &values[..]));
        // Operands at the start of a buffer, and behind other elements.
        for offset in [0, 1] {
            let buffers = [0, 1, 2].map(|n| {
                let [first, rest @ ..] = dims[n];
                let base = [first + offset, rest[0], rest[1], rest[2]];
                let behind = |layout: Layout| layout.sliced("test", 0, offset..first + offset, 1).unwrap();
                Buffer::arranged(&base, &values[n], behind)
            });
            let (found, wide) = case.run::<T>(buffers.each_ref());
            let what = |which: &str| format!("{which} of {case:?}");
            assert_rounded(&found[0], &output, unit, &what("output"));
            assert_rounded(&found[1], &images, unit, &what("input gradient"));
            assert_rounded(&found[2], &weights, unit, &what("weight gradient"));
            assert_rounded(&wide, &weights, 0.0, &what("weight gradient in f32"));
        }
    }
}

#[test]
fn convolutions_of_bf16_round_once() {
    compare::<bf16>(2f64.powi(-8), bf16::from_f64);
}

#[test]
fn convolutions_of_f16_round_once() {
    compare::<f16>(2f64.powi(-11), f16::from_f64);
}
