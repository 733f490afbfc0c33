//! Pools of 16-bit floats have the values of those of f32, rounded once.

use half::{bf16, f16};

use crate::families;
use crate::shape::Element;
use crate::testing::{Buffer, backends, noise};
use crate::window::{PoolAxis, PoolReduction, PoolWindow, Window};

fn sliding(size: usize, stride: usize, padding: usize) -> PoolAxis {
    PoolAxis::Sliding(PoolWindow::new(Window { size, stride, padding, dilation: 1 }))
}

/// Windows of 2 by 2, overlapping ones, ones with rows between them, means without padding, and adaptive ones.
fn windows() -> Vec<[PoolAxis; 2]> {
    let apart = PoolAxis::Sliding(PoolWindow {
        count_include_pad: false,
        ..PoolWindow::new(Window { size: 3, stride: 2, padding: 1, dilation: 1 })
    });
    let adaptive = |outputs| PoolAxis::Adaptive { outputs };
    vec![
        [sliding(2, 2, 0); 2],
        [sliding(3, 2, 1); 2],
        [sliding(3, 1, 1), sliding(2, 1, 0)],
        [sliding(1, 4, 0), sliding(2, 3, 1)],
        [apart; 2],
        [adaptive(3), adaptive(2)],
        [adaptive(1); 2],
    ]
}

/// The result and the gradient of a pool of these elements.
fn pooled<T: Element>(
    pool: PoolReduction,
    axes: [PoolAxis; 2],
    dims: [usize; 3],
    round: impl Fn(f64) -> T,
) -> [Vec<T>; 2] {
    let rounded = |values: Vec<f64>| values.into_iter().map(&round).collect::<Vec<T>>();
    let small = [dims[0], axes[0].outputs(dims[1]).unwrap(), axes[1].outputs(dims[2]).unwrap()];
    let input = Buffer::of(&dims, &rounded(noise(1, dims.iter().product())));
    let grads = Buffer::of(&small, &rounded(noise(2, small.iter().product())));
    let mut found: Option<[Vec<T>; 2]> = None;
    for backend in backends() {
        let (mut out, mut gradient) = (Buffer::output(&small, T::DTYPE), Buffer::output(&dims, T::DTYPE));
        let kernel = families::Pool2d { pool, axes, input: input.view(), out: out.out() };
        backend.run("pool", kernel).unwrap();
        let (input, grad) = (Some(input.view()), grads.view());
        let kernel = families::Pool2dGrad { pool, axes, input, grad, out: gradient.out() };
        backend.run("pool", kernel).unwrap();
        let results = [out.values::<T>(), gradient.values::<T>()];
        assert_eq!(*found.get_or_insert_with(|| results.clone()), results);
    }
    found.unwrap()
}

fn rounds_once<T: Element + Into<f64>>(round: impl Fn(f64) -> T + Copy) {
    for pool in [PoolReduction::Max, PoolReduction::Mean] {
        for axes in windows() {
            for dims in [[3, 7, 9], [2, 6, 40], [1, 130, 33], [40, 4, 4]] {
                let wide = pooled::<f32>(pool, axes, dims, |x| round(x).into() as f32);
                let narrow = pooled::<T>(pool, axes, dims, round);
                for (wide, narrow) in wide.iter().zip(&narrow) {
                    for (i, (&wide, &narrow)) in wide.iter().zip(narrow).enumerate() {
                        let at = format!("{pool:?} {axes:?} of {dims:?}, element {i}");
                        let (exact, found): (f64, f64) = (round(f64::from(wide)).into(), narrow.into());
                        // Means of whole planes add in another order.
                        let is_whole = axes == [PoolAxis::Adaptive { outputs: 1 }; 2];
                        let apart = (exact - found).abs();
                        assert!(exact == found || is_whole && apart < 1e-2 * exact.abs(), "{at}: {found}");
                    }
                }
            }
        }
    }
}

#[test]
fn pools_of_halves_are_those_of_f32_rounded_once() {
    // From f32, because conversions of `half` from f64 ignore the last bits.
    rounds_once(|x| bf16::from_f32(x as f32));
    rounds_once(|x| f16::from_f32(x as f32));
}
