"""Writes half.txt: the errors of PyTorch's ops (2.15, on the CPU) in 16 bits. Run as `python3 make_half.py > half.txt`; needs torch.

A line is: type, name, inputs, errors. An input is SHAPE:KIND, whose values `values` computes from the kind and the position.
The errors are those of the result and of the gradient of each float input, by a gradient of the result of kind n. An error is
‖y - z‖ / ‖z‖ with z computed in f64 of the same rounded inputs. half_errors.rs knows what each name means.
"""

import warnings

import numpy as np
import torch
import torch.nn.functional as F

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
GRADIENT = 99


def hashes(count, number):
    """Returns 32 well mixed bits for each element of input `number`."""
    mask = np.uint64(0xFFFF_FFFF)
    x = (np.arange(count, dtype=np.uint64) + np.uint64(1 + 7919 * number)) * np.uint64(2654435761) & mask
    x = (x ^ x >> np.uint64(15)) * np.uint64(2246822519) & mask
    x = (x ^ x >> np.uint64(13)) * np.uint64(3266489917) & mask
    return (x ^ x >> np.uint64(16)).astype(np.int64)


def values(kind, count, number):
    x, i = hashes(count, number), np.arange(count)
    normal = (sum(x >> shift & 255 for shift in (0, 8, 16, 24)) - 510) / 256
    match kind[0]:
        case "n":  # nearly normal, with a deviation of 0.58
            return normal
        case "w":  # weights
            return normal / 4
        case "s":  # shifted
            return normal + 8
        case "p":  # positive
            return (x & 511) / 256 + 0.5
        case "a":  # away from 0
            return ((x & 255) / 256 + 0.25) * (1 - (x >> 8 & 1) * 2)
        case "u":  # between 0 and 1
            return (x & 255) / 256 + 1 / 512
        case "d":  # different values, if there are at most 256
            return ((i * 167 + 13) % count - count // 2) / 64
        case "b":
            return x >> 3 & 1 == 1
        case "i":
            return x % int(kind[1:])
    raise ValueError(kind)


def tensor(spec, number, dtype):
    shape, kind = spec.split(":")
    shape = [int(size) for size in shape.split("x") if size]
    found = torch.from_numpy(np.asarray(values(kind, int(np.prod(shape)), number))).reshape(shape)
    return found.to(dtype) if found.dtype == torch.float64 else found


def run(inputs, function, upstream=None):
    leaves = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
    y = function(*leaves)
    if upstream is None:
        count = y.numel()
        upstream = torch.from_numpy(values("n", count, GRADIENT)).reshape(y.shape)
    floats = [x for x in leaves if x.requires_grad]
    return [y, *torch.autograd.grad(y, floats, upstream.to(y.dtype))], upstream


def case(name, inputs, function):
    for dtype in (torch.bfloat16, torch.float16):
        given = [tensor(spec, number, dtype) for number, spec in enumerate(inputs.split())]
        try:
            found, upstream = run(given, function)
        except (RuntimeError, NotImplementedError) as error:
            if dtype == torch.bfloat16:
                raise RuntimeError(name) from error
            continue
        wide = [x.double() if x.is_floating_point() else x for x in given]
        exact, _ = run(wide, function, upstream.to(dtype).double())
        errors = []
        for y, z in zip(found, exact):
            size = z.norm().item()
            errors.append((y.double() - z).norm().item() / (size if size > 0 else 1.0))
        kind = {torch.bfloat16: "bf16", torch.float16: "f16"}[dtype]
        print(kind, name, *inputs.split(), *(f"{error:.3e}" for error in errors))


SOME = "24x20:n"
for name, inputs, function in [
    ("neg", SOME, torch.neg),
    ("abs", SOME, torch.abs),
    ("square", SOME, torch.square),
    ("exp", SOME, torch.exp),
    ("expm1", SOME, torch.expm1),
    ("log", "24x20:p", torch.log),
    ("log1p", "24x20:p", torch.log1p),
    ("sqrt", "24x20:p", torch.sqrt),
    ("recip", "24x20:p", torch.reciprocal),
    ("rsqrt", "24x20:p", torch.rsqrt),
    ("sin", SOME, torch.sin),
    ("cos", SOME, torch.cos),
    ("tanh", SOME, torch.tanh),
    ("erf", SOME, torch.erf),
    ("relu", SOME, F.relu),
    ("leaky_relu", SOME, lambda x: F.leaky_relu(x, 0.125)),
    ("elu", SOME, lambda x: F.elu(x, 0.75)),
    ("gelu", SOME, F.gelu),
    ("gelu_tanh", SOME, lambda x: F.gelu(x, approximate="tanh")),
    ("sigmoid", SOME, torch.sigmoid),
    ("logsigmoid", SOME, F.logsigmoid),
    ("silu", SOME, F.silu),
    ("softplus", SOME, F.softplus),
    ("softsign", SOME, F.softsign),
    ("mish", SOME, F.mish),
    ("hardswish", SOME, F.hardswish),
    ("powf", "24x20:p", lambda x: x.pow(-1.5)),
    ("clamp", SOME, lambda x: x.clamp(-0.5, 0.75)),
    ("add_scalar", SOME, lambda x: x + 3),
    ("mul_scalar", SOME, lambda x: x * 0.3),
    ("div_scalar", SOME, lambda x: x / 3),
    ("relu6", SOME, F.relu6),
]:
    case(name, inputs, function)
for name, inputs, function in [
    ("add", "24x20:n 24x20:n", torch.add),
    ("sub", "24x20:n 24x20:n", torch.sub),
    ("mul", "24x20:n 24x20:n", torch.mul),
    ("div", "24x20:n 24x20:p", torch.div),
    ("pow", "24x20:p 24x20:n", torch.pow),
    ("maximum", "24x20:n 24x20:n", torch.maximum),
    ("minimum", "24x20:n 24x20:n", torch.minimum),
    ("atan2", "24x20:a 24x20:a", torch.atan2),
    ("silu_mul", "24x20:n 24x20:n", lambda x, y: F.silu(x) * y),
]:
    case(name, inputs, function)
    kinds = [spec.split(":")[1] for spec in inputs.split()]
    case(name + "-broadcast", f"24x1x20:{kinds[0]} 15x1:{kinds[1]}", function)
case("prelu", "12x20:a 20:n", F.prelu)
case("where", "24x20:b 24x20:n 20:n", torch.where)
case("masked_fill", "24x20:n 24x20:b", lambda x, m: x.masked_fill(m, -2.0))

# Reductions and cumulative ops.
CUBE = "12x16x10:n"
for name, inputs, function in [
    ("sum", CUBE, lambda x: x.sum(1)),
    ("sum_all", CUBE, lambda x: x.sum()),
    ("mean", CUBE, lambda x: x.mean((0, 2))),
    ("mean_all", CUBE, lambda x: x.mean()),
    ("max", "12x20:d", lambda x: x.amax(1)),
    ("min", "12x20:d", lambda x: x.amin(0)),
    ("prod", "12x8x10:p", lambda x: x.prod(1)),
    ("var", CUBE, lambda x: x.var((0, 2))),
    ("std", CUBE, lambda x: x.std(-1)),
    ("var-shifted", "12x16x10:s", lambda x: x.var((0, 2))),
    ("std_all", CUBE, lambda x: x.std()),
    ("logsumexp", CUBE, lambda x: x.logsumexp(1)),
    ("norm-l1", CUBE, lambda x: torch.linalg.vector_norm(x, 1, 1)),
    ("norm-l2", CUBE, lambda x: torch.linalg.vector_norm(x, 2, (0, 2))),
    ("cumsum", CUBE, lambda x: x.cumsum(1)),
    ("cumprod", "12x8x10:p", lambda x: x.cumprod(1)),
    ("softmax", CUBE, lambda x: x.softmax(-1)),
    ("softmax-first", CUBE, lambda x: x.softmax(0)),
    ("log_softmax", CUBE, lambda x: x.log_softmax(-1)),
    ("log_softmax-middle", CUBE, lambda x: x.log_softmax(1)),
    ("sort", "12x20:d", lambda x: x.sort(1).values),
    ("top_k", "12x20:d", lambda x: x.topk(5, 1).values),
]:
    case(name, inputs, function)

# Products.
case("matmul", "20x30:n 30x24:n", torch.matmul)
case("matmul-stacks", "3x10x30:n 3x30x12:n", torch.matmul)
case("matmul-broadcast", "3x1x10x30:n 4x30x12:n", torch.matmul)
case("matmul-vector", "8x20x30:n 30:n", torch.matmul)
case("linear", "20x30:n 30x24:w 24:n", lambda x, w, b: F.linear(x, w.t(), b))
case("linear-long", "200x30:n 30x6:w 6:n", lambda x, w, b: F.linear(x, w.t(), b))
for name, activation in [
    ("relu", F.relu), ("gelu", F.gelu), ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh")), ("silu", F.silu)
]:
    case("linear_" + name, "20x30:n 30x24:w 24:n", lambda x, w, b: activation(F.linear(x, w.t(), b)))
case("einsum", "12x20:n 16x20:n", lambda x, y: torch.einsum("ij,kj->ki", x, y))
case("einsum-elementwise", "12x20:n 12x20:n", lambda x, y: torch.einsum("ij,ij->j", x, y))
case("einsum-three", "12x20:n 20:n 12:n", lambda x, y, z: torch.einsum("ik,k,i->k", x, y, z))
case("einsum-batches", "3x10x20:n 3x20x8:n", lambda x, y: torch.einsum("bij,bjk->bki", x, y))
case("cosine_similarity", "12x20:n 12x20:n", lambda x, y: F.cosine_similarity(x, y, 1))

# Convolutions and pools.
case("conv1d", "4x6x30:n 8x6x3:w", lambda x, w: F.conv1d(x, w, stride=2, padding=1))
case("conv2d", "3x6x10x9:n 8x6x3x3:w", lambda x, w: F.conv2d(x, w, padding=1))
case("conv2d-1x1", "3x16x6x6:n 12x16x1x1:w", F.conv2d)
case("conv2d-strided", "3x8x11x10:n 8x4x3x2:w",
     lambda x, w: F.conv2d(x, w, stride=(2, 1), padding=(2, 1), dilation=(1, 2), groups=2))
case("conv2d-depthwise", "3x16x9x8:n 16x1x3x3:w", lambda x, w: F.conv2d(x, w, padding=1, groups=16))
case("conv_transpose2d", "3x8x6x5:n 8x4x3x3:w", lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1))
case("max_pool1d", "2x5x24:d", lambda x: F.max_pool1d(x, 3, 2, 1))
case("max_pool2d", "2x2x8x8:d", lambda x: F.max_pool2d(x, 2))
case("max_pool2d-overlapping", "2x2x8x8:d", lambda x: F.max_pool2d(x, 3, 2, 1))
case("avg_pool1d", "2x5x24:n", lambda x: F.avg_pool1d(x, 3))
case("avg_pool2d", "2x4x10x10:n", lambda x: F.avg_pool2d(x, 2))
case("avg_pool2d-overlapping", "2x4x11x10:n",
     lambda x: F.avg_pool2d(x, 3, (2, 1), 1, ceil_mode=True, count_include_pad=False))
