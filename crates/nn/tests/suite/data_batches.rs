//! Splitting data and going through it in batches.

use std::collections::BTreeSet;

use bfc_core::Category;
use highwater_nn::data::{ArrayDataset, Augment, DataShard, Dataset};
use highwater_tensor::{Device, Error, Runtime};

/// Row `i` has the features i and i + 0.5 and the label i.
fn rows(count: i64) -> ArrayDataset {
    let features = (0..count).flat_map(|i| [i as f32, i as f32 + 0.5]).collect();
    ArrayDataset::new(features, (0..count).collect(), 2).unwrap()
}

fn device() -> Device {
    Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
}

/// The labels of each batch, after a check that the features belong to them.
fn labels(
    batches: impl Iterator<Item = highwater_tensor::Result<(highwater_tensor::Tensor, highwater_tensor::Tensor)>>,
) -> Vec<Vec<i64>> {
    batches
        .map(|batch| {
            let (x, y) = batch.unwrap();
            let labels = y.to_vec::<i64>().unwrap();
            let features: Vec<f32> = labels.iter().flat_map(|&i| [i as f32, i as f32 + 0.5]).collect();
            assert_eq!(x.dims(), [labels.len(), 2]);
            assert_eq!(x.to_vec::<f32>().unwrap(), features);
            labels
        })
        .collect()
}

/// The same features with two targets for each row: i, and i negative.
fn rows_with_targets(count: i64) -> ArrayDataset {
    let data = ArrayDataset::new(rows(count).features().to_vec(), vec![], 2).unwrap();
    data.with_targets((0..count).flat_map(|i| [i as f32, -i as f32]).collect(), 2).unwrap()
}

/// The first target of each row of each batch, after a check that the features and the other one belong to it.
fn targets(
    batches: impl Iterator<Item = highwater_tensor::Result<(highwater_tensor::Tensor, highwater_tensor::Tensor)>>,
) -> Vec<Vec<i64>> {
    batches
        .map(|batch| {
            let (x, y) = batch.unwrap();
            assert_eq!(x.dims(), y.dims());
            let (x, y) = (x.to_vec::<f32>().unwrap(), y.to_vec::<f32>().unwrap());
            assert!(x.chunks(2).zip(y.chunks(2)).all(|(x, y)| x == [y[0], y[0] + 0.5] && y[1] == -y[0]));
            y.chunks(2).map(|y| y[0] as i64).collect()
        })
        .collect()
}

#[test]
fn targets_come_with_their_rows_in_the_order_of_labels() {
    let (classes, numbers, device) = (rows(50), rows_with_targets(50), device());
    let expected = labels(classes.batches(8, &device).unwrap().shuffled(3, 1));
    let pass = || numbers.batches(8, &device).unwrap().shuffled(3, 1);
    assert_eq!(targets(pass()), expected);
    assert_eq!(targets(pass().workers(1)), expected);
    assert_eq!(targets(numbers.batches(8, &device).unwrap().drop_last()).len(), 6);
}

#[test]
fn a_split_takes_targets_along() {
    let (classes, numbers, device) = (rows(50), rows_with_targets(50), device());
    let (train, test) = numbers.split(0.2, 5).unwrap();
    assert_eq!((train.rows(), train.target_width(), test.rows()), (40, 2, 10));
    let found = targets(test.batches(10, &device).unwrap());
    assert_eq!(found, [classes.split(0.2, 5).unwrap().1.labels().to_vec()]);
}

#[test]
fn one_target_a_row_is_a_column() {
    let data =
        ArrayDataset::new(vec![1.0, 2.0], vec![7, 8], 1).unwrap().with_targets(vec![3.0, 4.0], 1).unwrap();
    assert!(data.labels().is_empty(), "targets take the labels' place");
    let device = device();
    let (_x, y) = data.scaled(2.0).batches(2, &device).unwrap().next().unwrap().unwrap();
    assert_eq!((y.dims(), y.to_vec::<f32>().unwrap()), (&[2, 1][..], vec![3.0, 4.0]));
}

#[test]
fn targets_that_do_not_fit_their_rows_are_refused() {
    let with = |targets: usize, width| rows(3).with_targets(vec![0.0; targets], width);
    assert!(with(6, 2).is_ok());
    for (targets, width) in [(5, 2), (6, 1), (0, 1), (0, usize::MAX)] {
        assert!(matches!(with(targets, width), Err(Error::BadArgument { argument: "targets", .. })));
    }
    assert!(matches!(with(0, 0), Err(Error::BadArgument { argument: "width", .. })));
}

