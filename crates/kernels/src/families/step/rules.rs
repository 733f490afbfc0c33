//! The rules of optimizers: options, states and formula of each.
//!
//! A rule is a struct of options, a line of `rules!`, and an implementation of [`StepRule`]: the names of its states, the
//! constants of its formula, and the formula. The CUDA kernel with the rule's name, in `kernels/optim.cu` of `bfc-cuda`,
//! applies the same formula with the same constants. No other file of this crate names a rule.

use super::cpu::{Elements, StepOnCpu};
use crate::cpu::number::Float;
use crate::error::Result;

/// The largest number of state tensors of a rule.
pub const MAX_STATES: usize = 3;

/// A state tensor of a rule. It has the shape of the parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StateTensor {
    /// The name in checkpoints and errors.
    pub name: &'static str,
    /// The initial value of the elements; `None` if the options require no such tensor.
    pub initial: Option<f64>,
}

impl StateTensor {
    /// No state, of a rule with fewer than [`MAX_STATES`].
    const UNUSED: Self = Self { name: "states", initial: None };

    /// A state of zeros.
    const fn zeros(name: &'static str) -> Self {
        Self { name, initial: Some(0.0) }
    }

    /// A state of zeros that not all options require.
    const fn zeros_if(is_required: bool, name: &'static str) -> Self {
        Self { name, initial: if is_required { Some(0.0) } else { None } }
    }
}

/// The states of a rule, in the order of [`OptimizerStep::states`](super::OptimizerStep::states).
pub type States = [StateTensor; MAX_STATES];

/// The constants of a formula, which the CPU and the GPU compute with. Unused ones are 0.
pub(super) type Constants<T> = [T; 9];

/// The formula of an optimizer.
pub(super) trait StepRule: Sync {
    /// Whether the constants of the formula depend on the number of the step, which checkpoints then contain.
    const COUNTS_STEPS: bool = false;

    /// Whether the formula has a square root, for estimates of its time.
    const HAS_ROOT: bool = true;

    /// Returns the states.
    fn states(&self) -> States;

    /// Computes the constants of the formula for a step; the first has number 1.
    fn constants(&self, step: u64) -> Constants<f64>;

    /// Updates each parameter element and its states.
    fn update<T: Float>(&self, constants: Constants<T>, elements: Elements<'_, '_, T>);
}

/// Defines [`OptimizerRule`] from a line for each rule: its documentation, variant, options, and the name of its CUDA
/// kernel.
macro_rules! rules {
    ($($(#[$doc:meta])* $rule:ident($options:ident) = $name:literal;)+) => {
        /// The rule of an optimizer: the formula of a step with its options.
        #[derive(Clone, Copy, Debug, PartialEq)]
        #[non_exhaustive]
        pub enum OptimizerRule {
            $($(#[$doc])* $rule($options),)+
        }

        $(impl From<$options> for OptimizerRule {
            #[inline(always)]
            fn from(options: $options) -> Self {
                Self::$rule(options)
            }
        })+

        impl OptimizerRule {
            /// Returns the name of the rule, such as "adam".
            #[must_use]
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$rule(_) => $name,)+
                }
            }

            /// Returns the states of a parameter.
            #[inline(always)]
            #[must_use]
            pub fn states(&self) -> States {
                match self {
                    $(Self::$rule(rule) => rule.states(),)+
                }
            }

            /// Returns whether a step depends on its number.
            #[must_use]
            pub const fn counts_steps(&self) -> bool {
                match self {
                    $(Self::$rule(_) => $options::COUNTS_STEPS,)+
                }
            }

            /// Returns every rule with its default options.
            pub fn all() -> impl Iterator<Item = Self> {
                [$(Self::$rule($options::DEFAULT)),+].into_iter()
            }

            /// See [`StepRule::HAS_ROOT`].
            pub(super) const fn has_root(&self) -> bool {
                match self {
                    $(Self::$rule(_) => $options::HAS_ROOT,)+
                }
            }

            /// See [`StepRule::constants`].
            #[cfg(feature = "cuda")]
            pub(super) fn constants(&self, step: u64) -> Constants<f64> {
                match self {
                    $(Self::$rule(rule) => rule.constants(step),)+
                }
            }

            /// Computes a step on the CPU.
            pub(super) fn run_on_cpu(&self, step: StepOnCpu<'_, '_>) -> Result<()> {
                match self {
                    $(Self::$rule(rule) => step.run(rule),)+
                }
            }
        }
    };
}

rules! {
    /// PyTorch's `optim.SGD`.
    Sgd(SgdRule) = "sgd";
    /// PyTorch's `optim.Adam` and `optim.AdamW`.
    Adam(AdamRule) = "adam";
    /// PyTorch's `optim.RMSprop`.
    RmsProp(RmsPropRule) = "rms_prop";
    /// Lion.
    Lion(LionRule) = "lion";
    /// PyTorch's `optim.Adagrad`.
    Adagrad(AdagradRule) = "adagrad";
    /// PyTorch's `optim.Adadelta`.
    Adadelta(AdadeltaRule) = "adadelta";
    /// PyTorch's `optim.NAdam`.
    NAdam(NAdamRule) = "nadam";
}

/// Stochastic gradient descent with momentum:
/// g ← g + weight_decay·p; m ← momentum·m + g; p ← p - lr·m (or lr·(g + momentum·m) with Nesterov).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SgdRule {
    /// The learning rate.
    pub lr: f64,
    /// The momentum factor; 0 requires no state.
    pub momentum: f64,
    /// The weight decay (L2 penalty).
    pub weight_decay: f64,
    /// Whether to use Nesterov momentum.
    pub nesterov: bool,
}

