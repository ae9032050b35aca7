"""Kernels for fake tensors run on twins give what torch's own way gives."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from torchweld.ir import fake_kernels
from torchweld.ir.fake import FakeMode

X, Y, M = torch.randn(4, 6, 8), torch.randn(4, 6, 8).transpose(1, 2), torch.randn(8, 8)
SMALL = torch.randn(5, 1)
CASES = {
    "permute": lambda x, y, m, s: x.permute(2, 0, 1),
    "slice of a view": lambda x, y, m, s: x[1:, ::2].permute(1, 0, 2),
    "contiguous": lambda x, y, m, s: y.contiguous(),
    "clone keeps strides": lambda x, y, m, s: y.clone(),
    "promotion": lambda x, y, m, s: x.half() * torch.full((), 2.0, dtype=torch.float64),
    "where": lambda x, y, m, s: torch.where(x > 0, x, 1),
    "in place": lambda x, y, m, s: x.clamp_(0),
    "copy": lambda x, y, m, s: x.copy_(y.transpose(1, 2)),
    "several results": lambda x, y, m, s: torch.linalg.qr(m),
    "list of views": lambda x, y, m, s: x.unbind(1),
    "list of arguments": lambda x, y, m, s: torch.cat([x, x], 1),
    "conjugate": lambda x, y, m, s: torch.complex(x, x).conj().resolve_conj(),
    "no arguments": lambda x, y, m, s: torch.arange(3),
    "write that would resize": lambda x, y, m, s: s.floor_divide_(s.view(-1)),
    "wrong shapes": lambda x, y, m, s: x @ torch.ones(3, 3),
    "batch norm": lambda x, y, m, s: nn.functional.batch_norm(x, m[0, :6], m[0, :6], training=True),
}


def facts(x, inputs):
    if not isinstance(x, torch.Tensor):
        return x
    memory = [t.untyped_storage()._cdata == x.untyped_storage()._cdata for t in inputs]
    return (x.shape, x.stride(), x.storage_offset(), x.dtype, x.device, type(x), memory,
            [t is x for t in inputs], x._version, x.is_conj())  # fmt: skip


def outcome(fn, monkeypatch, twins):
    monkeypatch.setattr(fake_kernels, "_saves_import", lambda: twins)
    FakeTensorMode.cache_clear()
    mode = FakeMode()
    inputs = [mode.from_tensor(t, static_shapes=True) for t in (X, Y, M, SMALL)]
    with mode, torch.no_grad():
        try:
            out = fn(*inputs)
        except Exception as error:
            return type(error)
    results = out if isinstance(out, tuple) else (out,)
    return [facts(x, inputs) for x in (*results, *inputs)]


@pytest.mark.parametrize("case", CASES)
def test_twins_give_what_torch_gives(case, monkeypatch):
    ours = outcome(CASES[case], monkeypatch, twins=True)
    assert ours == outcome(CASES[case], monkeypatch, twins=False)
