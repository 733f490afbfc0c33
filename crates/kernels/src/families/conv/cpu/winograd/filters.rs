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
    let (steps, reversed) = match direction {
        Direction::Forward => ([depth, 1], false),
        Direction::Backward => ([1, outputs], true),
    };
    simd::run(Panel { filters: &weight[first * steps[0]..], steps, reversed, rows, depth, panel });
}

/// Transforms the filters of one panel.
struct Panel<'a, T, S> {
    filters: &'a [[S; TAPS]],
    /// Filters from one row of the panel to the next, and from one depth to the next.
    steps: [usize; 2],
    /// Whether the taps have the opposite order.
    reversed: bool,
    rows: usize,
    depth: usize,
    panel: &'a mut [T],
}

impl<T: Float + Depth, S: PackInto<T>> Loop for Panel<'_, T, S> {
    type Element = T;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { filters: stored, steps: [down, along], reversed, rows, depth, panel } = self;
        let (panel, _) = panel.as_chunks_mut::<ROWS>();
        for at in 0..depth {
            let mut filters = [[Lanes::ZERO; 3]; 3];
            for row in 0..rows {
                let stored = &stored[row * down + at * along];
                for (number, tap) in stored.iter().enumerate() {
                    let place = if reversed { TAPS - 1 - number } else { number };
                    filters[place / 3][place % 3].0[row] = tap.pack(S::default());
                }
            }
            let columns = transform::filter(filters);
            for position in 0..POSITIONS {
                panel[position * depth + at] = columns[position % 4][position / 4].0;
            }
        }
    }
}
