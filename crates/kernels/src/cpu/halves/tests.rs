//! Kernels on 16-bit floats equal the kernels on f32 for the same values, rounded once. Rows are short, as long as fits the
//! stack, and longer.

use half::{bf16, f16};

use super::ROW;
use crate::backend::cpu::CpuBackend;
use crate::families::{self, Reduce, ScanFunction};
use crate::shape::{DType, Element};
use crate::testing::{Buffer, backends, noise};
use crate::workspace::Workspace;

/// A 16-bit float type.
trait Narrow: Element + Into<f64> + PartialEq + std::fmt::Debug {
    /// The distance from 1 to the next larger value.
    const STEP: f64;

    fn of(value: f64) -> Self;
}

impl Narrow for f16 {
    const STEP: f64 = 1.0 / 1024.0;

    fn of(value: f64) -> Self {
        Self::from_f64(value)
    }
}

impl Narrow for bf16 {
    const STEP: f64 = 1.0 / 128.0;

    fn of(value: f64) -> Self {
        Self::from_f64(value)
    }
}

/// Calls a test for both types.
macro_rules! both {
    ($test:ident) => {{
        $test::<f16>();
        $test::<bf16>();
    }};
}

/// The values of a tensor in 16 bits, and the same values in f32.
struct Values<H> {
    dims: Vec<usize>,
    narrow: Vec<H>,
    wide: Vec<f32>,
}

impl<H: Narrow> Values<H> {
    fn new(seed: u64, dims: &[usize], scale: f64) -> Self {
        let narrow: Vec<H> = noise(seed, dims.iter().product()).iter().map(|x| H::of(scale * x)).collect();
        let wide = narrow.iter().map(|&x| x.into() as f32).collect();
        Self { dims: dims.to_vec(), narrow, wide }
    }

    fn wide(&self) -> Buffer {
        Buffer::of(&self.dims, &self.wide)
    }

    fn arrangements(&self) -> Vec<Buffer> {
        Buffer::arrangements(&self.dims, &self.narrow)
    }
}

/// Asserts that values differ by at most `steps` roundings, or those of values of size `least`.
fn assert_rounded<H: Narrow>(found: &[H], expected: &[f32], (steps, least): (f64, f64), what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let (found, expected): (f64, f64) = (found.into(), expected.into());
        let most = steps * H::STEP * expected.abs().max(least) + 1e-7;
        let same = found == expected || found.is_nan() && expected.is_nan();
        assert!(
            same || (found - expected).abs() <= most,
            "{what}, element {i}: {found} instead of {expected}"
        );
    }
}

/// The rows and columns of the matrices of tests.
const SIZES: [[usize; 2]; 7] =
    [[0, 3], [300, 1], [1000, 3], [37, 100], [3, ROW], [3, ROW + 1], [2, 2 * ROW + 300]];

/// Runs a kernel with every number of threads. Returns the output of the first, to which the others are equal.
fn on_each<T: Element + PartialEq>(dims: &[usize], run: impl Fn(&CpuBackend, &mut Buffer)) -> Vec<T> {
    let mut all = backends().map(|backend| {
        let mut out = Buffer::output(dims, T::DTYPE);
        run(&backend, &mut out);
        out.values::<T>()
    });
    assert!(all[0] == all[1] && all[0] == all[2], "results depend on the number of threads");
    std::mem::take(&mut all[0])
}

#[test]
fn softmax_and_its_gradient_are_rounded_once() {
    both!(softmax);
}

fn softmax<H: Narrow>() {
    for dims in SIZES {
        for log in [false, true] {
            let (x, g) = (Values::<H>::new(1, &dims, 4.0), Values::<H>::new(2, &dims, 1.0));
            let kernel = |backend: &CpuBackend, input: &Buffer, out: &mut Buffer| {
                let out = out.out();
                backend.run("softmax", families::SoftmaxRows { log, input: input.view(), out }).unwrap();
            };
            let expected: Vec<f32> = on_each(&dims, |backend, out| kernel(backend, &x.wide(), out));
            for input in x.arrangements() {
                let found: Vec<H> = on_each(&dims, |backend, out| kernel(backend, &input, out));
                assert_rounded(&found, &expected, (1.0, 0.0), &format!("softmax, {dims:?}, {log}"));
                // The sum may be f32.
                let found: Vec<f32> = on_each(&dims, |backend, out| kernel(backend, &input, out));
                assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= 1e-5 * b.abs()));
            }
            let kernel = |backend: &CpuBackend, [output, grad]: [&Buffer; 2], out: &mut Buffer| {
                let (output, grad, out) = (output.view(), grad.view(), out.out());
                backend.run("softmax", families::SoftmaxRowsGrad { log, output, grad, out }).unwrap();
            };
            let expected: Vec<f32> =
                on_each(&dims, |backend, out| kernel(backend, [&x.wide(), &g.wide()], out));
            for (output, grad) in x.arrangements().iter().zip(g.arrangements().iter().rev()) {
                let found: Vec<H> = on_each(&dims, |backend, out| kernel(backend, [output, grad], out));
                assert_rounded(&found, &expected, (1.0, 0.1), &format!("gradient, {dims:?}, {log}"));
            }
        }
    }
}