case("adaptive_avg_pool2d", "2x8x7x9:n", lambda x: F.adaptive_avg_pool2d(x, (3, 5)))
case("adaptive_max_pool2d", "2x2x7x9:d", lambda x: F.adaptive_max_pool2d(x, (3, 5)))
case("unfold2d", "2x3x9x8:n", lambda x: F.unfold(x, (3, 2), padding=1, stride=(2, 1), dilation=(1, 2)))
case("interpolate-nearest", "2x3x6x7:n", lambda x: F.interpolate(x, size=(14, 9)))
case("interpolate-bilinear", "2x3x6x7:n", lambda x: F.interpolate(x, size=(14, 9), mode="bilinear"))
case("interpolate-aligned", "2x3x6x7:n",
     lambda x: F.interpolate(x, size=(4, 15), mode="bilinear", align_corners=True))

# Norms.
case("layer_norm", "24x32:n 32:n 32:n", lambda x, w, b: F.layer_norm(x, (32,), w, b))
case("layer_norm-shifted", "24x32:s 32:n 32:n", lambda x, w, b: F.layer_norm(x, (32,), w, b))
case("layer_norm-plain", "24x32:n", lambda x: F.layer_norm(x, (32,)))
case("rms_norm", "24x32:n 32:n", lambda x, w: F.rms_norm(x, (32,), w, 1e-5))
case("group_norm", "4x8x12:n 8:n 8:n", lambda x, w, b: F.group_norm(x, 2, w, b))
case("instance_norm", "4x8x12:n 8:n 8:n", lambda x, w, b: F.instance_norm(x, weight=w, bias=b))
batch_norm = lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True)
case("batch_norm", "8x6x12:n 6:n 6:n", batch_norm)
case("batch_norm-shifted", "8x6x12:s 6:n 6:n", batch_norm)
case("batch_norm-rows", "60x8:n 8:n 8:n", batch_norm)
case("batch_norm-fixed", "8x6x12:n 6:n 6:n 6:n 6:p",
     lambda x, w, b, m, v: F.batch_norm(x, m.detach(), v.detach(), w, b) + 0 * (m + v).sum())

