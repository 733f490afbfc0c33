//! The division of memory among ranks.

/// The memory that ranks divide among themselves instead of keeping copies (Rajbhandari et al. 2020).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Shard {
    /// Nothing: each rank keeps all gradients and the whole state of the optimizer.
    #[default]
    None,
    /// The state of the optimizer (ZeRO-1). Each rank updates its own parameters and sends them to the others.
    Optimizer,
    /// Gradients and the state of the optimizer (ZeRO-2). Each rank keeps the sums of its own parameters' gradients.
    Gradients,
}

impl Shard {
    /// The names of all values, for command lines.
    pub const NAMES: [&str; 3] = ["none", "optimizer", "gradients"];

    /// Returns the value of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let values = [Self::None, Self::Optimizer, Self::Gradients];
        Self::NAMES.into_iter().zip(values).find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// Returns the name of the value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}
