//! Summaries of models: shapes, parameters and memory of each module, from a dry run.

use std::fmt;

use bfc_core::OwnerId;
use highwater_tensor::{DType, Device, DeviceProfile, DryPeak, DryRunOptions, Result, Shape, Tensor};
use highwater_tracking::table::{Table, bytes, count};
use highwater_tracking::{Report, intern_path};
use serde::{Serialize, Serializer};

use crate::modules::outputs::record_outputs;
use crate::modules::{Module, PartRef};

/// The layers of a model with their shapes, parameters and memory. Prints as a table and serializes with serde.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Summary {
    /// The device that the figures are for.
    #[serde(serialize_with = "as_text")]
    pub profile: DeviceProfile,
    /// The modules, each before its parts. The first is the model.
    pub layers: Vec<LayerSummary>,
    /// Trainable values; a shared parameter counts once.
    pub parameters: usize,
    /// Bytes of parameters and buffers.
    pub parameter_bytes: u64,
    /// Bytes that the forward pass keeps for the backward pass.
    pub saved_bytes: u64,
    /// The peak of building the model and of one forward pass, in bytes in use.
    pub forward_peak_bytes: u64,
    /// The peak with the training step, if the step was given.
    pub step_peak_bytes: Option<u64>,
}

/// A module in a [`Summary`].
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct LayerSummary {
    /// The module's path; empty for the model.
    pub path: String,
    /// The type's name.
    pub layer: String,
    /// The element type and shape of the output; `None` for a module that the forward pass did not
    /// call, and for an activation that the preceding layer computes.
    #[serde(serialize_with = "as_text_or_null")]
    pub output: Option<LayerOutput>,
    /// Trainable values of the module, without those of modules inside.
    pub parameters: usize,
    /// Bytes of the parameters and buffers of the module, such as quantized weights, without those of modules inside.
    pub parameter_bytes: u64,
    /// Bytes of outputs in the module that the forward pass keeps for the backward pass, without those of modules
    /// inside.
    pub saved_bytes: u64,
    /// The most bytes that the module and its parts hold at a time, in the forward pass or in the given step.
    pub peak_bytes: u64,
}

/// The element type and shape of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerOutput {
    /// The element type.
    pub dtype: DType,
    /// The shape.
    pub shape: Shape,
}

/// Builds a model and its input in a dry run, runs the forward pass, and returns the shapes, parameters and memory of all
/// modules. Allocates no memory for tensors.
///
/// ```
/// use highwater::nn::{Linear, Relu, Sequential};
/// use highwater::{DeviceProfile, Rng, Tensor, summary};
///
/// let summary = summary(DeviceProfile::this_machine(), |device| {
///     let rng = Rng::new(0);
///     let net = Sequential::new()
///         .with("fc1", Linear::new(device, 784, 256, &rng)?)
///         .with("relu", Relu)
///         .with("fc2", Linear::new(device, 256, 10, &rng)?);
///     Ok((net, Tensor::zeros(device, [64, 784])?))
/// })?;
/// assert_eq!(summary.parameters, 203_530);
/// assert_eq!(summary.layers[1].path, "fc1");
/// assert_eq!(summary.layers[1].output.map(|output| output.shape.dims().to_vec()), Some(vec![64, 256]));
/// println!("{summary}");
/// # Ok::<(), highwater::Error>(())
/// ```
///
/// # Errors
/// The errors of `build` and of the forward pass; see [`dry_run`](highwater_tensor::dry_run).
pub fn summary<M: Module>(
    options: impl Into<DryRunOptions>,
    build: impl Fn(&Device) -> Result<(M, Tensor)>,
) -> Result<Summary> {
    forward(&options.into(), &build)
}

/// As [`summary`], and adds the peak of a training step with the model and the input. Peaks of modules then include the
/// step's gradients and optimizer state.
///
/// ```
/// use highwater::nn::{Linear, Module};
/// use highwater::optim::{AdamW, Optimizer};
/// use highwater::{DeviceProfile, Rng, Tensor, summary_with_step};
///
/// let summary = summary_with_step(
///     DeviceProfile::this_machine(),
///     |device| Ok((Linear::new(device, 784, 10, &Rng::new(0))?, Tensor::zeros(device, [64, 784])?)),
///     |net, x| {
///         let mut optimizer = AdamW::new(net.parameters(), 1e-3)?;
///         optimizer.step(net.forward(x)?.square()?.mean_all()?.backward()?)
///     },
/// )?;
/// assert!(summary.step_peak_bytes > Some(summary.forward_peak_bytes));
/// # Ok::<(), highwater::Error>(())
/// ```
///
/// # Errors
/// See [`summary`]; and the errors of `step`.
pub fn summary_with_step<M: Module>(
    options: impl Into<DryRunOptions>,
    build: impl Fn(&Device) -> Result<(M, Tensor)>,
    step: impl FnOnce(&M, &Tensor) -> Result<()>,
) -> Result<Summary> {
    let options = options.into();
    let mut summary = forward(&options, &build)?;
    let run = options.run(|device| {
        let (model, x) = build(device)?;
        step(&model, &x)?;
        Ok(model)
    })?;
    summary.step_peak_bytes = Some(run.peak.in_use);
    summary.set_peaks(&run.report, &run.peak);
    Ok(summary)
}

