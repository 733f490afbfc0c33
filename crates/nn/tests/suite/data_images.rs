//! Folders of images.

use std::fs;
use std::io::Cursor;
use std::path::Path;

use highwater_nn::data::{Channels, DataError, Dataset, ImageFolder, ImageOptions};
use highwater_tensor::{Device, Error, Runtime};
use image::{DynamicImage, ImageFormat, RgbImage, Rgba, RgbaImage};

fn device() -> Device {
    Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
}

/// Writes an image of one color.
fn write(path: &Path, [width, height]: [u32; 2], color: [u8; 3], format: ImageFormat) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    RgbImage::from_pixel(width, height, image::Rgb(color)).save_with_format(path, format).unwrap();
}

/// Two classes: three red images of different sizes and formats, and a blue one.
fn colors(root: &Path) {
    write(&root.join("red/b.png"), [4, 2], [255, 0, 0], ImageFormat::Png);
    write(&root.join("red/a.JPG"), [8, 8], [255, 0, 0], ImageFormat::Jpeg);
    write(&root.join("red/c.jpeg"), [3, 5], [255, 0, 0], ImageFormat::Jpeg);
    write(&root.join("blue/d.png"), [1, 1], [0, 0, 255], ImageFormat::Png);
    fs::write(root.join("red/notes.txt"), "no image").unwrap();
    fs::write(root.join("red/.hidden.png"), "no image").unwrap();
    fs::write(root.join("top.png"), "no image").unwrap();
    write(&root.join("red/deeper/e.png"), [1, 1], [0, 0, 0], ImageFormat::Png);
}

#[test]
fn folders_are_classes_and_images_have_channels_first() {
    let root = tempfile::tempdir().unwrap();
    colors(root.path());
    let data = ImageFolder::open(root.path(), &ImageOptions::default().with_size(2, 3)).unwrap();
    assert_eq!(data.class_names(), ["blue", "red"]);
    let names: Vec<_> =
        data.files().map(|(path, class)| (path.file_name().unwrap().to_owned(), class)).collect();
    let expected = [("d.png", 0), ("a.JPG", 1), ("b.png", 1), ("c.jpeg", 1)];
    assert_eq!(names, expected.map(|(name, class)| (name.into(), class)));
    let device = device();
    for workers in [0, 2] {
        let mut batches = data.batches(4, &device).unwrap().workers(workers);
        let (x, y) = batches.next().unwrap().unwrap();
        assert_eq!((x.dims(), y.to_vec::<i64>().unwrap()), (&[4, 3, 2, 3][..], vec![0, 1, 1, 1]));
        let x = x.to_vec::<f32>().unwrap();
        assert_eq!(x[..18], [[0.0; 6], [0.0; 6], [1.0; 6]].concat());
        // JPEG is not exact.
        for image in x[18..].chunks(18) {
            assert!(
                image.iter().zip([[1.0; 6], [0.0; 6], [0.0; 6]].concat()).all(|(a, b)| (a - b).abs() < 0.01)
            );
        }
    }
}

#[test]
fn pixels_keep_their_places() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("a/x.png");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let image = RgbImage::from_fn(3, 2, |x, y| image::Rgb([(10 * x) as u8, (20 * y) as u8, 255]));
    image.save(&path).unwrap();
    let data = ImageFolder::open(root.path(), &ImageOptions::default()).unwrap();
    assert_eq!(data.sample_shape(), None);
    let sample = data.get(0).unwrap();
    assert_eq!(sample.input.shape().dims(), [3, 2, 3]);
    let bytes = [0, 10, 20, 0, 10, 20, 0, 0, 0, 20, 20, 20, 255, 255, 255, 255, 255, 255];
    assert_eq!(sample.input.to_vec::<f32>().unwrap(), bytes.map(|byte: u8| f32::from(byte) / 255.0));
    let gray = ImageOptions::default().with_channels(Channels::Gray).with_size(4, 4);
    let data = ImageFolder::open(root.path(), &gray).unwrap();
    assert_eq!(data.sample_shape().unwrap().dims(), [1, 4, 4]);
    assert_eq!(data.get(0).unwrap().input.shape().dims(), [1, 4, 4]);
    assert!(matches!(data.get(1), Err(Error::IndexOutOfRange { index: 1, len: 1, .. })));
}

#[test]
fn a_file_of_another_program_is_read() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("a")).unwrap();
    let case = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/pixels.png");
    fs::copy(case, root.path().join("a/pixels.png")).unwrap();
    let sample = ImageFolder::open(root.path(), &ImageOptions::default()).unwrap().get(0).unwrap();
    let pixel = |place: usize| [place % 5 * 40, place / 5 * 60, 199];
    let expected: Vec<f32> =
        (0..3).flat_map(|channel| (0..20).map(move |place| pixel(place)[channel] as f32 / 255.0)).collect();
    assert_eq!(sample.input.shape().dims(), [3, 4, 5]);
    assert_eq!(sample.input.to_vec::<f32>().unwrap(), expected);
}

