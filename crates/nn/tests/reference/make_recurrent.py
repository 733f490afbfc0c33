"""Writes recurrent.json: what recurrent layers give, as PyTorch computes it. Run as `python3 make_recurrent.py > recurrent.json`;
needs torch.

The kind "GRU before" is what PyTorch does not have, a GRU that resets its state before the product, written out here.

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


def reset_before(parameters, layers, directions, x, given):
    """Cho et al. 2014, with matrices as PyTorch has them."""
    ends = []
    for layer in range(layers):
        sides = []
        for direction in range(directions):
            end = f"_l{layer}{'_reverse' if direction else ''}"
            names = ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]
            w, u, b, c = (torch.chunk(parameters[name + end], 3) for name in names)
            h, states = given[len(ends)], []
            for step in reversed(x.unbind(1)) if direction else x.unbind(1):
                r = torch.sigmoid(step @ w[0].t() + b[0] + h @ u[0].t() + c[0])
                z = torch.sigmoid(step @ w[1].t() + b[1] + h @ u[1].t() + c[1])
                n = torch.tanh(step @ w[2].t() + b[2] + (r * h) @ u[2].t() + c[2])
                h = (1 - z) * n + z * h
                states.append(h)
            ends.append(h)
            sides.append(torch.stack(states[::-1] if direction else states, 1))
        x = torch.cat(sides, -1)
    return x, torch.stack(ends)


def case(kind, layers, directions, inputs, hidden):
    name, _, how = kind.partition(" ")
    options = {"nonlinearity": how} if name == "RNN" else {}
    layer = getattr(torch.nn, name)(inputs, hidden, layers, batch_first=True, bidirectional=directions == 2, **options)
    # Matrices are the transposes of ours.
    ours = {
        name: wave(parameter.shape[::-1], 1 + number).requires_grad_()
        for number, (name, parameter) in enumerate(layer.named_parameters())
    }
    theirs = {name: parameter.t() for name, parameter in ours.items()}
    x = wave((2, 3, inputs), 0.3).requires_grad_()
    count = 2 if kind == "LSTM" else 1
    states = [wave((layers * directions, 2, hidden), 5 + i).requires_grad_() for i in range(count)]
    if how == "before":
        y, last = reset_before(theirs, layers, directions, x, states[0])
    else:
        given = tuple(states) if count == 2 else states[0]
        y, last = torch.func.functional_call(layer, theirs, (x, given))
    results = [y, *last] if count == 2 else [y, last]
    loss = sum((wave(result.shape, 0.9 + i) * result).sum() for i, result in enumerate(results))
    gradients = torch.autograd.grad(loss, [x, *states, *ours.values()])
    numbers = [[round(v, 12) for v in tensor.reshape(-1).tolist()] for tensor in [*results, *gradients]]
    return [kind, layers, directions, inputs, hidden, numbers]


KINDS = ["GRU", "LSTM", "GRU before", "RNN tanh", "RNN relu"]
FORMS = [(1, 1, 2, 2), (2, 1, 3, 2), (1, 2, 2, 2), (3, 2, 2, 1)]
cases = [case(kind, *form) for kind in KINDS for form in FORMS]
print("[" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "]")
