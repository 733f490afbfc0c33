//! Every optimizer: the only list, which all tests of optimizers read.

use highwater_nn::optim::{Adadelta, Adagrad, Adam, AdamW, Lion, NAdam, Optimizer, RmsProp, Sgd};
use highwater_tensor::{Parameter, Result};

/// Creates an optimizer of these parameters.
pub(crate) type Make = fn(Vec<(String, Parameter)>) -> Result<Box<dyn Optimizer>>;

/// An optimizer with some options.
#[derive(Clone, Copy)]
pub(crate) struct OptimizerCase {
    /// The name of the optimizer, then a description of its options.
    pub(crate) name: &'static str,
    /// The number of state tensors of each parameter.
    pub(crate) states: u64,
    pub(crate) make: Make,
    /// The parameters p after 20 steps down Σ cᵢ pᵢ² with c = [1, 0.1, -0.3], from [1, -2, 0.5], in f64. Computed with
    /// PyTorch's formulas.
    pub(crate) expected: [f64; 3],
}

impl OptimizerCase {
    /// The name of the optimizer.
    pub(crate) fn op(&self) -> &'static str {
        self.name.split(' ').next().unwrap_or_default()
    }
}

const fn case(name: &'static str, states: u64, make: Make, expected: [f64; 3]) -> OptimizerCase {
    OptimizerCase { name, states, make, expected }
}

fn boxed(optimizer: impl Optimizer + 'static) -> Box<dyn Optimizer> {
    Box::new(optimizer)
}

pub(crate) const OPTIMIZERS: &[OptimizerCase] = &[
    case(
        "sgd",
        0,
        |own| Sgd::new(own, 0.001).map(boxed),
        [0.9607509570263429, -1.9920151817754943, 0.5060343234345598],
    ),
    case(
        "sgd with momentum",
        1,
        |own| Sgd::new(own, 0.001)?.with_momentum(0.9)?.with_weight_decay(0.01)?.with_nesterov().map(boxed),
        [0.7598019626099408, -1.9463075827522156, 0.5388582076833495],
    ),
    case(
        "adam",
        2,
        |own| Adam::new(own, 0.01)?.with_weight_decay(0.1).map(boxed),
        [0.8026664422916209, -1.8012559371635033, 0.7038099884299504],
    ),
    case(
        "adamw",
        2,
        |own| AdamW::new(own, 0.01).map(boxed),
        [0.8008850264399925, -1.7974748019181188, 0.7026020634027178],
    ),
    case(
        "adamw with amsgrad",
        3,
        |own| AdamW::new(own, 0.01)?.with_betas(0.9, 0.9)?.with_amsgrad().map(boxed),
        [0.798334832341823, -1.7962233891792652, 0.6985160650093921],
    ),
    case(
        "rms_prop",
        1,
        |own| RmsProp::new(own, 0.01).map(boxed),
        [0.36660810716665354, -1.2901730868581776, 1.4212594808818537],
    ),
    case(
        "rms_prop with momentum",
        2,
        |own| RmsProp::new(own, 0.001)?.with_momentum(0.9).map(boxed),
        [0.5114472289230138, -1.4909721937397913, 1.0846690558858214],
    ),
    case(
        "lion",
        1,
        |own| Lion::new(own, 0.001)?.with_weight_decay(0.1).map(boxed),
        [0.9780208874653279, -1.9760227863258149, 0.5189819608253987],
    ),
    case(
        "adagrad",
        1,
        |own| Adagrad::new(own, 0.01).map(boxed),
        [0.9251869471029098, -1.9246110310676492, 0.5780866981331814],
    ),
    case(
        "adagrad with options",
        1,
        |own| {
            let adagrad = Adagrad::new(own, 0.01)?.with_lr_decay(0.1)?.with_weight_decay(0.05)?;
            adagrad.with_initial_sum(0.2)?.with_epsilon(1e-6).map(boxed)
        },
        [0.9511272256295376, -1.9559231164316018, 0.5383354331012112],
    ),
    case(
        "adadelta",
        2,
        |own| Adadelta::new(own, 1.0).map(boxed),
        [0.9318418025566101, -1.930988175660519, 0.573363860936749],
    ),
    case(
        "adadelta with options",
        2,
        |own| {
            let adadelta = Adadelta::new(own, 0.5)?.with_rho(0.95)?.with_epsilon(1e-4)?;
            adadelta.with_weight_decay(0.05).map(boxed)
        },
        [0.6082937568618465, -1.5725369059178667, 1.13530720590324],
    ),
    case(
        "nadam",
        2,
        |own| NAdam::new(own, 0.002).map(boxed),
        [0.9658877797351632, -1.9657858216041177, 0.5347102287885297],
    ),
    case(
        "nadam with options",
        2,
        |own| {
            let nadam = NAdam::new(own, 0.01)?.with_betas(0.8, 0.99)?.with_epsilon(1e-6)?;
            nadam
                .with_weight_decay(0.1)?
                .with_momentum_decay(0.01)
                .map(NAdam::with_decoupled_weight_decay)
                .map(boxed)
        },
        [0.7993619923592304, -1.775943976412074, 0.6900904985160256],
    ),
];
