//! Data augmentation: random crops and flips of images.

use highwater_tensor::{DType, Error, Result};

use super::shuffle::numbers_below;
use crate::io::Array;

/// Random crops and horizontal flips of images. A row holds an image: channel after channel, line after line.
///
/// ```
/// use highwater::data::{ArrayDataset, Augment};
/// use highwater::Device;
/// let images = ArrayDataset::new(vec![0.5; 10 * 28 * 28], vec![3; 10], 28 * 28)?;
/// let augment = Augment::images(1, 28, 28).crop(2).flip();
/// for batch in images.batches(5, &Device::cpu()?)?.augmented(augment, 7, 0)? {
///     assert_eq!(batch?.0.dims(), [5, 28 * 28]);
/// }
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Augment {
    channels: usize,
    height: usize,
    width: usize,
    padding: usize,
    flip: bool,
}

impl Augment {
    /// Describes images of this size, without augmentation.
    #[must_use]
    pub const fn images(channels: usize, height: usize, width: usize) -> Self {
        Self { channels, height, width, padding: 0, flip: false }
    }

    /// Shifts each image by up to `padding` pixels in each direction and fills with 0. This equals a random crop of the
    /// zero-padded image.
    #[must_use]
    pub const fn crop(self, padding: usize) -> Self {
        Self { padding, ..self }
    }

    /// Mirrors each image left to right with probability 1/2.
    #[must_use]
    pub const fn flip(self) -> Self {
        Self { flip: true, ..self }
    }

    /// Checks that rows of `width` values are such images.
    pub(super) fn check(&self, width: usize) -> Result<()> {
        let refused = |expected| {
            let got = format!("{self:?} for rows of {width}");
            Err(Error::BadArgument { op: "augmented", argument: "augment", expected, got })
        };
        let pixels = self.channels.checked_mul(self.height).and_then(|lines| lines.checked_mul(self.width));
        if pixels != Some(width) || width == 0 {
            return refused("images of as many values as a row has");
        }
        if self.padding >= self.height.min(self.width).max(1) {
            return refused("shifts below the size of the image");
        }
        Ok(())
    }

    /// Augments the images of the samples `indices`: one image, or a batch.
    pub(super) fn change_all(
        &self,
        images: &mut Array,
        seed: u64,
        epoch: u64,
        indices: &[usize],
    ) -> Result<()> {
        let elements = images.shape().elements();
        if images.dtype() != DType::F32 || indices.is_empty() || !elements.is_multiple_of(indices.len()) {
            let got = format!("{} of {} for {} samples", images.shape(), images.dtype(), indices.len());
            return Err(Error::BadArgument {
                op: "augmented",
                argument: "samples",
                expected: "images of f32",
                got,
            });
        }
        let size = elements / indices.len();
        self.check(size)?;
        let pixels: &mut [f32] = bytemuck::cast_slice_mut(images.bytes_mut());
        for (image, &index) in pixels.chunks_exact_mut(size).zip(indices) {
            self.change(image, seed, epoch, index);
        }
        Ok(())
    }

    /// Augments the image in row `row` for pass `epoch`.
    pub(super) fn change(&self, image: &mut [f32], seed: u64, epoch: u64, row: usize) {
        // Each row of each pass has its own round of the generator. Passes are far apart, so that no two rows share a
        // round.
        let round = epoch.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(row as u64);
        let drawn = numbers_below(2 * self.padding + 1, 2, seed, round);
        let [down, across] = [0, 1].map(|axis| drawn[axis] as isize - self.padding as isize);
        let mirrored = self.flip && numbers_below(2, 3, seed, round)[2] == 1;
        if (down, across, mirrored) == (0, 0, false) {
            return;
        }
        let before = image.to_vec();
        let from =
            |to: usize, shift: isize, size: usize| to.checked_add_signed(shift).filter(|&from| from < size);
        for (number, line) in image.chunks_exact_mut(self.width).enumerate() {
            let (channel, y) = (number / self.height, number % self.height);
            let Some(y) = from(y, down, self.height) else {
                line.fill(0.0);
                continue;
            };
            let source = &before[(channel * self.height + y) * self.width..][..self.width];
            for (x, pixel) in line.iter_mut().enumerate() {
                let x = if mirrored { self.width - 1 - x } else { x };
                *pixel = from(x, across, self.width).map_or(0.0, |x| source[x]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that may become of an image, over many rows.
    fn outcomes(augment: Augment, image: &[f32]) -> std::collections::BTreeSet<Vec<u32>> {
        let changed = |row| {
            let mut image = image.to_vec();
            augment.change(&mut image, 3, 1, row);
            image.into_iter().map(f32::to_bits).collect()
        };
        (0..500).map(changed).collect()
    }

    fn bits(image: &[f32]) -> Vec<u32> {
        image.iter().map(|pixel| pixel.to_bits()).collect()
    }

    #[test]
    fn a_flip_gives_the_image_and_its_mirror_in_every_channel() {
        let image = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        let found = outcomes(Augment::images(2, 2, 2).flip(), &image);
        let mirror = [2.0, 1.0, 4.0, 3.0, 6.0, 5.0, 8.0, 7.0];
        assert_eq!(found, [bits(&image), bits(&mirror)].into());
    }

    #[test]
    fn random_crops_cover_all_offsets_and_pad_with_zeros() {
        let image = [1.0, 2.0, 3.0, 4.0];
        let found = outcomes(Augment::images(1, 2, 2).crop(1), &image);
        assert_eq!(found.len(), 9);
        for moved in [[4.0, 0.0, 0.0, 0.0], [2.0, 0.0, 4.0, 0.0], [0.0, 0.0, 0.0, 1.0], [3.0, 4.0, 0.0, 0.0]]
        {
            assert!(found.contains(&bits(&moved)), "{moved:?}");
        }
    }

    #[test]
    fn seed_pass_and_row_decide() {
        let augment = Augment::images(1, 8, 8).crop(3).flip();
        let image: Vec<f32> = (0..64).map(|pixel| pixel as f32).collect();
        let changed = &|seed, epoch, row| {
            let mut image = image.clone();
            augment.change(&mut image, seed, epoch, row);
            image
        };
        assert_eq!(changed(1, 2, 3), changed(1, 2, 3));
        let differ = |other: fn(usize) -> (u64, u64, usize)| {
            (0..50).filter(move |&row| {
                let (seed, epoch, other) = other(row);
                changed(1, 2, row) != changed(seed, epoch, other)
            })
        };
        assert!(differ(|row| (2, 2, row)).count() > 40);
        assert!(differ(|row| (1, 3, row)).count() > 40);
        assert!(differ(|row| (1, 2, row + 1)).count() > 40);
    }

    #[test]
    fn images_of_another_size_are_refused() {
        assert!(Augment::images(3, 2, 2).check(12).is_ok());
        for bad in [Augment::images(1, 2, 2), Augment::images(usize::MAX, 2, 2), Augment::images(0, 0, 0)] {
            assert!(matches!(bad.check(12), Err(Error::BadArgument { argument: "augment", .. })));
        }
        assert!(Augment::images(0, 0, 0).check(0).is_err());
        assert!(Augment::images(3, 2, 2).crop(1).check(12).is_ok());
        for padding in [2, usize::MAX] {
            assert!(Augment::images(3, 2, 2).crop(padding).check(12).is_err());
        }
    }
}
