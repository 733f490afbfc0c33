//! Loss scaling for 16-bit gradients (Micikevicius et al., Mixed precision training, 2018).
//!
//! Small gradients underflow in f16, whose smallest number is 6·10⁻⁸. The scaler multiplies the loss, and thereby every
//! gradient, by a large number before the backward pass. Before the step it divides the gradients in f32. If a gradient
//! is not finite because the scale was too large, it skips the step.

use std::fmt;

use highwater_tensor::{Error, Gradients, Result, Tensor};
use highwater_tracking::{Phase, phase};

use super::{Optimizer, check};

/// The growth factor, as in PyTorch's `GradScaler`.
const GROWTH: f64 = 2.0;
const BACKOFF: f64 = 0.5;
const GROWTH_INTERVAL: u64 = 2000;
const START: f64 = 32_768.0;

/// Loss scaler: multiplies losses, divides gradients, and skips steps with gradients that are not finite.
///
/// Each skipped step divides a dynamic scale by 2. A number of successful steps in a row doubles it. bf16 has the range of
/// f32 and needs no scaling. Compute the loss in f32: its gradient is the scale, which may exceed the range of f16.
///
/// ```
/// use highwater::{DType, Device, Tensor};
/// use highwater::nn::Parameter;
/// use highwater::optim::{LossScaler, ScaledStep, Sgd};
///
/// let weight = Parameter::new(Tensor::ones_of(&Device::cpu()?, [2], DType::F16)?)?;
/// let mut optimizer = Sgd::new(vec![("weight".to_owned(), weight.clone())], 0.5)?;
/// let mut scaler = LossScaler::dynamic();
/// // Gradients of 1e-8, which would be 0 in f16.
/// let loss = weight.tensor().to_dtype(DType::F32)?.mul_scalar(1e-8)?.sum_all()?;
/// let step = scaler.step(&mut optimizer, scaler.scale(&loss)?.backward()?)?;
/// assert_eq!(step, ScaledStep::Taken { scale: 32_768.0 });
///
/// // Gradients beyond f16: nothing changes, and the next scale is smaller.
/// let loss = weight.tensor().to_dtype(DType::F32)?.mul_scalar(2.0)?.sum_all()?;
/// let step = scaler.step(&mut optimizer, scaler.scale(&loss)?.backward()?)?;
/// assert_eq!(step, ScaledStep::Skipped { scale: 32_768.0, next: 16_384.0 });
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct LossScaler {
    scale: f64,
    /// The number of successful steps after which the scale grows; `None` for a fixed scale.
    interval: Option<u64>,
    /// Successful steps since the last change of the scale.
    taken: u64,
}

/// `32768, doubled after 2000 steps, 17 of them done`, or `1024, fixed`.
impl fmt::Display for LossScaler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scale, interval, taken } = self;
        match interval {
            Some(interval) => write!(f, "{scale}, doubled after {interval} steps, {taken} of them done"),
            None => write!(f, "{scale}, fixed"),
        }
    }
}

/// A scale is never NaN.
impl Eq for LossScaler {}

/// The outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub enum ScaledStep {
    /// The optimizer performed the step.
    Taken {
        /// The scale of the loss.
        scale: f64,
    },
    /// A gradient was not finite. No parameter and no state has changed.
    Skipped {
        /// The scale of the loss.
        scale: f64,
        /// The scale for the next loss.
        next: f64,
    },
}

impl ScaledStep {
    /// Whether the optimizer performed the step.
    #[must_use]
    pub const fn is_taken(self) -> bool {
        matches!(self, Self::Taken { .. })
    }
}

impl LossScaler {
    /// Creates a scaler with a fixed scale.
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless it is finite and above 0.
    pub fn fixed(scale: f64) -> Result<Self> {
        let holds = scale.is_finite() && scale > 0.0;
        let scale = check("loss_scaler", "scale", scale, "finite and above 0", holds)?;
        Ok(Self { scale, interval: None, taken: 0 })
    }

