"""Writes ops.json: what ops give, as NumPy computes it. Run as `python3 make_ops.py > ops.json`; needs numpy.

A case is [name, inputs, outputs]; a tensor is [type, shape, values]. ops_reference.rs knows what each name means.
"""

import json

import numpy as np

random = np.random.default_rng(6)
cases = []


def plain(value):
    """A number as JSON has it; what it does not have as a word."""
    return str(float(value)) if isinstance(value, (float, np.floating)) and not np.isfinite(value) else value


def tensor(array):
    array = np.asarray(array)
    kind = {"f": "f64", "i": "i64", "b": "bool"}[array.dtype.kind]
    return [kind, list(array.shape), [plain(v) for v in array.reshape(-1).tolist()]]


def case(name, inputs, *outputs):
    cases.append([name, [tensor(i) for i in inputs], [tensor(o) for o in outputs]])


def floats(*shape):
    return np.round(random.uniform(-2, 2, shape), 3)


def few(*shape):
    """Whole numbers with many equals among them."""
    return random.integers(-2, 3, shape).astype(float)


def reduced(losses, reduction):
    if reduction == "none":
        return losses
    with np.errstate(all="ignore"):
        return losses.sum() if reduction == "sum" else np.float64(losses.sum()) / losses.size


def log_softmax(x):
    if x.size == 0:
        return x
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


# Losses.
for shape in [(4, 3), (0, 3)]:
    x, t, p = floats(*shape), floats(*shape), np.round(random.uniform(0, 1, shape), 3)
    t[:1] = x[:1]
    d = np.abs(x - t)
    huber = np.where(d <= 0.7, d * d / 2, 0.7 * (d - 0.35))
    p[:1, :1] = 0
    divergence = np.where(p == 0, 0, p * (np.log(np.where(p == 0, 1, p)) - x))
    logits = x * 20
    binary = np.maximum(logits, 0) - logits * p + np.log1p(np.exp(-np.abs(logits)))
    for reduction in ["mean", "sum", "none"]:
        case(f"l1 {reduction}", [x, t], reduced(d, reduction))
        case(f"huber {reduction}", [x, t], reduced(huber, reduction))
        case(f"bce {reduction}", [logits, p], reduced(binary, reduction))
        case(f"kl {reduction}", [x, p], reduced(divergence, reduction))


def cross_entropy(x, targets, weights, smoothing, ignored, reduction):
    classes = x.shape[1]
    kept = targets != ignored
    safe = np.where(kept, targets, 0)
    w = np.ones(classes) if weights is None else weights
    row_weights = np.where(kept, w[safe], 0)
    logs = log_softmax(x)
    picked = -np.take_along_axis(logs, safe[:, None], 1)[:, 0]
    losses = (1 - smoothing) * row_weights * picked
    losses = losses + smoothing / classes * np.where(kept, (-logs * w).sum(1), 0)
    if reduction == "mean":
        with np.errstate(all="ignore"):
            return np.float64(losses.sum()) / row_weights.sum()
    return losses.sum() if reduction == "sum" else losses


for rows in [5, 0]:
    x = floats(rows, 4) * 3
    targets = np.array([2, -1, 0, 3, 2], dtype=np.int64)[:rows]
    plain_targets = np.abs(targets)
    weights = np.array([0.5, 2.0, 0.0, 1.5])
    for reduction in ["mean", "sum", "none"]:
        case(f"cross entropy {reduction}", [x, plain_targets], cross_entropy(x, plain_targets, None, 0, None, reduction))
        case(f"cross entropy smoothed {reduction}", [x, plain_targets], cross_entropy(x, plain_targets, None, 0.1, None, reduction))
        case(f"cross entropy ignoring {reduction}", [x, targets], cross_entropy(x, targets, None, 0, -1, reduction))
        case(f"cross entropy weighted {reduction}", [x, plain_targets, weights], cross_entropy(x, plain_targets, weights, 0, None, reduction))
        case(f"cross entropy everything {reduction}", [x, targets, weights], cross_entropy(x, targets, weights, 0.3, -1, reduction))
case("cross entropy ignoring mean", [floats(2, 3), np.array([-1, -1])], np.float64("nan"))

