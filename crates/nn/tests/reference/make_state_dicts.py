"""Makes the state dicts that tests/io_state_dict.rs reads. Needs PyTorch (2.9); run in this folder."""

import collections

import torch


def pickled(name, value):
    torch.save(value, name)


torch.manual_seed(0)
whole = torch.arange(12, dtype=torch.float32)
tensors = collections.OrderedDict(
    f32=torch.tensor([[1.5, -2.0], [0.25, 4.0]]),
    f64=torch.tensor([1.0, 1e300], dtype=torch.float64),
    f16=torch.tensor([1.0, -0.5], dtype=torch.float16),
    bf16=torch.tensor([1.0, -0.5], dtype=torch.bfloat16),
    i64=torch.tensor(-7),
    i32=torch.tensor([1, -2], dtype=torch.int32),
    i16=torch.tensor([-32768, 7], dtype=torch.int16),
    i8=torch.arange(-3, 3, dtype=torch.int8).view(2, 3).t(),
    u8=torch.tensor([0, 255], dtype=torch.uint8),
    bool=torch.tensor([True, False]),
    empty=torch.zeros(0, 3),
    transposed=whole.view(3, 4).t(),
    part=whole[5:7],
    expanded=torch.tensor([[1.0], [2.0]]).expand(2, 3),
    parameter=torch.nn.Parameter(torch.tensor([3.0])),
)
pickled("tensors.pt", tensors)

net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
with torch.no_grad():
    for n, parameter in enumerate(net.parameters()):
        parameter.copy_(torch.arange(parameter.numel()).view(parameter.shape) / 4 + n)
optimizer = torch.optim.Adam(net.parameters())
pickled("training.pt", {"epoch": 3, "rate": 0.5, "note": None, "model": net.state_dict(), "optimizer": optimizer.state_dict()})
pickled("module.pt", torch.nn.Linear(1, 1))
pickled("complex.pt", {"x": torch.tensor([1j])})
