//! User data sets, collation and workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;

use highwater_nn::data::{ArrayDataset, Augment, DataError, Dataset, Sample};
use highwater_tensor::{Device, DeviceProfile, DryRunOptions, Error, Result, Runtime, Shape, Tensor};

fn device() -> Device {
    Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
}

/// Sample `i` is `[i, -i]` with label `i`. Fails or panics at some indices, and counts the samples that were read.
#[derive(Default)]
struct Numbers {
    len: usize,
    bad: Vec<usize>,
    panics: Vec<usize>,
    read: AtomicUsize,
}

impl Dataset for Numbers {
    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize) -> Result<Sample> {
        self.read.fetch_add(1, SeqCst);
        // Late samples are fast, so that workers finish out of order.
        if index.is_multiple_of(7) {
            thread::yield_now();
        }
        assert!(!self.panics.contains(&index), "sample {index} is cursed");
        if self.bad.contains(&index) {
            return Err(Error::Custom { op: "numbers", message: format!("sample {index} is bad") });
        }
        let x = index as f32;
        Sample::new(&[x, -x], [2])?.with_label(index as i64)
    }
}

fn numbers(len: usize) -> Arc<Numbers> {
    Arc::new(Numbers { len, ..Numbers::default() })
}

/// The labels of each batch or the text of its error, after a check that the inputs belong to them.
fn outcomes(
    batches: impl Iterator<Item = Result<(Tensor, Tensor)>>,
) -> Vec<std::result::Result<Vec<i64>, String>> {
    batches
        .map(|batch| {
            let (x, y) = batch.map_err(|error| error.to_string())?;
            let labels = y.to_vec::<i64>().unwrap();
            assert_eq!(x.dims(), [labels.len(), 2]);
            let expected: Vec<f32> = labels.iter().flat_map(|&i| [i as f32, -i as f32]).collect();
            assert_eq!(x.to_vec::<f32>().unwrap(), expected);
            Ok(labels)
        })
        .collect()
}

#[test]
fn any_number_of_workers_returns_the_same_batches() {
    let (data, device) = (numbers(50), device());
    let pass = || data.batches(8, &device).unwrap().shuffled(3, 1);
    let expected = outcomes(pass());
    assert_eq!(expected.len(), 7);
    for workers in [1, 2, 3, 7, 100] {
        for prefetch in [0, 1, 2, 100, usize::MAX] {
            let batches = pass().workers(workers).prefetch(prefetch);
            assert_eq!(batches.len(), 7);
            assert_eq!(outcomes(batches), expected, "{workers} workers, {prefetch} ahead");
        }
    }
    let rows = ArrayDataset::new((0..50).flat_map(|i| [i as f32, -i as f32]).collect(), (0..50).collect(), 2);
    let rows = rows.unwrap();
    let batches = rows.batches(8, &device).unwrap().shuffled(3, 1);
    assert_eq!(outcomes(batches), expected, "a data set of arrays reads its batches at once");
    assert_eq!(outcomes(numbers(0).batches(8, &device).unwrap().workers(2)), []);
}

#[test]
fn a_pass_starts_at_any_batch() {
    let (data, device) = (numbers(50), device());
    let pass = || data.batches(8, &device).unwrap().shuffled(3, 1);
    let whole = outcomes(pass());
    for start in [0, 1, 6, 7, 8, usize::MAX] {
        for workers in [0, 3] {
            let batches = pass().start_at(start).workers(workers);
            assert_eq!(batches.len(), 7_usize.saturating_sub(start));
            assert_eq!(outcomes(batches), whole[start.min(7)..], "from batch {start}");
        }
    }
    data.read.store(0, SeqCst);
    assert_eq!(outcomes(pass().start_at(6)).len(), 1);
    assert_eq!(data.read.load(SeqCst), 2, "earlier batches are not read");
}

#[test]
fn a_configured_pass_begins_again() {
    let (data, device) = (numbers(20), device());
    let mut batches = data.batches(8, &device).unwrap().workers(2);
    assert_eq!(outcomes(batches.by_ref().take(1)), [Ok((0..8).collect())]);
    let batches = batches.drop_last();
    assert_eq!(outcomes(batches), [Ok((0..8).collect()), Ok((8..16).collect())]);
}

