//! Parameter groups: several optimizers as one.

use std::collections::HashSet;

use highwater_tensor::{Error, Gradients, Parameter, Result};
use highwater_tracking::{Phase, phase};

use super::{LEARNING_RATE, Optimizer, ParameterGroup, not_negative};
use crate::io::{Arrays, Mismatch};

const OP: &str = "groups";

/// Parameter groups, as in PyTorch: several optimizers as one, each for its own parameters. Use them for layers with a
/// lower learning rate, or to exclude biases from weight decay. Steps, schedules and checkpoints work as for any
/// optimizer.
///
/// ```
/// use highwater::{Device, Rng, Tensor};
/// use highwater::nn::{Linear, Module, Relu, Sequential};
/// use highwater::optim::{AdamW, Groups, Optimizer};
/// let (device, rng) = (Device::cpu()?, Rng::new(0));
/// let network = Sequential::new()
///     .with("fc1", Linear::new(&device, 4, 8, &rng)?)
///     .with("relu", Relu)
///     .with("fc2", Linear::new(&device, 8, 2, &rng)?);
/// // Matrices decay; biases, and the weights of norms, do not.
/// let (matrices, vectors): (Vec<_>, Vec<_>) =
///     network.parameters().into_iter().partition(|(_, parameter)| parameter.tensor().rank() > 1);
/// let mut optimizer = Groups::new()
///     .with(matrices, |parameters| AdamW::new(parameters, 1e-3)?.with_weight_decay(0.1))?
///     .with(vectors, |parameters| AdamW::new(parameters, 1e-3)?.with_weight_decay(0.0))?;
///
/// let loss = network.forward(&Tensor::ones(&device, [3, 4])?)?.square()?.mean_all()?;
/// optimizer.step(loss.backward()?)?;
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Groups {
    groups: Vec<Group>,
}

#[derive(Debug)]
struct Group {
    parameters: Vec<(String, Parameter)>,
    optimizer: Box<dyn Optimizer>,
    /// The ratio of its learning rate to the first group's.
    share: f64,
}

impl Group {
    /// Returns the prefix of its state's names. The prefix contains the optimizer's kind, because the states of two
    /// kinds may look alike.
    fn prefix(&self, number: usize) -> String {
        format!("{number}.{}/", self.optimizer.name())
    }

    /// Selects its part of the state of all groups.
    fn state_in(&self, number: usize, state: &Arrays) -> Arrays {
        let prefix = self.prefix(number);
        let own = state.iter().filter_map(|(name, array)| Some((name.strip_prefix(&prefix)?, array)));
        own.map(|(name, array)| (name.to_owned(), array.clone())).collect()
    }
}

impl Groups {
    /// Creates an optimizer without groups and parameters.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a group: `make` creates the optimizer of these parameters, which may be empty. The ratio of its learning
    /// rate to the first group's stays when the rate is [set](Optimizer::set_learning_rate). If the first rate is 0,
    /// all groups then get the same rate.
    ///
    /// # Errors
    /// [`Error::BadArgument`] for a parameter that an earlier group holds; otherwise the error of `make`.
    pub fn with<O: Optimizer + 'static>(
        mut self,
        parameters: Vec<(String, Parameter)>,
        make: impl FnOnce(ParameterGroup) -> Result<O>,
    ) -> Result<Self> {
        let optimizer = make(ParameterGroup::part(parameters))?;
        let (mut parameters, mut seen) = (optimizer.parameters(), HashSet::new());
        parameters.retain(|(_, parameter)| seen.insert(parameter.address()));
        let earlier: HashSet<usize> = self.held().map(|(_, parameter)| parameter.address()).collect();
        if let Some((path, _)) = parameters.iter().find(|(_, own)| earlier.contains(&own.address())) {
            let (argument, expected) = ("parameters", "in one group each");
            return Err(Error::BadArgument { op: OP, argument, expected, got: format!("{path} again") });
        }
        let share = match self.groups.first().map(|first| first.optimizer.learning_rate()) {
            Some(first) if first > 0.0 => optimizer.learning_rate() / first,
            _ => 1.0,
        };
        self.groups.push(Group { parameters, optimizer: Box::new(optimizer), share });
        Ok(self)
    }

    /// Returns the parameters of all groups.
    fn held(&self) -> impl Iterator<Item = &(String, Parameter)> {
        self.groups.iter().flat_map(|group| &group.parameters)
    }
}