impl SgdRule {
    /// The defaults of PyTorch's `optim.SGD`.
    pub const DEFAULT: Self = Self { lr: 1e-3, momentum: 0.0, weight_decay: 0.0, nesterov: false };
}

impl StepRule for SgdRule {
    const HAS_ROOT: bool = false;

    #[inline(always)]
    fn states(&self) -> States {
        [StateTensor::zeros_if(self.momentum != 0.0, "momentum"), StateTensor::UNUSED, StateTensor::UNUSED]
    }

    fn constants(&self, _: u64) -> Constants<f64> {
        let nesterov = if self.nesterov { 1.0 } else { 0.0 };
        [self.lr, self.weight_decay, self.momentum, nesterov, 0.0, 0.0, 0.0, 0.0, 0.0]
    }

    fn update<T: Float>(&self, [lr, decay, momentum, ..]: Constants<T>, elements: Elements<'_, '_, T>) {
        if self.momentum == 0.0 {
            return elements.each1(|p, g| *p = *p - lr * (g + decay * *p));
        }
        let nesterov = self.nesterov;
        elements.each2(|[p, m], g| {
            let g = g + decay * *p;
            *m = momentum * *m + g;
            *p -= lr * if nesterov { g + momentum * *m } else { *m };
        });
    }
}

/// Adam (Kingma and Ba 2015), or AdamW (Loshchilov and Hutter 2019) with decoupled decay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamRule {
    /// The learning rate.
    pub lr: f64,
    /// The decay of the running mean of gradients.
    pub beta1: f64,
    /// The decay of the running mean of squared gradients.
    pub beta2: f64,
    /// Added to the denominator, so that it is not 0.
    pub epsilon: f64,
    /// The weight decay (L2 penalty).
    pub weight_decay: f64,
    /// Whether the decay acts on the parameter directly (AdamW) or through the gradient (Adam).
    pub decoupled: bool,
    /// Whether to divide by the largest running mean of squares so far (AMSGrad, Reddi et al. 2018).
    pub amsgrad: bool,
}

impl AdamRule {
    /// The defaults of PyTorch's `optim.Adam`.
    pub const DEFAULT: Self = Self {
        lr: 1e-3,
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-8,
        weight_decay: 0.0,
        decoupled: false,
        amsgrad: false,
    };
}

impl StepRule for AdamRule {
    const COUNTS_STEPS: bool = true;

    #[inline(always)]
    fn states(&self) -> States {
        [
            StateTensor::zeros("mean"),
            StateTensor::zeros("variance"),
            StateTensor::zeros_if(self.amsgrad, "max_variance"),
        ]
    }