#[test]
fn batches_come_in_order_and_the_last_one_is_what_is_left() {
    let (data, device) = (rows(7), device());
    let batches = data.batches(3, &device).unwrap();
    assert_eq!(batches.len(), 3);
    assert_eq!(labels(batches), [vec![0, 1, 2], vec![3, 4, 5], vec![6]]);
    assert_eq!(labels(data.batches(3, &device).unwrap().drop_last()), [vec![0, 1, 2], vec![3, 4, 5]]);
    assert_eq!(labels(rows(6).batches(3, &device).unwrap().drop_last()).len(), 2);
    let (data, seed) = (rows(7), 3);
    let before = labels(data.batches(3, &device).unwrap().drop_last().shuffled(seed, 0));
    let after = labels(data.batches(3, &device).unwrap().shuffled(seed, 0).drop_last());
    assert_eq!(before, after, "the order of the calls does not matter");
}

#[test]
fn shuffled_batches_have_every_row_exactly_once() {
    let (data, device) = (rows(50), device());
    let pass = |seed, epoch| labels(data.batches(8, &device).unwrap().shuffled(seed, epoch));
    let order = pass(1, 0).concat();
    assert_eq!(order.iter().copied().collect::<BTreeSet<_>>(), (0..50).collect());
    assert_eq!(order, pass(1, 0).concat());
    for other in [(1, 1), (2, 0), (0, 1)] {
        assert_ne!(order, pass(other.0, other.1).concat());
    }
    let by_fives = labels(data.batches(5, &device).unwrap().shuffled(1, 0)).concat();
    assert_eq!(order, by_fives, "the size of batches must not matter");
}

#[test]
fn parts_are_the_micro_batches_of_one_process_in_turn() {
    let (data, device) = (rows(53), device());
    let pass = || data.batches(4, &device).unwrap().shuffled(3, 1);
    let whole = labels(pass());
    for size in [1, 2, 3, 5, 14, 15] {
        for rank in 0..size {
            let part = || pass().sharded(DataShard::new(rank, size).unwrap());
            let expected: Vec<_> =
                whole.chunks_exact(size).map(|micro_batches| micro_batches[rank].clone()).collect();
            assert_eq!(part().len(), 14 / size);
            assert_eq!(labels(part()), expected);
            assert_eq!(labels(part().workers(2).start_at(1)), expected.get(1..).unwrap_or_default());
        }
    }
    for (rank, size) in [(0, 0), (2, 2), (usize::MAX, 1)] {
        assert!(matches!(DataShard::new(rank, size), Err(Error::BadArgument { argument: "rank", .. })));
    }
}

#[test]
fn a_batch_is_input_in_the_scope_data() {
    let runtime = Runtime::builder().threads(1).build().unwrap();
    let (data, device) = (rows(4), runtime.cpu().unwrap());
    let (x, _y) = data.batches(4, &device).unwrap().next().unwrap().unwrap();
    assert_eq!(x.storage().category(), Some(Category::Input));
    let ledger = device.default_allocator().unwrap().ledger();
    assert_eq!(ledger.category(Category::Input), ledger.total());
    assert!(runtime.tracker().op_totals().iter().all(|row| row.module.path() == "data"));
}

#[test]
fn a_split_has_every_row_once_and_is_decided_by_the_seed() {
    let data = rows(101);
    let (train, test) = data.split(0.2, 5).unwrap();
    assert_eq!((train.rows(), test.rows()), (81, 20));
    let all: BTreeSet<i64> = train.labels().iter().chain(test.labels()).copied().collect();
    assert_eq!(all, (0..101).collect());
    assert!(test.labels().iter().zip(test.features().chunks(2)).all(|(&label, row)| row[0] == label as f32));
    assert_eq!(data.split(0.2, 5).unwrap(), (train, test.clone()));
    assert_ne!(data.split(0.2, 6).unwrap().1, test);
}

#[test]
fn a_split_with_an_empty_part_is_an_error() {
    let data = rows(3);
    for bad in [0.0, 1.0, -0.0, -0.1, 1.1, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e-9, 0.16, 0.84] {
        let error = data.split(bad, 1).unwrap_err();
        assert!(
            matches!(error, Error::BadArgument { op: "split", argument: "test_fraction", .. }),
            "{bad}: {error}"
        );
    }
    for few in [0, 1] {
        assert!(rows(few).split(0.5, 1).is_err(), "{few} rows");
    }
    assert_eq!(
        data.split(0.1, 1).unwrap_err().to_string(),
        "split: test_fraction must be a share that leaves rows in both parts, got 0.1, which takes 0 of 3 rows"
    );
    let (train, test) = data.split(0.17, 1).unwrap();
    assert_eq!((train.rows(), test.rows()), (2, 1));
    let (train, test) = rows(2).split(0.5, 1).unwrap();
    assert_eq!((train.rows(), test.rows()), (1, 1));
}

