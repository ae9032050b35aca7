"""What the libraries on top of torch call: modes, compiler names, logging, attention."""

import collections.abc
import contextlib
import logging
import math
import os
import warnings

import pytest
import torch
import torch.nn.functional as F
from eager_twin import check, check_refused

import torchweld
from torchweld.pipeline import STATISTICS

X = torch.arange(6.0).reshape(2, 3)


@torch.compiler.assume_constant_result
def const_res():
    return 3


@torch.compiler.allow_in_graph
def allowed(x):
    return x * 2


@torch.jit.unused
def unused(x):
    return x + 1


@torch.jit.export
def exported(x):
    return x + 2


def test_cudagraph_mark_step_begin():
    def program(x):
        torch.compiler.cudagraph_mark_step_begin()
        return x * 2

    check(program, (X,))


def test_allow_in_graph():
    def program(x):
        return allowed(x) + 1

    check(program, (X,))


def test_assume_constant_result():
    def program(x):
        return x * const_res()

    check(program, (X,))


def test_nested_autocast():
    def program(x):
        with torch.autocast("cpu", torch.bfloat16):
            a = x @ x.T
            with torch.autocast("cpu", enabled=False):
                b = x @ x.T
            c = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        return a, b, c

    check(program, (X,))


def test_autocast_as_decorator():
    def program(x):
        @torch.autocast("cpu", dtype=torch.bfloat16)
        def f(a):
            return a @ a.T

        with torch.amp.autocast(device_type="cpu", enabled=False):
            b = x @ x.T
        with torch.cpu.amp.autocast() if False else contextlib.nullcontext():
            pass
        return f(x), b, f(x).dtype

    check(program, (X,))


def test_attention_with_chosen_kernels():
    def program(x):
        q = x.reshape(1, 1, 2, 3)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return F.scaled_dot_product_attention(q, q, q)

    check(program, (X,))


def test_attention_with_chosen_kernels_in_an_order():
    def program(x):
        q = x.reshape(1, 1, 2, 3)
        wanted = [torch.nn.attention.SDPBackend.MATH, torch.nn.attention.SDPBackend.FLASH_ATTENTION]
        with torch.nn.attention.sdpa_kernel(wanted, set_priority=True):
            return F.scaled_dot_product_attention(q, q, q), torch._C._get_sdp_priority_order()[0]

    check(program, (X,))


def test_checkpoint_without_gradients():
    def program(x):
        with torch.no_grad():
            return torch.utils.checkpoint.checkpoint(lambda a: a.sin() * 2, x, use_reentrant=False)

    check(program, (X,))


def test_record_function():
    def program(x):
        with torch.autograd.profiler.record_function("zone"):
            return x * 2

    check(program, (X,))


def test_a_profiler_changes_nothing():
    def program(x):
        with torch.autograd.profiler.record_function("zone"):
            return x * 2

    torchweld.reset()
    compiled = torchweld.compile(program)
    compiled(X)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        torch.testing.assert_close(compiled(X), X * 2)
    assert (STATISTICS.graphs, STATISTICS.breaks, STATISTICS.recompiles) == (1, 0, 0)
    assert "zone" not in {e.name for e in profile.events()}


def test_grad_modes_set_and_restored():
    def program(x):
        @torch.no_grad()
        def f(t):
            return t * 2, torch.is_grad_enabled()

        @torch.enable_grad()
        def g(t):
            return t * 3, torch.is_grad_enabled()

        with torch.set_grad_enabled(False):
            a = torch.is_grad_enabled()
        prev = torch.is_grad_enabled()
        torch.set_grad_enabled(False)
        b = torch.is_grad_enabled()
        torch.set_grad_enabled(prev)
        return f(x), g(x), a, b

    check(program, (X,))


def test_scripting_and_exporting_flags():
    def program(x):
        return (
            x * (1 if torch.jit.is_scripting() or torch.jit.is_tracing() else 2),
            torch.onnx.is_in_onnx_export(),
            torch.is_tensor(x),
            torch.get_default_dtype(),
            torch.overrides.has_torch_function((x,)),
        )

    check(program, (X,))


def test_functions_marked_for_scripting():
    def program(x):
        return unused(x) * exported(x)

    check(program, (X,))


def test_sizes_added_and_sliced():
    def program(x):
        b, h = x.shape
        s = x.size()
        n = torch.Size([1, *s])
        return (
            x.view(n),
            x.reshape(-1),
            x.new_zeros(b, h),
            x.expand(4, *s),
            s[-1],
            s.numel(),
            x.shape[:-1] + (1, h),  # noqa: RUF005
            tuple(s),
            math.prod(s),
            x.unflatten(1, (3, 1)),
            torch.broadcast_shapes((1, 3), (2, 1)),
            len(x),
            x.dim(),
        )

    check(program, (X,))


def test_gradients_and_detached_tensors():
    def program(x):
        y = x * 2
        z = y.detach()
        w = (y * z).sum()
        with torch.no_grad():
            q = w * 2
        return w, q, z, y.requires_grad, q.requires_grad, x.is_leaf

    check(program, (X.clone().requires_grad_(),))


def test_in_place_chains():
    def program(x):
        y = x.clone()
        y[0] = 1
        y[:, 1] += 2
        y.mul_(2).add_(1)
        y[y > 3] = 0
        v = y.view(-1)
        v[0] = 9
        torch.add(y, 1, out=y)
        y.copy_(x + y)
        y.zero_() if False else 1
        return y, v

    check(program, (X,))