#[test]
fn errors_and_panics_end_only_their_batch() {
    let data = Arc::new(Numbers { len: 20, bad: vec![5], panics: vec![9, 14], ..Numbers::default() });
    let device = device();
    let expected = [
        Ok(vec![0, 1, 2, 3]),
        Err("numbers: sample 5 is bad".to_owned()),
        Err("batch 2: the data set panicked: sample 9 is cursed".to_owned()),
        Err("batch 3: the data set panicked: sample 14 is cursed".to_owned()),
        Ok(vec![16, 17, 18, 19]),
    ];
    for workers in [0, 1, 3] {
        let batches = data.batches(4, &device).unwrap().workers(workers);
        assert_eq!(outcomes(batches), expected, "{workers} workers");
    }
    let error = data.batches(20, &device).unwrap().workers(1).next().unwrap().unwrap_err();
    assert!(matches!(error, Error::Custom { op: "numbers", .. }), "{error:?}");
    let error = data.batches(4, &device).unwrap().workers(1).nth(2).unwrap().unwrap_err();
    assert!(matches!(error, Error::Data(DataError::Panicked { batch: 2, .. })), "{error:?}");
}

#[test]
fn workers_read_at_most_their_prefetch_ahead() {
    let (data, device) = (numbers(1000), device());
    let mut batches = data.batches(1, &device).unwrap().workers(2).prefetch(3);
    for taken in 1..=20 {
        batches.next().unwrap().unwrap();
        assert!(data.read.load(SeqCst) <= taken + 2 * 3, "after {taken}");
    }
    drop(batches);
    let read = data.read.load(SeqCst);
    assert!(read <= 20 + 2 * 4, "{read} samples were read, but 20 were taken");
    assert_eq!(Arc::strong_count(&data), 1, "the threads have ended");
}

#[test]
fn workers_change_nothing_in_the_memory_accounts() {
    let peak = |workers: usize| {
        let (data, device) = (numbers(100), device());
        assert_eq!(data.batches(8, &device).unwrap().workers(workers).count(), 13);
        let stats = device.default_allocator().unwrap().stats();
        (stats.num_allocs, stats.peak_bytes_in_use)
    };
    assert_eq!(peak(3), peak(0));
}

#[test]
fn a_dry_run_loads_batches_with_the_same_requests() {
    let load = |device: &Device| {
        let batches = numbers(50).batches(8, device)?.shuffled(1, 0).workers(2);
        batches.map(|batch| Ok(batch?.0.dims()[0])).sum::<Result<usize>>()
    };
    let dry = DryRunOptions::new(DeviceProfile::this_machine()).run(load).unwrap();
    let device = device();
    assert_eq!((dry.result, load(&device).unwrap()), (50, 50));
    let stats = device.default_allocator().unwrap().stats();
    assert_eq!(dry.peak.requested, stats.peak_bytes_requested);
    assert!(stats.peak_bytes_requested > 0);
}

#[test]
fn a_batch_of_a_worker_without_memory_is_retried() {
    let device = Runtime::builder().pool(bfc_core::Bytes::mib(1)).threads(1).build().unwrap().cpu().unwrap();
    let data = ArrayDataset::new(vec![1.0; 300 << 10], (0..3).collect(), 100 << 10).unwrap();
    let mut batches = data.batches(1, &device).unwrap().workers(1);
    let held = [batches.next().unwrap().unwrap(), batches.next().unwrap().unwrap()];
    let refused = batches.next().unwrap().unwrap_err();
    assert!(refused.out_of_memory().is_some(), "{refused}");
    assert_eq!(batches.len(), 1);
    drop(held);
    assert_eq!(batches.next().unwrap().unwrap().1.to_vec::<i64>().unwrap(), [2]);
    assert!(batches.next().is_none());
}

