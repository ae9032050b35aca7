"""Functions and modules of TorchScript, which needs their source."""

import torch

FACTOR = 3


@torch.jit.script
def scaled(x, k: int):
    return torch.tanh(x * k + 1.0)


@torch.jit.script
def asking(x):
    if torch.jit.is_scripting():
        return x * 2
    return x * 3


class Doubled(torch.nn.Module):
    def forward(self, x):
        return x * 2


module = torch.jit.script(Doubled())
traced = torch.jit.trace(lambda x: x * FACTOR, torch.ones(2))
