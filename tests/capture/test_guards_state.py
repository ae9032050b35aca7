"""torch's global state is guarded: grad mode, autocast, inference mode, default dtype."""

from __future__ import annotations

import contextlib

import pytest
import torch
from guard_twin import graphs, same

import torchweld

W = torch.ones(3, 3, requires_grad=True)
X = torch.ones(2, 3)


def project(x):
    return x @ W


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def another_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def less_precise():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextlib.contextmanager
def on_the_cpu():
    torch.set_default_device("cpu")
    try:
        yield
    finally:
        torch.set_default_device(None)


STATES = {
    "one more thread": (another_thread, 1),
    "precision of products": (less_precise, 1),
    "default device": (on_the_cpu, 2),
    "no_grad": (torch.no_grad, 2),
    "enable_grad": (torch.enable_grad, 1),
    "inference_mode": (torch.inference_mode, 2),
    "autocast": (lambda: torch.autocast("cpu", torch.bfloat16), 2),
    "autocast off": (lambda: torch.autocast("cpu", enabled=False), 1),
    "default dtype": (lambda: default_dtype(torch.float64), 2),
    "deterministic": (deterministic, 2),
}


@pytest.mark.parametrize("name", STATES)
def test_changed_state(name):
    state, made = STATES[name]
    torchweld.reset()
    compiled = torchweld.compile(project, backend="eager")
    for _ in range(2):
        same(compiled(X), project(X))
        with state():
            got, expected = compiled(X), project(X)
            same(got, expected)
            assert got.is_inference() == expected.is_inference()
    assert graphs() == made


def test_dtype_of_autocast():
    torchweld.reset()
    compiled = torchweld.compile(project, backend="eager")
    for dtype in (torch.bfloat16, torch.float16, torch.bfloat16):
        with torch.autocast("cpu", dtype):
            same(compiled(X), project(X))
    assert graphs() == 2


def test_autocast_and_grad_mode_are_as_before_after_a_capture_that_fails():
    def f(x):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            y = x @ W
            return y if y.sum() > 0 else x

    torchweld.reset()
    compiled = torchweld.compile(f, backend="eager")
    for _ in range(2):
        same(compiled(X), f(X))
        assert torch.is_grad_enabled()
        assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_state_is_restored_when_capture_is_interrupted(error, monkeypatch):
    def f(x):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            return torch.relu(x @ W)

    def interrupt(*args, **kwargs):
        assert torch.is_autocast_enabled("cpu") is False
        raise error

    torchweld.reset()
    compiled = torchweld.compile(f, backend="eager")
    with monkeypatch.context() as m:
        m.setattr("torchweld.capture.interp.residualize", interrupt)
        if error is KeyboardInterrupt:
            with pytest.raises(KeyboardInterrupt):
                compiled(X)
        else:
            same(compiled(X), f(X))
            assert torchweld.statistics()["internal_errors"] == 1
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")
    torchweld.reset()
    same(compiled(X), f(X))
    assert graphs() == 1


def test_grad_mode_that_the_function_sets_stays_set():
    def f(x):
        torch.set_grad_enabled(False)
        return x * 2

    torchweld.reset()
    compiled = torchweld.compile(f, backend="eager")
    for _ in range(2):
        try:
            same(compiled(X), X * 2)
            assert not torch.is_grad_enabled()
        finally:
            torch.set_grad_enabled(True)


def test_function_mode_runs_eagerly_and_later_calls_are_compiled():
    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    seen = []
    torchweld.reset()
    compiled = torchweld.compile(project, backend="eager")
    for _ in range(2):
        with Mode():
            compiled(X)
    assert seen == [torch.Tensor.matmul] * 2
    same(compiled(X), project(X))
    assert torchweld.statistics()["graphs"] == 1


# ------------------------------------------------------------------- transforms
def wave(x):
    return (x * 2).sin()


def tangent(fn, x):
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x + 1)
        return torch.autograd.forward_ad.unpack_dual(fn(dual)).tangent


TRANSFORMS = {
    "vmap": lambda fn, x: torch.vmap(fn)(x),
    "grad": lambda fn, x: torch.func.grad(lambda x: fn(x).sum())(x),
    "jvp": lambda fn, x: torch.func.jvp(fn, (x,), (x + 1,))[1],
    "forward-mode AD": tangent,
    "trace": lambda fn, x: torch.jit.trace(fn, (x,))(x + 1),
    "functionalize": lambda fn, x: torch.func.functionalize(fn)(x),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("backend", ["eager", "torchweld"])
def test_transform_of_a_compiled_function(name, backend):
    torchweld.reset()
    compiled = torchweld.compile(wave, backend=backend)
    x = torch.arange(6.0).reshape(2, 3)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            compiled(x)
            compiled(x[0])
    for _ in range(2):
        got, expected = TRANSFORMS[name](compiled, x), TRANSFORMS[name](wave, x)
        torch.testing.assert_close(got, expected)
    torch.testing.assert_close(compiled(x), wave(x))


def test_a_process_group_that_is_made_later():
    def fn(x):
        ready = torch.distributed.is_available() and torch.distributed.is_initialized()
        return x + (torch.distributed.get_rank() + torch.distributed.get_world_size()
                    if ready else 100)  # fmt: skip

    torchweld.reset()
    compiled = torchweld.compile(fn, backend="eager")
    x = torch.zeros(2)
    assert compiled(x).tolist() == [100.0, 100.0]
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        assert compiled(x).tolist() == [1.0, 1.0]
    finally:
        torch.distributed.destroy_process_group()
    assert compiled(x).tolist() == [100.0, 100.0]
    assert torchweld.statistics()["captures"] == 2
    assert torchweld.statistics()["breaks"] == 0
