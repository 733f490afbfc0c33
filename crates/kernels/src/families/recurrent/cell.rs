//! Recurrent layers: the kinds of cells, and the operands that the forward and the backward kernel share.

use crate::storage::View;

/// The cell of a recurrent layer. `x` stands for the cell's share of the inputs, `u` for that of the previous state,
/// and σ for the logistic function. Gates are side by side in the listed order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecurrentCell {
    /// LSTM with the gates i, f, g, o: c ← σ(f)·c + σ(i)·tanh(g), h ← σ(o)·tanh(c), where each gate is x + u.
    Lstm,
    /// GRU with the gates r, z, n: h ← (1 - σ(z))·n + σ(z)·h with n = tanh(x + σ(r)·u), where r and z are x + u.
    Gru,
    /// Without gates: h ← tanh(x + u).
    Tanh,
    /// Without gates: h ← max(x + u, 0).
    Relu,
}

impl RecurrentCell {
    /// The number of gates, which the weights and biases have side by side.
    #[must_use]
    pub const fn gates(self) -> usize {
        match self {
            Self::Lstm => 4,
            Self::Gru => 3,
            Self::Tanh | Self::Relu => 1,
        }
    }

    /// The number of tensors that one step passes to the next: the state, and the cell of an LSTM.
    #[must_use]
    pub const fn states(self) -> usize {
        match self {
            Self::Lstm => 2,
            Self::Gru | Self::Tanh | Self::Relu => 1,
        }
    }

    /// Whether the backward pass reads one more element per state: the cell of an LSTM, or `u` of a GRU's gate n.
    #[must_use]
    pub const fn has_extra(self) -> bool {
        matches!(self, Self::Lstm | Self::Gru)
    }

    /// The op's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lstm => "lstm",
            Self::Gru => "gru",
            Self::Tanh | Self::Relu => "rnn",
        }
    }
}

/// One recurrent layer in one direction: the options and operands that both kernels share.
///
/// Matrices have one row per sequence and step: row `i · len + t` is step t of sequence i.
#[derive(Clone, Copy, Debug)]
pub struct Recurrence<'a> {
    /// The cell.
    pub cell: RecurrentCell,
    /// Whether the layer reads the sequences backwards.
    pub reverse: bool,
    /// The number of steps of a sequence.
    pub len: usize,
    /// The weight of the previous state, of shape `[hidden, gates · hidden]`.
    pub weight: View<'a>,
    /// The initial state, of shape `[sequences, hidden]`; `None` for zeros.
    pub initial_state: Option<View<'a>>,
    /// For an LSTM, the initial cell, of shape `[sequences, hidden]`; `None` for zeros.
    pub initial_cell: Option<View<'a>>,
}
