//! Summaries of models.

use highwater_nn::modules::{Conv2d, Flatten, Linear, MaxPool2d, Module, Relu, Sequential, TransformerBlock};
use highwater_nn::optim::{AdamW, Optimizer};
use highwater_nn::{LayerSummary, Summary, summary, summary_with_step};
use highwater_tensor::{Conv2dOptions, Device, DeviceProfile, Result, Rng, Tensor, dry_run};

fn network(device: &Device) -> Result<(Sequential, Tensor)> {
    let rng = Rng::new(0);
    let net = Sequential::new()
        .with("conv", Conv2d::new(device, 1, 8, [3, 3], Conv2dOptions::padded(1), &rng)?)
        .with("relu", Relu)
        .with("pool", MaxPool2d::new(2))
        .with("flat", Flatten)
        .with("fc", Linear::new(device, 8 * 14 * 14, 10, &rng)?);
    Ok((net, Tensor::zeros(device, [16, 1, 28, 28])?))
}

fn train(net: &Sequential, x: &Tensor) -> Result<()> {
    let mut optimizer = AdamW::new(net.parameters(), 1e-3)?;
    optimizer.step(net.forward(x)?.square()?.mean_all()?.backward()?)
}

fn layer<'a>(summary: &'a Summary, path: &str) -> &'a LayerSummary {
    summary.layers.iter().find(|layer| layer.path == path).unwrap()
}

#[test]
fn a_summary_has_the_shapes_and_parameters_of_each_layer() {
    let summary = summary(DeviceProfile::this_machine(), network).unwrap();
    let rows: Vec<_> = summary
        .layers
        .iter()
        .map(|row| {
            let shape = row.output.map(|output| output.shape.dims().to_vec());
            (row.path.as_str(), row.layer.as_str(), shape.unwrap_or_default(), row.parameters)
        })
        .collect();
    let expected = [
        ("", "Sequential", vec![16, 10], 0),
        ("conv", "Conv2d", vec![16, 8, 28, 28], 80),
        ("relu", "Relu", vec![16, 8, 28, 28], 0),
        ("pool", "MaxPool2d", vec![16, 8, 14, 14], 0),
        ("flat", "Flatten", vec![16, 1568], 0),
        ("fc", "Linear", vec![16, 10], 15_690),
    ];
    assert_eq!(rows, expected);
    // Each parameter takes whole granules of 256 bytes.
    assert_eq!((summary.parameters, summary.parameter_bytes), (15_770, 512 + 256 + 62_720 + 256));
    // The images after ReLU, and the larger of each window's four.
    assert!(layer(&summary, "relu").saved_bytes >= 16 * 8 * 28 * 28 * 4);
    assert_eq!(layer(&summary, "fc").saved_bytes, 0);
}

#[test]
fn the_peaks_are_those_of_dry_runs() {
    let profile = DeviceProfile::this_machine();
    let summary = summary_with_step(&profile, network, train).unwrap();
    let step = dry_run(&profile, |device| {
        let (net, x) = network(device)?;
        train(&net, &x)
    });
    assert_eq!(summary.step_peak_bytes, Some(step.unwrap().peak.in_use));
    assert!(summary.step_peak_bytes > Some(summary.forward_peak_bytes));
    assert_eq!(summary.layers[0].peak_bytes, summary.step_peak_bytes.unwrap());
    assert!(layer(&summary, "fc").peak_bytes > 4 * 15_690 * 4, "weights, gradients and two moments");
}

#[test]
fn a_summary_prints_as_a_table_and_as_json() {
    let block = |device: &Device| {
        let block = TransformerBlock::new(device, 32, 4, &Rng::new(0))?.causal();
        Ok((block, Tensor::zeros(device, [2, 10, 32])?))
    };
    let summary = summary(DeviceProfile::this_machine(), block).unwrap();
    let text = summary.to_string();
    for line in ["attention.project              Linear   [2, 10, 96]        3168", "12704 parameters in "] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let json = serde_json::to_value(&summary).unwrap();
    assert_eq!(json["layers"][3]["path"], "attention.project");
    assert_eq!(json["layers"][3]["output"], "f32 [2, 10, 96]");
    assert_eq!(json["parameters"], 12_704);
}