def test_distributions():
    def program(x):
        d = torch.distributions.Normal(x, torch.ones_like(x), validate_args=False)
        return (
            d.log_prob(x),
            d.mean,
            d.entropy(),
            torch.distributions.Categorical(logits=x, validate_args=False).probs,
        )

    check(program, (X,))


def test_warnings_and_loggers_by_name():
    def program(x):
        warnings.warn("careful", stacklevel=2)
        logging.getLogger("zz").debug("hi %s", 3)
        return x + 1

    check(program, (X,))


def test_one_graph_for_each_kind_of_number():
    def program(x, n):
        return x * (n or 1), type(n).__name__

    check(program, (X, 2), (X, 3), (X, 2.5), (X, True), (X, None), graphs=5)


def test_nested_arguments_are_changed():
    def program(d, rest):
        d["c"] = d["a"] + 1
        rest.append(d["b"][0])
        d["b"][1] += 1
        k = d.pop("a")
        rest[0] = k * 2
        return d, rest, sorted(d)

    check(program, ({"a": X, "b": [X, 2]}, [X]))


def test_logger_that_is_made_in_the_frame(caplog):
    def program(x):
        logging.getLogger("weld.test").warning("seen %s", x.shape[0])
        return x + 1

    check(program, (X,))
    assert [r.getMessage() for r in caplog.records] == ["seen 2"] * 4


def test_attention_kernels_are_guarded():
    q = torch.ones(1, 1, 4, 8)
    torchweld.reset()
    compiled = torchweld.compile(lambda q: F.scaled_dot_product_attention(q, q, q))
    compiled(q)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        compiled(q)
        compiled(q)
    compiled(q)
    assert torchweld.statistics()["graphs"] == 2


def test_attention_kernels_that_stay_chosen():
    def program(x):
        torch.backends.cuda.enable_flash_sdp(False)
        return x + 1

    torchweld.reset()
    compiled = torchweld.compile(program, backend="eager")
    for _ in range(2):
        torch.backends.cuda.enable_flash_sdp(True)
        compiled(X)
        assert not torch.backends.cuda.flash_sdp_enabled()
    torch.backends.cuda.enable_flash_sdp(True)


def test_detached_input_does_not_require_grad():
    def program(x):
        with torch.no_grad():
            return x.detach(), x.data, x.view(-1), x[0]

    for x in (torch.ones(2, 3, requires_grad=True), X.clone().view(3, 2).requires_grad_()):
        torchweld.reset()
        expected, got = program(x), torchweld.compile(program, fullgraph=True)(x)
        assert [y.requires_grad for y in got] == [y.requires_grad for y in expected]


def test_abstract_class_is_not_instantiated():
    def program(x):
        try:
            return x, collections.abc.Sized()
        except TypeError as error:
            return x + 1, str(error)

    check(program, (X,))


def test_gradients_of_arguments_are_read():
    def program(x, w):
        return x.grad is None, w.grad is None, x + (1 if w.grad is None else w.grad)

    w = torch.ones(3, requires_grad=True)
    torchweld.reset()
    compiled = torchweld.compile(program, fullgraph=True, backend="eager")
    for grad in (None, torch.ones(3), torch.full((3,), 2.0), None):
        w.grad = grad
        assert compiled(X, w)[1] == (grad is None)
        assert torch.equal(compiled(X, w)[2], program(X, w)[2])
    assert torchweld.statistics()["graphs"] == 2


def test_paths():
    def program(x):
        return x + 1, os.path.join("a", "b"), os.path.basename("/a/b.c"), os.environ.get("NO_WELD")

    check(program, (X,))


def test_attention_module_in_inference():
    attention = torch.nn.MultiheadAttention(32, 4, batch_first=True).eval()

    def call(x):
        with torch.no_grad():
            return attention(x, x, x)[0]

    check(call, (torch.randn(2, 5, 32),))


def test_assertions_about_tensors_are_eagers():
    def program(x, limit):
        torch._assert(x.sum() < limit, "too large")
        return x + 1

    torchweld.reset()
    compiled = torchweld.compile(program)
    for _ in range(2):
        assert torch.equal(compiled(X, 99), X + 1)
        with pytest.raises(AssertionError, match="too large"):
            compiled(X, 3)


def test_assertions_about_what_is_known():
    def program(x):
        torch._assert(x.dim() == 2, "two dimensions")
        try:
            torch._assert(x.shape[0] == 7, "seven rows")
        except AssertionError as error:
            return x + 1, str(error)

    check(program, (X,))


def test_attributes_that_not_every_torch_has():
    def program(x):
        return x + 1, hasattr(x, "names"), getattr(x, "is_vulkan", None), getattr(x, "name", 1)

    torchweld.reset()
    (_, *got), (_, *want) = torchweld.compile(program, backend="eager")(X), program(X)
    assert got == want
    assert torchweld.statistics()["internal_errors"] == 0


def test_requires_grad_of_tensors_made_in_the_frame():
    def program(x):
        y = x.detach().clone().requires_grad_()
        return y, y.sin(), x.clone().requires_grad_(False)

    check(program, (X,))


def test_flags_of_a_library_that_may_not_be_there():
    def program(x):
        with torch.backends.cudnn.flags(enabled=False):
            y = x * 2
        return y + 1

    if torch.backends.cudnn.is_available():
        check_refused(program, X, code="W106", says="a change of a setting")
    else:
        check(program, (X,))
