"""Makes networks.json and the state dicts of networks that tests/suite/io_pytorch.rs loads. Needs PyTorch (2.15).

Run in this folder. networks.json has the input and the output of each network.
"""

import json

import torch
from torch import nn

torch.manual_seed(1)


class Convolutional(nn.Module):
    """More than ten layers in a row, so that their numbers are not in the order of their texts."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 3, 3, padding="same"), nn.BatchNorm2d(3), nn.PReLU(3),
            nn.AvgPool2d(3, 2, padding=1, ceil_mode=True, count_include_pad=False),
            nn.Conv2d(3, 4, 2, padding="same", groups=1), nn.BatchNorm2d(4), nn.Mish(),
            nn.MaxPool2d(2, ceil_mode=True), nn.Flatten(), nn.Linear(36, 36), nn.Hardswish(), nn.Linear(36, 36), nn.ELU(),
        )
        self.head = nn.Linear(36, 5)

    def forward(self, x):
        return self.head(self.features(x)).softmax(-1)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(8, 8)
        self.encoder = nn.GRU(8, 6, num_layers=2, batch_first=True)
        self.head = nn.Linear(6, 6)

    def forward(self, x):
        return self.head(self.encoder(self.table(x))[0])


def resizing():
    return nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1, bias=False), nn.InstanceNorm2d(8, affine=True), nn.ReLU(), nn.PixelShuffle(2),
        nn.InstanceNorm2d(2), nn.Upsample(scale_factor=1.5, mode="bilinear"), nn.ConvTranspose2d(2, 4, 2, stride=2),
        nn.Upsample((6, 5)), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3, bias=False),
    )


def train(net, x):
    """A few steps, so that running means and biases differ from their initial values."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        net(x).square().sum().backward()
        optimizer.step()
    return net.eval()


cases = {}
for name, net, x in [
    ("convolutional", Convolutional(), torch.randn(4, 1, 9, 10)),
    ("recurrent", Recurrent(), torch.randint(0, 8, (2, 5))),
    ("resizing", resizing(), torch.randn(2, 2, 3, 4)),
]:
    net = train(net, x)
    torch.save(net.state_dict(), f"{name}.pt")
    y = net(x)
    cases[name] = {"x": x.flatten().tolist(), "y": y.flatten().tolist(), "shape": list(y.shape)}
with open("networks.json", "w") as file:
    json.dump(cases, file)
