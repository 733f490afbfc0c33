//! The memory of training in mixed precision, by dry runs for a GPU.

use highwater::{MixedGuard, Report, Result, dry_run, mixed, prelude::*};

use crate::scale_out::model as gpt;

#[path = "../../examples/make_it_fit/resnet.rs"]
#[allow(dead_code, reason = "the example uses the rest")]
mod resnet;

/// Returns the peak in GiB and the report of two steps of AdamW without recomputation on `a100-80g`.
fn peak<M: Module>(
    precision: Option<DType>,
    model: impl Fn(&Device) -> Result<M>,
    loss: impl Fn(&M, &Device) -> Result<Tensor>,
) -> (f64, Report) {
    let profile: DeviceProfile = "a100-80g".parse().unwrap();
    let run = dry_run(profile, |device| {
        let model = model(device)?;
        let _mixed: Option<MixedGuard> = precision.map(mixed).transpose()?;
        let mut optimizer = AdamW::new(model.parameters(), 3e-4)?;
        // The second step has the optimizer's state from its beginning.
        (0..2).try_for_each(|_| optimizer.step(loss(&model, device)?.backward()?))
    });
    let run = run.unwrap();
    (run.peak.in_use as f64 / f64::from(1 << 30), run.report)
}

fn peak_of_gpt(precision: Option<DType>) -> (f64, Report) {
    let tokens = |device: &Device| Tensor::zeros_of(device, [64, 1024], DType::I64);
    peak(
        precision,
        |device| gpt::Gpt::new(device, gpt::SIZES[0], 1024),
        |gpt, device| gpt.linear_loss(&tokens(device)?),
    )
}

fn peak_of_resnet(precision: Option<DType>) -> (f64, Report) {
    peak(precision, resnet::ResNet50::new, |network, device| network.loss(device, 512))
}

#[test]
fn a_gpt_in_mixed_precision_needs_little_more_than_half() {
    let ((whole, _), (half, report)) = (peak_of_gpt(None), peak_of_gpt(Some(DType::BF16)));
    assert!(half <= 40.0 && half <= 0.55 * whole, "{half} of {whole} GiB: {report}");
}

#[test]
fn a_resnet_in_mixed_precision_needs_little_more_than_half() {
    let ((whole, _), (half, report)) = (peak_of_resnet(None), peak_of_resnet(Some(DType::BF16)));
    assert!(half <= 0.55 * whole, "{half} of {whole} GiB: {report}");
}
