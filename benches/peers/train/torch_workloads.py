"""The workloads of src/workload in PyTorch: the same networks, first values and batches, to the bit."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

BATCH = {"mlp": 64, "cnn": 64, "gpt": 16, "tiny": 4, "mlp4096": 256, "resnet18": 32, "lstm": 32, "gru": 32, "gpt512": 4}
STEPS = {"mlp": 150, "cnn": 30, "gpt": 10, "tiny": 2000, "mlp4096": 2, "resnet18": 2, "lstm": 5, "gru": 5, "gpt512": 2}
PERCEPTRONS = {"mlp": [784, 256, 128, 10], "tiny": [2, 16, 16, 1], "mlp4096": [4096, 4096, 4096, 1000]}
# Layers, width, heads, context, classes.
GPTS = {"gpt": (4, 128, 4, 64, 65), "gpt512": (6, 512, 8, 256, 1000)}
# Inputs, hidden, layers, steps.
RECURRENT = (64, 256, 2, 64)
STAGES = [64, 128, 256, 512]


class SplitMix:
    """splitmix64. The state after n steps has a closed form, so that arrays are computed at once."""

    def __init__(self, seed):
        self.state = np.uint64(seed)

    def draw(self, count):
        with np.errstate(over="ignore"):
            states = self.state + np.uint64(0x9E3779B97F4A7C15) * np.arange(1, count + 1, dtype=np.uint64)
            self.state = states[-1]
            z = (states ^ (states >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            return z ^ (z >> np.uint64(31))

    def below(self, end):
        return int(self.draw(1)[0]) % end

    def unit(self, count):
        """From 0 to 1."""
        return (self.draw(count) >> np.uint64(11)).astype(np.float64) / float(1 << 53)

    def signed(self, count):
        """From -1 to 1."""
        return self.unit(count) * 2.0 - 1.0


def parameters(workload):
    """Shapes of the parameters, and the standard deviations of their first values: 0 for zeros, `None` for ones."""
    of = []

    def linear(inputs, outputs):
        of.extend([((inputs, outputs), math.sqrt(1.0 / inputs)), ((outputs,), 0.0)])

    def norm(width):
        of.extend([((width,), None), ((width,), 0.0)])

    if workload in PERCEPTRONS:
        sizes = PERCEPTRONS[workload]
        for i, o in zip(sizes, sizes[1:]):
            linear(i, o)
    elif workload == "cnn":
        for i, o in [(1, 16), (16, 32)]:
            of.extend([((o, i, 3, 3), math.sqrt(1.0 / (9 * i))), ((o,), 0.0)])
        linear(32 * 7 * 7, 10)
    elif workload == "resnet18":
        def conv_norm(i, o, size):
            of.append(((o, i, size, size), math.sqrt(2.0 / (size * size * i))))
            norm(o)

        conv_norm(3, STAGES[0], 3)
        for i, o, stride in resnet_blocks():
            conv_norm(i, o, 3)
            conv_norm(o, o, 3)
            if stride > 1:
                conv_norm(i, o, 1)
        linear(STAGES[-1], 10)
    elif workload in GPTS:
        layers, width, _, context, classes = GPTS[workload]
        of.extend([((classes, width), 0.02), ((context, width), 0.02)])
        for _ in range(layers):
            norm(width)
            linear(width, 3 * width)
            linear(width, width)
            norm(width)
            linear(width, 4 * width)
            linear(4 * width, width)
        norm(width)
        of.append(((width, classes), 0.02))
    else:
        inputs, hidden, layers, _ = RECURRENT
        gates, deviation = (4 if workload == "lstm" else 3) * hidden, math.sqrt(1.0 / hidden)
        for layer in range(layers):
            of.append(((hidden if layer else inputs, gates), deviation))
            of.extend([((hidden, gates), deviation), ((gates,), 0.0), ((gates,), 0.0)])
        linear(hidden, 10)
    return of


def weights(workload):
    random = SplitMix(1)
    for shape, deviation in parameters(workload):
        count = math.prod(shape)
        if deviation is None:
            values = np.ones(count)
        elif deviation == 0.0:
            values = np.zeros(count)
        else:
            values = random.signed(count) * math.sqrt(3.0) * deviation
        yield torch.tensor(values.astype(np.float32).reshape(shape))


def pictures(shape, side, random):
    n, elements = shape[0], math.prod(shape[1:])
    rows = np.arange(elements) // side % side // 2
    images, classes = [], []
    for _ in range(n):
        label = random.below(10)
        images.append(random.unit(elements) * 0.5 + np.where(rows == label + 2, 0.5, 0.0))
        wrong = random.below(10) == 0
        classes.append(random.below(10) if wrong else label)
    return torch.tensor(np.array(images, dtype=np.float32).reshape(shape)), torch.tensor(classes)


def noise(shape, classes, random):
    values = random.signed(math.prod(shape)).astype(np.float32).reshape(shape)
    return torch.tensor(values), torch.tensor([random.below(classes) for _ in range(shape[0])])


def walks(workload, random):
    _, _, _, context, classes = GPTS[workload]
    tokens, following = [], []
    for _ in range(BATCH[workload]):
        at = random.below(classes)
        for _ in range(context):
            tokens.append(at)
            at = (at * 7 + 1 + random.below(3)) % classes
            following.append(at)
    return torch.tensor(tokens).reshape(-1, context), torch.tensor(following)


def batches(workload):
    random, n = SplitMix(2), BATCH[workload]
    inputs, _, _, steps = RECURRENT

    def batch():
        if workload == "tiny":
            x = random.signed(2 * n).astype(np.float32).reshape(n, 2)
            return torch.tensor(x), torch.tensor(x[:, :1] * x[:, 1:])
        if workload == "mlp4096":
            return noise((n, 4096), 1000, random)
        if workload in ("lstm", "gru"):
            return noise((n, steps, inputs), 10, random)
        if workload in GPTS:
            return walks(workload, random)
        shape = {"mlp": (n, 784), "cnn": (n, 1, 28, 28), "resnet18": (n, 3, 32, 32)}[workload]
        return pictures(shape, 32 if workload == "resnet18" else 28, random)

    return [batch() for _ in range(32 if workload in ("mlp", "cnn", "gpt", "tiny") else 4)]


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.project, self.output = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        n, length, width = x.shape
        q, k, v = self.project(self.norm1(x)).view(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, length, width)
        x = x + self.output(mixed)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, layers, width, heads, context, classes):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(classes, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes, bias=False)

    def forward(self, x):
        mixed = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        return self.head(self.norm(self.blocks(mixed))).flatten(0, 1)


def resnet_blocks():
    """Input channels, output channels and stride of each block."""
    before = STAGES[0]
    for width in STAGES:
        yield before, width, 1 if width == STAGES[0] else 2
        yield width, width, 1
        before = width


def conv_norm(inputs, outputs, size, stride=1):
    conv = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first, self.second = conv_norm(inputs, outputs, 3, stride), conv_norm(outputs, outputs, 3)
        self.shortcut = conv_norm(inputs, outputs, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x):
        return F.relu(self.second(F.relu(self.first(x), inplace=True)) + self.shortcut(x), inplace=True)


class ResNet18(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = conv_norm(3, STAGES[0], 3)
        self.blocks = nn.Sequential(*(BasicBlock(*sizes) for sizes in resnet_blocks()))
        self.fc = nn.Linear(STAGES[-1], 10)

    def forward(self, x):
        return self.fc(self.blocks(F.relu(self.stem(x), inplace=True)).mean((2, 3)))


class Classifier(nn.Module):
    def __init__(self, kind):
        super().__init__()
        inputs, hidden, layers, _ = RECURRENT
        self.layers = kind(inputs, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, 10)

    def forward(self, x):
        return self.head(self.layers(x)[0][:, -1])


def model(workload):
    """The network, with the first values of its parameters."""
    if workload in PERCEPTRONS:
        layers, sizes = [], PERCEPTRONS[workload]
        for i, o in zip(sizes, sizes[1:]):
            layers += [nn.Linear(i, o), nn.ReLU()]
        net = nn.Sequential(*layers[:-1])
    elif workload == "cnn":
        net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(32 * 49, 10),
        )
    elif workload == "resnet18":
        net = ResNet18()
    elif workload in GPTS:
        net = Gpt(*GPTS[workload])
    else:
        net = Classifier(nn.LSTM if workload == "lstm" else nn.GRU)
    transposed = [m for m in net.modules() if isinstance(m, (nn.Linear, nn.LSTM, nn.GRU))]
    transposed = {id(p) for m in transposed for p in m.parameters(recurse=False) if p.dim() == 2}
    with torch.no_grad():
        for parameter, values in zip(net.parameters(), weights(workload), strict=True):
            parameter.copy_(values.t() if id(parameter) in transposed else values)
    return net


def optimizer(workload, parameters):
    if workload in GPTS or workload in ("lstm", "gru"):
        return torch.optim.AdamW(parameters, 3e-4, weight_decay=0.01, fused=True)
    rate, momentum = {
        "mlp": (0.1, 0.0), "tiny": (0.05, 0.0), "cnn": (0.01, 0.9), "mlp4096": (0.001, 0.9), "resnet18": (0.0001, 0.9),
    }[workload]
    return torch.optim.SGD(parameters, rate, momentum=momentum, fused=True)