    fn constants(&self, step: u64) -> Constants<f64> {
        let (coupled, decoupled) = split_decay(self.weight_decay, self.decoupled);
        // The rate and the scale contain the bias corrections of the means, which start at 0.
        let t = step as f64;
        let rate = self.lr / (1.0 - self.beta1.powf(t));
        let scale = (1.0 - self.beta2.powf(t)).sqrt().recip();
        let [share1, share2] = [1.0 - self.beta1, 1.0 - self.beta2];
        let shrink = 1.0 - self.lr * decoupled;
        [self.beta1, share1, self.beta2, share2, self.epsilon, rate, scale, coupled, shrink]
    }

    fn update<T: Float>(&self, constants: Constants<T>, elements: Elements<'_, '_, T>) {
        let [beta1, share1, beta2, share2, epsilon, rate, scale, coupled, shrink] = constants;
        let means = |p: T, m: &mut T, v: &mut T, g: T| {
            let g = g + coupled * p;
            *m = beta1 * *m + share1 * g;
            *v = beta2 * *v + share2 * (g * g);
        };
        let descend = |p: T, m: T, v: T| shrink * p - rate * m / (v.sqrt() * scale + epsilon);
        if self.amsgrad {
            elements.each4(|[p, m, v, max_v], g| {
                means(*p, m, v, g);
                // If v is NaN, it stays NaN, and so does the largest variance.
                *max_v = if *max_v >= *v { *max_v } else { *v };
                *p = descend(*p, *m, *max_v);
            });
        } else {
            elements.each3(|[p, m, v], g| {
                means(*p, m, v, g);
                *p = descend(*p, *m, *v);
            });
        }
    }
}

/// RMSprop (Tieleman and Hinton 2012): g ← g + weight_decay·p; v ← smoothing·v + (1 - smoothing)·g²;
/// m ← momentum·m + g / (√v + epsilon); p ← p - lr·m.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsPropRule {
    /// The learning rate.
    pub lr: f64,
    /// The decay of the running mean of squared gradients.
    pub smoothing: f64,
    /// Added to the denominator, so that it is not 0.
    pub epsilon: f64,
    /// The momentum factor; 0 requires no m.
    pub momentum: f64,
    /// The weight decay (L2 penalty).
    pub weight_decay: f64,
}

impl RmsPropRule {
    /// The defaults of PyTorch's `optim.RMSprop`.
    pub const DEFAULT: Self =
        Self { lr: 1e-2, smoothing: 0.99, epsilon: 1e-8, momentum: 0.0, weight_decay: 0.0 };
}

impl StepRule for RmsPropRule {
    #[inline(always)]
    fn states(&self) -> States {
        [
            StateTensor::zeros("variance"),
            StateTensor::zeros_if(self.momentum != 0.0, "momentum"),
            StateTensor::UNUSED,
        ]
    }

    fn constants(&self, _: u64) -> Constants<f64> {
        let Self { lr, smoothing, epsilon, momentum, weight_decay } = *self;
        [lr, weight_decay, smoothing, 1.0 - smoothing, epsilon, momentum, 0.0, 0.0, 0.0]
    }

    fn update<T: Float>(&self, constants: Constants<T>, elements: Elements<'_, '_, T>) {
        let [lr, decay, smoothing, share, epsilon, momentum, ..] = constants;
        // Updates the mean of squares and returns g / (√v + epsilon).
        let scaled = |p: T, g: T, v: &mut T| {
            let g = g + decay * p;
            *v = smoothing * *v + share * (g * g);
            g / (v.sqrt() + epsilon)
        };
        if self.momentum == 0.0 {
            return elements.each2(|[p, v], g| *p = *p - lr * scaled(*p, g, v));
        }
        elements.each3(|[p, v, m], g| {
            *m = momentum * *m + scaled(*p, g, v);
            *p -= lr * *m;
        });
    }
}

/// Lion (Chen et al. 2023): p ← (1 - lr·weight_decay)·p - lr·sign(beta1·m + (1 - beta1)·g);
/// m ← beta2·m + (1 - beta2)·g.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LionRule {
    /// The learning rate.
    pub lr: f64,
    /// The weight of the running mean in the direction of the step.
    pub beta1: f64,
    /// The decay of the running mean.
    pub beta2: f64,
    /// The weight decay (L2 penalty).
    pub weight_decay: f64,
}

impl LionRule {
    /// The defaults of the paper.
    pub const DEFAULT: Self = Self { lr: 1e-4, beta1: 0.9, beta2: 0.99, weight_decay: 0.0 };
}

