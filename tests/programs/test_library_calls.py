"""What model libraries do around their tensors: cached methods, autograd functions, signatures."""

import contextvars
import functools
import inspect
import logging

import pytest
import torch
from eager_twin import check, check_refused

import torchweld

X = torch.arange(6.0).reshape(2, 3)
SCALE = contextvars.ContextVar("SCALE", default=None)


class Doubled(torch.autograd.Function):
    """Saves its input, and says what it may."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * factor + (1 if any(ctx.needs_input_grad) else 0)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * ctx.factor + x * 0, None


class SetUp(torch.autograd.Function):
    """Keeps its context apart."""

    @staticmethod
    def forward(x):
        return x.exp(), x + 1

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*output)

    @staticmethod
    def backward(ctx, first, second):
        return first + second


class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x


def doubled(x):
    return Doubled.apply(x, 2) - 1


def test_autograd_function_without_gradients_is_part_of_the_graph():
    with torch.no_grad():
        check(doubled, (X,), (X.clone().requires_grad_(),), graphs=2)


def test_autograd_function_of_tensors_without_gradients_in_grad_mode():
    check(doubled, (X,))


def test_autograd_function_with_a_context_of_its_own_step():
    def f(x):
        a, b = SetUp.apply(x)
        return a * b

    check(f, (X,))


def test_autograd_function_that_returns_its_input():
    check(lambda x: (Same.apply(x) + 1, Same.apply(x) is x), (X,))


class Cached:
    scale = 2

    @functools.lru_cache  # noqa: B019
    def answer(self):
        return self.scale


def test_cached_method_keeps_its_first_answer():
    cached = Cached()

    def f(x):
        return x * cached.answer()

    compiled = torchweld.compile(f)
    torch.testing.assert_close(compiled(X), X * 2)
    cached.scale = 3
    torch.testing.assert_close(compiled(X), f(X))


class Once(logging.Logger):
    """A logger with a cached method, as libraries warn once."""

    @functools.lru_cache  # noqa: B019
    def once(self, text):
        self.warning(text)


def test_cached_method_of_a_logger_is_an_effect():
    logger, seen = Once("once"), []
    logger.addFilter(lambda record: bool(seen.append(record.getMessage())))

    def f(x):
        logger.once("careful")
        return x + 1

    torchweld.reset()
    compiled = torchweld.compile(f, fullgraph=True)
    torch.testing.assert_close(compiled(X), compiled(X))
    assert seen == ["careful"]


@pytest.mark.parametrize("kind", [bool, int, float, complex])
def test_class_of_a_number_as_a_dtype(kind):
    check(lambda x: (x.to(kind), torch.tensor([0, 1], dtype=kind)), (X,))


def test_class_where_a_tensor_method_takes_none():
    def f(x):
        try:
            return x.type(int)
        except ValueError:
            return x + 1

    check_refused(f, X, code="W104", says="invalid type")


def test_check_of_all_values_raises_as_in_eager():
    def f(x):
        torch._check_tensor_all(x >= 0)
        return x * 2

    check(f, (X,))
    compiled = torchweld.compile(f, fullgraph=True)
    with pytest.raises(RuntimeError) as eager:
        f(X - 1)
    with pytest.raises(RuntimeError) as ours:
        compiled(X - 1)
    assert str(ours.value) == str(eager.value)


def test_context_variable_is_read_and_guarded():
    def f(x):
        scale = SCALE.get()
        return x + 1 if scale is None else x * scale

    torchweld.reset()
    compiled = torchweld.compile(f, fullgraph=True)
    torch.testing.assert_close(compiled(X), X + 1)
    token = SCALE.set(3)
    try:
        torch.testing.assert_close(compiled(X), X * 3)
    finally:
        SCALE.reset(token)
    torch.testing.assert_close(compiled(X), X + 1)
    assert torchweld.statistics()["graphs"] == 2


def test_signature_is_bound_and_walked():
    def callee(a, b=2, *, c=3, **rest): ...

    signature = inspect.signature(callee)

    def f(x):
        bound = inspect.signature(callee).bind(1, c=5, z=7)
        bound.apply_defaults()
        total = sum(bound.args) + bound.kwargs["c"] + len(signature.parameters.keys())
        for name, parameter in signature.parameters.items():
            if parameter.default is not inspect.Parameter.empty:
                total += parameter.default + len(name)
        return x + total

    check(f, (X,))
