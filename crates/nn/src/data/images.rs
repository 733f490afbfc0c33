//! Folders of images, one folder per class.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Seek};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use highwater_tensor::error::DataError;
use highwater_tensor::{Error, Place, Result, Shape};
use image::imageops::{FilterType, resize};
use image::{DynamicImage, ImageDecoder, ImageReader, Limits};

use super::batches::Batches;
use super::csv::list;
use super::dataset::Dataset;
use super::sample::Sample;
use super::shuffle;

/// The endings of the files that a folder reads.
const ENDINGS: [&str; 3] = ["png", "jpg", "jpeg"];

/// A decoder may hold four channels of 16 bits per pixel.
const BYTES_PER_PIXEL: u64 = 8;

/// Memory of a decoder beside the pixels: tables, and the metadata of the file.
const DECODER_BYTES: u64 = 16 << 20;

/// The channels of decoded images.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Channels {
    /// One channel: the brightness.
    Gray,
    /// Three channels: red, green and blue. Transparency is ignored.
    #[default]
    Rgb,
}

impl Channels {
    const fn count(self) -> usize {
        match self {
            Self::Gray => 1,
            Self::Rgb => 3,
        }
    }
}

/// Options and limits of an [`ImageFolder`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageOptions {
    /// The height and width of the samples. If not set, images keep their size, and a batch can only hold images of one
    /// size.
    pub size: Option<[usize; 2]>,
    /// The channels of the samples.
    pub channels: Channels,
    /// The names of all classes, in the order of the labels. If not set, the names of the folders, sorted.
    pub class_names: Option<Vec<String>>,
    /// Maximum number of pixels of a file, checked before it is decoded.
    pub max_pixels: u64,
    /// Maximum number of files and folders.
    pub max_files: usize,
}

impl Default for ImageOptions {
    /// The size of the files, three channels, the classes of the folder; at most 2²⁶ pixels per image and 2²⁴ files.
    fn default() -> Self {
        Self {
            size: None,
            channels: Channels::Rgb,
            class_names: None,
            max_pixels: 1 << 26,
            max_files: 1 << 24,
        }
    }
}

impl ImageOptions {
    /// Resizes all images to this size, with a triangle filter. The aspect ratio may change.
    #[must_use]
    pub const fn with_size(mut self, height: usize, width: usize) -> Self {
        self.size = Some([height, width]);
        self
    }

    /// Sets the channels.
    #[must_use]
    pub const fn with_channels(mut self, channels: Channels) -> Self {
        self.channels = channels;
        self
    }

    /// Sets the names of all classes, for example those of the training images. Other folders are errors.
    #[must_use]
    pub fn with_class_names<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.class_names = Some(names.into_iter().map(Into::into).collect());
        self
    }
}

/// Images in folders named after their classes: `root/CLASS/NAME.png` or `.jpg`.
///
/// A sample is an image `[channels, height, width]` (`f32` from 0 to 1) and the index of its class. Loading decodes and
/// resizes it, in the [workers](Batches::workers) if there are any. Other files and deeper folders are ignored.
///
/// ```no_run
/// use highwater::data::{ImageFolder, ImageOptions};
/// use highwater::Device;
/// let images = ImageFolder::open("flowers", &ImageOptions::default().with_size(64, 64))?;
/// println!("{:?}", images.class_names());
/// let (train, test) = images.split(0.2, 7)?;
/// for batch in train.batches(32, &Device::cpu()?)?.shuffled(7, 0).workers(4) {
///     let (x, y) = batch?; // [32, 3, 64, 64] and [32]
/// }
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ImageFolder {
    /// The files and their classes.
    files: Arc<Vec<(PathBuf, usize)>>,
    class_names: Arc<Vec<String>>,
    options: ImageOptions,
}