#[test]
fn data_that_does_not_fit_together_is_refused() {
    assert!(matches!(
        ArrayDataset::new(vec![0.0; 5], vec![0, 1], 2),
        Err(Error::BadArgument { argument: "features", .. })
    ));
    assert!(matches!(
        ArrayDataset::new(vec![0.0; 4], vec![0, 1, 2], 2),
        Err(Error::BadArgument { argument: "labels", .. })
    ));
    let device = device();
    assert!(matches!(rows(2).batches(0, &device), Err(Error::BadArgument { argument: "batch_size", .. })));
}

#[test]
fn a_shape_of_rows_is_the_shape_of_batches() {
    let images = ArrayDataset::new((0..24).map(|i| i as f32).collect(), vec![], 12).unwrap();
    let images = images.with_shape([3, 2, 2]).unwrap();
    let device = device();
    let (x, _y) = images.batches(2, &device).unwrap().shuffled(1, 0).next().unwrap().unwrap();
    assert_eq!(x.dims(), [2, 3, 2, 2]);
    assert_eq!((images.width(), images.get(1).unwrap().input.shape().dims()), (12, &[3, 2, 2][..]));
    assert_eq!(images.split(0.5, 1).unwrap().0.shape().dims(), [3, 2, 2]);
    assert!(matches!(images.clone().with_shape([3, 2]), Err(Error::ElementCount { elements: 12, .. })));
    assert!(matches!(images.with_shape([1, 1, 1, 1, 1, 1, 1, 12]), Err(Error::RankTooLarge { .. })));
}

#[test]
fn a_changed_clone_leaves_the_data_set_unchanged() {
    let data = rows(3);
    let clone = data.clone().scaled(2.0);
    assert_eq!((data.features()[1], clone.features()[1]), (0.5, 1.0));
}

#[test]
fn data_without_labels_gives_batches_without_labels() {
    let data = ArrayDataset::new(vec![1.0, 2.0, 3.0, 4.0], Vec::new(), 2).unwrap();
    let device = device();
    let (x, y) = data.batches(9, &device).unwrap().shuffled(0, 0).next().unwrap().unwrap();
    assert_eq!((x.dims(), y.dims()), (&[2, 2][..], &[0][..]));
}

#[test]
fn scaling_multiplies_every_feature_and_no_label() {
    let data = rows(3).scaled(2.0);
    assert_eq!(data.features(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(data.labels(), [0, 1, 2]);
}

#[test]
fn a_batch_without_memory_is_an_error_and_loses_no_rows() {
    let runtime = Runtime::builder().pool(bfc_core::Bytes::mib(1)).threads(1).build().unwrap();
    let device = runtime.cpu().unwrap();
    let data = ArrayDataset::new(vec![0.0; 100 << 10], vec![0; 1 << 10], 100).unwrap();
    let hog = highwater_tensor::Tensor::zeros(&device, [200 << 10]).unwrap();
    let mut batches = data.batches(1 << 10, &device).unwrap();
    let error = batches.next().unwrap().unwrap_err();
    assert!(error.out_of_memory().is_some(), "{error}");
    drop(hog);
    assert_eq!(batches.next().unwrap().unwrap().1.dims(), [1 << 10]);
    assert!(batches.next().is_none());
}

#[test]
fn augmentation_depends_on_the_epoch_and_not_on_batches() {
    let device = device();
    let images =
        ArrayDataset::new((0..20 * 16).map(|pixel| pixel as f32).collect(), (0..20).collect(), 16).unwrap();
    let augment = Augment::images(1, 4, 4).crop(1).flip();
    let pass = |batch_size, epoch| {
        let batches = images.batches(batch_size, &device).unwrap();
        let batches = batches.augmented(augment, 5, epoch).unwrap();
        batches.workers(2).flat_map(|batch| batch.unwrap().0.to_vec::<f32>().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(pass(3, 0), pass(20, 0));
    assert_ne!(pass(3, 0), pass(3, 1));
    assert_ne!(pass(3, 0), images.features());
    let refused = images.batches(3, &device).unwrap().augmented(Augment::images(1, 4, 5), 0, 0);
    assert!(matches!(refused, Err(Error::BadArgument { op: "augmented", .. })));
}