#[test]
fn cross_entropy_and_its_gradients_are_rounded_once() {
    both!(cross_entropy);
}

fn cross_entropy<H: Narrow>() {
    for dims @ [rows, classes] in SIZES {
        let x = Values::<H>::new(3, &dims, 4.0);
        let targets: Vec<i64> = (0..rows).map(|row| (row * 7 % classes) as i64).collect();
        let targets = Buffer::of(&[rows], &targets);
        // Every fourth row is ignored.
        let factors: Vec<f32> = (0..rows).map(|row| if row % 4 == 3 { 0.0 } else { 0.5 }).collect();
        let factors = Buffer::of(&[rows], &factors);
        let losses = |backend: &CpuBackend, logits: &Buffer, out: &mut Buffer| {
            let (logits, targets, losses) = (logits.view(), targets.view(), out.out());
            backend.run("loss", families::CrossEntropy { logits, targets, losses }).unwrap();
        };
        let gradient = |backend: &CpuBackend, logits: &Buffer, out: &mut Buffer| {
            let (logits, targets, grad, out) = (logits.view(), targets.view(), factors.view(), out.out());
            backend.run("loss", families::CrossEntropyGrad { logits, targets, grad, out }).unwrap();
        };
        let expected: Vec<f32> = on_each(&[rows], |backend, out| losses(backend, &x.wide(), out));
        let slopes: Vec<f32> = on_each(&dims, |backend, out| gradient(backend, &x.wide(), out));
        for logits in x.arrangements() {
            let what = format!("cross entropy, {dims:?}");
            let found: Vec<H> = on_each(&[rows], |backend, out| losses(backend, &logits, out));
            assert_rounded(&found, &expected, (1.0, 1e-4), &what);
            let found: Vec<f32> = on_each(&[rows], |backend, out| losses(backend, &logits, out));
            assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= 1e-5 * b.abs().max(1.0)));
            let found: Vec<H> = on_each(&dims, |backend, out| gradient(backend, &logits, out));
            assert_rounded(&found, &slopes, (1.0, 1e-3), &what);
        }
        for smoothing in [0.0, 0.3] {
            let in_place = |backend: &CpuBackend, logits: &mut Buffer| {
                let mut losses = Buffer::output(&[rows], DType::F32);
                let kernel = families::CrossEntropyInPlace {
                    smoothing,
                    targets: targets.view(),
                    factors: factors.view(),
                    losses: losses.out(),
                    logits: logits.out(),
                };
                backend.run("loss", kernel).unwrap();
                losses.values::<f32>()
            };
            for backend in backends() {
                let (mut wide, mut narrow) = (x.wide(), Buffer::of(&dims, &x.narrow));
                let (expected, found) = (in_place(&backend, &mut wide), in_place(&backend, &mut narrow));
                let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-5 * b.abs().max(1.0);
                assert!(found.iter().zip(&expected).all(near), "in place, {dims:?}");
                let wide = wide.values::<f32>();
                assert_rounded(&narrow.values::<H>(), &wide, (1.0, 1e-3), &format!("in place, {dims:?}"));
            }
        }
    }
}

#[test]
fn norms_of_rows_and_their_gradients_are_rounded_once() {
    both!(norms);
}

