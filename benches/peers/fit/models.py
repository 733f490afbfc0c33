"""The training steps that all scripts of this folder measure: models, batches and optimizers in PyTorch.

| name | model | batch | optimizer |
|---|---|---|---|
| gpt124 | GPT-2 with 124 million parameters, as in examples/predict_gpt | 2 × 1,024 tokens | AdamW |
| gpt512 | 6 layers of width 512, as in ../train | 4 × 256 tokens | AdamW |
| resnet50 | torchvision's ResNet-50 | 8 images of 224 × 224 | SGD with momentum |
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.append(str(Path(__file__).resolve().parent.parent / "train"))
import torch_workloads

MODELS = ["gpt124", "gpt512", "resnet50"]
BATCH = {"gpt124": 2, "gpt512": 4, "resnet50": 8}
# Layers, width, heads, context, classes.
GPT = {"gpt124": (12, 768, 12, 1024, 50257), "gpt512": torch_workloads.GPTS["gpt512"]}


def model(name):
    """The network with random first values, or without values under `FakeTensorMode` or on the device "meta"."""
    if name == "resnet50":
        from torchvision.models import resnet50

        return resnet50()
    net = torch_workloads.Gpt(*GPT[name])
    if name == "gpt124":
        net.head.weight = net.tokens.weight
    return net


def batch(name, size=None):
    """Inputs and the class of each output row."""
    size = size or BATCH[name]
    if name == "resnet50":
        return torch.randn(size, 3, 224, 224), torch.randint(1000, (size,))
    _, _, _, context, classes = GPT[name]
    return torch.randint(classes, (size, context)), torch.randint(classes, (size * context,))


def optimizer(name, net):
    if name == "resnet50":
        return torch.optim.SGD(net.parameters(), 0.01, momentum=0.9, fused=True)
    return torch.optim.AdamW(net.parameters(), 3e-4, weight_decay=0.01, fused=True)


def step(net, optimizer, x, y, loss_of=None, parts=1):
    """One training step. It accumulates the gradients of `parts` equal parts of the batch."""
    optimizer.zero_grad()
    for inputs, targets in zip(x.chunk(parts), y.chunk(parts), strict=True):
        loss = loss_of(inputs, targets) if loss_of else F.cross_entropy(net(inputs), targets)
        (loss / parts).backward()
        del loss
    optimizer.step()