impl ImageFolder {
    /// Lists the images of a folder, without decoding them. They are sorted by class and name.
    ///
    /// # Errors
    /// [`DataError::Io`], [`DataError::NoImages`], [`DataError::UnknownClass`] and [`DataError::TooManyFiles`];
    /// [`Error::BadArgument`] for a size of 0 or above [`max_pixels`](ImageOptions::max_pixels).
    pub fn open(root: impl AsRef<Path>, options: &ImageOptions) -> Result<Self> {
        let root = root.as_ref();
        check_size(options)?;
        let mut budget = options.max_files;
        let mut folders = entries(root, root, options, &mut budget)?;
        folders.retain(|folder| folder.is_dir());
        let class_names = match &options.class_names {
            Some(names) => names.clone(),
            None => folders.iter().map(|folder| name_of(folder)).collect(),
        };
        let mut files = Vec::new();
        for folder in &folders {
            let name = name_of(folder);
            let class = class_names.iter().position(|class| *class == name).ok_or_else(|| {
                DataError::UnknownClass {
                    path: folder.clone(),
                    known: list(class_names.iter().map(String::as_str)),
                }
            })?;
            let images = entries(folder, root, options, &mut budget)?;
            files.extend(images.into_iter().filter(|path| is_image(path)).map(|path| (path, class)));
        }
        if files.is_empty() {
            return Err(DataError::NoImages { path: root.to_owned() }.into());
        }
        Ok(Self { files: Arc::new(files), class_names: Arc::new(class_names), options: options.clone() })
    }

    /// Returns the names of the classes; label `i` is the class `class_names()[i]`.
    #[must_use]
    pub fn class_names(&self) -> &[String] {
        &self.class_names
    }

    /// Returns the files and the labels of the samples.
    pub fn files(&self) -> impl ExactSizeIterator<Item = (&Path, usize)> {
        self.files.iter().map(|(path, class)| (path.as_path(), *class))
    }

    /// Splits the images at random into a training and a test set. The test set has the share `test_fraction` of the
    /// images, rounded. The split depends only on the seed. Neither part is empty.
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless 0 < `test_fraction` < 1, and if the rounded share leaves a part without images.
    pub fn split(&self, test_fraction: f64, seed: u64) -> Result<(Self, Self)> {
        let (train, test) = shuffle::split(self.files.len(), test_fraction, seed)?;
        let select = |indices: Vec<usize>| {
            let files = indices.into_iter().map(|index| self.files[index].clone()).collect();
            Self { files: Arc::new(files), ..self.clone() }
        };
        Ok((select(train), select(test)))
    }

    /// Returns an iterator over batches of `batch_size` images, in order unless [shuffled](Batches::shuffled). The last
    /// batch may be smaller.
    ///
    /// # Errors
    /// [`Error::BadArgument`] for a batch size of 0.
    pub fn batches<'a, P: Place>(&self, batch_size: usize, place: &'a P) -> Result<Batches<'a, P>> {
        Batches::new(Arc::new(self.clone()), batch_size, place)
    }
}

impl Dataset for ImageFolder {
    fn len(&self) -> usize {
        self.files.len()
    }

    fn get(&self, index: usize) -> Result<Sample> {
        let Some((path, class)) = self.files.get(index) else {
            let index = i64::try_from(index).unwrap_or(i64::MAX);
            return Err(Error::IndexOutOfRange { op: "get", index, len: self.files.len() });
        };
        let image = decode(path, &self.options)?;
        let (pixels, shape) = pixels(image, &self.options);
        Sample::new(&pixels, shape)?.with_label(*class as i64)
    }

    fn sample_shape(&self) -> Option<Shape> {
        let [height, width] = self.options.size?;
        Shape::new(&[self.options.channels.count(), height, width]).ok()
    }
}

/// Decodes an image to pixels from 0 to 1 and their shape.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn decode_bytes(
    bytes: &[u8],
    options: &ImageOptions,
) -> Result<(Vec<f32>, [usize; 3]), DataError> {
    Ok(pixels(decode_from(io::Cursor::new(bytes), Path::new("fuzz"), options)?, options))
}

fn check_size(options: &ImageOptions) -> Result<()> {
    let Some([height, width]) = options.size else { return Ok(()) };
    let fits = |pixels: usize| pixels > 0 && pixels as u64 <= options.max_pixels;
    let fits_u32 = u32::try_from(height).is_ok() && u32::try_from(width).is_ok();
    if fits_u32 && height.checked_mul(width).is_some_and(fits) {
        return Ok(());
    }
    let expected = "at least 1 by 1, and at most `max_pixels` in total";
    let got = format!("{height} by {width}");
    Err(Error::BadArgument { op: "image_folder", argument: "size", expected, got })
}