fn norms<H: Narrow>() {
    for dims @ [rows, width] in SIZES {
        let (x, g) = (Values::<H>::new(5, &dims, 2.0), Values::<H>::new(6, &dims, 1.0));
        let (w, b) = (Values::<H>::new(7, &[width], 1.5), Values::<H>::new(8, &[width], 1.5));
        for (centered, affine) in [(true, true), (true, false), (false, true)] {
            let what = format!("norm, {dims:?}, {centered}, {affine}");
            let of = |wide: bool, v: &Values<H>| {
                let whole = if wide { v.wide() } else { Buffer::of(&v.dims, &v.narrow) };
                affine.then(|| whole.broadcast(&dims))
            };
            let normalize =
                |backend: &CpuBackend, input: &Buffer, [w, b]: [&Option<Buffer>; 2], out: &mut Buffer| {
                    let mut statistics = Buffer::output(&[rows, 2], DType::F32);
                    let kernel = families::NormalizeRows {
                        centered,
                        epsilon: 1e-5,
                        input: input.view(),
                        weight: w.as_ref().map(Buffer::view),
                        bias: b.as_ref().map(Buffer::view),
                        out: out.out(),
                        statistics: statistics.out(),
                    };
                    backend.run("norm", kernel).unwrap();
                    statistics
                };
            let [wide_w, wide_b, narrow_w, narrow_b] =
                [of(true, &w), of(true, &b), of(false, &w), of(false, &b)];
            let expected: Vec<f32> = on_each(&dims, |backend, out| {
                normalize(backend, &x.wide(), [&wide_w, &wide_b], out);
            });
            let statistics = normalize(
                &backends()[0],
                &x.wide(),
                [&wide_w, &wide_b],
                &mut Buffer::output(&dims, DType::F32),
            );
            let gradient =
                |backend: &CpuBackend, [input, grad]: [&Buffer; 2], w: &Option<Buffer>, out: &mut Buffer| {
                    let (weight, statistics) = (w.as_ref().map(Buffer::view), statistics.view());
                    let of = families::Normalized { centered, input: input.view(), weight, statistics };
                    let (grad, out) = (grad.view(), out.out());
                    backend.run("norm", families::NormalizeRowsGrad { of, grad, out }).unwrap();
                };
            let sums =
                |backend: &CpuBackend, [input, grad]: [&Buffer; 2], places: usize, weight: &mut Buffer| {
                    let parameters = width / places;
                    let sizes = [rows, parameters, places];
                    let of = families::NormalizeRowsSumsWorkspace { sizes, sums: 2, dtype: H::DTYPE };
                    let mut workspace =
                        (of.cpu_bytes() > 0).then(|| Buffer::output(&[of.cpu_bytes()], DType::U8));
                    let mut bias = Buffer::output(&[parameters], DType::F32);
                    let of = families::Normalized {
                        centered,
                        input: input.view(),
                        weight: None,
                        statistics: statistics.view(),
                    };
                    let kernel = families::NormalizeRowsSums {
                        of,
                        grad: grad.view(),
                        places,
                        workspace: workspace.as_mut().map(Buffer::out),
                        weight: weight.out(),
                        bias: Some(bias.out()),
                    };
                    backend.run("norm", kernel).unwrap();
                    weight.values::<f32>().into_iter().chain(bias.values()).collect::<Vec<_>>()
                };
            let slopes: Vec<f32> =
                on_each(&dims, |backend, out| gradient(backend, [&x.wide(), &g.wide()], &wide_w, out));
            for (input, grad) in x.arrangements().iter().zip(g.arrangements().iter().rev()) {
                // Parameters may have either type.
                for parameters in [[&narrow_w, &narrow_b], [&wide_w, &wide_b]] {
                    let found: Vec<H> = on_each(&dims, |backend, out| {
                        normalize(backend, input, parameters, out);
                    });
                    assert_rounded(&found, &expected, (1.0, 1e-2), &what);
                    let found: Vec<H> = on_each(&dims, |backend, out| {
                        gradient(backend, [input, grad], parameters[0], out);
                    });
                    assert_rounded(&found, &slopes, (1.0, 1e-1), &what);
                }
                for places in [1, width] {
                    let size = [width / places];
                    for backend in backends() {
                        let mut out = [Buffer::output(&size, DType::F32), Buffer::output(&size, DType::F32)];
                        let expected = sums(&backend, [&x.wide(), &g.wide()], places, &mut out[0]);
                        let found = sums(&backend, [input, grad], places, &mut out[1]);
                        assert_eq!(found, expected, "{what}, {places}");
                    }
                }
            }
        }
    }
}

#[test]
fn reductions_are_rounded_once() {
    both!(reductions);
}

