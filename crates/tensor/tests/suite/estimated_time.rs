//! The work of kernels, counted by hand, and the time that a dry device estimates from it.

use bfc_core::Category;
use highwater_tensor::backend::kernels::{self, AdamRule};
use highwater_tensor::{
    AttentionOptions, Conv2dOptions, DType, Device, DeviceProfile, IntoShape, Limit, OpContext,
    RecurrentCell, RecurrentWeights, Result, StepTime, Tensor, dry_run, mixed,
};

/// A dry device with a speed.
fn device() -> Device {
    Device::dry_as(DeviceProfile::gpu("t4").unwrap()).unwrap()
}

fn zeros(device: &Device, shape: impl IntoShape) -> Tensor {
    Tensor::zeros(device, shape).unwrap()
}

/// The time of an op, or of several.
fn time<T>(device: &Device, program: impl FnOnce() -> Result<T>) -> StepTime {
    let before = device.estimated_time().unwrap();
    program().unwrap();
    device.estimated_time().unwrap() - before
}

/// The multiply-adds and bytes of an op.
fn work<T>(device: &Device, program: impl FnOnce() -> Result<T>) -> [u64; 2] {
    let time = time(device, program);
    [time.multiply_adds, time.bytes]
}

#[test]
fn a_product_reads_both_factors_once() {
    let device = device();
    let (x, w) = (zeros(&device, [64, 784]), zeros(&device, [784, 256]));
    let [multiply_adds, bytes] = [64 * 784 * 256, 4 * (64 * 784 + 784 * 256 + 64 * 256)];
    assert_eq!(work(&device, || x.matmul(&w)), [multiply_adds, bytes]);
    // A transposed factor has the same elements.
    let turned = zeros(&device, [256, 784]).t().unwrap();
    assert_eq!(work(&device, || x.matmul(&turned)), [multiply_adds, bytes]);
    // 32 rows of a slice in the middle.
    let rows = x.slice(0, 16..48).unwrap();
    let bytes = 4 * (32 * 784 + 784 * 256 + 32 * 256);
    assert_eq!(work(&device, || rows.matmul(&w)), [multiply_adds / 2, bytes]);
    // Seven products with one right factor, and one left factor.
    let many = zeros(&device, [7, 5, 6]);
    let one = zeros(&device, [6, 8]).broadcast_to([7, 6, 8]).unwrap();
    assert_eq!(work(&device, || many.matmul(&one)), [7 * 5 * 6 * 8, 4 * (7 * 5 * 6 + 6 * 8 + 7 * 5 * 8)]);
    // Both gradients multiply as much as the product.
    let [x, w] = [x, w].map(|factor| factor.requiring_grad().unwrap());
    let y = x.matmul(&w).unwrap().sum_all().unwrap();
    assert_eq!(time(&device, || y.backward()).multiply_adds, 2 * 64 * 784 * 256);
}

#[test]
fn elementwise_ops_read_distinct_elements_and_write_all() {
    let device = device();
    let (column, row) = (zeros(&device, [64, 1]), zeros(&device, [1, 32]));
    assert_eq!(work(&device, || column.add(&row)), [0, 4 * (64 + 32 + 64 * 32)]);
    let x = zeros(&device, [64, 32]);
    assert_eq!(work(&device, || x.exp()), [0, 4 * (2 * 64 * 32)]);
    let narrow = x.to_dtype(DType::BF16).unwrap();
    assert_eq!(work(&device, || narrow.exp()), [0, 2 * (2 * 64 * 32)]);
    let every_second = x.slice_step(1, .., 2).unwrap();
    assert_eq!(work(&device, || every_second.contiguous()), [0, 4 * (2 * 64 * 16)]);
    assert_eq!(work(&device, || x.sum([1])), [0, 4 * (64 * 32 + 64)]);
    // A view computes nothing.
    assert_eq!(time(&device, || x.reshape([2048])), StepTime::default());
}

#[test]
fn indices_read_the_selected_rows_alone() {
    let device = device();
    let (table, rows) = (zeros(&device, [50_257, 16]), Tensor::arange(&device, 0, 10).unwrap());
    assert_eq!(work(&device, || table.embedding(&rows)), [0, 4 * (2 * 10 * 16) + 8 * 10]);
}

#[test]
fn convolutions_multiply_each_tap_of_each_place() {
    let device = device();
    let x = zeros(&device, [2, 3, 10, 10]).requiring_grad().unwrap();
    let weight = zeros(&device, [8, 3, 3, 3]).requiring_grad().unwrap();
    let multiply_adds = 2 * 8 * 100 * 27;
    let padded = Conv2dOptions::padded(1);
    let bytes = 4 * (2 * 3 * 100 + 8 * 27 + 2 * 8 * 100);
    assert_eq!(work(&device, || x.conv2d(&weight, padded)), [multiply_adds, bytes]);
    let strided = Conv2dOptions { stride: [2, 2], ..padded };
    assert_eq!(time(&device, || x.conv2d(&weight, strided)).multiply_adds, multiply_adds / 4);
    for (options, multiply_adds) in [(padded, multiply_adds), (strided, multiply_adds / 4)] {
        let y = x.conv2d(&weight, options).unwrap().sum_all().unwrap();
        assert_eq!(time(&device, || y.backward()).multiply_adds, 2 * multiply_adds);
    }
    // Each of 4 groups has 2 of 8 channels.
    let (x, weight) = (zeros(&device, [1, 8, 6, 6]), zeros(&device, [4, 2, 1, 1]));
    let grouped = Conv2dOptions { groups: 4, ..Conv2dOptions::default() };
    assert_eq!(time(&device, || x.conv2d(&weight, grouped)).multiply_adds, 4 * 36 * 2);
}