impl StepRule for LionRule {
    const HAS_ROOT: bool = false;

    #[inline(always)]
    fn states(&self) -> States {
        [StateTensor::zeros("mean"), StateTensor::UNUSED, StateTensor::UNUSED]
    }

    fn constants(&self, _: u64) -> Constants<f64> {
        let Self { lr, beta1, beta2, weight_decay } = *self;
        [lr, 1.0 - lr * weight_decay, beta1, 1.0 - beta1, beta2, 1.0 - beta2, 0.0, 0.0, 0.0]
    }

    fn update<T: Float>(&self, constants: Constants<T>, elements: Elements<'_, '_, T>) {
        let [lr, shrink, beta1, share1, beta2, share2, ..] = constants;
        elements.each2(|[p, m], g| {
            let direction = beta1 * *m + share1 * g;
            // For NaN both comparisons are false, and the step is NaN.
            let step = if direction > T::ZERO {
                lr
            } else if direction < T::ZERO {
                T::ZERO - lr
            } else {
                direction
            };
            *p = shrink * *p - step;
            *m = beta2 * *m + share2 * g;
        });
    }
}

/// Adagrad (Duchi, Hazan and Singer 2011): g ← g + weight_decay·p; s ← s + g²;
/// p ← p - lr / (1 + (step - 1)·lr_decay)·g / (√s + epsilon).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdagradRule {
    /// The learning rate.
    pub lr: f64,
    /// The decay of the learning rate.
    pub lr_decay: f64,
    /// The weight decay (L2 penalty).
    pub weight_decay: f64,
    /// The initial value of the sums of squares.
    pub initial_sum: f64,
    /// Added to the denominator, so that it is not 0.
    pub epsilon: f64,
}

impl AdagradRule {
    /// The defaults of PyTorch's `optim.Adagrad`.
    pub const DEFAULT: Self =
        Self { lr: 1e-2, lr_decay: 0.0, weight_decay: 0.0, initial_sum: 0.0, epsilon: 1e-10 };
}

impl StepRule for AdagradRule {
    const COUNTS_STEPS: bool = true;

    #[inline(always)]
    fn states(&self) -> States {
        [
            StateTensor { name: "sum", initial: Some(self.initial_sum) },
            StateTensor::UNUSED,
            StateTensor::UNUSED,
        ]
    }

    fn constants(&self, step: u64) -> Constants<f64> {
        let rate = self.lr / (1.0 + (step as f64 - 1.0) * self.lr_decay);
        [rate, self.weight_decay, self.epsilon, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    }

    fn update<T: Float>(&self, [rate, decay, epsilon, ..]: Constants<T>, elements: Elements<'_, '_, T>) {
        elements.each2(|[p, sum], g| {
            let g = g + decay * *p;
            *sum += g * g;
            *p -= rate * g / (sum.sqrt() + epsilon);
        });
    }
}

/// Adadelta (Zeiler 2012): g ← g + weight_decay·p; v ← rho·v + (1 - rho)·g²; d ← √(u + epsilon) / √(v + epsilon)·g;
/// u ← rho·u + (1 - rho)·d²; p ← p - lr·d.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdadeltaRule {
    /// The factor of the steps.
    pub lr: f64,
    /// The decay of the running means.
    pub rho: f64,
    /// Added to both means, so that no step is 0 or infinite.
    pub epsilon: f64,
    /// The weight decay (L2 penalty).
    pub weight_decay: f64,
}

impl AdadeltaRule {
    /// The defaults of PyTorch's `optim.Adadelta`.
    pub const DEFAULT: Self = Self { lr: 1.0, rho: 0.9, epsilon: 1e-6, weight_decay: 0.0 };
}

impl StepRule for AdadeltaRule {
    #[inline(always)]
    fn states(&self) -> States {
        [StateTensor::zeros("variance"), StateTensor::zeros("step_variance"), StateTensor::UNUSED]
    }

    fn constants(&self, _: u64) -> Constants<f64> {
        [self.lr, self.weight_decay, self.rho, 1.0 - self.rho, self.epsilon, 0.0, 0.0, 0.0, 0.0]
    }