#[test]
fn all_kinds_of_pixels_become_channels_from_0_to_1() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("a");
    fs::create_dir(&folder).unwrap();
    let clear = RgbaImage::from_pixel(2, 2, Rgba([255, 0, 51, 0]));
    let images = [
        DynamicImage::ImageRgba8(clear.clone()),
        DynamicImage::ImageRgb16(DynamicImage::ImageRgba8(clear.clone()).into_rgb16()),
        DynamicImage::ImageLuma8(DynamicImage::ImageRgba8(clear).into_luma8()),
    ];
    for (number, image) in images.iter().enumerate() {
        image.save(folder.join(format!("{number}.png"))).unwrap();
    }
    let data = ImageFolder::open(root.path(), &ImageOptions::default()).unwrap();
    let first = |index| data.get(index).unwrap().input.to_vec::<f32>().unwrap();
    assert_eq!(first(0), [[1.0; 4], [0.0; 4], [0.2; 4]].concat());
    assert_eq!(first(1), first(0));
    let gray = first(2);
    assert!(gray.iter().all(|&value| value == gray[0] && value > 0.2 && value < 0.4), "{gray:?}");
}

#[test]
fn test_images_get_the_classes_of_the_training_images() {
    let root = tempfile::tempdir().unwrap();
    let file = |name: &str| root.path().join(name).join("x.png");
    write(&file("red"), [1, 1], [255, 0, 0], ImageFormat::Png);
    let options = ImageOptions::default().with_class_names(["green", "red"]);
    let data = ImageFolder::open(root.path(), &options).unwrap();
    assert_eq!(data.files().map(|(_, class)| class).collect::<Vec<_>>(), [1]);
    write(&file("blue"), [1, 1], [0, 0, 255], ImageFormat::Png);
    let expected = DataError::UnknownClass { path: root.path().join("blue"), known: "green, red".to_owned() };
    assert_eq!(ImageFolder::open(root.path(), &options).unwrap_err(), Error::Data(expected));
}

#[test]
fn a_split_has_every_image_once() {
    let root = tempfile::tempdir().unwrap();
    colors(root.path());
    let data = ImageFolder::open(root.path(), &ImageOptions::default()).unwrap();
    let (train, test) = data.split(0.25, 3).unwrap();
    assert_eq!((train.len(), test.len(), test.class_names()), (3, 1, data.class_names()));
    let mut all: Vec<_> = train.files().chain(test.files()).collect();
    all.sort_unstable_by_key(|(path, class)| (*class, *path));
    assert_eq!(all, data.files().collect::<Vec<_>>());
}

#[test]
fn folders_without_images_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let open = |options: &ImageOptions| ImageFolder::open(root.path(), options).unwrap_err();
    let none = Error::Data(DataError::NoImages { path: root.path().to_owned() });
    assert_eq!(open(&ImageOptions::default()), none);
    fs::create_dir(root.path().join("empty")).unwrap();
    assert_eq!(open(&ImageOptions::default()), none);
    for (height, width) in [(0, 3), (3, 0), (usize::MAX, 2), (1 << 14, 1 << 14)] {
        let error = open(&ImageOptions::default().with_size(height, width));
        assert!(matches!(error, Error::BadArgument { argument: "size", .. }), "{error}");
    }
    colors(root.path());
    let error = open(&ImageOptions { max_files: 5, ..ImageOptions::default() });
    assert_eq!(error, Error::Data(DataError::TooManyFiles { path: root.path().to_owned(), limit: 5 }));
    let missing = ImageFolder::open(root.path().join("none"), &ImageOptions::default()).unwrap_err();
    assert!(matches!(missing, Error::Data(DataError::Io { .. })), "{missing}");
}

#[test]
fn hostile_images_are_errors_that_name_the_file() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("a/x.png");
    write(&path, [64, 64], [1, 2, 3], ImageFormat::Png);
    let options = ImageOptions { max_pixels: 4096, ..ImageOptions::default() };
    let data = ImageFolder::open(root.path(), &options).unwrap();
    assert!(data.get(0).is_ok());
    let small =
        ImageFolder::open(root.path(), &ImageOptions { max_pixels: 4095, ..options.clone() }).unwrap();
    let too_many = DataError::TooManyPixels { path: path.clone(), width: 64, height: 64, limit: 4095 };
    assert_eq!(small.get(0), Err(Error::Data(too_many)));
    let whole = fs::read(&path).unwrap();
    // The claimed size is not believed: 2³¹ - 1 pixels on each side.
    let mut claimed = whole.clone();
    claimed[16..24].copy_from_slice(&[0x7f, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff]);
    for bytes in [&whole[..40], b"", b"GIF89a\x01\0\x01\0", b"<html>", &claimed] {
        fs::write(&path, bytes).unwrap();
        let error = data.get(0).unwrap_err();
        assert!(
            matches!(&error, Error::Data(DataError::Image { path: named, .. }) if *named == path),
            "{error}"
        );
    }
    fs::remove_file(&path).unwrap();
    assert!(matches!(data.get(0), Err(Error::Data(DataError::Io { .. }))));
}

#[test]
fn files_changed_at_any_byte_are_images_or_errors() {
    let image = RgbImage::from_fn(5, 4, |x, y| image::Rgb([x as u8, y as u8, 199]));
    for format in [ImageFormat::Png, ImageFormat::Jpeg] {
        let mut whole = Cursor::new(Vec::new());
        image.write_to(&mut whole, format).unwrap();
        let whole = whole.into_inner();
        for at in 0..whole.len() {
            highwater_nn::fuzz::image(&whole[..at]);
            for bit in 0..8 {
                let mut changed = whole.clone();
                changed[at] ^= 1 << bit;
                highwater_nn::fuzz::image(&changed);
            }
        }
    }
}
