//! The weight gradient of few tiles: all tiles are transformed before they are multiplied, and nothing is summed afterwards.

use super::super::{Element, POSITIONS, TAPS, Winograd, direct};
use super::channels::{Transforms, staged};
use super::weights::AtOnce;
use crate::cpu::gemm::{COLUMNS, PackInto, ROWS, Tile};
use crate::cpu::parallel::Workers;
use crate::cpu::simd;

/// The number of panels of output channels that a task computes.
const GROUP: usize = 4;

/// The elements of the transformed tiles of a panel of input channels, of the gradients of a panel of output channels,
/// and of the products of a task.
fn elements(sizes: &Winograd) -> [usize; 3] {
    let count = sizes.tile_count();
    let [tiles, grads] = staged(sizes, count);
    [
        POSITIONS * (count + 1) * COLUMNS + tiles,
        POSITIONS * (count + 1) * ROWS + grads,
        GROUP * POSITIONS * ROWS * COLUMNS,
    ]
}

/// The number of elements in the workspace.
pub(super) fn workspace(sizes: &Winograd) -> usize {
    let [tile, grad, product] = elements(sizes);
    let rows = sizes.filter_panels();
    let (tiles, grads) = (tile.saturating_mul(sizes.inputs.div_ceil(COLUMNS)), grad.saturating_mul(rows));
    tiles.saturating_add(grads).saturating_add(product.saturating_mul(rows.div_ceil(GROUP)))
}

/// Computes the gradient of the weight.
pub(super) fn run<T: Element, S: PackInto<T>>(
    sizes: &Winograd,
    workers: &Workers,
    [images, output_grads]: [&[S]; 2],
    workspace: &mut [T],
    out: &mut [T],
) {
    let count = sizes.tile_count();
    let pitch = count + 1;
    let transforms = Transforms { sizes, block: [0, count], pitch };
    let [tile, grad, product] = elements(sizes);
    let (tile_panels, space) = workspace.split_at_mut(tile * sizes.inputs.div_ceil(COLUMNS));
    let (grad_panels, products) = space.split_at_mut(grad * sizes.filter_panels());
    workers.chunks(tile_panels, tile, &|start, panel| {
        let (panel, staged) = panel.split_at_mut(POSITIONS * pitch * COLUMNS);
        transforms.tiles(images, start / tile * COLUMNS, panel, staged);
    });
    workers.chunks(grad_panels, grad, &|start, panel| {
        let (panel, staged) = panel.split_at_mut(POSITIONS * pitch * ROWS);
        transforms.grads(output_grads, start / grad * ROWS, panel, staged);
    });
    let (tile_panels, grad_panels) = (&*tile_panels, &*grad_panels);
    let group = GROUP * ROWS * sizes.inputs * TAPS;
    workers.zipped([out, products], [group, product], &|number, [out, products]| {
        let (products, _) = products.as_chunks_mut::<COLUMNS>();
        let (products, _) = products.as_chunks_mut::<ROWS>();
        let grads = &grad_panels[number * GROUP * grad..];
        let (filters, _) = out.as_chunks_mut::<TAPS>();
        let rows = (filters.len() / sizes.inputs).div_ceil(ROWS);
        let (mut sum, mut are_finite) = (Tile::<T>::ZERO, true);
        for (panel, tiles) in tile_panels.chunks(tile).enumerate() {
            let (tiles, _) = tiles.as_chunks::<COLUMNS>();
            for position in 0..POSITIONS {
                let rhs = &tiles[position * pitch..][..count];
                for (row, grads) in grads.chunks(grad).take(rows).enumerate() {
                    let (lhs, _) = grads.as_chunks::<ROWS>();
                    T::multiply(&lhs[position * pitch..][..count], rhs, ROWS, &mut sum);
                    products[row * POSITIONS + position] = sum.0;
                }
            }
            are_finite &= simd::run(AtOnce { inputs: sizes.inputs, products, panel, filters });
        }
        if !are_finite {
            for (row, filters) in filters.chunks_exact_mut(sizes.inputs).enumerate() {
                let channel = number * GROUP * ROWS + row;
                simd::run(direct::Filters { sizes, images, grads: output_grads, channel, filters });
            }
        }
    });
}