# Attention and recurrent layers.
attention = F.scaled_dot_product_attention
HEADS = "2x3x16x8:n 2x3x20x8:n 2x3x20x8:n"
case("attention", HEADS, attention)
case("attention-causal", "2x3x16x8:n 2x3x16x8:n 2x3x16x8:n", lambda q, k, v: attention(q, k, v, is_causal=True))
case("attention-masked", HEADS + " 16x20:b", lambda q, k, v, m: attention(q, k, v, attn_mask=m))
case("attention-biased", HEADS + " 16x20:n", lambda q, k, v, m: attention(q, k, v, attn_mask=m))


def self_attention(x):
    q, k, v = (part.reshape(3, 12, 2, 8).transpose(1, 2) for part in x.split(16, -1))
    return attention(q, k, v, is_causal=True).transpose(1, 2).reshape(3, 12, 16)


case("self_attention", "3x12x48:n", self_attention)


def recurrent(kind):
    def layer(x, *weights):
        state, weights = weights[:kind.states], [w.t() if w.dim() == 2 else w for w in weights[kind.states:]]
        state = [s.unsqueeze(0) for s in state]
        state = state if kind.states == 2 else state[0]
        return kind.function(x, state, weights, True, 1, 0.0, True, False, True)[0]
    return layer


class Lstm:
    states, gates, function = 2, 4, torch.lstm


