"""Trains the network of iris.pt in PyTorch, and prints its outputs for one flower of each species.

Run in this folder as `python3 iris.py`; needs torch (2.15) and scikit-learn, which contains the data.
"""

import torch
from sklearn.datasets import load_iris
from torch import nn

torch.manual_seed(0)
data = load_iris()
x = torch.tensor(data.data, dtype=torch.float32)
y = torch.tensor(data.target)
net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
for _ in range(300):
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(x), y).backward()
    optimizer.step()
torch.save(net.state_dict(), "iris.pt")
print("accuracy", (net(x).argmax(1) == y).float().mean().item())
for row in [0, 50, 100]:
    print(data.target_names[y[row]], x[row].tolist(), net(x[row]).tolist())