/// Allocates the state of all groups inside each other, so that each one adds its state only if all others could allocate.
fn allocate_state(
    groups: &mut [Group],
    gradients: &Gradients,
    then: &mut dyn FnMut() -> Result<()>,
) -> Result<()> {
    match groups {
        [] => then(),
        [first, rest @ ..] => {
            first.optimizer.allocate_state(gradients, &mut || allocate_state(rest, gradients, then))
        }
    }
}

impl Optimizer for Groups {
    fn name(&self) -> &'static str {
        OP
    }

    fn parameters(&self) -> Vec<(String, Parameter)> {
        self.held().cloned().collect()
    }

    /// Steps group by group after checking all gradients and allocating all state. Only one error can occur after the first
    /// group has stepped: a parameter was converted after its optimizer was created.
    fn step(&mut self, mut gradients: Gradients) -> Result<()> {
        let _phase = phase(Phase::Optimizer);
        gradients.prepare_update(OP, self.held().map(|(path, parameter)| (&path[..], parameter)))?;
        self.allocate_state(&gradients, &mut || Ok(()))?;
        for group in &mut self.groups {
            group.optimizer.step(gradients.split_off(&group.parameters))?;
        }
        Ok(())
    }

    fn allocate_state(&mut self, gradients: &Gradients, then: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        allocate_state(&mut self.groups, gradients, then)
    }

    /// Returns the learning rate of the first group; 0 without groups.
    fn learning_rate(&self) -> f64 {
        self.groups.first().map_or(0.0, |first| first.optimizer.learning_rate())
    }

    /// Sets the learning rate of the first group. The others keep their ratios to it.
    fn set_learning_rate(&mut self, learning_rate: f64) -> Result<()> {
        // Checks all rates before it sets the first one.
        not_negative(OP, "lr", learning_rate)?;
        self.groups
            .iter()
            .try_for_each(|group| not_negative(OP, "lr", learning_rate * group.share).map(drop))?;
        let mut groups = self.groups.iter_mut();
        groups.try_for_each(|group| group.optimizer.set_learning_rate(learning_rate * group.share))
    }

    fn settings(&self) -> Vec<(String, String)> {
        let of_group = |(number, group): (usize, &Group)| {
            let prefix = group.prefix(number);
            group
                .optimizer
                .settings()
                .into_iter()
                .map(move |(name, value)| (format!("{prefix}{name}"), value))
        };
        self.groups.iter().enumerate().flat_map(of_group).collect()
    }

    fn state(&self) -> Result<Arrays> {
        let mut state = Arrays::new();
        for (number, group) in self.groups.iter().enumerate() {
            let prefix = group.prefix(number);
            let own = group.optimizer.state()?;
            state.extend(own.into_iter().map(|(name, array)| (format!("{prefix}{name}"), array)));
        }
        Ok(state)
    }

    fn check_state(&self, state: &Arrays) -> Result<()> {
        let prefixes: Vec<_> =
            self.groups.iter().enumerate().map(|(number, group)| group.prefix(number)).collect();
        let (mut missing, mut unexpected) = (Vec::new(), Vec::new());
        for prefix in &prefixes {
            let rate = format!("{prefix}{LEARNING_RATE}");
            if !state.contains_key(&rate) {
                missing.push(rate);
            }
        }
        let foreign = |name: &&String| !prefixes.iter().any(|prefix| name.starts_with(prefix));
        unexpected.extend(state.keys().filter(foreign).cloned());
        if !(missing.is_empty() && unexpected.is_empty()) {
            return Err(Box::new(Mismatch {
                what: OP,
                missing,
                unexpected,
                different: Vec::new(),
                skipped: Vec::new(),
            })
            .into());
        }
        let mut groups = self.groups.iter().enumerate();
        groups.try_for_each(|(number, group)| group.optimizer.check_state(&group.state_in(number, state)))
    }

    fn load_state(&mut self, state: &Arrays) -> Result<()> {
        self.check_state(state)?;
        for (number, group) in self.groups.iter_mut().enumerate() {
            let own = group.state_in(number, state);
            group.optimizer.load_state(&own)?;
        }
        Ok(())
    }
}
