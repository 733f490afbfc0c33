#!/usr/bin/env python3
"""Single ops of Highwater beside PyTorch's, one thread, turn by turn: `python3 torch_ops.py target/release/ops [NAME…]`.

Prints milliseconds of the forward, and of forward and backward with a weighted sum as the loss, and how many times PyTorch's
time Highwater takes: the least of all rounds on both sides, as other work on the machine can only add to it.
"""

import argparse
import subprocess
import sys
import time

import torch
import torch.nn.functional as F

MEGA, IMAGES, HEADS = (1024, 1024), (64, 32, 28, 28), (16, 4, 128, 32)


def numbers(*shape):
    return torch.randn(shape).requires_grad_()


def positive(*shape):
    return (torch.rand(shape) + 0.5).requires_grad_()


def indices(below, *shape):
    return torch.randint(0, below, shape)


def mask(*shape):
    return torch.rand(shape) < 0.5


def one(f):
    return lambda: ([numbers(*MEGA)], f)


def two(f):
    return lambda: ([numbers(*MEGA), numbers(*MEGA)], f)


def images(f):
    return lambda: ([numbers(*IMAGES)], f)


def conv(x, w, f=F.conv2d, **options):
    return lambda: ([numbers(*x), numbers(*w)], lambda x, w: f(x, w, **options))