    /// Creates a dynamic scaler. It starts with 32,768, the largest power of two in f16, so the gradient of an f16 loss
    /// is finite. The scale doubles after 2000 successful steps in a row, and each skipped step divides it by 2.
    #[must_use]
    pub const fn dynamic() -> Self {
        Self { scale: START, interval: Some(GROWTH_INTERVAL), taken: 0 }
    }

    /// Creates a dynamic scaler with this initial scale, which doubles after `interval` successful steps (at least 1).
    /// To resume a run, use the scaler of its [`Checkpoint`](crate::checkpoint::Checkpoint::scaler).
    ///
    /// # Errors
    /// See [`LossScaler::fixed`].
    pub fn dynamic_from(scale: f64, interval: u64) -> Result<Self> {
        Ok(Self { interval: Some(interval.max(1)), ..Self::fixed(scale)? })
    }

    /// Formats the state for checkpoints: the scale, the interval or `fixed`, and the successful steps since the last
    /// change.
    pub(crate) fn to_text(&self) -> String {
        let interval = self.interval.map_or_else(|| "fixed".to_owned(), |interval| interval.to_string());
        format!("{} {interval} {}", self.scale, self.taken)
    }

    /// Parses the state; `None` if the text is invalid.
    pub(crate) fn from_text(text: &str) -> Option<Self> {
        let mut parts = text.split(' ');
        let (scale, interval, taken) = (parts.next()?, parts.next()?, parts.next()?);
        let scale = scale.parse().ok()?;
        let scaler = match interval {
            "fixed" => Self::fixed(scale).ok()?,
            interval => Self::dynamic_from(scale, interval.parse().ok()?).ok()?,
        };
        let scaler = Self { taken: taken.parse().ok()?, ..scaler };
        parts.next().is_none().then_some(scaler)
    }

    /// Returns the scale for the next loss.
    #[must_use]
    pub const fn current(&self) -> f64 {
        self.scale
    }

    /// Multiplies a loss by the scale. Call `backward` on the result.
    ///
    /// # Errors
    /// See [`Tensor::mul_scalar`].
    pub fn scale(&self, loss: &Tensor) -> Result<Tensor> {
        loss.mul_scalar(self.scale)
    }

    /// Divides the gradients by the scale; those of 16-bit floats become f32. Returns `None` if a gradient is not
    /// finite, and then reduces the scale.
    ///
    /// Use it for work between the backward pass and the step, such as clipping. Otherwise use [`LossScaler::step`],
    /// which does both. With several processes, use [`unscale_for`](Self::unscale_for).
    ///
    /// # Errors
    /// [`Error::Allocation`] if there is no memory, and if the device fails.
    pub fn unscale(&mut self, gradients: Gradients) -> Result<Option<Gradients>> {
        let (gradients, finite) = divided(gradients, self.scale)?;
        self.update(finite);
        Ok(finite.then_some(gradients))
    }

    /// [Unscales](Self::unscale) the gradients for this optimizer. If it trains with several processes, returns `None` if
    /// a gradient of any process is not finite, so that all of them skip the step.
    ///
    /// # Errors
    /// As [`unscale`](Self::unscale), and if another process fails.
    pub fn unscale_for(
        &mut self,
        optimizer: &(impl Optimizer + ?Sized),
        gradients: Gradients,
    ) -> Result<Option<Gradients>> {
        let (gradients, finite) = divided(gradients, self.scale)?;
        let finite = optimizer.all_finite(finite, self.scale)?;
        self.update(finite);
        Ok(finite.then_some(gradients))
    }

    /// Divides the gradients of a [scaled](Self::scale) loss and lets the optimizer step, if all gradients are finite.
    ///
    /// # Errors
    /// See [`LossScaler::unscale`] and [`Optimizer::step`]; the scale does not change on an error. Gradients of
    /// parameters that the optimizer does not hold are an error, even if gradients are not finite.
    pub fn step(
        &mut self,
        optimizer: &mut (impl Optimizer + ?Sized),
        gradients: Gradients,
    ) -> Result<ScaledStep> {
        let scale = self.scale;
        // Checks before the division, because divided gradients no longer name their modules.
        let op = if optimizer.name().is_empty() { "optimizer" } else { optimizer.name() };
        gradients.check_parameters(op, &optimizer.parameters())?;
        let (gradients, finite) = divided(gradients, scale)?;
        let finite = optimizer.all_finite(finite, scale)?;
        // Updates the scale only after a successful step.
        if finite {
            optimizer.step(gradients)?;
        }
        self.update(finite);
        Ok(if finite { ScaledStep::Taken { scale } } else { ScaledStep::Skipped { scale, next: self.scale } })
    }

