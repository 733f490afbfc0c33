"""Writes pytorch.json: what ops return in PyTorch (2.15). Run as `python3 make_pytorch.py > pytorch.json`; needs torch.

A case is [name, options, inputs, outputs]: the outputs are the result, and the gradient of each input by the sum of the
result times its index. A tensor is [shape, values]. ops_pytorch.rs knows what each name means.
"""

import json

import torch
import torch.nn.functional as F

torch.manual_seed(7)
cases = []


def tensor(x):
    return [list(x.shape), x.detach().flatten().tolist()]


def case(name, options, function, *inputs):
    leaves = [x.double().requires_grad_() for x in inputs]
    y = function(*leaves)
    factors = torch.arange(y.numel(), dtype=torch.float64).reshape(y.shape)
    gradients = torch.autograd.grad((y * factors).sum(), leaves)
    cases.append([name, options, [tensor(x) for x in leaves], [tensor(x) for x in [y, *gradients]]])


def values(*shape):
    return torch.round(torch.randn(*shape) * 2, decimals=3)


special = torch.tensor([-800.0, -30.0, -3.0, -1.0, -1e-3, 0.0, 1e-3, 1.0, 3.0, 30.0, 800.0])
for x in [special, values(3, 4)]:
    case("elu", [1.0], F.elu, x)
    case("elu", [0.3], lambda x: F.elu(x, 0.3), x)
    case("mish", [], F.mish, x)
    case("hardswish", [], F.hardswish, x)
    case("softmax", [-1], lambda x: F.softmax(x, -1), x)
    case("log softmax", [0], lambda x: F.log_softmax(x, 0), x)
case("prelu", [], F.prelu, special, torch.tensor([0.25]))
case("prelu", [], F.prelu, values(2, 3, 4), torch.tensor([0.25, -0.5, 2.0]))
case("prelu", [], F.prelu, values(2, 3), torch.tensor([0.1]))

# Size, stride and padding of a window, the ceiling mode, and whether padding counts.
for size, stride, padding in [(2, 2, 0), (3, 2, 1), (2, 3, 1), (3, 1, 1), (4, 3, 2)]:
    for ceil in [False, True]:
        x = values(1, 2, 6, 7)
        case("max pool", [size, stride, padding, ceil, True],
             lambda x: F.max_pool2d(x, size, stride, padding, ceil_mode=ceil), x)
        for counts in [False, True]:
            case("avg pool", [size, stride, padding, ceil, counts],
                 lambda x: F.avg_pool2d(x, size, stride, padding, ceil_mode=ceil, count_include_pad=counts), x)

# The dilation.
for size, dilation in [((3, 3), 1), ((2, 4), 1), ((3, 2), 2), ((1, 5), 3)]:
    case("conv same", [dilation], lambda x, w: F.conv2d(x, w, padding="same", dilation=dilation),
         values(1, 2, 5, 6), values(3, 2, *size))

# Kinks: arguments at, beside and beyond the points without a derivative.
kinks = torch.tensor([-3.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 3.0, 800.0, -800.0])
inf = float("inf")
for low, high in [(-1.0, 1.0), (-1.5, 1.5), (0.0, 6.0), (0.0, 0.0), (-1.0, inf), (-inf, 1.0), (-inf, inf)]:
    case("clamp", [str(low), str(high)], lambda x: x.clamp(low, high), kinks)
finite = kinks[:9]
case("relu", [], F.relu, finite)
case("leaky relu", [0.25], lambda x: F.leaky_relu(x, 0.25), finite)
case("abs", [], torch.abs, finite)
case("prelu", [], F.prelu, finite, torch.tensor([0.25]))
for other in [finite.clone(), finite.flip(0), torch.ones(1)]:
    case("maximum", [], torch.maximum, finite, other)
    case("minimum", [], torch.minimum, finite, other)
for ties in [torch.tensor([2.0, 1.0, 2.0, 2.0, 1.0, 1.0]), torch.zeros(6)]:
    case("max", [-1], lambda x: x.reshape(2, 3).amax(-1), ties)
    case("min", [-1], lambda x: x.reshape(2, 3).amin(-1), ties)
case("l1 loss", [], lambda x, t: F.l1_loss(x, t, reduction="none"), finite, torch.zeros(9))
for delta in [0.5, 1.0]:
    case("huber loss", [delta], lambda x, t: F.huber_loss(x, t, reduction="none", delta=delta), finite, torch.zeros(9))

# Axis, size and step of windows.
for axis, size, step in [(0, 2, 1), (1, 3, 2), (-1, 2, 3), (2, 4, 1)]:
    case("unfold", [axis, size, step], lambda x: x.unfold(axis, size, step), values(3, 5, 4))
# Window, stride, padding and dilation.
for window in [(2, 3), 1, 0, 1], [(3, 2), 2, 1, 1], [(2, 2), 1, 2, 2]:
    size, stride, padding, dilation = window
    case("unfold2d", [*size, stride, padding, dilation],
         lambda x: F.unfold(x, size, dilation=dilation, padding=padding, stride=stride), values(2, 2, 5, 4))
case("pixel shuffle", [2], lambda x: F.pixel_shuffle(x, 2), values(2, 8, 2, 3))
case("pixel unshuffle", [3], lambda x: F.pixel_unshuffle(x, 3), values(1, 2, 3, 6))
# The size, or the scale, of the result.
for mode, corners in [("nearest", None), ("bilinear", False), ("bilinear", True)]:
    for size in [(6, 10), (7, 4), (3, 5), (1, 1), (2, 9)]:
        case("interpolate", [mode, bool(corners), "size", *size],
             lambda x: F.interpolate(x, size=size, mode=mode, align_corners=corners), values(1, 2, 3, 5))
    for scale in [(2.0, 2.0), (1.7, 0.5), (0.7, 1.1), (1.3, 3.0)]:
        case("interpolate", [mode, bool(corners), "scale", *scale],
             lambda x: F.interpolate(x, scale_factor=scale, mode=mode, align_corners=corners), values(1, 2, 3, 5))
case("instance norm", [], lambda x: F.instance_norm(x), values(2, 3, 4))
case("instance norm", [], lambda x, w, b: F.instance_norm(x, weight=w, bias=b), values(2, 3, 2, 4), values(3), values(3))
case("cosine similarity", [1], lambda x, y: F.cosine_similarity(x, y, 1), values(3, 4), values(3, 4))
case("cosine similarity", [-2], lambda x, y: F.cosine_similarity(x, y, -2), values(2, 3, 4), values(3, 1))

print("[" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "]")
