"""Writes the files of PyTorch's profiler for two training steps on the CPU. Needs torch."""

import pickle
import warnings

import torch
from torch import nn
from torch.cuda._memory_viz import _profile_to_snapshot
from torch.profiler import ProfilerActivity, profile
from torch.profiler._memory_profiler import MemoryProfileTimeline

warnings.simplefilter("ignore")
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
images, labels = torch.randn(16, 64), torch.randint(10, (16,))


def step():
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()


step()
with profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True, with_stack=True) as recorded:
    step()
    step()
recorded.export_chrome_trace("pytorch-profiler.json.gz")
recorded.export_memory_timeline("pytorch-timeline.raw.json.gz", device="cpu")
recorded.export_memory_timeline("pytorch-timeline.json", device="cpu")
with open("pytorch-profile.pickle", "wb") as file:
    pickle.dump(_profile_to_snapshot(recorded), file)

_, sizes = MemoryProfileTimeline(recorded._memory_profile())._coalesce_timeline("cpu")
print("timeline peak", max(sum(row) for row in sizes))
