"""Writes recurrent.json: what recurrent layers give, as PyTorch computes it. Run as `python3 make_recurrent.py > recurrent.json`;
needs torch.

A case is [kind, layers, directions, inputs, hidden, numbers]. The numbers are those of the results, of the last states, and of
the gradients of the sum of waves times these: by the input, by the first states, and by the parameters, which PyTorch and we
keep in the same order. The waves are made by nn_recurrent.rs too.
"""

import json

import torch

torch.set_default_dtype(torch.float64)


def wave(shape, phase):
    count = torch.Size(shape).numel()
    return (0.5 * torch.sin(0.7 * torch.arange(count) + phase)).reshape(shape)


def case(kind, layers, directions, inputs, hidden):
    layer = getattr(torch.nn, kind)(inputs, hidden, layers, batch_first=True, bidirectional=directions == 2)
    # Matrices are the transposes of ours.
    ours = {
        name: wave(parameter.shape[::-1], 1 + number).requires_grad_()
        for number, (name, parameter) in enumerate(layer.named_parameters())
    }
    theirs = {name: parameter.t() for name, parameter in ours.items()}
    x = wave((2, 3, inputs), 0.3).requires_grad_()
    states = [wave((layers * directions, 2, hidden), 5 + i).requires_grad_() for i in range(1 if kind == "GRU" else 2)]
    given = states[0] if kind == "GRU" else tuple(states)
    y, last = torch.func.functional_call(layer, theirs, (x, given))
    results = [y] + ([last] if kind == "GRU" else list(last))
    loss = sum((wave(result.shape, 0.9 + i) * result).sum() for i, result in enumerate(results))
    gradients = torch.autograd.grad(loss, [x, *states, *ours.values()])
    numbers = [[round(v, 12) for v in tensor.reshape(-1).tolist()] for tensor in [*results, *gradients]]
    return [kind, layers, directions, inputs, hidden, numbers]


cases = [case(kind, *rest) for kind in ["GRU", "LSTM"] for rest in [(1, 1, 2, 2), (2, 1, 3, 2), (1, 2, 2, 2), (3, 2, 2, 1)]]
print("[" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "]")