/// Lists the visible entries of a folder, sorted by name.
fn entries(folder: &Path, root: &Path, options: &ImageOptions, budget: &mut usize) -> Result<Vec<PathBuf>> {
    let failed = |error: io::Error| io_error(folder, &error);
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        *budget = budget
            .checked_sub(1)
            .ok_or_else(|| DataError::TooManyFiles { path: root.to_owned(), limit: options.max_files })?;
        if !entry.file_name().as_encoded_bytes().starts_with(b".") {
            paths.push(entry.path());
        }
    }
    paths.sort_unstable();
    Ok(paths)
}

fn name_of(folder: &Path) -> String {
    folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn is_image(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str());
    ending.is_some_and(|ending| ENDINGS.iter().any(|known| ending.eq_ignore_ascii_case(known)))
}

/// Decodes a file after a check of its size.
fn decode(path: &Path, options: &ImageOptions) -> Result<DynamicImage, DataError> {
    let file = File::open(path).map_err(|error| io_error(path, &error))?;
    decode_from(BufReader::new(file), path, options)
}

/// Decodes an image from any source. Errors show `path` as the file.
fn decode_from(
    source: impl BufRead + Seek,
    path: &Path,
    options: &ImageOptions,
) -> Result<DynamicImage, DataError> {
    let bad = |error: image::ImageError| match error {
        image::ImageError::IoError(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
            io_error(path, &error)
        }
        error => DataError::Image { path: path.to_owned(), message: error.to_string() },
    };
    let reader = ImageReader::new(source).with_guessed_format();
    let mut reader = reader.map_err(|error| io_error(path, &error))?;
    let mut limits = Limits::no_limits();
    let pixel_bytes = options.max_pixels.saturating_mul(BYTES_PER_PIXEL);
    limits.max_alloc = Some(pixel_bytes.saturating_add(DECODER_BYTES));
    reader.limits(limits);
    let decoder = reader.into_decoder().map_err(bad)?;
    let (width, height) = decoder.dimensions();
    if u64::from(width) * u64::from(height) > options.max_pixels {
        let (path, limit) = (path.to_owned(), options.max_pixels);
        return Err(DataError::TooManyPixels { path, width, height, limit });
    }
    DynamicImage::from_decoder(decoder).map_err(bad)
}

/// Returns the pixels from 0 to 1, channel after channel, and their shape.
fn pixels(image: DynamicImage, options: &ImageOptions) -> (Vec<f32>, [usize; 3]) {
    // The size was checked to fit.
    let size = options.size.map(|size| size.map(|side| side as u32));
    let (bytes, width, height) = match (options.channels, size) {
        (Channels::Gray, None) => raw(image.into_luma8()),
        (Channels::Gray, Some([height, width])) => {
            raw(resize(&image.into_luma8(), width, height, FilterType::Triangle))
        }
        (Channels::Rgb, None) => raw(image.into_rgb8()),
        (Channels::Rgb, Some([height, width])) => {
            raw(resize(&image.into_rgb8(), width, height, FilterType::Triangle))
        }
    };
    let channels = options.channels.count();
    let mut pixels = Vec::with_capacity(bytes.len());
    for channel in 0..channels {
        pixels.extend(bytes.iter().skip(channel).step_by(channels).map(|&byte| f32::from(byte) / 255.0));
    }
    (pixels, [channels, height, width])
}

/// Returns the bytes, the width and the height of an image.
fn raw<P: image::Pixel<Subpixel = u8>>(image: image::ImageBuffer<P, Vec<u8>>) -> (Vec<u8>, usize, usize) {
    let (width, height) = image.dimensions();
    (image.into_raw(), width as usize, height as usize)
}

fn io_error(path: &Path, error: &io::Error) -> DataError {
    DataError::Io { path: path.to_owned(), kind: error.kind(), message: error.to_string() }
}