fn reductions<H: Narrow>() {
    for dims in
        [vec![0, 3], vec![7], vec![40, 5, 33], vec![3, 2100], vec![2100, 3], vec![2, 140, 140], vec![90_000]]
    {
        let x = Values::<H>::new(9, &dims, 1.0);
        for mask in 1..1_u32 << dims.len() {
            let axes: Vec<bool> = (0..dims.len()).map(|axis| mask >> axis & 1 == 1).collect();
            let kept: Vec<usize> =
                dims.iter().zip(&axes).map(|(&size, &folded)| if folded { 1 } else { size }).collect();
            for f in [Reduce::Sum, Reduce::Max, Reduce::SumSquares] {
                if f.requires_elements() && x.wide.is_empty() {
                    continue;
                }
                let divisor = if f == Reduce::Sum { 3.0 } else { 1.0 };
                let fold = |backend: &CpuBackend, input: &Buffer, out: &mut Buffer| {
                    let (input, axes) = (input.view(), &axes);
                    let shape = input.layout().shape();
                    let bytes = families::FoldWorkspace { shape, axes, dtype: H::DTYPE }.cpu_bytes();
                    let mut workspace = (bytes > 0).then(|| Buffer::output(&[bytes], DType::U8));
                    let (workspace, out) = (workspace.as_mut().map(Buffer::out), out.out());
                    backend.run("fold", families::Fold { f, divisor, input, axes, workspace, out }).unwrap();
                };
                let what = format!("{f:?} of {dims:?} over {axes:?}");
                let expected: Vec<f32> = on_each(&kept, |backend, out| fold(backend, &x.wide(), out));
                for input in x.arrangements().iter().chain([&x.wide()]) {
                    let found: Vec<H> = on_each(&kept, |backend, out| fold(backend, input, out));
                    assert_rounded(&found, &expected, (1.0, 0.0), &what);
                    let sums: Vec<f32> = on_each(&kept, |backend, out| fold(backend, input, out));
                    assert_eq!(sums, expected, "{what}");
                }
            }
        }
        for axis in 0..dims.len() {
            let kept: Vec<usize> =
                dims.iter().enumerate().map(|(other, &size)| if other == axis { 1 } else { size }).collect();
            if x.wide.is_empty() {
                continue;
            }
            let find = |backend: &CpuBackend, input: &Buffer, out: &mut Buffer| {
                let (input, out) = (input.view(), out.out());
                backend.run("argmax", families::ArgReduce { largest: true, input, axis, out }).unwrap();
            };
            let expected: Vec<i64> = on_each(&kept, |backend, out| find(backend, &x.wide(), out));
            for input in x.arrangements() {
                let found: Vec<i64> = on_each(&kept, |backend, out| find(backend, &input, out));
                assert_eq!(found, expected);
            }
        }
    }
}

#[test]
fn scans_sorts_and_scatters_read_16_bits() {
    both!(scans);
}

fn scans<H: Narrow>() {
    let dims = [3, 70, 5];
    let x = Values::<H>::new(10, &dims, 1.0);
    for (axis, reverse) in [(0, false), (1, true), (2, false)] {
        for backend in backends() {
            let scan = |out: &mut Buffer| {
                let kernel = families::Scan { f: ScanFunction::Sum, axis, reverse, out: out.out() };
                backend.run("scan", kernel).unwrap();
            };
            let (mut wide, mut narrow) = (x.wide(), Buffer::of(&dims, &x.narrow));
            scan(&mut wide);
            scan(&mut narrow);
            assert_rounded(&narrow.values::<H>(), &wide.values::<f32>(), (0.5, 0.0), "scan");
        }
    }
    for descending in [false, true] {
        let sort = |backend: &CpuBackend, input: &Buffer, out: &mut Buffer| {
            let kernel = families::ArgSort {
                descending,
                first: 5,
                input: input.view(),
                workspace: None,
                out: out.out(),
            };
            backend.run("sort", kernel).unwrap();
        };
        let expected: Vec<i64> = on_each(&dims, |backend, out| sort(backend, &x.wide(), out));
        for input in x.arrangements() {
            let found: Vec<i64> = on_each(&dims, |backend, out| sort(backend, &input, out));
            assert_eq!(found, expected);
        }
    }
    for (axis, rows) in [(0, 2), (1, 90), (2, 4)] {
        let indices: Vec<i64> = (0..x.wide.len()).map(|i| (i * 13 % rows) as i64).collect();
        let indices = Buffer::of(&dims, &indices);
        let mut sizes = dims;
        sizes[axis] = rows;
        let scatter = |backend: &CpuBackend, input: &Buffer, out: &mut Buffer| {
            let (input, indices, out) = (input.view(), indices.view(), out.out());
            let kernel = families::ScatterAdd { input, indices, axis, workspace: None, out };
            backend.run("scatter", kernel).unwrap();
        };
        let expected: Vec<f32> = on_each(&sizes, |backend, out| scatter(backend, &x.wide(), out));
        for input in x.arrangements() {
            let found: Vec<f32> = on_each(&sizes, |backend, out| scatter(backend, &input, out));
            assert_eq!(found, expected);
        }
    }
}