# The operands and the op of each name, as in src/bin/ops.rs.
CASES = {
    "add": two(torch.add),
    "add_row": lambda: ([numbers(*MEGA), numbers(1024)], torch.add),
    "add_column": lambda: ([numbers(*MEGA), numbers(1024, 1)], torch.add),
    "add_transposed": two(lambda a, b: a + b.t()),
    "mul": two(torch.mul),
    "div": lambda: ([numbers(*MEGA), positive(*MEGA)], torch.div),
    "mul_scalar": one(lambda x: x * 3.0),
    "maximum": two(torch.maximum),
    "exp": one(torch.exp),
    "log": lambda: ([positive(*MEGA)], torch.log),
    "sqrt": lambda: ([positive(*MEGA)], torch.sqrt),
    "rsqrt": lambda: ([positive(*MEGA)], torch.rsqrt),
    "sin": one(torch.sin),
    "tanh": one(torch.tanh),
    "sigmoid": one(torch.sigmoid),
    "relu": one(F.relu),
    "leaky_relu": one(lambda x: F.leaky_relu(x, 0.1)),
    "gelu": one(F.gelu),
    "gelu_tanh": one(lambda x: F.gelu(x, approximate="tanh")),
    "silu": one(F.silu),
    "softplus": one(F.softplus),
    "powf": lambda: ([positive(*MEGA)], lambda x: x**1.7),
    "square": one(lambda x: x**2.0),
    "clamp": one(lambda x: x.clamp(-1.0, 1.0)),
    "where": lambda: ([numbers(*MEGA), numbers(*MEGA), mask(*MEGA)], lambda a, b, m: torch.where(m, a, b)),
    "masked_fill": lambda: ([numbers(*MEGA), mask(*MEGA)], lambda x, m: x.masked_fill(m, 0.0)),
    "greater": two(torch.gt),
    "to_f64": one(lambda x: x.double()),
    "to_f16": one(lambda x: x.half()),
    "to_bf16": one(lambda x: x.bfloat16()),
    "sum_all": one(torch.sum),
    "sum_rows": one(lambda x: x.sum(1)),
    "sum_columns": one(lambda x: x.sum(0)),
    "sum_channels": images(lambda x: x.sum((0, 2, 3))),
    "mean_places": images(lambda x: x.mean((2, 3))),
    "max_rows": one(lambda x: x.amax(1)),
    "max_columns": one(lambda x: x.amax(0)),
    "argmax_rows": one(lambda x: x.argmax(1)),
    "argmax_columns": one(lambda x: x.argmax(0)),
    "prod_rows": lambda: ([positive(*MEGA)], lambda x: x.prod(1)),
    "var_rows": one(lambda x: x.var(1)),
    "norm_rows": one(lambda x: torch.linalg.vector_norm(x, dim=1)),
    "logsumexp_rows": one(lambda x: x.logsumexp(1)),
    "cumsum_rows": one(lambda x: x.cumsum(1)),
    "cumsum_columns": one(lambda x: x.cumsum(0)),
    "softmax_rows": lambda: ([numbers(4096, 256)], lambda x: x.softmax(1)),
    "softmax_columns": lambda: ([numbers(4096, 256)], lambda x: x.softmax(0)),
    "log_softmax_rows": lambda: ([numbers(4096, 256)], lambda x: x.log_softmax(1)),
    "layer_norm": lambda: (
        [numbers(4096, 256), numbers(256), numbers(256)],
        lambda x, w, b: F.layer_norm(x, (256,), w, b),
    ),
    "rms_norm": lambda: ([numbers(4096, 256), numbers(256)], lambda x, w: F.rms_norm(x, (256,), w, 1e-5)),
    "group_norm": lambda: ([numbers(*IMAGES), numbers(32), numbers(32)], lambda x, w, b: F.group_norm(x, 8, w, b)),
    "batch_norm": lambda: (
        [numbers(*IMAGES), numbers(32), numbers(32), torch.zeros(32), torch.ones(32)],
        lambda x, w, b, mean, var: F.batch_norm(x, mean, var, w, b, training=True),
    ),
    "matmul_small": lambda: ([numbers(64, 64), numbers(64, 64)], torch.matmul),
    "matmul": lambda: ([numbers(512, 512), numbers(512, 512)], torch.matmul),
    "matmul_transposed": lambda: ([numbers(512, 512), numbers(512, 512)], lambda a, b: a @ b.t()),
    "matmul_batched": lambda: ([numbers(64, 64, 64), numbers(64, 64, 64)], torch.matmul),
    "matmul_vector": lambda: ([numbers(*MEGA), numbers(1024, 1)], torch.matmul),
    "linear": lambda: ([numbers(256, 256), numbers(512, 256), numbers(512)], F.linear),
    "conv3x3": conv((16, 16, 28, 28), (32, 16, 3, 3), padding=1),
    "conv3x3_stride2": conv((16, 16, 28, 28), (32, 16, 3, 3), padding=1, stride=2),
    "conv1x1": conv((16, 64, 28, 28), (64, 64, 1, 1)),
    "conv5x5": conv((16, 3, 32, 32), (16, 3, 5, 5), padding=2),
    "conv_depthwise": conv((16, 32, 28, 28), (32, 1, 3, 3), padding=1, groups=32),
    "conv1d": conv((16, 32, 512), (32, 32, 3), f=F.conv1d, padding=1),
    "conv_transpose": conv((16, 32, 14, 14), (32, 16, 4, 4), f=F.conv_transpose2d, padding=1, stride=2),
    "max_pool2": images(lambda x: F.max_pool2d(x, 2)),
    "max_pool3_stride2": images(lambda x: F.max_pool2d(x, 3, 2, 1)),
    "avg_pool2": images(lambda x: F.avg_pool2d(x, 2)),
    "avg_pool3_stride1": images(lambda x: F.avg_pool2d(x, 3, 1, 1)),
    "adaptive_avg_pool": images(lambda x: F.adaptive_avg_pool2d(x, 1)),
    "embedding": lambda: ([numbers(1000, 128), indices(1000, 4096)], lambda w, i: F.embedding(i, w)),
    "index_select_columns": lambda: ([numbers(*MEGA), indices(1024, 512)], lambda x, i: x.index_select(1, i)),
    "gather": lambda: ([numbers(*MEGA), indices(1024, *MEGA)], lambda x, i: x.gather(1, i)),
    "scatter_add": lambda: (
        [numbers(*MEGA), indices(1024, *MEGA), numbers(*MEGA)],
        lambda x, i, s: x.scatter_add(1, i, s),
    ),
    "one_hot": lambda: ([indices(256, 4096)], lambda i: F.one_hot(i, 256)),
    "sort_rows": one(lambda x: x.sort(dim=1, stable=True)[0]),
    "top_k": one(lambda x: x.topk(8, 1)[0]),
    "concat_rows": two(lambda a, b: torch.cat([a, b], 0)),
    "concat_columns": two(lambda a, b: torch.cat([a, b], 1)),
    "stack_last": two(lambda a, b: torch.stack([a, b], 2)),
    "transpose": one(lambda x: x.t().contiguous()),
    "permute_heads": lambda: ([numbers(16, 128, 8, 64)], lambda x: x.permute(0, 2, 1, 3).contiguous()),
    "to_channels_last": images(lambda x: x.permute(0, 2, 3, 1).contiguous()),
    "slice_step": one(lambda x: x[:, ::2].contiguous()),
    "narrow_columns": one(lambda x: x.narrow(1, 256, 512).contiguous()),
    "pad": images(lambda x: F.pad(x, (1, 1, 1, 1))),
    "flip_rows": one(lambda x: x.flip(0)),
    "flip_columns": one(lambda x: x.flip(1)),
    "roll": one(lambda x: x.roll(7, 1)),
    "tile": lambda: ([numbers(512, 512)], lambda x: x.tile(2, 2)),
    "repeat_interleave": lambda: ([numbers(512, 512)], lambda x: x.repeat_interleave(4, 1)),
    "tril": one(torch.tril),
    "dropout": one(lambda x: F.dropout(x, 0.1)),
    "uniform": lambda: ([], lambda: torch.rand(MEGA)),
    "normal": lambda: ([], lambda: torch.randn(MEGA)),
    "attention": lambda: (
        [numbers(*HEADS) for _ in range(3)],
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    ),
    "cross_entropy": lambda: ([numbers(4096, 256), indices(256, 4096)], F.cross_entropy),
    "mse_loss": two(F.mse_loss),
    "bce_with_logits": lambda: (
        [numbers(*MEGA), positive(*MEGA).detach()],
        F.binary_cross_entropy_with_logits,
    ),
}