/// Builds the model and runs its forward pass.
fn forward<M: Module>(
    options: &DryRunOptions,
    build: &impl Fn(&Device) -> Result<(M, Tensor)>,
) -> Result<Summary> {
    let run = options.run(|device| {
        let (model, x) = build(device)?;
        let mut layers = vec![LayerSummary::new("", model.kind())];
        model.walk(&mut |path, part| match part {
            PartRef::Module(module) => layers.push(LayerSummary::new(path, module.kind())),
            PartRef::Parameter(parameter) | PartRef::Buffer(parameter) => {
                let value = parameter.value();
                let holder = path.rsplit_once('.').map_or("", |(holder, _)| holder);
                if let Some(layer) = layers.iter_mut().rev().find(|layer| layer.contains(holder)) {
                    if matches!(part, PartRef::Parameter(_)) {
                        layer.parameters += value.elements();
                    }
                    layer.parameter_bytes += (value.elements() * value.dtype().size()) as u64;
                }
            }
            PartRef::Rng(_) => {}
        });
        let (y, outputs) = record_outputs(|| model.forward(&x));
        let y = y?;
        for layer in &mut layers {
            let output = outputs.get(&intern_path(OwnerId::ROOT, &layer.path));
            layer.output = output.map(|&(dtype, shape)| LayerOutput { dtype, shape });
        }
        // The result keeps the graph alive, so that the report counts what a backward pass would read.
        Ok((model.parameter_count(), layers, (model, y)))
    })?;
    let (parameters, layers, _) = run.result;
    let parameter_bytes = run
        .report
        .categories
        .iter()
        .filter(|row| row.category == "parameter")
        .map(|row| row.live_bytes)
        .sum();
    let mut summary = Summary {
        profile: run.profile,
        layers,
        parameters,
        parameter_bytes,
        saved_bytes: run.report.saved.live_bytes,
        forward_peak_bytes: run.peak.in_use,
        step_peak_bytes: None,
    };
    for row in &run.report.places {
        let scope = row.scope.as_deref().unwrap_or("");
        if let Some(layer) = summary.layers.iter_mut().rev().find(|layer| layer.contains(scope)) {
            layer.saved_bytes += row.saved_bytes;
        }
    }
    summary.set_peaks(&run.report, &run.peak);
    Ok(summary)
}

impl LayerSummary {
    fn new(path: &str, layer: String) -> Self {
        Self {
            path: path.to_owned(),
            layer,
            output: None,
            parameters: 0,
            parameter_bytes: 0,
            saved_bytes: 0,
            peak_bytes: 0,
        }
    }

    /// Whether `path` is this module or below it.
    fn contains(&self, path: &str) -> bool {
        let rest = path.strip_prefix(self.path.as_str());
        self.path.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

impl Summary {
    fn set_peaks(&mut self, report: &Report, peak: &DryPeak) {
        for layer in &mut self.layers {
            let row = report.scopes.iter().find(|row| row.scope == layer.path);
            layer.peak_bytes = row.map_or(0, |row| row.high_water_bytes);
        }
        self.layers[0].peak_bytes = peak.in_use;
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(&["module", "layer", "output", "parameters", "saved", "peak"]);
        let or_dash = |value: usize, text: String| if value == 0 { "-".to_owned() } else { text };
        for layer in &self.layers {
            let name = if layer.path.is_empty() { "(model)" } else { &layer.path };
            let output = layer.output.map_or_else(|| "-".to_owned(), |output| output.shape.to_string());
            let saved = or_dash(layer.saved_bytes as usize, bytes(layer.saved_bytes));
            let parameters = or_dash(layer.parameters, count(layer.parameters as u64));
            table.line(name, [layer.layer.clone(), output, parameters, saved, bytes(layer.peak_bytes)]);
        }
        write!(f, "{table}")?;
        writeln!(
            f,
            "{} parameters in {}; the forward pass keeps {} for backward and peaks at {} on {}",
            count(self.parameters as u64),
            bytes(self.parameter_bytes),
            bytes(self.saved_bytes),
            bytes(self.forward_peak_bytes),
            self.profile
        )?;
        match self.step_peak_bytes {
            Some(peak) => writeln!(f, "one training step peaks at {}", bytes(peak)),
            None => Ok(()),
        }
    }
}

impl fmt::Display for LayerOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.dtype, self.shape)
    }
}

fn as_text<S: Serializer>(value: &impl fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

fn as_text_or_null<S: Serializer>(value: &Option<LayerOutput>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => serializer.collect_str(value),
        None => serializer.serialize_none(),
    }
}