# Reductions.
with np.errstate(all="ignore"):
    for shape in [(2, 3, 4), (2, 0, 3), (3, 1, 2)]:
        x = floats(*shape)
        for axes in [(1,), (0, 2), (0, 1, 2)]:
            word = "".join(map(str, axes))
            case(f"prod {word}", [x], x.prod(axes))
            count = np.prod([shape[a] for a in axes])
            squares = ((x - x.sum(axes, keepdims=True) / np.float64(count)) ** 2).sum(axes)
            for correction in [0, 1]:
                var = squares / np.float64(max(count - correction, 0))
                case(f"var {correction} {word}", [x], var)
                case(f"std {correction} {word}", [x], np.sqrt(var))
            case(f"logsumexp {word}", [x * 500], np.logaddexp.reduce(x * 500, axes) if len(axes) == 1 else
                 np.logaddexp.reduce(np.moveaxis(x * 500, axes, range(-len(axes), 0)).reshape([shape[a] for a in range(3) if a not in axes] + [count]), -1))
            case(f"norm one {word}", [x], np.abs(x).sum(axes))
            case(f"norm two {word}", [x], np.sqrt((x * x).sum(axes)))
            if count > 0:
                case(f"norm max {word}", [x], np.abs(x).max(axes))
        for axis in range(3):
            case(f"cumsum {axis}", [x], x.cumsum(axis))
    case("logsumexp 0", [np.array([[-np.inf, np.inf, np.nan, -np.inf], [-np.inf, 1.0, 2.0, 3.0]])], np.array([-np.inf, np.inf, np.nan, 3.0]))
    ints = random.integers(-9, 9, (2, 3, 4))
    case("prod 1", [ints], ints.prod(1))
    case("cumsum 1", [ints], ints.cumsum(1))

# Shapes.
for shape in [(2, 3), (0, 3), (3, 0)]:
    x = floats(*shape)
    case("pad", [x], np.pad(x, [(1, 0), (2, 3)], constant_values=0.5))
    case("flip 0", [x], np.flip(x, 0))
    case("flip 1", [x], np.flip(x, 1))
    case("flip 01", [x], np.flip(x))
    for shift in [1, -1, 5, 0]:
        case(f"roll {shift} 1", [x], np.roll(x, shift, 1))
    case("tile 2 3", [x], np.tile(x, (2, 3)))
    case("tile 2 1 2", [x], np.tile(x, (2, 1, 2)))
    case("tile 0 1", [x], np.tile(x, (0, 1)))
    case("repeat_interleave 0 2", [x], np.repeat(x, 2, 0))
    case("repeat_interleave 1 3", [x], np.repeat(x, 3, 1))
for shape in [(3, 4), (2, 4, 3), (0, 3), (2, 3, 0)]:
    x = floats(*shape)
    for k in [0, 1, -2, 9]:
        case(f"tril {k}", [x], np.tril(x, k))
        case(f"triu {k}", [x], np.triu(x, k))
x = floats(3, 4)
case("masked_fill", [x, x > 0], np.where(x > 0, 0.25, x))
case("masked_fill", [x, x[:, :1] > 0], np.where(x[:, :1] > 0, 0.25, x))
case("masked_fill", [floats(0, 2), np.zeros((1, 2), bool)], floats(0, 2))
for rows in [5, 0]:
    base, source = floats(3, 4), floats(rows, 4)
    places = random.integers(0, 3, (rows, 4))
    total = base.copy()
    np.add.at(total, (places, np.arange(4)[None, :].repeat(rows, 0)), source)
    case("scatter_add 0", [base, places, source], total)
base, source, places = floats(3, 4), floats(2, 6), random.integers(0, 4, (2, 6))
total = base.copy()
np.add.at(total, (np.arange(2)[:, None].repeat(6, 1), places), source)
case("scatter_add 1", [base, places, source], total)
x = floats(6, 5)
case("at 1:5:2, -1", [x], x[1:5:2, -1])
case("at -3:, :-1", [x], x[-3:, :-1])
case("at 2", [x], x[2])
case("at -4..=-2, ::3", [x], x[-4:-1, ::3])
case("split 4", [x], x[:4], x[4:])
case("split_sizes 1 0 5", [x], x[:1], x[1:1], x[1:])
case("chunk 4", [x], x[:2], x[2:4], x[4:])
case("chunk 1 of 3 columns", [x[:, :0]], x[:, :0])

# Sorting.
nan = np.nan