#[test]
fn attention_and_its_gradients_are_rounded_once() {
    both!(attention);
}

fn attention<H: Narrow>() {
    let [heads, group, queries, keys, width, values] = [4, 2, 70, 130, 33, 20];
    let of = |seed: u64, dims: &[usize]| Values::<H>::new(seed, dims, 2.0);
    let q = of(11, &[heads, queries, width]);
    let k = of(12, &[heads / group, keys, width]);
    let v = of(13, &[heads / group, keys, values]);
    let mask = of(14, &[heads, queries, keys]);
    let grad = of(15, &[heads, queries, values]);
    // A cache has room for more keys.
    let in_cache = |v: &Values<H>, width: usize| {
        Buffer::arranged(&[heads / group, keys + 3, width], &v.narrow, |layout| {
            layout.sliced("slice", 1, 2..2 + keys, 1).unwrap()
        })
    };
    for (causal, masked) in [(false, false), (true, false), (false, true), (true, true)] {
        let run = |backend: &CpuBackend, [q, k, v, mask, grad]: [&Buffer; 5], dtype: DType| {
            let of = families::AttentionInputs {
                scale: 0.2,
                causal,
                query: q.view(),
                key: k.view(),
                value: v.view(),
                mask: masked.then(|| mask.view()),
            };
            let (query, value) = (of.query.layout().shape(), of.value.layout().shape());
            let room = families::AttentionWorkspace { query, value, dtype };
            let mut workspace = Buffer::output(&[room.cpu_bytes()], DType::U8);
            let mut out = Buffer::output(&[heads, queries, values], dtype);
            let mut log_sums = Buffer::output(&[heads, queries], DType::F32);
            let kernel = families::Attention {
                of,
                workspace: Some(workspace.out()),
                out: out.out(),
                log_sums: log_sums.out(),
            };
            backend.run("attention", kernel).unwrap();
            let mut workspace =
                Buffer::output(&[families::AttentionGradWorkspace(room).cpu_bytes()], DType::U8);
            let mut grads = [
                Buffer::output(&[heads, queries, width], dtype),
                Buffer::output(&[heads / group, keys, width], dtype),
                Buffer::output(&[heads / group, keys, values], dtype),
            ];
            let [query_grad, key_grad, value_grad] = grads.each_mut().map(Buffer::out);
            let kernel = families::AttentionGrad {
                of,
                output: out.view(),
                log_sums: log_sums.view(),
                grad: grad.view(),
                workspace: Some(workspace.out()),
                query_grad,
                key_grad,
                value_grad,
            };
            backend.run("attention", kernel).unwrap();
            let [a, b, c] = grads;
            [out, a, b, c]
        };
        let wide = [&q, &k, &v, &mask, &grad].map(Values::wide);
        let narrow = [&q, &k, &v, &mask, &grad].map(|v| Buffer::of(&v.dims, &v.narrow));
        let expected = run(&backends()[0], wide.each_ref(), DType::F32);
        let [q, _, _, mask, grad] = narrow.each_ref();
        let (k, v) = (in_cache(&k, width), in_cache(&v, values));
        let mut all = backends()
            .map(|backend| run(&backend, [q, &k, &v, mask, grad], H::DTYPE).map(|out| out.values::<H>()));
        assert!(all[0] == all[1] && all[0] == all[2], "results depend on the number of threads");
        for (number, (found, expected)) in std::mem::take(&mut all[0]).iter().zip(&expected).enumerate() {
            let what = format!("attention, {causal}, {masked}, result {number}");
            // Weights and their gradients are rounded too, if the processor multiplies pairs.
            assert_rounded(found, &expected.values::<f32>(), (4.0, 1.0), &what);
        }
    }
}