#[test]
fn causal_attention_skips_later_keys() {
    let device = device();
    let qkv = || zeros(&device, [2, 4, 8]);
    let [query, key, value] = [qkv(), qkv(), qkv()];
    let attend = |causal| {
        let options = AttentionOptions { causal, ..AttentionOptions::default() };
        time(&device, || query.attention(&key, &value, None, options)).multiply_adds
    };
    assert_eq!([attend(false), attend(true)], [2 * 16 * (8 + 8), 2 * 10 * (8 + 8)]);
    // With four cached keys, two new queries see 3 and 4 keys. Two heads of keys serve four heads of queries.
    let [query, key] = [zeros(&device, [4, 2, 8]), zeros(&device, [2, 4, 8])];
    let options = AttentionOptions { causal: true, ..AttentionOptions::default() };
    let time = time(&device, || query.attention(&key, &key, None, options));
    assert_eq!(time.multiply_adds, 4 * 7 * (8 + 8));
}

#[test]
fn recurrent_layers_multiply_the_state_at_each_step() {
    let device = device();
    let [sequences, len, inputs, hidden] = [3, 5, 7, 11];
    let x = zeros(&device, [sequences, len, inputs]);
    let weights = [inputs, hidden].map(|rows| zeros(&device, [rows, 4 * hidden]));
    let biases = [zeros(&device, 4 * hidden), zeros(&device, 4 * hidden)];
    let weights = RecurrentWeights {
        input: &weights[0],
        hidden: &weights[1],
        input_bias: &biases[0],
        hidden_bias: &biases[1],
    };
    let time = time(&device, || x.recurrent(RecurrentCell::Lstm, weights, &[], false));
    assert_eq!(time.multiply_adds, (sequences * len * (inputs + hidden) * 4 * hidden) as u64);
}

#[test]
fn an_optimizer_reads_four_tensors_and_writes_three() {
    let device = device();
    let ctx =
        OpContext::create("adam", &device, device.default_allocator().unwrap(), Category::OptimizerState);
    let buffer = || ctx.output(&[100].into_shape().unwrap(), DType::F32).unwrap();
    let (grad, mut mean, mut variance, mut param) = (buffer(), buffer(), buffer(), buffer());
    let time = time(&device, || {
        let states = [Some(mean.view_mut()), Some(variance.view_mut()), None];
        let (rule, grad, param) = (AdamRule::DEFAULT.into(), grad.view(), param.view_mut());
        ctx.compute(kernels::OptimizerStep { rule, number: 1, grad, states, param })
    });
    assert_eq!((time.bytes, time.kernels), (7 * 400, 1));
}

#[test]
fn uploads_are_no_kernels_but_take_time() {
    let device = device();
    let time = time(&device, || Tensor::from_slice(&device, &vec![0.0_f32; 1 << 20], [1 << 20]));
    assert_eq!((time.kernels, time.bytes, time.limit()), (0, 4 << 20, Limit::Memory));
    assert!(time.seconds > 0.0);
}

#[test]
fn the_parts_of_a_time_add_up_and_name_the_limit() {
    let device = device();
    let large = zeros(&device, [2048, 2048]);
    let small = zeros(&device, [4]);
    let product = time(&device, || large.matmul(&large));
    let copy = time(&device, || large.add(&large));
    let tiny = time(&device, || small.add(&small));
    let limits = [product, copy, tiny].map(|time| time.limit());
    assert_eq!(limits, [Limit::Compute, Limit::Memory, Limit::Launch]);
    for time in [product, copy, tiny, product + copy] {
        let parts = time.compute_seconds + time.memory_seconds + time.launch_seconds;
        assert!((parts / time.seconds - 1.0).abs() < 1e-12, "{time:?}");
    }
    // Tensor cores multiply 16-bit factors.
    let half = time(&device, || {
        let _guard = mixed(DType::BF16)?;
        large.matmul(&large)
    });
    assert!(half.seconds < product.seconds / 2.0 && half.multiply_adds == product.multiply_adds);
}

#[test]
fn a_speed_changes_the_time_and_no_request() {
    let step = |device: &Device| {
        let x = Tensor::zeros(device, [300, 200])?.requiring_grad()?;
        x.matmul(&x.t()?)?.relu()?.sum_all()?.backward().map(drop)
    };
    let card = DeviceProfile::gpu("a100-80g").unwrap();
    let speed = card.speed().unwrap().clone();
    let run = dry_run(&card, step).unwrap();
    let slow = dry_run(card.clone().with_speed(speed.clone().scaled(3.0)), step).unwrap();
    let without = dry_run(DeviceProfile::cuda(card.memory().unwrap(), (8, 0)), step).unwrap();
    assert_eq!((run.peak, run.page_locked), (without.peak, without.page_locked));
    assert_eq!(without.time, None);
    let [time, slow] = [run.time.unwrap(), slow.time.unwrap()];
    assert!((slow.seconds / time.seconds - 3.0).abs() < 1e-9, "{time:?} {slow:?}");
    assert_eq!((slow.bytes, slow.kernels), (time.bytes, time.kernels));
    // Factors that are no factors change nothing.
    assert_eq!(
        [0.0, -1.0, f64::NAN].map(|factor| speed.clone().scaled(factor)),
        [(); 3].map(|()| speed.clone())
    );
}