def order(x, axis, descending):
    """NaN is larger than all numbers; equals keep their order."""
    key = np.where(np.isnan(x), np.inf, x)
    return np.argsort(-key if descending else key, axis=axis, kind="stable")


for x in [few(3, 5), few(40, 2), few(3, 0), few(0, 3), np.array([[1.0, nan, 0.0, nan, -1.0, 1.0]])]:
    for axis in [0, 1]:
        up, down = order(x, axis, False), order(x, axis, True)
        case(f"argsort {axis}", [x], up)
        case(f"sort {axis}", [x], np.take_along_axis(x, up, axis), up)
        case(f"sort down {axis}", [x], np.take_along_axis(x, down, axis), down)
        if x.shape[axis] >= 2:
            two = np.take(down, [0, 1], axis)
            case(f"top 2 {axis}", [x], np.take_along_axis(x, two, axis), two)
ints = random.integers(-3, 3, (4, 9))
case("argsort 1", [ints], np.argsort(ints, 1, kind="stable"))

# Einstein's summation.
a, b, c = floats(2, 3), floats(3, 4), floats(2, 3, 4)
for equation, operands in [
    ("ij,jk->ik", [a, b]), ("ij,jk", [a, b]), ("ij->ji", [a]), ("ij->j", [a]), ("ij->", [a]), ("ij,ij->", [a, a]),
    ("ij,ij->ij", [a, a]), ("i,j->ij", [a[:, 0], b[0]]), ("bij,bjk->bik", [c, floats(2, 4, 3)]), ("bij,jk->kbi", [c, floats(4, 2)]),
    ("abc,cb,a->", [c, floats(4, 3), floats(2)]), ("ij,k->i", [a, b[0]]), ("bhqd,bhkd->bhqk", [floats(2, 2, 3, 4), floats(2, 2, 5, 4)]),
    ("ij,jk->ik", [a[:0], b]), ("ij,jk->ik", [a[:, :0], b[:0]]), (",i->i", [np.float64(1.5), a[0]]), ("ij,jk,kl->il", [a, b, floats(4, 2)]),
    ("ijk,kij->ij", [c, floats(4, 2, 3)]),
]:
    case(f"einsum {equation}", operands, np.einsum(equation, *operands))

# Cross-entropy at positions: the classes are the second axis.
for shape in [(2, 4, 3), (2, 4, 2, 2), (3, 4, 0), (4,)]:
    x = floats(*shape) * 3
    axis = min(1, len(shape) - 1)
    targets = random.integers(-1, 4, shape[:axis] + shape[axis + 1:])
    weights = np.array([0.5, 2.0, 0.0, 1.5])
    rows = np.moveaxis(x, axis, -1).reshape(-1, 4)
    for reduction in ["mean", "sum", "none"]:
        losses = cross_entropy(rows, targets.reshape(-1), weights, 0.3, -1, reduction)
        case(f"cross entropy everything {reduction}", [x, targets, weights], losses.reshape(targets.shape) if reduction == "none" else losses)
for reduction in ["mean", "sum", "none"]:
    x, t = floats(3, 2), floats(3, 2)
    case(f"mse {reduction}", [x, t], reduced((x - t) ** 2, reduction))

# Borders of a tensor's own elements.
for shape, widths in [
    ((5,), (4, 3)), ((1,), (0, 0)), ((3, 4), (2, 1, 3, 3)), ((3, 4), (0, 0, 0, 2)), ((2, 3, 4), (1, 1, 0, 2, 3, 1)),
    ((2, 1, 3, 4), (1, 0, 0, 0, 2, 2, 1, 3)), ((2, 0, 3), (1, 1, 0, 0, 2, 2)),
]:
    x, pairs = floats(*shape), list(zip(widths[::2], widths[1::2]))
    for mode in ["reflect", "edge", "wrap"]:
        case(" ".join(map(str, ["pad_with", mode, *widths])), [x], np.pad(x, pairs, mode))
x = floats(2, 1)
case("pad_with edge 7 0 3 20", [x], np.pad(x, [(7, 0), (3, 20)], "edge"))
ints = random.integers(-9, 9, (2, 3))
for mode in ["reflect", "edge", "wrap"]:
    case(f"pad_with {mode} 1 1 2 0", [ints], np.pad(ints, [(1, 1), (2, 0)], mode))
    case(f"pad_with {mode} 1 1 2 0", [ints > 0], np.pad(ints > 0, [(1, 1), (2, 0)], mode))