class Gru:
    states, gates, function = 1, 3, torch.gru


class Rnn:
    states, gates, function = 1, 1, torch.rnn_tanh


for name, kind in [("lstm", Lstm), ("gru", Gru), ("rnn", Rnn)]:
    width = 16 * kind.gates
    states = " 8x16:n" * kind.states
    case(name, f"8x10x16:n{states} 16x{width}:w 16x{width}:w {width}:w {width}:w", recurrent(kind))

# Losses.
case("cross_entropy", "40x12:n 40:i12", F.cross_entropy)
case("cross_entropy-each", "40x12:n 40:i12", lambda x, t: F.cross_entropy(x, t, reduction="none"))
case("cross_entropy-smoothed", "40x12:n 40:i12", lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1))
case("cross_entropy-weighted", "40x12:n 40:i12 12:p",
     lambda x, t, w: F.cross_entropy(x, t, w.detach()) + 0 * w.sum())
case("linear_cross_entropy", "40x16:n 16x12:w 40:i12", lambda x, w, t: F.cross_entropy(F.linear(x, w.t()), t))
case("mse_loss", "24x20:n 24x20:n", F.mse_loss)
case("mse_loss-each", "24x20:n 24x20:n", lambda x, t: F.mse_loss(x, t, reduction="none"))
case("l1_loss", "24x20:n 24x20:n", F.l1_loss)
case("huber_loss", "24x20:n 24x20:n", lambda x, t: F.huber_loss(x, t, delta=0.5))
case("bce_with_logits", "24x20:n 24x20:u", F.binary_cross_entropy_with_logits)
case("kl_div", "24x20:n 24x20:p", lambda x, t: F.kl_div(x, t, reduction="mean"))
case("poisson_nll_loss", "24x20:n 24x20:p", F.poisson_nll_loss)
case("triplet_margin_loss", "24x20:n 24x20:n 24x20:n", lambda x, y, z: F.triplet_margin_loss(x, y, z, 9.0))

# Indexing and shapes, whose gradients are sums.
case("gather", "12x20:n 12x30:i20", lambda x, i: x.gather(1, i))
case("scatter_add", "12x20:n 12x60:i20 12x60:n", lambda x, i, y: x.scatter_add(1, i, y))
case("index_select", "12x20:n 60:i12", lambda x, i: x.index_select(0, i))
case("embedding", "12x20:n 5x30:i12", lambda x, i: F.embedding(i, x))
case("broadcast_to", "12x20:n", lambda x: x.broadcast_to(30, 12, 20))
case("unfold", "12x40:n", lambda x: x.unfold(1, 9, 1))
case("tile", "12x20:n", lambda x: x.tile(5, 6))
case("repeat_interleave", "12x20:n", lambda x: x.repeat_interleave(9, 1))
case("pad-replicate", "2x3x6x7:n", lambda x: F.pad(x, (5, 6, 7, 4), mode="replicate"))
case("pad-reflect", "2x3x6x7:n", lambda x: F.pad(x, (5, 6, 5, 4), mode="reflect"))
case("pad-circular", "2x3x6x7:n", lambda x: F.pad(x, (5, 6, 5, 4), mode="circular"))
