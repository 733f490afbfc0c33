//! The split of a convolution's work into tasks, and the memory of a task.

use std::ops::Range;

use super::{SLOTS, Sizes, Slot};
use crate::cpu::gemm::ROWS;
use crate::cpu::parallel::Workers;

/// Some rows of the output of some images.
pub(super) struct ImageTask<'a, T> {
    pub(super) images: Range<usize>,
    pub(super) group: usize,
    /// The channels of the group that the task computes.
    pub(super) rows: Range<usize>,
    /// The planes of these channels for each image.
    pub(super) out: Vec<&'a mut [T]>,
}

/// Splits the output of shape `[images, groups, rows, plane]` into tasks.
pub(super) fn image_tasks<'a, T>(
    sizes: &Sizes,
    workers: &Workers,
    out: &'a mut [T],
    [rows, plane]: [usize; 2],
) -> Vec<ImageTask<'a, T>> {
    let per_task = sizes.staged_images();
    let threads = workers.threads().min(sizes.slots());
    // Rows are split if there are few images.
    let parts = match sizes.images.div_ceil(per_task) * sizes.groups {
        tasks if threads > 1 && tasks < SLOTS => SLOTS.min(2 * threads).div_ceil(tasks),
        _ => 1,
    };
    let rows_per_task = if parts == 1 { rows } else { rows.div_ceil(parts).next_multiple_of(ROWS) };
    let mut tasks = Vec::new();
    for (number, out) in out.chunks_mut(per_task * sizes.groups * rows * plane).enumerate() {
        let first = tasks.len();
        let images = number * per_task..sizes.images.min((number + 1) * per_task);
        for group in 0..sizes.groups {
            let starts = (0..rows).step_by(rows_per_task);
            tasks.extend(starts.map(|start| ImageTask {
                images: images.clone(),
                group,
                rows: start..rows.min(start + rows_per_task),
                out: Vec::with_capacity(images.len()),
            }));
        }
        for image in out.chunks_mut(sizes.groups * rows * plane) {
            let parts =
                image.chunks_mut(rows * plane).flat_map(|group| group.chunks_mut(rows_per_task * plane));
            tasks[first..].iter_mut().zip(parts).for_each(|(task, part)| task.out.push(part));
        }
    }
    tasks
}

/// The memory of a task.
pub(super) struct Scratch<'a, T, S, P> {
    pub(super) staged: &'a mut [S],
    pub(super) transposed: &'a mut [P],
    pub(super) sums: &'a mut [T],
    pub(super) panels: &'a mut [P],
}

impl Slot {
    /// Splits the memory of a task. Staged and packed elements are at most as large as a `T`.
    pub(super) fn split<T: bytemuck::Pod, S: bytemuck::Pod, P: bytemuck::Pod>(
        self,
        scratch: &mut [T],
    ) -> Scratch<'_, T, S, P> {
        let (staged, rest) = scratch.split_at_mut(self.staged);
        let (transposed, rest) = rest.split_at_mut(self.transposed);
        let (sums, panels) = rest.split_at_mut(self.sums);
        Scratch {
            staged: bytemuck::cast_slice_mut(staged),
            transposed: bytemuck::cast_slice_mut(transposed),
            sums,
            panels: bytemuck::cast_slice_mut(panels),
        }
    }
}
