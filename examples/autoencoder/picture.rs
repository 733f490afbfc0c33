//! Draws pictures and their reconstructions: one row per evaluation.

use std::path::Path;

use anyhow::Context;
use highwater::tracking::AtomicFile;
use png::{BitDepth, ColorType, Encoder};

/// The approximate width of a picture in the drawing, in pixels.
const DOTS: usize = 56;

/// The gap between pictures, in pixels; three times as much below the originals.
const GAP: usize = 4;

/// The gray of the gaps, distinct from black and white.
const GROUND: u8 = 96;

/// Rows of square pictures.
pub(crate) struct Drawing {
    /// The width of a picture, in pixels.
    side: usize,
    /// The pictures of each row, with values from 0 (black) to 1.
    rows: Vec<Vec<f32>>,
}

impl Drawing {
    /// Starts with the originals.
    pub(crate) fn new(side: usize, originals: &[f32]) -> Self {
        Self { side, rows: vec![originals.to_vec()] }
    }

    /// Adds a row.
    pub(crate) fn add(&mut self, pictures: Vec<f32>) {
        self.rows.push(pictures);
    }

    /// Writes a PNG file.
    pub(crate) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let at = || path.display().to_string();
        let (width, dots) = self.dots();
        let mut file = AtomicFile::create(path).with_context(at)?;
        let mut encoder = Encoder::new(&mut file, width.try_into()?, (dots.len() / width).try_into()?);
        encoder.set_color(ColorType::Grayscale);
        encoder.set_depth(BitDepth::Eight);
        let mut writer = encoder.write_header().with_context(at)?;
        writer.write_image_data(&dots).with_context(at)?;
        writer.finish().with_context(at)?;
        file.commit().with_context(at)
    }

    /// The width, and the pixels row by row.
    fn dots(&self) -> (usize, Vec<u8>) {
        let scale = (DOTS / self.side).max(1);
        let cell = self.side * scale + GAP;
        let columns = self.rows[0].len() / (self.side * self.side);
        let (width, height) = (columns * cell + GAP, self.rows.len() * cell + 3 * GAP);
        let mut dots = vec![GROUND; width * height];
        for (row, pictures) in self.rows.iter().enumerate() {
            let top = GAP + row * cell + if row > 0 { 2 * GAP } else { 0 };
            for (number, &value) in pictures.iter().enumerate() {
                let (picture, pixel) = (number / (self.side * self.side), number % (self.side * self.side));
                let left = GAP + picture * cell + pixel % self.side * scale;
                let above = top + pixel / self.side * scale;
                // A cast to u8 stays within its bounds.
                let grey = (value * 255.0).round() as u8;
                for line in above..above + scale {
                    dots[line * width + left..][..scale].fill(grey);
                }
            }
        }
        (width, dots)
    }
}