    fn update<T: Float>(&self, constants: Constants<T>, elements: Elements<'_, '_, T>) {
        let [lr, decay, rho, share, epsilon, ..] = constants;
        elements.each3(|[p, v, u], g| {
            let g = g + decay * *p;
            *v = rho * *v + share * (g * g);
            let step = (*u + epsilon).sqrt() / (*v + epsilon).sqrt() * g;
            *u = rho * *u + share * (step * step);
            *p -= lr * step;
        });
    }
}

/// NAdam (Dozat 2016): Adam with Nesterov momentum. With μₜ = beta1·(1 - ½·0.96^(t·momentum_decay)), the product M of
/// μ₁ to μₜ, and the means m and v of Adam with a corrected v̂:
/// p ← p - lr·((1 - μₜ)/(1 - M)·g + μₜ₊₁/(1 - M·μₜ₊₁)·m) / (√v̂ + epsilon).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NAdamRule {
    /// The learning rate.
    pub lr: f64,
    /// The decay of the running mean of gradients.
    pub beta1: f64,
    /// The decay of the running mean of squared gradients.
    pub beta2: f64,
    /// Added to the denominator, so that it is not 0.
    pub epsilon: f64,
    /// The weight decay (L2 penalty).
    pub weight_decay: f64,
    /// The decay of the momentum's warm-up.
    pub momentum_decay: f64,
    /// Whether the weight decay acts on the parameter directly or through the gradient.
    pub decoupled: bool,
}

impl NAdamRule {
    /// The defaults of PyTorch's `optim.NAdam`.
    pub const DEFAULT: Self = Self {
        lr: 2e-3,
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-8,
        weight_decay: 0.0,
        momentum_decay: 4e-3,
        decoupled: false,
    };

    /// The momentum μ of a step.
    fn momentum(&self, step: u64) -> f64 {
        self.beta1 * (1.0 - 0.5 * 0.96_f64.powf(step as f64 * self.momentum_decay))
    }

    /// The product of the momenta up to a step. Stops early where the product no longer changes 1 - M, and where the momentum
    /// no longer changes.
    fn momentum_product(&self, step: u64) -> f64 {
        let mut product = 1.0;
        for number in 1..=step {
            let momentum = self.momentum(number);
            if momentum == self.beta1 {
                return product * momentum.powf((step - number + 1) as f64);
            }
            product *= momentum;
            if product < f64::EPSILON / 4.0 {
                return 0.0;
            }
        }
        product
    }
}

impl StepRule for NAdamRule {
    const COUNTS_STEPS: bool = true;

    #[inline(always)]
    fn states(&self) -> States {
        [StateTensor::zeros("mean"), StateTensor::zeros("variance"), StateTensor::UNUSED]
    }

    fn constants(&self, step: u64) -> Constants<f64> {
        let (coupled, decoupled) = split_decay(self.weight_decay, self.decoupled);
        let [momentum, next] = [self.momentum(step), self.momentum(step + 1)];
        let product = self.momentum_product(step);
        // √v̂ + epsilon = (√v + epsilon·root) / root
        let root = (1.0 - self.beta2.powf(step as f64)).sqrt();
        let rate = self.lr * root * (1.0 - momentum) / (1.0 - product);
        let ahead = self.lr * root * next / (1.0 - product * next);
        let [share1, share2] = [1.0 - self.beta1, 1.0 - self.beta2];
        let shrink = 1.0 - self.lr * decoupled;
        [self.beta1, share1, self.beta2, share2, self.epsilon * root, rate, ahead, coupled, shrink]
    }

    fn update<T: Float>(&self, constants: Constants<T>, elements: Elements<'_, '_, T>) {
        let [beta1, share1, beta2, share2, epsilon, rate, ahead, coupled, shrink] = constants;
        elements.each3(|[p, m, v], g| {
            let g = g + coupled * *p;
            *m = beta1 * *m + share1 * g;
            *v = beta2 * *v + share2 * (g * g);
            *p = shrink * *p - (rate * g + ahead * *m) / (v.sqrt() + epsilon);
        });
    }
}

/// Returns the decay that is added to gradients, and the one that acts on parameters.
const fn split_decay(decay: f64, decoupled: bool) -> (f64, f64) {
    if decoupled { (0.0, decay) } else { (decay, 0.0) }
}
