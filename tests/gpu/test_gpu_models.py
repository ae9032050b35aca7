"""The zoo on a GPU: one graph, Triton kernels, equal to eager; later calls replay."""

from __future__ import annotations

import copy

import pytest
import torch
from models import ZOO, make

import torchweld
from torchweld.ir.program import Call
from torchweld.pipeline import STATISTICS
from torchweld.workbench.compare import tensors
from torchweld.workbench.suites import to_device
from torchweld.workbench.work import Work

pytestmark = pytest.mark.gpu
CALLS = 4  # warm-up, recording, and two replays


def on_gpu(name: str, dtype: torch.dtype) -> Work:
    work = to_device(make(name), "cuda")
    work.fn.to(dtype)
    kwargs = {k: v.to(dtype) if isinstance(v, torch.Tensor) and v.is_floating_point() else v
              for k, v in work.kwargs.items()}  # fmt: skip
    return Work(work.fn, (), kwargs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", sorted(ZOO))
def test_model_is_compiled_whole_and_is_as_near_to_f64_as_eager(
    name: str, dtype: torch.dtype
) -> None:
    """Not nearer: eager's own convolutions are TF32, and its bf16 rounds after every operator."""
    work = on_gpu(name, dtype)
    torchweld.reset()
    compiled = torchweld.compile(work.fn)
    with torch.no_grad():
        eager = tensors(work.fn(**copy.deepcopy(work.kwargs)))
        mine = [tensors(compiled(**copy.deepcopy(work.kwargs))) for _ in range(CALLS)]
        exact = tensors(in_f64(work, name).call())
    counts = torchweld.statistics()
    reasons = [why.text() for why in STATISTICS.refusals]
    reasons += [c.refusal.text() for c in STATISTICS.compiled if c.refusal]
    assert (counts["graphs"], counts["breaks"], counts["aten_graphs"]) == (1, 0, 0), reasons
    assert counts["kernels"] > 0 and counts["internal_errors"] == 0
    assert not {"aten.bmm.default", "aten._native_batch_norm_legit_no_training.default"} & {
        s.op for c in STATISTICS.compiled if c.executable for s in c.executable.program.steps
        if isinstance(s, Call)}  # fmt: skip
    for results in mine:
        for a, b, c in zip(results, eager, exact, strict=True):
            assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
            own, theirs = ((x.double() - c).norm() / c.norm().clamp_min(1e-30) for x in (a, b))
            assert own <= 1.5 * theirs + (1e-3 if dtype is torch.bfloat16 else 1e-5)


def in_f64(work: Work, name: str) -> Work:
    """The same model and inputs in f64."""
    wide = on_gpu(name, torch.float64)
    wide.fn.load_state_dict({k: v.double() if v.is_floating_point() else v
                             for k, v in work.fn.state_dict().items()})  # fmt: skip
    return Work(wide.fn, (), {
        k: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v
        for k, v in work.kwargs.items()})  # fmt: skip
