//! Transformed filters: G g Gᵀ, packed to panels of the micro-kernel.

use super::transform::{self, Lanes};
use super::{Direction, POSITIONS, TAPS, Winograd};
use crate::cpu::gemm::{Depth, PackInto, ROWS};
use crate::cpu::number::Float;
use crate::cpu::simd::{self, Loop};

/// Transforms the filters of panel `number`, `[position][depth][row]`.
pub(super) fn transform<T: Float + Depth, S: PackInto<T>>(
    sizes: &Winograd,
    weight: &[[S; TAPS]],
    number: usize,
    panel: &mut [T],
) {
    let Winograd { inputs: depth, outputs, direction, .. } = *sizes;
    let first = number * ROWS;
    let rows = ROWS.min(outputs - first);
    match direction {
        Direction::Forward => {
            let filters = &weight[first * depth..];
            let taps = |row: usize, at: usize, tap: usize| filters[row * depth + at][tap].pack(S::default());
            simd::run(Panel { taps, rows, depth, panel });
        }
        Direction::Backward => {
            let filters = &weight[first..];
            let taps = |row: usize, at: usize, tap: usize| {
                filters[at * outputs + row][TAPS - 1 - tap].pack(S::default())
            };
            simd::run(Panel { taps, rows, depth, panel });
        }
    }
}

/// Transforms the filters of one panel.
struct Panel<'a, T, F> {
    /// The tap of a row of the panel, at some depth.
    taps: F,
    rows: usize,
    depth: usize,
    panel: &'a mut [T],
}

impl<T: Float, F: Fn(usize, usize, usize) -> T> Loop for Panel<'_, T, F> {
    type Element = T;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { taps, rows, depth, panel } = self;
        let (panel, _) = panel.as_chunks_mut::<ROWS>();
        for at in 0..depth {
            let mut filters = [[Lanes::ZERO; 3]; 3];
            for row in 0..rows {
                for tap in 0..TAPS {
                    filters[tap / 3][tap % 3].0[row] = taps(row, at, tap);
                }
            }
            let columns = transform::filter(filters);
            for position in 0..POSITIONS {
                panel[position * depth + at] = columns[position % 4][position / 4].0;
            }
        }
    }
}
