//! Reports of training steps: leaks, batch normalization as one op, and the time of ops.

use std::sync::Arc;

use bfc_core::Bytes;
use highwater_nn::modules::{BatchNorm, Linear, Module, Relu, Sequential};
use highwater_nn::optim::{AdamW, Optimizer};
use highwater_tensor::{Device, Result, Rng, Runtime, Tensor};
use highwater_tracking::{LiveRow, OpRow, Phase, Recording, Report};

/// Records `steps` training steps of a small network. `after` receives a loss with its graph after each step.
fn train(device: &Device, steps: usize, mut after: impl FnMut(Tensor)) -> Result<Recording> {
    let rng = Rng::new(0);
    device.tracker().start_log(Bytes::mib(8));
    let net = Sequential::new()
        .with("fc1", Linear::new(device, 16, 32, &rng)?)
        .with("relu", Relu)
        .with("fc2", Linear::new(device, 32, 4, &rng)?);
    let mut optimizer = AdamW::new(net.parameters(), 1e-3)?;
    for _ in 0..steps {
        let x = Tensor::normal(device, [8, 16], 0.0, 1.0, &rng)?;
        let loss = || net.forward(&x)?.square()?.mean_all();
        optimizer.step(loss()?.backward()?)?;
        // Backward has freed the graph of the first loss.
        after(loss()?);
    }
    Ok(device.tracker().take_log())
}

#[test]
fn a_leak_is_named_with_its_bytes_per_step() -> Result<()> {
    for device in [Runtime::builder().threads(1).build()?.cpu()?, Runtime::builder().build()?.dry()?] {
        let mut losses = Vec::new();
        let report = Report::from_recording(&train(&device, 12, |loss| losses.push(loss))?);
        let growth: Vec<_> =
            report.growth.iter().map(|row| (row.path(), row.bytes_per_step, row.since_step)).collect();
        // A graph also keeps the weight, so the optimizer copies it. The first batch and loss are live when step 1 ends,
        // and the graph of the first loss that is kept when step 2 ends.
        let expected = [
            ("fc1.linear_relu", 1024, 2),
            ("normal", 512, 1),
            ("fc2.copy_parameter:optimizer", 512, 2),
            ("fc2.linear", 256, 2),
            ("mean", 256, 1),
        ];
        assert_eq!(growth, expected.map(|(path, bytes, since)| (path.to_owned(), bytes, since)), "{report}");
        let line = |row: &LiveRow| (row.path(), row.blocks, row.age_steps);
        let live: Vec<_> = report.live.iter().map(line).collect();
        assert!(live.contains(&("fc1.linear_relu".to_owned(), 12, Some((0, 11)))), "{report}");
    }
    Ok(())
}

#[test]
fn a_training_loop_without_a_leak_does_not_grow() -> Result<()> {
    let device = Runtime::builder().threads(1).build()?.cpu()?;
    let recording = train(&device, 12, drop)?;
    assert_eq!((recording.steps().len(), recording.growth()), (12, Vec::new()));
    Ok(())
}

/// Runs a training step of a batch normalization and returns the report.
fn normalize(device: &Device) -> Result<Report> {
    let norm = BatchNorm::new(device, 4)?;
    let x = Tensor::ones(device, [2, 4, 3])?.requiring_grad()?;
    device.tracker().reset();
    norm.forward(&x)?.sum_all()?.backward()?;
    Ok(Report::new(device.tracker(), &[Arc::clone(device.default_allocator()?)]))
}

#[test]
fn batch_norm_is_one_op_in_each_phase() -> Result<()> {
    let (cpu, dry) = (Runtime::builder().threads(1).build()?.cpu()?, Runtime::builder().build()?.dry()?);
    let (on_cpu, on_dry) = (normalize(&cpu)?, normalize(&dry)?);
    let figures = |report: &Report| {
        let figures =
            |row: &OpRow| (row.op.clone(), row.phase, row.calls, row.total_bytes, row.high_water_bytes);
        report.ops.iter().filter(|row| row.calls > 0).map(figures).collect::<Vec<_>>()
    };
    assert_eq!(figures(&on_cpu), figures(&on_dry));
    let names: Vec<_> =
        figures(&on_cpu).into_iter().map(|(op, phase, calls, ..)| (op, phase, calls)).collect();
    let expected = [("batch_norm", Phase::Forward), ("sum", Phase::Forward), ("batch_norm", Phase::Backward)];
    for (op, phase) in expected {
        assert!(names.contains(&(op.to_owned(), phase, 1)), "{names:?}");
    }
    assert!(
        !names.iter().any(|(op, ..)| ["mean", "mul", "add", "sub", "rsqrt"].contains(&op.as_str())),
        "{names:?}"
    );
    Ok(())
}

#[test]
fn batch_norm_with_relu_is_one_op() -> Result<()> {
    let device = Runtime::builder().threads(1).build()?.cpu()?;
    let norm = BatchNorm::new(&device, 4)?;
    let x = Tensor::normal(&device, [2, 4, 3], 0.0, 1.0, &Rng::new(1))?;
    let separate = norm.forward(&x)?.relu()?.to_vec::<f32>()?;
    assert_eq!(norm.forward_relu(&x)?.to_vec::<f32>()?, separate);
    let added = norm.forward(&x)?.add(&x)?.relu()?.to_vec::<f32>()?;
    assert_eq!(norm.forward_add_relu(&x, &x)?.to_vec::<f32>()?, added);
    let net = Sequential::new().with("norm", norm).with("relu", Relu);
    device.tracker().reset();
    assert_eq!(net.forward(&x)?.to_vec::<f32>()?, separate);
    let report = Report::new(device.tracker(), &[Arc::clone(device.default_allocator()?)]);
    let calls = |name| report.ops.iter().any(|row| row.op == name && row.calls > 0);
    assert!(calls("batch_norm_relu") && !calls("batch_norm") && !calls("relu"));
    Ok(())
}

#[test]
fn ops_have_time_unless_they_compute_nothing() -> Result<()> {
    let (cpu, dry) = (Runtime::builder().threads(1).build()?.cpu()?, Runtime::builder().build()?.dry()?);
    let times = |device: &Device| -> Result<Vec<u64>> {
        let recording = train(device, 2, drop)?;
        let live = Report::new(device.tracker(), &[Arc::clone(device.default_allocator()?)]);
        let recorded = Report::from_recording(&recording);
        let ops = live.ops.iter().chain(&recorded.ops).filter(|row| row.calls > 0).map(|row| row.time_ns);
        Ok(ops.chain([live.scopes[0].time_ns, recorded.scopes[0].time_ns]).collect())
    };
    assert!(times(&cpu)?.iter().all(|&time| time > 0));
    assert!(times(&dry)?.iter().all(|&time| time == 0));
    Ok(())
}
