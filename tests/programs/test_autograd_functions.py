"""torch.autograd.Function with gradients: forward and backward are graphs in one node."""

import pytest
import torch
from eager_twin import check_refused
from gradient_twin import check
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.func import grad, jacrev, vmap

import torchweld

X = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
W = torch.linspace(0, 2, 12).reshape(3, 4).requires_grad_()
PLAIN = torch.linspace(1, 3, 12).reshape(3, 4)
LOG = []


class Gelu(Function):
    @staticmethod
    def forward(ctx, x, factor):
        y = torch.sigmoid(x * factor)
        ctx.save_for_backward(x, y)
        ctx.factor = factor
        return x * y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return grad * (y + ctx.factor * x * y * (1 - y)), None


class Two(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b, a + b

    @staticmethod
    def backward(ctx, first, second):
        a, b = ctx.saved_tensors
        left = first * b + second if ctx.needs_input_grad[0] else None
        return left, first * a + second if ctx.needs_input_grad[1] else None


class Power(Function):
    @staticmethod
    def forward(x, n):
        return x**n

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.n = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * ctx.n * x ** (ctx.n - 1), None


class Sorted(Function):
    @staticmethod
    def forward(ctx, x):
        values, places = x.sort(-1, descending=True)
        ctx.mark_non_differentiable(places)
        ctx.save_for_backward(places)
        return values, places

    @staticmethod
    def backward(ctx, grad, _):
        (places,) = ctx.saved_tensors
        return torch.zeros_like(grad).scatter(-1, places, grad)


class Once(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 2 * x


class Straight(Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        return grad


class Kept(Function):
    """Keeps a tensor and a shape as attributes."""

    @staticmethod
    def forward(ctx, x):
        ctx.inner, ctx.shape = x.sin(), x.shape
        return x.sum()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.inner.reshape(ctx.shape)


class Logged(Function):
    @staticmethod
    def forward(ctx, x):
        LOG.append("forward")
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        LOG.append("backward")
        return grad * 2


class Branching(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2 if grad.sum() > 0 else grad


class Strided(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2 if grad.is_contiguous() else grad * 3


class InPlace(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class Unfilled(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 1, x * 2

    @staticmethod
    def backward(ctx, first, second):
        return (0 if first is None else first) + (7 if second is None else second)


class Same(Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        return g * 3


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(3.0))

    def forward(self, x):
        scale = self.scale

        class Local(Function):
            @staticmethod
            def forward(ctx, x):
                return x * scale

            @staticmethod
            def backward(ctx, grad):
                return grad * scale

        return Local.apply(x)


def test_saved_tensors_and_attributes_of_the_context():
    check(lambda x: Gelu.apply(x + 1, 1.7) * 2, X)
    check(lambda x: Kept.apply(x * 3) + 1, X)


def test_only_the_gradients_that_are_needed():
    check(lambda a, b: sum(Two.apply(a, b)), X, W)
    check(lambda a, b: sum(Two.apply(a, b)), X, PLAIN)


def test_the_same_tensor_twice():
    check(lambda x: Two.apply(x, x)[0], X)


def test_a_context_that_is_set_up_apart():
    check(lambda x: Power.apply(x, 3) + 1, X)


def test_results_that_are_not_differentiable():
    check(lambda x: Sorted.apply(x * 2), X)


def test_straight_through():
    check(lambda x: Straight.apply(x * 3) * x, X)


def second_derivative(fn):
    x = X.detach().clone().requires_grad_()
    (grad,) = torch.autograd.grad(fn(x).sum(), x, create_graph=True)
    return torch.autograd.grad(grad.sum(), x)[0]


def test_a_gradient_has_a_gradient():
    def cube(x):
        return Power.apply(x, 3) * 2

    got = second_derivative(torchweld.compile(cube))
    torch.testing.assert_close(got, second_derivative(cube))


def test_a_gradient_that_is_differentiable_once_has_none():
    def square(x):
        return Once.apply(x) * 2

    for fn in (square, torchweld.compile(square, fullgraph=True)):
        with pytest.raises(RuntimeError, match="does not require grad"):
            second_derivative(fn)


def test_the_autograd_node_has_the_name_of_the_function():
    compiled = torchweld.compile(lambda x: (x + 1, Gelu.apply(x, 2.0))[1], backend="eager")
    assert compiled(X).grad_fn.name() == Gelu.apply(X, 2.0).grad_fn.name()


def test_an_effect_of_backward_happens_at_each_backward():
    torchweld.reset()
    LOG.clear()
    compiled = torchweld.compile(lambda x: Logged.apply(x * 3) + 1, backend="eager")
    for _ in range(2):
        compiled(X.detach().clone().requires_grad_()).sum().backward()
    assert LOG == ["forward", "backward"] * 2


def test_what_backward_decides_by_its_gradient_is_left_to_eager():
    check(lambda x: Branching.apply(x * 3) - 1, X, graphs=2, breaks=1)
    check(lambda x: Strided.apply(x * 3).t().sum(), X, graphs=2, breaks=1)
    check(lambda x: Branching.apply(x * -3) * -1, X, graphs=2, breaks=1)


def test_a_function_that_writes_its_argument():
    check(lambda x: InPlace.apply(x * 3) - 1, X)

    def used_before_and_after(x):
        y = x * 3
        view = y[0]
        before = y + 1
        z = InPlace.apply(y)
        return before, y * 2, z is y, view.detach() + z.sum()

    check(used_before_and_after, X)
    check(lambda x: (InPlace.apply(x), x + 1), X.detach())


def test_an_argument_that_is_returned():
    check(lambda x: Same.apply(x) * 2 + x, X)
    check(lambda x: Same.apply(x.sin()) * 2, X)
    check(lambda x: (Same.apply(x), Same.apply(x) is x), X.detach())


def test_gradients_that_are_not_there():
    check(lambda x: Unfilled.apply(x * 3)[0] - 1, X)
    check(lambda x: Unfilled.apply(x * 3)[1] - 1, X)
    check(lambda x: sum(Unfilled.apply(x * 3)), X)


class Rounded(Function):
    """Its gradient is not that of its operators."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.round()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx, g):
        x, out = ctx.saved_tensors
        return g * x * 3 + out


def test_in_transforms_the_gradient_is_that_of_the_function():
    check(lambda x: vmap(Rounded.apply)(x), X)
    check(lambda x: grad(lambda y: vmap(Rounded.apply)(y).sum())(x), X.detach())
    check(lambda x: vmap(grad(lambda r: Rounded.apply(r).sum()))(x) * 2, X.detach())
    check(lambda x: jacrev(Rounded.apply)(x), X.detach())
    check(lambda x: grad(lambda y: grad(lambda z: (Rounded.apply(z) * z).sum())(y).sum())(x), X)


def test_functions_that_transforms_cannot_take():
    check_refused(lambda x: grad(lambda y: Gelu.apply(y, 2.0).sum())(x), X.detach(), code="W103",
                  says="inside of a transform")  # fmt: skip


def test_a_tensor_that_is_not_an_argument_gets_no_gradient():
    module = Scaled()
    torchweld.reset()
    y = torchweld.compile(module)(X * 1)
    y.sum().backward()
    assert module.scale.grad is None