# Diagonals.
for shape in [(3, 4), (4, 3), (0, 3)]:
    x = floats(*shape)
    for offset in [0, 1, -2, 5, -5]:
        case(f"diagonal {offset} 0 1", [x], np.diagonal(x, offset))
for first, second in [(0, 1), (2, 0), (1, -1)]:
    x = floats(2, 3, 4)
    case(f"diagonal 1 {first} {second}", [x], np.diagonal(x, 1, first, second))

# Einstein's summation with letters that stand twice and axes without letters.
for equation, shapes in [
    ("ii->i", [(3, 3)]), ("ii", [(3, 3)]), ("iij->j", [(2, 2, 3)]), ("ijij->ij", [(2, 3, 2, 3)]), ("iii->i", [(3, 3, 3)]), ("iijj", [(2, 2, 3, 3)]),
    ("...ii->...i", [(2, 3, 4, 4)]), ("...ij,...jk->...ik", [(2, 3, 4), (5, 1, 4, 2)]), ("...ij,...jk", [(2, 3), (4, 3, 2)]),
    ("...,...", [(2, 3), (1, 3)]), ("i...,i...->i...", [(2, 1, 3), (2, 4, 1)]), ("...->...", [(2, 3)]), ("...i->...i", [(3,)]),
    ("i->...i", [(3,)]), ("a...b,...->...ba", [(2, 3, 4), (7, 3)]), ("...i,i->...", [(0, 3), (3,)]), ("...,...->...", [(1, 3), (0, 3)]),
    ("...,...,...i", [(2, 1), (3,), (1, 1, 4)]),
]:
    operands = [floats(*shape) for shape in shapes]
    case(f"einsum {equation}", operands, np.einsum(equation, *operands))
for _ in range(60):
    sizes = dict(zip("abcd", random.integers(1, 4, 4).tolist()))
    shared = random.integers(1, 4, random.integers(0, 3)).tolist()
    terms, operands = [], []
    for _ in range(random.integers(1, 4)):
        letters = random.choice(list("abcd"), random.integers(1, 4)).tolist()
        shape = [sizes[letter] for letter in letters]
        if random.integers(2):
            place, count = random.integers(0, len(letters) + 1), random.integers(0, len(shared) + 1)
            # Some are broadcast.
            shape[place:place] = [size if random.integers(3) else 1 for size in shared[len(shared) - count:]]
            letters.insert(place, "...")
        terms.append("".join(letters))
        operands.append(floats(*shape))
    equation = ",".join(terms)
    if random.integers(2):
        known = sorted(set(equation) - set(",."))
        output = random.permutation(known)[:random.integers(0, len(known) + 1)].tolist()
        if "." in equation:
            output.insert(random.integers(0, len(output) + 1), "...")
        equation += "->" + "".join(output)
    case(f"einsum {equation}", operands, np.einsum(equation, *operands))



# Attention with masks: truth values, and numbers that are added.
def attention(q, k, v, mask, causal):
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], scores.shape[-1] - scores.shape[-2], dtype=bool), scores, -np.inf)
    largest = scores.max(-1, keepdims=True, initial=-np.inf)
    weights = np.where(largest == -np.inf, 0, np.exp(scores - np.where(largest == -np.inf, 0, largest)))
    total = weights.sum(-1, keepdims=True)
    return weights / np.where(total == 0, 1, total) @ v


for heads, queries, keys in [((2, 2), 3, 5), ((3,), 4, 4), ((), 2, 3), ((2,), 3, 0), ((0,), 2, 2)]:
    q, k, v = floats(*heads, queries, 4), floats(*heads, keys, 4), floats(*heads, keys, 3)
    added = floats(queries, keys)
    holes = np.where(random.uniform(0, 1, (*heads, queries, keys)) < 0.4, -np.inf, floats(*heads, queries, keys))
    holes[..., :1, :] = -np.inf
    for word in ["added", "added causal"]:
        case(f"attention {word}", [q, k, v, added], attention(q, k, v, added, "causal" in word))
        case(f"attention {word}", [q, k, v, holes], attention(q, k, v, holes, "causal" in word))
    case("attention masked", [q, k, v, holes > 0], attention(q, k, v, holes > 0, False))

print("[" + ",\n".join(json.dumps(c, separators=(",", ":"), allow_nan=False) for c in cases) + "]")