#[test]
fn collation_replaces_stacking_and_comes_after_augmentation() {
    let device = device();
    let data = ArrayDataset::new((0..32).map(|i| i as f32).collect(), vec![], 4).unwrap();
    let augment = Augment::images(1, 2, 2).flip();
    let stacked = data.batches(3, &device).unwrap().augmented(augment, 1, 0).unwrap();
    let stacked: Vec<f32> = stacked.flat_map(|batch| batch.unwrap().0.to_vec::<f32>().unwrap()).collect();
    assert_ne!(stacked, data.features());
    let collated = data.batches(3, &device).unwrap().augmented(augment, 1, 0).unwrap().workers(2);
    let collated = collated.collated(|mut samples| {
        samples.reverse();
        Sample::stack(&samples)
    });
    let mut reversed = Vec::new();
    for batch in collated {
        let x = batch.unwrap().0.to_vec::<f32>().unwrap();
        reversed.extend(x.chunks(4).rev().flatten().copied());
    }
    assert_eq!(reversed, stacked);
}

/// Samples that do not fit together, by their index.
struct Uneven;

impl Dataset for Uneven {
    fn len(&self) -> usize {
        6
    }

    fn get(&self, index: usize) -> Result<Sample> {
        match index {
            0 | 2 | 4 => Sample::new(&[1.0f32, 2.0], [2]),
            1 => Sample::new(&[1.0f32], [1]),
            3 => Sample::new(&[1i64, 2], [2]),
            _ => Sample::new(&[1.0f32, 2.0], [2])?.with_label(0),
        }
    }
}

#[test]
fn samples_that_do_not_stack_are_named() {
    let device = device();
    let errors: Vec<String> =
        Arc::new(Uneven).batches(2, &device).unwrap().map(|batch| batch.unwrap_err().to_string()).collect();
    let advice = "of one shape and type; pad or convert them in `Batches::collated`";
    assert_eq!(
        errors,
        [
            format!(
                "batches: samples must be {advice}, got inputs [2] of f32 in sample 0 and [1] of f32 in sample 1"
            ),
            format!(
                "batches: samples must be {advice}, got inputs [2] of f32 in sample 0 and [2] of i64 in sample 1"
            ),
            "batches: samples must be targets for all samples, or for none, got targets in 1 of 2 samples"
                .to_owned(),
        ]
    );
    let augmented =
        Arc::new(Uneven).batches(1, &device).unwrap().augmented(Augment::images(1, 1, 1).flip(), 0, 0);
    let errors: Vec<_> = augmented.unwrap().map(|batch| batch.err().map(|error| error.to_string())).collect();
    assert!(errors[0].as_ref().unwrap().starts_with("augmented: augment must be images"), "{errors:?}");
    assert_eq!(errors[1], None);
    assert!(errors[3].as_ref().unwrap().contains("[1, 2] of i64"), "{errors:?}");
}

/// A data set that claims more samples than any memory has numbers for.
struct Endless;

impl Dataset for Endless {
    fn len(&self) -> usize {
        usize::MAX
    }

    fn get(&self, index: usize) -> Result<Sample> {
        Sample::new(&[index as i64], ())
    }

    fn sample_shape(&self) -> Option<Shape> {
        Some(Shape::new(&[]).unwrap())
    }
}

#[test]
fn a_data_set_without_an_end_is_read_in_order_only() {
    let device = device();
    let data = Arc::new(Endless);
    let (x, _) = data.batches(3, &device).unwrap().start_at(5).workers(2).next().unwrap().unwrap();
    assert_eq!(x.to_vec::<i64>().unwrap(), [15, 16, 17]);
    let error = data.batches(3, &device).unwrap().shuffled(0, 0).next().unwrap().unwrap_err();
    assert_eq!(error, Error::Data(DataError::NoOrder { samples: usize::MAX }));
}

#[test]
fn all_element_types_and_shapes_become_batches() {
    struct Typed;
    impl Dataset for Typed {
        fn len(&self) -> usize {
            2
        }

        fn get(&self, index: usize) -> Result<Sample> {
            Sample::new(&[index == 1, true], [1, 2])?.with_target(&[index as u8], [1])
        }
    }
    let device = device();
    let (x, y) = Arc::new(Typed).batches(2, &device).unwrap().next().unwrap().unwrap();
    assert_eq!((x.dims(), x.to_vec::<bool>().unwrap()), (&[2, 1, 2][..], vec![false, true, true, true]));
    assert_eq!((y.dims(), y.to_vec::<u8>().unwrap()), (&[2, 1][..], vec![0, 1]));
}
