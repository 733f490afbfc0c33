//! Recurrent networks: two layers, and a linear layer that classifies the last state.

use super::parameters::Parameters;

/// The sizes of a recurrent network.
#[derive(Clone, Copy, Debug)]
pub struct Recurrent {
    /// Gates of a layer: 4 for LSTM, 3 for GRU.
    pub gates: usize,
    pub layers: usize,
    pub inputs: usize,
    pub hidden: usize,
    pub steps: usize,
    pub classes: usize,
}

pub const LSTM: Recurrent =
    Recurrent { gates: 4, layers: 2, inputs: 64, hidden: 256, steps: 64, classes: 10 };
pub const GRU: Recurrent = Recurrent { gates: 3, ..LSTM };

pub fn parameters(sizes: Recurrent, parameters: &mut Parameters) {
    let Recurrent { gates, layers, inputs, hidden, classes, .. } = sizes;
    let deviation = (1.0 / hidden as f64).sqrt();
    for layer in 0..layers {
        let inputs = if layer == 0 { inputs } else { hidden };
        parameters.uniform([inputs, gates * hidden], deviation);
        parameters.uniform([hidden, gates * hidden], deviation);
        parameters.zeros([gates * hidden]);
        parameters.zeros([gates * hidden]);
    }
    parameters.linear(hidden, classes);
}