    /// [`step`](Self::step) along the gradients of the optimizer's own parameters. Drops all other gradients first, so they do not
    /// decide whether the step is taken.
    ///
    /// # Errors
    /// See [`step`](Self::step), except for [`Error::UnknownParameters`].
    pub fn step_partial(
        &mut self,
        optimizer: &mut (impl Optimizer + ?Sized),
        mut gradients: Gradients,
    ) -> Result<ScaledStep> {
        let own = gradients.split_off(&optimizer.parameters());
        drop(gradients);
        self.step(optimizer, own)
    }

    fn update(&mut self, finite: bool) {
        let Some(interval) = self.interval else { return };
        let factor = if finite { GROWTH } else { BACKOFF };
        self.taken = if finite { self.taken.saturating_add(1) } else { 0 };
        let next = self.scale * factor;
        // A scale beyond the range of f32 could not multiply any loss.
        let fits = (f64::from(f32::MIN_POSITIVE)..=f64::from(f32::MAX)).contains(&next);
        if fits && (!finite || self.taken >= interval) {
            self.scale = next;
            self.taken = 0;
        }
    }
}

/// Divides the gradients by a number and returns whether all are finite. On a dry device, all are.
fn divided(mut gradients: Gradients, by: f64) -> Result<(Gradients, bool)> {
    let _phase = phase(Phase::Optimizer);
    // Combines all gradients of a device, so that the host waits for it only once.
    let mut ends: Vec<[Tensor; 2]> = Vec::new();
    for gradient in gradients.iter_mut() {
        let exact = gradient.to_dtype(gradient.dtype().computed_as())?.mul_scalar(1.0 / by)?;
        if exact.elements() > 0 {
            // NaN counts as both.
            let (largest, least) = (exact.max_all()?, exact.min_all()?);
            match ends.iter_mut().find(|[most, _]| most.device() == exact.device()) {
                Some([most, fewest]) => {
                    (*most, *fewest) = (most.maximum(&largest)?, fewest.minimum(&least)?);
                }
                None => ends.push([largest, least]),
            }
        }
        *gradient = exact;
    }
    let mut finite = true;
    for end in ends.iter().flatten() {
        finite &= match end.to_dtype(highwater_tensor::DType::F64)?.item::<f64>() {
            Ok(value) => value.is_finite(),
            Err(Error::NoData { .. }) => true,
            Err(error) => return Err(error),
        };
    }
    Ok((gradients, finite))
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;
    use crate::io::Arrays;
    use crate::optim::{Adam, Sgd};
    use highwater_tensor::{DType, Device, Parameter, Runtime, Shape, mixed};

    fn cpu() -> Device {
        Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
    }

    fn parameter(device: &Device, dtype: DType) -> (Parameter, Vec<(String, Parameter)>) {
        let parameter = Parameter::new(Tensor::ones_of(device, 3, dtype).unwrap()).unwrap();
        (parameter.clone(), vec![("p".to_owned(), parameter)])
    }

    /// An optimizer whose steps fail.
    #[derive(Debug)]
    struct Failing<'a>(&'a mut Sgd);

    impl Optimizer for Failing<'_> {
        fn parameters(&self) -> Vec<(String, Parameter)> {
            self.0.parameters()
        }

        fn step(&mut self, _: Gradients) -> Result<()> {
            Err(Error::BadRank { op: "failing", expected: "no step", shape: Shape::SCALAR })
        }

        fn learning_rate(&self) -> f64 {
            self.0.learning_rate()
        }

        fn set_learning_rate(&mut self, learning_rate: f64) -> Result<()> {
            self.0.set_learning_rate(learning_rate)
        }

        fn state(&self) -> Result<Arrays> {
            self.0.state()
        }

        fn check_state(&self, state: &Arrays) -> Result<()> {
            self.0.check_state(state)
        }

        fn load_state(&mut self, state: &Arrays) -> Result<()> {
            self.0.load_state(state)
        }
    }

    /// A step of a loss with gradients of this size.
    fn step(
        scaler: &mut LossScaler,
        optimizer: &mut dyn Optimizer,
        parameter: &Parameter,
        size: f64,
    ) -> ScaledStep {
        let loss =
            parameter.tensor().to_dtype(DType::F32).unwrap().mul_scalar(size).unwrap().sum_all().unwrap();
        let gradients = scaler.scale(&loss).unwrap().backward().unwrap();
        scaler.step(optimizer, gradients).unwrap()
    }

    #[test]
    fn a_dynamic_loss_scale_shrinks_and_grows() {
        let device = cpu();
        let (weight, list) = parameter(&device, DType::F16);
        let mut sgd = Sgd::new(list, 1e-3).unwrap();
        let mut scaler = LossScaler::dynamic_from(65_536.0, 3).unwrap();
        let mut scales = Vec::new();
        for _ in 0..8 {
            let taken = step(&mut scaler, &mut sgd, &weight, 1.5).is_taken();
            scales.push((taken, scaler.current()));
        }
        // 1.5 · 65,536 is beyond f16, 1.5 · 32,768 is not.
        let (down, up) = (32_768.0, 65_536.0);
        let expected = [
            (false, down),
            (true, down),
            (true, down),
            (true, up),
            (false, down),
            (true, down),
            (true, down),
            (true, up),
        ];
        assert_eq!(scales, expected);
    }

    #[test]
    fn the_first_step_of_a_loss_in_f16_is_taken() {
        let device = cpu();
        let (weight, list) = parameter(&device, DType::F16);
        let mut sgd = Sgd::new(list, 1e-3).unwrap();
        let mut scaler = LossScaler::dynamic();
        let loss = weight.tensor().mul_scalar(1e-4).unwrap().sum_all().unwrap();
        assert_eq!(loss.dtype(), DType::F16);
        let gradients = scaler.scale(&loss).unwrap().backward().unwrap();
        assert!(scaler.step(&mut sgd, gradients).unwrap().is_taken());
    }

    #[test]
    fn a_step_that_failed_leaves_the_scale_as_it_was() {
        let device = cpu();
        let (weight, list) = parameter(&device, DType::F32);
        let mut sgd = Sgd::new(list, 0.1).unwrap();
        let mut failing = Failing(&mut sgd);
        let mut scaler = LossScaler::dynamic_from(4.0, 1).unwrap();
        let loss = weight.tensor().sum_all().unwrap();
        let gradients = scaler.scale(&loss).unwrap().backward().unwrap();
        assert!(scaler.step(&mut failing, gradients).is_err());
        assert_eq!(scaler, LossScaler::dynamic_from(4.0, 1).unwrap());
    }

    #[test]
    fn a_step_left_out_changes_no_parameter_and_no_state() {
        let device = cpu();
        let (weight, list) = parameter(&device, DType::F16);
        let mut adam = Adam::new(list, 0.1).unwrap();
        let mut scaler = LossScaler::fixed(1024.0).unwrap();
        assert!(step(&mut scaler, &mut adam, &weight, 0.5).is_taken());
        let (before, state) = (weight.tensor().to_vec::<f16>().unwrap(), adam.state().unwrap());
        for size in [1000.0, f64::NAN, f64::NEG_INFINITY] {
            let skipped = step(&mut scaler, &mut adam, &weight, size);
            assert_eq!(skipped, ScaledStep::Skipped { scale: 1024.0, next: 1024.0 });
            assert_eq!(weight.tensor().to_vec::<f16>().unwrap(), before);
            assert_eq!(adam.state().unwrap(), state);
        }
    }

    #[test]
    fn gradients_too_small_for_f16_move_the_mean_of_an_optimizer() {
        let device = cpu();
        let mean = |scaler: &mut LossScaler| {
            let (weight, list) = parameter(&device, DType::F16);
            let mut adam = Adam::new(list, 0.1).unwrap();
            assert!(step(scaler, &mut adam, &weight, 1e-8).is_taken());
            f64::from(adam.state().unwrap()["p.mean"].to_tensor(&device).unwrap().to_vec::<f32>().unwrap()[0])
        };
        assert_eq!(mean(&mut LossScaler::fixed(1.0).unwrap()), 0.0);
        let moved = mean(&mut LossScaler::dynamic());
        assert!((moved / 1e-9 - 1.0).abs() < 1e-3, "{moved}");
    }

    #[test]
    fn one_bad_gradient_among_many_is_found_wherever_it_is() {
        let device = cpu();
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for place in 0..3 {
                let (weight, list) = parameter(&device, DType::F32);
                let (other, _) = parameter(&device, DType::F32);
                let list = [list, vec![("other".to_owned(), other.clone())]].concat();
                let mut sgd = Sgd::new(list, 0.1).unwrap();
                let mut factors = [1.0f32; 3];
                factors[place] = bad;
                let factors = Tensor::from_slice(&device, &factors, 3).unwrap();
                let loss =
                    weight.tensor().mul(&factors).unwrap().add(&other.tensor()).unwrap().sum_all().unwrap();
                let mut scaler = LossScaler::fixed(8.0).unwrap();
                let gradients = scaler.scale(&loss).unwrap().backward().unwrap();
                assert!(!scaler.step(&mut sgd, gradients).unwrap().is_taken(), "{bad} at {place}");
                assert_eq!(other.tensor().to_vec::<f32>().unwrap(), [1.0; 3]);
            }
        }
    }

    #[test]
    fn a_dry_run_takes_every_step() {
        let dry = Runtime::builder().threads(1).build().unwrap().dry().unwrap();
        let (weight, list) = parameter(&dry, DType::BF16);
        let mut sgd = Sgd::new(list, 0.1).unwrap();
        assert!(step(&mut LossScaler::dynamic(), &mut sgd, &weight, 1.0).is_taken());
    }

    #[test]
    fn a_state_as_text_is_the_same_state_again() {
        let mut odd = LossScaler::dynamic_from(0.1, 7).unwrap();
        odd.taken = 6;
        for scaler in [LossScaler::dynamic(), LossScaler::fixed(1e-30).unwrap(), odd] {
            assert_eq!(LossScaler::from_text(&scaler.to_text()), Some(scaler));
        }
        for damaged in
            ["", "1", "1 2", "1 2 x", "1 2 3 4", "0 2 3", "NaN fixed 0", "inf 5 0", "1 -2 0", "1  2 0"]
        {
            assert_eq!(LossScaler::from_text(damaged), None, "{damaged:?}");
        }
    }

    #[test]
    fn a_scale_that_is_none_is_refused() {
        for scale in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(matches!(LossScaler::fixed(scale), Err(Error::BadArgument { argument: "scale", .. })));
        }
    }

    #[test]
    fn gradients_of_mixed_f16_arrive_in_f32_and_skip_steps_that_overflow() {
        let device = cpu();
        let (p, own) = parameter(&device, DType::F32);
        let mut optimizer = Sgd::new(own, 0.25).unwrap();
        let mut scaler = LossScaler::dynamic_from(32_768.0, 100).unwrap();
        let _guard = mixed(DType::F16).unwrap();
        let mut step = |scaler: &mut LossScaler| {
            let loss = p.operand().unwrap().square().unwrap().sum_all().unwrap();
            assert_eq!(loss.dtype(), DType::F16);
            let gradients = scaler.scale(&loss).unwrap().backward().unwrap();
            assert_eq!(gradients.get(&p.tensor()).unwrap().dtype(), DType::F32);
            scaler.step(&mut optimizer, gradients).unwrap()
        };
        // The scaled gradient 2 · 32,768 exceeds the largest f16, 65,504.
        assert_eq!(step(&mut scaler), ScaledStep::Skipped { scale: 32_768.0, next: 16_384.0 });
        assert_eq!(p.value().to_vec::<f32>().unwrap(), [1.0; 3]);
        assert_eq!(step(&mut scaler), ScaledStep::Taken { scale: 16_384.0 });
        assert_eq!(p.value().to_vec::<f32>().unwrap(), [0.5; 3]);
    }
}