def least(run):
    begin, best, runs = time.perf_counter(), float("inf"), 0
    while runs < 3 or time.perf_counter() - begin < 0.15:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
        runs += 1
    return best * 1e3


def of_torch(name):
    operands, f = CASES[name]()
    with torch.no_grad():
        forward = least(lambda: f(*operands))
    y = f(*operands)
    if not y.requires_grad:
        return [forward, None]
    weights = torch.randn(y.shape).to(y.dtype)
    leaves = [x for x in operands if x.requires_grad]
    return [forward, least(lambda: torch.autograd.grad((f(*operands) * weights).sum(), leaves))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ops", help="the program of src/bin/ops.rs")
    parser.add_argument("names", nargs="*", help="all ops if none is named")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    ours = subprocess.Popen([args.ops], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def ask(line):
        ours.stdin.write(line + "\n")
        answer = ours.stdout.readline().split()
        if not answer:
            sys.exit(f"{args.ops} gave no answer to {line!r}")
        return answer

    names = args.names or ask("")
    print(f"{'':22}{'forward, ms':>12}{'PyTorch':>10}{'ratio':>7}{'both, ms':>14}{'PyTorch':>10}{'ratio':>7}")
    for name in names:
        rounds = []
        for _ in range(args.rounds):
            mine = [None if time == "-" else float(time) for time in ask(name)]
            rounds.append((mine, of_torch(name)))
        line = f"{name:22}"
        for part, width in ((0, 12), (1, 14)):
            mine = [of[part] for of, _ in rounds]
            theirs = [of[part] for _, of in rounds]
            if None in mine or None in theirs:
                line += f"{'-':>{width}}{'-':>10}{'-':>7}"
            else:
                line += f"{min(mine):{width}.3f}{min(theirs):10.3f}{min(mine) / min(theirs):7.2f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
